"""Reductions along an axis in front of a few kept elements that lie side by side.

    std of x[s, r, k] over r, 1024 rows r of 11 elements k: a slab s is 22,528 bytes in one run

    memory -> registers -> shared memory    the slabs of a block, in whole vectors
    shared memory -> registers              column by column, several threads for each

A vector along the kept elements would span several rows, or slabs that lie far apart. Results as
large as the slabs go back the same way. Every pass reads the slabs in shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import ONE, constant_value
from fusewright.core.substitution import estimate
from fusewright.fusion.sizes import power_of_two
from fusewright.memory import Memory
from fusewright.schedule.copies import copy_after
from fusewright.schedule.edits import set_loops
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.candidates import Candidate, Listed, Refused
from fusewright.schedule.heuristics.common import Params, by_stride, merge_all, numel, split
from fusewright.schedule.heuristics.phases import separate_phases
from fusewright.schedule.heuristics.reduction_plans import (
    RESIDENT_THREADS,
    SLICE_NBYTES,
    WORKSPACE_NBYTES,
)
from fusewright.schedule.heuristics.staged_rows import StagedRows, ways
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import (
    LINE_NBYTES,
    MAX_VECTOR_NBYTES,
    SMALL_BLOCK,
    WARP_SIZE,
    Target,
)

ELEMENTS = 16
"""Of a column that a thread runs through: what threads exchange in the end is little beside it."""
THREADS = 2 * SMALL_BLOCK
"""Of a block, or up to twice as many."""
MOST_WAYS = 2
"""Lanes that may meet in a bank where those of a warp stand below each other in a column; else they
stand side by side."""


@dataclass(frozen=True, slots=True)
class Slabs:
    """Slabs of a block, elements of a vector of the largest tensor, threads along the kept elements
    of these slabs and down each column, and whether the lanes of a warp share a column."""

    slabs: int
    vector: int
    kept_threads: int
    reduce_threads: int
    lanes_down: bool
    min_blocks: int

    @property
    def nthreads(self) -> tuple[int, int]:
        """Threads along x and along y."""
        kept, down = self.kept_threads, self.reduce_threads
        return (down, kept) if self.lanes_down else (kept, down)

    @property
    def candidate(self) -> Candidate[Slabs]:
        """The plan with its parameters by name."""
        params = Params.of(
            "outer_slabs",
            min_blocks=self.min_blocks,
            vector=self.vector,
            slabs=self.slabs,
            reduce_threads=self.reduce_threads,
            kept_threads=self.kept_threads,
            lanes_down=self.lanes_down or None,
        )
        size = f"{self.kept_threads} by {self.reduce_threads} threads"
        return Candidate(f"{self.slabs} slabs a block in shared memory, {size}", params, self)


class SlabsPlanner:
    """Groups whose reductions run along axes that lie together in front of a few kept elements."""

    def __init__(
        self, flow: Dataflow, reference: Stage, copies: Sequence[Stage], target: Target
    ) -> None:
        self._flow, self._reference, self._target = flow, reference, target
        frame = reference.frame
        axes = [x for x in by_stride(flow, frame.domain) if x.axis.extent != ONE]
        kinds = [x.axis in frame.reduced for x in axes]
        first = kinds.index(True) if True in kinds else len(kinds)
        count = sum(kinds)
        together = kinds[first : first + count] == [True] * count
        parts = (axes[:first], axes[first : first + count], axes[first + count :])
        self._around, self._reduced, self._kept = parts if together else ([], [], [])
        self._total = numel(tuple(x.axis.extent for x in axes))
        self._copies = [c for c in copies if numel(c.shape) == self._total]

    def candidates(self) -> Iterator[Listed[Slabs]]:
        """As few slabs as make whole vectors, and more while they are small."""
        what = "slabs in shared memory"
        sizes = [constant_value(x.axis.extent) for x in (*self._reduced, *self._kept)]
        if not self._around or not self._kept or not self._copies or None in sizes:
            yield Refused(what, "no rows of kept elements behind the reduced ones")
            return
        kept = math.prod(constant_value(x.axis.extent) or 1 for x in self._kept)
        columns = math.prod(constant_value(x.axis.extent) or 1 for x in self._reduced)
        items = [c.dtype.nbytes for c in self._copies]
        if kept * max(items) >= LINE_NBYTES or kept * min(items) % MAX_VECTOR_NBYTES == 0:
            yield Refused(what, f"rows of {kept} elements are lines, or whole vectors")
            return
        yield self._plan(kept, columns)

    def _plan(self, kept: int, columns: int) -> Listed[Slabs]:
        target, large = self._target, [*self._copies, *self._large_results()]
        vector = MAX_VECTOR_NBYTES // max(s.dtype.nbytes for s in large)
        nbytes = kept * columns * sum(s.dtype.nbytes for s in large)
        slabs = vector // math.gcd(kept * columns, vector)
        least = target.multiprocessors * slabs
        while nbytes * 2 * slabs <= SLICE_NBYTES and 2 * least <= numel(self._reference.shape):
            slabs, least = 2 * slabs, 2 * least
        limit = target.shared_nbytes_of_several
        if nbytes * slabs > limit or columns < 2 * ELEMENTS:
            why = f"{slabs} slabs of {columns} by {kept} elements, {nbytes * slabs} bytes"
            return Refused("slabs in shared memory", f"{why}; {limit} at most")
        lanes_down = ways(kept * max(c.dtype.nbytes for c in self._copies)) <= MOST_WAYS
        down = min(WARP_SIZE, power_of_two(columns // ELEMENTS))
        kept_threads = slabs * kept
        while kept_threads * down > 2 * THREADS:
            kept_threads = -(-kept_threads // 2)
        while kept_threads * down < THREADS and ELEMENTS * 2 * down <= columns:
            down *= 2
        room = target.shared_nbytes_per_sm // (nbytes * slabs + WORKSPACE_NBYTES)
        blocks = max(1, min(RESIDENT_THREADS // (kept_threads * down), room))
        return Slabs(slabs, vector, kept_threads, down, lanes_down, blocks).candidate

    def _large_results(self) -> list[Stage]:
        return [y for y in self._flow.outputs if numel(y.shape) == self._total]

    def apply(self, plan: Slabs) -> bool:
        """Brings slabs through shared memory; False where their tensors do not lie as they do."""
        flow, reference = self._flow, self._reference
        tiles = [copy_after(flow, c, memory=Memory.SHARED) for c in self._copies]
        separate_phases(flow, reference, [*self._copies, *tiles])
        staged = StagedRows(flow, self._total, self._copies, tiles)
        around, reduced, kept = (
            merge_all(flow, part) for part in (self._around, self._reduced, self._kept)
        )
        assert around is not None and reduced is not None and kept is not None
        blocks, own = split(flow, around, plan.slabs)
        run = flow.graph.merge(flow.graph.merge(own.axis, reduced.axis), kept.axis)
        block = Loop(blocks.axis, Parallel.BIDX)
        set_loops(flow, reference, (block, *self._columns(plan, own, reduced, kept)))
        moving = set(staged.moving)
        rest = [s for s in flow.stages if s not in moving and not s.is_input]
        if transform_like(flow, reference, rest, align=True):
            return False
        across, down = plan.nthreads
        return staged.bind((block,), run, plan.vector, across, down)

    def _columns(self, plan: Slabs, own: Loop, reduced: Loop, kept: Loop) -> tuple[Loop, ...]:
        """The loops of threads over the columns of their slabs, and down each of them."""
        flow = self._flow
        kept_dim, reduce_dim = Parallel.TIDX, Parallel.TIDY
        if plan.lanes_down:
            kept_dim, reduce_dim = reduce_dim, kept_dim
        columns = Loop(flow.graph.merge(own.axis, kept.axis))
        several, beside = split(flow, columns, plan.kept_threads)
        trips, down = split(flow, reduced, plan.reduce_threads)
        loops = (
            Loop(beside.axis, kept_dim),
            Loop(down.axis, reduce_dim),
            Loop(several.axis, Parallel.SERIAL),
            Loop(trips.axis, Parallel.SERIAL),
        )
        return tuple(x for x in loops if _is_loop(x.axis))


def _is_loop(axis: AxisClass) -> bool:
    return axis.extent != ONE and estimate(axis.extent) > 0
