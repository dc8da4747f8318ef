"""Adjoints of the operations of a fusion: moves go back, sums are spread, products transposed."""

from __future__ import annotations

from fusewright.core.expr import Expr, Int, add, mul
from fusewright.errors import UnsupportedError, UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array
from fusewright.fusion.ir import (
    Broadcast,
    Concat,
    IndexMap,
    Insert,
    MatMul,
    OwnKernel,
    Permute,
    Pointwise,
    Reduce,
    Reshape,
    Resize,
    Scan,
    Take,
    TakeAlong,
    Tensor,
)
from fusewright.fusion.ops import (
    arange,
    astype,
    equal,
    expand_dims,
    matmul,
    matrix_transpose,
    reshape,
    sum,
    where,
    zeros_like,
)
from fusewright.fusion.ops.blocks import slice, starts_of
from fusewright.fusion.ops.gather import signed_indices
from fusewright.fusion.transforms.index_adjoints import index_map_adjoint
from fusewright.fusion.transforms.pointwise_adjoints import adjoint_of
from fusewright.fusion.transforms.scan_adjoints import Cotangents, scan_adjoint, sums_along


def adjoint(t: Tensor, g: Array, cotangents: Cotangents) -> tuple[Array | None, ...]:
    """The cotangents of the operands of `t`, from its own; None for operands to which none flows.
    `cotangents` differentiates a rule that has a simpler form to derive from.

    Raises UnsupportedError for an operation without a rule.
    """
    operands = [Array(o) for o in t.op.operands]
    match t.op:
        case Pointwise():
            rule = adjoint_of(t.op.fn)
            if rule is None:
                raise UnsupportedError(
                    f"grad: {t.op.fn} has no derivative here; keep it out of what is "
                    "differentiated with fw.stop_gradient, or give a rule with fw.custom_vjp"
                )
            return rule(g, Array(t), *operands)
        case Broadcast():
            return (_gathered(t.op, g),)
        case Permute():
            inverse = tuple(t.op.axes.index(k) for k in range(t.ndim))
            return (Array(build.permute(g.tensor, inverse)),)
        case Reshape():
            return (reshape(g, operands[0].shape),)
        case Resize():
            low, high = ([mul(-1, e) for e in side] for side in (t.op.low, t.op.high))
            return (Array(build.resize(g.tensor, low, high, 0.0)),)
        case IndexMap():
            return (index_map_adjoint(t, g),)
        case Concat():
            return _pieces(t, g)
        case Insert():
            return _inserted(t.op, g)
        case Reduce():
            return (_reduction(t, t.op, g),)
        case Scan():
            return (scan_adjoint(t, t.op, g, cotangents),)
        case Take():
            return _taken(t.op, g), None
        case TakeAlong():
            x, indices = operands
            at = _rows(indices, x.tensor.shape[t.op.axis])
            return sums_along(at, g, x.tensor.shape[t.op.axis], t.op.axis), None
        case MatMul():
            return _product(t.op, g)
        case OwnKernel(fn=fn):
            raise UserError(
                f"{t.name}: {fn} is a kernel of the program's own, which has no derivative; give "
                "it one with fw.custom_vjp"
            )
        case _:
            return tuple(None for _ in operands)


def _inserted(op: Insert, g: Array) -> tuple[Array | None, ...]:
    """The cotangent without the block belongs to the array, the block of it to what is inserted."""
    block = op.operands[1]
    zeros = build.full(block.shape, 0.0, g.dtype)
    without = Insert((g.tensor, zeros, *op.operands[2:]), op.start)
    of_dest = Array(build.value(g.tensor.shape, g.dtype, without))
    return of_dest, slice(g, tuple(starts_of(op)), block.shape), *(None for _ in op.operands[2:])


def _gathered(op: Broadcast, g: Array) -> Array:
    """The sum over what was repeated."""
    (x,) = op.operands
    new = tuple(j for j, a in enumerate(op.axes) if a is None)
    stays = [a for a in op.axes if a is not None]
    out = sum(g, axis=new, dtype=g.dtype) if new else g
    repeated = tuple(
        k
        for k, a in enumerate(stays)
        if build.is_one(x.shape[a]) and not build.is_one(out.shape[k])
    )
    return sum(out, axis=repeated, dtype=g.dtype, keepdims=True) if repeated else out


def _pieces(t: Tensor, g: Array) -> tuple[Array, ...]:
    """The part of the cotangent that belongs to each operand of a concatenation."""
    assert isinstance(t.op, Concat)
    axis, out = t.op.axis, list[Array]()
    start: Expr = Int(0)
    for o in t.op.operands:
        end = add(start, o.shape[axis])
        low: list[Expr] = [Int(0)] * t.ndim
        high = list(low)
        low[axis], high[axis] = mul(-1, start), add(end, mul(-1, t.shape[axis]))
        out.append(Array(build.resize(g.tensor, low, high, 0.0)))
        start = end
    return tuple(out)


def _reduction(t: Tensor, op: Reduce, g: Array) -> Array | None:
    x = Array(op.operands[0])
    back, result = expand_dims(g, op.axes), expand_dims(Array(t), op.axes)
    match op.fn:
        case "add":
            return Array(build.spread(back.tensor, x.tensor.shape))
        case "max" | "min":
            hit = equal(x, result)
            count = sum(astype(hit, g.dtype), axis=op.axes, keepdims=True, dtype=g.dtype)
            return where(hit, back / count, zeros_like(x))
        case "mul":
            return _others(x, op.axes) * back
        case _:
            return None


def _others(x: Array, axes: tuple[int, ...]) -> Array:
    """For each element the product of all others along the axes: of those before it and of those
    behind it, so that zeros need no division."""
    order = (*(k for k in range(x.ndim) if k not in axes), *axes)
    moved = build.permute(x.tensor, order)
    kept = moved.shape[: x.ndim - len(axes)]
    count = build.element_count(moved.shape[len(kept) :])
    row = build.reshape("grad", moved, (*kept, count))
    last = len(kept)
    before = Array(build.scan("mul", row, last, exclusive=True))
    behind = Array(build.scan("mul", row, last, exclusive=True, reverse=True))
    back = build.reshape("grad", (before * behind).tensor, moved.shape)
    return Array(build.permute(back, tuple(order.index(k) for k in range(x.ndim))))


def _rows(indices: Array, extent: Expr) -> Array:
    """Indices counted from the front."""
    at = signed_indices(indices)
    return where(at < 0, at + Array(build.size(extent, at.dtype)), at)


def _taken(op: Take, g: Array) -> Array:
    """For every place along the axis the sum of what was taken from there, in a fixed order."""
    x, indices = op.operands
    count, rank = x.shape[op.axis], indices.ndim
    at = _rows(Array(indices), count)
    places = arange(count, dtype=at.dtype)
    for _ in range(rank):
        places = expand_dims(places, places.ndim)
    hit = equal(places, expand_dims(at, 0))  # (count, indices..)
    for _ in range(op.axis):
        hit = expand_dims(hit, 0)
    for _ in range(x.ndim - op.axis - 1):
        hit = expand_dims(hit, hit.ndim)
    spread = expand_dims(g, op.axis)
    axes = tuple(range(op.axis + 1, op.axis + 1 + rank))
    return sum(where(hit, spread, zeros_like(spread)), axis=axes, dtype=g.dtype)


def _product(op: MatMul, g: Array) -> tuple[Array, Array]:
    """Of a @ b: g @ b.T and a.T @ g. Cotangents of 16-bit operands are rounded to them first, as
    the products of the forward direction read 16 bits too."""
    a, b = (Array(o) for o in op.operands)
    g = astype(g, a.dtype)
    return matmul(g, matrix_transpose(b)), matmul(matrix_transpose(a), g)
