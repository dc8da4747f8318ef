"""Scans of what is computed of reductions: in one kernel with these, or of what they leave in
memory, whichever is predicted to be faster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.forms import prepare
from fusewright.fusion.ir import Reduce, Scan
from fusewright.host.choose_partitions import formed, reductions_before_scans
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def rounded_then_scanned(x: Any) -> Any:
    """Rounded by the largest magnitudes along the first and the last axis, then summed up."""
    wide = fw.astype(x, "float32")
    scale = fw.max(fw.abs(wide), axis=(0, 3), keepdims=True) / 127 + 1e-6
    y = fw.round(wide / scale) * scale
    return fw.astype(fw.cumulative_sum(fw.log(1 + y * y), axis=2), "bfloat16")


def test_no_group_scans_what_it_computes_of_its_reductions() -> None:
    fusion = prepare(
        fw.trace(rounded_then_scanned, fw.TensorSpec((3, 5, 11, 3), "bfloat16")), TARGET
    )
    (reduction,) = reductions_before_scans(fusion)
    assert isinstance(reduction.op, Reduce)
    _, together = formed(fusion, TARGET)
    _, apart = formed(fusion, TARGET, scans_apart=True)
    assert len(together.groups) == 1 and len(apart.groups) == 2
    kinds = [{type(t.op) for t in g} & {Reduce, Scan} for g in apart.groups]
    assert kinds == [{Reduce}, {Scan}]
    small = max(np.prod([int(str(n)) for n in t.shape]) for t in apart.groups[0][-1:])
    assert small == 5 * 11, "what is stored between the kernels has the reduction's size"


def test_a_scan_reads_the_reduction_where_threads_would_be_few() -> None:
    """Lines of 436 steps with 24 elements beside each take few threads in one kernel."""
    spec = fw.TensorSpec((8, 63, 64, 436, 3), "bfloat16")

    def fn(x: Any) -> Any:
        wide = fw.astype(x, "float32")
        scale = fw.max(fw.abs(wide), axis=(0, 4), keepdims=True) / 127 + 1e-6
        y = fw.round(wide / scale) * scale
        return fw.astype(fw.cumulative_sum(fw.log(1 + y * y), axis=3), "bfloat16")

    assert len(fw.compile(fw.trace(fn, spec), target="sm_90a").launches) == 2


@pytest.mark.parametrize("shape", [(3, 5, 11, 3), (2, 7, 40, 5)])
def test_values_are_right(shape: tuple[int, ...]) -> None:
    fusion = fw.trace(rounded_then_scanned, fw.TensorSpec(shape, "bfloat16"))
    x = np.random.default_rng(5).standard_normal(shape).astype(fusion.inputs[0].dtype.numpy)
    result = fw.compile(fusion).simulate(x)
    assert result.races == []
    (want,) = fw.evaluate(fusion, x)
    got = np.asarray(result.outputs[0], np.float64)
    np.testing.assert_allclose(got, np.asarray(want, np.float64), rtol=2e-2, atol=2e-2)
