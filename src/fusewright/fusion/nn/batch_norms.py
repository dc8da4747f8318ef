"""Batch and instance normalisation, and their gradients.

Nothing is updated in place: the `_forward` variants return the new running statistics. Statistics
are computed in the compute dtype in two passes; results have x's dtype.
"""

from __future__ import annotations

from typing import NamedTuple

from fusewright.core.expr import as_expr, constant_value, mul
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array
from fusewright.fusion.nn.arguments import (
    check_float,
    check_rank,
    check_shape,
    element_count,
    per_channel,
    widened,
)
from fusewright.fusion.nn.norms import Axes, centred, standardised_backward
from fusewright.fusion.operands import check_flag
from fusewright.fusion.ops import astype, expand_dims, mean, rsqrt, sum

MOMENTUM = 0.1
"""How far running statistics move towards those of the input unless a call says otherwise: the
default of torch.nn.BatchNorm2d."""


class BatchNorm(NamedTuple):
    """A normalised array, the running statistics afterwards (None where none were given), and the
    mean and 1 / sqrt(var + eps) used, in the compute dtype."""

    y: Array
    running_mean: Array | None
    running_var: Array | None
    mean: Array
    rstd: Array


class Affine(NamedTuple):
    """The vectors over channels that a normalisation takes."""

    running_mean: Array | None
    running_var: Array | None
    weight: Array | None
    bias: Array | None


class _NormCall(NamedTuple):
    """One call: its name, the channel axis, and the axes the statistics are taken over."""

    op: str
    channel: int
    axes: Axes


def _others(ndim: int, axis: int) -> Axes:
    return tuple(k for k in range(ndim) if k != axis)


def _check_vectors(plan: _NormCall, x: Array, **vectors: Array | None) -> None:
    shape = (x.tensor.shape[plan.channel],)
    for what, v in vectors.items():
        if v is not None:
            check_float(f"{plan.op} ({what})", v)
            check_shape(plan.op, what, v, shape, of=f"axis {plan.channel} of x")


def _check_count(plan: _NormCall, x: Array) -> None:
    total = as_expr(1)
    for a in plan.axes:
        total = mul(total, x.tensor.shape[a])
    if constant_value(total) == 1:
        raise UserError(
            f"{plan.op}: x of shape {build.shape_text(x.shape)} has one value per statistic, whose "
            "variance is 0; statistics of the input need more than one: use the running "
            "statistics, or a larger batch"
        )


def _running(old: Array | None, found: Array, momentum: float) -> Array | None:
    """The running statistic afterwards; one per instance is averaged over the batch."""
    if old is None:
        return None
    new = mean(found, axis=0) if found.ndim == 2 else found
    return astype(widened(old) * (1.0 - momentum) + new * momentum, old.dtype)


def _with_affine(plan: _NormCall, xhat: Array, affine: Affine) -> Array:
    y = xhat
    if affine.weight is not None:
        y = y * per_channel(widened(affine.weight), y.ndim, plan.channel)
    if affine.bias is not None:
        y = y + per_channel(widened(affine.bias), y.ndim, plan.channel)
    return y


def _check_no_momentum(op: str, momentum: object) -> None:
    if float(build.number(op, "momentum", momentum)) != MOMENTUM:
        raise UserError(
            f"{op}(momentum={momentum!r}): the result holds no running statistics, so that it "
            f"would change nothing; use {op}_forward, which returns them, or leave momentum out"
        )


def _number(what: str, given: object) -> float:
    return float(build.number("batch_norm", what, given))


def _of_input(plan: _NormCall, x: Array, affine: Affine, momentum: float, eps: float) -> BatchNorm:
    """Normalised by the statistics of x."""
    _check_count(plan, x)
    wide = widened(x)
    rest, m = centred(wide, plan.axes)
    total = sum(rest * rest, axis=plan.axes)
    count = element_count(x, plan.axes, wide.dtype)
    rstd = rsqrt(total / count + eps)
    xhat = rest * expand_dims(rstd, plan.axes)
    return BatchNorm(
        astype(_with_affine(plan, xhat, affine), x.dtype),
        _running(affine.running_mean, m, momentum),
        _running(affine.running_var, total / (count - 1.0), momentum),
        m,
        rstd,
    )


def _of_running(plan: _NormCall, x: Array, affine: Affine, eps: float) -> BatchNorm:
    """Normalised by the running statistics."""
    if affine.running_mean is None or affine.running_var is None:
        raise UserError(
            f"{plan.op}: running_mean and running_var are needed to normalise by them; give both, "
            "or have the statistics of the input used"
        )
    m = widened(affine.running_mean)
    rstd = rsqrt(widened(affine.running_var) + eps)
    rest = widened(x) - per_channel(m, x.ndim, plan.channel)
    xhat = rest * per_channel(rstd, x.ndim, plan.channel)
    y = astype(_with_affine(plan, xhat, affine), x.dtype)
    return BatchNorm(y, affine.running_mean, affine.running_var, m, rstd)


def _backward(
    plan: _NormCall,
    dy: Array,
    saved: tuple[Array, Array],
    x: Array,
    weight: Array | None,
    fixed: bool,
) -> tuple[Array, Array, Array]:
    """The gradients of x, weight and bias; `fixed` statistics do not depend on x. `saved` are the
    mean and rstd, spread to x's rank."""
    m, rstd = saved
    wide_dy = widened(dy)
    xhat = (widened(x) - m) * rstd
    g = wide_dy
    if weight is not None:
        g = g * per_channel(widened(weight), x.ndim, plan.channel)
    dx = g * rstd if fixed else standardised_backward(g, xhat, rstd, plan.axes)
    others = _others(x.ndim, plan.channel)
    dtype = x.dtype if weight is None else weight.dtype
    dw = astype(sum(wide_dy * xhat, axis=others), dtype)
    db = astype(sum(wide_dy, axis=others), dtype)
    return astype(dx, x.dtype), dw, db


# --- batch_norm ---------------------------------------------------------------------------------


def _batch_plan(op: str, x: Array, axis: int) -> _NormCall:
    check_rank(op, x, 2, "(batch, channels, ...)")
    channel = build.axis_of(op, axis, x.ndim)
    return _NormCall(op, channel, _others(x.ndim, channel))


def batch_norm(
    x: Array,
    running_mean: Array | None,
    running_var: Array | None,
    weight: Array | None = None,
    bias: Array | None = None,
    training: bool = False,
    momentum: float = MOMENTUM,
    eps: float = 1e-5,
    *,
    axis: int = 1,
) -> Array:
    """(x - mean) / sqrt(var + eps) * weight + bias per channel, the channels along `axis`: with
    the statistics of x when training, else with the running ones.

    `batch_norm_forward` also returns the running statistics afterwards, which `momentum` is for:
    UserError where it is given here.
    Source: Ioffe and Szegedy, Batch normalization (2015).
    """
    _check_no_momentum("batch_norm", momentum)
    return batch_norm_forward(
        x, running_mean, running_var, weight, bias, training, momentum, eps, axis=axis
    ).y


def batch_norm_forward(
    x: Array,
    running_mean: Array | None,
    running_var: Array | None,
    weight: Array | None = None,
    bias: Array | None = None,
    training: bool = False,
    momentum: float = MOMENTUM,
    eps: float = 1e-5,
    *,
    axis: int = 1,
) -> BatchNorm:
    """`batch_norm` and its statistics, of shape (channels,). The running variance moves towards
    the unbiased estimate by `momentum`, as torch has it."""
    check_flag("batch_norm", "training", training)
    x = check_float("batch_norm", x)
    plan = _batch_plan("batch_norm", x, axis)
    affine = Affine(running_mean, running_var, weight, bias)
    _check_vectors(plan, x, **affine._asdict())
    if training:
        return _of_input(plan, x, affine, _number("momentum", momentum), _number("eps", eps))
    return _of_running(plan, x, affine, _number("eps", eps))


def batch_norm_backward(
    dy: Array,
    mean: Array,
    rstd: Array,
    x: Array,
    weight: Array | None = None,
    training: bool = True,
    *,
    axis: int = 1,
) -> tuple[Array, Array, Array]:
    """The gradients of x, weight and bias; `training` as in the forward call. Without a weight
    its place counts as ones."""
    op = "batch_norm_backward"
    check_flag(op, "training", training)
    x = check_float(op, x)
    plan = _batch_plan(op, x, axis)
    check_shape(op, "dy", dy, x.tensor.shape, of="x")
    _check_vectors(plan, x, mean=mean, rstd=rstd, weight=weight)
    spread = (per_channel(mean, x.ndim, plan.channel), per_channel(rstd, x.ndim, plan.channel))
    return _backward(plan, dy, spread, x, weight, fixed=not training)


# --- instance_norm ------------------------------------------------------------------------------


def _instance_plan(op: str, x: Array) -> _NormCall:
    check_rank(op, x, 3, "(batch, channels, space, ...)")
    return _NormCall(op, 1, tuple(range(2, x.ndim)))


def instance_norm(
    x: Array,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    weight: Array | None = None,
    bias: Array | None = None,
    use_input_stats: bool = True,
    momentum: float = MOMENTUM,
    eps: float = 1e-5,
) -> Array:
    """`batch_norm` with statistics of its own for every element of the batch: x of shape
    (batch, channels, space, ...) is normalised over space. UserError where `momentum` is given.

    Source: Ulyanov et al., Instance normalization (2016).
    """
    _check_no_momentum("instance_norm", momentum)
    return instance_norm_forward(
        x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
    ).y


def instance_norm_forward(
    x: Array,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    weight: Array | None = None,
    bias: Array | None = None,
    use_input_stats: bool = True,
    momentum: float = MOMENTUM,
    eps: float = 1e-5,
) -> BatchNorm:
    """`instance_norm` and its statistics: of shape (batch, channels) when they are the input's,
    whose average over the batch the running ones move towards."""
    check_flag("instance_norm", "use_input_stats", use_input_stats)
    x = check_float("instance_norm", x)
    plan = _instance_plan("instance_norm", x)
    affine = Affine(running_mean, running_var, weight, bias)
    _check_vectors(plan, x, **affine._asdict())
    if use_input_stats:
        return _of_input(plan, x, affine, _number("momentum", momentum), _number("eps", eps))
    return _of_running(plan, x, affine, _number("eps", eps))


def instance_norm_backward(
    dy: Array, mean: Array, rstd: Array, x: Array, weight: Array | None = None
) -> tuple[Array, Array, Array]:
    """The gradients of x, weight and bias for statistics of the input, `mean` and `rstd` of shape
    (batch, channels). Without a weight its place counts as ones."""
    op = "instance_norm_backward"
    x = check_float(op, x)
    plan = _instance_plan(op, x)
    check_shape(op, "dy", dy, x.tensor.shape, of="x")
    check_shape(op, "mean", mean, x.tensor.shape[:2], of="(batch, channels)")
    check_shape(op, "rstd", rstd, x.tensor.shape[:2], of="(batch, channels)")
    _check_vectors(plan, x, weight=weight)
    spread = (expand_dims(mean, plan.axes), expand_dims(rstd, plan.axes))
    return _backward(plan, dy, spread, x, weight, fixed=False)
