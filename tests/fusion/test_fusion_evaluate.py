"""What the oracle asks of its arrays."""

from __future__ import annotations

import numpy as np
import pytest

import fusewright
from fusewright.core.expr import Var
from fusewright.errors import UserError
from fusewright.fusion import ir, ops as fw
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Fusion, Sym, Tensor, TensorSpec
from fusewright.fusion.trace import trace

FUSION = trace(
    lambda x, y: x + y,
    TensorSpec((Sym("n", max=64, multiple_of=4), 3), "float32"),
    TensorSpec((3,), "float32"),
)
X, Y = np.ones((8, 3), np.float32), np.ones(3, np.float32)


def test_arrays_that_fit():
    (out,) = evaluate(FUSION, X, Y)
    np.testing.assert_array_equal(out, X + 1)
    (out,) = evaluate(FUSION, X[:, ::-1], Y[::-1])
    assert out.dtype == np.float32


def test_inputs_are_not_written():
    x = np.arange(4.0)
    fusion = trace(lambda a: (fw.pad(a, 1), a), TensorSpec((4,), "float64"))
    evaluate(fusion, x)
    np.testing.assert_array_equal(x, np.arange(4.0))


def test_intermediates_are_float64():
    fusion = trace(lambda a: (a + 1e-9) - 1, TensorSpec((1,), "float32"))
    (out,) = evaluate(fusion, np.ones(1, np.float32))
    np.testing.assert_allclose(out, 1e-9, rtol=1e-6)
    (out,) = evaluate(fusion, np.ones(1, np.float32), stepwise=True)
    np.testing.assert_array_equal(out, 0)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((X,), r"1 arrays for 2 inputs \(x, y\); give one per input"),
        ((X, [1, 2, 3]), r"input y: expected a numpy array, got list"),
        ((X, np.ma.masked_array(Y, Y > 0)), r"input y is a masked array; fill the mask first"),
        ((X.astype(np.float64), Y), r"input x: dtype float64 does not match the spec's float32"),
        ((X[0], Y), r"input x: shape \(3,\) has rank 1, the spec x: float32\[n, 3\] has rank 2"),
        ((X[:, :2], Y), r"input x: axis 1 has size 2, the spec says 3"),
        (
            (X[:6], Y),
            r"input x: axis 0 has size 6, which n excludes \(4 <= n <= 64, a multiple of 4",
        ),
        ((np.tile(X, (9, 1)), Y), r"axis 0 has size 72, which n excludes"),
    ],
)
def test_rejections(arrays: tuple[object, ...], message: str):
    with pytest.raises(UserError, match=message):
        evaluate(FUSION, *arrays)


def test_a_matrix_is_an_array_of_rank_two():
    fusion = trace(lambda x: x * x + fw.sum(x, axis=0), TensorSpec((2, 2), "float32"))
    x = np.array([[1, 2], [3, 4]], np.float32)
    (want,), (got,) = evaluate(fusion, x), evaluate(fusion, np.asmatrix(x))
    np.testing.assert_array_equal(got, want)
    assert type(got) is np.ndarray


def test_one_size_has_one_value():
    fusion = trace(lambda x, y: x + y, TensorSpec(("n",), "int8"), TensorSpec(("n",), "int8"))
    with pytest.raises(UserError, match=r"input y: axis 0 has size 4, but n is already 3"):
        evaluate(fusion, np.ones(3, np.int8), np.ones(4, np.int8))


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3", "int8", "uint64"])
@pytest.mark.parametrize("op", ["max", "min", "argmax", "sum", "prod"])
@pytest.mark.parametrize("axis", [0, None])
def test_a_reduction_over_a_symbolic_crop_that_is_empty_starts_and_ends(
    op: str, dtype: str, axis: int | None
) -> None:
    fusion = trace(lambda x: getattr(fw, op)(x[2:], axis=axis), TensorSpec(("n", 3), dtype))
    x = np.ones((2, 3)).astype(fusion.inputs[0].dtype.numpy)
    (want,) = evaluate(fusion, x)
    result = fusewright.compile(fusion).simulate(x)
    assert result.races == []
    assert result.outputs[0].tobytes() == want.tobytes()
    if op == "sum":
        assert not want.astype(np.float64).any()
    if op == "max" and dtype == "float32":
        assert np.all(want == -np.inf)


def test_rejects_an_input_that_the_fusion_does_not_list():
    f = trace(lambda x: x + 1, TensorSpec((4,), "float32"))
    loose = Fusion((), f.outputs, f.values)
    with pytest.raises(UserError, match="x is an input that the fusion does not list; trace it ag"):
        evaluate(loose)


@pytest.mark.parametrize(("last", "reaches"), [(3, None), (4, "1 to 4"), (9, "6 to 9")])
def test_an_index_map_stays_inside_its_operand(last: int, reaches: str | None):
    f = trace(lambda x: x, TensorSpec((4,), "float32"))
    (x,) = f.inputs
    i = Var("i", 0, 3)
    moved = Tensor("y", x.shape, x.dtype, ir.IndexMap((x,), (i,), (i + (last - 3),)))
    fusion, data = Fusion((x,), (moved,), (x, moved)), np.arange(4, dtype=np.float32)
    if reaches is None:
        np.testing.assert_array_equal(evaluate(fusion, data)[0], data)
        return
    with pytest.raises(UserError, match=rf"y: the index .* reaches {reaches}, outside axis 0 of"):
        evaluate(fusion, data)


def test_values_that_repeat_an_element_are_computed_once():
    n = 2**40
    for made, expected in (
        (lambda: fw.zeros((n,)).sum(), 0.0),
        (lambda: fw.sum(2 * fw.ones((3, n)) + 1, axis=1), [3.0 * 2**40] * 3),
        (lambda: fw.max(fw.full((n,), -2.5)), -2.5),
        (lambda: fw.prod(fw.full((n,), -1.0)), 1.0),
        (lambda: fw.any(fw.zeros((n,)) > 0), False),
    ):
        assert np.array_equal(evaluate(trace(made))[0], np.asarray(expected))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("name", ["sum", "prod", "max"])
def test_repeated_integers_wrap_as_single_ones_do(dtype, name):
    rng = np.random.default_rng(7)
    x = rng.integers(1, 120, (5,)).astype(dtype)

    def fn(x):
        return getattr(fw, name)(fw.broadcast_to(x[:, None], (5, 301)), axis=1)

    (got,) = evaluate(trace(fn, TensorSpec(x.shape, dtype)), x)
    wide = np.broadcast_to(x[:, None], (5, 301)).copy()
    assert np.array_equal(got, getattr(wide, name)(axis=1, dtype=got.dtype) if name != "max" else x)


def test_values_that_no_memory_holds():
    fusion = trace(lambda: fw.sum(fw.arange(10**13)))
    with pytest.raises(UserError, match=r"shape \(10000000000000,\) .*keeps each value whole"):
        evaluate(fusion)
