"""Pointwise groups whose tensors are fast along different dimensions: through shared memory.

`near` is the dimension along which most bytes are fast, and along which the group is computed;
`far` tensors are fast along another one. A block takes a tile of both dimensions. Far inputs go
from global memory to registers in vectors along their own fast dimension, from there to a tile in
shared memory, and are read along `near`; far outputs go the other way.

    far input     x -> x_far (registers) -> x_tile (shared) -> x_near (registers) -> users
    far output    y_near (registers) -> y_tile (shared) -> y

A thread owns `rows` neighbouring vectors, so it turns a small block in registers and writes the
tile in words of `rows` elements. The granules of a tile's row are permuted by an exclusive or with
the number of the vector that a writing thread holds: neither side meets bank conflicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.core.expr import ONE
from fusewright.core.substitution import estimate
from fusewright.memory import Memory
from fusewright.schedule.copies import copy_after, put_first, tile_after, tile_before
from fusewright.schedule.edits import inline_to, set_allocation, set_loops
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.candidates import Listed, distinct
from fusewright.schedule.heuristics.common import (
    cache_inputs,
    merge_all,
    numel,
    reference_output,
    vectorize_accesses,
)
from fusewright.schedule.heuristics.traffic import traffic
from fusewright.schedule.heuristics.transpose_plans import (
    ROW_NBYTES,
    TransposePlan,
    crossings,
    plans,
)
from fusewright.schedule.inline import inline_most, load_first, misplaced
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import (
    MAX_GRID_YZ,
    Target,
)

LEAST_ELEMENTS = 1024


class TransposeScheduler:
    """Pointwise groups with tensors that are fast along different dimensions; no candidates for
    any other."""

    def __init__(self, flow: Dataflow, target: Target) -> None:
        self.flow = flow
        self._target = target
        self._reference = reference_output(flow)

    def candidates(self) -> Iterator[Listed[TransposePlan]]:
        """Square tiles that fill the chip first, then smaller and longer ones."""
        if numel(self._reference.shape) >= LEAST_ELEMENTS:
            found = traffic(self.flow, self._reference)
            crossing = crossings(self.flow.graph, self._reference, found)
            yield from distinct(plans(crossing, self._target))

    def apply(self, plan: TransposePlan) -> bool:
        """Inserts the tiles; False where the loops do not reach every stage."""
        return _apply(self.flow, self._reference, plan)


# --- doing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Side:
    """How the threads of a block walk its tile when neighbours along one dimension are accessed
    together: a thread has `outer` times `rows` vectors of `lanes` elements. `planes` and `tile` are
    the block's part of the other dimensions and of that one, `spread` is what permutes the granules
    that this side writes."""

    blocks: tuple[Loop, ...]
    threads: AxisClass
    outer: AxisClass
    rows: AxisClass
    lanes: AxisClass
    planes: AxisClass
    tile: AxisClass
    spread: AxisClass

    def along(self, lanes: Parallel = Parallel.VECTORIZE) -> tuple[Loop, ...]:
        """The loops that access memory along the dimension."""
        return self._loops((self.rows, Parallel.UNROLL), (self.lanes, lanes))

    def across(self) -> tuple[Loop, ...]:
        """The loops by which the same threads access memory along the other dimension."""
        return self._loops((self.lanes, Parallel.UNROLL), (self.rows, Parallel.VECTORIZE))

    def _loops(self, *inner: tuple[AxisClass, Parallel]) -> tuple[Loop, ...]:
        outer = ((self.threads, Parallel.TIDX), (self.outer, Parallel.UNROLL))
        own = tuple(Loop(axis, kind) for axis, kind in (*outer, *inner) if axis.extent != ONE)
        return (*self.blocks, *own)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The stages that bring far tensors through shared memory."""

    loads: tuple[Stage, ...]
    written_far: tuple[Stage, ...]
    read_near: tuple[Stage, ...]
    written_near: tuple[Stage, ...]
    stores: tuple[Stage, ...]
    computed: dict[Stage, Stage]


def _apply(flow: Dataflow, reference: Stage, plan: TransposePlan) -> bool:
    tiles = _insert_tiles(flow, plan)
    held = cache_inputs(flow)
    near, far = _sides(flow, plan)
    first = tiles.computed.get(reference, reference)
    special = (*tiles.loads, *tiles.written_far, *tiles.written_near, *tiles.stores)
    set_loops(flow, first, near.along(Parallel.SERIAL))
    plain = [s for s in computed(flow.stages) if s not in special]
    if transform_like(flow, first, plain) or any(_is_apart(s, near) for s in plain):
        return False
    if plan.near_width > 1:
        vectorize_accesses(flow, first)
    for s in (*tiles.loads, *tiles.stores):
        set_loops(flow, s, far.along(Parallel.SERIAL))
    if plan.far_width > 1:
        vectorize_accesses(flow, (*tiles.loads, *tiles.stores)[0])
    if any(
        x.parallel is Parallel.UNROLL and x.axis is far.lanes for s in tiles.loads for x in s.loops
    ):
        return False  # neighbours one by one are far apart
    for s in tiles.read_near:
        set_loops(flow, s, near.along())
    for s in tiles.written_far:
        set_loops(flow, s, far.across())
        set_allocation(flow, s, _allocation(flow.graph, plan, s, far, near))
    for s in tiles.written_near:
        set_loops(flow, s, near.across())
        set_allocation(flow, s, _allocation(flow.graph, plan, s, near, far))
    early = [
        s for s in (*tiles.loads, *held) if all(o.is_input or o.is_virtual for o in s.operands)
    ]
    put_first(flow, early)
    inline_most(flow)
    load_first(flow, early)
    for s in (*tiles.written_far, *tiles.written_near):
        inline_to(flow, {s: min(s.inline_depth, len(near.blocks))})
    return not any(misplaced(flow))  # pieces of a join that begin inside of a tile


def _is_apart(s: Stage, near: Side) -> bool:
    """Whether a stage has an axis that the loops do not determine: each thread would walk it."""
    return any(x.parallel is Parallel.SERIAL and x.axis is not near.lanes for x in s.loops)


def _sides(flow: Dataflow, plan: TransposePlan) -> tuple[Side, Side]:
    """How threads walk a tile along the near and along the far dimension."""
    graph = flow.graph
    near_out, near = graph.split(graph.normal(plan.near), plan.near_tile)
    far_out, far = graph.split(graph.normal(plan.far), plan.far_tile)
    others = [Loop(graph.normal(d)) for d in plan.dims if d not in (plan.near, plan.far)]
    merged = merge_all(flow, others)
    nothing, _ = graph.split(near, plan.near_tile)
    rest = nothing if merged is None else merged.axis
    rest, planes = graph.split(rest, plan.planes)
    first, second = (far_out, near_out) if plan.is_far_first else (near_out, far_out)
    blocks = _blocks(graph, first, second, rest)
    reads_far = any(w.position is not None for w in plan.walks)
    writes_far = any(w.position is None for w in plan.walks)
    widths = (plan.near_width, plan.far_width)
    return (
        _side(graph, plan, (blocks, planes), (near, far), widths, writes_far),
        _side(graph, plan, (blocks, planes), (far, near), (widths[1], widths[0]), reads_far),
    )


def _blocks(
    graph: AxisGraph, first: AxisClass, second: AxisClass, rest: AxisClass
) -> tuple[Loop, ...]:
    """The grid: neighbouring tiles along the first dimension run together. A dimension of its own
    for each of the two spares the divisions; what may be too long for that is merged."""
    if all(_fits_grid(c) for c in (second, rest)):
        bound = ((first, Parallel.BIDX), (second, Parallel.BIDY), (rest, Parallel.BIDZ))
    elif all(_fits_grid(c) for c in (first, second)):
        bound = ((rest, Parallel.BIDX), (first, Parallel.BIDY), (second, Parallel.BIDZ))
    else:
        bound = ((graph.merge(graph.merge(rest, second), first), Parallel.BIDX),)
    return tuple(Loop(c, kind) for c, kind in bound if c.extent != ONE)


def _fits_grid(c: AxisClass) -> bool:
    most = c.extent.interval[1]
    return most is not None and most <= MAX_GRID_YZ


def _side(
    graph: AxisGraph,
    plan: TransposePlan,
    outside: tuple[tuple[Loop, ...], AxisClass],
    tiles: tuple[AxisClass, AxisClass],
    widths: tuple[int, int],
    is_writer: bool,
) -> Side:
    """The walk along the first of two dimensions. The threads of one pass through the banks write
    all granules of a row of the tile, each granule from vectors next to each other."""
    own, other = tiles
    blocks, planes = outside
    vectors, lanes = graph.split(own, widths[0])
    words, rows = graph.split(other, plan.rows(*widths))
    own_tile = estimate(own.extent)
    granule = plan.granule(*widths, own_tile)
    passes = min(ROW_NBYTES // (granule * plan.nbytes), own_tile // widths[0])
    high, spread = graph.split(vectors, passes)
    by = graph.split(spread, _same_banks(plan, widths[0], other))[0]
    if not is_writer:
        walk = graph.merge(words, vectors)
    else:
        above, beside = graph.split(words, max(1, granule // plan.rows(*widths)))
        walk = graph.merge(graph.merge(graph.merge(above, high), beside), spread)
    outer, threads = graph.split(graph.merge(planes, walk), plan.threads)
    return Side(blocks, threads, outer, rows, lanes, planes, own, by)


def _same_banks(plan: TransposePlan, width: int, row: AxisClass) -> int:
    """How many neighbouring vectors lie in different banks without a permutation, as a power of
    two: the rows of the tile that they belong to are short."""
    step = width * estimate(row.extent) * plan.nbytes
    return max(1, ROW_NBYTES // step)


def _allocation(
    graph: AxisGraph, plan: TransposePlan, tile: Stage, writer: Side, reader: Side
) -> tuple[AxisClass, ...]:
    """A tile whose rows run along the reader's dimension; the granules of one pass through the
    banks, of several rows where they are short, are permuted by the writer."""
    writer_width, reader_width = estimate(writer.lanes.extent), estimate(reader.lanes.extent)
    granule = plan.granule(writer_width, reader_width, estimate(writer.tile.extent))
    granules, within = graph.split(reader.tile, granule)
    above, word = graph.split(within, reader_width)
    row_nbytes = estimate(reader.tile.extent) * plan.nbytes
    rows, row = graph.split(writer.tile, min(writer_width, max(1, ROW_NBYTES // row_nbytes)))
    together = graph.merge(row, granules)
    size = min(estimate(together.extent), estimate(writer.spread.extent))
    _, by = graph.split(writer.spread, size)
    ways = min(ROW_NBYTES // (granule * plan.nbytes), estimate(together.extent))
    apart, beside = graph.split(together, max(1, ways // size))
    _, permuted = graph.swizzle(by, apart)
    planes = graph.project(writer.planes, tile.frame.output)
    words = graph.split(word, plan.rows(writer_width, reader_width))
    return planes, rows, permuted, beside, above, *words


def _tile_of(flow: Dataflow, moved: Stage) -> tuple[Stage, Stage, Stage]:
    """A stage that reads an input at other places, its tile, and what its readers read instead. An
    output is what reads the tile itself."""
    if moved.memory is Memory.GLOBAL:
        return *tile_before(flow, moved), moved
    tile = copy_after(flow, moved, memory=Memory.SHARED)
    return moved, tile, copy_after(flow, tile)


def _insert_tiles(flow: Dataflow, plan: TransposePlan) -> _Tiles:
    """The copies of far tensors, tied to what they copy; loops are set later."""
    written = [w.tensor for w in plan.walks if w.position is None]
    read = [(w.stage, w.position, w.tensor) for w in plan.walks if w.position is not None]
    stores = [tile_before(flow, s) for s in written]
    computed_by = {s: near for s, (near, _) in zip(written, stores, strict=True)}
    moved = dict.fromkeys(w.stage for w in plan.walks if w.position is not None and w.moved)
    reads: dict[object, tuple[Stage, list[Stage]]] = {}
    for stage, position, tensor in read:
        if stage in moved:
            continue
        user = computed_by.get(stage, stage)
        key = (tensor, user.frame.operands[position])
        reads.setdefault(key, (tensor, []))[1].append(user)
    chains = [tile_after(flow, x, users) for x, users in reads.values()]
    chains += [_tile_of(flow, computed_by.get(s, s)) for s in moved]
    return _Tiles(
        tuple(c[0] for c in chains),
        tuple(c[1] for c in chains),
        tuple(c[2] for c in chains),
        tuple(tile for _, tile in stores),
        tuple(written),
        computed_by,
    )
