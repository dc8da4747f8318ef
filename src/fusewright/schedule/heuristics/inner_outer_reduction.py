"""Row reductions with partial column reductions beside them: a block walks over a part of the rows.

    for q in rows of the block:            (serial)
      load the row; reduce it; store what depends on it; add it to the column partials (registers)
    store the partials

The columns of a row lie side by side over the threads, in registers between the passes over it.
Short rows stand several to a block; their partials are then combined through shared memory. Where
row reductions keep fast columns, threads lie side by side along these, and down what is reduced:

    x[q, t, l]:  r[q, l] = sum over t;  c_p[t, l] = sum over the rows of the block
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import Int
from fusewright.core.substitution import estimate
from fusewright.errors import ScheduleError
from fusewright.fusion.inputs_behind import fast_kept
from fusewright.fusion.ir import Parts, ViewBase
from fusewright.fusion.persistent_rows import (
    FURTHER,
    THREADS_OF_ROWS,
    PersistentRows,
    RowRegisters,
    persistent_rows,
    ways_of,
)
from fusewright.fusion.row_alignment import lanes_of_word
from fusewright.schedule.edits import set_loops
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.aligned_rows import aligned_parts
from fusewright.schedule.heuristics.candidates import (
    Beginnings,
    Candidate,
    Listed,
    Refused,
    distinct,
)
from fusewright.schedule.heuristics.common import (
    Params,
    by_stride,
    cache_inputs,
    merge_all,
    numel,
    split,
    vectorize_accesses,
)
from fusewright.schedule.heuristics.phases import separate_phases
from fusewright.schedule.heuristics.reduction_facts import vector_of_rows, widest_vectors
from fusewright.schedule.heuristics.row_rings import bind_rings, can_copy, through_shared
from fusewright.schedule.heuristics.staged_rows import StagedRows
from fusewright.schedule.inline import inline_most
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import Target


@dataclass(frozen=True, slots=True)
class Sums:
    """The reductions of whole rows, and those of parts of the rows beside them."""

    rows: tuple[Stage, ...]
    partials: tuple[Stage, ...]


def sums_of(flow: Dataflow) -> Sums | None:
    """The reductions of a group that makes partial results of the rows that it reduces; None for
    other groups. Formation lets no others along different axes into one kernel. What is reduced
    along the axis of a cut is a partial result, whatever stands between the cut and it. Cuts in
    strips are of what blocks hold (`strips`)."""
    reductions = [s for s in flow.stages if s.is_reduction]
    cut = [
        s.frame.output[s.op.axes[0] + a]
        for s in flow.stages
        if isinstance(s.op, Parts) and not s.op.partition.is_strip
        for a in s.op.partition.place_axes
    ]
    if len(reductions) < 2 or not cut:
        return None
    rows = tuple(s for s in reductions if not _reduces(flow, s, cut))
    partials = tuple(s for s in reductions if s not in rows)
    return Sums(rows, partials) if rows and partials else None


def _reduces(flow: Dataflow, s: Stage, axes: list[AxisClass]) -> bool:
    return any(flow.graph.depends(c, axes) for c in s.frame.reduced)


@dataclass(frozen=True, slots=True)
class RowsOfThreads:
    """So many rows of `length` elements at a time, some for each thread, through shared memory."""

    rows: int
    length: int

    @property
    def vector(self) -> int:
        """Elements of the vectors that a block moves."""
        return self.rows // THREADS_OF_ROWS

    @property
    def candidate(self) -> Candidate[RowsOfThreads]:
        """The plan with its parameters by name."""
        what = f"rows of {self.length} elements in registers of a thread, through shared memory"
        return Candidate(what, Params.of("rows_staged", vector=self.vector, rows=self.rows), self)


class InnerOuterScheduler:
    """Reductions of rows and partial results of parts of the rows."""

    def __init__(self, flow: Dataflow, target: Target) -> None:
        """Raises ScheduleError for rows or columns of size 1."""
        self.flow = flow
        self._target = target
        self._copies = cache_inputs(flow, _moves_in_rows(flow))
        sums = sums_of(flow)
        assert sums is not None, "a schedule of rows for a group without partial results"
        self._partials, self._row = sums.partials, sums.rows[0]
        fast = _fast_kept(self._row)
        out = tuple(c for c in self._row.frame.output if c not in fast)
        kept = merge_all(flow, by_stride(flow, out))
        columns = merge_all(flow, by_stride(flow, self._row.frame.reduced))
        if kept is None or columns is None:
            raise ScheduleError(f"{self._row.name}: rows or columns of size 1")
        partial = self._partials[0]
        own = [c for c in partial.frame.output if flow.graph.depends(c, out)]
        parts = merge_all(flow, [Loop(c) for c in own])
        walked = (c for c in partial.frame.reduced if not flow.graph.depends(c, fast))
        each = merge_all(flow, [Loop(c) for c in walked])
        assert parts is not None and each is not None
        self._moving = _moving(flow, self._copies, each.axis, columns.axis)
        self._held = _held(flow, self._copies, self._moving, columns.axis, len(sums.partials))
        self._kept, self._parts, self._each = kept, parts, each
        self._whole, self._fast = columns, merge_all(flow, by_stride(flow, fast))
        self._columns = columns
        if self._fast is None:
            self._columns = aligned_parts(flow, partial, [parts], each, columns)
        self._pack = _pack(flow)
        self._is_skewed = self._columns is not columns
        lanes = self._fast or self._columns
        rows = merge_all(flow, [each, parts, *(() if self._fast is None else (columns,))])
        width = vector_of_rows(flow, partial, rows, lanes, inner=True)
        self._vector = width if self._fast is None else math.gcd(width, estimate(lanes.axis.extent))
        self._beginnings = Beginnings(flow)

    def candidates(self) -> Iterator[Listed[PersistentRows] | Listed[RowsOfThreads]]:
        """Rows of threads where rows were dealt in packs for them; the ways for the widest vectors,
        then the first ones for narrower vectors."""
        length = estimate(self._whole.axis.extent)
        rows = 0 if self._fast else self._held.rows_at_once(length)
        if rows and self._pack % rows == 0:
            yield RowsOfThreads(rows, length).candidate
        yield from distinct(self._ways())

    def _ways(self) -> Iterator[Listed[PersistentRows]]:
        fast = 1 if self._fast is None else estimate(self._fast.axis.extent)
        length = estimate(self._columns.axis.extent) * fast
        row = self._held.row(length, is_skewed=self._is_skewed, fast=fast)
        widths = [self._vector] + ([self._vector // 2] if self._vector > 1 else [])
        blocks = estimate(self._parts.axis.extent) / self._target.multiprocessors
        each = estimate(self._each.axis.extent)
        most, fits = None, False
        for vector in widths:
            registers = self._target.registers_per_sm
            ways = persistent_rows(row, vector, registers, blocks=blocks, each=each)
            for way in ways[:most]:
                yield _candidate(way)
            most = FURTHER if ways else None
            if not ways:
                why = f"no block holds {row.words:.1f} registers for each of {row.length} elements"
                yield Refused(f"vectors of {vector}", why)
            fits = fits or bool(ways)
        if not fits and fast == 1:
            yield from self._in_clusters()

    def _in_clusters(self) -> Iterator[Candidate[PersistentRows]]:
        """Rows that no block holds, shared by the blocks of a cluster, in vectors that asynchronous
        copies take; those that are counted from a word element by element."""
        target, length = self._target, estimate(self._whole.axis.extent)
        lanes = min((lanes_of_word(c.dtype.nbytes) for c in self._moving), default=1)
        vector = 1 if self._is_skewed else min(self._vector, lanes)
        for s in self._held.slices(length, target.max_cluster, target.shared_nbytes_per_sm):
            row = s.held.row(s.length, is_skewed=False)
            ways = ways_of(row, vector, target.registers_per_sm, 1)
            for way in ways[: 1 + FURTHER]:
                most = min(way.blocks, s.blocks)
                yield _candidate(replace(way, cluster=s.cluster, blocks=most))

    def _is_copied(self, plan: PersistentRows) -> bool:
        """Whether asynchronous copies move the rows: in whole words."""
        rows = merge_all(self.flow, [self._each, self._parts])
        widest = widest_vectors(self.flow, self._partials[0], rows, self._whole, inner=True)
        return plan.vector <= widest.whole and can_copy(self._moving, plan.vector)

    def apply(self, plan: PersistentRows | RowsOfThreads) -> bool:
        """Walks over the rows. Raises ScheduleError when some value cannot follow these loops."""
        if isinstance(plan, RowsOfThreads):
            return self._apply_staged(plan)
        self._beginnings.edit("rows", self._separate)
        around, several = _around(self.flow, self._parts, self._each, plan, self._fast is not None)
        columns, tiles = self._columns, list[Stage]()
        if plan.cluster > 1:
            whole, is_copied = self._whole, self._is_copied(plan)
            own = self._held.slice(estimate(whole.axis.extent), plan.cluster)
            slices, columns = split(self.flow, whole, own)
            around = (*around, Loop(slices.axis, Parallel.CLUSTERX))
            tiles = through_shared(self.flow, self._moving) if is_copied else []
        inside = _inside(self.flow, columns, self._fast, plan)
        self._follow(
            (
                *around,
                *(x for x in inside if x.parallel.is_thread),
                *several,
                *(x for x in inside if not x.parallel.is_thread),
            )
        )
        if plan.vector > 1:
            vectorize_accesses(self.flow, self._partials[0], tiles)
        inline_most(self.flow)
        bind_rings(self.flow, tiles, len(around))
        return True

    def _apply_staged(self, plan: RowsOfThreads) -> bool:
        """Walks over the rows through shared memory."""
        flow = self.flow
        staged = StagedRows(flow, numel(self._row.operands[0].shape))
        self._separate()
        trips, rows = split(flow, self._each, plan.rows)
        around = (Loop(self._parts.axis, Parallel.BIDX), Loop(trips.axis))
        several, threads = split(flow, rows, THREADS_OF_ROWS)
        own = (several.axis, self._whole.axis)
        inside = (Loop(threads.axis, Parallel.TIDX), *(Loop(c, Parallel.UNROLL) for c in own))
        self._follow((*around, *inside))
        whole = self.flow.graph.merge(rows.axis, self._whole.axis)
        return staged.bind(around, whole, plan.vector, THREADS_OF_ROWS)

    def _separate(self) -> None:
        separate_phases(self.flow, self._row, self._copies)

    def _follow(self, loops: tuple[Loop, ...]) -> None:
        """Lets all stages that vary from row to row run along these loops."""
        flow, partial = self.flow, self._partials[0]
        set_loops(flow, partial, loops)
        blocks = loops[0].axis
        transform_like(flow, partial, align=True)
        for s in computed(flow.stages):
            along = not s.is_virtual and flow.graph.depends(self._kept.axis, s.frame.domain)
            if (along or s in self._partials) and (not s.loops or s.loops[0].axis is not blocks):
                raise ScheduleError(f"{s.name} cannot run along the rows of {partial.name}")


def _candidate(way: PersistentRows) -> Candidate[PersistentRows]:
    beside, most, several = way.side_by_side, way.blocks, way.at_a_time
    slices = f", slices in a cluster of {way.cluster}" if way.cluster > 1 else ""
    what = (
        f"{beside * several} rows at a time, {way.threads} threads a row, vectors of "
        f"{way.vector}{slices}"
    )
    params = Params.of(
        "rows",
        min_blocks=most,
        vector=way.vector,
        threads=way.threads,
        rows=beside,
        each=several if several > 1 else None,
        cluster=way.cluster if way.cluster > 1 else None,
    )
    return Candidate(what, params, way)


def _pack(flow: Dataflow) -> int:
    """Neighbouring rows that stay together in all partitions of the rows."""
    return math.gcd(*(s.op.partition.pack for s in flow.stages if isinstance(s.op, Parts)))


def _moves_in_rows(flow: Dataflow) -> list[Stage]:
    return [s for s in flow.stages if _stays_in_its_row(s)]


def _stays_in_its_row(s: Stage) -> bool:
    """Whether a move leaves every element in its row: what only spreads, cuts or pads rows."""
    return isinstance(s.op, ViewBase | Parts)


def _moving(flow: Dataflow, copies: list[Stage], rows: AxisClass, row: AxisClass) -> list[Stage]:
    """The inputs that vary along a row, and from row to row."""
    depends = flow.graph.depends
    return [c for c in copies if depends(row, c.frame.output) and depends(rows, c.frame.output)]


def _held(
    flow: Dataflow, copies: list[Stage], moving: list[Stage], row: AxisClass, sums: int
) -> RowRegisters:
    """What is held of the inputs that vary along a row; those that do not vary between the rows
    that a block walks over stay."""
    along = [c for c in copies if flow.graph.depends(row, c.frame.output)]
    shared = tuple(c.dtype.nbytes for c in along if c not in moving)
    return RowRegisters(tuple(c.dtype.nbytes for c in moving), shared, sums)


def _fast_kept(row: Stage) -> tuple[AxisClass, ...]:
    """The axes that a reduction keeps and that are faster in memory than what it reduces."""
    read = (row.frame.operands[0][a] for a in fast_kept(row, lambda s: s.operands))
    return tuple(c for c in read if isinstance(c, AxisClass))


def _around(
    flow: Dataflow, parts: Loop, each: Loop, plan: PersistentRows, is_down: bool
) -> tuple[tuple[Loop, ...], tuple[Loop, ...]]:
    """Loops over the parts, and over the rows of each of them, some of which are side by side, so
    that neighbouring threads have neighbouring rows; and over those that a thread takes at a time.
    """
    blocks = Loop(parts.axis, Parallel.BIDX)
    beside: tuple[Loop, ...] = ()
    several: tuple[Loop, ...] = ()
    if plan.side_by_side > 1:
        each, own = split(flow, each, plan.side_by_side)
        beside = (Loop(own.axis, Parallel.TIDZ if is_down else Parallel.TIDY),)
    if plan.at_a_time > 1 and each.axis.extent != Int(1):  # else one is all that there is
        each, own = split(flow, each, plan.at_a_time)
        several = (Loop(own.axis, Parallel.UNROLL),)
    return (blocks, each, *beside), several


def _inside(
    flow: Dataflow, columns: Loop, fast: Loop | None, plan: PersistentRows
) -> tuple[Loop, ...]:
    """Loops over a row: over the columns that are reduced, or down these and along fast ones."""
    along = columns if fast is None else fast
    lanes: tuple[Loop, ...] = ()
    if plan.vector > 1:
        along, last = split(flow, along, plan.vector)
        lanes = (Loop(last.axis, Parallel.UNROLL),)
    if fast is None:
        trips, along = split(flow, along, plan.threads)
        threads = (Loop(along.axis, Parallel.TIDX),)
    else:
        trips, down = split(flow, columns, plan.threads // estimate(along.axis.extent))
        threads = (Loop(down.axis, Parallel.TIDY), Loop(along.axis, Parallel.TIDX))
    return (*threads, Loop(trips.axis, Parallel.UNROLL), *lanes)
