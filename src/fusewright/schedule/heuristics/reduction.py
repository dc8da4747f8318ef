"""Groups with reductions over one set of axes: softmax, norms, sums, and what is around them.

Kept axes merge into rows, reduced axes into columns. When the reduced axes are the fast ones in
memory a block takes rows and its threads share the columns (inner); otherwise threads take kept
columns side by side and walk down the reduced axis (outer). Inputs that several passes need are
read once, into registers or shared memory; where a row fits nowhere every pass reads it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import ZERO, Int, constant_value
from fusewright.core.substitution import estimate
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import Broadcast, Parts, Permute, Reshape, Resize
from fusewright.fusion.passes.fold_crops import only_grows
from fusewright.memory import Memory
from fusewright.schedule.block_scan import gather_blocks
from fusewright.schedule.copies import copy_after
from fusewright.schedule.edits import inline_to, set_allocation, set_loops
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.aligned_rows import aligned_columns, padded_kept
from fusewright.schedule.heuristics.candidates import Beginnings, Listed, distinct
from fusewright.schedule.heuristics.column_plans import of_columns
from fusewright.schedule.heuristics.common import (
    by_stride,
    cache_inputs,
    merge_all,
    numel,
    relate,
    split,
    vectorize_accesses,
)
from fusewright.schedule.heuristics.held_values import hold_in_registers, instead_of
from fusewright.schedule.heuristics.phases import separate_phases
from fusewright.schedule.heuristics.reduction_facts import (
    facts_of,
    held_copies,
    reference_of,
)
from fusewright.schedule.heuristics.reduction_plans import ReductionFacts, ReductionPlan, of_rows
from fusewright.schedule.heuristics.short_rows import ShortRows, ShortRowsPlanner
from fusewright.schedule.heuristics.slabs import Slabs, SlabsPlanner
from fusewright.schedule.heuristics.strips import strips_of
from fusewright.schedule.heuristics.tiled_reduction import TiledReduction, TiledReductionPlanner
from fusewright.schedule.inline import inline_most
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import Target

READ_AHEAD_REGISTERS = 24
"""Registers for elements that are read before a pass over a row, one for each vector."""
MAX_ALONE = 1 << 12
"""Elements that every thread may run through alone."""
MAX_OPEN_TRIPS = 20
"""Vectors of a thread that are written out one by one where only some of them are guarded."""
MAX_OPEN_APART = 10
"""The same where those of a row lie in several rows of memory, each of which begins elsewhere, so
that every vector has an address of its own: 13 of them spilled 392 bytes a thread and took 60.6 us
for 24.2 in a loop, 7 to 9 fit (bfloat16[8, 2, 13, 50257] over (1, 3); one H100, 2026-11-27)."""


INNER = (Parallel.TIDY, Parallel.UNROLL, Parallel.TIDX, Parallel.VECTORIZE)
"""The order of the dimensions of what shared memory holds, where threads along y have rows of their
own."""
OUTER = (Parallel.UNROLL, Parallel.TIDY, Parallel.TIDX, Parallel.VECTORIZE)
"""Where they share columns, several of them in a warp."""


def plans_of(rows: ReductionFacts, target: Target) -> Iterator[Listed[ReductionPlan]]:
    """Every way to hold rows and to share them out, in the order of the rules."""
    yield from distinct(of_rows(rows, target) if rows.inner else of_columns(rows, target))


class ReductionScheduler:
    """Groups in which all reductions run over the same axes."""

    def __init__(self, flow: Dataflow, target: Target) -> None:
        self.flow = flow
        self._target = target
        through = [s for s in computed(flow.stages) if _meets_others(flow, s) or _repeats(s)]
        self._copies = cache_inputs(flow, through)
        self._strips = strips_of(flow)
        self._reference = reference_of(flow) if self._strips is None else self._strips.columns[0]
        relate(flow, self._reference)
        self._short = ShortRowsPlanner(flow, self._reference, self._copies, target)
        self._slabs = SlabsPlanner(flow, self._reference, self._copies, target)
        reduced = merge_all(flow, by_stride(flow, self._reference.frame.reduced))
        self._tiled = TiledReductionPlanner(flow, self._reference, target, self._strips)
        if self._strips is None:
            self._kept = padded_kept(flow, self._reference, reduced)
        else:
            self._kept = self._strips.kept(flow)
        self._reduced = aligned_columns(flow, self._reference, self._kept, reduced)
        self._begins_anywhere = self._reduced is not reduced
        self._beginnings = Beginnings(flow)

    def candidates(
        self,
    ) -> Iterator[
        Listed[ReductionPlan] | Listed[ShortRows] | Listed[Slabs] | Listed[TiledReduction]
    ]:
        """Where rows are held and how threads share them, in the order of the rules."""
        rows = facts_of(self.flow, self._reference, self._kept, self._reduced, self._copies)
        if self._strips is not None:
            yield from self._tiled.candidates(inner=rows.inner, is_read_again=rows.is_read_again)
            if not rows.inner:  # rows have no strips of columns side by side
                yield from plans_of(replace(rows, strip=self._strips.width), self._target)
            return
        yield from self._short.candidates()
        yield from self._slabs.candidates()
        again = rows.is_read_again and rows.is_constant
        yield from self._tiled.candidates(inner=rows.inner, is_read_again=again)
        yield from plans_of(replace(rows, is_skewed=self._is_skewed()), self._target)

    def _is_skewed(self) -> bool:
        """Whether columns are counted from another address in each row."""
        kept, reduced = self._reference.frame.output, self._reduced
        return reduced is not None and self.flow.graph.is_moved_by(reduced.axis, kept)

    @property
    def _has_constant_rows(self) -> bool:
        """Whether it is known how many vectors of a row a thread has, so that registers may hold
        them."""
        reduced = self._reduced
        return reduced is None or constant_value(reduced.axis.extent) is not None

    def apply(self, plan: ReductionPlan | ShortRows | Slabs | TiledReduction) -> bool:
        """Places copies, separates what must not be kept, and binds the loops."""
        if isinstance(plan, Slabs):
            return self._slabs.apply(plan)
        if isinstance(plan, TiledReduction):
            return self._tiled.apply(plan)
        if isinstance(plan, ShortRows):
            return self._short.apply(plan)
        flow, reference = self.flow, self._reference
        elements = plan.unrolled * plan.vector if plan.held_in is Memory.LOCAL else 0
        begins = plan.held_in, elements
        held, in_shared = self._beginnings.edit(begins, lambda: self._separate(*begins))
        walk = self._trips(plan)
        set_loops(flow, reference, _loops(flow, self._kept, self._reduced, plan, walk))
        transform_like(flow, reference, align=True)
        _check_shared_loops(flow, reference)
        if plan.parts > 1:
            _gather(flow, plan)
        if plan.vector > 1:
            vectorize_accesses(flow, reference, in_shared)
        for s in (*held, *in_shared) if in_shared and self._has_constant_rows else ():
            kinds = {Parallel.SERIAL: Parallel.UNROLL}
            loops = (Loop(x.axis, kinds.get(x.parallel, x.parallel)) for x in s.loops)
            set_loops(flow, s, tuple(loops))
        inline_most(flow)
        for s in in_shared:
            set_allocation(flow, s, _side_by_side(s, INNER if plan.inner else OUTER))
        if in_shared and self._has_constant_rows:
            for s in (*held, *self._read_ahead(held, plan)):
                serial = (i for i, x in enumerate(s.loops) if x.parallel.is_serial)
                inline_to(flow, {s: next(serial, len(s.loops))})
        return True

    def _separate(self, held_in: Memory | None, elements: int) -> tuple[list[Stage], list[Stage]]:
        """Places copies of a row, of which a thread has so many elements, and gives passes what
        must not be kept between them. What is held, and what shared memory holds of it."""
        flow, reference, copies = self.flow, self._reference, self._copies
        held = held_copies(flow, reference, copies)
        in_shared: list[Stage] = []
        if held_in is Memory.SHARED:
            held = instead_of(flow, reference, held)
            in_shared = [copy_after(flow, c, memory=Memory.SHARED) for c in held]
            separate_phases(flow, reference, [*held, *in_shared])
        elif held_in is None:
            separate_phases(flow, reference, [])
        else:
            hold_in_registers(flow, reference, copies, elements, held)
        return held, in_shared

    def _read_ahead(self, held: list[Stage], plan: ReductionPlan) -> list[Stage]:
        """The reads of other inputs of which a thread needs one element for each of its vectors,
        where it has registers for all of them: in front of a pass over the row none of them waits
        for the stores of the vector before."""
        trips = self._reference.loops[-2].axis  # in front of the lanes
        single = [
            s
            for s in computed(self.flow.stages)
            if s not in held
            and s.memory is Memory.LOCAL
            and any(o.is_input for o in s.operands)
            and [x.axis for x in s.loops[-1:]] == [trips]
            and s.inline_depth == len(s.loops)
        ]
        return single if len(single) * plan.unrolled <= READ_AHEAD_REGISTERS else []

    def _trips(self, plan: ReductionPlan) -> Parallel:
        """How a thread walks over its row: in the open where values stay in registers, and where
        the first trips or the last are guarded, so that others are not; else in a loop."""
        if plan.held_in is Memory.LOCAL:
            return Parallel.UNROLL
        if plan.held_in is None or not plan.inner or self._reduced is None:
            return Parallel.SERIAL
        columns = constant_value(self._reduced.axis.extent)
        at_once = plan.vector * plan.reduce_threads * plan.cluster
        is_apart = self.flow.graph.is_moved_by_itself(self._reduced.axis)
        most = MAX_OPEN_APART if is_apart else MAX_OPEN_TRIPS
        if columns is None or columns > most * at_once:
            return Parallel.SERIAL
        is_ragged = self._begins_anywhere or columns % at_once
        return Parallel.UNROLL if is_ragged else Parallel.SERIAL


def _gather(flow: Dataflow, plan: ReductionPlan) -> None:
    """Lets the blocks that share rows gather what each of them reduced; the results of all lanes of
    a thread go at once."""
    for s in flow.stages:
        if s.is_reduction:
            gather_blocks(flow, s, "all")
            if plan.vector > 1 and not plan.inner:
                set_loops(flow, s, (*s.loops[:-1], Loop(s.loops[-1].axis, Parallel.VECTORIZE)))


def _side_by_side(s: Stage, order: Sequence[Parallel]) -> tuple[AxisClass, ...]:
    """The classes of a tensor in shared memory with neighbouring threads next to each other, then
    lanes; the trips that it outlives come before the threads of a warp."""
    open_ = {Parallel.SERIAL: Parallel.UNROLL}
    own = [
        (order.index(kind), i)
        for i, x in enumerate(s.loops)
        if (kind := open_.get(x.parallel, x.parallel)) in order
        and x.axis.extent != Int(1)
        and not (x.parallel.is_serial and i < s.inline_depth)
    ]
    return tuple(s.loops[i].axis for _, i in sorted(own))


def _loops(
    flow: Dataflow, kept: Loop | None, reduced: Loop | None, plan: ReductionPlan, walk: Parallel
) -> tuple[Loop, ...]:
    lanes: Loop | None = None
    if plan.vector > 1:
        if plan.inner:
            assert reduced is not None
            reduced, lanes = split(flow, reduced, plan.vector)
        else:
            assert kept is not None
            kept, lanes = split(flow, kept, plan.vector)
    out: list[Loop] = []
    several: list[Loop] = []
    lanes_reduce = plan.lanes_down or (plan.inner and not plan.lanes_across)
    kept_dim, reduce_dim = (
        (Parallel.TIDY, Parallel.TIDX) if lanes_reduce else (Parallel.TIDX, Parallel.TIDY)
    )
    if kept is not None:
        if plan.kept_threads > 1:
            kept, threads = split(flow, kept, plan.kept_threads)
            beside = [Loop(threads.axis, kept_dim)]
        else:
            beside = []
        if plan.rows > 1:
            kept, own = split(flow, kept, plan.rows)
            several.append(Loop(own.axis, Parallel.UNROLL))
        out += [Loop(kept.axis, Parallel.BIDY if plan.parts > 1 else Parallel.BIDX), *beside]
    if reduced is not None:
        if max(plan.cluster, plan.parts) > 1:
            size = -(-estimate(reduced.axis.extent) // max(plan.cluster, plan.parts))
            blocks, reduced = split(flow, reduced, size)
            dim = Parallel.CLUSTERX if plan.cluster > 1 else Parallel.BIDX
            out.append(Loop(blocks.axis, dim))
        if plan.reduce_threads > 1:
            trips, threads = split(flow, reduced, plan.reduce_threads)
            out += [Loop(threads.axis, reduce_dim), Loop(trips.axis, walk)]
        else:
            out.append(Loop(reduced.axis, Parallel.SERIAL))
    out += several
    if lanes is not None:
        out.append(Loop(lanes.axis, Parallel.UNROLL))
    return tuple(out)


def _check_shared_loops(flow: Dataflow, reference: Stage) -> None:
    """Raises ScheduleError for a long value, or a long reduction, that follows none of the
    reference's loops: every thread would compute it alone."""
    own = {x.axis for x in reference.loops}
    for s in computed(flow.stages):
        if own.isdisjoint(x.axis for x in s.loops):
            elements = numel(tuple(c.extent for c in s.frame.domain))
            if elements > MAX_ALONE:
                raise ScheduleError(
                    f"{s.name} cannot run along the loops of {reference.name}: every thread would "
                    f"compute its {elements} elements alone, and at most {MAX_ALONE} are no loss"
                )


def _repeats(s: Stage) -> bool:
    """Whether a broadcast repeats an input along some axis: what is one value for a row is then
    read once for the row, not for each of its elements, and by no loop over the row."""
    if not isinstance(s.op, Broadcast):
        return False
    return s.operands[0].is_input and numel(s.operands[0].shape) < numel(s.shape)


def _meets_others(flow: Dataflow, s: Stage) -> bool:
    """Whether a reshape of an input, or one that is padded at its end, stands beside others of its
    readers: all then run along the same axes, those of one copy. So parts of an input that each
    reduction pads with its own fill are read once, and those of axes that are put side by side to
    be cut, which formation ties to the input's. Strips of turned inputs are left apart."""
    match s.op:
        case Reshape() | Parts():
            stays = True
        case Permute():
            is_cut = any(isinstance(r.op, Parts) for r in flow.consumers(s))
            stays = is_cut and strips_of(flow) is None
        case Resize():
            starts = all(e == ZERO for e in s.op.low)
            stays = starts and all(only_grows(e) for e in s.op.high)
        case _:
            stays = False
    return stays and len(flow.consumers(s.operands[0])) > 1
