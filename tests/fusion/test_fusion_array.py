"""Operators, indexing, and what a traced array refuses to tell."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest
from fusion_cases import assert_same, run
from tests.work import calls

from fusewright.errors import UserError
from fusewright.fusion import ops as fw
from fusewright.fusion.array import Array, Known
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import IndexMap, Sym, TensorSpec
from fusewright.fusion.trace import trace

ARITHMETIC = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]
BITS = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]


@pytest.mark.parametrize("op", [*ARITHMETIC, *BITS, operator.pow])
def test_operators_with_arrays_and_scalars_on_both_sides(op: object):
    x, y = np.array([1, 5, 7], np.int32), np.array([2, 3, 1], np.int32)
    three = np.int32(3)
    assert_same(run(op, x, y), op(x, y))
    assert_same(run(lambda a: op(a, 3), x), op(x, three))
    assert_same(run(lambda a: op(3, a), x), op(three, x))
    assert_same(run(lambda a: op(np.int32(3), a), x), op(three, x))


def test_true_division_and_unary_operators():
    x = np.array([1.0, -4.0, 0.0])
    assert_same(run(lambda a: (1 / a) / 2, x), np.array([0.5, -0.125, np.inf]))
    assert_same(run(lambda a: -a, x), -x)
    assert_same(run(lambda a: +a, x), x)
    assert_same(run(abs, x), abs(x))


def test_in_place_operators_rebind():
    def double(x: Array) -> tuple[Array, Array]:
        y = x
        y += 1
        y *= 2
        return x, y

    x = np.array([1.0, 2.0])
    same, doubled = run(double, x)
    assert_same(same, x)
    assert_same(doubled, (x + 1) * 2)


def test_matmul_operator_and_transposes():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3, 4))
    np.testing.assert_allclose(run(lambda x, y: x @ y.mT, a, b), a @ b.swapaxes(1, 2))
    assert_same(run(lambda x: x.T, a[0]), a[0].T)


def test_attributes():
    def look(x: Array) -> Array:
        assert x.shape[1:] == (4, 1) and str(x.shape[0]) == "n"
        assert (x.ndim, str(x.size), str(x.dtype)) == (3, "4*n", "float32")
        assert repr(x) == "Array(x: float32[n, 4, 1])"
        assert (len(x[0]), [str(row.dtype) for row in x[0]]) == (4, ["float32"] * 4)
        return x

    trace(look, TensorSpec(("n", 4, 1), "float32"))


# --- indexing -----------------------------------------------------------------------------------

KEYS = [
    np.s_[0],
    np.s_[-1, 2],
    np.s_[1:, :2],
    np.s_[:, -3:-1],
    np.s_[::2, ::-1],
    np.s_[::-2, 1],
    np.s_[3:1:-1],
    np.s_[-100:100, 50:],
    np.s_[1:1],
    np.s_[2:1],
    np.s_[None, ..., None],
    np.s_[..., 0],
    np.s_[1, None, ::-3, ...],
    np.s_[4::-4, :, -1],
    np.s_[()],
    np.s_[...],
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing(key: object):
    x = np.random.default_rng(0).normal(size=(5, 6, 3))
    assert_same(run(lambda a: a[key], x), x[key])


@pytest.mark.parametrize("seed", range(60))
def test_random_indexing(seed: int):
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 7, rng.integers(1, 5)))
    x = rng.normal(size=shape)
    key: list[object] = []
    for n in shape[: rng.integers(0, len(shape) + 1)]:
        limits = [None if rng.random() < 0.3 else int(v) for v in rng.integers(-8, 9, 2)]
        step = int(rng.choice([1, 1, 2, 3, -1, -2]))
        key.append(slice(*limits, step) if rng.random() < 0.8 else int(rng.integers(-n, n)))
        if rng.random() < 0.2:
            key.append(None)
    assert_same(run(lambda a: a[tuple(key)], x), x[tuple(key)])


SYMBOLIC_KEYS = [
    np.s_[1:], np.s_[:-1], np.s_[-2:], np.s_[::2], np.s_[::-1], np.s_[1:-1], np.s_[0], np.s_[-1],
    np.s_[3:1:-1], np.s_[-2::-3],
]  # fmt: skip


@pytest.mark.parametrize("key", SYMBOLIC_KEYS, ids=str)
@pytest.mark.parametrize("n", [4, 5, 9])
def test_indexing_of_symbolic_sizes(key: object, n: int):
    fusion = trace(lambda a: a[key], TensorSpec((Sym("n", min=4), 2), "float64"))
    x = np.random.default_rng(n).normal(size=(n, 2))
    assert_same(evaluate(fusion, x)[0], x[key])


HALVES = {
    "first": lambda x, n: x[: n // 2],
    "second": lambda x, n: x[n // 2 :],
    "last": lambda x, n: x[-(n // 2) :],
    "middle": lambda x, n: x[n // 4 : n // 2],
    "backwards": lambda x, n: x[n // 2 :: -1],
    "but a third": lambda x, n: x[: n - n // 3],
    "one": lambda x, n: x[n // 2],
    "one from the end": lambda x, n: x[-(n // 2)],
}


@pytest.mark.parametrize("key", HALVES)
@pytest.mark.parametrize("n", [2, 3, 4, 9])
def test_limits_may_be_fractions_of_a_symbolic_size(key: str, n: int):
    fusion = trace(lambda a: HALVES[key](a, a.shape[0]), TensorSpec(("n", 2), "float64"))
    x = np.random.default_rng(n).normal(size=(n, 2))
    assert_same(evaluate(fusion, x)[0], HALVES[key](x, n))


def test_unit_steps_are_resizes():
    fusion = trace(lambda a: a[1:, 2], TensorSpec((4, 5), "float32"))
    assert not any(isinstance(op, IndexMap) for op in fusion.ops)


def test_keys_may_be_numpy_integers_and_known_arrays():
    x = np.arange(20.0).reshape(4, 5)
    assert_same(run(lambda a: a[np.int64(1), np.uint8(1) :], x), x[1, 1:])
    assert_same(run(lambda a: a[Array(Known(np.asarray(2)))], x), x[2])


def test_limits_of_slices_of_known_elements():
    """Positions of `split` are expressions, which numpy's slices do not take."""
    x = Array(Known(np.arange(6.0)))
    pieces = [np.asarray(p) for p in fw.split(x, [2, 5])]
    assert [p.tolist() for p in pieces] == [[0, 1], [2, 3, 4], [5]]
    for limits in ((1.0, None), (None, "a"), (..., None), (None, None, 1.0)):
        with pytest.raises(UserError, match=r"the limits of a slice are|the step is a nonzero"):
            x[slice(*limits)]


# --- known values -------------------------------------------------------------------------------


def test_an_array_of_known_leaves_has_a_value():
    x = Array(Known(np.array([1.0, 2.0, 3.0])))
    assert float(fw.sum(x)) == 6.0 and int(fw.argmax(x)) == 2 and bool(fw.all(x > 0))
    assert complex(x[0]) == 1 and [10, 20, 30][fw.argmin(x)] == 10
    assert_same(np.asarray(x * 2), np.array([2.0, 4.0, 6.0]))
    assert_same(np.from_dlpack(x), np.array([1.0, 2.0, 3.0]))
    assert bool(fw.zeros(()) == 0)


def test_a_value_is_computed_once():
    x = Array(Known(np.array([1.0, 2.0]))) * 2
    assert not isinstance(x.tensor, Known)
    first = np.asarray(x)
    assert isinstance(x.tensor, Known)
    first[0] = 9
    assert float(x[0]) == 2.0


# --- rejections ---------------------------------------------------------------------------------

N = TensorSpec(("n", 4), "float32")
F = TensorSpec((2, 4), "float32")
I32 = TensorSpec((), "int32")


def _branch(x: Array) -> Array:
    return x if fw.any(x > 0) else -x


def _assign(x: Array) -> Array:
    x[0] = 1
    return x


def _widen(x: Array) -> Array:
    x += fw.ones((3, 2, 4))
    return x


@pytest.mark.parametrize(
    ("fn", "spec", "message"),
    [
        (_branch, F, r"bool\(\) of the traced array .*use fw.where\(condition, a, b\)"),
        (lambda x: x if x > 0 else -x, F, r"bool\(\) of .*it needs exactly one element; reduce"),
        (lambda x: x * float(fw.sum(x)), F, r"float\(\) of the traced array"),
        (lambda x: x * int(x), I32, r"int\(\) of the traced array"),
        (lambda x: math.exp(x), F, r"float\(\) of .*fw.sum or fw.max; write functions of fw in"),
        (lambda x: math.exp(x[0, 0]), F, r"float\(\) of the traced array .*those of math and num"),
        (lambda x: x * fw.sqrt(2.0), F, r"sqrt: no operand .*Python, as math.sqrt does, or"),
        (lambda x: x * fw.rsqrt(2.0), F, r"rsqrt: no operand .* scalars in Python, or make an"),
        (lambda x: range(x), I32, r"__index__\(\) of the traced array"),
        (lambda x: np.asarray(x), F, r"__array__\(\) of the traced array"),
        (
            _assign,
            F,
            r"x\[0\] = ... on the traced array .*values of a program never change; use fw.ins",
        ),
        (_widen, F, r"x \+= y would turn .*keeps dtype and shape; write x = x \+ y"),
        (lambda x: list(x), N, r"iteration over axis 0 of symbolic size n"),
        (lambda x: len(x), N, r"len\(\) of .*first axis of integer size; use x.shape\[0\]"),
        (lambda x: x[2], F, r"x\[2\] on axis 0: index 2 is outside size 2"),
        (lambda x: x[2], N, r"x\[2\] on axis 0: index 2 may be outside size n; .*larger min"),
        (lambda x: x[:3], N, r"x\[:3\] on axis 0 of size n: whether 3 lies inside the axis"),
        (lambda x: x[x.shape[0] - 5 :], N, r"size n: whether n - 5 is negative, and counts from"),
        (lambda x: np.exp(x), F, r"numpy.exp of the traced array .*write fw.exp, or"),
        (lambda x: np.add(x, 1), F, r"numpy.add of .*write fw.add, or"),
        (lambda x: np.sum(x), F, r"numpy.sum of the traced array .*write fw.sum, or"),
        (lambda x: np.ones(3) * x, F, r"multiply: axis 1 has sizes 3 and 4"),
        (lambda x: x.summ(), F, r"an array has no attribute 'summ'; is fw.sum meant"),
        (lambda x: x + None, F, r"add: expected an array, got NoneType None"),
        (lambda x: "a" - x, F, r"subtract: expected an array, got str 'a'"),
        (lambda x: x < [1], F, r"less: expected an array, got list \[1\]; a list is a structure"),
        (lambda x: x[0, 0, 0], F, r"x\[0, 0, 0\]: 3 axes and 0 Ellipsis for an array of rank 2"),
        (lambda x: x[..., ...], F, r"one key per axis and one Ellipsis"),
        (lambda x: x[x > 0], F, r"x\[mask\]: how many elements.*fw.where, .*fw.compress"),
        (lambda x: x["a"], F, r"x\['a'\]: keys are integers, slices, None, Ellipsis, arrays of"),
        (lambda x: x[::0], F, r"x\[::0\] on axis 0: the step is a nonzero integer"),
        (lambda x: x[0.5:], F, r"the limits of a slice are integers"),
        (lambda x: x[0].T, F, r"T of an array of rank 1: .*use .mT"),
        (lambda x: x[0].mT, F, r"mT of an array of rank 1"),
    ],
)
def test_rejections(fn: object, spec: TensorSpec, message: str):
    with pytest.raises(UserError, match=message):
        trace(fn, spec)


def test_protocols_that_numpy_asks_for_cost_no_search_for_a_way_out():
    """It asks each array for two before it comes to `__array__`: a name like them is looked for
    among all operations only where a person wrote it."""
    x = Array(Known(np.arange(3)))
    np.asarray(x)
    assert calls(lambda: np.asarray(x)) < 1000
    with pytest.raises(AttributeError, match=r"an array has no attribute '__array_struct__'$"):
        x.__array_struct__  # noqa: B018
