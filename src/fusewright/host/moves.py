"""Kernels that copy and fill boxes: what is left of a joined value when its pieces are placed.

One launch moves all parts. Every part is a flat loop over its vectors, run by the threads of the
grid side by side; the grid is as large as the largest part asks for. Parts of the same rows go in
step: a block moves all of them in the rows that it has, so that the lines in which they meet are
written as a whole, and not a second time when they are read and merged.

    rows of 5, 8 and 16 elements, 8 rows a block:   threads   0..39 | 0..63 | 0..127
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.core.atoms import maximum
from fusewright.core.conditions import TRUE, Cond, all_of, less
from fusewright.core.expr import (
    ONE,
    ZERO,
    Expr,
    Var,
    add,
    as_expr,
    ceildiv,
    constant_value,
    floordiv,
    is_multiple,
    mod,
    mul,
    variables,
)
from fusewright.fusion.ir import Scalar
from fusewright.fusion.literals import is_parameter
from fusewright.host.subspans import VECTOR_ALIGNMENT, Subspan
from fusewright.kir.ir import (
    Alloc,
    Arg,
    Argument,
    Buffer,
    Compute,
    Dim,
    Imm,
    Kernel,
    Load,
    Memory,
    Operand,
    Reg,
    Statement,
    Store,
)
from fusewright.target import MAX_THREADS_PER_BLOCK, WARP_SIZE

THREADS = 128
UNDER_WAY = 4
"""Loads of a thread in front of the first store: of 16 bytes each, a kernel of full multiprocessors
has more bytes under way than memory takes (40 KB on an H200, bandwidth times latency)."""


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """A part of a joined value that no kernel computes: copied from a site, or a scalar."""

    target: Subspan
    source: Subspan | Scalar

    @property
    def is_copy(self) -> bool:
        return isinstance(self.source, Subspan)


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """What one launch copies and fills."""

    moves: tuple[Move, ...]

    @property
    def reads(self) -> tuple[Subspan, ...]:
        """The sites behind the kernel's inputs."""
        return tuple(m.source for m in self.moves if isinstance(m.source, Subspan))

    @property
    def writes(self) -> tuple[Subspan, ...]:
        """The sites behind the kernel's outputs."""
        return tuple(m.target for m in self.moves)

    @property
    def values(self) -> tuple[Scalar, ...]:
        """The values of the kernel's scalar parameters."""
        return tuple(
            m.source
            for m in self.moves
            if not isinstance(m.source, Subspan) and is_parameter(m.source)
        )

    @property
    def structure(self) -> object:
        """Equal for moves that one kernel serves."""
        return ("moves", *map(_structure, self.moves))


def _structure(m: Move) -> object:
    t = m.target
    if isinstance(m.source, Subspan):
        source: object = (m.source.strides, m.source.alignment)
    else:
        source = None if is_parameter(m.source) else (type(m.source).__name__, repr(m.source))
    return (t.shape, t.tensor.dtype, t.strides, t.alignment, source)


# --- the kernel ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MoveDim:
    """One loop of a part: trips, and steps in the target and the source, in elements."""

    extent: Expr
    steps: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class MoveLoop:
    """A part as loops over vectors of `width` elements, the slow one first."""

    dims: tuple[MoveDim, ...]
    width: int

    @property
    def vectors(self) -> Expr:
        """How many vectors it has."""
        out: Expr = ONE
        for d in self.dims:
            out = mul(out, d.extent)
        return out

    @property
    def of_row(self) -> Expr:
        """How many of them lie in each step of the slow loop."""
        out: Expr = ONE
        for d in self.dims[1:]:
            out = mul(out, d.extent)
        return out

    def places(self, i: Expr) -> tuple[Expr, ...]:
        """The first elements of vector `i` in the target and the source."""
        out = [ZERO] * len(self.dims[0].steps)
        for d in reversed(self.dims):
            at = i if d is self.dims[0] else mod(i, d.extent)
            out = [add(e, mul(at, step)) for e, step in zip(out, d.steps, strict=True)]
            i = floordiv(i, d.extent)
        return tuple(out)


@dataclass(frozen=True, slots=True)
class MoveGrid:
    """How blocks share out the parts of a launch: each block has `threads`, and of every part so
    many vectors in the order of the part (`spans`), one a thread."""

    loops: tuple[MoveLoop, ...]
    spans: tuple[Expr, ...]
    threads: int
    is_in_step: bool

    @property
    def blocks(self) -> Expr:
        """As many as the largest part asks for."""
        counts = [ceildiv(x.vectors, n) for x, n in zip(self.loops, self.spans, strict=True)]
        out = counts[0]
        for n in counts[1:]:
            out = maximum(out, n)
        return out


def grid_of(moves: Moves) -> MoveGrid:
    """The rows of a block where all parts are in the same rows of memory, of which a block has one
    at least; else as many vectors of each part as it has threads."""
    loops = tuple(loop_of(m) for m in moves.moves)
    rows = {(x.dims[0].extent, x.dims[0].steps[0]) for x in loops}
    roots = {m.target.root for m in moves.moves}
    in_rows = [constant_value(x.of_row) for x in loops]
    most = max(n or MAX_THREADS_PER_BLOCK + 1 for n in in_rows)
    is_alone = len(loops) == 1 or max(len(rows), len(roots)) > 1
    if is_alone or most > MAX_THREADS_PER_BLOCK:
        return MoveGrid(loops, (as_expr(THREADS),) * len(loops), THREADS, False)
    own = max(1, THREADS // most)
    threads = -(-own * most // WARP_SIZE) * WARP_SIZE
    return MoveGrid(loops, tuple(mul(x.of_row, own) for x in loops), threads, True)


def move_kernel(moves: Moves, name: str) -> Kernel:
    """The kernel of some moves: parameters are their sources, then their targets, in order."""
    grid = grid_of(moves)
    blocks = grid.blocks
    bx, tx = Var("bx", 0, add(blocks, -1)), Var("tx", 0, grid.threads - 1)
    targets, arguments, values = move_parameters(moves)
    loads: list[Statement] = []
    stores: list[Statement] = []
    body: list[Statement] = []
    for k, (x, span) in enumerate(zip(grid.loops, grid.spans, strict=True)):
        *before, store = moved_by(
            k, x, targets[k], values[k], add(mul(bx, span), tx), less(tx, span)
        )
        loads += before
        stores.append(store)
        if len(stores) == UNDER_WAY or x is grid.loops[-1]:
            body += [*loads, *stores]
            loads, stores = [], []
    return Kernel(
        name=name,
        params=(*(v for v in values if isinstance(v, Buffer)), *targets),
        arguments=tuple(arguments),
        symbols=move_symbols(moves),
        grid=_dims(bx, "by", "bz", blocks),
        block=_dims(tx, "ty", "tz", as_expr(grid.threads)),
        body=tuple(body),
    )


def move_parameters(moves: Moves) -> tuple[list[Buffer], list[Argument], list[Operand | Buffer]]:
    """The targets of moves, their scalar parameters, and what each of them moves."""
    targets: list[Buffer] = []
    arguments: list[Argument] = []
    values: list[Operand | Buffer] = []
    for k, m in enumerate(moves.moves):
        targets.append(_parameter(f"to{k}", m.target))
        if isinstance(m.source, Subspan):
            values.append(_parameter(f"from{k}", m.source))
        elif is_parameter(m.source):
            arguments.append(Argument(f"fill{k}", m.target.tensor.dtype.compute))
            values.append(Arg(arguments[-1]))
        else:
            values.append(Imm(m.source, m.target.tensor.dtype.compute))
    return targets, arguments, values


def moved_by(
    k: int, x: MoveLoop, target: Buffer, value: Operand | Buffer, i: Expr, own: Cond = TRUE
) -> list[Statement]:
    """One part: a thread moves vector `i`, if there is one of that number and it is its `own`. The
    store comes last."""
    held = Buffer(f"v{k}", target.dtype, as_expr(x.width), Memory.LOCAL, VECTOR_ALIGNMENT)
    inside = all_of((own, less(i, x.vectors)))
    places = x.places(i)
    first = Reg(held, ZERO)
    out: list[Statement] = [Alloc(held)]
    if isinstance(value, Buffer):
        out.append(Load(first, value, places[1], x.width, inside))
    else:
        fn = "copy" if target.dtype is target.dtype.compute else "cast"
        out += [Compute(fn, Reg(held, as_expr(j)), (value,)) for j in range(x.width)]
    return [*out, Store(target, places[0], first, x.width, inside)]


def loop_of(m: Move) -> MoveLoop:
    """The loops of a part: axes that both sides run through without a gap are one."""
    sites = (m.target, m.source) if isinstance(m.source, Subspan) else (m.target,)
    dims: list[MoveDim] = []
    for a, extent in enumerate(m.target.shape):
        d = MoveDim(extent, tuple(s.strides[a] for s in sites))
        if extent == ONE:
            continue
        if dims and dims[-1].steps == tuple(mul(step, extent) for step in d.steps):
            d = MoveDim(mul(dims.pop().extent, extent), d.steps)
        dims.append(d)
    if not dims:
        return MoveLoop((MoveDim(ONE, (ZERO,) * len(sites)),), 1)
    width = _width(dims, sites)
    inner = dims.pop()
    vectors = floordiv(inner.extent, width)
    dims.append(MoveDim(vectors, tuple(mul(step, width) for step in inner.steps)))
    return MoveLoop(tuple(dims), width)


def _width(dims: Sequence[MoveDim], sites: Sequence[Subspan]) -> int:
    """Elements of the widest vector that every address of all sides takes."""
    width = VECTOR_ALIGNMENT // sites[0].tensor.dtype.nbytes
    nbytes = min(min(s.alignment for s in sites), VECTOR_ALIGNMENT)
    if any(step != ONE for step in dims[-1].steps):
        return 1
    while width > 1:
        outer = all(is_multiple(step, width) for d in dims[:-1] for step in d.steps)
        fits = width * sites[0].tensor.dtype.nbytes <= nbytes
        if outer and fits and is_multiple(dims[-1].extent, width):
            break
        width //= 2
    return max(width, 1)


def _parameter(name: str, site: Subspan) -> Buffer:
    dtype = site.tensor.dtype
    alignment = max(site.alignment, dtype.nbytes)
    return Buffer(name, dtype, site.span, Memory.GLOBAL, alignment)


def _dims(first: Var, second: str, third: str, extent: Expr) -> tuple[Dim, Dim, Dim]:
    return Dim(first, extent), Dim(Var(second, 0, 0), ONE), Dim(Var(third, 0, 0), ONE)


def move_symbols(moves: Moves) -> tuple[Var, ...]:
    """The symbols of all sizes and strides, in order of appearance."""
    sites = [*moves.reads, *moves.writes]
    return tuple(
        dict.fromkeys(v for s in sites for e in (*s.shape, *s.strides) for v in variables(e))
    )
