"""Creation of arrays. Sizes are integers or expressions taken from other arrays' shapes.

Without a dtype, Python bools, ints and floats give bool, int64 and float32. `device` is there for
the standard's sake: a value of a program has no device, and None or "host" is all there is.
"""

from __future__ import annotations

import builtins
import math
from typing import TypeAlias

from fusewright import dtypes
from fusewright.core.expr import Expr, IntLike, as_expr, constant_value
from fusewright.dtypes import DType, data_dtype_of
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array, as_number, as_tensor, check_array
from fusewright.fusion.counts import check_count
from fusewright.fusion.ir import Scalar, Shape, Tensor
from fusewright.fusion.operands import check_device, check_flag, check_scalar, check_size
from fusewright.fusion.ops.elementwise import equal

ShapeLike: TypeAlias = "IntLike | tuple[IntLike, ...] | list[IntLike]"


def shape_of(op: str, shape: ShapeLike) -> Shape:
    """A shape from an int, an expression or a sequence of them; UserError for a negative size."""
    entries = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    out = tuple(_size(op, s, entries) for s in entries)
    for s in out:
        known = constant_value(s)
        if known is not None and known < 0:
            raise UserError(f"{op}: size {s} in shape {build.shape_text(out)} is negative")
    check_count(op, map(constant_value, out))
    return out


def _size(op: str, size: IntLike, entries: tuple[IntLike, ...]) -> Expr:
    try:
        return build.extent(op, "size", size)
    except UserError:
        raise UserError(
            f"{op}: size {size!r} in shape {entries}: sizes are integers, or expressions taken "
            "from another array's shape"
        ) from None


def _filled(op: str, shape: Shape, value: object, dtype: object) -> Array:
    scalar = as_number(op, value)
    if isinstance(scalar, Array):
        out = scalar if dtype is None else Array(build.cast(scalar.tensor, data_dtype_of(dtype)))
        return Array(build.broadcast_to(op, out.tensor, shape))
    kind = int if isinstance(scalar, Expr) else type(scalar)
    found = data_dtype_of(kind if dtype is None else dtype)
    if isinstance(scalar, Expr):
        check_size(op, scalar, found)
    else:
        check_scalar(op, scalar, found)
    return Array(build.spread(as_tensor(scalar, found), shape))


def full(
    shape: ShapeLike,
    fill_value: Scalar | complex | Expr | Array,
    dtype: object = None,
    *,
    device: object = None,
) -> Array:
    """A scalar, a size, or an array of rank 0, in every element."""
    check_device("full", device)
    return _filled("full", shape_of("full", shape), fill_value, dtype)


def zeros(shape: ShapeLike, dtype: object = None, *, device: object = None) -> Array:
    """Zeros, float32 without a dtype."""
    check_device("zeros", device)
    return _zeros_or_ones("zeros", shape_of("zeros", shape), 0, dtype)


def ones(shape: ShapeLike, dtype: object = None, *, device: object = None) -> Array:
    """Ones, float32 without a dtype."""
    check_device("ones", device)
    return _zeros_or_ones("ones", shape_of("ones", shape), 1, dtype)


def empty(shape: ShapeLike, dtype: object = None, *, device: object = None) -> Array:
    """Zeros: a program has no undefined values."""
    check_device("empty", device)
    return _zeros_or_ones("empty", shape_of("empty", shape), 0, dtype)


def _zeros_or_ones(op: str, shape: Shape, value: int, dtype: object) -> Array:
    found = dtypes.float32 if dtype is None else data_dtype_of(dtype)
    return Array(build.full(shape, value, found))


def full_like(
    x: Array,
    /,
    fill_value: Scalar | complex | Expr | Array,
    dtype: object = None,
    *,
    device: object = None,
) -> Array:
    """A scalar in every element, with x's shape and, without a dtype, x's dtype."""
    check_device("full_like", device)
    x = check_array("full_like", x)
    return _filled("full_like", x.tensor.shape, fill_value, x.dtype if dtype is None else dtype)


def zeros_like(x: Array, /, dtype: object = None, *, device: object = None) -> Array:
    """Zeros with x's shape and, without a dtype, x's dtype."""
    check_device("zeros_like", device)
    x = check_array("zeros_like", x)
    return _zeros_or_ones("zeros_like", x.tensor.shape, 0, x.dtype if dtype is None else dtype)


def ones_like(x: Array, /, dtype: object = None, *, device: object = None) -> Array:
    """Ones with x's shape and, without a dtype, x's dtype."""
    check_device("ones_like", device)
    x = check_array("ones_like", x)
    return _zeros_or_ones("ones_like", x.tensor.shape, 1, x.dtype if dtype is None else dtype)


def empty_like(x: Array, /, dtype: object = None, *, device: object = None) -> Array:
    """Zeros with x's shape: a program has no undefined values."""
    check_device("empty_like", device)
    x = check_array("empty_like", x)
    return _zeros_or_ones("empty_like", x.tensor.shape, 0, x.dtype if dtype is None else dtype)


# --- ranges -------------------------------------------------------------------------------------


def arange(
    start: IntLike | float,
    /,
    stop: IntLike | float | None = None,
    step: int | float = 1,
    *,
    dtype: object = None,
    device: object = None,
) -> Array:
    """start, start + step, ... below stop (above it for a negative step); `arange(n)` counts from
    0. The limits may be expressions in the sizes when the step is 1.

    Raises UserError for a step of 0, and for symbolic limits with another step.
    """
    check_device("arange", device)
    if stop is None:
        start, stop = 0, start
    start, stop = (
        v if isinstance(v, Expr) else build.number("arange", "a limit", v) for v in (start, stop)
    )
    step = build.number("arange", "step", step)
    limits = (start, stop, step)
    is_float = any(isinstance(v, float) for v in limits)
    found = (
        (dtypes.float32 if is_float else dtypes.int64) if dtype is None else data_dtype_of(dtype)
    )
    if step == 0:
        raise UserError(f"arange({start}, {stop}, step=0): the step must not be 0")
    count = _range_count(start, stop, step)
    along = Array(build.iota((as_expr(count),), 0))
    if found.is_float:
        return Array(_line(along, start, step, found))
    first = start if isinstance(start, Expr) else int(start)
    out = along if step == 1 else along * int(step)
    if constant_value(first) != 0:
        out = out + Array(build.size(first, dtypes.int64))
    return Array(build.cast(out.tensor, found))


def _range_count(start: IntLike | float, stop: IntLike | float, step: int | float) -> IntLike:
    if not isinstance(start, Expr) and not isinstance(stop, Expr):
        return max(math.ceil((stop - start) / step), 0)
    if step != 1 or isinstance(start, float) or isinstance(stop, float):
        raise UserError(
            f"arange({start}, {stop}, {step}): symbolic limits go with integers and step 1; "
            "multiply an arange of the count by the step instead"
        )
    return as_expr(stop) - start


def _line(along: Array, start: IntLike | float, step: float, dtype: DType) -> Tensor:
    """start + step * coordinate, computed in the compute dtype."""
    wide = dtype.compute
    first = (
        Array(build.size(start, wide))
        if isinstance(start, Expr)
        else Array(build.constant(start, wide))
    )
    out = Array(build.cast(along.tensor, wide)) * float(step) + first
    return build.cast(out.tensor, dtype)


def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: object = None,
    device: object = None,
    endpoint: bool = True,
) -> Array:
    """`num` evenly spaced values from start to stop, which is the last one if `endpoint`.

    Raises UserError for a negative count and for an integer dtype.
    """
    check_device("linspace", device)
    check_flag("linspace", "endpoint", endpoint)
    found = dtypes.float32 if dtype is None else data_dtype_of(dtype)
    if not found.is_float:
        raise UserError(f"linspace in {found}: the values are not integers; use a float dtype")
    start, stop = (build.number("linspace", "a limit", v) for v in (start, stop))
    num = build.integer("linspace", "num", num)
    if num < 0:
        raise UserError(f"linspace(num={num}): the count must not be negative")
    intervals = num - 1 if endpoint else num
    step = (stop - start) / intervals if intervals > 0 else 0.0
    along = Array(build.iota((as_expr(num),), 0))
    line = Array(_line(along, float(start), step, found))
    if not endpoint or num < 2:
        return line
    last = build.pointwise(
        "eq", along.tensor, build.full(along.tensor.shape, num - 1, dtypes.int64)
    )
    end = build.full(along.tensor.shape, float(stop), found)
    return Array(build.pointwise("where", last, end, line.tensor))


# --- matrices -----------------------------------------------------------------------------------


def _diagonal_distance(shape: Shape) -> Array:
    """Column minus row, over the last two axes."""
    rank = len(shape)
    columns, rows = (Array(build.iota(shape, rank - k)) for k in (1, 2))
    return columns - rows


def _diagonal(op: str, k: object) -> int:
    """The number of a diagonal, as an int64: no array reaches the least or the greatest."""
    low, high = dtypes.int64.integer_range
    return builtins.max(low, builtins.min(high, build.integer(op, "k", k)))


def eye(
    n_rows: IntLike,
    n_cols: IntLike | None = None,
    /,
    *,
    k: int = 0,
    dtype: object = None,
    device: object = None,
) -> Array:
    """Ones on the k-th diagonal (above the main one for k > 0), zeros elsewhere."""
    check_device("eye", device)
    shape = shape_of("eye", (n_rows, n_rows if n_cols is None else n_cols))
    found = dtypes.float32 if dtype is None else data_dtype_of(dtype)
    return Array(build.cast(equal(_diagonal_distance(shape), _diagonal("eye", k)).tensor, found))


def _kept(x: Array, keep: Array) -> Array:
    zero = build.full(x.tensor.shape, 0, x.dtype)
    return Array(build.pointwise("where", keep.tensor, x.tensor, zero))


def _check_matrix(op: str, x: Array) -> Array:
    x = check_array(op, x)
    if x.ndim < 2:
        raise UserError(f"{op} of an array of rank {x.ndim}: at least two axes are needed")
    return x


def tril(x: Array, /, k: int = 0) -> Array:
    """x on and below the k-th diagonal of its last two axes, 0 above."""
    x = _check_matrix("tril", x)
    return _kept(x, _diagonal_distance(x.tensor.shape) <= _diagonal("tril", k))


def triu(x: Array, /, k: int = 0) -> Array:
    """x on and above the k-th diagonal of its last two axes, 0 below."""
    x = _check_matrix("triu", x)
    return _kept(x, _diagonal_distance(x.tensor.shape) >= _diagonal("triu", k))


def meshgrid(*arrays: Array, indexing: str = "xy") -> list[Array]:
    """Each array of rank 1 spread over the grid of all; "xy" puts the second along axis 0, "ij"
    keeps the order. Raises UserError for other ranks and unequal dtypes."""
    vectors = [check_array("meshgrid", a) for a in arrays]
    for a in vectors:
        if a.ndim != 1 or a.dtype is not vectors[0].dtype:
            raise UserError(
                f"meshgrid of {a!r} with {vectors[0]!r}: all arrays have rank 1 and one dtype"
            )
    if indexing not in ("xy", "ij"):
        raise UserError(f"meshgrid: indexing={indexing!r}; use 'xy' or 'ij'")
    order = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        order[:2] = [1, 0]
    shape = tuple(vectors[k].tensor.shape[0] for k in order)
    return [Array(build.along(v.tensor, shape, order.index(k))) for k, v in enumerate(vectors)]


__all__ = [
    "arange",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "linspace",
    "meshgrid",
    "ones",
    "ones_like",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
]
