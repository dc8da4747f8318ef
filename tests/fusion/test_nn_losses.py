"""Losses against float64 formulas, the gradient of cross_entropy against finite differences."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from nn_checks import assert_gradients, integers, normal, run, run1

from fusewright.errors import UserError
from fusewright.fusion import nn
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import TensorSpec
from fusewright.fusion.trace import trace

REDUCE = {"none": lambda v: v, "mean": np.mean, "sum": np.sum}


def log_softmax(x, axis):
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def cross_entropy(x, t, w=None, ignore=-100, reduction="mean", smoothing=0.0):
    """One sample after the other, for x of shape (samples, classes)."""
    w = np.ones(x.shape[1]) if w is None else w
    losses, weights = np.zeros(len(x)), np.zeros(len(x))
    for k, (row, c) in enumerate(zip(log_softmax(x, 1), t, strict=True)):
        if c != ignore:
            even = -(row * w).sum() * smoothing / len(row)
            losses[k] = -(1 - smoothing) * w[c] * row[c] + even
            weights[k] = w[c]
    return losses.sum() / weights.sum() if reduction == "mean" else REDUCE[reduction](losses)


# --- elementwise losses -------------------------------------------------------------------------

PAIRED = {
    "mse_loss": (nn.mse_loss, lambda x, t: (x - t) ** 2),
    "l1_loss": (nn.l1_loss, lambda x, t: np.abs(x - t)),
    "smooth_l1_loss": (
        lambda x, t, reduction: nn.smooth_l1_loss(x, t, reduction=reduction, beta=0.7),
        lambda x, t: np.where(np.abs(x - t) < 0.7, (x - t) ** 2 / 1.4, np.abs(x - t) - 0.35),
    ),
    "bce": (
        lambda x, t, reduction: nn.binary_cross_entropy_with_logits(
            x, nn.sigmoid(t), reduction=reduction
        ),
        lambda x, t: np.log(1 + np.exp(x)) - x / (1 + np.exp(-t)),
    ),
    "kl_div_log": (
        lambda x, t, reduction: nn.kl_div(x, t, reduction=reduction, log_target=True),
        lambda x, t: np.exp(t) * (t - x),
    ),
}


@pytest.mark.parametrize("name", PAIRED)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_paired_loss(name, reduction):
    fn, formula = PAIRED[name]
    x, t = normal(4, 5), normal(4, 5, seed=1)
    out = run1(lambda a, b: fn(a, b, reduction=reduction), x, t)
    np.testing.assert_allclose(out, REDUCE[reduction](formula(x, t)), rtol=1e-12)


def test_mean_of_short_floats_is_rounded_once():
    x = (normal(1000) + 5).astype(ml_dtypes.bfloat16)
    t = np.zeros(1000, ml_dtypes.bfloat16)
    out = run1(nn.mse_loss, x, t)
    assert out.dtype == ml_dtypes.bfloat16
    assert out == np.mean(x.astype(np.float64) ** 2).astype(ml_dtypes.bfloat16)


def test_bce_with_weights_and_large_logits():
    x = np.array([[800.0, -800.0, 0.5], [-1.0, 2.0, 800.0]])
    t = np.array([[1.0, 0.0, 0.25], [1.0, 0.0, 0.0]])
    w, p = np.array([1.0, 2.0, 3.0]), np.array([2.0, 0.5, 3.0])
    out = run1(
        lambda a, b, c, d: nn.binary_cross_entropy_with_logits(
            a, b, c, pos_weight=d, reduction="none"
        ),
        x,
        t,
        w,
        p,
    )
    expected = w * (p * t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x))
    np.testing.assert_allclose(out, expected, rtol=1e-12)


def test_kl_div_of_zero_targets_and_batchmean():
    x = np.array([[-1.0, -2.0, -np.inf], [-0.5, -0.1, -3.0]])
    t = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    terms = np.array([np.log(0.5) * 0.5 + 0.5, np.log(0.5) * 0.5 + 1.0, 0.1])
    out = run1(lambda a, b: nn.kl_div(a, b, reduction="batchmean"), x, t)
    np.testing.assert_allclose(out, terms.sum() / 2, rtol=1e-12)


def test_smooth_l1_with_beta_zero_is_l1():
    x, t = normal(6), normal(6, seed=1)
    out = run1(lambda a, b: nn.smooth_l1_loss(a, b, beta=0.0), x, t)
    np.testing.assert_allclose(out, np.abs(x - t).mean(), rtol=1e-12)


# --- cross_entropy ------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [-100, 2])
def test_cross_entropy(reduction, smoothing, weighted, ignore):
    x, t = normal(9, 5) * 3, integers(5, 9)
    w = np.abs(normal(5, seed=3)) if weighted else None
    out = run1(
        lambda *a: nn.cross_entropy(
            *a, ignore_index=ignore, reduction=reduction, label_smoothing=smoothing
        ),
        *((x, t) if w is None else (x, t, w)),
    )
    expected = cross_entropy(x, t, w, ignore, reduction, smoothing)
    np.testing.assert_allclose(out, expected, rtol=1e-11)


def test_classes_are_axis_one_and_a_vector_is_one_sample():
    x, t = normal(2, 5, 3, 4), integers(5, 2, 3, 4)
    rows = np.moveaxis(x, 1, -1).reshape(-1, 5)
    out = run1(lambda a, b: nn.cross_entropy(a, b, reduction="none"), x, t)
    expected = cross_entropy(rows, t.ravel(), reduction="none").reshape(2, 3, 4)
    np.testing.assert_allclose(out, expected, rtol=1e-11)
    one = run1(nn.cross_entropy, rows[0], t[0, 0, 0, ...])
    np.testing.assert_allclose(one, expected[0, 0, 0], rtol=1e-11)


def test_probabilities_as_targets():
    x = normal(6, 5)
    q = np.exp(normal(6, 5, seed=1))
    q /= q.sum(1, keepdims=True)
    w = np.abs(normal(5, seed=2))
    out = run1(lambda *a: nn.cross_entropy(*a, label_smoothing=0.1), x, q, w)
    soft = 0.9 * q + 0.1 / 5
    expected = -(soft * w * log_softmax(x, 1)).sum(1).mean()
    np.testing.assert_allclose(out, expected, rtol=1e-11)


def test_large_logits_and_minus_infinity_in_other_classes():
    x = np.array([[1000.0, 0.0, -np.inf], [-np.inf, -1000.0, -1001.0]])
    out = run1(lambda a, b: nn.cross_entropy(a, b, reduction="none"), x, np.array([0, 1]))
    np.testing.assert_allclose(out, [0.0, np.log1p(np.exp(-1))], rtol=1e-12)


def test_mean_over_ignored_samples_only_is_nan_and_their_sum_zero():
    x, t = normal(3, 4), np.full(3, -100)
    assert np.isnan(run1(nn.cross_entropy, x, t))
    assert run1(lambda a, b: nn.cross_entropy(a, b, reduction="sum"), x, t) == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int32, np.uint32, np.int64])
def test_every_integer_dtype_holds_class_indices(dtype):
    x, t = normal(7, 300), integers(120, 7, dtype=dtype)
    np.testing.assert_allclose(run1(nn.cross_entropy, x, t), cross_entropy(x, t), rtol=1e-11)


def test_nll_loss_is_cross_entropy_of_log_probabilities():
    x, t, w = normal(8, 5), integers(5, 8), np.abs(normal(5, seed=1))
    out = run1(lambda a, b, c: nn.nll_loss(nn.log_softmax(a, 1), b, c, ignore_index=1), x, t, w)
    np.testing.assert_allclose(out, cross_entropy(x, t, w, 1), rtol=1e-11)


def test_cross_entropy_of_symbolic_sizes():
    fusion = trace(
        lambda x, t: nn.cross_entropy(x, t, label_smoothing=0.1),
        TensorSpec(("n", "c"), "float64"),
        TensorSpec(("n",), "int64"),
    )
    for n, c in ((2, 3), (6, 11)):
        x, t = normal(n, c), integers(c, n)
        expected = cross_entropy(x, t, smoothing=0.1)
        np.testing.assert_allclose(evaluate(fusion, x, t)[0], expected, rtol=1e-11)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_gradient(reduction, smoothing, weighted):
    x, t = normal(5, 4), np.array([0, 3, -100, 1, 3])
    options = {"reduction": reduction, "label_smoothing": smoothing}

    def backward(dy, *inputs):
        _, saved = nn.cross_entropy_forward(*inputs, **options)
        return nn.cross_entropy_backward(dy, saved, *inputs, **options)

    inputs = (x, t, np.abs(normal(4, seed=1))) if weighted else (x, t)
    assert_gradients(lambda *a: nn.cross_entropy(*a, **options), backward, *inputs)


def test_cross_entropy_gradient_for_probabilities_and_more_axes():
    q = np.abs(normal(2, 3, 2, seed=1))

    def backward(dy, x, t):
        return nn.cross_entropy_backward(dy, nn.cross_entropy_forward(x, t)[1], x, t)

    assert_gradients(nn.cross_entropy, backward, normal(2, 3, 2), q)
    assert_gradients(nn.cross_entropy, backward, normal(2, 3, 2), integers(3, 2, 2))


def test_saved_log_sum_exp_is_in_float32_for_short_floats():
    x = normal(4, 6).astype(ml_dtypes.bfloat16)
    loss, saved = run(nn.cross_entropy_forward, x, integers(6, 4))
    assert (loss.dtype, saved.dtype) == (ml_dtypes.bfloat16, np.float32)
    expected = np.log(np.exp(x.astype(np.float64)).sum(1))
    np.testing.assert_allclose(saved, expected, rtol=1e-6)


# --- rejections ---------------------------------------------------------------------------------

REJECTIONS = {
    "reduction": (
        lambda x: nn.mse_loss(x, x, reduction="average"),
        (normal(3),),
        r"mse_loss: reduction='average'; use one of 'none', 'mean', 'sum'",
    ),
    "batchmean": (
        lambda x: nn.l1_loss(x, x, reduction="batchmean"),
        (normal(3),),
        r"l1_loss: reduction='batchmean'; use one of",
    ),
    "kl_div batch": (
        lambda x: nn.kl_div(x, x, reduction="batchmean"),
        (np.float64(1.0) * np.ones(()),),
        r"kl_div: reduction='batchmean' of an array of rank 0",
    ),
    "shapes": (
        nn.mse_loss,
        (normal(3, 1), normal(3)),
        r"mse_loss: target has shape \(3,\), x has \(3, 1\): they must be equal",
    ),
    "integer target": (
        nn.l1_loss,
        (normal(3), integers(2, 3)),
        r"l1_loss \(target\) of int64: it takes float arrays",
    ),
    "beta": (
        lambda x: nn.smooth_l1_loss(x, x, beta=-1.0),
        (normal(3),),
        r"smooth_l1_loss: beta=-1.0 must not be negative",
    ),
    "pos_weight": (
        lambda x, p: nn.binary_cross_entropy_with_logits(x, x, pos_weight=p),
        (normal(2, 3), normal(2)),
        r"binary_cross_entropy_with_logits \(pos_weight\): axis",
    ),
    "target shape": (
        nn.cross_entropy,
        (normal(4, 5), integers(5, 3)),
        r"cross_entropy: target has shape \(3,\), x without classes has \(4,\)",
    ),
    "probabilities shape": (
        nn.cross_entropy,
        (normal(4, 5), normal(4)),
        r"cross_entropy: target has shape \(4,\), x has \(4, 5\)",
    ),
    "bool target": (
        nn.cross_entropy,
        (normal(4, 5), np.ones(4, bool)),
        r"target has dtype bool; class indices are integers",
    ),
    "smoothing": (
        lambda x, t: nn.cross_entropy(x, t, label_smoothing=1.5),
        (normal(4, 5), integers(5, 4)),
        r"cross_entropy: label_smoothing=1.5 must lie in \[0, 1\]",
    ),
    "class weight": (
        nn.cross_entropy,
        (normal(4, 5), integers(5, 4), normal(4)),
        r"weight has shape \(4,\), axis 1 of x has \(5,\)",
    ),
    "nll probabilities": (
        nn.nll_loss,
        (normal(4, 5), normal(4, 5)),
        r"nll_loss: target holds floats; it takes class indices",
    ),
    "no classes": (
        nn.cross_entropy,
        (np.ones(()), np.ones((), np.int64)),
        r"cross_entropy: x has shape \(\) of rank 0",
    ),
    "gradient shape": (
        lambda x, t: nn.cross_entropy_backward(x, nn.cross_entropy_forward(x, t)[1], x, t),
        (normal(4, 5), integers(5, 4)),
        r"cross_entropy_backward: dy has shape \(4, 5\), the loss has \(\)",
    ),
}


@pytest.mark.parametrize("name", REJECTIONS)
def test_rejection(name):
    fn, inputs, message = REJECTIONS[name]
    with pytest.raises(UserError, match=message):
        run(fn, *inputs)
