"""Strips of rows that blocks read: what lies beside them in the same pairs of sectors is read by
the blocks beside them, too."""

from __future__ import annotations

from typing import Any

import pytest

import fusewright as fw
from fusewright.forms import prepare
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import candidates_of, schedule_group
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.cost import cost
from fusewright.schedule.heuristics.work import Work, work_of
from fusewright.target import target_of

TARGET = target_of("sm_90a")
ROWS = 512


def scaled(x: Any) -> Any:
    return x / fw.sum(x, axis=0)


def work(columns: int, kept: int, down: int, vector: int = 1) -> Work:
    """Of columns that are divided by their sum, `kept` vectors side by side in a block."""
    spec = fw.TensorSpec((ROWS, columns), "float32")
    fusion = prepare(fw.trace(scaled, spec), TARGET)
    found = candidates_of(Dataflow(fusion), TARGET)
    wanted = {"vector": vector, "reduce_threads": down, "kept_threads": kept}
    params = next(
        c.params
        for c in found
        if isinstance(c, Candidate) and wanted.items() <= dict(c.params.values).items()
    )
    flow = Dataflow(fusion)
    schedule_group(flow, TARGET, params)
    return work_of(flow, params)


def share(columns: int, kept: int, down: int, vector: int = 1) -> float:
    """Bytes beside the strips over those of the array."""
    (x,) = (a for a in work(columns, kept, down, vector).arrays if not a.is_written)
    return x.borders / x.nbytes


@pytest.mark.parametrize(("kept", "down"), [(32, 16), (32, 32), (16, 32)])
def test_strips_of_odd_rows_begin_and_end_inside_of_pairs(kept: int, down: int) -> None:
    """Strips begin at any of 16 places in 64 bytes: 60 bytes lie beside each in the mean."""
    assert share(200_001, kept, down) == pytest.approx(60 / (4 * kept), rel=0.1)


def test_lanes_across_rows_are_followed_by_the_next_threads_in_each_of_them() -> None:
    """Lanes 0, 4, 8 .. of a warp read one row, and the next warp reads on, unless it is of another
    block: 35.5 us were measured, a copy's time, where everything was predicted to come twice (one
    H100)."""
    shape = (1 << 21, 4)
    specs = (fw.TensorSpec(shape[::-1], "float32"), fw.TensorSpec(shape, "float32"))
    fusion = prepare(fw.trace(lambda a, b: fw.exp(a.T + b), *specs), TARGET)
    flow = Dataflow(fusion)
    work = work_of(flow, schedule_group(flow, TARGET))
    whole, rows = sorted(a.borders / a.nbytes for a in work.arrays if not a.is_written)
    assert whole == 0 and rows < 0.3


def test_strips_of_whole_pairs_have_no_borders() -> None:
    assert share(1 << 18, 8, 64, 4) == 0
    assert share((1 << 18) + 16, 16, 32, 4) == 0


def test_narrow_strips_of_odd_rows_are_predicted_to_take_longer() -> None:
    def us(kept: int, down: int) -> float:
        return dict(cost(work(200_001, kept, down), TARGET).parts)["memory"]

    assert us(16, 32) > 1.1 * us(32, 16)


def test_blocks_that_walk_along_rows_have_no_borders() -> None:
    spec = fw.TensorSpec((4096, 20_001), "float32")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.sum(x, axis=1), spec)).kernels
    assert kernel.segment is not None and kernel.heuristic is not None
    flow = kernel.segment.dataflow()
    schedule_group(flow, TARGET, kernel.heuristic)
    found = work_of(flow, kernel.heuristic)
    assert all(a.borders <= 0.02 * a.nbytes for a in found.arrays)
