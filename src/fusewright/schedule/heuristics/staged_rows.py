"""Rows of a block that lie one behind the other in memory, brought through shared memory.

    rows of 19 elements of 2 bytes, a thread each, 128 a block: 4864 bytes that lie together

    memory -> registers -> shared memory    in whole vectors, whichever rows they are of
    shared memory -> registers              row by row, by the thread that has the row

and back. Every sector is asked for once, although no vector divides a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusewright.axes.classes import AxisClass
from fusewright.fusion.ir import Take, TakeAlong
from fusewright.schedule.copies import tile_after, tile_before
from fusewright.schedule.edits import inline_to, set_allocation, set_loops
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.common import numel, vectorize_accesses
from fusewright.schedule.inline import inline_most, misplaced
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.target import (
    LINE_NBYTES,
    SMALL_BLOCK,
    WORD_NBYTES,
)

LONGEST = 64
"""Elements of a row: of 128 threads, two arrays of 4 bytes then fill a quarter of shared memory."""
THREADS = SMALL_BLOCK
"""Threads, and rows, of a block: vectors of any width divide what it brings."""


def longest(nbytes: int) -> int:
    """Elements of a row at most where all arrays that go through shared memory have so many bytes
    for each: of narrow ones rows are longer and fill no more."""
    return max(LONGEST, 2 * 4 * LONGEST // max(nbytes, 1))


def ways(nbytes: int) -> int:
    """How many threads of a warp meet in a bank where each begins so many bytes behind another."""
    return max(1, math.gcd(nbytes, LINE_NBYTES) // WORD_NBYTES)


def _gathers_from(s: Stage, p: Stage) -> bool:
    """Whether a stage reads another one at places that its data tell, as no registers are read:
    the rows are in the cache by then."""
    return isinstance(s.op, Take | TakeAlong) and s.operands[0] is p


class StagedRows:
    """The tiles of all inputs and results of a group that have `total` elements; of inputs that
    `loads` read those that these fill, `tiles`."""

    def __init__(
        self, flow: Dataflow, total: int, loads: Sequence[Stage] = (), tiles: Sequence[Stage] = ()
    ) -> None:
        self._flow = flow
        reads: dict[Stage, list[Stage]] = {}
        for s in computed(flow.stages):
            for p in s.operands if s not in loads else ():
                if p.is_input and numel(p.shape) == total and not _gathers_from(s, p):
                    reads.setdefault(p, []).append(s)
        chains = [tile_after(flow, p, readers) for p, readers in reads.items()]
        stores = [y for y in flow.outputs if numel(y.shape) == total]
        self._filled = [*(tile for _, tile, _ in chains), *tiles]
        self._emptied = [tile_before(flow, y)[1] for y in stores]
        self.moving = [*(far for far, _, _ in chains), *loads, *self._filled, *stores]

    def bind(
        self,
        around: tuple[Loop, ...],
        rows: AxisClass,
        vector: int,
        nthreads: int = THREADS,
        ndown: int = 1,
    ) -> bool:
        """Lets all threads of a block, `nthreads` of them side by side and so many `ndown`, move
        its `rows`, one axis, in vectors, `around` which are the loops over blocks and over what
        each of them takes at a time, and inlines all stages; the loops of those that compute are
        set before. False where rows do not lie so."""
        flow, tiles = self._flow, (*self._filled, *self._emptied)
        vectors, lanes = flow.graph.split(rows, vector)
        trips, threads = flow.graph.split(vectors, nthreads)
        down: tuple[Loop, ...] = ()
        if ndown > 1:
            trips, others = flow.graph.split(trips, ndown)
            down = (Loop(others, Parallel.TIDY),)
        walk = (
            *around,
            *down,
            Loop(threads, Parallel.TIDX),
            Loop(trips, Parallel.UNROLL),
            Loop(lanes, Parallel.UNROLL),
        )
        for s in self.moving:
            set_loops(flow, s, walk)
        if not self.moving:
            return False
        vectorize_accesses(flow, self.moving[0], tiles)
        if any(s.loops[-1].parallel is not Parallel.VECTORIZE for s in self.moving):
            return False
        for tile in tiles:
            set_allocation(flow, tile, (rows,))
        inline_most(flow)
        for tile in tiles:
            inline_to(flow, {tile: min(tile.inline_depth, len(around))})
        return not any(misplaced(flow))
