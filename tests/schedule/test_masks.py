"""What masks by position drop is not read: what the cost model counts of it, beside what the
definition of the mask keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fusewright as fw
from fusewright.core.conditions import TRUE
from fusewright.core.expr import Int, Var
from fusewright.core.positions import place_of
from fusewright.dtypes import dtype_of
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.work import work_of
from fusewright.target import target_of

TARGET = target_of("sm_90a")
ROWS, COLUMNS = 1024, 4096
ALL = 4 * ROWS * COLUMNS


def asked(fn: Callable[..., Any], *specs: fw.TensorSpec) -> float:
    """Bytes that the largest read asks for, of float32[ROWS, COLUMNS] unless said otherwise."""
    specs = specs or (fw.TensorSpec((ROWS, COLUMNS), "float32"),)
    (kernel,) = fw.compile(fw.trace(fn, *specs), "sm_90a").kernels
    assert kernel.segment is not None and kernel.heuristic is not None
    flow = kernel.segment.dataflow()
    schedule_group(flow, TARGET, kernel.heuristic)
    arrays = work_of(flow, kernel.heuristic).arrays
    return max(sum(a.requested) for a in arrays if not a.is_written)


def kept(diagonal: int) -> float:
    """Bytes of the lower triangle."""
    return 4.0 * sum(min(COLUMNS, max(0, i + 1 + diagonal)) for i in range(ROWS))


def band(x: Any) -> Any:
    i = fw.arange(ROWS)[:, None]
    j = fw.arange(COLUMNS)[None, :]
    return fw.where(fw.abs(i - j) <= 64, x, 0.0)


@pytest.mark.parametrize(
    ("fn", "nbytes"),
    [
        (lambda x: fw.tril(x), kept(0)),
        (lambda x: fw.triu(x, k=1), ALL - kept(0)),
        (lambda x: fw.exp(fw.tril(fw.exp(x), k=512)), kept(512)),
        (band, 4.0 * ROWS * 2 * 64),
    ],
)
def test_what_a_mask_drops_is_not_asked_for(fn: Callable[..., Any], nbytes: float) -> None:
    assert asked(fn) == pytest.approx(nbytes, abs=0.05 * ALL)


def test_what_somebody_looks_at_is_asked_for() -> None:
    assert asked(lambda x: fw.where(x > 0, x, 0.0)) == ALL
    assert asked(lambda x: fw.tril(x) + x) == ALL
    assert asked(lambda x: (fw.tril(x), fw.exp(x))) == ALL


def test_a_mask_over_rows_of_a_reduction_spares_reading() -> None:
    def causal(x: Any) -> Any:
        return fw.nn.softmax(fw.where(fw.tril(fw.ones_like(x)) > 0, x, -fw.inf), axis=-1)

    def causal_by_place(x: Any) -> Any:
        i = fw.arange(COLUMNS)[:, None]
        j = fw.arange(COLUMNS)[None, :]
        return fw.nn.softmax(fw.where(j <= i, x, -fw.inf), axis=-1)

    square = fw.TensorSpec((COLUMNS, COLUMNS), "float32")
    half = 2.0 * COLUMNS * COLUMNS
    assert asked(causal_by_place, square) == pytest.approx(half, rel=0.2)
    assert asked(causal, square) == 2 * half  # values decide, not positions


def test_rows_that_begin_inside_of_a_pair_of_sectors_reach_into_one_more() -> None:
    def read(pitch: int) -> float:
        spec = fw.TensorSpec((1 << 16, 5), "float32", strides=(pitch, 1))
        (kernel,) = fw.compile(fw.trace(lambda x: x + 1, spec), "sm_90a").kernels
        assert kernel.segment is not None and kernel.heuristic is not None
        flow = kernel.segment.dataflow()
        schedule_group(flow, TARGET, kernel.heuristic)
        (source,) = (a for a in work_of(flow, kernel.heuristic).arrays if not a.is_written)
        return source.nbytes / (1 << 16)

    assert read(64) == 64
    assert read(69) == 80  # a quarter of the places of a word in 64 bytes lie too near to its end
    assert read(72) == 64  # 20 bytes from every multiple of 32 on


def test_functions_of_positions_are_told_apart() -> None:
    x = Var("x", 0, 100)
    int8, int32, boolean = dtype_of("int8"), dtype_of("int32"), dtype_of("bool")
    assert place_of("mul", [x, Int(2)], int32) == x * 2
    assert place_of("mul", [x, Int(2)], int8) is None  # the type wraps around
    assert place_of("mul", [x, x], int32) is None
    assert place_of("le", [x, Int(100)], boolean) == TRUE
    assert place_of("le", [x, None], boolean) is None
    assert place_of("exp", [x], dtype_of("float32")) is None
