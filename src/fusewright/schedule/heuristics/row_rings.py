"""Rows that the blocks of a cluster share, the next one on its way to shared memory.

    for q in rows of the cluster:          (serial)
      a thread of a block    copies its elements of row q + 1; has its own of row q; adds what
                             all blocks reduce together, once a row

A thread copies what it reads itself: no barrier orders the copies, each waits for its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.axes.classes import AxisClass
from fusewright.schedule.edits import inline_to, set_allocation
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.parallel import Parallel
from fusewright.schedule.schedule import Schedule, ScheduledTensor
from fusewright.target import CP_ASYNC_NBYTES

STAGES = 2
"""Rows in shared memory: this one and the next."""
_ORDER = (Parallel.UNROLL, Parallel.TIDX, Parallel.VECTORIZE)
"""The order of the dimensions of a row: the vectors of neighbouring threads side by side."""


def can_copy(copies: Sequence[Stage], vector: int) -> bool:
    """Whether asynchronous copies take vectors of so many elements of each of these."""
    return all(vector * c.dtype.nbytes in CP_ASYNC_NBYTES for c in copies)


def through_shared(flow: Dataflow, copies: Sequence[Stage]) -> list[Stage]:
    """The rows in shared memory from which the copies of inputs in registers are read."""
    s = Schedule.of(flow)
    return [
        ScheduledTensor(s, c.operands[0])
        .cache_after(by="cp_async", readers=[ScheduledTensor(s, c)])
        .stage
        for c in copies
    ]


def bind_rings(flow: Dataflow, tiles: Sequence[Stage], around: int) -> None:
    """Copies rows ahead in so many loops `around` one."""
    s = Schedule.of(flow)
    for tile in tiles:
        set_allocation(flow, tile, _side_by_side(tile, around))
        inline_to(flow, {tile: around})
        ScheduledTensor(s, tile).circular_buffer(STAGES)


def _side_by_side(tile: Stage, around: int) -> tuple[AxisClass, ...]:
    own = sorted(tile.loops[around:], key=lambda x: _ORDER.index(x.parallel))
    return tuple(x.axis for x in own)
