"""Groups with a sort: rows in shared memory, and what is computed before and after.

    blocks -> rows of a block -> trips -> threads along a row

The last value in front of the sort is a tile in shared memory, which a network of comparisons
sorts in place (`kir/sort_network`); each thread holds a few elements of it at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusewright.core.expr import constant_value
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import Sort
from fusewright.fusion.passes.merge_sorts import ELEMENTS, MOST_SORTED
from fusewright.memory import Memory
from fusewright.schedule.copies import copy_after
from fusewright.schedule.edits import set_loops
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.candidates import Candidate, Listed, distinct
from fusewright.schedule.heuristics.common import (
    Params,
    by_stride,
    cache_inputs,
    merge_all,
    numel,
    split,
)
from fusewright.schedule.inline import inline_most
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import (
    BLOCK,
    MAX_THREADS_PER_BLOCK,
    Target,
)

THREADS = BLOCK
"""Threads of a block of several rows."""


@dataclass(frozen=True, slots=True)
class SortPlan:
    """Threads along a row, and rows of a block."""

    along: int
    rows: int

    @property
    def candidate(self) -> Candidate[SortPlan]:
        """The plan with its parameters by name."""
        what = f"{self.rows} rows a block, {self.along} threads a row"
        return Candidate(what, Params.of("sort", along=self.along, rows=self.rows), self)


class SortScheduler:
    """Groups with one sort."""

    def __init__(self, flow: Dataflow, target: Target) -> None:
        self.flow = flow
        cache_inputs(flow)
        (self._sort,) = (s for s in flow.stages if isinstance(s.op, Sort))
        assert isinstance(self._sort.op, Sort)
        self._axis = self._sort.op.axis
        size = constant_value(self._sort.shape[self._axis])
        if size is None or size > MOST_SORTED:
            raise ScheduleError(
                f"{self._sort.name}: a row of {self._sort.shape[self._axis]} is sorted by blocks "
                f"of at most {MOST_SORTED} elements; cut it in runs first"
            )
        size = max(size, 1)
        self._length = 1 << (size - 1).bit_length()
        self._lines = max(1, numel(self._sort.shape) // size)

    def candidates(self) -> Iterator[Listed[SortPlan]]:
        """Threads with as many elements as they compare at once, then with twice as many."""
        yield from distinct(p.candidate for p in self._plans())

    def _plans(self) -> Iterator[SortPlan]:
        most = max(1, self._length // 2)
        for elements in (ELEMENTS, 2 * ELEMENTS):
            along = max(1, min(most, self._length // elements, MAX_THREADS_PER_BLOCK))
            yield SortPlan(along, max(1, min(THREADS // along, self._lines)))

    def apply(self, plan: SortPlan) -> bool:
        """Puts the tile into shared memory, and binds the loops."""
        flow, source = self.flow, self._sort.operands[0]
        tile = copy_after(flow, source, readers=[self._sort], memory=Memory.SHARED)
        set_loops(flow, tile, self._loops(tile, plan))
        transform_like(flow, tile, align=True)
        inline_most(flow)
        return True

    def _loops(self, tile: Stage, plan: SortPlan) -> tuple[Loop, ...]:
        row = tile.frame.output[self._axis]
        others = tuple(c for k, c in enumerate(tile.frame.output) if k != self._axis)
        trips, along = split(self.flow, Loop(row), plan.along)
        out: list[Loop] = []
        kept = merge_all(self.flow, by_stride(self.flow, others))
        if kept is not None:
            blocks, beside = split(self.flow, kept, plan.rows)
            out += [Loop(blocks.axis, Parallel.BIDX), Loop(beside.axis, Parallel.TIDY)]
        return (*out, Loop(trips.axis, Parallel.UNROLL), Loop(along.axis, Parallel.TIDX))
