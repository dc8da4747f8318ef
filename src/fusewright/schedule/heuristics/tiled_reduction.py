"""Reductions over inputs that are fast along different axes: those across through shared memory.

    loss(x, y) over rows, x stored by columns: a block takes 64 columns, a tile of 64 rows at a time

    y    memory -> registers
    x    memory -> registers -> a tile in shared memory -> registers, as y has them

Both are read along their own memory. A tile has as many elements along either side as fill a line
of memory. Its granules, a word each, are permuted by an exclusive or with the number of the vector
that a writing thread holds: neither side meets bank conflicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import ONE
from fusewright.core.substitution import estimate
from fusewright.errors import ScheduleError
from fusewright.schedule.copies import put_first, tile_after
from fusewright.schedule.edits import inline_to, set_allocation, set_loops
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.heuristics.candidates import Candidate, Listed
from fusewright.schedule.heuristics.common import Params, numel, vectorize_accesses
from fusewright.schedule.heuristics.phases import separate_phases
from fusewright.schedule.heuristics.reduction_plans import (
    FEW_ELEMENTS_PER_THREAD,
    LINE_THREADS,
    RESIDENT_THREADS,
    WORKSPACE_NBYTES,
)
from fusewright.schedule.inline import inline_most, misplaced
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import (
    MAX_VECTOR_NBYTES,
    REGISTER_NBYTES,
    REGISTERS_PER_SM,
    WARP_SIZE,
    Target,
)

THREADS = (256, 512)
"""Of a block: the fewest whose accesses are few enough."""
MOST_ACCESSES = REGISTERS_PER_SM // max(THREADS) // (MAX_VECTOR_NBYTES // REGISTER_NBYTES)
"""Of a thread to what a block brings at a time: all are under way together, and the registers of a
thread of the largest block hold no more vectors."""


@dataclass(frozen=True, slots=True)
class TiledReduction:
    """Elements of a tile along the axis on which threads compute (`near`), and along the other one
    (`far`), elements of the vectors of inputs that are fast along either, the threads of a block,
    and those that access a line together. `inner`: the near axis is the reduced one; `min_blocks`:
    that a multiprocessor should hold."""

    inner: bool
    near: int
    far: int
    near_width: int
    far_width: int
    threads: int
    along: int
    min_blocks: int = 0

    @property
    def widths(self) -> tuple[int, int]:
        """Of vectors along the near and the far axis."""
        return self.near_width, self.far_width

    @property
    def candidate(self) -> Candidate[TiledReduction]:
        """The plan with its parameters by name."""
        size = f"{self.far}x{self.near}"
        values = (
            ("tile", size),
            ("vectors", f"{self.far_width}, {self.near_width}"),
            ("threads", self.threads),
        )
        name = "inner_tiled" if self.inner else "outer_tiled"
        params = Params(name, values, min_blocks=self.min_blocks)
        return Candidate(f"inputs across by tiles of {size}", params, self)


@dataclass(frozen=True, slots=True)
class _Side:
    """One axis, cut for vectors along it and for lines across it: what lies outside of a tile, a
    tile, its vectors by trips and threads, the lanes; its lines by trips and threads."""

    outer: AxisClass
    tile: AxisClass
    vectors: AxisClass
    lanes: AxisClass
    trips: AxisClass
    threads: AxisClass
    own_lines: AxisClass
    lines: AxisClass

    @staticmethod
    def of(flow: Dataflow, axis: AxisClass, size: int, width: int, plan: TiledReduction) -> _Side:
        """An axis with tiles of `size` elements, in vectors of `width`."""
        graph = flow.graph
        outer, tile = graph.split(axis, size)
        vectors, lanes = graph.split(tile, width)
        trips, threads = graph.split(vectors, plan.along)
        own_lines, lines = graph.split(tile, plan.threads // plan.along)
        return _Side(outer, tile, vectors, lanes, trips, threads, own_lines, lines)


class TiledReductionPlanner:
    """Groups whose large tensors are fast along the reduced axes and along the kept ones."""

    def __init__(
        self,
        flow: Dataflow,
        reference: Stage,
        kept: Loop | None,
        reduced: Loop | None,
        target: Target,
    ) -> None:
        self._flow, self._reference, self._target = flow, reference, target
        self._kept, self._reduced = kept, reduced
        self._total = numel(reference.operands[0].shape)

    def candidates(
        self, *, inner: bool, is_read_again: bool, neighbours: int
    ) -> Iterator[Listed[TiledReduction]]:
        """The widest vectors that tensors on both sides allow. What reductions read once they walk
        over, along the reduced axes (`inner`) or the kept ones; rows that are needed again are one
        tile, if shared memory holds it beside others, and threads compute along them. `neighbours`:
        kept elements that lie next to each other in the largest input."""
        if self._kept is None or self._reduced is None:
            return
        inner = inner or is_read_again
        across = self._across(inner=inner)
        if not across or not self._has_near(inner=inner) or not self._are_plain():
            return
        word = MAX_VECTOR_NBYTES // max(x.dtype.nbytes for x in across)
        near, side = word * LINE_THREADS, word * LINE_THREADS
        if is_read_again:
            length = estimate(self._reduced.axis.extent)
            near = -(-length // side) * side
        nbytes = near * sum(x.dtype.nbytes for x in across)
        run = neighbours if inner and neighbours < numel(self._reference.shape) else word
        widths: tuple[int, int] | None = (word, math.gcd(word, run))
        while widths is not None and widths[0] > 1:  # else threads compute with single elements
            plans = (
                self._plan((near, far), widths, far * nbytes, inner=inner, is_whole=is_read_again)
                for far in (side, side // 2)
            )
            plan = next((p for p in plans if p is not None), None)
            if plan is None:
                return
            with self._flow.trial():
                widths = self._bind(plan)
            if widths == plan.widths:
                yield plan.candidate
                return

    def _plan(
        self,
        tile: tuple[int, int],
        widths: tuple[int, int],
        nbytes: int,
        *,
        inner: bool,
        is_whole: bool,
    ) -> TiledReduction | None:
        """The plan of a tile of so many `nbytes`, of whole rows or a part of them, if shared memory
        holds it, and registers what compilers keep of rows that are read again."""
        target, size = self._target, math.prod(tile)
        accesses = MOST_ACCESSES * min(widths)
        most = min(accesses, FEW_ELEMENTS_PER_THREAD) if is_whole else accesses
        threads = next((n for n in THREADS if size <= most * n), None)
        if threads is None or nbytes > target.shared_nbytes_of_several:
            return None
        along = LINE_THREADS if min(widths) > 1 else WARP_SIZE
        room = target.shared_nbytes_per_sm // (nbytes + WORKSPACE_NBYTES)
        blocks = min(RESIDENT_THREADS // threads, room)
        return TiledReduction(inner, *tile, *widths, threads, along, blocks if is_whole else 0)

    def _across(self, *, inner: bool) -> dict[Stage, list[Stage]]:
        """The inputs whose fast axis is not the one that threads compute along, and their
        readers."""
        found: dict[Stage, list[Stage]] = {}
        for s in computed(self._flow.stages):
            for x, index in zip(s.operands, s.frame.operands, strict=True):
                if self._is_large_input(x) and self._is_reduced(x, index) is not inner:
                    found.setdefault(x, []).append(s)
        return found

    def _are_plain(self) -> bool:
        """Whether all reads of large inputs are along axes of the reduction, at no other places."""
        own = self._reference.frame.domain
        return all(
            size == ONE or (isinstance(c, AxisClass) and self._flow.graph.depends(c, own))
            for s in computed(self._flow.stages)
            for x, index in zip(s.operands, s.frame.operands, strict=True)
            if self._is_large_input(x)
            for c, size in zip(index, x.shape, strict=True)
        )

    def _has_near(self, *, inner: bool) -> bool:
        """Whether a large tensor is fast along the axis that threads compute along."""
        stages = computed(self._flow.stages)
        inputs = [
            self._is_reduced(x, index)
            for s in stages
            for x, index in zip(s.operands, s.frame.operands, strict=True)
            if self._is_large_input(x)
        ]
        outputs = [
            self._is_reduced(y, y.frame.output)
            for y in self._flow.outputs
            if numel(y.shape) == self._total and not y.is_reduction
        ]
        return inner in (*inputs, *outputs)

    def _is_large_input(self, x: Stage) -> bool:
        return x.is_input and numel(x.shape) == self._total

    def _is_reduced(self, t: Stage, index: Sequence[object]) -> bool:
        """Whether the fast axis of a tensor is a reduced one; `index` are its axes."""
        reduced = self._reference.frame.reduced
        return any(
            isinstance(c, AxisClass) and self._flow.graph.depends(c, reduced)
            for c, stride, size in zip(index, strides_of(t), t.shape, strict=True)
            if stride == ONE and size != ONE
        )

    def apply(self, plan: TiledReduction) -> bool:
        """Brings inputs through tiles; False where a stage does not fit."""
        return self._bind(plan) == plan.widths

    def _bind(self, plan: TiledReduction) -> tuple[int, int] | None:
        """Binds the loops, where all large accesses are as wide as planned. Returns the widths that
        they may have on either side, those of the plan or half of them; None where a stage does not
        fit."""
        flow, reference = self._flow, self._reference
        assert self._kept is not None and self._reduced is not None
        across = self._across(inner=plan.inner)
        chains = [tile_after(flow, x, readers) for x, readers in across.items()]
        separate_phases(flow, reference, [])
        axes = (self._reduced.axis, self._kept.axis)
        near = _Side.of(flow, axes[not plan.inner], plan.near, plan.near_width, plan)
        far = _Side.of(flow, axes[plan.inner], plan.far, plan.far_width, plan)
        block, walk = (far.outer, near.outer) if plan.inner else (near.outer, far.outer)
        around = (Loop(block, Parallel.BIDX), *((Loop(walk),) if walk.extent != ONE else ()))
        set_loops(flow, reference, _loops(around, near, far))
        moving = [s for chain in chains for s in chain[:2]]
        try:
            rest = [s for s in computed(flow.stages) if s not in moving]
            if transform_like(flow, reference, rest, align=True):
                return None
        except ScheduleError:
            return None
        tiles = [tile for _, tile, _ in chains]
        if plan.near_width > 1:
            vectorize_accesses(flow, reference, tiles)
        for s in moving:
            set_loops(flow, s, _loops(around, far, near))
        if plan.far_width > 1:
            vectorize_accesses(flow, moving[0])
        loads = [s for s in computed(flow.stages) if any(map(self._is_large_input, s.operands))]
        widths = self._allowed(plan, loads, moving)
        if widths != plan.widths:
            return widths
        put_first(flow, loads)
        for tile in tiles:
            set_allocation(flow, tile, _exchanged(flow, tile, near, far))
        inline_most(flow)
        inline_to(flow, {tile: min(tile.inline_depth, len(around)) for tile in tiles})
        threads = len(around) + 2
        inline_to(flow, {s: threads for s in loads if s.inline_depth > threads})
        return None if any(misplaced(flow)) else widths

    def _allowed(
        self, plan: TiledReduction, loads: Sequence[Stage], moving: Sequence[Stage]
    ) -> tuple[int, int]:
        """The widths of a plan, half of those that some of its large accesses do not have."""
        stores = [y for y in self._flow.outputs if numel(y.shape) == self._total]
        near = [s for s in (*loads, *stores) if s not in moving]
        far = [s for s in loads if s in moving]
        wide = (all(s.loops[-1].parallel is Parallel.VECTORIZE for s in x) for x in (near, far))
        first, second = (
            w if ok else max(1, w // 2) for w, ok in zip(plan.widths, wide, strict=True)
        )
        return first, second


def _loops(around: tuple[Loop, ...], along: _Side, across: _Side) -> tuple[Loop, ...]:
    """The loops by which threads take vectors along one side, line by line of the other."""
    inside = (
        (along.threads, Parallel.TIDX),
        (across.lines, Parallel.TIDY),
        (along.trips, Parallel.UNROLL),
        (across.own_lines, Parallel.UNROLL),
        (along.lanes, Parallel.UNROLL),
    )
    return (*around, *(Loop(c, kind) for c, kind in inside if c.extent != ONE))


def _exchanged(flow: Dataflow, tile: Stage, near: _Side, far: _Side) -> tuple[AxisClass, ...]:
    """A tile with lines along the near side, the granules of which are permuted, by as many as a
    line of the banks has, by the number of the far vector that a line belongs to."""
    graph = flow.graph
    granules, within = graph.split(near.tile, MAX_VECTOR_NBYTES // tile.dtype.nbytes)
    several = min(LINE_THREADS, estimate(far.vectors.extent))
    lines, granule = graph.split(granules, several)
    _, by = graph.split(far.vectors, several)
    _, permuted = graph.swizzle(by, granule)
    return far.vectors, far.lanes, lines, permuted, within
