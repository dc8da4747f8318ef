"""Creation, products, gathers and random numbers."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from fusion_cases import assert_same, run

from fusewright.core.functions import FUNCTIONS
from fusewright.errors import UserError
from fusewright.fusion import ops as fw
from fusewright.fusion.array import Array
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import TensorSpec
from fusewright.fusion.trace import trace

DUMMY = np.zeros((2, 3), np.float32)


def made(fn: object) -> np.ndarray:
    return run(lambda _: fn(), DUMMY)


# --- creation -----------------------------------------------------------------------------------


def test_default_dtypes():
    assert_same(made(lambda: fw.zeros((2, 3))), np.zeros((2, 3), np.float32))
    assert_same(made(lambda: fw.ones(4)), np.ones(4, np.float32))
    assert_same(made(lambda: fw.empty(())), np.zeros((), np.float32))
    assert_same(made(lambda: fw.full((2,), 7)), np.full(2, 7, np.int64))
    assert_same(made(lambda: fw.full((2,), 7.5)), np.full(2, 7.5, np.float32))
    assert_same(made(lambda: fw.full((2,), True)), np.ones(2, bool))
    assert_same(made(lambda: fw.full((2,), 7, dtype="uint8")), np.full(2, 7, np.uint8))


def test_like():
    x = np.zeros((2, 3), np.int16)
    for name, value in (("zeros_like", 0), ("ones_like", 1), ("empty_like", 0)):
        assert_same(run(getattr(fw, name), x), np.full((2, 3), value, np.int16))
    assert_same(
        run(lambda a: fw.full_like(a, 5, dtype="float32"), x), np.full((2, 3), 5, np.float32)
    )
    assert_same(run(lambda a: fw.full_like(a, fw.sum(a) + 1), x), np.ones((2, 3), np.int16))


@pytest.mark.parametrize(
    "limits", [(5,), (2, 9), (9, 2, -3), (0, 10, 3), (5, 2), (-3, 3, 2), (0.0, 1.0, 0.25), (0.5, 3)]
)
def test_arange(limits: tuple[float, ...]):
    dtype = np.float32 if any(isinstance(v, float) for v in limits) else np.int64
    assert_same(made(lambda: fw.arange(*limits)), np.arange(*limits).astype(dtype))


def test_arange_of_symbolic_limits():
    def fn(x: Array) -> tuple[Array, ...]:
        n = x.shape[0]
        return fw.arange(n), fw.arange(1, n, dtype="int32"), fw.arange(n, n + 2, dtype="float32")

    a, b, c = evaluate(trace(fn, TensorSpec(("n",), "float32")), np.zeros(4, np.float32))
    assert_same(a, np.arange(4))
    assert_same(b, np.arange(1, 4, dtype=np.int32))
    assert_same(c, np.array([4, 5], np.float32))


@pytest.mark.parametrize("num", [0, 1, 2, 7])
@pytest.mark.parametrize("endpoint", [True, False])
def test_linspace(num: int, endpoint: bool):
    actual = made(lambda: fw.linspace(-1, 3.7, num, dtype="float64", endpoint=endpoint))
    np.testing.assert_allclose(actual, np.linspace(-1, 3.7, num, endpoint=endpoint), rtol=1e-15)
    if endpoint and num > 1:
        assert actual[-1] == 3.7


@pytest.mark.parametrize("k", [-2, 0, 1])
def test_diagonals(k: int):
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    assert_same(made(lambda: fw.eye(3, 4, k=k)), np.eye(3, 4, k, dtype=np.float32))
    assert_same(run(lambda a: fw.tril(a, k=k), x), np.tril(x, k))
    assert_same(run(lambda a: fw.triu(a, k=k), x), np.triu(x, k))
    assert_same(run(lambda a: fw.triu(a > 0, k=k), x), np.triu(x > 0, k))


@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_meshgrid(indexing: str):
    vectors = [np.arange(2), np.arange(3), np.arange(4)]
    for count in (1, 2, 3):
        got = run(lambda *v: fw.meshgrid(*v, indexing=indexing), *vectors[:count])
        expected = np.meshgrid(*vectors[:count], indexing=indexing)
        for a, e in zip(got, expected, strict=True):
            assert_same(a, e)


# --- products -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 1, 3, 4), (5, 4, 2))],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=a), rng.normal(size=b)
    np.testing.assert_allclose(run(fw.matmul, x, y), x @ y, rtol=1e-12, atol=1e-14)
    assert_same(
        run(fw.matmul, x.astype(np.int32), y.astype(np.int64)), x.astype(np.int32) @ y.astype(int)
    )


def test_a_short_product_is_rounded_once():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 64)).astype(ml_dtypes.bfloat16)
    exact = x.astype(np.float64) @ x.T.astype(np.float64)
    np.testing.assert_array_equal(run(lambda a: a @ a.T, x), exact.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("axes", [0, 1, 2, ((0, 2), (1, 0)), ((-1,), (0,))])
def test_tensordot(axes: object):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 4, 2)), rng.normal(size=(2, 2, 3))
    if axes == 2:
        x = rng.normal(size=(4, 2, 2))
    np.testing.assert_allclose(
        run(lambda a, b: fw.tensordot(a, b, axes=axes), x, y), np.tensordot(x, y, axes)
    )


def test_vecdot():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 3, 4)), rng.normal(size=(3, 4))
    np.testing.assert_allclose(run(fw.vecdot, x, y), (x * y).sum(-1))
    actual = run(lambda a, b: fw.vecdot(a, b, axis=-2), x, y)
    np.testing.assert_allclose(actual, (x * y).sum(-2))


# --- gathers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [[0, 2, -1], [[1, 1], [0, -3]], 2, []])
def test_take(axis: int, indices: object):
    x = np.random.default_rng(0).normal(size=(3, 4, 5))
    i = np.array(indices, np.int32)
    assert_same(run(lambda a, b: fw.take(a, b, axis=axis), x, i), np.take(x, i, axis))


def test_take_along_axis_broadcasts_the_other_axes():
    x = np.random.default_rng(0).normal(size=(3, 4))
    i = np.array([[0, -1, 2, 2, 1]])
    expected = np.take_along_axis(x, np.broadcast_to(i, (3, 5)), 1)
    assert_same(run(lambda a, b: fw.take_along_axis(a, b, axis=1), x, i), expected)
    order = x.argsort(0)
    assert_same(run(lambda a, b: fw.take_along_axis(a, b, axis=0), x, order), np.sort(x, 0))


@pytest.mark.parametrize("k", [2**63, -(2**63) - 1, 2**80, 4, -3])
def test_diagonals_that_no_matrix_reaches_are_empty(k: int):
    x = np.ones((3, 4))
    assert_same(run(lambda a: fw.eye(3, 4, k=k) + 0 * a, x), np.zeros((3, 4)))
    assert_same(run(lambda a: fw.tril(a, k=k), x), np.full((3, 4), float(k > 0)))
    assert_same(run(lambda a: fw.triu(a, k=k), x), np.full((3, 4), float(k < 0)))


# --- random numbers -----------------------------------------------------------------------------


def test_bits_are_the_words_of_philox_in_c_order():
    actual = made(lambda: fw.random.bits((3, 5), seed=11, offset=2))
    assert_same(actual, FUNCTIONS["philox"].numpy(11, 2, np.arange(15)).reshape(3, 5))


def test_a_seed_may_be_an_array():
    seed = np.array(11, np.uint64)
    actual = run(lambda s: fw.random.bits((7,), seed=s, offset=s), seed)
    assert_same(actual, made(lambda: fw.random.bits((7,), seed=11, offset=11)))


def test_a_symbolic_shape_draws_the_same_numbers():
    fusion = trace(lambda x: fw.random.uniform(x.shape, seed=1), TensorSpec(("n", "m"), "float32"))
    assert_same(evaluate(fusion, DUMMY)[0], made(lambda: fw.random.uniform((2, 3), seed=1)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_uniform_numbers_stay_below_one_and_are_uniform(dtype: str):
    x = made(lambda: fw.random.uniform((20000,), seed=5, dtype=dtype)).astype(np.float64)
    assert x.min() >= 0 and x.max() < 1
    assert abs(x.mean() - 0.5) < 0.01 and abs(x.var() - 1 / 12) < 0.005
    shifted = made(lambda: fw.random.uniform((20000,), -2, 4, seed=5, dtype=dtype))
    np.testing.assert_allclose(shifted.astype(np.float64), x * 6 - 2, atol=0.02)


def test_normal_numbers_come_from_pairs_of_words():
    words = FUNCTIONS["philox"].numpy(9, 3, np.arange(8)) >> 8
    radius = np.sqrt(-2 * np.log((words[::2] + 1) * 2.0**-24))
    angle = words[1::2] * 2.0**-24 * (2 * math.pi)
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).ravel()
    actual = made(lambda: fw.random.normal((8,), seed=9, offset=3))
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_normal_numbers_are_normal(dtype: str):
    x = made(lambda: fw.random.normal((40000,), seed=5, dtype=dtype)).astype(np.float64)
    assert np.isfinite(x).all()
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02
    assert abs((x[::2] * x[1::2]).mean()) < 0.03
    for level in (0.5, 1.0, 2.0):
        inside = math.erf(level / math.sqrt(2))
        assert abs((np.abs(x) < level).mean() - inside) < 0.01


# --- rejections ---------------------------------------------------------------------------------

F = TensorSpec((2, 3), "float32")


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: fw.zeros((2, -1)), r"zeros: size -1 in shape \(2, -1\) is negative"),
        (lambda x: fw.full((2,), 300, dtype="uint8"), r"full: 300 does not fit uint8 \(0 to 255\)"),
        (
            lambda x: fw.full((2,), 0.5, dtype="int8"),
            r"full: the Python float 0.5 with an array of",
        ),
        (lambda x: fw.arange(0, 5, 0), r"arange\(0, 5, step=0\): the step must not be 0"),
        (lambda x: fw.linspace(0, 1, 5, dtype="int32"), r"linspace in int32: .*use a float dtype"),
        (lambda x: fw.linspace(0, 1, -1), r"linspace\(num=-1\): the count must not be negative"),
        (lambda x: fw.tril(x[0]), r"tril of an array of rank 1: at least two axes"),
        (lambda x: fw.meshgrid(x), r"meshgrid of .*all arrays have rank 1 and one dtype"),
        (lambda x: fw.meshgrid(x[0], indexing="yx"), r"meshgrid: indexing='yx'; use 'xy' or 'ij'"),
        (lambda x: x @ x, r"matmul: the last axis of \(2, 3\) has size 3, the axis it meets in"),
        (lambda x: fw.sum(x) @ x, r"matmul: operands of rank 0 and 2; rank 0 needs fw.multiply"),
        (lambda x: fw.tensordot(x, x, axes=3), r"tensordot: axes=3 for ranks 2 and 2: the count"),
        (
            lambda x: fw.tensordot(x, x, axes=((0,), (1,))),
            r"tensordot: axis 0 of \(2, 3\) has size 2",
        ),
        (lambda x: fw.tensordot(x, x, axes=((0, 1), (1,))), r"tensordot: 2 axes against 1"),
        (lambda x: fw.vecdot(x, x, axis=1), r"vecdot: axis 1 .*count it from the end, -2 to -1"),
        (lambda x: fw.vecdot(x, x.T), r"vecdot: axis -1 has sizes 3 and 2"),
        (lambda x: fw.take(x, x, axis=0), r"take \(indices\) of float32: it takes integer arrays"),
        (lambda x: fw.take(x, fw.arange(2)), r"take of an array of rank 2: name the axis"),
        (
            lambda x: fw.take_along_axis(x, fw.arange(2)),
            r"x has rank 2 and the indices 1: they must",
        ),
        (lambda x: fw.random.bits((2,), seed=-1), r"random.bits: seed=-1 must be an int in \[0, 2"),
        (lambda x: fw.random.bits((2,), seed=x), r"random.bits: seed is .*integer array of rank 0"),
        (
            lambda x: fw.random.uniform((2,), seed=1, dtype="int8"),
            r"random.uniform in int8: use one",
        ),
    ],
)
def test_rejections(fn: object, message: str):
    with pytest.raises(UserError, match=message):
        trace(fn, F)


def test_symbolic_arange_rejects_steps():
    with pytest.raises(UserError, match=r"arange\(0, n, 2\): symbolic limits go with integers and"):
        trace(lambda x: fw.arange(0, x.shape[0], 2), TensorSpec(("n",), "float32"))
