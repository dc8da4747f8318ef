"""Sums of short rows and of their columns: blocks take packs of neighbouring rows through shared
memory, so that no sector belongs to two of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from witnesses import assert_right_by_the_syncs_it_needs

import fusewright as fw
from fusewright.fusion.ir import Parts
from fusewright.kir.ir import Load
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory
from fusewright.sim.traffic import traffic

ROWS = 1_082_025
"""A few more than 16 packs of 256 rows for each of two blocks on 132 multiprocessors."""
FEW_ROWS = 3 * 2 * 132 * 256 - 39
"""Fewer than three packs for each of these blocks: each has two, which are shared out exactly."""


def maxima(x: Any) -> Any:
    return fw.max(x, axis=-1), fw.max(x, axis=tuple(range(x.ndim - 1)))


def weighted(x: Any, w: Any) -> Any:
    return fw.sum(x * w, axis=-1), fw.sum(x * x * w, axis=0)


def backward(dy: Any, x: Any) -> Any:
    g = fw.sum(dy * x, axis=-1, keepdims=True)
    return dy - x * g, fw.sum(dy * x, axis=0), fw.sum(dy, axis=0)


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], str]] = {
    "odd": (maxima, ((ROWS, 3),), "float32"),
    "even, no words": (maxima, ((ROWS, 6),), "float32"),
    "of several axes": (maxima, ((33, 16411, 1, 5),), "float32"),
    "of two packs for each block": (backward, ((FEW_ROWS, 3), (FEW_ROWS, 3)), "float32"),
    "of halves": (maxima, ((2 * ROWS, 3),), "float16"),
    "what rows share": (weighted, ((ROWS, 7), (7,)), "float32"),
    "results as long as rows": (backward, ((ROWS, 5), (ROWS, 5)), "float32"),
}


def _program(name: str) -> tuple[fw.Program, list[np.ndarray]]:
    fn, shapes, dtype = CASES[name]
    specs = [fw.TensorSpec(s, dtype) for s in shapes]
    rng = np.random.default_rng(len(name))
    arrays = [rng.standard_normal(s).astype(dtype) for s in shapes]
    return fw.compile(fw.trace(fn, *specs), target="sm_90a"), arrays


@pytest.mark.parametrize("name", CASES)
def test_right_in_the_simulator_and_no_sync_too_many(name: str) -> None:
    program, arrays = _program(name)
    assert program.kernels[0].heuristic is not None
    assert program.kernels[0].heuristic.scheduler == "rows_staged"
    assert_right_by_the_syncs_it_needs(program, arrays, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("name", ["odd", "of several axes", "of halves"])
def test_every_sector_is_asked_for_once_in_whole_vectors(name: str) -> None:
    program, _ = _program(name)
    kernel = program.kernels[0]
    widths = {
        s.width * s.src.dtype.nbytes
        for s in walk_statements(kernel.ir)
        if isinstance(s, Load) and s.src.memory is Memory.GLOBAL
    }
    assert widths == {16}
    found = traffic(kernel.ir, kernel.arguments())
    assert found.byte_ratio <= 1.05 and found.sector_ratio <= 1.05


def test_packs_of_few_rows_are_shared_out_without_a_rest() -> None:
    """Rows of 6 bytes that are dealt one by one, 920 of them from one to the next of a block, ask
    for a sector each: 21.7 us were measured of float16[251194, 3] where torch.compile takes 12.9
    (one H100)."""
    program, _ = _program("of two packs for each block")
    (partition,) = {t.op.partition for t in program.fusion.values if isinstance(t.op, Parts)}
    assert partition.pack == 256 and partition.each == 2 * partition.pack
    assert 0 <= partition.count * partition.each - FEW_ROWS < partition.each


def test_too_few_rows_for_packs_are_dealt_in_turn() -> None:
    spec = fw.TensorSpec((60_003, 5), "float32")
    kernel = fw.compile(fw.trace(maxima, spec), target="sm_90a").kernels[0]
    assert kernel.heuristic is not None and kernel.heuristic.scheduler != "rows_staged"
