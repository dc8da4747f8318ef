"""Blocks of an array at positions: read, and put in place of what was there.

A position is an integer, an expression in sizes, numbers of the call and indices of loops, which
the host knows, or an integer array of rank 0, which only the device knows: nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from fusewright.core.expr import (
    ZERO,
    Expr,
    IntLike,
    add,
    as_expr,
    constant_value,
    mul,
    parts_of,
)
from fusewright.dtypes import bool_, int64
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array, as_operand, as_tensor, check_array
from fusewright.fusion.call_numbers import is_at_least
from fusewright.fusion.ir import Insert, Position, Scalar, Shape, Tensor, positions
from fusewright.fusion.operands import check_scalar
from fusewright.fusion.ops.elementwise import clip, where
from fusewright.fusion.ops.gather import take
from fusewright.fusion.positions import expression_of, sum_on_device

Start: TypeAlias = "IntLike | Array"
"""A position along one axis."""


def slice(
    x: Array, start: Start | tuple[Start, ...], sizes: IntLike | tuple[IntLike, ...], /
) -> Array:
    """The block of `sizes` elements of x from `start` on, one entry of each an axis. At a start
    that is an array, which only the device knows, the block begins at the nearest place where it
    fits; at any other it must fit, which each call checks where a number of the call decides.

    Raises UserError for a block that is not known to lie inside x.
    """
    x = check_array("slice", x)
    given = start if isinstance(start, tuple) else (start,)
    block = build.extents("slice", "sizes", sizes)
    if len(given) != x.ndim or len(block) != x.ndim:
        raise UserError(
            f"slice: {len(given)} starts and {len(block)} sizes for an array of rank {x.ndim}: "
            "give one of each for every axis"
        )
    starts = _starts("slice", given, block, x.tensor.shape)
    out = Array(_box(x.tensor, starts, block))
    for axis, s in enumerate(starts):
        if isinstance(s, Array):
            s = _inside(s, add(x.tensor.shape[axis], mul(block[axis], -1)))
            out = take(out, s + Array(build.iota((block[axis],), 0)), axis=axis)
    return out


def insert(dest: Array, value: Array | Scalar, start: Start | tuple[Start, ...], /) -> Array:
    """dest with the block `value` in place of its elements from `start` on. `value` has dest's
    rank and is cast to its dtype; `start` has one entry per axis. Functional: dest is copied, but
    where its memory is donated (`fw.fuse(donate=)`, `fw.compile(donate=)`) or passed as `out=`.

    A start that depends on a number of the call (`fw.Sym`, `dynamic=`) is checked at every call.
    One that is an array, which only the device knows, puts the block at the nearest place where it
    fits; also then, only the block is written where dest may be written over. Raises UserError when
    the block is not known to lie inside dest.
    """
    dest = check_array("insert", dest)
    block = as_operand("insert", value)
    if not isinstance(block, Array):
        check_scalar("insert", block, dest.dtype)
    t = as_tensor(block, dest.dtype)
    given = start if isinstance(start, tuple) else (start,)
    if t.ndim != dest.ndim or len(given) != dest.ndim:
        raise UserError(
            f"insert: a block of rank {t.ndim} at {len(given)} starts in an array of rank "
            f"{dest.ndim}: all three must be equal; add axes with fw.expand_dims"
        )
    starts = _starts("insert", given, t.shape, dest.tensor.shape)
    where_found: dict[Tensor, None] = {}
    at = tuple(s if isinstance(s, Expr) else sum_on_device(s.tensor, where_found) for s in starts)
    if not where_found:
        return Array(_inserted(dest.tensor, t, list(at), 0))
    operands = (dest.tensor, t, *where_found)
    return Array(build.value(dest.tensor.shape, dest.dtype, Insert(operands, at)))


def _starts(op: str, given: Sequence[object], block: Shape, shape: Shape) -> list[Expr | Array]:
    """Where a block of a shape begins in another one, by axis: what the host knows as a number,
    else an array. Raises UserError where it may not fit."""
    out: list[Expr | Array] = []
    for axis, (start, m, n) in enumerate(zip(given, block, shape, strict=True)):
        moving = _on_device(op, start)
        at = ZERO if moving is not None else build.extent(op, "start", start)
        rule = f"{op}: axis {axis}: {m} elements from {at} on must fit size {n}"
        if not is_at_least(0, at, rule) or not is_at_least(add(at, m), n, rule):
            raise UserError(
                f"{op}: axis {axis}: {m} elements from {at} on may not fit size {n}; the whole "
                "block must lie inside the array; crop it with fw.pad first"
            )
        out.append(at if moving is None else moving)
    return out


def _on_device(op: str, start: object) -> Array | None:
    """A start that the host does not know. Raises UserError for an array that is no integer."""
    if not isinstance(start, Array) or expression_of(start.tensor) is not None:
        return None
    if start.ndim or not start.dtype.is_integer:
        raise UserError(
            f"{op}: start is {start.dtype}{build.shape_text(start.tensor.shape)}; a position is an "
            "integer, or an integer array of rank 0"
        )
    return start if start.dtype.name == "int64" else Array(build.cast(start.tensor, int64))


def _inside(start: Array, last: Expr) -> Array:
    return clip(start, Array(build.size(0, int64)), Array(build.size(last, int64)))


def _box(t: Tensor, starts: Sequence[Expr | Array], block: Shape) -> Tensor:
    """The elements of a block along the axes on which it begins at a known place, and all along
    others."""
    low: list[IntLike] = []
    high: list[IntLike] = []
    for s, m, n in zip(starts, block, t.shape, strict=True):
        is_known = isinstance(s, Expr)
        low.append(mul(s, -1) if is_known else 0)
        high.append(add(s, m, mul(n, -1)) if is_known else 0)
    return build.resize(t, low, high, 0)


def chosen_by_element(op: Insert) -> Tensor:
    """What an insertion makes where all of it is written: a choice for each element along the axes
    on which only the device knows where the block begins."""
    dest, block = op.operands[:2]
    starts = [
        _inside(s, add(n, mul(m, -1))) if isinstance(s, Array) else s
        for s, n, m in zip(starts_of(op), dest.shape, block.shape, strict=True)
    ]
    known = [ZERO if isinstance(s, Array) else s for s in starts]
    return _inserted(dest, _chosen(dest, block, starts), known, 0)


def starts_of(op: Insert) -> list[Expr | Array]:
    """Where the block of an insertion shall begin along each axis."""
    where_found = op.operands[2:]
    at = dict(zip(positions(len(where_found)), where_found, strict=True))
    return [_summed(e, at) if k in op.moving else e for k, e in enumerate(op.start)]


def _summed(e: Expr, at: Mapping[Position, Tensor]) -> Array:
    """A sum of numbers on the device and of what the host knows."""
    rest, out = e, Array(build.size(0, int64))
    for term in parts_of(e)[1]:
        (atom,) = term.atoms if len(term.atoms) == 1 else (None,)
        if isinstance(atom, Position):
            out = out + Array(build.cast(at[atom], int64)) * term.coefficient
            rest = add(rest, mul(atom, -term.coefficient))
    return out + Array(build.size(rest, int64))


def _chosen(dest: Tensor, block: Tensor, starts: Sequence[Expr | Array]) -> Tensor:
    """The part of `dest` that holds the block wherever the device wants it, with the block there.

    rewrite:  insert(dest[n, 4], block[m, 4], (s, 0))
              -> where(s <= i < s + m, block[clip(i - s, 0, m - 1)], dest)      for rows i of dest
    """
    around = Array(_box(dest, starts, block.shape))
    spread, inside = Array(block), Array(build.constant(True, bool_))
    for axis, s in enumerate(starts):
        if not isinstance(s, Array):
            continue
        m = block.shape[axis]
        at = Array(build.iota((dest.shape[axis],), 0)) - s
        here = (at >= 0) & (at < Array(build.size(m, int64)))
        inside = inside & Array(build.along(here.tensor, around.tensor.shape, axis))
        if constant_value(m) != 1:
            last = Array(build.size(add(m, -1), int64))
            spread = take(spread, clip(at, Array(build.size(0, int64)), last), axis=axis)
    return where(inside, spread, around).tensor


def _inserted(dest: Tensor, block: Tensor, starts: list[Expr], axis: int) -> Tensor:
    """The parts of `dest` before and after the block along `axis`, around what lies between."""
    if axis == dest.ndim:
        return block
    start, extent = starts[axis], block.shape[axis]
    end = add(start, extent)
    middle = _inserted(_cut(dest, axis, start, end), block, starts, axis + 1)
    parts = (
        _cut(dest, axis, as_expr(0), start),
        middle,
        _cut(dest, axis, end, dest.shape[axis]),
    )
    filled = [p for p in parts if constant_value(p.shape[axis]) != 0]
    return build.concat(filled, axis) if filled else middle


def _cut(t: Tensor, axis: int, start: Expr, end: Expr) -> Tensor:
    low = [mul(start, -1) if k == axis else as_expr(0) for k in range(t.ndim)]
    high = [add(end, mul(n, -1)) if k == axis else as_expr(0) for k, n in enumerate(t.shape)]
    return build.resize(t, low, high, 0)
