"""softmax and log_softmax, and their gradients.

Computed in the compute dtype, rounded to the argument's. The maximum is taken off first, so nothing
overflows. A row of -inf gives NaN, as torch has it.
"""

from __future__ import annotations

from fusewright.fusion import build
from fusewright.fusion.array import Array
from fusewright.fusion.derivatives import without_gradient
from fusewright.fusion.nn.arguments import check_float, check_shape, widened
from fusewright.fusion.ops import astype, exp, log, max, sum


def softmax(x: Array, axis: int = -1, dtype: object = None) -> Array:
    """exp(x) / sum(exp(x)) along the axis; x is cast to `dtype` first if that is given."""
    x = check_float("softmax", x if dtype is None else astype(x, dtype))
    along = build.axis_of("softmax", axis, x.ndim)
    wide = widened(x)
    e = exp(wide - without_gradient(max(wide, axis=along, keepdims=True)))
    return astype(e / sum(e, axis=along, keepdims=True), x.dtype)


def log_softmax(x: Array, axis: int = -1, dtype: object = None) -> Array:
    """x - log(sum(exp(x))) along the axis; x is cast to `dtype` first if that is given."""
    x = check_float("log_softmax", x if dtype is None else astype(x, dtype))
    along = build.axis_of("log_softmax", axis, x.ndim)
    wide = widened(x)
    shifted = wide - without_gradient(max(wide, axis=along, keepdims=True))
    return astype(shifted - log(sum(exp(shifted), axis=along, keepdims=True)), x.dtype)


def _pair(op: str, dy: Array, y: Array) -> tuple[Array, Array]:
    y = check_float(op, y)
    check_shape(op, "dy", dy, y.tensor.shape, of="y")
    return widened(check_float(f"{op} (dy)", dy)), widened(y)


def softmax_backward(dy: Array, y: Array, axis: int) -> Array:
    """y * (dy - sum(dy * y)), y the result of softmax."""
    wide_dy, wide_y = _pair("softmax_backward", dy, y)
    along = build.axis_of("softmax_backward", axis, y.ndim)
    rest = wide_dy - sum(wide_dy * wide_y, axis=along, keepdims=True)
    return astype(wide_y * rest, dy.dtype)


def log_softmax_backward(dy: Array, y: Array, axis: int) -> Array:
    """dy - exp(y) * sum(dy), y the result of log_softmax."""
    wide_dy, wide_y = _pair("log_softmax_backward", dy, y)
    along = build.axis_of("log_softmax_backward", axis, y.ndim)
    total = sum(wide_dy, axis=along, keepdims=True)
    return astype(wide_dy - exp(wide_y) * total, dy.dtype)
