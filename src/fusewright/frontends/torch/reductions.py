"""Reductions, prefix sums and softmax of aten."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fusewright import dtypes
from fusewright.errors import UnsupportedError
from fusewright.frontends.torch.library import aten
from fusewright.frontends.torch.promotion import cast_to
from fusewright.frontends.torch.table import Dtypes, lowers
from fusewright.fusion import build, nn, ops
from fusewright.fusion.array import Array

Dims = int | Sequence[int] | None


def axes_of(x: Array, dim: Dims) -> tuple[int, ...]:
    """torch's `dim`: nothing and the empty list mean all axes; a tensor without axes has axis 0."""
    if not x.ndim or dim is None or (not isinstance(dim, int) and not len(dim)):
        return tuple(range(x.ndim))
    return build.axes_of("a reduction", dim, x.ndim)


def _axis(x: Array, dim: int) -> int:
    return build.axis_of("a reduction", dim, x.ndim)


# --- sums ---------------------------------------------------------------------------------------


@lowers(aten.sum.default, aten.sum.dim_IntList)
def _sum(
    out: Dtypes, x: Array, dim: Dims = None, keepdim: bool = False, *, dtype: object = None
) -> Array:
    wide = cast_to(x, out[0])
    if out[0].kind == "bool":
        return ops.any(wide, axis=axes_of(x, dim), keepdims=keepdim)
    return ops.sum(wide, axis=axes_of(x, dim), dtype=out[0], keepdims=keepdim)


@lowers(aten.prod.default)
def _prod(out: Dtypes, x: Array, *, dtype: object = None) -> Array:
    return ops.prod(cast_to(x, out[0]), dtype=out[0])


@lowers(aten.prod.dim_int)
def _prod_dim(
    out: Dtypes, x: Array, dim: int, keepdim: bool = False, *, dtype: object = None
) -> Array:
    return ops.prod(cast_to(x, out[0]), axis=axes_of(x, dim), dtype=out[0], keepdims=keepdim)


@lowers(aten.mean.default, aten.mean.dim)
def _mean(
    out: Dtypes, x: Array, dim: Dims = None, keepdim: bool = False, *, dtype: object = None
) -> Array:
    return ops.mean(cast_to(x, out[0]), axis=axes_of(x, dim), keepdims=keepdim)


@lowers(aten.var.correction)
def _var(
    out: Dtypes,
    x: Array,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Array:
    return _var_mean(out, x, dim, correction=correction, keepdim=keepdim)[0]


@lowers(aten.var_mean.correction)
def _var_mean(
    out: Dtypes,
    x: Array,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Array, Array]:
    axes = axes_of(x, dim)
    wide = ops.astype(x, x.dtype.compute)
    mean = ops.mean(wide, axis=axes, keepdims=True)
    rest = wide - mean
    total = ops.sum(rest * rest, axis=axes, keepdims=keepdim)
    count = Array(build.size(_count(x, axes), wide.dtype))
    taken = cast_to(1.0 if correction is None else float(correction), wide.dtype)
    left = ops.maximum(count - taken, cast_to(0.0, wide.dtype))
    if taken < 0:  # of no elements torch gives NaN, not 0 / -taken
        left = ops.where(count > 0, left, cast_to(0.0, wide.dtype))
    variance = ops.astype(total / left, x.dtype)
    shown = mean if keepdim or not axes else ops.squeeze(mean, axes)
    return variance, ops.astype(shown, x.dtype)


def _count(x: Array, axes: tuple[int, ...]) -> build.Expr:
    return build.element_count(tuple(x.tensor.shape[a] for a in axes))


@lowers(aten.linalg_vector_norm)
def _vector_norm(
    out: Dtypes,
    x: Array,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: object = None,
) -> Array:
    axes = axes_of(x, dim)
    wide = abs(ops.astype(ops.astype(x, out[0]), out[0].compute))
    if ord == math.inf:
        found = ops.max(wide, axis=axes, keepdims=keepdim)
    elif ord == -math.inf:
        found = ops.min(wide, axis=axes, keepdims=keepdim)
    elif ord == 0:
        found = ops.sum(ops.astype(ops.not_equal(wide, 0), wide.dtype), axis=axes, keepdims=keepdim)
    elif ord == 1:
        found = ops.sum(wide, axis=axes, keepdims=keepdim)
    elif ord == 2:
        found = ops.sqrt(ops.sum(wide * wide, axis=axes, keepdims=keepdim))
    else:
        power = ops.sum(ops.pow(wide, cast_to(ord, wide.dtype)), axis=axes, keepdims=keepdim)
        found = ops.pow(power, cast_to(1.0 / ord, wide.dtype))
    return ops.astype(found, out[0])


# --- extremes and truth -------------------------------------------------------------------------

Reduction = Callable[..., Array]


def _extreme(fn: Reduction, x: Array, axes: tuple[int, ...], keepdim: bool) -> Array:
    if x.dtype.kind != "bool":
        return fn(x, axis=axes, keepdims=keepdim)
    return ops.astype(fn(ops.astype(x, dtypes.uint8), axis=axes, keepdims=keepdim), dtypes.bool_)


@lowers(aten.amax, aten.max.default)
def _amax(out: Dtypes, x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    return _extreme(ops.max, x, axes_of(x, dim), keepdim)


@lowers(aten.amin, aten.min.default)
def _amin(out: Dtypes, x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    return _extreme(ops.min, x, axes_of(x, dim), keepdim)


def _position(fn: Reduction, x: Array, dim: int | None, keepdim: bool) -> Array:
    numbers = ops.astype(x, dtypes.uint8) if x.dtype.kind == "bool" else x
    if not x.ndim:
        return Array(build.constant(0, dtypes.int64))
    return fn(numbers, axis=None if dim is None else _axis(x, dim), keepdims=keepdim)


@lowers(aten.max.dim)
def _max_dim(out: Dtypes, x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return _amax(out, x, dim, keepdim), _position(ops.argmax, x, dim, keepdim)


@lowers(aten.min.dim)
def _min_dim(out: Dtypes, x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return _amin(out, x, dim, keepdim), _position(ops.argmin, x, dim, keepdim)


@lowers(aten.argmax)
def _argmax(out: Dtypes, x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _position(ops.argmax, x, dim, keepdim)


@lowers(aten.argmin)
def _argmin(out: Dtypes, x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _position(ops.argmin, x, dim, keepdim)


@lowers(aten.any.default, aten.any.dim, aten.any.dims)
def _any(out: Dtypes, x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    return ops.astype(ops.any(x, axis=_truth_axes(x, dim), keepdims=keepdim), out[0])


@lowers(aten.all.default, aten.all.dim, aten.all.dims)
def _all(out: Dtypes, x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    return ops.astype(ops.all(x, axis=_truth_axes(x, dim), keepdims=keepdim), out[0])


def _truth_axes(x: Array, dim: Dims) -> tuple[int, ...]:
    if dim is not None and not isinstance(dim, int) and not len(dim):
        raise UnsupportedError("any and all over the empty list of dims")
    return axes_of(x, dim)


# --- prefixes -----------------------------------------------------------------------------------


@lowers(aten.cumsum)
def _cumsum(out: Dtypes, x: Array, dim: int, *, dtype: object = None) -> Array:
    wide = cast_to(x, out[0])
    return ops.cumulative_sum(wide, axis=_axis(x, dim), dtype=out[0]) if x.ndim else wide


@lowers(aten.cumprod)
def _cumprod(out: Dtypes, x: Array, dim: int, *, dtype: object = None) -> Array:
    wide = cast_to(x, out[0])
    return ops.cumulative_prod(wide, axis=_axis(x, dim), dtype=out[0]) if x.ndim else wide


# --- softmax ------------------------------------------------------------------------------------


@lowers(aten._softmax)
def _softmax(out: Dtypes, x: Array, dim: int, half_to_float: bool) -> Array:
    return _along(nn.softmax, cast_to(x, out[0]), dim)


@lowers(aten._log_softmax)
def _log_softmax(out: Dtypes, x: Array, dim: int, half_to_float: bool) -> Array:
    return _along(nn.log_softmax, cast_to(x, out[0]), dim)


def _along(fn: Callable[[Array, int], Array], x: Array, dim: int) -> Array:
    """A function along an axis; a tensor without axes has axis 0."""
    return fn(x, dim) if x.ndim else ops.squeeze(fn(ops.expand_dims(x, 0), 0), 0)


@lowers(aten._softmax_backward_data)
def _softmax_backward(out: Dtypes, dy: Array, y: Array, dim: int, input_dtype: object) -> Array:
    return cast_to(nn.softmax_backward(dy, y, dim), out[0])


@lowers(aten._log_softmax_backward_data)
def _log_softmax_backward(out: Dtypes, dy: Array, y: Array, dim: int, input_dtype: object) -> Array:
    return cast_to(nn.log_softmax_backward(dy, y, dim), out[0])
