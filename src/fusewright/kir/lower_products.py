"""Lowering of products: boxes that the copy engine brings, matrix instructions that read them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusewright.axes.paths import value_of
from fusewright.core.conditions import FALSE, TRUE, Cond, any_of, less
from fusewright.core.expr import (
    ONE,
    ZERO,
    Expr,
    Int,
    IntLike,
    Var,
    as_expr,
    constant_value,
    floordiv,
    mod,
    variables,
)
from fusewright.core.substitution import substitute
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import MatMul
from fusewright.kir.ir import (
    Alloc,
    BoxLoad,
    BoxStore,
    Buffer,
    Compute,
    For,
    Imm,
    Matrix,
    Mma,
    Reg,
    Statement,
    StMatrix,
    Store,
    TensorMap,
)
from fusewright.kir.lower_stage import Definition
from fusewright.kir.lower_storage import Storage
from fusewright.kir.symbols import operand_dtype
from fusewright.kir.tensor import FRAGMENT
from fusewright.kir.tiles import CHUNK_NBYTES, GROUP_ROWS, Major
from fusewright.schedule.graph import Stage
from fusewright.schedule.instructions import THREADS_BY_LANES, instructions_across
from fusewright.schedule.nest import reduced_loops
from fusewright.schedule.products import PROMOTED_DEPTH, blocks_that_share
from fusewright.schedule.views import View, class_value, operand, view
from fusewright.target import MAX_BOX_EXTENT, MMA_COLUMNS_UNIT, WARP_SIZE, WARPGROUP_SIZE

_ISSUER = 0
MATRIX_ITEMSIZE = CHUNK_NBYTES // FRAGMENT
"""Bytes of an element of the matrices that are stored: a row of eight is a chunk."""
_FRAGMENT = (2, 2, 2)
"""Loops inside of a store of matrices: blocks of 8 columns, of 8 rows, neighbours."""


@dataclass(frozen=True, slots=True)
class _Team:
    """The threads of a block by their numbers: a variable of the outermost dimension that they are
    bound to, which counts `unit` of them each, and what those inside count."""

    outer: Var
    unit: int
    inner: dict[Var, int]

    @staticmethod
    def of(s: Stage, values: Sequence[Expr]) -> _Team:
        """Those of a stage whose threads are bound to one dimension, or with a dimension each for
        warps, rows and pairs."""
        inner: dict[Var, int] = {}
        unit = 1
        for dim in reversed(THREADS_BY_LANES):
            i = next((i for i, x in enumerate(s.loops) if x.parallel is dim), None)
            if i is None or not isinstance(v := values[i], Var):
                continue
            inner[v] = unit
            unit *= constant_value(s.loops[i].axis.extent) or 1
        outer = next(reversed(inner))
        return _Team(outer, inner.pop(outer), inner)

    def number(self, size: int) -> Expr:
        """Which group of so many threads a thread belongs to."""
        return floordiv(self.outer, size // self.unit)

    @property
    def lane(self) -> Expr:
        """The number of a thread in its warp."""
        own = mod(self.outer, WARP_SIZE // self.unit) * self.unit
        return sum((v * n for v, n in self.inner.items()), own)

    def first_of(self, number: Var, size: int) -> dict[Var, Expr]:
        """Where the first thread of a group of so many threads is."""
        return {self.outer: number * (size // self.unit), **dict.fromkeys(self.inner, ZERO)}


def check_products(stages: Iterable[Stage]) -> None:
    """Raises ScheduleError for a product that no matrix instructions were asked for."""
    for s in stages:
        if isinstance(s.op, MatMul) and not s.is_mma:
            raise ScheduleError(
                f"{s.name}: no instructions compute this product; call cache_before() and mma() of "
                "what it returns, or write the product as a sum, fw.sum(a[:, :, None] * "
                "b[None, :, :], axis=1) of values in float32, which may have any loops"
            )


def box_loads(storage: Storage, s: Stage, values: tuple[Expr, ...]) -> list[Statement]:
    """The copies of a stage's box: one for each panel of its tile, and for each 256 rows. Where all
    blocks of a cluster need the same tile, each copies a share of its rows to all:

        tile <- rows 0 .. 256 of w   ->   tile[128 cx ..] <- rows 128 cx .. +128 of w, to 2 blocks
    """
    buffer, blocks = storage.context.buffers[s], blocks_that_share(storage.graph, s)
    if storage.box(s).tile.rows // GROUP_ROWS % blocks:
        blocks = 1
    tensor = tensor_map(storage, s, blocks)
    return [
        BoxLoad(buffer, index, tensor, at, _ISSUER, blocks=blocks)
        for index, at in _boxes(storage, s, values, tensor, blocks)
    ]


def box_stores(storage: Storage, s: Stage, values: tuple[Expr, ...]) -> list[BoxStore]:
    """The copies of an output's box from the tile that it is staged in."""
    source = s.operands[0]
    if not source.is_staged:
        raise ScheduleError(
            f"{s.name} has Bulk loops, but {source.name} lies in no tile for them; make it with "
            "cache_before(by='stmatrix')"
        )
    buffer, tensor = storage.context.buffers[source], tensor_map(storage, s)
    return [
        BoxStore(tensor, at, buffer, index, _ISSUER)
        for index, at in _boxes(storage, s, values, tensor, 1)
    ]


def of_one_copy(storage: Storage, s: Stage, values: tuple[Expr, ...]) -> list[Cond]:
    """Where the box of an output is stored: in the first of tiles that differ in a digit which the
    output does not have, as rows of tiles do in a group of more of them than there are."""
    seen = view(storage.graph, s, values)
    inside = {v: 0 for i in storage.box(s).loops if isinstance(v := values[i], Var)}
    return [c for c in seen.path.free_conditions if not inside.keys() & variables(c)]


def _boxes(
    storage: Storage, s: Stage, values: tuple[Expr, ...], tensor: TensorMap, blocks: int
) -> Iterator[tuple[Expr, tuple[Expr, ...]]]:
    """For each box of a block its place in the tile and its coordinates in the tensor."""
    box = storage.box(s)
    seen = view(storage.graph, s, values)
    inside = {v: 0 for i in box.loops if isinstance(v := values[i], Var)}
    first = [substitute(e, inside) for e in seen.output]
    dims, share = box.dimensions, box.tile.rows // blocks
    begin = storage.context.dims["cx"].var * share if blocks > 1 else ZERO
    for first_row in range(0, share, tensor.box[dims.index(box.axes[0])]):
        row = begin + first_row
        for column in range(0, box.tile.columns, box.tile.panel):
            at = list(first)
            at[box.axes[0]] = at[box.axes[0]] + row
            at[box.axes[1]] = at[box.axes[1]] + column
            yield box.tile.index(row, column), tuple(at[j] for j in dims)


def matrix_stores(storage: Storage, s: Stage, values: tuple[Expr, ...]) -> list[Statement]:
    """A staged value of 16 x 16 elements of a warp, eight registers of a thread, as four matrices.

    Lane l names row `l % 16` of columns `8 (l // 16)` on; of a tile whose columns are the rows of
    the product, row `l % 8 + 8 (l // 16)` of columns `8 (l // 8 % 2)` on, transposed.
    """
    reader = storage.boxed_reader(s)
    box = storage.box(reader)
    if s.dtype.nbytes != MATRIX_ITEMSIZE:
        return _pair_stores(storage, s, values)
    known = [(x.axis, v) for x, v in zip(s.loops, values, strict=True)]
    own = values[-len(_FRAGMENT) :]
    registers, out = _fragment(storage, s, values)
    team = _Team.of(s, values)
    warp, lane = team.number(WARP_SIZE), team.lane
    fixed = {v: 0 for v in own if isinstance(v, Var)}
    w = Var("warp", 0, None)
    _, half, _ = own
    at: list[Expr] = []
    across = False
    for i in box.loops:
        found = value_of(storage.graph, known, reader.loops[i].axis)
        if found is None:
            raise _elsewhere(s, reader)
        across = half in variables(found[0])  # of the columns, which come last
        first = substitute(substitute(found[0], fixed), team.first_of(w, WARP_SIZE))
        at.append(substitute(first, {w: warp}))
    named = mod(lane, 8) + floordiv(lane, 16) * 8 if across else mod(lane, 16)
    block = mod(floordiv(lane, 8), 2) if across else floordiv(lane, 16)
    index = box.tile.place(box.tile.index(at[0] + named, at[1] + block * 8))
    buffer = storage.context.buffers[s]
    out.append(StMatrix(buffer, index, Reg(registers), FRAGMENT // 2, transposed=across))
    return out


def _fragment(
    storage: Storage, s: Stage, values: tuple[Expr, ...]
) -> tuple[Buffer, list[Statement]]:
    """A thread's elements of 16 x 16 of a staged value in registers, and what brings them there."""
    own = values[-len(_FRAGMENT) :]
    registers = storage.temporary(s, s.dtype, FRAGMENT)
    out: list[Statement] = [Alloc(registers)]
    for k, digits in enumerate(itertools.product(*map(range, _FRAGMENT))):
        here = dict(zip(own, digits, strict=True))
        place = tuple(as_expr(here.get(v, v)) for v in values)
        d = Definition(storage, s, place)
        (value,) = d.read(0)
        fn = "copy" if operand_dtype(value) is s.dtype else "cast"
        out += [*d.out, Compute(fn, Reg(registers, Int(k)), (value,))]
    return registers, out


def _pair_stores(storage: Storage, s: Stage, values: tuple[Expr, ...]) -> list[Statement]:
    """A staged value of 16 x 16 elements of a warp that no store of matrices takes, by each thread
    where it holds them: pairs of neighbours in the columns of the product."""
    reader = storage.boxed_reader(s)
    box, own = storage.box(reader), values[-len(_FRAGMENT) :]
    known = [(x.axis, v) for x, v in zip(s.loops, values, strict=True)]
    found = [value_of(storage.graph, known, reader.loops[i].axis) for i in box.loops]
    at = [x[0] for x in found if x is not None]
    if len(at) < len(found):
        raise _elsewhere(s, reader)
    registers, out = _fragment(storage, s, values)
    width = 1 if own[-1] in variables(at[0]) else _FRAGMENT[-1]
    for k, digits in enumerate(itertools.product(*map(range, _FRAGMENT))):
        if k % width:
            continue
        here = {v: n for v, n in zip(own, digits, strict=True) if isinstance(v, Var)}
        index = box.tile.place(box.tile.index(*(substitute(e, here) for e in at)))
        out.append(Store(storage.context.buffers[s], index, Reg(registers, Int(k)), width))
    return out


def _elsewhere(s: Stage, reader: Stage) -> ScheduleError:
    return ScheduleError(
        f"the loops of {s.name} do not determine its place in the tile of {reader.name}; give both "
        "the same tiles"
    )


def tensor_map(storage: Storage, s: Stage, blocks: int = 1) -> TensorMap:
    """The tensor map of a stage's box, of which each of so many blocks copies as many rows; one for
    equal ones."""
    box = storage.box(s)
    dims = box.dimensions
    row, rows = box.axes[0], box.tile.rows // blocks
    at_once = min(rows, MAX_BOX_EXTENT) // GROUP_ROWS * GROUP_ROWS
    most = next(r for r in range(at_once, 0, -GROUP_ROWS) if rows % r == 0)
    extents = {box.axes[1]: box.tile.panel, row: most}
    source = box.source
    unit = Int(16 // s.dtype.nbytes)  # a stride that a map takes, where there is but one row
    strides = tuple(
        unit if k and source.shape[j] == ONE else source.strides[j] for k, j in enumerate(dims)
    )
    buffer = storage.context.buffers[source.source]
    sizes = tuple(source.shape[j] for j in dims)
    rounding = _rounding(storage, s)
    shape = tuple(extents.get(j, 1) for j in dims)
    key = (buffer, sizes, strides, shape, box.tile.swizzle, rounding)
    maps = storage.context.maps
    if key not in maps:
        count = sum(m.buffer is buffer for m in maps.values())
        name = f"{buffer.name}_map{count or ''}"
        maps[key] = TensorMap(name, buffer, sizes, strides, shape, box.tile.swizzle, rounding)
    return maps[key]


def _rounding(storage: Storage, s: Stage) -> str:
    """What the copy engine rounds a stage's elements to on their way in: what products of them
    multiply."""
    readers = storage.context.flow.consumers(s)
    rounds = any(isinstance(r.op, MatMul) and r.op.precision == "tf32" for r in readers)
    return "tf32" if rounds else ""


def instructions(storage: Storage, s: Stage, values: tuple[Expr, ...]) -> list[Statement]:
    """The matrix instructions of a product at one place: for each step of the tile's depth, one for
    every 64 rows of a warpgroup and as many columns as it takes. Accumulators begin with the first
    step; those of promoted sums begin again every `PROMOTED_DEPTH` pairs, when they are added to
    the stage's own:

        sums[0..n] = a[0..128] @ b[0..128];  dst[0..n] = dst[0..n] + sums[0..n]
    """
    graph = storage.graph
    seen = view(graph, s, values)
    step, inside, several, word, half, element = range(len(s.loops) - 6, len(s.loops))
    extent = {i: constant_value(s.loops[i].axis.extent) or 1 for i in range(step, len(s.loops))}
    team, group = _Team.of(s, values), Var("warpgroup", 0, None)
    fixed = {inside: ZERO, half: ZERO, element: ZERO}
    apart = instructions_across(extent[word] * MMA_COLUMNS_UNIT)
    words = extent[word] // apart
    count = words * MMA_COLUMNS_UNIT
    again = _again(storage, s, values)
    total = storage.context.buffers[s]
    sums, every = storage.context.sums.get(s, total), extent[step]
    if sums is not total:
        again, every = FALSE, max(1, PROMOTED_DEPTH // extent[inside])
    out: list[Statement] = []
    for k in range(extent[step]):
        for r, c in itertools.product(range(extent[several]), range(apart)):
            places = {**fixed, step: Int(k), several: Int(r), word: Int(c * words)}
            here = {v: e for i, e in places.items() if isinstance(v := values[i], Var)}
            here |= team.first_of(group, WARPGROUP_SIZE)
            a, b = (_matrix(storage, seen, p, here, group, team) for p in (0, 1))
            accumulator = Reg(sums, Int((r * apart + c) * count // 2))
            out.append(Mma(accumulator, a, b, count, TRUE if k % every else again))
        if sums is not total and (k % every == every - 1 or k == extent[step] - 1):
            out.append(_added(total, sums))
    return out


def _added(total: Buffer, sums: Buffer) -> Statement:
    """`total[j] = total[j] + sums[j]` for all registers."""
    j = Var("j", 0, total.size - 1)
    one = Compute("add", Reg(total, j), (Reg(total, j), Reg(sums, j)))
    return For(j, total.size, (one,), unroll=True)


def zeros(storage: Storage, s: Stage) -> list[Statement]:
    """What accumulators hold before the first instruction, where it adds to them."""
    total = storage.context.buffers[s]
    if s not in storage.context.sums and not s.warps:
        return []
    j = Var("j", 0, total.size - 1)
    zero = Compute("copy", Reg(total, j), (Imm(0.0, total.dtype),))
    return [For(j, total.size, (zero,), unroll=True)]


def _again(storage: Storage, s: Stage, values: tuple[Expr, ...]) -> Cond:
    """Whether the accumulators hold a sum already: at every trip but the first of its loops."""
    serial = [
        values[i]
        for i in reduced_loops(storage.graph, s)
        if s.loops[i].parallel.is_serial and isinstance(values[i], Var)
    ]
    return any_of(less(0, v) for v in serial) if serial else FALSE


def _matrix(
    storage: Storage,
    seen: View,
    position: int,
    here: Mapping[Var, IntLike],
    group: Var,
    team: _Team,
) -> Matrix:
    """Operand `position` of an instruction: where its rows of m or n, and columns of k, begin."""
    product = seen.stage
    p = product.operands[position]
    if not p.boxed:
        raise ScheduleError(
            f"{product.name} multiplies {p.name}, which lies in no swizzled tile; make it with "
            "cache_after(by='bulk') and bind its last two loops to Bulk"
        )
    box = storage.box(p)
    read = operand(storage.graph, seen, position)
    at: list[Expr] = []
    for i in box.loops:
        value = class_value(storage.graph, seen, read, p.loops[i].axis)
        if value is None:
            raise ScheduleError(
                f"{product.name} needs {p.name} at a place that its loops do not determine; give "
                "both the same tiles"
            )
        first = substitute(value, here)
        at.append(substitute(first, {group: team.number(WARPGROUP_SIZE)}))
    deep = storage.graph.depends(p.loops[box.loops[1]].axis, product.frame.reduced)
    major = Major.K if deep else Major.MN
    strange = [v for e in at for v in variables(e) if v is not team.outer]
    if strange:
        raise ScheduleError(
            f"{product.name} reads {p.name} at {', '.join(map(str, at))}: the tile does not begin "
            "where the instruction's does; give both the same tiles"
        )
    return Matrix(major, storage.context.buffers[p], box.tile.index(*at))
