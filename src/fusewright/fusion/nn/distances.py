"""Norms along an axis, distances and similarities, under their torch.nn.functional names, computed
in the compute dtype. Every function raises UserError for arrays that are not floats."""

from __future__ import annotations

import math

from fusewright.core.expr import add
from fusewright.errors import UserError
from fusewright.fusion import build, ops
from fusewright.fusion.array import Array, common_dtype
from fusewright.fusion.nn.arguments import check_float, check_rank, widened
from fusewright.fusion.nn.windows import Window, read_place
from fusewright.fusion.operands import check_flag
from fusewright.fusion.ops import astype, maximum
from fusewright.fusion.ops.roots import root


def normalize(x: Array, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Array:
    """x over the p-norm along the axis, or over eps where that is less."""
    x = check_float("normalize", x)
    wide = widened(x)
    least = float(build.number("normalize", "eps", eps))
    return astype(wide / maximum(norm("normalize", wide, p, axis, keepdims=True), least), x.dtype)


def norm(op: str, x: Array, p: float, axis: int, *, keepdims: bool) -> Array:
    """The p-norm along an axis, the largest magnitude for p = inf."""
    along = build.axis_of(op, axis, x.ndim)
    if isinstance(p, float) and p == math.inf:
        return ops.max(ops.abs(x), axis=along, keepdims=keepdims)
    power = float(build.number(op, "p", p))
    if power <= 0:
        raise UserError(f"{op}: p={p!r} must be positive; math.inf is the largest magnitude")
    if power == 1:
        return ops.sum(ops.abs(x), axis=along, keepdims=keepdims)
    if power == 2:
        return root(ops.sum(x * x, axis=along, keepdims=keepdims))
    return root(ops.sum(ops.abs(x) ** power, axis=along, keepdims=keepdims), power)


def cosine_similarity(x1: Array, x2: Array, axis: int = 1, eps: float = 1e-8) -> Array:
    """The products of x1 and x2, summed along the axis, over both norms, each eps at least."""
    op = "cosine_similarity"
    a, b, dtype = pair(op, x1, x2)
    least = float(build.number(op, "eps", eps))
    along = build.axis_of(op, axis, max(a.ndim, b.ndim))
    a, b = ops.broadcast_arrays(a, b)
    sizes = (maximum(norm(op, v, 2, along, keepdims=False), least) for v in (a, b))
    first, second = sizes
    return astype(ops.sum(a * b, axis=along) / (first * second), dtype)


def pair(op: str, x1: Array, x2: Array) -> tuple[Array, Array, object]:
    """Two arrays of floats in the compute dtype, and the dtype of a result."""
    a, b = check_float(op, x1), check_float(f"{op} (x2)", x2)
    return widened(a), widened(b), common_dtype(op, (a, b))


def pairwise_distance(
    x1: Array, x2: Array, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False
) -> Array:
    """The p-norm of x1 - x2 + eps along the last axis."""
    op = "pairwise_distance"
    check_flag(op, "keepdims", keepdims)
    a, b, dtype = pair(op, x1, x2)
    small = float(build.number(op, "eps", eps))
    return astype(norm(op, a - b + small, p, -1, keepdims=bool(keepdims)), dtype)


def local_response_norm(
    x: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Array:
    """x / (k + alpha * mean)**beta, with the mean of the squares of `size` channels of axis 1
    around each, 0 beyond the ends. Source: Krizhevsky et al., ImageNet classification (2012).
    Raises UserError for windows of no channel."""
    op = "local_response_norm"
    x = check_float(op, x)
    check_rank(op, x, 3, "(batch, channels, ...)")
    length = build.integer(op, "size", size)
    if length < 1:
        raise UserError(f"{op}: size={size}: windows hold one channel or more")
    share = float(build.number(op, "alpha", alpha)) / length
    power, least = float(build.number(op, "beta", beta)), float(build.number(op, "k", k))
    wide = widened(x)
    extent = x.tensor.shape[1]
    window = Window(1, extent, add(extent, 0), length, 1, 1, length // 2)
    squares = wide * wide
    total = read_place(squares, [window], (0,), 0)
    for at in range(1, length):
        total = total + read_place(squares, [window], (at,), 0)
    return astype(wide / (total * share + least) ** power, x.dtype)


__all__ = ["cosine_similarity", "local_response_norm", "normalize", "pairwise_distance"]
