"""Normalisations of aten that are taken whole."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.core.expr import IntLike
from fusewright.frontends.torch.library import aten
from fusewright.frontends.torch.promotion import cast_to
from fusewright.frontends.torch.table import Dtypes, lowers
from fusewright.fusion import build, ops
from fusewright.fusion.array import Array


def _standardised(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array, Array]:
    """The values less their mean and over their deviation, the mean, and 1 / deviation, in the
    compute dtype with the axes kept."""
    wide = ops.astype(x, x.dtype.compute)
    mean = ops.mean(wide, axis=axes, keepdims=True)
    rest = wide - mean
    variance = ops.mean(rest * rest, axis=axes, keepdims=True)
    rstd = ops.rsqrt(variance + cast_to(eps, wide.dtype))
    return rest * rstd, mean, rstd


def _affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        x = x * ops.astype(weight, x.dtype)
    return x if bias is None else x + ops.astype(bias, x.dtype)


@lowers(aten.native_layer_norm)
def _layer_norm(
    out: Dtypes,
    x: Array,
    normalized_shape: Sequence[IntLike],
    weight: Array | None,
    bias: Array | None,
    eps: float,
) -> tuple[Array, Array, Array]:
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    xhat, mean, rstd = _standardised(x, axes, eps)
    y = _affine(xhat, weight, bias)
    return cast_to(y, out[0]), cast_to(mean, out[1]), cast_to(rstd, out[2])


@lowers(aten.native_group_norm)
def _group_norm(
    out: Dtypes,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    batch: IntLike,
    channels: IntLike,
    _spatial: IntLike,
    groups: int,
    eps: float,
) -> tuple[Array, Array, Array]:
    grouped = ops.reshape(x, (batch, groups, -1))
    xhat, mean, rstd = _standardised(grouped, (2,), eps)
    per_channel = (1, channels, *(1,) * (x.ndim - 2))
    scale = None if weight is None else ops.reshape(weight, per_channel)
    shift = None if bias is None else ops.reshape(bias, per_channel)
    y = _affine(ops.reshape(xhat, x.shape), scale, shift)
    return (
        cast_to(y, out[0]),
        cast_to(ops.squeeze(mean, 2), out[1]),
        cast_to(ops.squeeze(rstd, 2), out[2]),
    )


@lowers(aten._native_batch_norm_legit_no_training)
def _batch_norm_inference(
    out: Dtypes,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    wide = ops.astype(x, x.dtype.compute)
    shape = (1, x.shape[1], *(1,) * (x.ndim - 2))

    def column(v: Array) -> Array:
        return ops.reshape(ops.astype(v, wide.dtype), shape)

    rstd = ops.rsqrt(column(running_var) + cast_to(eps, wide.dtype))
    y = (wide - column(running_mean)) * rstd
    y = _affine(
        y, None if weight is None else column(weight), None if bias is None else column(bias)
    )
    nothing = [Array(build.full((build.as_expr(0),), 0, d)) for d in out[1:]]
    return cast_to(y, out[0]), nothing[0], nothing[1]
