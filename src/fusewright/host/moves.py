"""Kernels that copy and fill boxes: what is left of a joined value when its pieces are placed.

One launch moves all parts. Every part is a flat loop over its vectors, run by the threads of the
grid side by side; the grid is as large as the largest part asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.core.atoms import maximum
from fusewright.core.conditions import less
from fusewright.core.expr import (
    ONE,
    ZERO,
    Expr,
    Var,
    add,
    as_expr,
    ceildiv,
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

THREADS = 128


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
class _Dim:
    """One loop of a part: trips, and steps in the target and the source, in elements."""

    extent: Expr
    steps: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class MoveLoop:
    """A part as loops over vectors of `width` elements, the slow one first."""

    dims: tuple[_Dim, ...]
    width: int

    @property
    def vectors(self) -> Expr:
        """How many vectors it has."""
        out: Expr = ONE
        for d in self.dims:
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


def move_kernel(moves: Moves, name: str) -> Kernel:
    """The kernel of some moves: parameters are their sources, then their targets, in order."""
    loops = [loop_of(m) for m in moves.moves]
    threads = loops[0].vectors
    for x in loops[1:]:
        threads = maximum(threads, x.vectors)
    blocks = ceildiv(threads, THREADS)
    bx, tx = Var("bx", 0, add(blocks, -1)), Var("tx", 0, THREADS - 1)
    targets, arguments, values = move_parameters(moves)
    body: list[Statement] = []
    for k, x in enumerate(loops):
        body += moved_by(k, x, targets[k], values[k], add(mul(bx, THREADS), tx))
    return Kernel(
        name=name,
        params=(*(v for v in values if isinstance(v, Buffer)), *targets),
        arguments=tuple(arguments),
        symbols=move_symbols(moves),
        grid=_dims(bx, "by", "bz", blocks),
        block=_dims(tx, "ty", "tz", as_expr(THREADS)),
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
    k: int, x: MoveLoop, target: Buffer, value: Operand | Buffer, i: Expr
) -> list[Statement]:
    """One part: a thread moves vector `i`, if there is one of that number."""
    held = Buffer(f"v{k}", target.dtype, as_expr(x.width), Memory.LOCAL, VECTOR_ALIGNMENT)
    inside = less(i, x.vectors)
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
    dims: list[_Dim] = []
    for a, extent in enumerate(m.target.shape):
        d = _Dim(extent, tuple(s.strides[a] for s in sites))
        if extent == ONE:
            continue
        if dims and dims[-1].steps == tuple(mul(step, extent) for step in d.steps):
            d = _Dim(mul(dims.pop().extent, extent), d.steps)
        dims.append(d)
    if not dims:
        return MoveLoop((_Dim(ONE, (ZERO,) * len(sites)),), 1)
    width = _width(dims, sites)
    inner = dims.pop()
    vectors = floordiv(inner.extent, width)
    dims.append(_Dim(vectors, tuple(mul(step, width) for step in inner.steps)))
    return MoveLoop(tuple(dims), width)


def _width(dims: Sequence[_Dim], sites: Sequence[Subspan]) -> int:
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
