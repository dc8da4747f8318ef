"""Sums of products by tiles: operands through shared memory, sums of a tile in registers.

    for k in tiles of the depth: copy a tile of each operand     ->   shared memory, a ring
        for k inside: a strip of rows and one of columns         ->   registers
            every sum of the thread's tile grows by a product
    suffix over the sums                                         ->   global memory

Every element of an operand that a block brings is used by all its rows, or all its columns, and
every one that a thread reads by its own. The products are fused multiply-adds, for any target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.core.expr import Int, constant_value
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import Broadcast, Permute, Pointwise, Reduce
from fusewright.fusion.strided import fastest_axis
from fusewright.memory import Memory
from fusewright.schedule.copies import exchanged
from fusewright.schedule.edits import inline_to, set_allocation, set_loops
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.heuristics.candidates import Candidate, Listed, Refused
from fusewright.schedule.heuristics.common import Params, merge_all, vectorize_accesses
from fusewright.schedule.inline import inline_most, misplaced
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.products import copy_width, strided_operand
from fusewright.schedule.propagate import transform_like
from fusewright.schedule.schedule import Schedule, ScheduledTensor
from fusewright.target import CP_ASYNC_NBYTES, ISSUE_PER_CLOCK, WARP_SIZE, Target

_MENU = ((128, 128, 8, 8), (128, 64, 8, 4), (64, 64, 4, 4), (64, 32, 4, 2), (32, 32, 2, 2))
"""Rows and columns of a block's tile and of a thread's: those of the smallest traffic first."""
DEPTH = 16
"""Of a tile."""
STAGES = 2
"""Tiles of each operand in shared memory: one is copied while another is multiplied."""
STRIP = 4
"""Elements of an operand that lie next to each other and are read together: 16 bytes of float32."""


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Rows and columns of a block's tile and of a thread's, the depth of the operands' tiles, and
    how many of these are in shared memory together."""

    rows: int
    columns: int
    own_rows: int
    own_columns: int
    depth: int
    stages: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.rows // self.own_rows * (self.columns // self.own_columns)

    @property
    def params(self) -> Params:
        """The parameters by name."""
        tile, own = (
            f"{self.rows}x{self.columns}x{self.depth}",
            f"{self.own_rows}x{self.own_columns}",
        )
        return Params.of("tiled_sums", tile=tile, own=own, stages=self.stages)


@dataclass(frozen=True, slots=True)
class _Factor:
    """An input that is multiplied: what reads it, the axis that it has and the other operand lacks,
    and whether it lies contiguously along the depth."""

    source: Stage
    reader: Stage
    own: AxisClass
    is_deep: bool


@dataclass(frozen=True, slots=True)
class _Product:
    """A sum over `depth` of products of two operands; `batch` are the axes that both have."""

    result: Stage
    first: _Factor
    second: _Factor
    batch: tuple[AxisClass, ...]
    depth: AxisClass


class TiledSumsScheduler:
    """Groups with one sum of products of two inputs, and what is computed of the sums."""

    def __init__(self, flow: Dataflow, target: Target) -> None:
        self.flow, self._target = flow, target
        self._product = product_of(flow)

    def candidates(self) -> Iterator[Listed[TilePlan]]:
        """The tiles in the order of their predicted time."""
        p = self._product
        if isinstance(p, str):
            yield Refused("tiles of a sum of products", p)
            return
        plans = [TilePlan(*tile, DEPTH, STAGES) for tile in _MENU]
        us = {q: predicted_us(p, q, self._target) for q in plans}
        loop = loop_us(p, self._target)
        for plan in sorted(plans, key=lambda q: us[q]):
            what = f"a sum of products by tiles of {plan.rows} x {plan.columns}"
            if us[plan] < loop:
                yield Candidate(what, plan.params, plan)
            else:
                yield Refused(what, f"{us[plan]:.1f} us, and a loop of scalars {loop:.1f} us")

    def apply(self, plan: TilePlan) -> bool:
        """Schedules the group; False where a stage does not fit."""
        assert isinstance(self._product, _Product)
        return _apply(self.flow, self._product, plan)


def predicted_us(p: _Product, plan: TilePlan, target: Target) -> float:
    """Microseconds of rounds of tiles, each its fused multiply-adds or what is read for them: half
    a warp reads other values than the other half in one of the two operands only."""
    batch, rows, columns, depth = _sizes(p)
    tiles = batch * -(-rows // plan.rows) * -(-columns // plan.columns)
    rounds = -(-tiles // target.multiprocessors)
    steps = -(-depth // plan.depth) * plan.depth
    pairs = plan.rows * plan.columns / (ISSUE_PER_CLOCK * WARP_SIZE)
    reads = plan.threads / WARP_SIZE * (plan.own_rows + plan.own_columns) / 2
    beside = target.calibration.thread_tile_us
    return rounds * (steps * max(pairs, reads) / target.clock_mhz + beside)


def loop_us(p: _Product, target: Target) -> float:
    """Microseconds of a loop of scalars: a pair takes two loads, and a multiprocessor loads for one
    warp a clock."""
    return 2 * math.prod(_sizes(p)) / (target.multiprocessors * WARP_SIZE * target.clock_mhz)


def _sizes(p: _Product) -> tuple[int, int, int, int]:
    """Matrices, rows, columns and depth."""
    batch = math.prod(estimate(c.extent) for c in p.batch)
    rows, columns, depth = (estimate(c.extent) for c in (p.first.own, p.second.own, p.depth))
    return batch, rows, columns, depth


# --- recognition ----------------------------------------------------------------------------------


def product_of(flow: Dataflow) -> _Product | str:
    """The sum of products of a group, or why it has none that tiles compute."""
    sums = [s for s in flow.stages if s.is_reduction]
    if len(sums) != 1:
        return f"the group has {len(sums)} reductions"
    (result,) = sums
    assert isinstance(result.op, Reduce)
    times = result.operands[0]
    is_sum = result.op.fn == "add" and isinstance(times.op, Pointwise) and times.op.fn == "mul"
    if not is_sum or len(times.operands) != 2 or flow.consumers(times) != [result]:
        return f"{result.name} is no sum of products of two values"
    reduced = result.frame.reduced
    if len(reduced) != 1:
        return f"{result.name} sums over {len(reduced)} axes"
    graph, depth = flow.graph, flow.graph.normal(reduced[0])
    axes = [graph.normal(c) for c in result.frame.domain if c.extent != Int(1)]
    if any(constant_value(c.extent) is None for c in axes):
        return f"{result.name} has sizes that only a call knows"
    if estimate(depth.extent) <= DEPTH:
        return f"{result.name} sums {depth.extent} products; a tile is {DEPTH} deep"
    found = [_source(flow, o) for o in times.operands]
    for o in found:
        if isinstance(o, str):
            return o
    (a, b) = (o for o in found if not isinstance(o, str))
    of_a, of_b = ([_class(graph, c) for c in s.frame.operands[0]] for _, s in (a, b))
    has_a, has_b = ([c for c in axes if c in own] for own in (of_a, of_b))
    only_a, only_b = [c for c in has_a if c not in has_b], [c for c in has_b if c not in has_a]
    if len(only_a) != 1 or len(only_b) != 1 or depth not in has_a or depth not in has_b:
        return f"{result.name} multiplies no rows by columns"
    for own, has in ((of_a, has_a), (of_b, has_b)):
        if any(c is not None and c.extent != Int(1) and c not in has for c in own):
            return f"{result.name} reads an operand in other steps than its own"
    if axes.index(only_a[0]) > axes.index(only_b[0]):
        (a, only_a), (b, only_b) = (b, only_b), (a, only_a)
    batch = tuple(c for c in axes if c not in (depth, only_a[0], only_b[0]))
    first, second = (
        _Factor(s, r, own[0], _is_deep(graph, s, r, depth))
        for (s, r), own in ((a, only_a), (b, only_b))
    )
    return _Product(result, first, second, batch, depth)


def _source(flow: Dataflow, s: Stage) -> tuple[Stage, Stage] | str:
    """The input behind views and casts of an operand, and what reads it."""
    while not s.operands[0].is_input if s.operands else False:
        if len(s.operands) != 1 or not isinstance(s.op, Broadcast | Permute | Pointwise):
            return f"{s.name} is no view of an input"
        s = s.operands[0]
    if not s.operands or len(s.operands) != 1:
        return f"{s.name} is no view of an input"
    return s.operands[0], s


def _is_deep(graph: AxisGraph, s: Stage, reader: Stage, depth: AxisClass) -> bool:
    """Whether an input is contiguous along the depth."""
    pairs = zip(reader.frame.operands[0], strides_of(s), strict=True)
    return any(_class(graph, c) is depth and stride == Int(1) for c, stride in pairs)


def _class(graph: AxisGraph, c: object) -> AxisClass | None:
    """The class along which an operand's axis is read; None where that is none."""
    return graph.normal(c) if isinstance(c, AxisClass) else None


# --- doing ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ProductSide:
    """One operand's axis, cut for a plan: tiles, a tile, and of a tile the threads and the rows, or
    columns, of each: `strips` that lie apart of `lanes` that lie together."""

    outer: AxisClass
    tile: AxisClass
    threads: AxisClass
    strips: AxisClass
    lanes: AxisClass

    def own(self) -> tuple[Loop, ...]:
        """The loops over a thread's rows or columns."""
        return _sized((self.strips, Parallel.UNROLL), (self.lanes, Parallel.UNROLL))


@dataclass(frozen=True, slots=True)
class _Depth:
    """The depth: tiles, a tile, and of a tile steps of as many elements as are read together."""

    outer: AxisClass
    tile: AxisClass
    steps: AxisClass
    lanes: AxisClass


def _sized(*loops: tuple[AxisClass, Parallel]) -> tuple[Loop, ...]:
    return tuple(Loop(c, kind) for c, kind in loops if c.extent != Int(1))


def _side(graph: AxisGraph, o: _Factor, tile: int, own: int) -> _ProductSide:
    outer, inside = graph.split(o.own, tile)
    lanes = 1 if o.is_deep else math.gcd(own, STRIP, constant_value(o.own.extent) or 1)
    words, lane = graph.split(inside, lanes)
    strips, threads = graph.split(words, tile // own)
    return _ProductSide(outer, inside, threads, strips, lane)


def _apply(flow: Dataflow, p: _Product, plan: TilePlan) -> bool:
    graph, s = flow.graph, Schedule.of(flow)
    if p.result in flow.outputs:
        result = ScheduledTensor(s, p.result).cache_before().stage
    else:
        result = p.result
    tiles = [_tile(s, o) for o in (p.first, p.second)]
    sides = (
        _side(graph, p.first, plan.rows, plan.own_rows),
        _side(graph, p.second, plan.columns, plan.own_columns),
    )
    k_outer, k_tile = graph.split(p.depth, plan.depth)
    together = math.gcd(STRIP, estimate(p.depth.extent))
    depth = _Depth(k_outer, k_tile, *graph.split(k_tile, together))
    grid = merge_all(flow, [Loop(c) for c in (*p.batch, *(x.outer for x in sides))])
    block = grid.axis if grid is not None else sides[0].outer
    threads = graph.merge(sides[0].threads, sides[1].threads)
    around = (Loop(block, Parallel.BIDX), Loop(depth.outer))
    walk = (*around, Loop(threads, Parallel.TIDX), Loop(depth.steps, Parallel.UNROLL))
    own = (*sides[0].own(), *sides[1].own())
    inner = (*walk, *_sized((depth.lanes, Parallel.UNROLL)))
    set_loops(flow, result, (*inner, *own))
    plain = [x for x in computed(flow.stages) if all(x not in chain for chain in tiles)]
    if transform_like(flow, result, plain, align=True):
        return False
    for o, side, (tile, near) in zip((p.first, p.second), sides, tiles, strict=True):
        set_loops(flow, tile, _load(graph, o, side, depth, around, plan))
        set_loops(flow, near, _read(o, side, depth, walk))
    last = ScheduledTensor(s, flow.outputs[0]).stage
    if len(own) > 1 and last.loops[-1].axis is sides[1].lanes:
        vectorize_accesses(flow, last)
    inline_most(flow)
    for o, side, (tile, near) in zip((p.first, p.second), sides, tiles, strict=True):
        inline_to(flow, {near: len(walk if o.is_deep else inner)})
        inline_to(flow, {tile: len(around)})
        if o.is_deep:
            chunk = max(_width(o), estimate(depth.lanes.extent))
            nbytes = chunk * o.source.dtype.nbytes
            set_allocation(flow, tile, exchanged(graph, side.tile, depth.tile, chunk, nbytes))
    if plan.stages > 1:
        for tile, _ in tiles:
            if tile.copied is not None:
                ScheduledTensor(s, tile).circular_buffer(plan.stages)
    return not any(misplaced(flow))


def _tile(s: Schedule, o: _Factor) -> tuple[Stage, Stage]:
    """An operand's tile in shared memory, and the copy of its elements that a thread reads."""
    source, reader = ScheduledTensor(s, o.source), ScheduledTensor(s, o.reader)
    nbytes = _width(o) * o.source.dtype.nbytes
    if nbytes in CP_ASYNC_NBYTES:
        tile = source.cache_after(by="cp_async", readers=[reader])
    else:
        tile = source.cache_after(readers=[reader], memory=Memory.SHARED)
    return tile.stage, tile.cache_after().stage


def _width(o: _Factor) -> int:
    """Elements of an input that are copied together: as many as every row begins with aligned, and
    divide it."""
    view = strided_operand(o.source)
    assert view is not None, "an input lies in memory by strides"
    fastest = fastest_axis(view)
    extent = None if fastest is None else constant_value(view.shape[fastest])
    return 1 if extent is None else math.gcd(copy_width(view, o.source.dtype.nbytes), extent)


def _load(
    graph: AxisGraph,
    o: _Factor,
    side: _ProductSide,
    depth: _Depth,
    around: tuple[Loop, ...],
    plan: TilePlan,
) -> tuple[Loop, ...]:
    """The loops by which the threads of a block copy an operand's tile: along its memory."""
    slow, fast = (side.tile, depth.tile) if o.is_deep else (depth.tile, side.tile)
    vectors, lanes = graph.split(fast, _width(o))
    trips, threads = graph.split(graph.merge(slow, vectors), plan.threads)
    inside = _sized((trips, Parallel.UNROLL), (threads, Parallel.TIDX), (lanes, Parallel.VECTORIZE))
    return (*around, *inside)


def _read(
    o: _Factor, side: _ProductSide, depth: _Depth, walk: tuple[Loop, ...]
) -> tuple[Loop, ...]:
    """The loops by which a thread reads its elements of a tile: neighbours in one access."""
    if o.is_deep:
        inner = ((side.strips, Parallel.UNROLL), (depth.lanes, Parallel.VECTORIZE))
    else:
        inner = (
            (depth.lanes, Parallel.UNROLL),
            (side.strips, Parallel.UNROLL),
            (side.lanes, Parallel.VECTORIZE),
        )
    return (*walk, *_sized(*inner))
