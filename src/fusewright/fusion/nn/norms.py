"""Layer, RMS and group normalisation, and their gradients.

Statistics are computed in the compute dtype in two passes, the mean first, then the mean square of
the rest; results have x's dtype. A `_forward` variant also returns the statistics that the
`_backward` takes, in the compute dtype.
"""

from __future__ import annotations

import numpy as np

from fusewright.core.expr import Expr, as_expr, floordiv, mul
from fusewright.dtypes import DType
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array
from fusewright.fusion.nn.arguments import check_float, check_rank, check_shape, widened
from fusewright.fusion.ops import astype, expand_dims, mean, reshape, rsqrt, sum
from fusewright.fusion.ops.creation import ShapeLike, shape_of

Axes = tuple[int, ...]


def centred(x: Array, axes: Axes) -> tuple[Array, Array]:
    """x without its mean over axes, and the mean, without the axes."""
    m = mean(x, axis=axes)
    return x - expand_dims(m, axes), m


def standardised_backward(g: Array, xhat: Array, rstd: Array, axes: Axes) -> Array:
    """The gradient of x for `xhat = (x - mean(x)) * rstd(x)`, g that of xhat.

    Source: Ioffe and Szegedy, Batch normalization (2015), section 3, with terms collected.
    """
    g_mean = mean(g, axis=axes, keepdims=True)
    gx_mean = mean(g * xhat, axis=axes, keepdims=True)
    return (g - g_mean - xhat * gx_mean) * rstd


def scaled(x: Array, weight: Array | None) -> Array:
    """x * weight, or x."""
    return x if weight is None else x * widened(weight)


def shifted(x: Array, bias: Array | None) -> Array:
    """x + bias, or x."""
    return x if bias is None else x + widened(bias)


# --- layer_norm and rms_norm --------------------------------------------------------------------


def _normalised_axes(op: str, x: Array, normalized_shape: ShapeLike) -> Axes:
    """The trailing axes that `normalized_shape` names, which must equal x's."""
    shape = shape_of(op, normalized_shape)
    count = len(shape)
    if not count or shape != x.tensor.shape[x.ndim - count :]:
        raise UserError(
            f"{op}: normalized_shape {build.shape_text(shape)} are not the last axes of x, of "
            f"shape {build.shape_text(x.shape)}; give x.shape[-k:] with k at least 1"
        )
    return tuple(range(x.ndim - count, x.ndim))


def _check_affine(op: str, x: Array, axes: Axes, **arrays: Array | None) -> None:
    shape = tuple(x.tensor.shape[a] for a in axes)
    for what, array in arrays.items():
        if array is not None:
            check_float(f"{op} ({what})", array)
            check_shape(op, what, array, shape, of="normalized_shape")


def _check_saved(op: str, x: Array, axes: Axes, **arrays: Array) -> None:
    kept = tuple(as_expr(1) if k in axes else s for k, s in enumerate(x.tensor.shape))
    for what, array in arrays.items():
        check_shape(op, what, array, kept, of="the statistics of x")


def layer_norm(
    x: Array,
    normalized_shape: ShapeLike,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> Array:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axes, which `normalized_shape`
    names; weight and bias have that shape."""
    return layer_norm_forward(x, normalized_shape, weight, bias, eps)[0]


def layer_norm_forward(
    x: Array,
    normalized_shape: ShapeLike,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> tuple[Array, Array, Array]:
    """`layer_norm`, the mean and 1 / sqrt(var + eps); the statistics keep the axes with size 1."""
    x = check_float("layer_norm", x)
    axes = _normalised_axes("layer_norm", x, normalized_shape)
    _check_affine("layer_norm", x, axes, weight=weight, bias=bias)
    rest, m = centred(widened(x), axes)
    epsilon = float(build.number("layer_norm", "eps", eps))
    rstd = expand_dims(rsqrt(mean(rest * rest, axis=axes) + epsilon), axes)
    y = shifted(scaled(rest * rstd, weight), bias)
    return astype(y, x.dtype), expand_dims(m, axes), rstd


def layer_norm_backward(
    dy: Array,
    mean: Array,
    rstd: Array,
    x: Array,
    normalized_shape: ShapeLike,
    weight: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The gradients of x, weight and bias; without a weight its place counts as ones. Those of
    weight and bias have weight's dtype, or x's."""
    op = "layer_norm_backward"
    x = check_float(op, x)
    check_shape(op, "dy", dy, x.tensor.shape, of="x")
    axes = _normalised_axes(op, x, normalized_shape)
    _check_affine(op, x, axes, weight=weight)
    _check_saved(op, x, axes, mean=mean, rstd=rstd)
    wide_dy = widened(dy)
    xhat = (widened(x) - mean) * rstd
    dx = standardised_backward(scaled(wide_dy, weight), xhat, rstd, axes)
    lead = tuple(range(axes[0]))
    dtype = x.dtype if weight is None else weight.dtype
    dw = astype(sum(wide_dy * xhat, axis=lead), dtype)
    db = astype(sum(wide_dy, axis=lead), dtype)
    return astype(dx, x.dtype), dw, db


def _epsilon(dtype: DType) -> float:
    """The distance from 1 to the next number."""
    return float(np.spacing(np.ones((), dtype.numpy)))


def rms_norm(
    x: Array,
    normalized_shape: ShapeLike,
    weight: Array | None = None,
    eps: float | None = None,
) -> Array:
    """x / sqrt(mean(x**2) + eps) * weight over the last axes, which `normalized_shape` names.
    Without eps it is the distance from 1 to the next number of the compute dtype, as torch has it.

    Source: Zhang and Sennrich, Root mean square layer normalization (2019).
    """
    return rms_norm_forward(x, normalized_shape, weight, eps)[0]


def rms_norm_forward(
    x: Array,
    normalized_shape: ShapeLike,
    weight: Array | None = None,
    eps: float | None = None,
) -> tuple[Array, Array]:
    """`rms_norm` and 1 / sqrt(mean(x**2) + eps), which keeps the axes with size 1."""
    x = check_float("rms_norm", x)
    axes = _normalised_axes("rms_norm", x, normalized_shape)
    _check_affine("rms_norm", x, axes, weight=weight)
    given = _epsilon(x.dtype.compute) if eps is None else eps
    epsilon = float(build.number("rms_norm", "eps", given))
    wide = widened(x)
    rstd = expand_dims(rsqrt(mean(wide * wide, axis=axes) + epsilon), axes)
    return astype(scaled(wide * rstd, weight), x.dtype), rstd


def rms_norm_backward(
    dy: Array,
    rstd: Array,
    x: Array,
    normalized_shape: ShapeLike,
    weight: Array | None = None,
) -> tuple[Array, Array]:
    """The gradients of x and weight; without a weight its place counts as ones."""
    op = "rms_norm_backward"
    x = check_float(op, x)
    check_shape(op, "dy", dy, x.tensor.shape, of="x")
    axes = _normalised_axes(op, x, normalized_shape)
    _check_affine(op, x, axes, weight=weight)
    _check_saved(op, x, axes, rstd=rstd)
    wide_dy = widened(dy)
    xhat = widened(x) * rstd
    g = scaled(wide_dy, weight)
    dx = (g - xhat * mean(g * xhat, axis=axes, keepdims=True)) * rstd
    dw = sum(wide_dy * xhat, axis=tuple(range(axes[0])))
    return astype(dx, x.dtype), astype(dw, x.dtype if weight is None else weight.dtype)


# --- group_norm ---------------------------------------------------------------------------------


def _grouped_shape(op: str, x: Array, num_groups: int) -> tuple[Expr, ...]:
    """(batch, groups, channels per group, ...)."""
    check_rank(op, x, 2, "(batch, channels, ...)")
    batch, channels, *rest = x.tensor.shape
    num_groups = build.integer(op, "num_groups", num_groups)
    if num_groups < 1 or mul(floordiv(channels, num_groups), num_groups) != channels:
        raise UserError(
            f"{op}: num_groups={num_groups} does not divide the {channels} channels of x, axis 1; "
            "use a divisor (a symbolic size declares its own with multiple_of)"
        )
    return (batch, as_expr(num_groups), floordiv(channels, num_groups), *rest)


def _grouped_vector(
    op: str, what: str, v: Array | None, x: Array, shape: tuple[Expr, ...]
) -> Array | None:
    """A vector over channels, in the compute dtype, along the axes of the grouped shape."""
    if v is None:
        return None
    check_shape(op, what, check_float(f"{op} ({what})", v), x.tensor.shape[1:2], of="axis 1 of x")
    return expand_dims(reshape(widened(v), shape[1:3]), (0, *range(3, len(shape))))


def group_norm(
    x: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> Array:
    """x of shape (batch, channels, ...), normalised over each of `num_groups` groups of adjacent
    channels with all that follows; weight and bias have one entry per channel.

    Source: Wu and He, Group normalization (2018).
    """
    return group_norm_forward(x, num_groups, weight, bias, eps)[0]


def group_norm_forward(
    x: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> tuple[Array, Array, Array]:
    """`group_norm`, the mean and 1 / sqrt(var + eps), of shape (batch, groups)."""
    x = check_float("group_norm", x)
    shape = _grouped_shape("group_norm", x, num_groups)
    w = _grouped_vector("group_norm", "weight", weight, x, shape)
    b = _grouped_vector("group_norm", "bias", bias, x, shape)
    axes = tuple(range(2, len(shape)))
    rest, m = centred(reshape(widened(x), shape), axes)
    rstd = rsqrt(mean(rest * rest, axis=axes) + float(build.number("group_norm", "eps", eps)))
    xhat = rest * expand_dims(rstd, axes)
    y = astype(shifted(scaled(xhat, w), b), x.dtype)
    return reshape(y, x.shape), m, rstd


def group_norm_backward(
    dy: Array,
    mean: Array,
    rstd: Array,
    x: Array,
    num_groups: int,
    weight: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The gradients of x, weight and bias; without a weight its place counts as ones."""
    op = "group_norm_backward"
    x = check_float(op, x)
    check_shape(op, "dy", dy, x.tensor.shape, of="x")
    shape = _grouped_shape(op, x, num_groups)
    check_shape(op, "mean", mean, shape[:2], of="(batch, groups)")
    check_shape(op, "rstd", rstd, shape[:2], of="(batch, groups)")
    w = _grouped_vector(op, "weight", weight, x, shape)
    axes = tuple(range(2, len(shape)))
    scale = expand_dims(rstd, axes)
    g = reshape(widened(dy), shape)
    xhat = (reshape(widened(x), shape) - expand_dims(mean, axes)) * scale
    dx = astype(standardised_backward(scaled(g, w), xhat, scale, axes), x.dtype)
    others = (0, *range(3, len(shape)))
    dtype = x.dtype if weight is None else weight.dtype
    dw = astype(sum(g * xhat, axis=others), dtype)
    db = astype(sum(g, axis=others), dtype)
    channels = x.shape[1:2]
    return reshape(dx, x.shape), reshape(dw, channels), reshape(db, channels)
