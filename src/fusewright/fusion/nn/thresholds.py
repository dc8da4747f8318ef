"""Activations that bend at thresholds, and those made of them, under their torch.nn.functional
names. Results have x's dtype, NaN stays NaN, and every function raises UserError for arrays that
are not floats."""

from __future__ import annotations

from fusewright.errors import UserError
from fusewright.fusion import build, ops
from fusewright.fusion.array import Array
from fusewright.fusion.nn.activations import log_of_one_plus_exp
from fusewright.fusion.nn.arguments import check_float, per_channel
from fusewright.fusion.nn.softmaxes import softmax
from fusewright.fusion.ops import clip, expm1, logical_and, where

_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


def hardtanh(x: Array, min_val: float = -1.0, max_val: float = 1.0) -> Array:
    """x limited to [min_val, max_val]. Raises UserError where min_val is above max_val."""
    low, high = (
        build.number("hardtanh", n, v) for n, v in (("min_val", min_val), ("max_val", max_val))
    )
    if low > high:
        raise UserError(f"hardtanh: min_val={low} is above max_val={high}; exchange them")
    return clip(check_float("hardtanh", x), float(low), float(high))


def relu6(x: Array) -> Array:
    """x limited to [0, 6]."""
    return clip(check_float("relu6", x), 0.0, 6.0)


def hardsigmoid(x: Array) -> Array:
    """min(max(x + 3, 0), 6) / 6."""
    return clip(check_float("hardsigmoid", x) + 3.0, 0.0, 6.0) * (1.0 / 6.0)


def threshold(x: Array, threshold: float, value: float) -> Array:
    """x where it is above the threshold, else the value."""
    limit = float(build.number("threshold", "threshold", threshold))
    x = check_float("threshold", x)
    return where(x <= limit, float(build.number("threshold", "value", value)), x)


def hardshrink(x: Array, lambd: float = 0.5) -> Array:
    """x outside of [-lambd, lambd], 0 inside."""
    x = check_float("hardshrink", x)
    return where(_is_small("hardshrink", x, lambd), 0, x)


def softshrink(x: Array, lambd: float = 0.5) -> Array:
    """x moved towards 0 by lambd; 0 in [-lambd, lambd]."""
    x = check_float("softshrink", x)
    is_small = _is_small("softshrink", x, lambd)
    return where(is_small, 0, where(x > 0, x - float(lambd), x + float(lambd)))


def _is_small(op: str, x: Array, lambd: float) -> Array:
    if not build.number(op, "lambd", lambd) >= 0:
        raise UserError(f"{op}: lambd={lambd!r} must not be negative")
    return logical_and(x >= -float(lambd), x <= float(lambd))


def prelu(x: Array, weight: Array) -> Array:
    """x where it is positive, else x times the weight: one, or one for each channel, of axis 1 (of
    axis 0 of a vector). Raises UserError for a weight of another size."""
    x, weight = check_float("prelu", x), check_float("prelu (weight)", weight)
    axis = min(1, x.ndim - 1)
    if weight.ndim > 1 or not (
        build.element_count(weight.tensor.shape) == build.as_expr(1)
        or (x.ndim and weight.tensor.shape[0] == x.tensor.shape[axis])
    ):
        raise UserError(
            f"prelu: weight has shape {build.shape_text(weight.shape)} for x of shape "
            f"{build.shape_text(x.shape)}; give one weight, or a vector of one for each channel, "
            f"of axis {axis}"
        )
    is_each = weight.ndim == 1 and x.ndim > 0 and not build.is_one(weight.tensor.shape[0])
    slope = per_channel(weight, x.ndim, axis) if is_each else ops.reshape(weight, (1,) * x.ndim)
    return where(x > 0, x, x * slope)


# --- exponential --------------------------------------------------------------------------------


def celu(x: Array, alpha: float = 1.0) -> Array:
    """x where it is positive, else alpha * (exp(x / alpha) - 1). Raises UserError for alpha = 0."""
    x = check_float("celu", x)
    if not build.number("celu", "alpha", alpha):
        raise UserError("celu: alpha=0 divides by zero; use relu, its limit")
    return where(x > 0, x, expm1(negative_part(x) / float(alpha)) * float(alpha))


def selu(x: Array) -> Array:
    """scale * x where x is positive, else scale * alpha * (exp(x) - 1), with the two numbers that
    keep mean 0 and variance 1. Source: Klambauer et al., Self-normalizing networks (2017)."""
    x = check_float("selu", x)
    return where(x > 0, x, expm1(negative_part(x)) * _SELU_ALPHA) * _SELU_SCALE


def negative_part(x: Array) -> Array:
    """x where it is not positive, else 0: what an exponential takes of which only that part is
    used, so that its derivative is finite elsewhere too."""
    return where(x > 0, 0, x)


def logsigmoid(x: Array) -> Array:
    """log(sigmoid(x)) without overflow."""
    x = check_float("logsigmoid", x)
    return -log_of_one_plus_exp(-x)


def softsign(x: Array) -> Array:
    """x / (1 + |x|)."""
    x = check_float("softsign", x)
    return x / (1.0 + ops.abs(x))


def tanhshrink(x: Array) -> Array:
    """x - tanh(x)."""
    x = check_float("tanhshrink", x)
    return x - ops.tanh(x)


def softmin(x: Array, axis: int = -1) -> Array:
    """softmax(-x) along the axis."""
    return softmax(-check_float("softmin", x), axis)


__all__ = [
    "celu",
    "hardshrink",
    "hardsigmoid",
    "hardtanh",
    "logsigmoid",
    "negative_part",
    "prelu",
    "relu6",
    "selu",
    "softmin",
    "softshrink",
    "softsign",
    "tanhshrink",
    "threshold",
]
