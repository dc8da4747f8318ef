"""Views, joins, pads, slices and gathers of aten."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright import dtypes
from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import (
    ZERO,
    Expr,
    IntLike,
    add,
    as_expr,
    constant_value,
    floordiv,
    mod,
    mul,
    variables,
)
from fusewright.errors import UnsupportedError
from fusewright.frontends.torch.library import aten, prims
from fusewright.frontends.torch.promotion import Operand, cast_to
from fusewright.frontends.torch.table import Dtypes, lowers, lowers_view
from fusewright.fusion import build, ops
from fusewright.fusion.array import Array
from fusewright.fusion.ir import Concat, Input, Pointwise, Resize, Tensor
from fusewright.fusion.ops.segments import MAX_COMPARED

Sizes = Sequence[IntLike]
_END = 2**63 - 1  # torch's "to the end" in slices


def _axis(x: Array, dim: int) -> int:
    return build.axis_of("dim", dim, x.ndim)


# --- views --------------------------------------------------------------------------------------


@lowers_view(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _view(out: Dtypes, x: Array, size: Sizes) -> Array:
    return ops.reshape(x, tuple(size))


@lowers_view(aten.expand.default)
def _expand(out: Dtypes, x: Array, size: Sizes, *, implicit: bool = False) -> Array:
    new = len(size) - x.ndim
    own = (*(1,) * new, *x.shape)
    shape = tuple(
        n if isinstance(s, int) and s == -1 else s for s, n in zip(size, own, strict=True)
    )
    return ops.broadcast_to(x, shape)


@lowers_view(aten.permute.default)
def _permute(out: Dtypes, x: Array, dims: Sequence[int]) -> Array:
    return ops.permute_dims(x, tuple(dims))


@lowers_view(aten.transpose.int)
def _transpose(out: Dtypes, x: Array, dim0: int, dim1: int) -> Array:
    if not x.ndim:
        return x
    order = list(range(x.ndim))
    a, b = _axis(x, dim0), _axis(x, dim1)
    order[a], order[b] = b, a
    return ops.permute_dims(x, tuple(order))


@lowers_view(aten.t.default)
def _t(out: Dtypes, x: Array) -> Array:
    return x.mT if x.ndim == 2 else x


@lowers_view(aten.unsqueeze.default)
def _unsqueeze(out: Dtypes, x: Array, dim: int) -> Array:
    return ops.expand_dims(x, dim)


@lowers_view(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(out: Dtypes, x: Array, dim: int | Sequence[int] | None = None) -> Array:
    if not x.ndim:
        return x
    if dim is None:
        axes = tuple(range(x.ndim))
    else:
        axes = build.axes_of("squeeze", dim, x.ndim)
    return ops.squeeze(x, tuple(a for a in axes if build.is_one(x.tensor.shape[a])))


@lowers_view(aten.alias.default, aten.detach.default, prims.view_of.default)
def _alias(out: Dtypes, x: Array) -> Array:
    return x


@lowers_view(aten.select.int)
def _select(out: Dtypes, x: Array, dim: int, index: IntLike) -> Array:
    axis = _axis(x, dim)
    return x[(*(slice(None),) * axis, _integer(index))]


@lowers_view(aten.slice.Tensor)
def _slice(
    out: Dtypes,
    x: Array,
    dim: int = 0,
    start: IntLike | None = None,
    end: IntLike | None = None,
    step: int = 1,
) -> Array:
    axis = _axis(x, dim)
    last = None if end is None or constant_value(end) == _END else _integer(end)
    first = None if start is None else _integer(start)
    return x[(*(slice(None),) * axis, slice(first, last, step))]


def _integer(x: IntLike) -> int | Expr:
    known = constant_value(x)
    return x if known is None else known


@lowers_view(aten.split_with_sizes.default)
def _split(out: Dtypes, x: Array, sizes: Sizes, dim: int = 0) -> tuple[Array, ...]:
    axis, start = _axis(x, dim), as_expr(0)
    parts: list[Array] = []
    for size in sizes:
        end = add(start, size)
        parts.append(_cut(x, axis, start, end))
        start = end
    return tuple(parts)


@lowers_view(aten.split.Tensor)
def _split_equal(out: Dtypes, x: Array, size: int, dim: int = 0) -> tuple[Array, ...]:
    n = x.shape[_axis(x, dim)]
    if not isinstance(n, int) or size < 1:
        raise UnsupportedError(f"split of an axis of size {n} in parts of {size}")
    return _split(out, x, [min(size, n - k) for k in range(0, n, size)], dim)


@lowers_view(aten.unbind.int)
def _unbind(out: Dtypes, x: Array, dim: int = 0) -> tuple[Array, ...]:
    return ops.unstack(x, axis=dim)


@lowers_view(aten.diagonal.default)
def _diagonal(out: Dtypes, x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    a, b = _axis(x, dim1), _axis(x, dim2)
    rows, columns = x.shape[a], x.shape[b]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise UnsupportedError(
            f"the diagonal of a matrix of symbolic size {x.tensor.shape[a]} x {x.tensor.shape[b]}"
        )
    down, right = max(-offset, 0), max(offset, 0)
    length = max(min(rows - down, columns - right), 0)
    rest = [k for k in range(x.ndim) if k not in (a, b)]
    shape = (*(x.tensor.shape[k] for k in rest), as_expr(length))
    at = build.coordinates(shape)
    index: list[IntLike] = [0] * x.ndim
    for k, c in zip(rest, at, strict=False):
        index[k] = c
    index[a], index[b] = add(at[-1], down), add(at[-1], right)
    return Array(build.index_map(x.tensor, shape, at, index))


@lowers_view(aten.unfold.default)
def _unfold(out: Dtypes, x: Array, dim: int, size: int, step: int) -> Array:
    axis = _axis(x, dim)
    count = add(floordiv(add(x.tensor.shape[axis], -size), step), 1)
    shape = tuple(count if k == axis else s for k, s in enumerate(x.tensor.shape))
    shape = (*shape, as_expr(size))
    at = build.coordinates(shape)
    index = [add(mul(c, step), at[-1]) if k == axis else c for k, c in enumerate(at[:-1])]
    return Array(build.index_map(x.tensor, shape, at, index))


# --- joins and copies of parts ------------------------------------------------------------------


def _cut(x: Array, axis: int, start: IntLike, end: IntLike) -> Array:
    low = [mul(start, -1) if k == axis else as_expr(0) for k in range(x.ndim)]
    high = [add(end, mul(n, -1)) if k == axis else as_expr(0) for k, n in enumerate(x.tensor.shape)]
    return Array(build.resize(x.tensor, low, high, 0))


@lowers(aten.cat)
def _cat(out: Dtypes, tensors: Sequence[Array], dim: int = 0) -> Array:
    # torch skips empty vectors of any rank.
    kept = [t for t in tensors if not (t.ndim == 1 and t.shape[0] == 0)] or [tensors[0]]
    parts = [cast_to(t, out[0]) for t in kept]
    return ops.concat(parts, axis=dim)


def _placed(x: Array, axis: int, before: IntLike, after: IntLike) -> Array:
    """x moved along an axis into a longer one; nobody reads what stands before and after it."""
    low = [before if k == axis else 0 for k in range(x.ndim)]
    high = [after if k == axis else 0 for k in range(x.ndim)]
    return Array(_moved(x.tensor, low, high))


def _moved(t: Tensor, low: Sequence[IntLike], high: Sequence[IntLike]) -> Tensor:
    """A resize with any fill: of a slice it reads the whole, of a function the argument, so that a
    slice that is put elsewhere is one move."""
    match t.op:
        case Resize(operands=(whole,), low=l, high=h):
            return _moved(whole, list(map(add, l, low)), list(map(add, h, high)))
        case Pointwise(operands=(argument,), fn=fn):
            moved = _moved(argument, low, high)
            return build.value(moved.shape, t.dtype, Pointwise((moved,), fn))
        case _:
            return build.resize(t, low, high, 0)


def _before(x: Array, axis: int, position: IntLike) -> Array:
    """Whether the coordinate along an axis is below a position."""
    along = Array(build.iota(x.tensor.shape, axis))
    return along < Array(build.size(position, along.dtype))


@lowers(aten.stack)
def _stack(out: Dtypes, tensors: Sequence[Array], dim: int = 0) -> Array:
    return ops.stack([cast_to(t, out[0]) for t in tensors], axis=dim)


@lowers(aten.constant_pad_nd)
def _constant_pad(out: Dtypes, x: Array, pad: Sizes, value: Operand = 0) -> Array:
    if isinstance(value, Array | Expr):
        raise UnsupportedError(f"constant_pad_nd with the symbolic value {value}")
    low, high = [as_expr(0)] * x.ndim, [as_expr(0)] * x.ndim
    for k in range(len(pad) // 2):
        low[-1 - k], high[-1 - k] = as_expr(pad[2 * k]), as_expr(pad[2 * k + 1])
    for a, b, n in zip(low, high, x.tensor.shape, strict=True):
        total = constant_value(add(a, n, b))
        if total is not None and total < 0:
            raise UnsupportedError(f"constant_pad_nd that leaves {total} elements")
    fill = build.compute_value(value, out[0])
    return Array(build.resize(x.tensor, low, high, fill))


@lowers(aten.slice_scatter)
def _slice_scatter(
    out: Dtypes,
    x: Array,
    source: Array,
    dim: int = 0,
    start: IntLike | None = None,
    end: IntLike | None = None,
    step: int = 1,
) -> Array:
    axis = _axis(x, dim)
    n, count = x.tensor.shape[axis], source.tensor.shape[axis]
    if constant_value(count) == 0:
        return x
    first = _start(start, n, add(mul(count, step), 1 - step))
    is_number = first is not None and any(v.is_number for v in variables(first))
    if step == 1 and first is not None and _may_stay(x.tensor):
        starts = tuple(first if k == axis else as_expr(0) for k in range(x.ndim))
        return ops.insert(x, source, starts)  # the rest of an argument may stay where it is
    if first is None or is_number:
        raise UnsupportedError(f"slice_scatter of {count} elements from {start} on, of {n}")
    end_at = add(first, mul(count, step))
    if step == 1:
        around = _cut(x, axis, 0, first), source, _cut(x, axis, end_at, n)
        return ops.concat([p for p in around if p.tensor.shape[axis] != ZERO], axis=axis)
    here = _placed(_spread(source, axis, step), axis, first, add(n, mul(end_at, -1)))
    along = Array(build.iota(x.tensor.shape, axis))
    inside = along % step == Array(build.size(mod(first, step), along.dtype))
    inside = ops.logical_and(inside, _before(x, axis, end_at))
    if first != ZERO:
        inside = ops.logical_and(inside, ops.logical_not(_before(x, axis, first)))
    return ops.where(inside, here, x)


def _may_stay(t: Tensor) -> bool:
    """Whether a value is an argument, or one with blocks in the place of some of its elements."""
    match t.op:
        case Input():
            return True
        case Concat(operands=parts):
            return any(_may_stay(p) for p in parts)
        case Resize(operands=(whole,)):
            return isinstance(whole.op, Input)
        case _:
            return False


def _start(start: IntLike | None, size: Expr, extent: Expr) -> Expr | None:
    """Where a slice begins along an axis, of which it takes so many elements from first to last;
    None where that is not known. That a number of the call is inside of the axis, every call
    checks."""
    at = as_expr(0 if start is None else start)
    known, whole = constant_value(at), constant_value(size)
    if known is not None and whole is not None:
        return as_expr(slice(known, None).indices(whole)[0])
    if known is not None and known < 0:
        at = add(size, at)
    if known == 0 or any(v.is_number for v in variables(at)):
        return at
    is_inside = (
        prove(less_equal(0, at)) is True and prove(less_equal(add(at, extent), size)) is True
    )
    return at if is_inside else None


def _spread(x: Array, axis: int, step: int) -> Array:
    """The slices along an axis `step` apart; nobody reads what stands between them."""
    wide = _placed(ops.expand_dims(x, axis + 1), axis + 1, 0, step - 1)
    shape = list(x.tensor.shape)
    shape[axis] = mul(shape[axis], step)
    return ops.reshape(wide, tuple(shape))


@lowers(aten.select_scatter)
def _select_scatter(out: Dtypes, x: Array, source: Array, dim: int, index: IntLike) -> Array:
    axis = _axis(x, dim)
    is_negative = (constant_value(index) or 0) < 0
    at = add(x.tensor.shape[axis], index) if is_negative else index
    starts = tuple(at if k == axis else 0 for k in range(x.ndim))
    return ops.insert(x, ops.expand_dims(source, axis), starts)


@lowers(aten.flip)
def _flip(out: Dtypes, x: Array, dims: Sequence[int]) -> Array:
    return ops.flip(x, axis=tuple(dims)) if len(dims) and x.ndim else x


@lowers(aten.roll)
def _roll(out: Dtypes, x: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    if not x.ndim:
        return x
    return ops.roll(x, tuple(shifts) if len(dims) else shifts[0], axis=tuple(dims) or None)


@lowers(aten.repeat)
def _repeat(out: Dtypes, x: Array, repeats: Sequence[int]) -> Array:
    return ops.tile(x, tuple(repeats))


# --- gathers ------------------------------------------------------------------------------------


@lowers(aten.embedding)
def _embedding(
    out: Dtypes,
    weight: Array,
    indices: Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:
    return ops.take(weight, indices, axis=0)


@lowers(aten.index_select)
def _index_select(out: Dtypes, x: Array, dim: int, index: Array) -> Array:
    if not x.ndim:
        raise UnsupportedError("index_select of a tensor without axes")
    flat = index if index.ndim else ops.expand_dims(index, 0)
    return ops.take(x, flat, axis=_axis(x, dim))


@lowers(aten.gather)
def _gather(out: Dtypes, x: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    if not x.ndim or x.ndim != index.ndim:
        raise UnsupportedError(
            f"gather along axis {dim} of a tensor of rank {x.ndim} by indices of rank {index.ndim}"
        )
    axis, cropped = _axis(x, dim), x
    for k, n in enumerate(index.tensor.shape):
        if k != axis and n != x.tensor.shape[k]:
            cropped = _cut(cropped, k, 0, n)
    return ops.take_along_axis(cropped, index, axis=axis)


@lowers(aten.index.Tensor)
def _index(out: Dtypes, x: Array, indices: Sequence[Array | None]) -> Array:
    first, shape, flat = _flat_index(x, indices)
    return ops.take(ops.reshape(x, shape), flat, axis=first)


def _flat_index(x: Array, indices: Sequence[Array | None]) -> tuple[int, tuple[Expr, ...], Array]:
    """The first axis that is indexed, x's shape with all indexed axes as one, and the index along
    that: as many as the axis is long where an index is outside of its own."""
    given = [(k, i) for k, i in enumerate(indices) if i is not None]
    first = given[0][0]
    if any(i.dtype.kind == "bool" or i.dtype is dtypes.uint8 for _, i in given):
        raise UnsupportedError("index by a mask: the result's size depends on its elements")
    if [k for k, _ in given] != list(range(first, first + len(given))):
        apart = ", ".join(str(k) for k, _ in given)
        raise UnsupportedError(f"index along the axes {apart}, which are not neighbours")
    sizes = [x.tensor.shape[k] for k, _ in given]
    total, flat = sizes[0], ops.astype(given[0][1], dtypes.int64)
    inside = _is_inside(flat, total)
    for (_, i), n in zip(given[1:], sizes[1:], strict=True):
        at = ops.astype(i, dtypes.int64)
        inside = ops.logical_and(inside, _is_inside(at, n))
        flat = _from_front(flat, total) * Array(build.size(n, dtypes.int64)) + _from_front(at, n)
        total = mul(total, n)
    if len(given) > 1:  # an index outside its own axis must not be one inside the product
        flat = ops.where(inside, flat, Array(build.size(total, dtypes.int64)))
    return first, (*x.tensor.shape[:first], total, *x.tensor.shape[first + len(given) :]), flat


@lowers(aten.index_put.default)
def _index_put(
    out: Dtypes,
    x: Array,
    indices: Sequence[Array | None],
    values: Array,
    accumulate: bool = False,
) -> Array:
    """The gradient of an indexed table, as every place along its indexed axis compares all
    indices."""
    if not accumulate:
        raise UnsupportedError("index_put that replaces elements: the last of equal indices counts")
    first, shape, flat = _flat_index(x, indices)
    work = constant_value(mul(build.element_count(flat.tensor.shape), build.element_count(shape)))
    if work is not None and work > _COMPARED:
        raise UnsupportedError(
            f"index_put that would compare {work} times: torch's sort is faster than {_COMPARED}"
        )
    wide = ops.broadcast_to(values, (*shape[:first], *flat.tensor.shape, *shape[first + 1 :]))
    indexed = tuple(range(first, first + flat.ndim))
    rows = ops.moveaxis(wide, indexed, tuple(range(flat.ndim)))
    added = ops.scatter_add(ops.moveaxis(ops.reshape(x, shape), first, 0), flat, rows)
    return ops.reshape(ops.moveaxis(added, 0, first), x.tensor.shape)


_COMPARED = MAX_COMPARED // 4
"""Comparisons that take no longer than torch's index_put, which sorts the indices in ten launches,
a third of those of a sort of ours."""


def _is_inside(index: Array, extent: Expr) -> Array:
    size = Array(build.size(extent, dtypes.int64))
    return ops.logical_and(index >= -size, index < size)


def _from_front(index: Array, extent: Expr) -> Array:
    return ops.where(index < 0, index + Array(build.size(extent, dtypes.int64)), index)


@lowers(aten.nll_loss_backward)
def _nll_loss_backward(
    out: Dtypes,
    dy: Array,
    x: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    """-dy * weight at the target's class, 0 elsewhere and where the target is ignored."""
    axis = 1 if x.ndim == 2 else 0
    if x.ndim > 2:
        raise UnsupportedError(f"nll_loss of rank {x.ndim}: one or two axes are taken")
    at = ops.expand_dims(target, axis) if x.ndim == 2 or not target.ndim else target
    classes = Array(build.iota(x.tensor.shape, axis))
    hit = ops.logical_and(
        classes == ops.astype(at, dtypes.int64), at != cast_to(ignore_index, at.dtype)
    )
    g = ops.astype(dy, x.dtype.compute)
    if reduction == 1:
        g = g / ops.astype(total_weight, g.dtype)
    if g.ndim and x.ndim == 2:
        g = ops.expand_dims(g, 1)
    if weight is not None:
        g = g * ops.astype(weight, g.dtype)
    return cast_to(ops.where(hit, -g, cast_to(0.0, g.dtype)), out[0])
