"""Reductions, positions and prefixes against numpy, with the standard's accumulation dtypes."""

from __future__ import annotations

import array_api_strict as xp
import ml_dtypes
import numpy as np
import pytest
from fusion_cases import assert_same, run

import fusewright
from fusewright.errors import UserError
from fusewright.fusion import ops as fw
from fusewright.fusion.array import Array
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Reduce, TensorSpec
from fusewright.fusion.trace import trace

X = np.random.default_rng(0).normal(size=(3, 4, 5))
AXES = [None, 0, -1, (0, 2), (-1, 0, 1), ()]


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var", "std"])
def test_reductions_of_floats(name: str, axis: object, keepdims: bool):
    actual = run(lambda x: getattr(fw, name)(x, axis=axis, keepdims=keepdims), X)
    expected = np.asarray(getattr(np, name)(X, axis=axis, keepdims=keepdims))
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", ["any", "all", "count_nonzero"])
def test_reductions_to_truth(name: str, axis: object):
    x = (np.abs(X) > 0.8).astype(np.float32)
    expected = np.asarray(getattr(np, name)(x, axis=axis))
    if axis == () and name == "count_nonzero":
        expected = (x != 0).astype(np.int64)
    assert_same(run(lambda a: getattr(fw, name)(a, axis=axis), x), expected)


@pytest.mark.parametrize(
    "dtype", ["int8", "int32", "int64", "uint8", "uint32", "float32", "float64"]
)
@pytest.mark.parametrize("name", ["sum", "prod", "cumulative_sum", "cumulative_prod"])
def test_accumulation_dtypes_follow_the_standard(name: str, dtype: str):
    values = np.array([3, 100, 2, 5], dtype)
    expected = getattr(xp, name)(xp.asarray(values, device=xp.Device("CPU_DEVICE")))
    assert_same(run(lambda x: getattr(fw, name)(x), values), np.asarray(expected))


def test_sums_of_bools_count_and_dtype_overrides():
    x = np.array([True, False, True])
    assert_same(run(fw.sum, x), np.int64(2))
    assert_same(run(lambda a: fw.sum(a, dtype="float32"), x), np.float32(2))
    wrapped = run(lambda a: fw.sum(a, dtype="int8"), np.full(3, 100, np.int8))
    assert_same(wrapped, np.int8(44))


def test_short_floats_keep_their_dtype_and_sum_exactly():
    x = np.full(1000, 0.1, ml_dtypes.bfloat16)
    total, mean = run(lambda a: (fw.sum(a), fw.mean(a)), x)
    exact = float(x[0]) * 1000
    assert total.dtype == mean.dtype == x.dtype
    assert (total, mean) == (ml_dtypes.bfloat16(exact), x[0])


def test_the_mean_of_a_condition_is_a_share():
    x = np.random.default_rng(0).normal(size=(5, 33)) > 0.3
    assert_same(run(lambda a: fw.mean(a, axis=1), x), x.mean(axis=1, dtype=np.float32))
    (found,) = (
        fusewright.compile(trace(lambda a: a.mean(), TensorSpec((5, 33), "bool")))
        .simulate(x)
        .outputs
    )
    assert found.dtype == np.float32 and abs(found - x.mean()) < 1e-6


def test_the_mean_of_large_float16_does_not_overflow():
    x = np.full(64, 60000, np.float16)
    assert_same(run(fw.mean, x), np.float16(60000))
    assert_same(run(fw.var, x), np.float16(0))


@pytest.mark.parametrize("fn", [fw.mean, fw.var, fw.std])
def test_moments_of_short_floats_are_summed_in_float32(fn: object):
    fusion = trace(fn, TensorSpec((64,), "float16"))
    sums = [t for t in fusion.values if isinstance(t.op, Reduce)]
    assert sums and all(t.dtype.name == "float32" for t in sums)
    assert fusion.outputs[0].dtype.name == "float16"


def test_the_mean_of_integers_is_float32():
    assert_same(run(fw.mean, np.array([1, 2, 4], np.int64)), np.float32(7 / 3))


@pytest.mark.parametrize("correction", [0, 1, 2.5])
def test_variance_with_correction(correction: float):
    actual = run(lambda x: fw.var(x, axis=1, correction=correction), X)
    expected = X.var(axis=1) * 4 / (4 - correction)
    np.testing.assert_allclose(actual, expected, rtol=1e-13)


def test_variance_of_a_large_offset_does_not_cancel():
    x = (1e8 + np.arange(8.0)).astype(np.float64)
    np.testing.assert_allclose(run(fw.var, x), np.var(np.arange(8.0)), rtol=1e-12)


def test_reductions_of_nothing():
    empty = np.zeros((0, 3))
    assert_same(run(lambda x: fw.sum(x, axis=0), empty), np.zeros(3))
    assert_same(run(lambda x: fw.prod(x, axis=0), empty), np.ones(3))
    assert_same(run(lambda x: fw.any(x, axis=0), empty), np.zeros(3, bool))
    assert_same(run(lambda x: fw.all(x, axis=0), empty), np.ones(3, bool))
    assert np.isnan(run(lambda x: fw.mean(x, axis=0), empty)).all()


def test_reductions_over_symbolic_sizes():
    fusion = trace(lambda x: (fw.mean(x), fw.var(x, axis=0)), TensorSpec(("n", "m"), "float64"))
    mean, var = evaluate(fusion, X[0])
    np.testing.assert_allclose(mean, X[0].mean())
    np.testing.assert_allclose(var, X[0].var(0))


# --- positions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_positions_take_the_first_of_ties_and_nans(name: str, axis: int | None, keepdims: bool):
    rng = np.random.default_rng(4)
    x = rng.integers(-2, 3, (6, 7)).astype(np.float32)
    x[2, 3] = x[2, 5] = x[4, 0] = np.nan
    x[5] = -np.inf
    actual = run(lambda a: getattr(fw, name)(a, axis=axis, keepdims=keepdims), x)
    assert_same(actual, getattr(np, name)(x, axis=axis, keepdims=keepdims))
    ints = rng.integers(-2, 3, (6, 7))
    actual = run(lambda a: getattr(fw, name)(a, axis=axis, keepdims=keepdims), ints)
    assert_same(actual, getattr(np, name)(ints, axis=axis, keepdims=keepdims))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_the_position_along_an_axis_of_one_element_needs_no_elements(name: str, keepdims: bool):
    x = np.random.default_rng(5).standard_normal((6, 1, 7)).astype(np.float32)
    x[2, 0, 3] = np.nan

    def fn(a: Array) -> Array:
        return getattr(fw, name)(a, axis=1, keepdims=keepdims)

    assert_same(run(fn, x), getattr(np, name)(x, axis=1, keepdims=keepdims))
    fusion = trace(fn, TensorSpec(x.shape, "float32"))
    assert not any(fusion.inputs[0] in v.op.operands for v in fusion.values)


def test_max_and_min_propagate_nan():
    x = np.array([[1.0, np.nan], [2.0, 3.0]])
    assert_same(run(lambda a: fw.max(a, axis=1), x), x.max(1))
    assert_same(run(lambda a: fw.min(a, axis=0), x), x.min(0))


# --- prefixes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_prefixes(axis: int):
    expected = np.cumsum(X, axis)
    actual = run(lambda x: fw.cumulative_sum(x, axis=axis), X)
    np.testing.assert_allclose(actual, expected, rtol=1e-13)
    np.testing.assert_allclose(
        run(lambda x: fw.cumulative_prod(x, axis=axis), X), np.cumprod(X, axis)
    )


def test_prefixes_with_their_initial_value():
    x = np.array([2, 3, 4], np.int32)
    assert_same(
        run(lambda a: fw.cumulative_sum(a, include_initial=True, dtype="int32"), x),
        np.array([0, 2, 5, 9], np.int32),
    )
    assert_same(
        run(lambda a: fw.cumulative_prod(a, include_initial=True), x), np.array([1, 2, 6, 24])
    )


# --- rejections ---------------------------------------------------------------------------------

F = TensorSpec((2, 0, 3), "float32")


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: fw.sum(x, axis=3), r"sum: axis 3 of an array of rank 3: axes go from -3 to 2"),
        (lambda x: fw.sum(x, axis=(0, -3)), r"sum: axis 0 is given twice in axis=\(0, -3\)"),
        (lambda x: fw.sum(fw.sum(x), axis=0), r"sum: axis 0 of an array of rank 0, which has none"),
        (lambda x: fw.sum(x, axis="a"), r"sum: axis='a' is str; it must be an integer"),
        (lambda x: fw.max(x, axis=1), r"max: axis 1 has size 0, and max of nothing has no value"),
        (lambda x: fw.argmin(x), r"argmin: axis 0 has size 0"),
        (lambda x: fw.max(x > 0, axis=0), r"max of bool: it takes numeric arrays"),
        (lambda x: fw.var(x > 0), r"var of bool: it takes numeric"),
        (lambda x: fw.cumulative_sum(x), r"cumulative_sum of an array of rank 3: axis may be left"),
    ],
)
def test_rejections(fn: object, message: str):
    with pytest.raises(UserError, match=message):
        trace(fn, F)
