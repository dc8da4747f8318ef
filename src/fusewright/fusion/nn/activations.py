"""Activations under their torch.nn.functional names, and their gradients.

Results have x's dtype; floats shorter than 32 bits are computed unrounded. NaN stays NaN. Every
function raises UserError for arrays that are not floats.
"""

from __future__ import annotations

import math

from fusewright.core.expr import Expr, constant_value, floordiv, mul
from fusewright.errors import UserError
from fusewright.fusion import build, ops
from fusewright.fusion.array import Array
from fusewright.fusion.derivatives import with_slope
from fusewright.fusion.nn.arguments import check_choice, check_float, check_shape
from fusewright.fusion.ops import erf, exp, expm1, log1p, maximum, minimum, where

_GELU_FORMS = ("none", "tanh")
_GELU_SLOPE = 2.0 * math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715


def _logistic(x: Array) -> Array:
    return 1.0 / (1.0 + exp(-x))


def _gradient(op: str, dy: Array, x: Array) -> tuple[Array, Array]:
    """The checked pair of a gradient and the value it belongs to."""
    x = check_float(op, x)
    check_shape(op, "dy", dy, x.tensor.shape, of="the value it belongs to")
    return check_float(f"{op} (dy)", dy), x


# --- piecewise linear ---------------------------------------------------------------------------


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return maximum(check_float("relu", x), 0)


def relu_backward(dy: Array, x: Array) -> Array:
    """dy where x > 0, else 0; `x` may also be relu's result."""
    dy, x = _gradient("relu_backward", dy, x)
    return where(x <= 0, 0, dy)


def leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    """x where it is positive, else negative_slope * x."""
    x = check_float("leaky_relu", x)
    return where(x > 0, x, x * float(build.number("leaky_relu", "negative_slope", negative_slope)))


def hardswish(x: Array) -> Array:
    """x * min(max(x + 3, 0), 6) / 6. Source: Howard et al., Searching for MobileNetV3 (2019)."""
    x = check_float("hardswish", x)
    return x * minimum(maximum(x + 3.0, 0), 6.0) * (1.0 / 6.0)


# --- exponential --------------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return _logistic(check_float("sigmoid", x))


def sigmoid_backward(dy: Array, y: Array) -> Array:
    """dy * y * (1 - y), y the result of sigmoid."""
    dy, y = _gradient("sigmoid_backward", dy, y)
    return dy * y * (1.0 - y)


def tanh(x: Array) -> Array:
    """The hyperbolic tangent."""
    return ops.tanh(check_float("tanh", x))


def tanh_backward(dy: Array, y: Array) -> Array:
    """dy * (1 - y**2), y the result of tanh."""
    dy, y = _gradient("tanh_backward", dy, y)
    return dy * (1.0 - y * y)


def elu(x: Array, alpha: float = 1.0) -> Array:
    """x where it is positive, else alpha * (exp(x) - 1)."""
    x = check_float("elu", x)
    return where(x > 0, x, expm1(where(x > 0, 0, x)) * float(build.number("elu", "alpha", alpha)))


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    x = check_float("silu", x)
    return x / (1.0 + exp(-x))


def silu_backward(dy: Array, x: Array) -> Array:
    """dy * s * (1 + x * (1 - s)), s = sigmoid(x)."""
    dy, x = _gradient("silu_backward", dy, x)
    s = _logistic(x)
    return dy * s * (1.0 + x * (1.0 - s))


def _check_beta(op: str, beta: float) -> float:
    if not build.number(op, "beta", beta) > 0:
        raise UserError(f"{op}: beta={beta!r} must be positive")
    return float(beta)


def log_of_one_plus_exp(z: Array) -> Array:
    """log(1 + exp(z)) without overflow. The derivative is one of the smooth function, at 0, too,
    where the absolute value has none."""
    return with_slope(maximum(z, 0) + log1p(exp(-ops.abs(z))), z, lambda: _logistic(z))


def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """log(1 + exp(beta * x)) / beta; x itself where beta * x > threshold."""
    x = check_float("softplus", x)
    beta = _check_beta("softplus", beta)
    z, threshold = x * beta, build.number("softplus", "threshold", threshold)
    return where(z > float(threshold), x, log_of_one_plus_exp(z) / beta)


def softplus_backward(dy: Array, x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """dy * sigmoid(beta * x); dy itself where beta * x > threshold."""
    dy, x = _gradient("softplus_backward", dy, x)
    z = x * _check_beta("softplus_backward", beta)
    threshold = build.number("softplus_backward", "threshold", threshold)
    return where(z > float(threshold), dy, dy * _logistic(z))


def mish(x: Array) -> Array:
    """x * tanh(softplus(x)). Source: Misra, Mish: a self regularized activation (2019)."""
    x = check_float("mish", x)
    return x * ops.tanh(log_of_one_plus_exp(x))


# --- gelu ---------------------------------------------------------------------------------------


def _gelu_gate(x: Array) -> Array:
    """0.5 * (1 + tanh(u)) as 1 / (1 + exp(-2u)), which does not cancel for negative x."""
    return _logistic((x + x * x * x * _GELU_CUBIC) * _GELU_SLOPE)


def _normal_cdf(x: Array) -> Array:
    return 0.5 * (1.0 + erf(x * math.sqrt(0.5)))


def gelu(x: Array, approximate: str = "none") -> Array:
    """x * P(N <= x) of a standard normal N; "tanh" replaces the distribution by its approximation.

    Source: Hendrycks and Gimpel, Gaussian error linear units (2016).
    """
    x = check_float("gelu", x)
    check_choice("gelu", "approximate", approximate, _GELU_FORMS)
    return x * (_gelu_gate(x) if approximate == "tanh" else _normal_cdf(x))


def gelu_backward(dy: Array, x: Array, approximate: str = "none") -> Array:
    """The gradient of `gelu`: the distribution plus x times its density."""
    dy, x = _gradient("gelu_backward", dy, x)
    check_choice("gelu_backward", "approximate", approximate, _GELU_FORMS)
    if approximate == "none":
        z = x * math.sqrt(0.5)  # as erf has it, so that fast forms of both share the exponential
        density = exp(-(z * z)) * (1.0 / math.sqrt(2.0 * math.pi))
        return dy * (_normal_cdf(x) + x * density)
    gate = _gelu_gate(x)
    slope = (1.0 + x * x * (3.0 * _GELU_CUBIC)) * _GELU_SLOPE
    return dy * (gate + x * gate * (1.0 - gate) * slope)


# --- gates --------------------------------------------------------------------------------------


def half_size(op: str, x: Array, axis: int) -> Expr:
    """Half the size of an axis. UserError when it is not known to be even."""
    along = build.axis_of(op, axis, x.ndim)
    extent = x.tensor.shape[along]
    half = floordiv(extent, 2)
    if mul(half, 2) != extent:
        rule = (
            "declare the symbol with multiple_of=2"
            if constant_value(extent) is None
            else "the axis holds two halves of equal size; pad or slice it first"
        )
        raise UserError(f"{op}: axis {along} has size {extent}, which is not known even: {rule}")
    return half


def halves(op: str, x: Array, axis: int) -> tuple[Array, Array]:
    """The two halves of x along an axis. UserError when its size is not known to be even."""
    along = build.axis_of(op, axis, x.ndim)
    rest = mul(half_size(op, x, axis), -1)
    return _cropped(x, along, 0, rest), _cropped(x, along, rest, 0)


def _cropped(x: Array, axis: int, low: int | Expr, high: int | Expr) -> Array:
    lows = [low if k == axis else 0 for k in range(x.ndim)]
    highs = [high if k == axis else 0 for k in range(x.ndim)]
    return Array(build.resize(x.tensor, lows, highs, 0))


def glu(x: Array, axis: int = -1) -> Array:
    """a * sigmoid(b), a and b the halves of x along the axis."""
    a, b = halves("glu", check_float("glu", x), axis)
    return a * _logistic(b)


def swiglu(gate: Array, up: Array | None = None, *, axis: int = -1) -> Array:
    """silu(gate) * up; without `up`, both are the halves of `gate` along the axis, in this order.

    Source: Shazeer, GLU variants improve transformer (2020).
    """
    gate = check_float("swiglu", gate)
    if up is None:
        gate, up = halves("swiglu", gate, axis)
    check_shape("swiglu", "up", up, gate.tensor.shape, of="gate")
    return silu(gate) * check_float("swiglu (up)", up)
