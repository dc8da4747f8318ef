"""Reductions over inputs that are fast along different axes: those across through shared memory.

    loss(x, y) over rows, x stored by columns: a block takes 64 columns, a tile of 64 rows at a time

    y    memory -> registers
    x    memory -> registers -> a tile in shared memory -> registers, as y has them

Both are read along their own memory. A tile has as many elements along either side as fill a line
of memory. Its granules, a word each, are permuted by an exclusive or with the number of the vector
that a writing thread holds: neither side meets bank conflicts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import ONE
from fusewright.errors import ScheduleError
from fusewright.schedule.copies import put_first, tile_after
from fusewright.schedule.edits import inline_to, set_allocation, set_loops
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.heuristics.candidates import Candidate, Listed
from fusewright.schedule.heuristics.common import Params, numel, vectorize_accesses
from fusewright.schedule.heuristics.phases import separate_phases
from fusewright.schedule.inline import inline_most, misplaced
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import LINE_NBYTES, MAX_VECTOR_NBYTES, WARP_SIZE

LINE_THREADS = LINE_NBYTES // MAX_VECTOR_NBYTES
"""Threads whose vectors fill a line."""
LINES = WARP_SIZE
"""Lines of a tile that the threads of a block access together: 256 threads."""


@dataclass(frozen=True, slots=True)
class TiledReduction:
    """Elements of either side of a tile, and of the vectors of inputs that are fast along the side
    on which threads compute (`near`), and along the other one (`far`)."""

    inner: bool
    side: int
    near: int
    far: int

    @property
    def candidate(self) -> Candidate[TiledReduction]:
        """The plan with its parameters by name."""
        what = f"inputs across by tiles of {self.side} x {self.side}"
        values = (("tile", f"{self.side}x{self.side}"), ("vectors", f"{self.far}, {self.near}"))
        name = "inner_tiled" if self.inner else "outer_tiled"
        return Candidate(what, Params(name, values), self)


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
    def of(flow: Dataflow, axis: AxisClass, side: int, width: int) -> _Side:
        """An axis with tiles of `side` elements, in vectors of `width`."""
        graph = flow.graph
        outer, tile = graph.split(axis, side)
        vectors, lanes = graph.split(tile, width)
        trips, threads = graph.split(vectors, LINE_THREADS)
        own_lines, lines = graph.split(tile, LINES)
        return _Side(outer, tile, vectors, lanes, trips, threads, own_lines, lines)


class TiledReductionPlanner:
    """Groups whose inputs are read once, by reductions over the same axes, some of them along the
    reduced and others along the kept axes."""

    def __init__(
        self, flow: Dataflow, reference: Stage, kept: Loop | None, reduced: Loop | None
    ) -> None:
        self._flow, self._reference = flow, reference
        self._kept, self._reduced = kept, reduced
        self._total = numel(reference.operands[0].shape)

    def candidates(self, *, inner: bool) -> Iterator[Listed[TiledReduction]]:
        """The widest vectors that inputs on both sides allow; `inner`: threads compute along the
        reduced axes."""
        across = self._across(inner=inner)
        if not across or self._kept is None or self._reduced is None:
            return
        full = MAX_VECTOR_NBYTES // max(x.dtype.nbytes for x in across)
        widths = [full >> k for k in range(full.bit_length() - 1)]
        side = full * LINE_THREADS
        for near, far in sorted(itertools.product(widths, widths), key=lambda w: -w[0] * w[1]):
            plan = TiledReduction(inner, side, near, far)
            with self._flow.trial():
                fits = self._bind(plan)
            if fits:
                yield plan.candidate
                return

    def _across(self, *, inner: bool) -> dict[Stage, list[Stage]]:
        """The inputs whose fast axis is not the one that threads compute along, and their readers;
        none where no input is as large as what is reduced and fast along that one."""
        flow = self._flow
        found: dict[bool, dict[Stage, list[Stage]]] = {False: {}, True: {}}
        for s in computed(flow.stages):
            for k, x in enumerate(s.operands):
                if x.is_input and numel(x.shape) == self._total:
                    fast = [
                        c
                        for c, stride in zip(s.frame.operands[k], strides_of(x), strict=True)
                        if stride == ONE and isinstance(c, AxisClass) and c.extent != ONE
                    ]
                    is_reduced = any(
                        flow.graph.depends(c, self._reference.frame.reduced) for c in fast
                    )
                    found[is_reduced].setdefault(x, []).append(s)
        return found[not inner] if found[inner] else {}

    def apply(self, plan: TiledReduction) -> bool:
        """Brings inputs through tiles; False, and the dataflow as it was, where a stage does not
        fit."""
        with self._flow.trial() as trial:
            fits = self._bind(plan)
            if fits:
                trial.keep()
        return fits

    def _bind(self, plan: TiledReduction) -> bool:
        flow, reference = self._flow, self._reference
        assert self._kept is not None and self._reduced is not None
        chains = [
            tile_after(flow, x, readers) for x, readers in self._across(inner=plan.inner).items()
        ]
        separate_phases(flow, reference, [])
        axes = (self._reduced.axis, self._kept.axis)
        near = _Side.of(flow, axes[not plan.inner], plan.side, plan.near)
        far = _Side.of(flow, axes[plan.inner], plan.side, plan.far)
        block, walk = (far.outer, near.outer) if plan.inner else (near.outer, far.outer)
        around = (Loop(block, Parallel.BIDX), Loop(walk))
        set_loops(flow, reference, _loops(around, near, far))
        moving = [s for chain in chains for s in chain[:2]]
        try:
            rest = [s for s in computed(flow.stages) if s not in moving]
            if transform_like(flow, reference, rest, align=True):
                return False
        except ScheduleError:
            return False
        tiles = [tile for _, tile, _ in chains]
        vectorize_accesses(flow, reference, tiles)
        for s in moving:
            set_loops(flow, s, _loops(around, far, near))
        vectorize_accesses(flow, moving[0])
        loads = [s for s in computed(flow.stages) if self._reads_large(s)]
        if any(s.loops[-1].parallel is not Parallel.VECTORIZE for s in loads):
            return False
        put_first(flow, loads)
        for tile in tiles:
            set_allocation(flow, tile, _exchanged(flow, near, far, plan))
        inline_most(flow)
        inline_to(flow, {tile: min(tile.inline_depth, len(around)) for tile in tiles})
        threads = len(around) + 2
        inline_to(flow, {s: threads for s in loads if s.inline_depth > threads})
        return not any(misplaced(flow))

    def _reads_large(self, s: Stage) -> bool:
        """Whether a stage reads an input that is as large as what is reduced."""
        return any(o.is_input and numel(o.shape) == self._total for o in s.operands)


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


def _exchanged(
    flow: Dataflow, near: _Side, far: _Side, plan: TiledReduction
) -> tuple[AxisClass, ...]:
    """A tile with lines along the near side, the granules of which are permuted by the number of
    the far vector that a line belongs to."""
    graph = flow.graph
    granules, within = graph.split(near.tile, plan.side // LINE_THREADS)
    _, by = graph.split(far.vectors, LINE_THREADS)
    _, permuted = graph.swizzle(by, granules)
    return far.vectors, far.lanes, permuted, within
