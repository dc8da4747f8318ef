"""Reductions and prefix sums under their array API names.

`axis` is None for all axes, an int, or a tuple. `sum` and `prod` of integers narrower than 64 bits
and of bools give the 64-bit type of their kind; floats keep theirs, and kernels accumulate in the
compute dtype. Every function raises UserError for axes that do not exist.
"""

from __future__ import annotations

import builtins

from fusewright import dtypes
from fusewright.core.expr import ONE, constant_value, mul
from fusewright.dtypes import DType
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.ir import Tensor
from fusewright.fusion.operands import check_category, check_flag
from fusewright.fusion.ops.elementwise import astype, where
from fusewright.fusion.ops.manipulation import concat
from fusewright.fusion.ops.order_keys import first_extremes
from fusewright.fusion.ops.roots import root

Axes = int | tuple[int, ...] | None


def _accumulated(op: str, x: Array, dtype: object) -> Tensor:
    """x in the dtype that a sum or product of it has."""
    if dtype is not None:
        return astype(x, dtype).tensor
    match x.dtype.kind:
        case "bool" | "int":
            return build.cast(x.tensor, dtypes.int64)
        case "uint":
            return build.cast(x.tensor, dtypes.uint64)
        case _:
            return x.tensor


def _reduced(op: str, fn: str, t: Tensor, axis: Axes, keepdims: bool) -> Array:
    check_flag(op, "keepdims", keepdims)
    return Array(build.reduce(fn, t, build.axes_of(op, axis, t.ndim), keepdims=keepdims))


def sum(x: Array, /, axis: Axes = None, *, dtype: object = None, keepdims: bool = False) -> Array:
    """The sum over axes; 0 over nothing."""
    t = _accumulated("sum", check_array("sum", x), dtype)
    return _reduced("sum", "add", t, axis, keepdims)


def prod(x: Array, /, axis: Axes = None, *, dtype: object = None, keepdims: bool = False) -> Array:
    """The product over axes; 1 over nothing."""
    t = _accumulated("prod", check_array("prod", x), dtype)
    return _reduced("prod", "mul", t, axis, keepdims)


def _extreme(op: str, fn: str, x: Array, axis: Axes, keepdims: bool) -> Array:
    x = check_array(op, x)
    check_category(op, x.dtype, "numeric")
    _check_not_empty(op, x, build.axes_of(op, axis, x.ndim))
    return _reduced(op, fn, x.tensor, axis, keepdims)


def _check_not_empty(op: str, x: Array, axes: tuple[int, ...]) -> None:
    for a in axes:
        if constant_value(x.tensor.shape[a]) == 0:
            raise UserError(
                f"{op}: axis {a} has size 0, and {op} of nothing has no value; concatenate the "
                "value you want for it first"
            )


def max(x: Array, /, axis: Axes = None, *, keepdims: bool = False) -> Array:
    """The largest element over axes; NaN if any is.

    Raises UserError over an axis of size 0; an axis of a symbolic size that turns out to be 0 when
    the program runs, as a crop may, gives what the reduction starts from, the least value.
    """
    return _extreme("max", "max", x, axis, keepdims)


def min(x: Array, /, axis: Axes = None, *, keepdims: bool = False) -> Array:
    """The smallest element over axes; NaN if any is. Over nothing as `max`, the largest value."""
    return _extreme("min", "min", x, axis, keepdims)


def any(x: Array, /, axis: Axes = None, *, keepdims: bool = False) -> Array:
    """Whether some element over axes is not 0; false over nothing."""
    t = astype(check_array("any", x), dtypes.bool_).tensor
    return _reduced("any", "or", t, axis, keepdims)


def all(x: Array, /, axis: Axes = None, *, keepdims: bool = False) -> Array:
    """Whether every element over axes is not 0; true over nothing."""
    t = astype(check_array("all", x), dtypes.bool_).tensor
    return _reduced("all", "and", t, axis, keepdims)


def count_nonzero(x: Array, /, axis: Axes = None, *, keepdims: bool = False) -> Array:
    """How many elements over axes are not 0, as int64."""
    t = astype(check_array("count_nonzero", x), dtypes.bool_).tensor
    return _reduced("count_nonzero", "add", build.cast(t, dtypes.int64), axis, keepdims)


# --- moments ------------------------------------------------------------------------------------


def _result_dtype(op: str, x: Array, *, of_complex: bool = False) -> DType:
    """The dtype of a mean: x's own for floats, float32 for integers."""
    check_category(op, x.dtype, "numeric", of_complex=of_complex)
    return dtypes.float32 if x.dtype.is_integer else x.dtype


def _count(x: Array, axes: tuple[int, ...], dtype: DType) -> Array:
    total = build.as_expr(1)
    for a in axes:
        total = mul(total, x.tensor.shape[a])
    return Array(build.size(total, dtype))


def _mean_of(op: str, x: Array, axis: Axes, keepdims: bool) -> Array:
    check_flag(op, "keepdims", keepdims)
    axes = build.axes_of(op, axis, x.ndim)
    total = Array(build.reduce("add", x.tensor, axes, keepdims=keepdims))
    return total / _count(x, axes, x.dtype)


def mean(x: Array, /, axis: Axes = None, *, keepdims: bool = False) -> Array:
    """The mean over axes, computed in the compute dtype and rounded to x's; NaN over nothing.
    Integers give float32; so do bools, of which it is the share that is True."""
    x = check_array("mean", x)
    x = astype(x, dtypes.float32) if x.dtype.kind == "bool" else x
    dtype = _result_dtype("mean", x, of_complex=True)
    return astype(_mean_of("mean", astype(x, dtype.compute), axis, keepdims), dtype)


def _variance(op: str, x: Array, axis: Axes, correction: float, keepdims: bool) -> Array:
    """The variance in the compute dtype: the mean first, then the mean square of the rest."""
    check_flag(op, "keepdims", keepdims)
    correction = build.number(op, "correction", correction)
    wide = astype(x, _result_dtype(op, x).compute)
    axes = build.axes_of(op, axis, x.ndim)
    rest = wide - _mean_of(op, wide, axis, keepdims=True)
    total = Array(build.reduce("add", (rest * rest).tensor, axes, keepdims=keepdims))
    count = _count(x, axes, wide.dtype)
    return total / (count - float(correction) if correction else count)


def var(
    x: Array, /, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False
) -> Array:
    """The variance over axes, with `correction` taken off the count (1: the unbiased estimate)."""
    x = check_array("var", x)
    out = _variance("var", x, axis, correction, keepdims)
    return astype(out, _result_dtype("var", x))


def std(
    x: Array, /, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False
) -> Array:
    """The square root of `var`."""
    x = check_array("std", x)
    out = root(_variance("std", x, axis, correction, keepdims))
    return astype(out, _result_dtype("std", x))


# --- positions ----------------------------------------------------------------------------------


def _position(op: str, x: Array, axis: int | None, keepdims: bool, *, is_largest: bool) -> Array:
    """The first position of an extreme."""
    check_flag(op, "keepdims", keepdims)
    x = check_array(op, x)
    check_category(op, x.dtype, "numeric")
    t, rank = x.tensor, x.ndim
    if axis is None:
        t = build.reshape(op, t, (build.element_count(t.shape),))
    along = build.axis_of(op, 0 if axis is None else axis, t.ndim)
    _check_not_empty(op, Array(t), (along,))
    inside = keepdims and axis is not None
    if t.shape[along] == ONE:  # the one element is the first, whatever it is
        left = (*t.shape[:along], *([ONE] * inside), *t.shape[along + 1 :])
        out = Array(build.full(left, 0, dtypes.int64))
    else:
        out = first_extremes(Array(t), along, is_largest=is_largest, keepdims=inside)
    if out is None:
        out = _position_by_value(t, along, "max" if is_largest else "min", inside)
    if keepdims and axis is None:
        out = Array(build.reshape(op, out.tensor, (build.as_expr(1),) * rank))
    return out


def _position_by_value(t: Tensor, axis: int, fn: str, keepdims: bool) -> Array:
    """Where t equals its extreme or is NaN, the least coordinate."""
    extreme = build.reduce(fn, t, (axis,), keepdims=True)
    found = build.pointwise("eq", t, build.spread(extreme, t.shape))
    if t.dtype.is_float:
        found = build.pointwise("or", found, build.pointwise("isnan", t))
    end = Array(build.size(t.shape[axis], dtypes.int64))
    at = where(Array(found), Array(build.iota(t.shape, axis)), end)
    return Array(build.reduce("min", at.tensor, (axis,), keepdims=keepdims))


def argmax(x: Array, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The first position of the largest element, as int64; of the first NaN if there is one."""
    return _position("argmax", x, axis, keepdims, is_largest=True)


def argmin(x: Array, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The first position of the smallest element, as int64; of the first NaN if there is one."""
    return _position("argmin", x, axis, keepdims, is_largest=False)


# --- prefixes -----------------------------------------------------------------------------------


def _cumulative(
    op: str, fn: str, x: Array, axis: int | None, dtype: object, include_initial: bool
) -> Array:
    check_flag(op, "include_initial", include_initial)
    x = check_array(op, x)
    along = _scanned(op, x, axis)
    t = _accumulated(op, x, dtype)
    out = build.scan(fn, t, along)
    if include_initial:
        low = [int(k == along) for k in range(t.ndim)]
        out = build.resize(out, low, [0] * t.ndim, 0 if fn == "add" else 1)
    return Array(out)


def cumulative_sum(
    x: Array, /, axis: int | None = None, *, dtype: object = None, include_initial: bool = False
) -> Array:
    """The sums of the elements up to each; with `include_initial` a 0 comes first."""
    return _cumulative("cumulative_sum", "add", x, axis, dtype, include_initial)


def cumulative_prod(
    x: Array, /, axis: int | None = None, *, dtype: object = None, include_initial: bool = False
) -> Array:
    """The products of the elements up to each; with `include_initial` a 1 comes first."""
    return _cumulative("cumulative_prod", "mul", x, axis, dtype, include_initial)


def cumulative_max(x: Array, /, axis: int | None = None) -> Array:
    """The largest of the elements up to each; NaN from the first NaN on."""
    return _cumulative_extreme("cumulative_max", "max", x, axis)


def cumulative_min(x: Array, /, axis: int | None = None) -> Array:
    """The smallest of the elements up to each; NaN from the first NaN on."""
    return _cumulative_extreme("cumulative_min", "min", x, axis)


def _cumulative_extreme(op: str, fn: str, x: Array, axis: int | None) -> Array:
    x = check_array(op, x)
    check_category(op, x.dtype, "numeric")
    return Array(build.scan(fn, x.tensor, _scanned(op, x, axis)))


def _scanned(op: str, x: Array, axis: int | None) -> int:
    """The axis of a scan, which may be left out for rank 1 only."""
    if axis is None and x.ndim != 1:
        raise UserError(
            f"{op} of an array of rank {x.ndim}: axis may be left out for rank 1 only; name the "
            "axis to go along"
        )
    return build.axis_of(op, 0 if axis is None else axis, x.ndim)


def diff(
    x: Array,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Array | None = None,
    append: Array | None = None,
) -> Array:
    """The differences of neighbours along an axis, taken n times; `prepend` and `append` are joined
    to x first. UserError for a negative n."""
    x = check_array("diff", x)
    along = build.axis_of("diff", axis, x.ndim)
    n = build.integer("diff", "n", n)
    if n < 0:
        raise UserError(f"diff: n={n}: the number of times must not be negative")
    joined = [part for part in (prepend, x, append) if part is not None]
    out = x if len(joined) == 1 else concat(joined, axis=along)
    lead = (slice(None),) * along
    extent = constant_value(out.tensor.shape[along])
    for _ in range(n if extent is None else builtins.min(n, extent + 1)):  # then nothing is left
        out = out[(*lead, slice(1, None))] - out[(*lead, slice(None, -1))]
    return out


__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "cumulative_max",
    "cumulative_min",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
]
