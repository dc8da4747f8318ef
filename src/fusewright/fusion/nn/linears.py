"""The linear map of torch.nn.functional, and its gradients."""

from __future__ import annotations

from fusewright.core.expr import IntLike
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array
from fusewright.fusion.nn.arguments import check_float, check_rank, check_shape, widened
from fusewright.fusion.ops import astype, reshape, sum


def _with_matrix(op: str, x: Array, weight: Array) -> tuple[Array, Array]:
    """x and the weight, which fit each other."""
    x, weight = check_float(op, x), check_float(f"{op} (weight)", weight)
    check_rank(op, x, 1, "(..., in)")
    if weight.ndim != 2 or weight.tensor.shape[1] != x.tensor.shape[-1]:
        raise UserError(
            f"{op}: weight has shape {build.shape_text(weight.shape)}, x "
            f"{build.shape_text(x.shape)}: weight is (out, in), with in the size of x's last axis"
        )
    return x, weight


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x @ weight.T + bias: x of shape (..., in), weight (out, in), bias (out,)."""
    x, weight = _with_matrix("linear", x, weight)
    y = x @ weight.mT
    if bias is None:
        return y
    check_shape("linear", "bias", bias, weight.tensor.shape[:1], of="axis 0 of weight")
    return y + bias


def linear_backward(dy: Array, x: Array, weight: Array) -> tuple[Array, Array, Array]:
    """The gradients of x, weight and bias, that of the bias in weight's dtype."""
    op = "linear_backward"
    x, weight = _with_matrix(op, x, weight)
    expected = (*x.tensor.shape[:-1], weight.tensor.shape[0])
    dy = check_shape(op, "dy", dy, expected, of="the result of linear")
    rows, columns = _matrix(dy), _matrix(x)
    db = astype(sum(widened(rows), axis=0), weight.dtype)
    return dy @ weight, rows.mT @ columns, db


def _matrix(x: Array) -> Array:
    """x with its leading axes as one."""
    total: IntLike = build.element_count(x.tensor.shape[:-1])
    return reshape(x, (total, x.shape[-1]))
