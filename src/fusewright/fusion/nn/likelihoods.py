"""Losses from likelihoods, and the robust one, under their torch.nn.functional names.

Computed in the compute dtype; the result has x's dtype. `reduction` is "none", "mean" or "sum".
Every function raises UserError for shapes that do not fit and unknown reductions.
"""

from __future__ import annotations

import math

from fusewright.errors import UserError
from fusewright.fusion import build, ops
from fusewright.fusion.array import Array
from fusewright.fusion.nn.activations import log_of_one_plus_exp
from fusewright.fusion.nn.losses import broadcasting, pair, reduced
from fusewright.fusion.operands import check_flag
from fusewright.fusion.ops import exp, log, log1p, maximum, where

_LEAST_LOG = -100.0  # torch's: a loss and its gradient stay finite at probabilities of 0 and 1


def huber_loss(x: Array, target: Array, *, reduction: str = "mean", delta: float = 1.0) -> Array:
    """d**2 / 2 where d = |x - target| is at most delta, else delta * (d - delta / 2). Raises
    UserError unless delta is positive."""
    if not build.number("huber_loss", "delta", delta) > 0:
        raise UserError(f"huber_loss: delta={delta!r} must be positive")
    a, b = pair("huber_loss", x, target, reduction)
    d, limit = ops.abs(a - b), float(delta)
    loss = where(d <= limit, d * d * 0.5, (d - 0.5 * limit) * limit)
    return reduced(loss, reduction, x.dtype)


def binary_cross_entropy(
    x: Array, target: Array, weight: Array | None = None, *, reduction: str = "mean"
) -> Array:
    """-(t * log(x) + (1 - t) * log(1 - x)) of probabilities x, logarithms -100 at least; times
    `weight`, which broadcasts to x's shape."""
    a, t = pair("binary_cross_entropy", x, target, reduction)
    loss = (t - 1.0) * maximum(log1p(-a), _LEAST_LOG) - t * maximum(log(a), _LEAST_LOG)
    if weight is not None:
        loss = loss * broadcasting("binary_cross_entropy", "weight", weight, x)
    return reduced(loss, reduction, x.dtype)


def gaussian_nll_loss(
    x: Array,
    target: Array,
    var: Array,
    full: bool = False,
    eps: float = 1e-6,
    *,
    reduction: str = "mean",
) -> Array:
    """(log(v) + (x - target)**2 / v) / 2 with v = var, eps at least, which broadcasts to x's shape;
    log(2 * pi) / 2 more if `full`. Raises UserError unless eps is positive."""
    op = "gaussian_nll_loss"
    check_flag(op, "full", full)
    a, t = pair(op, x, target, reduction)
    if not build.number(op, "eps", eps) > 0:
        raise UserError(f"{op}: eps={eps!r} must be positive")
    v = maximum(broadcasting(op, "var", var, x), float(eps))
    rest = a - t
    loss = (log(v) + rest * rest / v) * 0.5
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction, x.dtype)


def poisson_nll_loss(
    x: Array,
    target: Array,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    *,
    reduction: str = "mean",
) -> Array:
    """exp(x) - target * x of the logarithm x of a rate, or x - target * log(x + eps) of the rate
    itself; Stirling's terms of targets above 1 more if `full`."""
    op = "poisson_nll_loss"
    check_flag(op, "log_input", log_input)
    check_flag(op, "full", full)
    a, t = pair(op, x, target, reduction)
    small = float(build.number(op, "eps", eps))
    loss = exp(a) - t * a if log_input else a - t * log(a + small)
    if full:
        above = maximum(t, 1.0)
        stirling = above * log(above) - above + 0.5 * log(above * (2 * math.pi))
        loss = loss + where(t > 1, stirling, 0)
    return reduced(loss, reduction, x.dtype)


def soft_margin_loss(x: Array, target: Array, *, reduction: str = "mean") -> Array:
    """log(1 + exp(-target * x)) for targets 1 and -1, without overflow."""
    a, t = pair("soft_margin_loss", x, target, reduction)
    return reduced(log_of_one_plus_exp(-t * a), reduction, x.dtype)


def multilabel_soft_margin_loss(
    x: Array, target: Array, weight: Array | None = None, *, reduction: str = "mean"
) -> Array:
    """The mean over the last axis of -(t * log(s) + (1 - t) * log(1 - s)), s = sigmoid(x), times
    `weight`, which broadcasts to x's shape."""
    op = "multilabel_soft_margin_loss"
    a, t = pair(op, x, target, reduction)
    loss = t * log_of_one_plus_exp(-a) + (1.0 - t) * log_of_one_plus_exp(a)
    if weight is not None:
        loss = loss * broadcasting(op, "weight", weight, x)
    return reduced(ops.mean(loss, axis=-1), reduction, x.dtype)


__all__ = [
    "binary_cross_entropy",
    "gaussian_nll_loss",
    "huber_loss",
    "multilabel_soft_margin_loss",
    "poisson_nll_loss",
    "soft_margin_loss",
]
