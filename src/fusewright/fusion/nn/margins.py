"""Losses that ask for a margin, under their torch.nn.functional names.

Computed in the compute dtype; the result has the first argument's dtype. `reduction` is "none",
"mean" or "sum". Every function raises UserError for shapes that do not fit and unknown reductions.
"""

from __future__ import annotations

from fusewright.errors import UserError
from fusewright.fusion import build, ops
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.nn.arguments import check_choice, check_float, check_shape, widened
from fusewright.fusion.nn.distances import pairwise_distance
from fusewright.fusion.nn.losses import REDUCTIONS, broadcasting, pair, reduced
from fusewright.fusion.operands import check_category, check_flag
from fusewright.fusion.ops import equal, expand_dims, maximum, take, take_along_axis, where


def _margin(op: str, margin: float) -> float:
    return float(build.number(op, "margin", margin))


def hinge_embedding_loss(
    x: Array, target: Array, margin: float = 1.0, *, reduction: str = "mean"
) -> Array:
    """x where the target is 1, max(0, margin - x) where it is -1."""
    a, t = pair("hinge_embedding_loss", x, target, reduction)
    above = maximum(_margin("hinge_embedding_loss", margin) - a, 0)
    return reduced(where(equal(t, 1), a, where(equal(t, -1), above, a + above)), reduction, x.dtype)


def margin_ranking_loss(
    x1: Array, x2: Array, target: Array, margin: float = 0.0, *, reduction: str = "mean"
) -> Array:
    """max(0, margin - target * (x1 - x2)): x1 is to be above x2 for a target of 1, below for -1."""
    op = "margin_ranking_loss"
    a, b = pair(op, x1, x2, reduction)
    t = broadcasting(op, "target", target, x1)
    return reduced(maximum(_margin(op, margin) - t * (a - b), 0), reduction, x1.dtype)


def cosine_embedding_loss(
    x1: Array, x2: Array, target: Array, margin: float = 0.0, *, reduction: str = "mean"
) -> Array:
    """1 - c where the target is 1, max(0, c - margin) where it is -1, with c the cosine of the
    angle between x1 and x2 along their last axis."""
    op = "cosine_embedding_loss"
    a, b = pair(op, x1, x2, reduction)
    t = widened(
        check_shape(op, "target", target, a.tensor.shape[:-1], of="x1 but for its last axis")
    )
    products, of_a, of_b = (ops.sum(v, axis=-1) for v in (a * b, a * a, b * b))
    small = 1e-12  # torch's
    cosine = products / ops.sqrt((of_a + small) * (of_b + small))
    apart = maximum(cosine - _margin(op, margin), 0)
    return reduced(
        where(equal(t, 1), 1.0 - cosine, where(equal(t, -1), apart, 0)), reduction, x1.dtype
    )


def triplet_margin_loss(
    anchor: Array,
    positive: Array,
    negative: Array,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    *,
    reduction: str = "mean",
) -> Array:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), d as `pairwise_distance`; with
    `swap` the less of the negative's distances to both others."""
    op = "triplet_margin_loss"
    check_flag(op, "swap", swap)
    check_choice(op, "reduction", reduction, REDUCTIONS)
    a = widened(check_float(op, anchor))
    near, far = (
        widened(check_float(f"{op} ({n})", v))
        for n, v in (("positive", positive), ("negative", negative))
    )
    other = pairwise_distance(a, far, p, eps)
    if swap:
        other = ops.minimum(other, pairwise_distance(near, far, p, eps))
    loss = maximum(pairwise_distance(a, near, p, eps) - other + _margin(op, margin), 0)
    return reduced(loss, reduction, anchor.dtype)


def multi_margin_loss(
    x: Array,
    target: Array,
    p: int = 1,
    margin: float = 1.0,
    weight: Array | None = None,
    *,
    reduction: str = "mean",
) -> Array:
    """The mean over classes j of max(0, margin - x[target] + x[j])**p, but for the target's own,
    times the weight of the target's class. x is (samples, classes), p 1 or 2. Raises UserError for
    other shapes."""
    op = "multi_margin_loss"
    check_choice(op, "reduction", reduction, REDUCTIONS)
    x, target = check_float(op, x), check_array(f"{op} (target)", target)
    check_category(f"{op} (target)", target.dtype, "integer")
    if x.ndim != 2 or target.tensor.shape != x.tensor.shape[:1]:
        raise UserError(
            f"{op}: x has shape {build.shape_text(x.shape)} and target "
            f"{build.shape_text(target.shape)}; they are (samples, classes) and (samples,)"
        )
    if build.integer(op, "p", p) not in (1, 2):
        raise UserError(f"{op}: p={p}: it is 1 or 2")
    wide, at = widened(x), expand_dims(target, 1)
    over = maximum(_margin(op, margin) - take_along_axis(wide, at, axis=1) + wide, 0)
    over = over if p == 1 else over * over
    if weight is not None:
        check_shape(op, "weight", weight, x.tensor.shape[1:], of="axis 1 of x")
        over = over * expand_dims(widened(take(weight, target)), 1)
    classes = Array(build.iota(x.tensor.shape, 1, target.dtype))
    return reduced(ops.mean(where(equal(classes, at), 0, over), axis=1), reduction, x.dtype)


__all__ = [
    "cosine_embedding_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "multi_margin_loss",
    "triplet_margin_loss",
]
