"""Groups with scans along one axis: prefix sums, and what is computed before and after them.

scanned axis fast in memory     a block takes rows; a thread scans a vector, the threads of the
                                block their totals, trip after trip, with a carry from trip to trip
another axis fast               threads side by side over that axis, runs of the scanned one down
                                the block; with enough columns, every thread walks alone

What reductions run across lines is held by threads that have all of these (`scan_lines`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import Int, constant_value
from fusewright.fusion.ir import IndexMap, Scan
from fusewright.memory import Memory
from fusewright.schedule.block_scan import block_scan, gather_blocks
from fusewright.schedule.copies import copy_after, recompute
from fusewright.schedule.edits import set_allocation, set_loops
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.heuristics import staged_rows
from fusewright.schedule.heuristics.candidates import Listed, distinct
from fusewright.schedule.heuristics.common import (
    cache_inputs,
    estimate,
    merge_all,
    numel,
    relate,
    split,
    vectorize_accesses,
)
from fusewright.schedule.heuristics.reduction_plans import (
    FEW_ELEMENTS_PER_THREAD,
    threads_along,
)
from fusewright.schedule.heuristics.scan_lines import (
    THREADS_AT_ONCE,
    ScanLines,
    ScanPlan,
    threads_beside,
)
from fusewright.schedule.heuristics.staged_rows import StagedRows
from fusewright.schedule.inline import inline_most, load_first
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import (
    BLOCK,
    LINE_NBYTES,
    MAX_THREADS_PER_BLOCK,
    MAX_VECTOR_NBYTES,
    SECTOR_NBYTES,
    SMALL_BLOCK,
    WARP_SIZE,
    Target,
)

THREADS = BLOCK
"""Threads of a block of several lines."""
MAX_ALONG = 512
"""Threads that share a line at most."""
ALONG = SMALL_BLOCK
"""Threads that share a line where lines are enough to fill the chip: each warp adds up the totals
of all others, so that twice the warps take four times the instructions for that."""
OWN_LINES = (2, 4)
"""Lines that a thread may walk over side by side instead of one."""
RUN = 4
"""Elements down a column that a thread takes one behind the other."""
NBYTES_OF_RUN = 192
"""Bytes that a thread has at most of lines that blocks share, in a third of its registers. Lines
of which threads have more are not shared so: with 18 and 32 runs one after the other blocks took
1.31 and 1.23 times as long as two more kernels (float64[600875, 24] and float16[2097152, 64]), as
all of them load, wait and store in step (one H100, 2026-11-27)."""
MOST_LANES = 4
"""Lines of a thread side by side where blocks share them: for each it holds a total, what is before
it, and what it has of other blocks."""
RUN_OF_ROW = 2
"""Elements of a row that a thread takes side by side where no vector divides rows: its accesses ask
for the sectors of all of them once each, and with one element it exchanges once for each. Predicted
for rows of 5001 floats, 128 us for a copy: 203 with four, 142 with two, 220 with one (512 threads).
"""


class ScanScheduler:
    """Groups whose scans all run along one axis."""

    def __init__(self, flow: Dataflow, target: Target) -> None:
        self.flow = flow
        self._target = target
        self._loads = cache_inputs(flow)
        self._scans = [s for s in flow.stages if isinstance(s.op, Scan)]
        self._held = _hold_moved(flow)
        reference = self._scans[0]
        relate(flow, reference)
        assert isinstance(reference.op, Scan)
        self._axis = reference.op.axis
        self._of = lines = ScanLines.of(flow, reference, self._axis)
        self._line = line = lines.line
        self._nbytes = reference.operands[0].dtype.nbytes
        self._has_runs = (line.extent.interval[0] or 0) > 0
        self._length, self._lines = estimate(line.extent), numel(reference.shape)
        self._lines //= max(self._length, 1) * lines.own
        self._inner = lines.is_inner
        found = lines.widest(flow, reference, inner=self._inner)
        self._vector = min(found, _widest_store(flow, reference))
        own = lines.own * (1 if self._inner else self._vector)
        run = max(1, min(RUN, FEW_ELEMENTS_PER_THREAD // own)) if lines.across else RUN
        self._run = -(-self._length // -(-self._length // run)) if self._length else run
        self._neighbours = lines.neighbours(flow, reference)
        self._held_nbytes = self._length * sum(s.dtype.nbytes for s in self._held)

    def candidates(self) -> Iterator[Listed[ScanPlan]]:
        """As many threads along a line as it takes, then fewer and more."""
        yield from distinct(p.candidate for p in self._plans() if self._has_room(p))

    def _has_room(self, plan: ScanPlan) -> bool:
        """Whether a block holds the lines that are read at other places of theirs."""
        lines = plan.beside * plan.apart * plan.own * (1 if plan.inner else plan.vector)
        held = self._held_nbytes
        return not held or (
            lines * held <= self._target.shared_nbytes_of_one
            and not (plan.is_staged or plan.is_across)
        )

    def _plans(self) -> Iterator[ScanPlan]:
        """Rows of which a thread holds one, and that no vector divides, go through shared memory
        first, if there is one for each thread of the chip's first blocks, and no more than two
        threads meet in a bank: there alone their accesses fill sectors."""
        if self._of.across:
            yield from self._crossed()
            return
        vector = MAX_VECTOR_NBYTES // self._nbytes
        staged = ScanPlan(True, vector, 0, 1, staged_rows.THREADS, is_staged=True)
        tiles, results = self._whole_arrays()
        is_short = self._inner and self._length <= staged_rows.longest(sum(tiles + results))
        abound = self._lines >= staged.beside * self._target.multiprocessors
        is_odd = is_short and self._vector == 1 < vector
        meets = staged_rows.ways(self._length * max(tiles + results, default=self._nbytes)) > 2
        comes_first = is_odd and abound and not meets and self._fits(staged)
        if comes_first:
            yield staged
        if self._has_runs:
            yield from self._shared_lines()
            yield from self._rows() if self._inner else self._columns()
        if self._has_runs and self._inner and not _is_fast_in_results(self.flow, self._line):
            yield from self._across()
        if self._has_runs and not self._inner and _is_fast_in_results(self.flow, self._line):
            yield from self._along_results()
        yield from self._alone()
        if is_short and not comes_first:
            yield staged

    def _crossed(self) -> Iterator[ScanPlan]:
        """Where reductions run across lines: threads have all lines that one runs over, alone or
        side by side. Of rows that are less than a line of memory threads one below the other take
        shorter runs, too, so that they ask for neighbours."""
        of = self._of
        if self._has_runs and of.are_beside:
            side = threads_beside(of.count, self._vector)
            down = max(1, min(THREADS // side, -(-self._length // self._run)))
            others = self._lines // (of.count * self._target.multiprocessors)
            for along in (down, down // 2):
                if along >= 1:
                    apart = max(1, min(THREADS // (2 * along * side), others))
                    for run in dict.fromkeys((self._run, -(-self._run // 2))):
                        yield ScanPlan(False, self._vector, run, along, side, apart=apart)
        elif self._has_runs:
            plans = self._rows() if self._inner else self._columns()
            yield from (replace(p, own=of.own) for p in plans)
        vector = self._vector if of.are_beside else 1
        yield ScanPlan(False, vector, 0, 1, THREADS // 2, own=of.count)

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
        """A warp side by side, as many down the block as fill it, and twice as many where blocks
        are so few that multiprocessors have threads for them: a block then takes half the steps, of
        which each waits for memory and for the exchange. Not more side by side than lines are
        neighbours in memory, and fewer, as long as they fill a sector, where blocks would be too
        few for the multiprocessors. Of neighbours that fill no sector a thread takes one element,
        so that threads along the line fill them."""
        side = max(1, min(WARP_SIZE, self._lines // self._vector))
        side = min(side, -(-self._neighbours // self._vector))
        least = min(side, max(1, SECTOR_NBYTES // (self._vector * self._nbytes)))
        while side > least and self._lines < self._vector * side * self._target.multiprocessors:
            side = max(least, side // 2)
        side = self._lines_of_block(side, least, self._vector)
        threads = self._threads_of_block(side)
        if self._neighbours * self._nbytes < SECTOR_NBYTES and self._length * side <= threads:
            yield self._block(1, self._length, side)
        down = max(1, min(threads // side, -(-self._length // self._run)))
        for along in (down, down // 2):
            if along >= 1:
                yield self._block(self._run, along, side)
        blocks = -(-self._lines // (self._vector * side))
        room = self._target.threads_per_sm * self._target.multiprocessors // blocks
        if (
            2 * down * side <= min(room, MAX_THREADS_PER_BLOCK)
            and 2 * self._run * down <= self._length
        ):
            yield self._block(self._run, 2 * down, side)
        yield from self._wide_strips(side)

    def _wide_strips(self, side: int) -> Iterator[ScanPlan]:
        """Two lines of each row side by side, where a strip of `side` threads is narrower and rows
        begin anywhere: blocks on both sides of a border read the sectors there, by twos."""
        row, wide = self._neighbours * self._nbytes, self._vector * self._nbytes
        most = min(2 * LINE_NBYTES // wide, -(-self._neighbours // self._vector))
        if row % SECTOR_NBYTES == 0 or most <= side:
            return
        for threads in (2 * THREADS, THREADS):
            down = max(1, min(threads // most, -(-self._length // self._run)))
            if self._lines >= self._vector * most * self._target.multiprocessors:
                yield self._block(self._run, down, most)

    def _in_parts(self) -> Iterator[ScanPlan]:
        """Blocks share long lines of which there are few: as many as run at once, each of which
        reads whole lines of memory and keeps its part in registers. Where strips are few, blocks
        are large, so that no more of them wait for each other than there are multiprocessors."""
        chip, vector = self._target.multiprocessors, min(self._vector, MOST_LANES)
        wide = vector * self._nbytes
        is_even = self._neighbours * self._nbytes % SECTOR_NBYTES == 0
        lines = LINE_NBYTES if is_even else 2 * LINE_NBYTES
        side = min(-(-self._neighbours // vector), lines // wide)
        strips = -(-self._lines // (vector * side))
        if 2 * strips > chip:
            return
        threads = THREADS
        while threads < MAX_THREADS_PER_BLOCK and THREADS_AT_ONCE // threads * chip > chip * strips:
            threads *= 2
        along = threads // side
        parts = min(chip, THREADS_AT_ONCE // threads * chip // strips)
        run = -(-self._length // (along * parts))
        parts = -(-self._length // (along * run))
        if parts > 1 and run >= RUN and run * wide <= NBYTES_OF_RUN:
            yield ScanPlan(False, vector, run, along, side, parts=parts)

    def _shared_lines(self) -> Iterator[ScanPlan]:
        """Blocks share long lines of which there are few, and wait for each other's totals."""
        if not self._held:
            yield from self._flat()
            yield from () if self._inner else self._in_parts()

    def _flat(self) -> Iterator[ScanPlan]:
        """Lines of which so few lie side by side that no thread reads whole sectors of them, or one
        alone: a part of these lies together, and goes through shared memory. Runs of an odd number
        of elements keep threads side by side in different banks."""
        lines = 1 if self._inner else self._neighbours
        row, chip = lines * self._nbytes, lines * self._target.multiprocessors // self._lines
        if self._lines % lines or row >= LINE_NBYTES // 2 or row % SECTOR_NBYTES == 0:
            return
        tiles, results = self._whole_arrays()
        # A result takes the place of the one array that it has the size of: thread by thread.
        held = sum(tiles) if tiles == results and len(tiles) == 1 else sum(tiles + results)
        widest = max(tiles + results, default=self._nbytes)
        along = MAX_THREADS_PER_BLOCK // (WARP_SIZE * lines) * WARP_SIZE
        room = self._target.shared_nbytes_of_one
        most = room // (along * lines * held) if along and held else 0
        if most < RUN or chip < 2:
            return
        trips = -(-self._length // (most * along * chip))
        run = min(most, -(-self._length // (trips * along * chip)) | 1)
        parts = -(-self._length // (trips * along * run))
        vector = math.gcd(MAX_VECTOR_NBYTES // widest, self._length * lines)
        if vector > 1 and parts > 1 and run >= RUN:
            yield ScanPlan(False, vector, run, along, lines, is_staged=True, parts=parts)

    def _whole_arrays(self) -> tuple[list[int], list[int]]:
        """The bytes of an element of the inputs, and of the results, that have all elements."""
        size = self._length * self._lines * self._of.own
        tiles, results = (
            [s.dtype.nbytes for s in some if numel(s.shape) == size]
            for some in (self.flow.inputs, self.flow.outputs)
        )
        return tiles, results

    def _threads_of_block(self, beside: int) -> int:
        """Threads of a block; more where a multiprocessor has room for few that hold lines."""
        threads, target = THREADS, self._target
        held = self._held_nbytes * beside * self._vector
        while held and 2 * threads <= MAX_THREADS_PER_BLOCK:
            if target.shared_nbytes_per_sm // held * threads >= target.threads_per_sm:
                break
            threads *= 2
        return threads

    def _block(self, run: int, along: int, beside: int) -> ScanPlan:
        """A block of so many threads along a line and side by side. Where these are few, others
        take lines that lie further apart, as long as blocks fill the multiprocessors."""
        others = self._lines // (self._vector * beside * self._target.multiprocessors)
        apart = max(1, min(THREADS // (2 * along * beside), others))
        if self._held_nbytes:
            apart = self._lines_of_block(apart, 1, self._vector * beside)
        return ScanPlan(False, self._vector, run, along, beside, apart=apart)

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

    def _along_results(self) -> Iterator[ScanPlan]:
        """Lines side by side in what is read, of which each is a row of the results: threads of a
        warp store vectors of a row, and those of a block find what they read of a line of memory
        in the cache."""
        side = min(LINE_NBYTES // self._nbytes, self._neighbours)
        run = _widest_store(self.flow, self._scans[0])
        most = max(1, min(THREADS // side, -(-self._length // run)))
        for along in (most, most // 2):
            if along >= 1:
                yield ScanPlan(True, 1, run, along, side)

    def apply(self, plan: ScanPlan) -> bool:
        """Cuts the lines in runs, and binds the loops; False where lines do not lie one behind the
        other."""
        flow = self.flow
        if plan.is_staged:
            return self._apply_flat(plan) if plan.run else self._apply_staged(plan)
        before = [block_scan(flow, s, plan.run) for s in (self._scans if plan.run else ())]
        for s in before if plan.parts > 1 else ():
            gather_blocks(flow, s, "slices")
        reference = self._scans[0]
        set_loops(flow, reference, ScanLines.of(flow, reference, self._axis).loops(flow, plan))
        transform_like(flow, reference, align=True)
        has_columns = plan.vector > 1 and not plan.inner
        if plan.run or has_columns:
            vectorize_accesses(flow, reference, self._held if has_columns else ())
        for s in before if plan.parts > 1 and has_columns else ():
            # The totals of all of a thread's lines go at once.
            lanes = Loop(s.loops[-1].axis, Parallel.VECTORIZE)
            set_loops(flow, s, (*s.loops[:-1], lanes))
        inline_most(flow)
        for s in self._held:
            set_allocation(flow, s, self._in_memory_order(s, plan))
        if not plan.run:
            is_known = constant_value(self._line.extent) is not None
            is_open = is_known and self._length * plan.own <= FEW_ELEMENTS_PER_THREAD
            load_first(flow, self._loads, inside=0 if is_open else 1)
        return True

    def _in_memory_order(self, held: Stage, plan: ScanPlan) -> list[AxisClass]:
        """The axes of lines that a block holds, those innermost along which neighbours lie in
        global memory: so threads side by side access words side by side."""
        own = [
            x.axis
            for i, x in enumerate(held.loops)
            if x.parallel.is_thread or (i >= held.inline_depth and not x.parallel.is_block)
        ]
        line = held.frame.output[self._axis]
        along = [c for c in own if self.flow.graph.depends(c, [line])]
        beside = [c for c in own if c not in along]
        return [*beside, *along] if plan.inner else [*along, *beside]

    def _apply_staged(self, plan: ScanPlan) -> bool:
        flow, reference = self.flow, self._scans[0]
        staged = StagedRows(flow, self._length * self._lines)
        loops = ScanLines.of(flow, reference, self._axis).loops(flow, plan)
        if len(loops) != 3:
            return False
        set_loops(flow, reference, loops)
        transform_like(flow, reference, align=True)
        block, thread, line = loops
        whole = flow.graph.merge(thread.axis, line.axis)
        return staged.bind((block,), whole, plan.vector)

    def _apply_flat(self, plan: ScanPlan) -> bool:
        """Threads side by side along the lines, and a line for each of those down the block."""
        flow, reference = self.flow, self._scans[0]
        for s in self._scans:
            gather_blocks(flow, block_scan(flow, s, plan.run), "slices")
        staged = StagedRows(flow, self._length * self._lines)
        _read_twice(flow)
        kept = merge_all(flow, ScanLines.of(flow, reference, self._axis).kept)
        outer, run = split(flow, Loop(reference.frame.output[self._axis]), plan.run)
        trips, along = split(flow, outer, plan.along)
        trips, parts = split(flow, trips, plan.parts)
        around: list[Loop] = []
        down: list[Loop] = []
        rows = flow.graph.merge(along.axis, run.axis)
        if kept is not None:
            groups, beside = split(flow, kept, plan.beside)
            around.append(Loop(groups.axis, Parallel.BIDY))
            down.append(Loop(beside.axis, Parallel.TIDY))
            rows = flow.graph.merge(rows, beside.axis)
        around += [trips, Loop(parts.axis, Parallel.BIDX)]
        set_loops(flow, reference, (*around, Loop(along.axis, Parallel.TIDX), *down, run))
        transform_like(flow, reference, align=True)
        return staged.bind(tuple(around), rows, plan.vector, plan.along, plan.beside)


def _widest_store(flow: Dataflow, reference: Stage) -> int:
    """Lanes that a thread stores as one vector of every result: several would each fill halves of
    sectors."""
    size = numel(reference.shape)
    large = [s.dtype.nbytes for s in flow.outputs if numel(s.shape) == size]
    return MAX_VECTOR_NBYTES // max(large, default=1)


def _hold_moved(flow: Dataflow) -> list[Stage]:
    """Puts what is computed of scans and read at other places of its line into shared memory."""
    behind: set[Stage] = set()
    moved: dict[Stage, None] = {}
    for s in flow.stages:
        if isinstance(s.op, Scan) or not behind.isdisjoint(s.operands):
            behind.add(s)
        if isinstance(s.op, IndexMap) and s.operands[0] in behind:
            moved[s.operands[0]] = None
    return [copy_after(flow, p, memory=Memory.SHARED) for p in moved]


def _read_twice(flow: Dataflow) -> None:
    """Lets sums of runs and the scans of these read tiles for themselves, so that no thread holds a
    run in registers while blocks wait for each other."""
    scanned = [s.operands[0] for s in flow.stages if isinstance(s.op, Scan) and not s.op.exclusive]
    between: set[Stage] = set()
    while scanned:
        s = scanned.pop()
        is_computed = s.memory is Memory.LOCAL and not s.is_reduction
        if is_computed and not isinstance(s.op, Scan) and s not in between:
            between.add(s)
            scanned += s.operands
    for s in [s for s in reversed(flow.stages) if s in between]:
        recompute(flow, s)


def _is_fast_in_results(flow: Dataflow, line: AxisClass) -> bool:
    """Whether the scanned axis is the fast one of the largest result."""
    largest = max(flow.outputs, key=lambda s: numel(s.shape))
    fast = [
        c for c, k in zip(largest.frame.output, strides_of(largest), strict=True) if k == Int(1)
    ]
    return any(flow.graph.depends(c, [line]) for c in fast)
