"""Softmax and norms down columns of which few lie side by side, as `[64, 36441, 8]` along 1: shared
memory holds them, in whole rows that follow each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fusewright as fw


def softmax(x: fw.Array) -> fw.Array:
    return fw.nn.softmax(x, axis=1)


def norm(x: fw.Array) -> fw.Array:
    y = x - fw.mean(x, axis=1, keepdims=True)
    return y / fw.sqrt(fw.mean(y * y, axis=1, keepdims=True) + 1e-5)


def _program(fn: Callable[[fw.Array], fw.Array], shape: tuple[int, ...], dtype: str) -> fw.Program:
    return fw.compile(fw.trace(fn, fw.TensorSpec(shape, dtype)), target="sm_90a")


@pytest.mark.parametrize(
    ("fn", "shape", "dtype", "cluster"),
    [
        (softmax, (140, 3001, 8), "bfloat16", 2),
        (softmax, (40, 2101, 16), "float32", 8),
        (norm, (135, 1203, 8), "float32", 2),
        (norm, (36, 5001, 8), "bfloat16", 4),
    ],
)
def test_right_in_the_simulator_and_no_sync_too_many(
    fn: Callable[[fw.Array], fw.Array], shape: tuple[int, ...], dtype: str, cluster: int
) -> None:
    program = _program(fn, shape, dtype)
    (kernel,) = program.kernels
    assert kernel.heuristic is not None
    values = dict(kernel.heuristic.values)
    assert kernel.heuristic.scheduler.endswith("shared")
    assert (values["kept_threads"], values.get("cluster", 1)) == (
        shape[2] // values["vector"],
        cluster,
    )
    assert kernel.resources().spill_stores == 0
    x = np.random.default_rng(shape[1]).standard_normal(shape).astype(getattr(fw, dtype).numpy)
    found = program.simulate(x)
    assert not found.races
    (want,) = fw.evaluate(program.fusion, x)
    tolerance = 2e-2 if dtype == "bfloat16" else 1e-4
    got = np.asarray(found.outputs[0], np.float64)
    np.testing.assert_allclose(got, np.asarray(want, np.float64), rtol=tolerance, atol=tolerance)
    report = fw.verify(program, x)
    assert not report.missing and not report.redundant


def test_columns_that_the_chip_does_not_hold_are_read_twice() -> None:
    assert len(_program(softmax, (64, 36441, 8), "bfloat16").kernels) == 1
    assert len(_program(softmax, (64, 200_001, 8), "bfloat16").kernels) == 1  # by 30 blocks
    assert len(_program(softmax, (64, 1_000_001, 8), "bfloat16").kernels) == 3
    assert len(_program(softmax, (4, 4_000_001, 8), "bfloat16").kernels) == 3


def test_too_few_columns_to_fill_the_chip_are_shared_out() -> None:
    assert len(_program(softmax, (8, 36441, 8), "bfloat16").kernels) == 3
