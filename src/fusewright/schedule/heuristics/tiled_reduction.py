"""Reductions of tensors that are fast along different axes: those across through shared memory.

    loss(x, y) over rows, x stored by columns: a block takes 64 columns, a tile of 64 rows at a time

    y    memory -> registers
    x    memory -> registers -> a tile in shared memory -> registers, as y has them

Results that lie across go the other way. All are accessed along their own memory. A tile has as
many elements along either side as fill a line of memory. Its granules, a word each, are permuted by
an exclusive or with the number of the vector that a thread of the far side holds: neither side
meets bank conflicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.axes.cover import covers
from fusewright.core.expr import ONE, constant_value
from fusewright.core.substitution import estimate
from fusewright.errors import ScheduleError
from fusewright.memory import Memory
from fusewright.schedule.copies import copy_after, put_first, tile_after, tile_before
from fusewright.schedule.edits import inline_to, set_allocation, set_loops
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.heuristics.candidates import Listed
from fusewright.schedule.heuristics.common import merge_all, numel, vectorize_accesses
from fusewright.schedule.heuristics.held_values import hold_in_registers
from fusewright.schedule.heuristics.phases import separate_phases
from fusewright.schedule.heuristics.reduction_plans import LINE_THREADS
from fusewright.schedule.heuristics.sides import (
    LargeAccess,
    SideRun,
    at_large,
    is_large,
    large_accesses,
    run_of,
)
from fusewright.schedule.heuristics.strips import Strips
from fusewright.schedule.heuristics.tile_plans import TiledReduction, TileFacts, tiles_of
from fusewright.schedule.inline import inline_most, misplaced
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import MAX_VECTOR_NBYTES, REGISTER_NBYTES, Target


@dataclass(frozen=True, slots=True)
class _TiledAxis:
    """One axis, cut for vectors along it: what lies outside of a tile, a tile, its vectors and
    their lanes."""

    outer: AxisClass
    tile: AxisClass
    vectors: AxisClass
    lanes: AxisClass

    @staticmethod
    def of(flow: Dataflow, axis: AxisClass, size: int, width: int) -> _TiledAxis:
        """An axis with tiles of `size` elements, in vectors of `width`."""
        outer, tile = flow.graph.split(axis, size)
        return _TiledAxis(outer, tile, *flow.graph.split(tile, width))


class TiledReductionPlanner:
    """Groups whose large tensors are fast along the reduced axes and along the kept ones."""

    def __init__(
        self, flow: Dataflow, reference: Stage, target: Target, strips: Strips | None = None
    ) -> None:
        self._flow, self._reference, self._target = flow, reference, target
        self._strips = strips

    def candidates(self, *, inner: bool, is_read_again: bool) -> Iterator[Listed[TiledReduction]]:
        """The widest vectors that tensors on both sides allow. What reductions read once they walk
        over, along the reduced axes (`inner`) or the kept ones; rows that are needed again are one
        tile, if shared memory holds it beside others, and threads compute along them."""
        inner = inner or is_read_again
        if len(self._fast_sides()) < 2:
            return
        accesses = large_accesses(self._flow, self._reference)
        frame = self._reference.frame
        sides = (frame.output, frame.reduced)
        if not all(any(a.is_fast_along(c) for a in accesses) for c in sides):
            return
        across = {a.tensor for a in accesses if self._is_across(a, inner=inner)}
        if not across:
            return
        facts = self._facts(accesses, across, inner=inner, is_read_again=is_read_again)
        widths: tuple[int, int] | None = (facts.word, facts.word)
        while widths is not None:
            plans = [*tiles_of(facts, widths, self._target)]
            if not plans:
                return
            with self._flow.trial():
                widths = self._bind(plans[0])
            if widths == plans[0].widths:
                yield from (p.candidate for p in plans)
                return

    def _facts(
        self,
        accesses: Sequence[LargeAccess],
        across: Collection[Stage],
        *,
        inner: bool,
        is_read_again: bool,
    ) -> TileFacts:
        """What tiles are chosen from."""
        frame, strips = self._reference.frame, self._strips
        word = MAX_VECTOR_NBYTES // max(x.dtype.nbytes for x in across)
        kept, reduced = (
            self._length(axes, accesses, word * LINE_THREADS // 4)
            for axes in (frame.output, frame.reduced)
        )
        run, others = (reduced, kept) if inner else (kept, reduced)
        return TileFacts(
            inner,
            numel(tuple(c.extent for c in frame.reduced)),
            numel(tuple(c.extent for c in frame.output)),
            run,
            others,
            word,
            across_nbytes=sum(x.dtype.nbytes for x in across),
            read_registers=sum(
                -(-a.tensor.dtype.compute.nbytes // REGISTER_NBYTES)
                for a in accesses
                if not a.is_write
            ),
            is_read_again=is_read_again,
            is_constant=all(constant_value(c.extent) is not None for c in frame.reduced),
            strip=0 if strips is None else strips.width,
            sums=0 if strips is None else len(strips.partials),
        )

    def _length(self, axes: Sequence[AxisClass], accesses: Sequence[LargeAccess], side: int) -> int:
        """The elements of the run of a side in tiles of so many."""
        return estimate(run_of(self._flow, axes, accesses, side).run.extent)

    def _fast_sides(self) -> set[bool]:
        """Whether the fast axes of large tensors are reduced ones: two answers where some are."""
        flow, total = self._flow, numel(self._reference.operands[0].shape)
        stages = at_large(flow, self._reference)
        reads = [p for s in stages for p in zip(s.operands, s.frame.operands, strict=True)]
        writes = [(s, s.frame.output) for s in stages if s in flow.outputs]
        large = [(t, index) for t, index in (*reads, *writes) if _is_in_memory(t, total)]
        return {self._is_reduced(t, index) for t, index in large}

    def _is_reduced(self, t: Stage, index: Sequence[object]) -> bool:
        """Whether the fast axis of a tensor is a reduced one; `index` are its axes."""
        reduced = self._reference.frame.reduced
        return any(
            isinstance(c, AxisClass) and self._flow.graph.depends(c, reduced)
            for c, stride, size in zip(index, strides_of(t), t.shape, strict=True)
            if stride == ONE and size != ONE
        )

    def _is_across(self, a: LargeAccess, *, inner: bool) -> bool:
        """Whether an access is not fast along the axes that threads compute along."""
        frame = self._reference.frame
        return not a.is_fast_along(frame.reduced if inner else frame.output)

    def apply(self, plan: TiledReduction) -> bool:
        """Brings inputs through tiles; False where a stage does not fit."""
        return self._bind(plan) == plan.widths

    def _bind(self, plan: TiledReduction) -> tuple[int, int] | None:
        """Binds the loops, where all large accesses are as wide as planned. Returns the widths that
        they may have on either side, those of the plan or half of them; None where a stage does not
        fit."""
        flow, reference = self._flow, self._reference
        accesses = large_accesses(flow, reference)
        tiling = _Tiling.of(flow, reference, accesses, plan, self._strips)
        across = [a for a in accesses if self._is_across(a, inner=plan.inner)]
        moved = _insert_tiles(flow, across)
        along = [x.axis for x in tiling.far_loops]
        if not all(covers(flow.graph, along, s.frame.domain) for s in moved.far):
            return None  # a map reads them along other axes than are reduced
        if plan.is_whole:
            elements = plan.near * plan.far // plan.threads
            hold_in_registers(flow, reference, [], elements, moved.taken)
        else:
            separate_phases(flow, reference, moved.taken)
        set_loops(flow, reference, tiling.near_loops)
        try:
            rest = [s for s in computed(flow.stages) if s not in moved.far]
            if transform_like(flow, reference, rest, align=True):
                return None
        except ScheduleError:
            return None
        if plan.near_width > 1:
            vectorize_accesses(flow, reference, moved.tiles)
        for s in moved.far:
            set_loops(flow, s, tiling.far_loops)
        if plan.far_width > 1:
            vectorize_accesses(flow, moved.far[0])
        widths = self._allowed(plan, moved)
        if widths != plan.widths:
            return widths
        loads = [s for s in at_large(flow, reference) if s not in flow.outputs]
        put_first(flow, loads)
        for tile in moved.tiles:
            set_allocation(flow, tile, _exchanged(flow, tile, tiling.near, tiling.far))
        inline_most(flow)
        around = len(tiling.around)
        inline_to(flow, {tile: min(tile.inline_depth, around) for tile in moved.tiles})
        threads = around + 2
        inline_to(flow, {s: threads for s in loads if s.inline_depth > threads})
        return None if any(misplaced(flow)) else widths

    def _allowed(self, plan: TiledReduction, moved: _MovedTiles) -> tuple[int, int]:
        """The widths of a plan, half of those that some of its large accesses do not have."""
        at_memory = at_large(self._flow, self._reference)
        near = all(_is_wide(s) for s in at_memory if s not in moved.far)
        far = all(_is_wide(s) for s in at_memory if s in moved.far)
        first, second = (
            w if ok else max(1, w // 2) for w, ok in zip(plan.widths, (near, far), strict=True)
        )
        return first, second


def _is_in_memory(t: Stage, total: int) -> bool:
    """Whether a tensor of about so many elements is read from memory or written to it."""
    return (t.is_input or t.memory is Memory.GLOBAL) and is_large(t, total)


def _is_wide(s: Stage) -> bool:
    """Whether a stage accesses memory in vectors, of elements that need not be shifted by bytes."""
    is_vector = s.loops[-1].parallel is Parallel.VECTORIZE
    return is_vector and not (s.from_any_address and s.dtype.nbytes < REGISTER_NBYTES)


@dataclass(frozen=True, slots=True)
class _Tiling:
    """The loops around tiles, the two sides of a tile, and the loops along either of them."""

    around: tuple[Loop, ...]
    near: _TiledAxis
    far: _TiledAxis
    near_loops: tuple[Loop, ...]
    far_loops: tuple[Loop, ...]

    @staticmethod
    def of(
        flow: Dataflow,
        reference: Stage,
        accesses: Sequence[LargeAccess],
        plan: TiledReduction,
        strips: Strips | None,
    ) -> _Tiling:
        """The tiles of a plan: blocks have kept ones, and walk over reduced ones, or the blocks of
        a cluster have them; kept ones are strips where partial results are of these."""
        near_axes, far_axes = reference.frame.output, reference.frame.reduced
        if plan.inner:
            near_axes, far_axes = far_axes, near_axes
        kept = None if strips is None else SideRun((), strips.kept(flow).axis)
        near_run = run_of(flow, near_axes, accesses, None if plan.is_whole else plan.near)
        far_run = run_of(flow, far_axes, accesses, plan.far) if kept is None else kept
        near = _TiledAxis.of(flow, near_run.run, plan.near, plan.near_width)
        far = _TiledAxis.of(flow, far_run.run, plan.far, plan.far_width)
        own = [*far_run.outside, Loop(far.outer)], [*near_run.outside, Loop(near.outer)]
        outside, walked = own if plan.inner else own[::-1]
        block = merge_all(flow, outside) or outside[-1]
        walks = [x for x in walked if x.axis.extent != ONE]
        if plan.cluster > 1:
            walks = [Loop(x.axis, Parallel.CLUSTERX) for x in walks]
        around = (Loop(block.axis, Parallel.BIDX), *walks)
        by_near, by_far = plan.threads_along
        return _Tiling(
            around,
            near,
            far,
            (*around, *_loops(flow, near, far, (plan.threads, by_near, by_near))),
            (*around, *_loops(flow, far, near, (plan.threads, by_far, by_near))),
        )


@dataclass(frozen=True, slots=True)
class _MovedTiles:
    """What goes through tiles: the tiles, the stages with loops along the far side, and those of
    them that take results out of tiles."""

    tiles: tuple[Stage, ...]
    far: tuple[Stage, ...]
    taken: tuple[Stage, ...]


def _insert_tiles(flow: Dataflow, across: Sequence[LargeAccess]) -> _MovedTiles:
    """Copies of tensors through shared memory, one for all readers of an input."""
    readers: dict[Stage, list[Stage]] = {}
    for a in across:
        if not a.is_write:
            readers.setdefault(a.tensor, []).append(a.stage)
    stores = [(a.stage, tile_before(flow, a.stage)[1]) for a in across if a.is_write]
    chains = [tile_after(flow, x, stages) for x, stages in readers.items()]
    tiles = (*(tile for _, tile, _ in chains), *(tile for _, tile in stores))
    taken = tuple(copy_after(flow, tile) for _, tile in stores)
    far = (*(s for chain in chains for s in chain[:2]), *taken, *(y for y, _ in stores))
    return _MovedTiles(tiles, far, taken)


def _loops(
    flow: Dataflow, along: _TiledAxis, across: _TiledAxis, counts: tuple[int, int, int]
) -> tuple[Loop, ...]:
    """The loops by which the threads of a block take vectors along one side, line by line of the
    other. `counts`: of the threads, of those that take a line together, and of those along x: where
    more than take a line, these have several lines, where fewer, others along y the rest of it."""
    graph = flow.graph
    count, together, width = counts
    trips, x = graph.split(along.vectors, together)
    own, y = graph.split(across.tile, count // together)
    if together < width:
        y, beside = graph.split(y, width // together)
        x = graph.merge(beside, x)
    elif together > width:
        rest, x = graph.split(x, width)
        y = graph.merge(y, rest)
    inside = (
        (x, Parallel.TIDX),
        (y, Parallel.TIDY),
        (trips, Parallel.UNROLL),
        (own, Parallel.UNROLL),
        (along.lanes, Parallel.UNROLL),
    )
    return tuple(Loop(c, kind) for c, kind in inside if c.extent != ONE)


def _exchanged(
    flow: Dataflow, tile: Stage, near: _TiledAxis, far: _TiledAxis
) -> tuple[AxisClass, ...]:
    """A tile with lines along the near side, the granules of which are permuted, by as many as a
    line of the banks has, by the number of the far vector that a line belongs to."""
    graph = flow.graph
    granules, within = graph.split(near.tile, MAX_VECTOR_NBYTES // tile.dtype.nbytes)
    several = min(LINE_THREADS, estimate(far.vectors.extent), estimate(granules.extent))
    lines, granule = graph.split(granules, several)
    _, by = graph.split(far.vectors, several)
    _, permuted = graph.swizzle(by, granule)
    return far.vectors, far.lanes, lines, permuted, within
