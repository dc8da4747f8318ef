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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.core.conditions import less, prove
from fusewright.core.expr import ONE
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import Pointwise
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.candidates import Candidate, Listed, Refused, distinct
from fusewright.schedule.heuristics.common import (
    Params,
    cache_inputs,
    merge_all,
    numel,
    vectorize_accesses,
)
from fusewright.schedule.heuristics.traffic import Traffic, Walk, traffic
from fusewright.schedule.inline import inline_most
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import (
    MAX_GRID_YZ,
    MAX_VECTOR_NBYTES,
    SECTOR_NBYTES,
    SHARED_BANK_NBYTES,
    SHARED_BANKS,
    Target,
)

THREADS = 256
TILE_NBYTES = 16 * 1024
TILES_NBYTES = 48 * 1024
LEAST_TILE = 32
MAX_VECTORS = 8
SINGLES = 16
"""Elements of a thread where a side moves them one by one: they share their index arithmetic."""
LEAST_ELEMENTS = 1024
ROW_NBYTES = SHARED_BANKS * SHARED_BANK_NBYTES
"""Bytes in one pass through the banks."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The two dimensions with their extents in a tile and the elements of a vector along each, how
    many planes of them a block takes, the far accesses, the bytes of the largest far element."""

    dims: tuple[AxisClass, ...]
    near: AxisClass
    far: AxisClass
    near_tile: int
    far_tile: int
    planes: int
    near_width: int
    far_width: int
    walks: tuple[Walk, ...]
    nbytes: int

    @property
    def size(self) -> int:
        """The elements of a tile."""
        return self.near_tile * self.far_tile * self.planes

    @property
    def params(self) -> Params:
        """The parameters by name."""
        names = dict.fromkeys(w.tensor.name for w in self.walks)
        return Params(
            "transpose",
            (
                ("tile", f"{self.planes}x{self.far_tile}x{self.near_tile}"),
                ("vectors", f"{self.far_width}, {self.near_width}"),
                ("threads", self.threads),
                ("through_shared", ", ".join(names)),
            ),
        )

    @property
    def threads(self) -> int:
        """As many as have a vector on both sides, at most 256."""
        return min(THREADS, self.size // max(self.near_width, self.far_width))

    def rows(self, own_width: int, other_width: int) -> int:
        """Neighbouring vectors of a thread: not more than it has, nor than the other side takes
        at once."""
        return min(self.size // (own_width * self.threads), other_width)

    def granule(self, writer_width: int, reader_width: int, writer_tile: int) -> int:
        """Elements of a tile's row that keep together: what either side takes at once, a whole
        bank, and no less than spreads the vectors of a writer's tile over all banks."""
        word = max(reader_width, self.rows(writer_width, reader_width)) * self.nbytes
        spread = ROW_NBYTES * writer_width // writer_tile
        nbytes = max(word, SHARED_BANK_NBYTES, min(spread, MAX_VECTOR_NBYTES))
        return max(1, nbytes // self.nbytes)


class TransposeScheduler:
    """Pointwise groups with tensors that are fast along different dimensions; no candidates for
    any other."""

    def __init__(self, flow: Dataflow, target: Target) -> None:
        self._flow = flow
        self._target = target
        self._reference = max(flow.outputs, key=lambda s: (numel(s.shape), -flow.outputs.index(s)))

    def candidates(self) -> Iterator[Listed[Plan]]:
        """Square tiles that fill the chip first, then smaller and longer ones."""
        if numel(self._reference.shape) >= LEAST_ELEMENTS:
            crossing = _crossing(self._reference, traffic(self._flow, self._reference))
            if crossing is not None:
                yield from distinct(_plans(crossing, self._target))

    def apply(self, plan: Plan) -> bool:
        """Inserts the tiles; False, and the dataflow as it was, where the loops do not reach every
        stage."""
        saved = _Saved(self._flow)
        if not _apply(self._flow, self._reference, plan):
            saved.restore()
            return False
        return True


# --- deciding -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crossing:
    """What a tile is decided from: the traffic, the two dimensions with the elements of a vector
    along each, the far accesses, the bytes of the largest far element, and the elements that a
    tile may have."""

    found: Traffic
    near: AxisClass
    far: AxisClass
    widths: tuple[int, int]
    walks: tuple[Walk, ...]
    nbytes: int
    budget: int


def _crossing(reference: Stage, found: Traffic) -> Crossing | None:
    """The two dimensions; None where accesses are fast along one or along none."""
    weight: dict[AxisClass, int] = {}
    own = next(w.fast for w in found.walks if w.tensor is reference)
    for w in found.walks:
        if w.fast is not None:
            is_large = 2 * numel(w.tensor.shape) >= numel(reference.shape)
            weight[w.fast] = weight.get(w.fast, 0) + (w.nbytes if is_large else 0)
    if not weight:
        return None
    near = max(weight, key=lambda d: (weight[d], d is own))
    crossing = [w for w in found.walks if w.fast is not near and near in w.strides]
    others = [w.fast for w in crossing if w.fast is not None]
    if not others:
        return None
    far = max(others, key=lambda d: weight[d])
    if _is_beside(found, near, far):
        return None
    walks = tuple(w for w in crossing if w.fast is far)
    nbytes = max(w.tensor.dtype.nbytes for w in walks)
    near_walks = [w for w in found.walks if w.fast is near]
    widths = (
        min(MAX_VECTOR_NBYTES // nbytes, *(w.width() for w in near_walks)),
        min(w.width() for w in walks),
    )
    budget = min(TILE_NBYTES, TILES_NBYTES // len(walks)) // nbytes
    budget = min(budget, THREADS * max(MAX_VECTORS * min(widths), SINGLES))
    return Crossing(found, near, far, widths, walks, nbytes, budget)


def _plans(c: Crossing, target: Target) -> Iterator[Listed[Plan]]:
    """The tile that the rules choose, then its neighbours: half of it, and twice as long as wide.
    No tile where even the first has no room for a vector."""
    near, far = _tile(c.found, (c.near, c.far), c.budget, c.walks, target)
    if min(near, far) * c.nbytes < MAX_VECTOR_NBYTES:
        return
    sizes = [_power_of_two(estimate(d.extent)) for d in (c.near, c.far)]
    shapes = ((near, far), (near, far // 2), (near // 2, far), (2 * near, far // 2))
    for tile in (*shapes, (near // 2, 2 * far)):
        what = f"tile of {tile[1]} by {tile[0]} through shared memory"
        if min(tile) * c.nbytes < MAX_VECTOR_NBYTES:
            yield Refused(what, f"a side is less than {MAX_VECTOR_NBYTES} bytes")
        elif tile[0] > sizes[0] or tile[1] > sizes[1]:
            yield Refused(what, "longer than its dimension")
        else:
            plan = _plan_of(c, tile, target)
            yield Candidate(what, plan.params, plan)


def _plan_of(c: Crossing, tile: tuple[int, int], target: Target) -> Plan:
    has_all = all(d in w.strides for w in c.walks for d in c.found.dims)
    most = c.budget // (tile[0] * tile[1]) if has_all else 1
    return Plan(
        c.found.dims,
        c.near,
        c.far,
        *tile,
        _planes(c.found, (c.near, c.far), most, tile, target),
        min(c.widths[0], tile[0]),
        min(c.widths[1], tile[1]),
        c.walks,
        c.nbytes,
    )


def _tile(
    found: Traffic,
    dims: tuple[AxisClass, AxisClass],
    budget: int,
    walks: Sequence[Walk],
    target: Target,
) -> tuple[int, int]:
    """The extents of a tile of at most `budget` elements: square but for short dimensions, small
    enough for blocks on every multiprocessor. A row of a tile in shared memory, which runs along
    what its reader wants, does not get shorter than one pass through the banks."""
    nbytes = max(w.tensor.dtype.nbytes for w in walks)
    sizes = [_power_of_two(estimate(d.extent)) for d in dims]
    tile = [1, 1]
    while True:
        growing = [k for k in (0, 1) if tile[k] < sizes[k]]
        if not growing or 2 * tile[0] * tile[1] > budget:
            break
        tile[min(growing, key=lambda k: tile[k])] *= 2
    is_read = [any(w.position is not None for w in walks), any(w.position is None for w in walks)]
    least = [ROW_NBYTES // nbytes if r else LEAST_TILE for r in is_read]
    total = numel([d.extent for d in found.dims])
    while total // (tile[0] * tile[1]) < 2 * target.multiprocessors:
        shrinking = [k for k in (0, 1) if tile[k] > least[k]]
        if not shrinking:
            break
        tile[max(shrinking, key=lambda k: tile[k])] //= 2
    return tile[0], tile[1]


def _planes(
    found: Traffic,
    dims: tuple[AxisClass, AxisClass],
    most: int,
    tile: tuple[int, int],
    target: Target,
) -> int:
    """How many planes of both dimensions a block takes when one is no more than a tile."""
    if any(estimate(d.extent) > t for d, t in zip(dims, tile, strict=True)):
        return 1
    total = numel([d.extent for d in found.dims if d not in dims])
    planes = 1
    while 2 * planes <= min(most, total // (2 * target.multiprocessors)):
        planes *= 2
    return planes


def _is_beside(found: Traffic, near: AxisClass, far: AxisClass) -> bool:
    """Whether neighbours along `far` are in one sector of the near tensors, so that a warp that
    walks along `near` uses whole sectors of the far ones, too."""
    return any(
        far in w.strides
        and prove(less(w.strides[far] * w.tensor.dtype.nbytes, SECTOR_NBYTES)) is True
        for w in found.walks
        if w.fast is near
    )


def _power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()


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


class _Saved:
    """A dataflow before it is edited."""

    def __init__(self, flow: Dataflow) -> None:
        self.flow = flow
        self.stages = list(flow.stages)
        self.parts = [(s.op, s.operands, s.frame, s.memory) for s in flow.stages]

    def restore(self) -> None:
        """Everything as it was; loops start over as each op's own domain."""
        self.flow.stages[:] = self.stages
        for s, (op, operands, frame, memory) in zip(self.stages, self.parts, strict=True):
            s.op, s.operands, s.frame, s.memory = op, operands, frame, memory
            s.inline_depth = 0
        self.flow.retie()
        for s in computed(self.stages):
            s.loops = tuple(Loop(a) for a in s.frame.domain)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The stages that bring far tensors through shared memory."""

    loads: tuple[Stage, ...]
    written_far: tuple[Stage, ...]
    read_near: tuple[Stage, ...]
    written_near: tuple[Stage, ...]
    stores: tuple[Stage, ...]
    computed: dict[Stage, Stage]


def _apply(flow: Dataflow, reference: Stage, plan: Plan) -> bool:
    tiles = _insert_tiles(flow, plan)
    held = cache_inputs(flow)
    near, far = _sides(flow, plan)
    first = tiles.computed.get(reference, reference)
    special = (*tiles.loads, *tiles.written_far, *tiles.written_near, *tiles.stores)
    first.loops = near.along(Parallel.SERIAL)
    plain = [s for s in computed(flow.stages) if s not in special]
    if transform_like(flow, first, plain) or any(_is_apart(s, near) for s in plain):
        return False
    if plan.near_width > 1:
        vectorize_accesses(flow, near.lanes, plan.near_width)
    for s in (*tiles.loads, *tiles.stores):
        s.loops = far.along(Parallel.SERIAL)
    if plan.far_width > 1:
        vectorize_accesses(flow, far.lanes, plan.far_width)
    for s in tiles.read_near:
        s.loops = near.along()
    for s in tiles.written_far:
        s.loops = far.across()
        s.allocation = _allocation(flow.graph, plan, s, far, near)
    for s in tiles.written_near:
        s.loops = near.across()
        s.allocation = _allocation(flow.graph, plan, s, near, far)
    _loads_first(flow, [*tiles.loads, *held])
    for s in (*tiles.written_far, *tiles.written_near):
        s.inline_depth = min(s.inline_depth, len(near.blocks))
    return True


def _is_apart(s: Stage, near: Side) -> bool:
    """Whether a stage has an axis that the loops do not determine: each thread would walk it."""
    return any(x.parallel is Parallel.SERIAL and x.axis is not near.lanes for x in s.loops)


def _sides(flow: Dataflow, plan: Plan) -> tuple[Side, Side]:
    """How threads walk a tile along the near and along the far dimension."""
    graph = flow.graph
    near_out, near = graph.split(graph.normal(plan.near), plan.near_tile)
    far_out, far = graph.split(graph.normal(plan.far), plan.far_tile)
    others = [Loop(graph.normal(d)) for d in plan.dims if d not in (plan.near, plan.far)]
    merged = merge_all(flow, others)
    nothing, _ = graph.split(near, plan.near_tile)
    rest = nothing if merged is None else merged.axis
    rest, planes = graph.split(rest, plan.planes)
    blocks = _blocks(graph, near_out, far_out, rest)
    reads_far = any(w.position is not None for w in plan.walks)
    writes_far = any(w.position is None for w in plan.walks)
    widths = (plan.near_width, plan.far_width)
    return (
        _side(graph, plan, (blocks, planes), (near, far), widths, writes_far),
        _side(graph, plan, (blocks, planes), (far, near), (widths[1], widths[0]), reads_far),
    )


def _blocks(graph: AxisGraph, near: AxisClass, far: AxisClass, rest: AxisClass) -> tuple[Loop, ...]:
    """The grid: neighbouring tiles along the near dimension run together. A dimension of its own
    for each of the two spares the divisions; what may be too long for that is merged."""
    if all(_fits_grid(c) for c in (far, rest)):
        bound = ((near, Parallel.BIDX), (far, Parallel.BIDY), (rest, Parallel.BIDZ))
    elif all(_fits_grid(c) for c in (near, far)):
        bound = ((rest, Parallel.BIDX), (near, Parallel.BIDY), (far, Parallel.BIDZ))
    else:
        bound = ((graph.merge(graph.merge(rest, far), near), Parallel.BIDX),)
    return tuple(Loop(c, kind) for c, kind in bound if c.extent != ONE)


def _fits_grid(c: AxisClass) -> bool:
    most = c.extent.interval[1]
    return most is not None and most <= MAX_GRID_YZ


def _side(
    graph: AxisGraph,
    plan: Plan,
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


def _same_banks(plan: Plan, width: int, row: AxisClass) -> int:
    """How many neighbouring vectors lie in different banks without a permutation, as a power of
    two: the rows of the tile that they belong to are short."""
    step = width * estimate(row.extent) * plan.nbytes
    return max(1, ROW_NBYTES // step)


def _allocation(
    graph: AxisGraph, plan: Plan, tile: Stage, writer: Side, reader: Side
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
    _, permuted = graph.swizzle(by, together)
    planes = graph.project(writer.planes, tile.frame.output)
    words = graph.split(word, plan.rows(writer_width, reader_width))
    return planes, rows, permuted, above, *words


def _insert_tiles(flow: Dataflow, plan: Plan) -> _Tiles:
    """The copies of far tensors, tied to what they copy; loops are set later."""
    written = [w.tensor for w in plan.walks if w.position is None]
    stores = [_insert_output(flow, s) for s in written]
    computed_by = {s: near for s, (near, _) in zip(written, stores, strict=True)}
    reads: dict[object, tuple[Stage, list[Stage]]] = {}
    for w in plan.walks:
        if w.position is not None:
            user = computed_by.get(w.stage, w.stage)
            key = (w.tensor, user.frame.operands[w.position])
            reads.setdefault(key, (w.tensor, []))[1].append(user)
    chains = [_insert_input(flow, x, users) for x, users in reads.values()]
    flow.sort()
    flow.retie()
    return _Tiles(
        tuple(c[0] for c in chains),
        tuple(c[1] for c in chains),
        tuple(c[2] for c in chains),
        tuple(tile for _, tile in stores),
        tuple(written),
        computed_by,
    )


def _insert_output(flow: Dataflow, y: Stage) -> tuple[Stage, Stage]:
    """`y = op(..)` as `y_near = op(..); y_tile = cast(y_near); y = copy(y_tile)`."""
    near = flow.insert(y, f"{y.name}_near", y.shape, y.dtype, y.op, y.operands)
    near.frame = y.frame
    tile = flow.insert(near, f"{y.name}_tile", y.shape, y.dtype, Pointwise((), "cast"), [near])
    tile.memory = Memory.SHARED
    y.op, y.operands = Pointwise((), "copy"), (tile,)
    flow.attach(tile)
    flow.attach(y)
    return near, tile


def _insert_input(flow: Dataflow, x: Stage, users: list[Stage]) -> tuple[Stage, Stage, Stage]:
    """`x_far = copy(x); x_tile = copy(x_far); x_near = copy(x_tile)`, which the users read."""
    chain: list[Stage] = [x]
    for suffix in ("far", "tile", "near"):
        last = chain[-1]
        copy = Pointwise((), "copy")
        chain.append(flow.insert(last, f"{x.name}_{suffix}", x.shape, x.dtype, copy, [last]))
        flow.attach(chain[-1])
    flow.replace_operand(users, x, chain[-1])
    _, far, tile, near = chain
    tile.memory = Memory.SHARED
    return far, tile, near


def _loads_first(flow: Dataflow, loads: list[Stage]) -> None:
    """All of a thread's loads stand before the first write to shared memory, so that they are in
    flight together."""
    early = [s for s in loads if all(o.is_input or o.is_virtual for o in s.operands)]
    start = [s for s in flow.stages if s.is_input or s.is_virtual]
    front = dict.fromkeys([*start, *early])
    flow.stages = [*front, *(s for s in flow.stages if s not in front)]
    inline_most(flow)
    for s in early:
        depth = next((i for i, x in enumerate(s.loops) if x.parallel.is_serial), 0)
        s.inline_depth = min(s.inline_depth, depth)
