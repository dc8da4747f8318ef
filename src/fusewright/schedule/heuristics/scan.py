"""Groups with scans along one axis: prefix sums, and what is computed before and after them.

scanned axis fast in memory     a block takes rows; a thread scans a vector, the threads of the
                                block their totals, trip after trip, with a carry from trip to trip
another axis fast               threads side by side over that axis, runs of the scanned one down
                                the block; with enough columns, every thread walks alone
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import Int
from fusewright.fusion.ir import IndexMap, Scan
from fusewright.memory import Memory
from fusewright.schedule.block_scan import block_scan
from fusewright.schedule.clone_untied_uses import clone_untied_uses
from fusewright.schedule.copies import copy_after
from fusewright.schedule.edits import set_loops
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.heuristics import staged_rows
from fusewright.schedule.heuristics.candidates import Candidate, Listed, distinct
from fusewright.schedule.heuristics.common import (
    Params,
    by_stride,
    cache_inputs,
    estimate,
    merge_all,
    numel,
    split,
    vectorize_accesses,
)
from fusewright.schedule.heuristics.reduction_facts import widest_vectors
from fusewright.schedule.heuristics.reduction_plans import (
    FEW_ELEMENTS_PER_THREAD,
    power_of_two,
    threads_along,
)
from fusewright.schedule.heuristics.space import joined_axes
from fusewright.schedule.heuristics.staged_rows import StagedRows
from fusewright.schedule.inline import inline_most, load_first
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import (
    MAX_THREADS_PER_BLOCK,
    MAX_VECTOR_NBYTES,
    SECTOR_NBYTES,
    WARP_SIZE,
    Target,
)

THREADS = 256
"""Threads of a block of several lines."""
MAX_ALONG = 512
"""Threads that share a line at most."""
ALONG = 128
"""Threads that share a line where lines are enough to fill the chip: each warp adds up the totals
of all others, so that twice the warps take four times the instructions for that."""
OWN_LINES = (2, 4)
"""Lines that a thread may walk over side by side instead of one."""
RUN = 4
"""Elements down a column that a thread takes one behind the other."""
RUN_OF_ROW = 2
"""Elements of a row that a thread takes side by side where no vector divides rows: its accesses ask
for the sectors of all of them once each, and with one element it exchanges once for each. Predicted
for rows of 5001 floats, 128 us for a copy: 203 with four, 142 with two, 220 with one (512 threads).
"""


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """Elements of a vector along the fast axis, elements of a line that a thread scans at once (0
    for all of them), threads along the line, lines that threads of a block begin side by side,
    whether these go through shared memory, lines of a thread, and whether lines are neighbours in
    the results but not in what is read: the run of a thread is then what a vector reads."""

    inner: bool
    vector: int
    run: int
    along: int
    beside: int
    is_staged: bool = False
    own: int = 1
    is_across: bool = False

    @property
    def candidate(self) -> Candidate[ScanPlan]:
        """The plan with its parameters by name."""
        kind = "rows" if self.inner else "columns"
        what = f"{self.beside} {kind} a block, {self.along} threads along, runs of {self.run}"
        if not self.run:
            lines = "a line" if self.own == 1 else f"{self.own} lines"
            what = f"{lines} a thread, blocks of {self.beside}"
        if self.is_across:
            kind, what = "columns_across", f"{what}, each read in vectors"
        if self.is_staged:
            kind, what = "rows_staged", f"{what}, through shared memory"
        values = (
            ("vector", self.vector),
            ("run", self.run),
            ("along", self.along),
            ("beside", self.beside),
            *((("own", self.own),) if self.own > 1 else ()),
        )
        return Candidate(what, Params(f"scan_{kind}", values), self)


class ScanScheduler:
    """Groups whose scans all run along one axis."""

    def __init__(self, flow: Dataflow, target: Target) -> None:
        clone_untied_uses(flow)
        self.flow = flow
        self._target = target
        self._loads = cache_inputs(flow)
        self._scans = [s for s in flow.stages if isinstance(s.op, Scan)]
        held = _hold_moved(flow)
        reference = self._scans[0]
        assert isinstance(reference.op, Scan)
        self._axis = reference.op.axis
        line, kept = reference.frame.output[self._axis], _kept_loop(flow, reference, self._axis)
        self._line = line
        self._nbytes = reference.operands[0].dtype.nbytes
        self._has_runs = (line.extent.interval[0] or 0) > 0
        self._length, self._lines = estimate(line.extent), numel(reference.shape)
        self._lines //= max(self._length, 1)
        self._inner = kept is None or _is_fast(flow, line)
        self._vector = widest_vectors(flow, reference, kept, Loop(line), inner=self._inner).whole
        beside = by_stride(flow, _kept_axes(reference, self._axis))
        axes = joined_axes(flow, reference, beside, [Loop(line)])
        self._neighbours = estimate(axes[-1].axis.extent) if axes else 1
        self._held_nbytes = self._length * sum(s.dtype.nbytes for s in held)

    def candidates(self) -> Iterator[Listed[ScanPlan]]:
        """As many threads along a line as it takes, then fewer and more."""
        yield from distinct(p.candidate for p in self._plans() if self._has_room(p))

    def _has_room(self, plan: ScanPlan) -> bool:
        """Whether a block holds the lines that are read at other places of theirs."""
        lines = plan.beside * plan.own * (1 if plan.inner else plan.vector)
        held = self._held_nbytes
        return not held or (
            lines * held <= self._target.shared_nbytes_of_one
            and not (plan.is_staged or plan.is_across)
        )

    def _plans(self) -> Iterator[ScanPlan]:
        """Rows of which a thread holds one, and that no vector divides, go through shared memory
        first, if there is one for each thread of the chip's first blocks: there alone their
        accesses fill sectors."""
        vector = MAX_VECTOR_NBYTES // self._nbytes
        staged = ScanPlan(True, vector, 0, 1, staged_rows.THREADS, is_staged=True)
        is_short = self._inner and self._length <= staged_rows.LONGEST
        abound = self._lines >= staged.beside * self._target.multiprocessors
        is_odd = is_short and self._vector == 1 < vector
        comes_first = is_odd and abound and self._fits(staged)
        if comes_first:
            yield staged
        if self._has_runs:
            yield from self._rows() if self._inner else self._columns()
        if self._has_runs and self._inner and not _is_fast_in_results(self.flow, self._line):
            yield from self._across()
        yield from self._alone()
        if is_short and not comes_first:
            yield staged

    def _alone(self) -> Iterator[ScanPlan]:
        """A thread walks over its lines alone: over one, or over as many as leave the chip full, so
        that more of what it waits for is under way."""
        beside = THREADS // 2
        yield ScanPlan(False, 1, 0, 1, beside)
        for own in OWN_LINES:
            if self._lines >= own * self._target.threads_per_sm * self._target.multiprocessors:
                yield ScanPlan(False, 1, 0, 1, beside, own=own)

    def _fits(self, staged: ScanPlan) -> bool:
        """Whether rows lie one behind the other, as those do that go through shared memory."""
        with self.flow.trial():
            return self._apply_staged(staged)

    def _rows(self) -> Iterator[ScanPlan]:
        run = self._vector if self._vector > 1 else RUN_OF_ROW
        fills = (
            self._lines * ALONG >= self._target.threads_per_sm // 2 * self._target.multiprocessors
        )
        first, _ = threads_along(self._length, run, most=ALONG if fills else MAX_ALONG)
        for along in (first, first // 2, 2 * first):
            if 1 <= along <= MAX_ALONG:
                beside = self._lines_of_block(max(1, min(THREADS // along, self._lines)), 1, 1)
                yield ScanPlan(True, self._vector, run, along, beside)

    def _columns(self) -> Iterator[ScanPlan]:
        """A warp side by side, as many down the block as fill it; fewer where columns abound, and
        twice as many where blocks are so few that multiprocessors have threads for them: a block
        then takes half the steps, of which each waits for memory and for the exchange. Not more
        side by side than lines are neighbours in memory, and fewer, as long as they fill a sector,
        where blocks would be too few for the multiprocessors."""
        side = max(1, min(WARP_SIZE, self._lines // self._vector))
        side = min(side, power_of_two(-(-self._neighbours // self._vector)))
        least = min(side, max(1, SECTOR_NBYTES // (self._vector * self._nbytes)))
        while side > least and self._lines < self._vector * side * self._target.multiprocessors:
            side //= 2
        side = self._lines_of_block(side, least, self._vector)
        down = max(1, min(THREADS // side, -(-self._length // RUN)))
        crowded = self._lines >= self._vector * side * self._target.multiprocessors * 16
        for along in (down // 4, down) if crowded else (down, down // 2):
            if along >= 1:
                yield ScanPlan(False, self._vector, RUN, along, side)
        blocks = -(-self._lines // (self._vector * side))
        room = self._target.threads_per_sm * self._target.multiprocessors // blocks
        if 2 * down * side <= min(room, MAX_THREADS_PER_BLOCK) and 2 * RUN * down <= self._length:
            yield ScanPlan(False, self._vector, RUN, 2 * down, side)

    def _lines_of_block(self, beside: int, least: int, vector: int) -> int:
        """Fewer lines side by side, but at least so many, where a block would have to hold more
        than leaves room for another one."""
        room = self._target.shared_nbytes_of_several // vector
        while beside > least and beside * self._held_nbytes > room:
            beside = -(-beside // 2)
        return beside

    def _across(self) -> Iterator[ScanPlan]:
        """Lines of which each lies in a row of its own, side by side in the threads of a warp as
        they are stored: a thread reads a vector of its line, and threads down the block the next
        ones, so that what one warp leaves of a line of memory others find in the cache."""
        side, run = min(WARP_SIZE, self._lines), MAX_VECTOR_NBYTES // self._nbytes
        down = max(1, min(THREADS // side, -(-self._length // run)))
        for along in (down, 2 * down, down // 2):
            if along >= 1:
                yield ScanPlan(False, 1, run, along, side, is_across=True)

    def apply(self, plan: ScanPlan) -> bool:
        """Cuts the lines in runs, and binds the loops; False where lines do not lie one behind the
        other."""
        flow = self.flow
        if plan.is_staged:
            return self._apply_staged(plan)
        for s in self._scans if plan.run else ():
            block_scan(flow, s, plan.run)
        reference = self._scans[0]
        set_loops(flow, reference, _loops(flow, reference, self._axis, plan))
        transform_like(flow, reference, align=True)
        if plan.run and (plan.vector > 1 or plan.inner or plan.is_across):
            vectorize_accesses(flow, reference)
        inline_most(flow)
        if not plan.run:
            is_open = self._length * plan.own <= FEW_ELEMENTS_PER_THREAD
            load_first(flow, self._loads, inside=0 if is_open else 1)
        return True

    def _apply_staged(self, plan: ScanPlan) -> bool:
        flow, reference = self.flow, self._scans[0]
        staged = StagedRows(flow, self._length * self._lines)
        loops = _loops(flow, reference, self._axis, plan)
        if len(loops) != 3:
            return False
        set_loops(flow, reference, loops)
        transform_like(flow, reference, align=True)
        block, thread, line = loops
        return staged.bind((block,), thread.axis, line.axis, plan.vector)


def _loops(flow: Dataflow, reference: Stage, axis: int, plan: ScanPlan) -> tuple[Loop, ...]:
    """Lines over blocks and threads; of a line trips, threads, and the run of a thread. The lanes
    of a vector stand last."""
    line = reference.frame.output[axis]
    kept = _kept_loop(flow, reference, axis)
    if not plan.run:
        if kept is None:
            return (Loop(line),)
        kept, threads = split(flow, kept, plan.beside)
        blocks, own = split(flow, kept, plan.own) if plan.own > 1 else (kept, None)
        bound = (Loop(blocks.axis, Parallel.BIDX), Loop(threads.axis, Parallel.TIDX))
        beside = () if own is None else (Loop(own.axis, Parallel.UNROLL),)
        is_open = estimate(line.extent) * plan.own <= FEW_ELEMENTS_PER_THREAD
        walk = Parallel.UNROLL if is_open else Parallel.SERIAL
        return (*bound, Loop(line, walk), *beside)
    outer, run = split(flow, Loop(line), plan.run)
    trips, along = split(flow, outer, plan.along)
    out: list[Loop] = []
    lanes: list[Loop] = []
    if kept is not None:
        if plan.vector > 1 and not plan.inner:
            kept, vector = split(flow, kept, plan.vector)
            lanes.append(vector)
        blocks, beside = split(flow, kept, plan.beside)
        side = Parallel.TIDY if plan.inner else Parallel.TIDX
        out += [Loop(blocks.axis, Parallel.BIDX), Loop(beside.axis, side)]
    down = Parallel.TIDX if plan.inner else Parallel.TIDY
    out += [trips, Loop(along.axis, down), Loop(run.axis, Parallel.UNROLL)]
    return (*out, *lanes)


def _hold_moved(flow: Dataflow) -> list[Stage]:
    """Puts what is computed and read at other places of its line into shared memory."""
    moved = dict.fromkeys(s.operands[0] for s in flow.stages if isinstance(s.op, IndexMap))
    return [copy_after(flow, p, memory=Memory.SHARED) for p in moved if not p.is_input]


def _kept_axes(s: Stage, axis: int) -> tuple[AxisClass, ...]:
    """The axes that are not scanned."""
    return tuple(c for k, c in enumerate(s.frame.output) if k != axis)


def _kept_loop(flow: Dataflow, s: Stage, axis: int) -> Loop | None:
    """One loop over the axes that are not scanned, the one that is fast in memory innermost."""
    return merge_all(flow, by_stride(flow, _kept_axes(s, axis)))


def _is_fast(flow: Dataflow, line: AxisClass) -> bool:
    """Whether the scanned axis is the fast one of the largest tensor that is read."""
    best = (-1, True)
    for s in computed(flow.stages):
        for p, read in zip(s.operands, s.frame.operands, strict=True):
            for index, stride in zip(read, strides_of(p), strict=True) if p.is_input else ():
                if isinstance(index, AxisClass) and stride == Int(1):
                    found = (numel(p.shape), flow.graph.depends(index, [line]))
                    best = max(best, found, key=lambda x: x[0])
    return best[1]


def _is_fast_in_results(flow: Dataflow, line: AxisClass) -> bool:
    """Whether the scanned axis is the fast one of the largest result."""
    largest = max(flow.outputs, key=lambda s: numel(s.shape))
    fast = [
        c for c, k in zip(largest.frame.output, strides_of(largest), strict=True) if k == Int(1)
    ]
    return any(flow.graph.depends(c, [line]) for c in fast)
