"""Normalisations against float64 formulas, their gradients against finite differences."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from nn_checks import assert_gradients, integers, normal, run, run1

from fusewright.errors import UserError
from fusewright.fusion import nn
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Sym, TensorSpec
from fusewright.fusion.trace import trace


def standardised(x, axes, eps=1e-5):
    m = x.mean(axes, keepdims=True)
    v = ((x - m) ** 2).mean(axes, keepdims=True)
    return (x - m) / np.sqrt(v + eps), m, 1 / np.sqrt(v + eps)


def channels(v, ndim):
    return v.reshape((1, -1) + (1,) * (ndim - 2))


# --- softmax ------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax_and_log_softmax(axis):
    x = normal(3, 4, 5) * 5
    e = np.exp(x)
    p = e / e.sum(axis, keepdims=True)
    np.testing.assert_allclose(run1(lambda v: nn.softmax(v, axis), x), p, rtol=1e-12)
    np.testing.assert_allclose(run1(lambda v: nn.log_softmax(v, axis), x), np.log(p), rtol=1e-10)


def test_softmax_of_large_and_infinite_arguments():
    x = np.array([[1000.0, 1001.0, -np.inf], [-1000.0, -1001.0, -np.inf]])
    p = 1 / (1 + np.exp(1.0))
    out = run1(lambda v: nn.softmax(v, 1), x)
    np.testing.assert_allclose(out, [[p, 1 - p, 0], [1 - p, p, 0]], rtol=1e-12)
    logs = run1(lambda v: nn.log_softmax(v, 1), x)
    np.testing.assert_allclose(logs[:, :2], np.log([[p, 1 - p], [1 - p, p]]), rtol=1e-12)
    assert np.isneginf(logs[:, 2]).all()


def test_softmax_of_a_row_without_finite_elements_and_of_nan_is_nan():
    x = np.array([[-np.inf, -np.inf], [np.nan, 0.0], [np.inf, 0.0]])
    assert np.isnan(run1(lambda v: nn.softmax(v, 1), x)[:2]).all()


def test_softmax_over_one_element_is_one():
    np.testing.assert_array_equal(run1(lambda v: nn.softmax(v, 1), normal(3, 1)), np.ones((3, 1)))


def test_softmax_rounds_once_and_casts_first_when_asked():
    x = normal(4, 33).astype(ml_dtypes.bfloat16)
    e = np.exp(x.astype(np.float64))
    p = e / e.sum(1, keepdims=True)
    out = run1(lambda v: nn.softmax(v, 1), x)
    np.testing.assert_array_equal(out, p.astype(ml_dtypes.bfloat16))
    wide = run1(lambda v: nn.softmax(v, 1, "float32"), x)
    assert wide.dtype == np.float32
    np.testing.assert_allclose(wide, p, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_gradients(axis):
    assert_gradients(
        lambda x: nn.softmax(x, axis),
        lambda dy, x: nn.softmax_backward(dy, nn.softmax(x, axis), axis),
        normal(3, 4),
    )
    assert_gradients(
        lambda x: nn.log_softmax(x, axis),
        lambda dy, x: nn.log_softmax_backward(dy, nn.log_softmax(x, axis), axis),
        normal(3, 4),
    )


# --- layer_norm ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
def test_layer_norm(count):
    x = normal(3, 4, 5) * 2 + 7
    w, b = normal(*x.shape[-count:], seed=1), normal(*x.shape[-count:], seed=2)
    axes = tuple(range(3 - count, 3))
    xhat, m, r = standardised(x, axes)
    y, mean, rstd = run(lambda v, p, q: nn.layer_norm_forward(v, v.shape[-count:], p, q), x, w, b)
    np.testing.assert_allclose(y, xhat * w + b, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(mean, m, rtol=1e-12)
    np.testing.assert_allclose(rstd, r, rtol=1e-9)
    assert mean.shape == x.shape[:-count] + (1,) * count
    plain = run1(lambda v: nn.layer_norm(v, v.shape[-count:]), x)
    np.testing.assert_allclose(plain, xhat, rtol=1e-9, atol=1e-12)


def test_layer_norm_of_a_large_mean_keeps_its_variance():
    x = normal(2, 64) + 1e7
    y = run1(lambda v: nn.layer_norm(v, 64), x)
    np.testing.assert_allclose(y, standardised(x, (1,))[0], rtol=1e-6, atol=1e-8)
    assert abs(y.std() - 1) < 0.01


def test_layer_norm_over_one_element_gives_the_bias():
    x, w, b = normal(3, 1), normal(1), normal(1, seed=1)
    y = run1(lambda v, p, q: nn.layer_norm(v, 1, p, q), x, w, b)
    np.testing.assert_allclose(y, np.broadcast_to(b, (3, 1)))


def test_layer_norm_of_short_floats_keeps_float32_statistics():
    x = (normal(4, 48) + 3).astype(ml_dtypes.bfloat16)
    w = normal(48, seed=1).astype(np.float32)
    y, mean, rstd = run(lambda v, p: nn.layer_norm_forward(v, 48, p), x, w)
    assert (y.dtype, mean.dtype, rstd.dtype) == (ml_dtypes.bfloat16, np.float32, np.float32)
    xhat, m, _ = standardised(x.astype(np.float64), (1,))
    np.testing.assert_allclose(mean, m, rtol=1e-6)
    np.testing.assert_allclose(y.astype(float), xhat * w, rtol=2**-8, atol=1e-6)


def test_layer_norm_of_symbolic_sizes():
    def fn(x, w):
        y, mean, rstd = nn.layer_norm_forward(x, x.shape[-1:], w)
        return y, *nn.layer_norm_backward(x, mean, rstd, x, x.shape[-1:], w)

    fusion = trace(fn, TensorSpec(("m", "n"), "float64"), TensorSpec(("n",), "float64"))
    for m, n in ((2, 3), (5, 8)):
        x, w = normal(m, n), normal(n, seed=1)
        for got, expected in zip(evaluate(fusion, x, w), run(fn, x, w), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("count", [1, 2])
def test_layer_norm_gradients(count):
    x = normal(3, 2, 4)
    w, b = normal(*x.shape[-count:], seed=1), normal(*x.shape[-count:], seed=2)

    def backward(dy, x, w, b):
        shape = x.shape[-count:]
        _, mean, rstd = nn.layer_norm_forward(x, shape, w, b)
        return nn.layer_norm_backward(dy, mean, rstd, x, shape, w)

    assert_gradients(
        lambda x, w, b: nn.layer_norm(x, x.shape[-count:], w, b), backward, x, w, b, wrt=(0, 1, 2)
    )


def test_layer_norm_gradient_without_a_weight():
    def backward(dy, x):
        _, mean, rstd = nn.layer_norm_forward(x, 4)
        return nn.layer_norm_backward(dy, mean, rstd, x, 4)[0]

    assert_gradients(lambda x: nn.layer_norm(x, 4), backward, normal(3, 4))


# --- rms_norm -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
def test_rms_norm(count):
    x = normal(3, 4, 5)
    w = normal(*x.shape[-count:], seed=1)
    r = 1 / np.sqrt((x * x).mean(tuple(range(3 - count, 3)), keepdims=True) + 1e-3)
    y, rstd = run(lambda v, p: nn.rms_norm_forward(v, v.shape[-count:], p, 1e-3), x, w)
    np.testing.assert_allclose(y, x * r * w, rtol=1e-9)
    np.testing.assert_allclose(rstd, r, rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_rms_norm_takes_its_eps_from_the_compute_dtype(dtype):
    x = np.zeros((1, 4), dtype)
    (_, rstd) = run(lambda v: nn.rms_norm_forward(v, 4), x)
    compute = np.float64 if dtype == np.float64 else np.float32
    np.testing.assert_allclose(rstd, float(np.finfo(compute).eps) ** -0.5, rtol=1e-6)


def test_rms_norm_gradients():
    def backward(dy, x, w):
        _, rstd = nn.rms_norm_forward(x, 4, w, 1e-3)
        return nn.rms_norm_backward(dy, rstd, x, 4, w)

    assert_gradients(
        lambda x, w: nn.rms_norm(x, 4, w, 1e-3),
        backward,
        normal(2, 3, 4),
        normal(4, seed=1),
        wrt=(0, 1),
    )


# --- group_norm ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 6, 3, 4), (3, 6), (2, 6, 5), (1, 6, 1, 1)])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(shape, groups):
    x, w, b = normal(*shape), normal(6, seed=1), normal(6, seed=2)
    grouped = x.reshape(shape[0], groups, -1)
    xhat, m, r = standardised(grouped, (2,))
    y, mean, rstd = run(lambda v, p, q: nn.group_norm_forward(v, groups, p, q), x, w, b)
    expected = xhat.reshape(shape) * channels(w, x.ndim) + channels(b, x.ndim)
    np.testing.assert_allclose(y, expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(mean, m[..., 0], rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(rstd, r[..., 0], rtol=1e-8)


def test_group_norm_gradients():
    def backward(dy, x, w, b):
        _, mean, rstd = nn.group_norm_forward(x, 2, w, b)
        return nn.group_norm_backward(dy, mean, rstd, x, 2, w)

    assert_gradients(
        lambda x, w, b: nn.group_norm(x, 2, w, b),
        backward,
        normal(2, 4, 3),
        normal(4, seed=1),
        normal(4, seed=2),
        wrt=(0, 1, 2),
    )


def test_group_norm_of_symbolic_batch_and_channels():
    c = Sym("c", multiple_of=3)
    fusion = trace(lambda x: nn.group_norm(x, 3), TensorSpec(("b", c, 5), "float64"))
    x = normal(2, 6, 5)
    xhat = standardised(x.reshape(2, 3, -1), (2,))[0].reshape(x.shape)
    np.testing.assert_allclose(evaluate(fusion, x)[0], xhat, rtol=1e-8)


# --- batch_norm ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 4, 5)])
def test_batch_norm_training(shape):
    x, w, b = normal(*shape) + 2, normal(3, seed=1), normal(3, seed=2)
    rm, rv = normal(3, seed=3), np.abs(normal(3, seed=4))
    axes = tuple(k for k in range(x.ndim) if k != 1)
    xhat, m, r = standardised(x, axes)
    out = run(lambda *a: nn.batch_norm_forward(*a, training=True, momentum=0.25), x, rm, rv, w, b)
    y, new_mean, new_var, mean, rstd = out
    np.testing.assert_allclose(y, xhat * channels(w, x.ndim) + channels(b, x.ndim), rtol=1e-8)
    np.testing.assert_allclose(new_mean, 0.75 * rm + 0.25 * m.ravel(), rtol=1e-9)
    np.testing.assert_allclose(new_var, 0.75 * rv + 0.25 * x.var(axes, ddof=1), rtol=1e-9)
    np.testing.assert_allclose(mean, m.ravel(), rtol=1e-9)
    np.testing.assert_allclose(rstd, r.ravel(), rtol=1e-9)


def test_batch_norm_inference():
    x, w, b = normal(4, 3, 2), normal(3, seed=1), normal(3, seed=2)
    rm, rv = normal(3, seed=3), np.abs(normal(3, seed=4))
    scale = channels(w / np.sqrt(rv + 1e-5), 3)
    expected = (x - channels(rm, 3)) * scale + channels(b, 3)
    np.testing.assert_allclose(run1(nn.batch_norm, x, rm, rv, w, b), expected, rtol=1e-9)


def test_batch_norm_without_running_statistics_and_with_channels_last():
    x = normal(2, 4, 5, 3)
    result = run(lambda v: nn.batch_norm_forward(v, None, None, training=True, axis=-1), x)
    assert len(result) == 3  # no running statistics come out where none went in
    np.testing.assert_allclose(result[0], standardised(x, (0, 1, 2))[0], rtol=1e-8)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_gradients(training):
    rm, rv = normal(2, seed=3), np.abs(normal(2, seed=4))

    def forward(x, w, b, rm, rv):
        return nn.batch_norm(x, rm, rv, w, b, training)

    def backward(dy, x, w, b, rm, rv):
        saved = nn.batch_norm_forward(x, rm, rv, w, b, training)
        return nn.batch_norm_backward(dy, saved.mean, saved.rstd, x, w, training)

    inputs = (normal(3, 2, 2), normal(2, seed=1), normal(2, seed=2), rm, rv)
    assert_gradients(forward, backward, *inputs, wrt=(0, 1, 2))


def test_batch_norm_of_a_symbolic_batch_counts_it():
    def fn(x, rm, rv):
        return nn.batch_norm_forward(x, rm, rv, training=True)

    vector = TensorSpec((3,), "float64")
    fusion = trace(fn, TensorSpec(("n", 3, 2), "float64"), vector, vector)
    x, rm, rv = normal(5, 3, 2), np.zeros(3), np.zeros(3)
    np.testing.assert_allclose(evaluate(fusion, x, rm, rv)[2], 0.1 * x.var((0, 2), ddof=1))


# --- instance_norm ------------------------------------------------------------------------------


def test_instance_norm_and_its_running_statistics():
    x = normal(4, 3, 2, 5)
    rm, rv = normal(3, seed=3), np.abs(normal(3, seed=4))
    y, new_mean, new_var, mean, _ = run(nn.instance_norm_forward, x, rm, rv)
    xhat, m, _ = standardised(x, (2, 3))
    np.testing.assert_allclose(y, xhat, rtol=1e-8)
    np.testing.assert_allclose(new_mean, 0.9 * rm + 0.1 * m[..., 0, 0].mean(0), rtol=1e-9)
    unbiased = x.var((2, 3), ddof=1).mean(0)
    np.testing.assert_allclose(new_var, 0.9 * rv + 0.1 * unbiased, rtol=1e-9)
    assert mean.shape == (4, 3)


def test_instance_norm_gradients():
    def backward(dy, x, w, b):
        saved = nn.instance_norm_forward(x, weight=w, bias=b)
        return nn.instance_norm_backward(dy, saved.mean, saved.rstd, x, w)

    assert_gradients(
        lambda x, w, b: nn.instance_norm(x, weight=w, bias=b),
        backward,
        normal(2, 3, 4),
        normal(3, seed=1),
        normal(3, seed=2),
        wrt=(0, 1, 2),
    )


# --- rejections ---------------------------------------------------------------------------------

REJECTIONS = {
    "softmax axis": (
        lambda x: nn.softmax(x, 4),
        (normal(2, 3),),
        r"softmax: axis 4 of an array of rank 2",
    ),
    "softmax of integers": (
        lambda x: nn.softmax(x, 0),
        (integers(3, 4),),
        r"softmax of int64: it takes float arrays",
    ),
    "softmax_backward shape": (
        lambda dy, y: nn.softmax_backward(dy, y, 0),
        (normal(3), normal(4)),
        r"softmax_backward: dy has shape \(3,\), y has \(4,\)",
    ),
    "layer_norm shape": (
        lambda x: nn.layer_norm(x, (2,)),
        (normal(2, 3),),
        r"layer_norm: normalized_shape \(2,\) are not the last axes of x, of shape \(2, 3\)",
    ),
    "layer_norm of nothing": (
        lambda x: nn.layer_norm(x, ()),
        (normal(2, 3),),
        r"give x.shape\[-k:\] with k at least 1",
    ),
    "layer_norm longer shape": (
        lambda x: nn.layer_norm(x, (4, 2, 3)),
        (normal(2, 3),),
        r"normalized_shape \(4, 2, 3\) are not the last axes",
    ),
    "layer_norm weight": (
        lambda x, w: nn.layer_norm(x, 3, w),
        (normal(2, 3), normal(1)),
        r"layer_norm: weight has shape \(1,\), normalized_shape has \(3,\)",
    ),
    "layer_norm_backward saved": (
        lambda dy, m, r, x: nn.layer_norm_backward(dy, m, r, x, 3),
        (normal(2, 3), normal(2), normal(2), normal(2, 3)),
        r"mean has shape \(2,\), the statistics of x has \(2, 1\)",
    ),
    "rms_norm weight dtype": (
        lambda x, w: nn.rms_norm(x, 3, w),
        (normal(2, 3), integers(4, 3)),
        r"rms_norm \(weight\) of int64",
    ),
    "group_norm groups": (
        lambda x: nn.group_norm(x, 4),
        (normal(2, 6, 3),),
        r"num_groups=4 does not divide the 6 channels of x, axis 1",
    ),
    "group_norm rank": (
        lambda x: nn.group_norm(x, 1),
        (normal(6),),
        r"group_norm: x has shape \(6,\) of rank 1; its layout is \(batch, channels, ...\)",
    ),
    "batch_norm statistics": (
        lambda x: nn.batch_norm(x, None, None),
        (normal(2, 3),),
        r"batch_norm: running_mean and running_var are needed",
    ),
    "batch_norm one value": (
        lambda x: nn.batch_norm(x, None, None, training=True),
        (normal(1, 3),),
        r"x of shape \(1, 3\) has one value per statistic",
    ),
    "batch_norm vector": (
        lambda x, w: nn.batch_norm(x, None, None, w, training=True),
        (normal(2, 3), normal(2)),
        r"weight has shape \(2,\), axis 1 of x has \(3,\)",
    ),
    "batch_norm axis": (
        lambda x: nn.batch_norm(x, None, None, training=True, axis=2),
        (normal(2, 3),),
        r"batch_norm: axis 2 of an array of rank 2",
    ),
    "instance_norm rank": (
        nn.instance_norm,
        (normal(2, 3),),
        r"instance_norm: x has shape \(2, 3\) of rank 2; its layout is \(batch, channels, space",
    ),
}


@pytest.mark.parametrize("name", REJECTIONS)
def test_rejection(name):
    fn, inputs, message = REJECTIONS[name]
    with pytest.raises(UserError, match=message):
        run(fn, *inputs)
