"""Normalisations of aten that are taken whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fusewright.core.expr import IntLike, add
from fusewright.errors import UnsupportedError
from fusewright.frontends.torch.library import aten
from fusewright.frontends.torch.promotion import cast_to
from fusewright.frontends.torch.table import Dtypes, lowers
from fusewright.fusion import build, ops
from fusewright.fusion.array import Array


class _Standardised(NamedTuple):
    """Values less their mean and over their deviation, the mean, the mean square of the rest, and
    1 / deviation, in the compute dtype with the axes kept."""

    values: Array
    mean: Array
    variance: Array
    rstd: Array


def _standardised(x: Array, axes: tuple[int, ...], eps: float) -> _Standardised:
    wide = ops.astype(x, x.dtype.compute)
    mean = ops.mean(wide, axis=axes, keepdims=True)
    rest = wide - mean
    variance = ops.mean(rest * rest, axis=axes, keepdims=True)
    rstd = ops.rsqrt(variance + cast_to(eps, wide.dtype))
    return _Standardised(rest * rstd, mean, variance, rstd)


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
    xhat, mean, _, rstd = _standardised(x, axes, eps)
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
    """The axes behind the channels stay apart: an image may lie channels last, where what one axis
    of them and the channels would span is no run."""
    grouped = ops.reshape(x, (batch, groups, -1, *x.shape[2:]))
    axes = tuple(range(2, grouped.ndim))
    xhat, mean, _, rstd = _standardised(grouped, axes, eps)
    per_channel = (1, channels, *(1,) * (x.ndim - 2))
    scale = None if weight is None else ops.reshape(weight, per_channel)
    shift = None if bias is None else ops.reshape(bias, per_channel)
    y = _affine(ops.reshape(xhat, x.shape), scale, shift)
    return (
        cast_to(y, out[0]),
        cast_to(ops.squeeze(mean, axes), out[1]),
        cast_to(ops.squeeze(rstd, axes), out[2]),
    )


@lowers(aten._native_batch_norm_legit_functional)
def _batch_norm_training(
    out: Dtypes,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, ...]:
    """The running variance is that of a sample: the mean square over n - 1 instead of n."""
    if not training:
        raise UnsupportedError("batch norm by running statistics that also returns them")
    axes = tuple(a for a in range(x.ndim) if a != 1)
    xhat, *statistics = _standardised(x, axes, eps)
    mean, variance, rstd = (ops.squeeze(v, axes) for v in statistics)
    shape = (1, x.shape[1], *(1,) * (x.ndim - 2))
    scale, shift = (None if v is None else ops.reshape(v, shape) for v in (weight, bias))
    count = build.element_count(tuple(x.tensor.shape[a] for a in axes))
    sizes = (Array(build.size(n, mean.dtype)) for n in (count, add(count, -1)))
    sampled = variance * ops.divide(*sizes)

    def moved(before: Array, now: Array) -> Array:
        kept = cast_to(1.0 - momentum, now.dtype) * ops.astype(before, now.dtype)
        return cast_to(momentum, now.dtype) * now + kept

    y = _affine(xhat, scale, shift)
    results = (y, mean, rstd, moved(running_mean, mean), moved(running_var, sampled))
    return tuple(cast_to(r, d) for r, d in zip(results, out, strict=True))


@lowers(aten._native_batch_norm_legit.no_stats)
def _batch_norm_alone(
    out: Dtypes,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, ...]:
    """Batch norm that keeps no statistics: of the batch at hand, whatever `training` says."""
    axes = tuple(a for a in range(x.ndim) if a != 1)
    xhat, mean, _, rstd = _standardised(x, axes, eps)
    shape = (1, x.shape[1], *(1,) * (x.ndim - 2))
    scale, shift = (None if v is None else ops.reshape(v, shape) for v in (weight, bias))
    results = (_affine(xhat, scale, shift), ops.squeeze(mean, axes), ops.squeeze(rstd, axes))
    return tuple(cast_to(r, d) for r, d in zip(results, out, strict=True))


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
