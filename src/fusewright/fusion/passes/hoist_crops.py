"""Crops are taken of values, not of views of them."""

from __future__ import annotations

from fusewright.core.expr import ONE, ZERO, Expr, add, mul
from fusewright.fusion.build import iota, pointwise, resize, size, spread, value
from fusewright.fusion.ir import (
    Broadcast,
    Fusion,
    Iota,
    Permute,
    Pointwise,
    Reshape,
    Resize,
    Shape,
    Take,
    TakeAlong,
    Tensor,
    with_operands,
)
from fusewright.fusion.passes.fold_crops import is_crop
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.rematerialisable import is_rematerialisable

Edges = tuple[tuple[Expr, Expr], ...]
"""Per axis what a crop takes off at the low and the high end, as negative amounts."""
WHOLE = (ZERO, ZERO)


def hoist_crops(fusion: Fusion) -> Fusion:
    """Moves crops above the permutations, broadcasts and reshapes that they look through, and above
    gathers of which nothing but parts is read. A crop of coordinates is coordinates.

    rewrite:  x.T[a:b]  ->  x[:, a:b].T;   arange(n)[a:b]  ->  arange(b - a) + a
              take(x, i, axis=0)[a:b, c:d]  ->  take(x[:, c:d], i[a:b], axis=0)
    checks:   through a reshape only where what is left of the operand is a box of it
    order:    before `fold_crops`, so that crops on both sides of a view are one; a kernel then
              sees how little of a value it reads
    """

    uses, outputs = fusion.uses(), set(fusion.outputs)

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not is_crop(t):
            return None
        (seen,) = t.op.operands
        if not isinstance(seen.op, Take | TakeAlong) or not isinstance(
            operands[0].op, type(seen.op)
        ):
            return _hoisted(t, operands[0])
        is_read_in_parts = seen not in outputs and all(is_crop(u) for u in uses[seen])
        return _gathered(t, operands[0]) if is_read_in_parts else None

    return rebuild(fusion, replace)


def _gathered(t: Tensor, seen: Tensor) -> Tensor:
    """The crop `t` of a gather as a gather at the indices that are left, from the part of the
    data that these can reach."""
    op = t.op
    assert isinstance(op, Resize) and isinstance(seen.op, Take | TakeAlong)
    data, indices = seen.op.operands
    edges = tuple(zip(op.low, op.high, strict=True))
    axis = seen.op.axis
    if isinstance(seen.op, TakeAlong):
        kept, around = edges, (edges[:axis], edges[axis + 1 :])
    else:
        behind = axis + indices.ndim
        kept, around = edges[axis:behind], (edges[:axis], edges[behind:])
    left = _part(data, (*around[0], WHOLE, *around[1])), _part(indices, kept)
    return Tensor("", t.shape, t.dtype, with_operands(seen.op, left))


def _part(t: Tensor, edges: Edges) -> Tensor:
    """What is left of a value; the value itself where that is all of it."""
    if all(e == WHOLE for e in edges):
        return t
    part = resize(t, [a for a, _ in edges], [b for _, b in edges], t.dtype.numpy.type(0).item())
    return _hoisted(part, t) or part


def _hoisted(t: Tensor, seen: Tensor) -> Tensor | None:
    """The crop `t` of the view `seen` as a view of a crop; None where it stays."""
    assert isinstance(t.op, Resize)
    if isinstance(seen.op, Iota):
        return _coordinates(t, seen.op.axis, t.op.low)
    if isinstance(seen.op, Pointwise) and is_rematerialisable(seen):
        return value(t.shape, t.dtype, with_operands(seen.op, _crops(t.op, t.shape, seen.op)))
    edges = tuple(zip(t.op.low, t.op.high, strict=True))
    inner = edges_of_operand(seen, edges)
    if inner is None:
        return None
    source = seen.op.operands[0]
    low, high = tuple(a for a, _ in inner), tuple(b for _, b in inner)
    shape = tuple(add(n, *e) for n, e in zip(source.shape, inner, strict=True))
    part = Tensor("", shape, t.dtype, Resize((source,), low, high, t.op.fill))
    part = source if all(e == WHOLE for e in inner) else _hoisted(part, source) or part
    match seen.op:
        case Permute():
            op = Permute((part,), seen.op.axes)
        case Broadcast():
            op = Broadcast((part,), seen.op.axes)
        case _:
            op = Reshape((part,))
    return Tensor("", t.shape, t.dtype, op)


def _coordinates(t: Tensor, axis: int, low: tuple[Expr, ...]) -> Tensor:
    """The coordinates that a crop leaves along an axis."""
    kept = iota(t.shape, axis, t.dtype)
    if low[axis] == ZERO:
        return kept
    return pointwise("add", kept, spread(size(mul(low[axis], -1), t.dtype), t.shape))


def _crops(crop: Resize, shape: Shape, seen: Pointwise) -> tuple[Tensor, ...]:
    """The crops of the operands instead of one of the result."""
    out: list[Tensor] = []
    for o in seen.operands:
        fill = o.dtype.numpy.type(0).item()
        part = value(shape, o.dtype, Resize((o,), crop.low, crop.high, fill))
        out.append(_hoisted(part, o) or part)
    return tuple(out)


def edges_of_operand(seen: Tensor, edges: Edges) -> Edges | None:
    """What to take off the operand of a view instead; None where no box of it would do."""
    match seen.op:
        case Permute():
            return tuple(edges[seen.op.axes.index(a)] for a in range(seen.ndim))
        case Broadcast():
            source = seen.op.operands[0]
            known = zip(seen.op.axes, edges, strict=True)
            by_axis = {a: e for a, e in known if a is not None and source.shape[a] != ONE}
            return tuple(by_axis.get(a, WHOLE) for a in range(source.ndim))
        case Reshape():
            return _before_reshape(seen.op.operands[0].shape, seen.shape, edges)
        case _:
            return None


def _before_reshape(old: Shape, new: Shape, edges: Edges) -> Edges | None:
    """The edges on the axes from before a reshape that only splits axes, and adds or drops axes of
    size one."""
    out: list[tuple[Expr, Expr]] = []
    at = iter(range(len(new)))
    for n in old:
        if n == ONE:
            out.append(WHOLE)
            continue
        group: list[int] = []
        size: Expr = ONE
        while size != n:
            j = next(at, None)
            if j is None:
                return None
            group.append(j)
            size = mul(size, new[j])
        found = _of_split(new, edges, group)
        if found is None:
            return None
        out.append(found)
    return tuple(out) if all(new[j] == ONE for j in at) else None


def _of_split(new: Shape, edges: Edges, group: list[int]) -> tuple[Expr, Expr] | None:
    """The edges on an axis that was split into a group of axes, outer first: a run of it is left
    where every axis outside of the cropped one has a single index."""
    start, inner, extent = ZERO, ONE, ONE
    for j in reversed(group):
        low, high = edges[j]
        kept = add(new[j], low, high)
        if kept != ONE and extent != inner:
            return None
        start = add(start, mul(low, inner))
        extent = mul(extent, kept)
        inner = mul(inner, new[j])
    return start, add(extent, mul(start, -1), mul(inner, -1))
