"""cross_entropy and nll_loss, and the gradient of the first.

The classes are axis 1 of x (axis 0 of a vector). A target is an integer array of x's shape without
the class axis, holding class indices, or, for cross_entropy, a float array of x's shape, holding
probabilities. The class of a target is found by comparing, in the same pass as the sums, so nothing
is gathered; an index that is no class counts as a class of its own with no logit: the loss then
misses that term, so keep indices in range.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fusewright.dtypes import DType
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.derivatives import without_gradient
from fusewright.fusion.nn.arguments import (
    check_choice,
    check_float,
    check_rank,
    check_shape,
    element_count,
    per_channel,
    widened,
)
from fusewright.fusion.nn.embeddings import is_class
from fusewright.fusion.nn.losses import REDUCTIONS
from fusewright.fusion.ops import (
    astype,
    exp,
    expand_dims,
    log,
    logical_and,
    max,
    not_equal,
    squeeze,
    sum,
    take_along_axis,
    where,
)
from fusewright.fusion.ops.gather import signed_indices


class _Labels(NamedTuple):
    """What the targets ask of each sample, in the compute dtype; `axis` is the class axis.

    `share` is the weight of each class's log-probability in the loss, and `total` its sum over the
    classes, None for 1. `hot` tells the only class that has a share, of weight `each` (None for 1);
    it is None where several have one. `valid` tells the samples that count, `inside` those whose
    target is a class, each None for all; `divisor` is what "mean" divides by. `picked` is the index
    of that class, of extent 1 along the class axis and 0 for targets outside the classes, where
    each sample has one class of weight 1.
    """

    axis: int
    hot: Array | None
    each: Array | None
    share: Array
    total: Array | None
    valid: Array | None
    inside: Array | None
    divisor: Array
    picked: Array | None = None


class _Options(NamedTuple):
    """The options of a call."""

    op: str
    ignore_index: int
    reduction: str
    label_smoothing: float


def _check_options(options: _Options) -> None:
    check_choice(options.op, "reduction", options.reduction, REDUCTIONS)
    if not 0.0 <= build.number(options.op, "label_smoothing", options.label_smoothing) <= 1.0:
        raise UserError(
            f"{options.op}: label_smoothing={options.label_smoothing!r} must lie in [0, 1]"
        )


def _class_axis(op: str, x: Array) -> int:
    check_rank(op, x, 1, "(batch, classes, ...) or (classes,)")
    return min(1, x.ndim - 1)


def _class_weight(op: str, x: Array, axis: int, weight: Array | None) -> Array | None:
    if weight is None:
        return None
    check_shape(
        op,
        "weight",
        check_float(f"{op} (weight)", weight),
        x.tensor.shape[axis : axis + 1],
        of=f"axis {axis} of x",
    )
    return per_channel(widened(weight), x.ndim, axis)


def _labels(options: _Options, x: Array, target: Array, weight: Array | None) -> _Labels:
    """What the targets ask; x gives the shape and the compute dtype."""
    op = options.op
    target = check_array(f"{op} (target)", target)
    axis = _class_axis(op, x)
    class_weight = _class_weight(op, x, axis, weight)
    if target.dtype.is_float:
        return _soft_labels(options, x, axis, target, class_weight)
    shape = x.tensor.shape
    check_shape(op, "target", target, (*shape[:axis], *shape[axis + 1 :]), of="x without classes")
    if not target.dtype.is_integer:
        raise UserError(
            f"{op}: target has dtype {target.dtype}; class indices are integers, probabilities "
            "floats; cast it with fw.astype"
        )
    return _index_labels(options, x, axis, signed_indices(target), class_weight)


def _index_labels(
    options: _Options, x: Array, axis: int, target: Array, class_weight: Array | None
) -> _Labels:
    wide = x.dtype.compute
    hot = is_class(target, x.shape[axis], axis)
    valid = not_equal(target, options.ignore_index)
    one = Array(build.constant(1.0, wide))
    each = one if class_weight is None else class_weight
    smoothing = float(options.label_smoothing)
    if smoothing:
        even = each * smoothing / element_count(x, (axis,), wide)
        share = where(hot, each * (1.0 - smoothing), 0) + even
    else:
        share = where(hot, each, 0)
    term = None if smoothing else hot
    inside = logical_and(target >= 0, target < element_count(x, (axis,), target.dtype))
    if class_weight is None:
        picked = None if smoothing else expand_dims(where(inside, target, 0), axis)
        valid_count = sum(astype(valid, wide))
        return _Labels(axis, term, None, share, None, valid, inside, valid_count, picked)
    counted = where(logical_and(hot, expand_dims(valid, axis)), class_weight, 0)
    total = sum(share, axis=axis)
    return _Labels(axis, term, class_weight, share, total, valid, inside, sum(counted))


def _soft_labels(
    options: _Options, x: Array, axis: int, target: Array, class_weight: Array | None
) -> _Labels:
    wide = x.dtype.compute
    check_shape(options.op, "target", target, x.tensor.shape, of="x")
    share = widened(target)
    smoothing = float(options.label_smoothing)
    if smoothing:
        classes = element_count(x, (axis,), wide)
        share = share * (1.0 - smoothing) + smoothing / classes
    if class_weight is not None:
        share = share * class_weight
    others = tuple(k for k in range(x.ndim) if k != axis)
    samples = element_count(x, others, wide)
    return _Labels(axis, None, None, share, sum(share, axis=axis), None, None, samples)


def _sample_losses(labels: _Labels, log_p: Array) -> Array:
    """-sum(share * log_p) over the classes."""
    if labels.hot is None:
        term = labels.share * log_p
    else:  # a class of log-probability -inf must not touch the others
        term = where(labels.hot, log_p if labels.each is None else log_p * labels.each, 0)
    return _counted(labels, -sum(term, axis=labels.axis))


def _counted(labels: _Labels, of_samples: Array) -> Array:
    """A value of every sample: 0 for what is ignored, NaN for a target that is no class."""
    if labels.inside is not None:
        of_samples = where(labels.inside, of_samples, math.nan)
    return of_samples if labels.valid is None else where(labels.valid, of_samples, 0)


def _reduced(labels: _Labels, loss: Array, reduction: str, dtype: DType) -> Array:
    if reduction != "none":
        loss = sum(loss)
    if reduction == "mean":
        loss = loss / labels.divisor
    return astype(loss, dtype)


# --- the functions ------------------------------------------------------------------------------


def nll_loss(
    x: Array,
    target: Array,
    weight: Array | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Array:
    """-weight[target] * x[target], x holding log-probabilities and target class indices. "mean"
    divides by the sum of the weights; samples with target `ignore_index` do not count, and the loss
    of a target that is no class is NaN. Raises UserError for a target of floats."""
    options = _Options("nll_loss", ignore_index, reduction, 0.0)
    _check_options(options)
    x = check_float("nll_loss", x)
    if check_array("nll_loss (target)", target).dtype.is_float:
        raise UserError(
            "nll_loss: target holds floats; it takes class indices; use cross_entropy with logits "
            "for probabilities"
        )
    labels = _labels(options, x, target, weight)
    return _reduced(labels, _sample_losses(labels, widened(x)), reduction, x.dtype)


def cross_entropy(
    x: Array,
    target: Array,
    weight: Array | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Array:
    """nll_loss of log_softmax(x): x holds logits. `label_smoothing` spreads that part of each
    target evenly over the classes. "mean" divides by the sum of the targets' weights for class
    indices, by the number of samples for probabilities; `ignore_index` is for class indices, of
    which one that is no class gives NaN."""
    return cross_entropy_forward(
        x,
        target,
        weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )[0]


def cross_entropy_forward(
    x: Array,
    target: Array,
    weight: Array | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> tuple[Array, Array]:
    """`cross_entropy` and log(sum(exp(x))) over the classes, of x's shape without them, in the
    compute dtype."""
    options = _Options("cross_entropy", ignore_index, reduction, label_smoothing)
    _check_options(options)
    x = check_float("cross_entropy", x)
    labels = _labels(options, x, target, weight)
    wide = widened(x)
    top = without_gradient(max(wide, axis=labels.axis))
    shifted = wide - expand_dims(top, labels.axis)
    log_sum = log(sum(exp(shifted), axis=labels.axis))
    if labels.picked is not None:  # reads one logit a sample instead of all of them
        chosen = widened(take_along_axis(x, labels.picked, axis=labels.axis))
        loss = _counted(labels, log_sum - (squeeze(chosen, axis=labels.axis) - top))
    else:
        loss = _sample_losses(labels, shifted - expand_dims(log_sum, labels.axis))
    return _reduced(labels, loss, reduction, x.dtype), log_sum + top


def cross_entropy_backward(
    dy: Array,
    log_sum_exp: Array,
    x: Array,
    target: Array,
    weight: Array | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Array:
    """The gradient of x; `log_sum_exp` comes from `cross_entropy_forward`, dy has the shape of the
    loss."""
    op = "cross_entropy_backward"
    options = _Options(op, ignore_index, reduction, label_smoothing)
    _check_options(options)
    x = check_float(op, x)
    labels = _labels(options, x, target, weight)
    axis, shape = labels.axis, x.tensor.shape
    samples = (*shape[:axis], *shape[axis + 1 :])
    check_shape(op, "log_sum_exp", log_sum_exp, samples, of="x without classes")
    check_shape(op, "dy", dy, samples if reduction == "none" else (), of="the loss")
    g = widened(check_float(f"{op} (dy)", dy))
    if reduction == "mean":
        g = g / labels.divisor
    g = _counted(labels, g)
    if g.ndim:
        g = expand_dims(g, axis)
    p = exp(widened(x) - expand_dims(log_sum_exp, axis))
    if labels.total is not None:
        p = p * expand_dims(labels.total, axis)
    return astype((p - labels.share) * g, x.dtype)
