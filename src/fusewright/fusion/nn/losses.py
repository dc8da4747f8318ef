"""Losses between arrays of one shape, under their torch.nn.functional names.

Computed in the compute dtype; the result has the input's dtype. `reduction` is "none", "mean" or
"sum". Every function raises UserError for unequal shapes and unknown reductions.
"""

from __future__ import annotations

from fusewright.dtypes import DType
from fusewright.errors import UserError
from fusewright.fusion import build, ops
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.nn.activations import log_of_one_plus_exp
from fusewright.fusion.nn.arguments import check_choice, check_float, check_shape, widened
from fusewright.fusion.operands import check_flag
from fusewright.fusion.ops import astype, equal, exp, log, where

REDUCTIONS = ("none", "mean", "sum")


def reduced(loss: Array, reduction: str, dtype: DType) -> Array:
    """The loss of every element, their mean or their sum, rounded to a dtype."""
    match reduction:
        case "mean":
            loss = ops.mean(loss)
        case "sum":
            loss = ops.sum(loss)
        case _:
            pass
    return astype(loss, dtype)


def pair(op: str, x: Array, target: Array, reduction: str) -> tuple[Array, Array]:
    """x and a target of its shape, in the compute dtype."""
    check_choice(op, "reduction", reduction, REDUCTIONS)
    x = check_float(op, x)
    check_shape(op, "target", target, x.tensor.shape, of="x")
    return widened(x), widened(check_float(f"{op} (target)", target))


def mse_loss(x: Array, target: Array, *, reduction: str = "mean") -> Array:
    """(x - target)**2."""
    a, b = pair("mse_loss", x, target, reduction)
    rest = a - b
    return reduced(rest * rest, reduction, x.dtype)


def l1_loss(x: Array, target: Array, *, reduction: str = "mean") -> Array:
    """|x - target|."""
    a, b = pair("l1_loss", x, target, reduction)
    return reduced(ops.abs(a - b), reduction, x.dtype)


def smooth_l1_loss(x: Array, target: Array, *, reduction: str = "mean", beta: float = 1.0) -> Array:
    """d**2 / (2 * beta) where d = |x - target| is below beta, else d - beta / 2. Raises UserError
    for a negative beta."""
    if not build.number("smooth_l1_loss", "beta", beta) >= 0:
        raise UserError(f"smooth_l1_loss: beta={beta!r} must not be negative")
    if beta == 0:
        return l1_loss(x, target, reduction=reduction)
    a, b = pair("smooth_l1_loss", x, target, reduction)
    d = ops.abs(a - b)
    loss = where(d < float(beta), d * d * (0.5 / beta), d - 0.5 * beta)
    return reduced(loss, reduction, x.dtype)


def binary_cross_entropy_with_logits(
    x: Array,
    target: Array,
    weight: Array | None = None,
    *,
    reduction: str = "mean",
    pos_weight: Array | None = None,
) -> Array:
    """-(p * t * log(s) + (1 - t) * log(1 - s)), s = sigmoid(x), without overflow. `weight`
    multiplies the loss and `pos_weight` is p; both broadcast to x's shape."""
    op = "binary_cross_entropy_with_logits"
    a, t = pair(op, x, target, reduction)
    tail = log_of_one_plus_exp(-a)
    if pos_weight is not None:
        p = broadcasting(op, "pos_weight", pos_weight, x)
        tail = tail * ((p - 1.0) * t + 1.0)
    loss = (1.0 - t) * a + tail
    if weight is not None:
        loss = loss * broadcasting(op, "weight", weight, x)
    return reduced(loss, reduction, x.dtype)


def broadcasting(op: str, what: str, v: Array, x: Array) -> Array:
    """An array of floats that broadcasts to x's shape, in the compute dtype."""
    v = check_float(f"{op} ({what})", v)
    build.broadcast_to(f"{op} ({what})", v.tensor, check_array(op, x).tensor.shape)
    return widened(v)


def kl_div(x: Array, target: Array, *, reduction: str = "mean", log_target: bool = False) -> Array:
    """target * (log(target) - x), 0 where the target is 0; x holds logarithms, and so does the
    target if `log_target`. "batchmean" divides the sum by the size of axis 0; "mean" divides by the
    number of elements. Raises UserError for "batchmean" of rank 0."""
    choices = (*REDUCTIONS, "batchmean")
    check_choice("kl_div", "reduction", reduction, choices)
    check_flag("kl_div", "log_target", log_target)
    a, t = pair("kl_div", x, target, "sum" if reduction == "batchmean" else reduction)
    if log_target:
        loss = exp(t) * (t - a)
    else:
        loss = where(equal(t, 0), 0, t * (log(t) - a))
    if reduction != "batchmean":
        return reduced(loss, reduction, x.dtype)
    if not x.ndim:
        raise UserError("kl_div: reduction='batchmean' of an array of rank 0, which has no batch")
    batch = Array(build.size(x.tensor.shape[0], loss.dtype))
    return astype(ops.sum(loss) / batch, x.dtype)
