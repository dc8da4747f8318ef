"""Activations against float64 formulas, their gradients against finite differences."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from nn_checks import assert_gradients, integers, normal, run1

from fusewright.errors import UserError
from fusewright.fusion import nn
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Sym, TensorSpec
from fusewright.fusion.trace import trace

erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FORMULAS = {
    "relu": (nn.relu, lambda x: np.maximum(x, 0)),
    "leaky_relu": (nn.leaky_relu, lambda x: np.where(x > 0, x, 0.01 * x)),
    "leaky_relu_steep": (lambda x: nn.leaky_relu(x, 0.3), lambda x: np.where(x > 0, x, 0.3 * x)),
    "elu": (lambda x: nn.elu(x, 1.5), lambda x: np.where(x > 0, x, 1.5 * (np.exp(x) - 1))),
    "sigmoid": (nn.sigmoid, sigmoid),
    "tanh": (nn.tanh, np.tanh),
    "silu": (nn.silu, lambda x: x * sigmoid(x)),
    "softplus": (nn.softplus, lambda x: np.log(1 + np.exp(x))),
    "softplus_beta": (lambda x: nn.softplus(x, 2.0), lambda x: np.log(1 + np.exp(2 * x)) / 2),
    "mish": (nn.mish, lambda x: x * np.tanh(np.log(1 + np.exp(x)))),
    "hardswish": (nn.hardswish, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "gelu": (nn.gelu, lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2)))),
    "gelu_tanh": (lambda x: nn.gelu(x, "tanh"), gelu_tanh),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formula_in_float64(name):
    fn, formula = FORMULAS[name]
    x = normal(5, 7) * 3
    np.testing.assert_allclose(run1(fn, x), formula(x), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_short_floats_round_once_at_the_end(name, dtype):
    fn, formula = FORMULAS[name]
    x = (normal(64) * 2).astype(dtype)
    out = run1(fn, x)
    assert out.dtype == dtype
    exact = formula(x.astype(np.float64))
    ulp = np.spacing(np.abs(exact).astype(dtype)).astype(np.float64)
    assert np.all(np.abs(out.astype(np.float64) - exact) <= 0.5001 * ulp + 1e-7 * np.abs(exact))


@pytest.mark.parametrize("name", FORMULAS)
def test_nan_stays_nan(name):
    assert np.isnan(run1(FORMULAS[name][0], np.array([np.nan]))).all()


@pytest.mark.parametrize(
    ("fn", "at_large"),
    [(nn.relu, 1e4), (nn.silu, 1e4), (nn.softplus, 1e4), (nn.mish, 1e4), (nn.gelu, 1e4)],
)
def test_large_arguments_do_not_overflow(fn, at_large):
    out = run1(fn, np.array([1e4, -1e4], np.float32))
    np.testing.assert_allclose(out, [at_large, 0.0], atol=0)


def test_tanh_gelu_does_not_cancel_for_negative_arguments():
    x = -6.0
    u = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    out = run1(lambda v: nn.gelu(v, "tanh"), np.array([x]))
    np.testing.assert_allclose(out, [x * math.exp(u) / (1 + math.exp(u))], rtol=1e-14)


def test_softplus_is_accurate_far_below_zero_and_linear_above_its_threshold():
    out = run1(nn.softplus, np.array([-40.0, 20.5]))
    np.testing.assert_allclose(out[0], math.exp(-40), rtol=1e-12)
    assert out[1] == 20.5
    assert run1(lambda x: nn.softplus(x, threshold=1000.0), np.array([900.0]))[0] == 900.0


GRADIENTS = {
    "relu": (nn.relu, nn.relu_backward),
    "silu": (nn.silu, nn.silu_backward),
    "gelu": (nn.gelu, nn.gelu_backward),
    "gelu_tanh": (
        lambda x: nn.gelu(x, "tanh"),
        lambda dy, x: nn.gelu_backward(dy, x, "tanh"),
    ),
    "softplus": (nn.softplus, nn.softplus_backward),
    "softplus_beta": (
        lambda x: nn.softplus(x, 3.0, 2.0),
        lambda dy, x: nn.softplus_backward(dy, x, 3.0, 2.0),
    ),
    "sigmoid": (nn.sigmoid, lambda dy, x: nn.sigmoid_backward(dy, nn.sigmoid(x))),
    "tanh": (nn.tanh, lambda dy, x: nn.tanh_backward(dy, nn.tanh(x))),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient(name):
    forward, backward = GRADIENTS[name]
    assert_gradients(forward, backward, normal(3, 5, seed=4) * 2)


def test_relu_backward_takes_the_result_too_and_is_zero_at_zero():
    x, dy = np.array([-1.0, 0.0, 2.0]), np.array([5.0, 6.0, 7.0])
    for v in (x, np.maximum(x, 0)):
        np.testing.assert_array_equal(run1(nn.relu_backward, dy, v), [0, 0, 7])


# --- gates --------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_glu_splits_the_axis(axis):
    x = normal(4, 6, 2)
    a, b = np.split(x, 2, axis)
    np.testing.assert_allclose(run1(lambda v: nn.glu(v, axis), x), a * sigmoid(b), rtol=1e-13)


def test_swiglu_of_two_arrays_and_of_halves_agree():
    gate, up = normal(3, 4), normal(3, 4, seed=1)
    expected = gate * sigmoid(gate) * up
    np.testing.assert_allclose(run1(nn.swiglu, gate, up), expected, rtol=1e-13)
    packed = np.concatenate([gate, up], -1)
    np.testing.assert_allclose(run1(nn.swiglu, packed), expected, rtol=1e-13)


def test_glu_of_a_symbolic_even_size():
    fusion = trace(nn.glu, TensorSpec((3, Sym("n", multiple_of=2)), "float64"))
    x = normal(3, 10)
    (out,) = evaluate(fusion, x)
    np.testing.assert_allclose(out, x[:, :5] * sigmoid(x[:, 5:]), rtol=1e-13)


# --- rejections ---------------------------------------------------------------------------------


def test_integers_are_rejected():
    with pytest.raises(UserError, match=r"gelu of int64: it takes float arrays; cast with fw.ast"):
        run1(nn.gelu, integers(3, 4))


def test_unknown_gelu_form_is_rejected():
    with pytest.raises(UserError, match=r"gelu: approximate='erf'; use one of 'none', 'tanh'"):
        run1(lambda x: nn.gelu(x, "erf"), normal(3))


def test_odd_axis_is_rejected():
    with pytest.raises(UserError, match=r"glu: axis 1 has size 5, .*not known even: .*two h"):
        run1(nn.glu, normal(4, 5))


def test_symbolic_axis_not_known_even_is_rejected():
    with pytest.raises(UserError, match=r"axis 0 has size n, .*declare the symbol"):
        trace(nn.glu, TensorSpec(("n",), "float32"))


def test_missing_axis_is_rejected():
    with pytest.raises(UserError, match=r"glu: axis 2 of an array of rank 2"):
        run1(lambda x: nn.glu(x, 2), normal(4, 4))


def test_gradient_of_another_shape_is_rejected():
    with pytest.raises(UserError, match=r"silu_backward: dy has shape \(3,\), .* has \(4,\)"):
        run1(nn.silu_backward, normal(3), normal(4))


def test_gate_of_another_shape_is_rejected():
    with pytest.raises(UserError, match=r"swiglu: up has shape \(4, 3\), gate has \(4, 4\)"):
        run1(nn.swiglu, normal(4, 4), normal(4, 3))


def test_softplus_rejects_a_beta_that_is_not_positive():
    with pytest.raises(UserError, match=r"softplus: beta=0 must be positive"):
        run1(lambda x: nn.softplus(x, 0), normal(3))


def test_a_numpy_array_is_data():
    np.testing.assert_array_equal(nn.relu(normal(3)).numpy(), np.maximum(normal(3), 0))
