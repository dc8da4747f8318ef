"""Results of reductions whose required order lies across: written along rows, then moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.passes.store_across import store_across, values_across
from fusewright.fusion.passes.store_in_orders import store_in_orders

S = fw.TensorSpec


def scaled(x: Any) -> Any:
    return x / (fw.sum(x * x, axis=-1, keepdims=True) + 1.0)


CASES: dict[str, tuple[Callable[..., Any], tuple[fw.TensorSpec, ...]]] = {
    "rows": (scaled, (S((4096, 4096), "bfloat16"),)),
    "odd rows": (scaled, (S((4099, 4103), "float32"),)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_along_rows_writes_no_sector_for_an_element(name: str) -> None:
    fn, specs = CASES[name]
    program = fw.compile(fw.trace(fn, *specs), out_layouts=[(1, 0)])
    last = [x.kernel.heuristic.scheduler for x in program.launches if x.kernel.heuristic][-1]
    assert last in ("transpose", "staged_lines", "inner_tiled")
    alone = fw.compile(fw.trace(fn, *specs))
    assert len(program.launches) <= len(alone.launches) + (last != "inner_tiled")
    predicted = [sum(k.predicted.us for k in p.kernels if k.predicted) for p in (program, alone)]
    assert predicted[0] < 3 * predicted[1]


def test_results() -> None:
    spec = S((67, 301), "float32")
    fusion = store_in_orders(fw.trace(scaled, spec), [(1, 0)])
    (across,) = values_across(fusion)
    stored = store_across(fusion, {across})
    assert [t.name for t in stored.outputs] == [t.name for t in fusion.outputs]
    program = fw.compile(stored)
    assert len(program.launches) == 2
    x = np.random.default_rng(0).normal(size=(67, 301)).astype(np.float32)
    result = program.simulate(x)
    assert result.races == []
    want = x / ((x * x).sum(-1, keepdims=True) + 1)
    np.testing.assert_allclose(result.outputs[0], want.T, rtol=1e-5)


def test_what_elements_alone_decide_is_transposed_where_it_is_made() -> None:
    spec = S((4096, 4096), "float32")
    program = fw.compile(fw.trace(lambda x: fw.exp(x) + 1, spec), out_layouts=[(1, 0)])
    assert len(program.launches) == 1
    fusion = store_in_orders(fw.trace(lambda x: fw.exp(x), spec), [(1, 0)])
    assert values_across(fusion) == []


def test_an_argument_across_that_is_a_result_too() -> None:
    def fn(x: Any) -> Any:
        return fw.pad(x, ((1, 1), (2, 0)), "reflect"), x

    spec = S((4, 9), "float32", strides=(1, 4), alignment=4)
    fusion = fw.trace(fn, spec)
    x = np.asfortranarray(np.arange(36, dtype=np.float32).reshape(4, 9))
    for f in (fusion, store_across(fusion, set(fusion.inputs))):
        result = fw.compile(f).simulate(x)
        assert result.races == []
        np.testing.assert_array_equal(result.outputs[0], np.pad(x, ((1, 1), (2, 0)), "reflect"))
        np.testing.assert_array_equal(result.outputs[1], x)
