"""Products of vectors, matrices and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from fusewright.core.atoms import maximum, minimum
from fusewright.core.expr import add, constant_value, mod
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import (
    Array,
    as_tensor,
    check_array,
    common_dtype,
    matrix_product,
)
from fusewright.fusion.ir import Tensor
from fusewright.fusion.operands import check_category, check_factors
from fusewright.fusion.ops.elementwise import conj


def matmul(x1: Array, x2: Array, /) -> Array:
    """`(..., m, k) @ (..., k, n)`; leading axes broadcast, a vector stands for one row or column.
    The dtype is the promoted one; kernels accumulate in its compute dtype."""
    return matrix_product("matmul", x1, x2)


def _pair(op: str, x1: Array, x2: Array) -> tuple[Tensor, Tensor]:
    both = (check_array(op, x1), check_array(op, x2))
    check_factors(op, [x.dtype for x in both])
    dtype = common_dtype(op, both)
    check_category(op, dtype, "numeric", of_complex=True)
    return as_tensor(both[0], dtype), as_tensor(both[1], dtype)


def _contracted(
    op: str, axes: int | tuple[Sequence[int], Sequence[int]], a: Tensor, b: Tensor
) -> tuple[list[int], list[int]]:
    """The axes of both operands that are summed over, paired."""
    if isinstance(axes, int):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise UserError(
                f"{op}: axes={axes} for ranks {a.ndim} and {b.ndim}: the count goes from 0 to the "
                "smaller rank"
            )
        return list(range(a.ndim - axes, a.ndim)), list(range(axes))
    if not _is_pair(axes):
        raise UserError(f"{op}: axes={axes!r}: give a count, or the axes of x1 and those of x2")
    left = [build.axis_of(op, k, a.ndim) for k in build.integers(op, "axes", axes[0])]
    right = [build.axis_of(op, k, b.ndim) for k in build.integers(op, "axes", axes[1])]
    build.axes_of(op, tuple(left), a.ndim)
    build.axes_of(op, tuple(right), b.ndim)
    if len(left) != len(right):
        raise UserError(f"{op}: {len(left)} axes against {len(right)}; name as many on both sides")
    return left, right


def _is_pair(axes: object) -> bool:
    return isinstance(axes, tuple | list) and len(cast("Sequence[object]", axes)) == 2


def tensordot(
    x1: Array, x2: Array, /, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Array:
    """The sum over paired axes: the last `axes` of x1 with the first of x2, or the two lists. The
    result has x1's other axes, then x2's. Raises UserError where paired axes differ in size."""
    a, b = _pair("tensordot", x1, x2)
    left, right = _contracted("tensordot", axes, a, b)
    for i, j in zip(left, right, strict=True):
        if a.shape[i] != b.shape[j]:
            raise UserError(
                f"tensordot: axis {i} of {build.shape_text(a.shape)} has size {a.shape[i]}, axis "
                f"{j} of {build.shape_text(b.shape)} has size {b.shape[j]}: paired axes must be "
                "equal"
            )
    rows = [k for k in range(a.ndim) if k not in left]
    columns = [k for k in range(b.ndim) if k not in right]
    row_shape = tuple(a.shape[k] for k in rows)
    column_shape = tuple(b.shape[k] for k in columns)
    inner = build.element_count(tuple(a.shape[k] for k in left))
    matrix_a = build.reshape(
        "tensordot", build.permute(a, rows + left), (build.element_count(row_shape), inner)
    )
    matrix_b = build.reshape(
        "tensordot", build.permute(b, right + columns), (inner, build.element_count(column_shape))
    )
    out = build.matmul("tensordot", matrix_a, matrix_b)
    return Array(build.reshape("tensordot", out, (*row_shape, *column_shape)))


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """The sum of products along an axis, counted from the end; the other axes broadcast. Of complex
    numbers the first is conjugated. Raises UserError where the axis is counted from the front, or
    some operand lacks it."""
    x1 = conj(x1) if check_array("vecdot", x1).dtype.is_complex else x1
    a, b = _pair("vecdot", x1, x2)
    rank, axis = min(a.ndim, b.ndim), build.integer("vecdot", "axis", axis)
    if not -rank <= axis < 0:
        raise UserError(
            f"vecdot: axis {axis} for ranks {a.ndim} and {b.ndim}: count it from the end, -{rank} "
            "to -1"
        )
    if a.shape[axis] != b.shape[axis]:
        raise UserError(
            f"vecdot: axis {axis} has sizes {a.shape[axis]} and {b.shape[axis]}: they must be equal"
        )
    products = build.pointwise("mul", *build.broadcast_all("vecdot", a, b))
    return Array(build.reduce("add", products, (products.ndim + axis,)))


def inner(x1: Array, x2: Array, /) -> Array:
    """The sums of products along the last axes of both: x1's other axes, then x2's. An operand of
    rank 0 multiplies."""
    a, b = _pair("inner", x1, x2)
    if not a.ndim or not b.ndim:
        return Array(build.pointwise("mul", *build.broadcast_all("inner", a, b)))
    return tensordot(Array(a), Array(b), axes=((a.ndim - 1,), (b.ndim - 1,)))


def outer(x1: Array, x2: Array, /) -> Array:
    """The products of every element of x1 with every element of x2, both of rank 1. Raises
    UserError for other ranks."""
    a, b = _pair("outer", x1, x2)
    if a.ndim != 1 or b.ndim != 1:
        raise UserError(
            f"outer: operands of rank {a.ndim} and {b.ndim}; both are vectors: reshape them to "
            "rank 1, or multiply with fw.expand_dims"
        )
    columns = build.expand(a, 1)
    return Array(build.pointwise("mul", *build.broadcast_all("outer", columns, b)))


def diagonal(x: Array, /, offset: int = 0) -> Array:
    """The elements at (.., i, i + offset) of the last two axes, along the last axis. Raises
    UserError for a rank below 2."""
    x = check_array("diagonal", x)
    above = build.integer("diagonal", "offset", offset)
    if x.ndim < 2:
        raise UserError(f"diagonal of an array of rank {x.ndim}: at least two axes are needed")
    *lead, n, m = x.tensor.shape
    first = (max(-above, 0), max(above, 0))
    length = maximum(minimum(add(n, -first[0]), add(m, -first[1])), 0)
    shape = (*lead, length)
    at = build.coordinates(shape)
    index = (*at[:-1], add(at[-1], first[0]), add(at[-1], first[1]))
    return Array(build.index_map(x.tensor, shape, at, index))


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """The vector products along an axis of size 3, counted from the end; the others broadcast.
    Raises UserError for an axis of another size."""
    a, b = build.broadcast_all("cross", *_pair("cross", x1, x2))
    along = build.axis_of("cross", axis, a.ndim)
    if constant_value(a.shape[along]) != 3:
        raise UserError(f"cross: axis {along} has size {a.shape[along]}; vectors have 3 elements")

    def turned(t: Tensor, by: int) -> Tensor:
        at = build.coordinates(t.shape)
        index = [mod(add(c, by), 3) if k == along else c for k, c in enumerate(at)]
        return build.index_map(t, t.shape, at, index)

    products = [build.pointwise("mul", turned(a, k), turned(b, 3 - k)) for k in (1, 2)]
    return Array(build.pointwise("sub", *products))


__all__ = ["cross", "diagonal", "inner", "matmul", "outer", "tensordot", "vecdot"]
