"""Reductions in front of a few kept elements: slabs of rows are moved through shared memory in
whole vectors, whatever the rows' size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from witnesses import assert_right_by_the_syncs_it_needs

import fusewright as fw
from fusewright.core.expr import constant_value
from fusewright.dtypes import DType
from fusewright.fusion.passes.decompose import decompose
from fusewright.kir.ir import Alloc, Load, Store
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import candidates_of
from fusewright.schedule.heuristics.candidates import Candidate, Refused
from fusewright.target import target_of

Shape = tuple[int, ...]


def norm(axis: int | tuple[int, ...]) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        d = x - fw.mean(x, axis=axis, keepdims=True)
        return d * fw.rsqrt(fw.mean(d * d, axis=axis, keepdims=True) + 1e-5)

    return fn


def std(x: Any) -> Any:
    return fw.std(x, axis=1)


def softmax(x: Any) -> Any:
    return fw.nn.softmax(x, axis=1)


def with_residual(x: Any, y: Any) -> Any:
    return fw.nn.softmax(x, axis=1) + y


CASES: dict[str, tuple[Callable[..., Any], Shape, Shape | None, str, int, int]] = {
    "one slab": (std, (600, 200, 11), None, "bfloat16", 1, 2),
    "several slabs": (norm(1), (300, 40, 3), None, "bfloat16", 1, 4),
    "a slab that is left over": (norm(1), (541, 36, 5), None, "float32", 1, 8),
    "of permuted axes": (std, (150, 200, 11, 4), (2200, 11, 1, 330000), "bfloat16", 1, 2),
    "two reduced axes": (norm((1, 2)), (301, 12, 10, 5), None, "float32", 1, 2),
    "of doubles": (softmax, (300, 50, 13), None, "float64", 1, 1),
    "beside another input": (with_residual, (300, 64, 11), None, "float32", 2, 1),
}
"""The function, the shape and strides of its arguments, their dtype and number, and the slabs that
a block takes."""


def _program(name: str) -> tuple[fw.Program, list[np.ndarray]]:
    fn, shape, strides, dtype, inputs, _ = CASES[name]
    kind: DType = getattr(fw, dtype)
    rng = np.random.default_rng(len(name))
    specs = [fw.TensorSpec(shape, dtype, strides=strides)] * inputs
    arrays = [rng.standard_normal(shape).astype(kind.numpy) for _ in specs]
    if strides is not None:
        steps = [s * kind.nbytes for s in strides]
        arrays = [np.lib.stride_tricks.as_strided(a.reshape(-1), shape, steps) for a in arrays]
    return fw.compile(fw.trace(fn, *specs), target="sm_90a"), arrays


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_right_in_the_simulator_and_no_sync_too_many(name: str) -> None:
    program, arrays = _program(name)
    (kernel,) = program.kernels
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == "outer_slabs"
    assert dict(kernel.heuristic.values)["slabs"] == CASES[name][-1]
    assert kernel.resources().spill_stores == 0
    assert_right_by_the_syncs_it_needs(program, arrays, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", CASES)
def test_no_column_is_kept_in_registers_between_passes(name: str) -> None:
    (kernel,) = _program(name)[0].kernels
    vector = dict(kernel.heuristic.values)["vector"] if kernel.heuristic else 0
    local = [s.buffer for s in walk_statements(kernel.ir) if isinstance(s, Alloc)]
    sizes = [constant_value(b.size) or 0 for b in local if b.memory is Memory.LOCAL]
    assert sizes and max(sizes) <= vector


@pytest.mark.parametrize("name", CASES)
def test_slabs_move_in_whole_words_once(name: str) -> None:
    program, arrays = _program(name)
    (kernel,) = program.kernels
    moved = [
        s.width * b.dtype.nbytes
        for s in walk_statements(kernel.ir)
        if isinstance(s, Load | Store)
        for b in (s.src if isinstance(s, Load) else s.dst,)
        if b.memory is Memory.GLOBAL and constant_value(b.size) == arrays[0].size
    ]
    assert moved and set(moved) == {16}
    assert program.host.stats["bytes_moved"] <= 1.01 * (
        sum(a.nbytes for a in arrays) + sum(y.nbytes for y in fw.evaluate(program.fusion, *arrays))
    )


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((64, 300, 8), "whole vectors"),
        ((64, 300, 77), "lines"),
        ((300, 20, 11), "20 by 11 elements"),
        ((300, 20_000, 3), "480000 bytes"),
    ],
)
def test_other_rows_are_refused_with_the_reason(shape: Shape, why: str) -> None:
    fusion = fw.trace(norm(1), fw.TensorSpec(shape, "float32"))
    found = list(candidates_of(Dataflow(decompose(fusion)), target_of("sm_90a")))
    reasons = [c.why for c in found if isinstance(c, Refused) and "slabs" in c.what]
    assert len(reasons) == 1 and why in reasons[0]
    assert all(c.params.scheduler != "outer_slabs" for c in found if isinstance(c, Candidate))
