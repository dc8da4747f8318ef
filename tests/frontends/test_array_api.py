"""The package as an array namespace, function by function: what array-api-strict computes must be
what we compute, in dtype, shape and value, on random arrays full of special values."""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

import fusewright as fw

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
REAL = (*INTEGERS, *FLOATS)
NUMBERS = (*REAL, *COMPLEX)
ALL = ("bool", *NUMBERS)
SHAPES = [(), (3,), (0,), (2, 3), (2, 0), (1, 3), (4, 1, 2), (2, 1, 2, 3)]
SEEDS = range(6)


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, *, plain: bool = False):
    """A numpy array with extremes among its elements; `plain` keeps floats moderate."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return np.asarray(rng.integers(0, 2, shape), dtype)
    if kind in "iu":
        limits = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
        small = np.asarray(rng.integers(0 if kind == "u" else -5, 6, shape), dtype)
        return np.where(rng.random(shape) < 0.2, rng.choice(limits, shape), small)
    if kind == "c":
        parts = (draw(rng, shape, "float64", plain=plain) for _ in range(2))
        return np.asarray(next(parts) + 1j * next(parts), dtype)
    x = np.asarray(rng.normal(0, 3, shape), dtype)
    odd = rng.choice(np.array([0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan], dtype), shape)
    return x if plain else np.where(rng.random(shape) < 0.3, odd, x)


def assert_agrees(actual: Any, expected: Any, *, context: object = "") -> None:
    if isinstance(expected, tuple | list):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_agrees(a, e, context=context)
        return
    got, want = np.asarray(actual), np.asarray(expected)
    assert str(actual.dtype) == want.dtype.name and actual.shape == want.shape, context
    if want.dtype.kind in "fc":
        eps = np.finfo(want.dtype).eps
        np.testing.assert_allclose(got, want, rtol=64 * eps, atol=64 * eps, err_msg=str(context))
    else:
        np.testing.assert_array_equal(got, want, err_msg=str(context))


def _floor_divide(x1: Any, x2: Any) -> Any:
    """The standard's: strict has numpy's, which goes with the remainder at infinities."""
    found = strict.floor_divide(x1, x2)
    if not strict.isdtype(found.dtype, "real floating"):
        return found
    a, b = np.asarray(x1), np.asarray(x2)
    return strict.asarray(np.where(np.isinf(a) | np.isinf(b), a / b, found), dtype=found.dtype)


def assert_conforms(name: str, *arrays: Any, **options: Any) -> None:
    """The function of both namespaces on the same numpy arrays and scalars."""

    def through(xp: Any) -> Any:
        def given(a: Any) -> Any:
            if isinstance(a, list | tuple) and a and isinstance(a[0], np.ndarray):
                return [xp.asarray(part) for part in a]
            return xp.asarray(a) if isinstance(a, np.ndarray) else a

        f = _floor_divide if xp is strict and name == "floor_divide" else getattr(xp, name)
        return f(*map(given, arrays), **{k: given(v) for k, v in options.items()})

    assert_agrees(through(fw), through(strict), context=(name, arrays, options))


def cases(dtypes: tuple[str, ...]) -> Iterator[tuple[np.random.Generator, tuple[int, ...], str]]:
    for k, (dtype, shape) in enumerate(itertools.product(dtypes, SHAPES)):
        yield np.random.default_rng(k), shape, dtype


# --- elementwise --------------------------------------------------------------------------------

FLOATING = """acos acosh asin asinh atan atanh cos cosh exp expm1 log log10 log1p log2 sin sinh
sqrt tan tanh reciprocal""".split()  # noqa: SIM905
UNARY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(FLOATING, (*FLOATS, *COMPLEX)),
    **dict.fromkeys(["abs", "negative", "positive", "sign", "square"], NUMBERS),
    **dict.fromkeys(["isfinite", "isinf", "isnan"], NUMBERS),
    **dict.fromkeys(["ceil", "floor", "trunc", "round"], REAL),
    **dict.fromkeys(["real", "conj"], (*FLOATS, *COMPLEX)),
    "imag": COMPLEX,
    "signbit": FLOATS,
    "bitwise_invert": ("bool", *INTEGERS),
    "logical_not": ("bool",),
}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_array(name: str):
    for rng, shape, dtype in cases(UNARY[name]):
        plain = dtype in COMPLEX
        if not (name == "abs" and dtype.startswith("int")):  # of the least integer anything goes
            assert_conforms(name, draw(rng, shape, dtype, plain=plain))


BINARY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(["add", "subtract", "multiply"], NUMBERS),
    **dict.fromkeys(["equal", "not_equal"], ALL),
    **dict.fromkeys(["less", "less_equal", "greater", "greater_equal"], REAL),
    **dict.fromkeys(["maximum", "minimum"], REAL),
    **dict.fromkeys(["atan2", "copysign", "hypot", "logaddexp", "nextafter"], FLOATS),
    "divide": (*FLOATS, *COMPLEX),
    **dict.fromkeys(["floor_divide", "remainder", "pow"], FLOATS),
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor"], ("bool", *INTEGERS)),
    **dict.fromkeys(["logical_and", "logical_or", "logical_xor"], ("bool",)),
}


def promotable(dtypes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for a, b in itertools.product(dtypes, dtypes):
        try:
            strict.result_type(getattr(strict, a), getattr(strict, b))
        except TypeError:
            continue
        yield a, b


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_arrays(name: str):
    shapes = [((2, 3), (3,)), ((), (2,)), ((2, 1), (1, 3)), ((0, 3), (1, 3)), ((4,), (4,))]
    for k, (a, b) in enumerate(promotable(BINARY[name])):
        rng = np.random.default_rng(k)
        left, right = shapes[k % len(shapes)]
        plain = a in COMPLEX or b in COMPLEX
        assert_conforms(name, draw(rng, left, a, plain=plain), draw(rng, right, b, plain=plain))


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "pow"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division_and_powers(name: str, dtype: str):
    rng = np.random.default_rng(0)
    assert_conforms(
        name, rng.integers(0, 6, 20).astype(dtype), rng.integers(1, 4, 20).astype(dtype)
    )


@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts(name: str, dtype: str):
    rng = np.random.default_rng(0)
    assert_conforms(name, draw(rng, (20,), dtype), rng.integers(0, 8, 20).astype(dtype))


SCALARS = {"b": [True], "i": [3, 0], "u": [3, 0], "f": [2, -0.5, np.inf], "c": [2, 0.5, 1 - 2j]}


@pytest.mark.parametrize("name", BINARY)
def test_python_scalars_on_either_side(name: str):
    for rng, shape, dtype in cases(BINARY[name]):
        x = draw(rng, shape, dtype, plain=True)
        for s in SCALARS[x.dtype.kind]:
            assert_conforms(name, x, s)
            assert_conforms(name, s, x)
    if "divide" in name:  # a complex scalar makes an array of floats complex
        assert_agrees(fw.ones(2) * 1j, strict.ones(2, dtype=strict.float32) * 1j)


OPERATORS = """add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift matmul eq ne lt le gt
ge""".split()  # noqa: SIM905
IN_PLACE = "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift".split()  # noqa: SIM905


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8", "float32", "complex64"])
def test_operators(name: str, dtype: str):
    op, rng = getattr(operator, name), np.random.default_rng(1)
    a, b = (draw(rng, (3, 3), dtype, plain=True) % 7 if dtype in REAL else draw(rng, (3, 3), dtype)
            for _ in range(2))  # fmt: skip
    b = np.abs(b) + 1 if dtype in REAL else b
    try:
        expected = op(strict.asarray(a), strict.asarray(b))
    except TypeError:
        if name == "truediv" and np.dtype(dtype).kind in "iu":
            assert np.allclose(op(fw.asarray(a), fw.asarray(b)).numpy(), a / b)
            return
        with pytest.raises(fw.FusewrightError):
            op(fw.asarray(a), fw.asarray(b))
        return
    assert_agrees(op(fw.asarray(a), fw.asarray(b)), expected)


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_operators_leave_the_old_array_as_it_was(name: str):
    dtype = "float32" if name == "itruediv" else "int32"
    a, b = np.array([[5, 6], [7, 9]], dtype), np.array([2, 3], dtype)
    x = fw.asarray(a)
    y = getattr(operator, name)(x, fw.asarray(b))
    assert_agrees(y, getattr(operator, name)(strict.asarray(a.copy()), strict.asarray(b)))
    np.testing.assert_array_equal(np.asarray(x), a)


def test_clip_and_where():
    for rng, shape, dtype in cases(REAL):
        x = draw(rng, shape, dtype)
        low, high = np.array(1, dtype), np.array(4, dtype)
        for limits in ({}, {"min": 1}, {"max": 4}, {"min": low, "max": high}, {"min": low}):
            assert_conforms("clip", x, **limits)
        assert_conforms("where", draw(rng, shape, "bool"), x, draw(rng, (), dtype))
        assert_conforms("where", draw(rng, shape, "bool"), 1, x)


# --- creation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL)
def test_creation(dtype: str):
    ours, theirs = getattr(fw, dtype), getattr(strict, dtype)
    for shape in SHAPES:
        for name in ("zeros", "ones"):
            call = getattr(fw, name)(shape, dtype=ours)
            assert_agrees(call, getattr(strict, name)(shape, dtype=theirs))
            like = getattr(fw, f"{name}_like")(call)
            assert (like.shape, like.dtype) == (shape, ours)
        for v in SCALARS[np.dtype(dtype).kind]:
            assert_agrees(fw.full(shape, v, dtype=ours), strict.full(shape, v, dtype=theirs))
            assert_agrees(fw.full_like(fw.zeros(shape, dtype=ours), v),
                          strict.full(shape, v, dtype=theirs))  # fmt: skip
    if dtype != "bool":
        assert_agrees(fw.eye(3, 4, k=1, dtype=ours), strict.eye(3, 4, k=1, dtype=theirs))


@pytest.mark.parametrize(
    "limits",
    [
        (5,),
        (0,),
        (-3,),
        (2, 9),
        (9, 2),
        (1, 10, 3),
        (10, 1, -4),
        (0, 1, 5),
        (2, 2, -1),
        (3, -7, -5),
    ],
)
@pytest.mark.parametrize("dtype", ["int8", "int64", "float32", "float64"])
def test_arange(limits: tuple[int, ...], dtype: str):
    ours, theirs = getattr(fw, dtype), getattr(strict, dtype)
    assert_agrees(fw.arange(*limits, dtype=ours), strict.arange(*limits, dtype=theirs))
    halves = tuple(v / 2 for v in limits)
    if dtype in FLOATS:
        assert_agrees(fw.arange(*halves, dtype=ours), strict.arange(*halves, dtype=theirs))


def test_linspace_meshgrid_and_triangles():
    for num, endpoint in itertools.product((0, 1, 2, 7), (True, False)):
        ours = fw.linspace(-2.0, 5.0, num, endpoint=endpoint, dtype=fw.float64)
        expected = strict.linspace(-2.0, 5.0, num, endpoint=endpoint, dtype=strict.float64)
        assert_agrees(ours, expected)
    a, b = np.arange(3), np.arange(4)
    for indexing in ("xy", "ij"):
        assert_conforms("meshgrid", a, b, indexing=indexing)
    for rng, shape, dtype in cases(ALL):
        if len(shape) >= 2:
            for k in (-1, 0, 2):
                assert_conforms("tril", draw(rng, shape, dtype), k=k)
                assert_conforms("triu", draw(rng, shape, dtype), k=k)


@pytest.mark.parametrize("dtype", ALL)
def test_asarray_of_nested_python_scalars(dtype: str):
    for shape in SHAPES:
        x = draw(np.random.default_rng(3), shape, dtype)
        nested = x.tolist()
        assert_agrees(fw.asarray(nested, dtype=getattr(fw, dtype)), x)


def test_asarray_of_arrays_copies_or_shares():
    x = fw.asarray([1, 2, 3])
    assert fw.asarray(x) is x and fw.asarray(x, copy=False, dtype=fw.int64) is x
    copied = fw.asarray(x, copy=True)
    x[0] = 9
    assert [int(v) for v in copied] == [1, 2, 3]
    assert_agrees(fw.asarray([x[0], x[1]]), np.array([9, 2]))
    assert_agrees(fw.asarray(np.array([1, 2], ">i4")), np.array([1, 2], "int32"))


# --- reductions ---------------------------------------------------------------------------------

REDUCTIONS: dict[str, tuple[str, ...]] = {
    "sum": NUMBERS,
    "prod": NUMBERS,
    "mean": FLOATS,
    "std": FLOATS,
    "var": FLOATS,
    "max": REAL,
    "min": REAL,
    "all": ALL,
    "any": ALL,
    "count_nonzero": ALL,
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str):
    for rng, shape, dtype in cases(REDUCTIONS[name]):
        if 0 in shape and name in ("max", "min", "mean", "std", "var"):
            continue
        x = draw(rng, shape, dtype, plain=True)
        if dtype == "float32":  # array-api-strict's default is float64
            x = x.astype("float64")
        elif dtype == "complex64":
            x = x.astype("complex128")
        axes = [None, *range(-x.ndim, x.ndim), tuple(range(x.ndim))[:2]]
        for axis, keepdims in itertools.product(axes, (False, True)):
            if axis != ():
                assert_conforms(name, x, axis=axis, keepdims=keepdims)
        if name in ("std", "var") and x.size > 2:
            assert_conforms(name, x, correction=1.0)


@pytest.mark.parametrize("name", ["sum", "prod", "cumulative_sum", "cumulative_prod"])
@pytest.mark.parametrize("dtype", [*INTEGERS, "float64", "complex128"])
def test_accumulated_dtypes(name: str, dtype: str):
    x = np.arange(1, 5).astype(dtype)
    assert_conforms(name, x)
    if dtype in INTEGERS[:3]:
        assert_agrees(getattr(fw, name)(fw.asarray(x), dtype=fw.float64),
                      getattr(strict, name)(strict.asarray(x), dtype=strict.float64))  # fmt: skip


def test_cumulative_functions_and_diff():
    for rng, shape, dtype in cases(NUMBERS):
        x = draw(rng, shape, dtype, plain=True)
        x = x.astype({"float32": "float64", "complex64": "complex128"}.get(dtype, dtype))
        for axis in range(-x.ndim, x.ndim):
            assert_conforms("cumulative_sum", x, axis=axis, include_initial=True)
            assert_conforms("cumulative_prod", x, axis=axis)
            assert_conforms("diff", x, axis=axis)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_of_extremes(name: str):
    for rng, shape, dtype in cases(REAL):
        x = draw(rng, shape, dtype)
        if x.size:
            for axis, keepdims in itertools.product([None, *range(-x.ndim, x.ndim)], (False, True)):
                if axis is None or x.ndim:
                    assert_conforms(name, x, axis=axis, keepdims=keepdims)


# --- manipulation -------------------------------------------------------------------------------


def test_joins():
    for rng, shape, dtype in cases(ALL):
        x, y = draw(rng, shape, dtype), draw(rng, shape, dtype)
        for axis in range(-len(shape), len(shape)):
            assert_conforms("concat", [x, y], axis=axis)
            assert_conforms("unstack", x, axis=axis)
        assert_conforms("concat", [x, y], axis=None)
        for axis in range(-len(shape) - 1, len(shape) + 1):
            assert_conforms("stack", [x, y], axis=axis)
            assert_conforms("expand_dims", x, axis=axis)


def test_moves():
    for rng, shape, dtype in cases(ALL):
        x, rank = draw(rng, shape, dtype), len(shape)
        order = tuple(int(a) for a in rng.permutation(rank))
        assert_conforms("permute_dims", x, order)
        assert_conforms("flip", x)
        assert_conforms("reshape", x, (-1,) if x.size else (0,))
        assert_conforms("roll", x, 3)
        assert_conforms("squeeze", x, tuple(k for k, n in enumerate(shape) if n == 1))
        assert_conforms("broadcast_to", x, (2, *shape))
        assert_conforms("tile", x, (2, 1))
        assert_conforms("repeat", x, 2)
        for axis in range(-rank, rank):
            assert_conforms("flip", x, axis=axis)
            assert_conforms("roll", x, -5, axis=axis)
            assert_conforms("repeat", x, 3, axis=axis)
            assert_conforms("moveaxis", x, axis, 0)


def test_repeat_by_an_array_of_counts():
    x = np.arange(6).reshape(2, 3)
    assert_conforms("repeat", x, np.array([1, 0, 2]), axis=1)
    assert_conforms("repeat", x, np.array([2]), axis=0)
    assert_conforms("repeat", np.arange(3), np.array([0, 1, 2]))


# --- indices ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_getitem_and_setitem(seed: int):
    rng = np.random.default_rng(seed)
    x = draw(rng, SHAPES[seed % len(SHAPES)], ALL[seed % len(ALL)])
    key: list[Any] = []
    for n in x.shape[: rng.integers(0, x.ndim + 1)]:
        start, stop = (int(v) for v in rng.integers(-n - 1, n + 2, 2))
        choices = [slice(start, stop, int(rng.choice([1, 2, -1]))), slice(None)]
        key.append(int(rng.integers(-n, n)) if n and rng.random() < 0.5 else choices[seed % 2])
    if rng.random() < 0.5:
        key.append(...)
    elif rng.random() < 0.5:
        key.insert(0, None)
    at = tuple(key)
    a = fw.asarray(x)
    assert_agrees(a[at], x[at], context=at)
    if None not in at:
        value = draw(rng, (), x.dtype.name)
        a[at] = fw.asarray(value)
        x[at] = value
        assert_agrees(a, x, context=at)


def test_indices_that_are_arrays():
    x = np.arange(24).reshape(2, 3, 4)
    a = fw.asarray(x)
    rows, columns = np.array([[0], [1]]), np.array([2, 0, 1])
    assert_agrees(a[fw.asarray(rows), fw.asarray(columns)], x[rows, columns])
    assert_agrees(a[1, fw.asarray(columns), ...], x[1, columns, ...])
    mask = x % 5 == 0
    assert_agrees(a[fw.asarray(mask)], x[mask])
    assert_agrees(a[fw.asarray(mask[:, :, 0])], x[mask[:, :, 0]])
    assert_agrees(a[fw.asarray(True)], x[np.array(True)])
    a[fw.asarray(mask)] = -1
    x[mask] = -1
    assert_agrees(a, x)
    assert a[fw.asarray(1), fw.asarray(np.uint8(2)), 3].shape == ()


@pytest.mark.parametrize("dtype", ALL)
def test_take(dtype: str):
    x = draw(np.random.default_rng(0), (3, 4, 2), dtype)
    for axis in (0, 1, 2, -1):
        assert_conforms("take", x, np.array([1, 0, 1]), axis=axis)
        assert_conforms("take_along_axis", x, np.zeros_like(x, dtype="int64"), axis=axis)


# --- order, sets, and results whose size depends on values --------------------------------------


def test_sorts():
    for rng, shape, dtype in cases(REAL):
        x = draw(rng, shape, dtype, plain=True)
        for axis, descending in itertools.product(range(-x.ndim, x.ndim), (False, True)):
            assert_conforms("sort", x, axis=axis, descending=descending)
            assert_conforms("argsort", x, axis=axis, descending=descending)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", REAL)
def test_searchsorted(side: str, dtype: str):
    rng = np.random.default_rng(0)
    x, v = draw(rng, (9,), dtype, plain=True), draw(rng, (2, 3), dtype, plain=True)
    order = np.argsort(x)
    assert_conforms("searchsorted", x[order], v, side=side)
    assert_conforms("searchsorted", x, v, side=side, sorter=order)


@pytest.mark.parametrize(
    "name", ["unique_all", "unique_counts", "unique_inverse", "unique_values", "nonzero"]
)
def test_sets(name: str):
    for rng, shape, dtype in cases(ALL):
        if shape or name != "nonzero":
            x = draw(rng, shape, dtype)
            found = getattr(fw, name)(fw.asarray(x))
            expected = getattr(strict, name)(strict.asarray(x))
            assert_agrees(found, expected)
            assert getattr(found, "_fields", ()) == getattr(expected, "_fields", ())


def test_isin():
    x = np.array([[1, 2], [3, 4]])
    assert_conforms("isin", x, np.array([2, 9, 4]))
    found = fw.isin(fw.asarray(x), fw.asarray([2, 9, 4]), invert=True)
    assert_agrees(found, np.isin(x, [2, 9, 4], invert=True))
    assert_agrees(fw.isin(fw.asarray(x), 3), x == 3)


# --- linear algebra -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMBERS)
def test_products(dtype: str):
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> Any:
        return rng.integers(0, 4, shape).astype(dtype)

    for a, b in [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 2)),
        ((4, 2, 3), (3, 5)),
        ((0, 3), (3, 2)),
    ]:
        assert_conforms("matmul", matrix(*a), matrix(*b))
    assert_conforms("tensordot", matrix(2, 3, 4), matrix(3, 4, 5))
    assert_conforms("tensordot", matrix(2, 3, 4), matrix(4, 3, 2), axes=((1, 2), (1, 0)))
    assert_conforms("tensordot", matrix(2, 3), matrix(4), axes=0)
    assert_conforms("matrix_transpose", matrix(2, 3, 4))
    a = rng.integers(-3, 4, (2, 3)) + (1j * rng.integers(-3, 4, (2, 3)) if dtype in COMPLEX else 0)
    assert_conforms("vecdot", a.astype(dtype), matrix(3))
    assert_conforms("vecdot", matrix(3, 2), a.T.astype(dtype), axis=-2)


# --- the array object and inspection ------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL)
def test_attributes_and_conversions(dtype: str):
    x = fw.ones((2, 3), dtype=getattr(fw, dtype))
    assert (x.shape, x.ndim, x.size, x.device) == ((2, 3), 2, 6, "host")
    assert x.T.shape == x.mT.shape == (3, 2) and x.__array_namespace__(api_version="2024.12") is fw
    one = fw.asarray(draw(np.random.default_rng(5), (), dtype, plain=True))
    element = np.asarray(one).item()
    assert {"b": bool, "i": int, "u": int, "f": float, "c": complex}[
        np.dtype(dtype).kind
    ](one) == element  # fmt: skip
    assert complex(one) == element
    exported = np.from_dlpack(x, copy=True)
    assert exported.dtype == np.dtype(dtype) and x.__dlpack_device__() == (1, 0)
    assert_agrees(fw.from_dlpack(x), exported)
    assert_agrees(fw.from_dlpack(np.asarray(x), device=x.device, copy=True), exported)


def test_indices_of_python_containers():
    assert [10, 20, 30][fw.asarray(1)] == 20
    with pytest.raises(fw.UserError, match="__index__ of float32: it takes integer arrays"):
        operator.index(fw.asarray(1.0))


@pytest.mark.parametrize("a", ALL)
def test_dtype_functions(a: str):
    ours, theirs = getattr(fw, a), getattr(strict, a)
    for b in ALL:
        other, expected = getattr(fw, b), getattr(strict, b)
        assert fw.can_cast(ours, other) == strict.can_cast(theirs, expected), (a, b)
        assert (ours == other) == (a == b)
        try:
            promoted = str(strict.result_type(theirs, expected)).rsplit(".", 1)[-1]
        except TypeError:
            continue
        assert fw.result_type(ours, other).name == promoted
    for kind in ("bool", "signed integer", "unsigned integer", "integral", "real floating",
                 "complex floating", "numeric"):  # fmt: skip
        assert fw.isdtype(ours, kind) == strict.isdtype(theirs, kind)
    for source in ALL:
        if source in COMPLEX and a not in COMPLEX:
            continue
        x = np.array([0, 1, 3]).astype(source)
        assert_agrees(fw.astype(fw.asarray(x), ours), x.astype(a))
        if a in FLOATS or a in COMPLEX:
            assert fw.finfo(ours).bits == strict.finfo(theirs).bits


def test_inspection_is_of_the_standard():
    info, theirs = fw.__array_namespace_info__(), strict.__array_namespace_info__()
    assert set(info.dtypes()) == set(theirs.dtypes()) == set(ALL)
    for kind in ("bool", "integral", "numeric", ("real floating", "complex floating")):
        assert set(info.dtypes(kind=kind)) == set(theirs.dtypes(kind=kind))
    found = {key: type(value) for key, value in info.capabilities().items()}
    assert found == {"boolean indexing": bool, "data-dependent shapes": bool, "max dimensions": int}
    assert set(info.default_dtypes()) == set(theirs.default_dtypes())
    assert fw.empty((1,) * info.capabilities()["max dimensions"]).ndim == 64


def _parameters(f: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(f).parameters.values())


FUNCTIONS = [
    n for n in strict.__all__
    if inspect.isfunction(getattr(strict, n)) and not n.endswith("array_api_strict_flags")
]  # fmt: skip
METHODS = [n for n, f in inspect.getmembers(strict.ones((1, 1)), inspect.ismethod) if n[:1] != "_"
           or (n[:2] == "__" and n not in ("__init__", "__init_subclass__", "__buffer__",
                                          "__subclasshook__"))]  # fmt: skip


@pytest.mark.parametrize("name", [*FUNCTIONS, *METHODS])
def test_signatures(name: str):
    on_arrays = name in METHODS
    ours = _parameters(getattr(fw.ones((1, 1)) if on_arrays else fw, name))
    theirs = _parameters(getattr(strict.ones((1, 1)) if on_arrays else strict, name))
    positional = [p for p in theirs if p.kind is not p.KEYWORD_ONLY]
    assert len(ours) >= len(positional)
    for p, q in zip(ours, positional, strict=False):
        if q.kind is q.POSITIONAL_OR_KEYWORD and not on_arrays:
            assert p.name == q.name and p.kind is q.kind
    by_name = {p.name: p for p in ours}
    for q in theirs:
        if q.kind is q.KEYWORD_ONLY:
            assert by_name[q.name].kind in (q.KEYWORD_ONLY, q.POSITIONAL_OR_KEYWORD)


# --- rejections ---------------------------------------------------------------------------------

X = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda x: fw.expand_dims(x, axis=4), IndexError, r"axis 4 of an array of rank 3"),
        (lambda x: fw.squeeze(x, 1), ValueError, r"squeeze: axis 1 .* has size 3"),
        (lambda x: x[2, 0], IndexError, r"index 2 is outside size 2"),
        (lambda x: x[0, 0, 0], IndexError, r"3 axes and 0 Ellipsis for an array of rank 2"),
        (lambda x: x[fw.asarray([True, False, True])], IndexError, r"boolean index did not match"),
        (lambda x: x[fw.asarray([0, 5])], IndexError, r"index 5 is out of bounds for axis 0"),
        (lambda x: operator.setitem(x, (5, 0), 1.0), IndexError, r"x\[5, 0\] = value of .*index 5"),
        (lambda x: operator.setitem(x, 0, fw.ones(2, dtype=fw.float64)), ValueError, r"broadcast"),
        (lambda x: operator.setitem(x, 0, 1j), ValueError, r"would make it complex128; cast"),
        (
            lambda x: operator.setitem(fw.arange(3), 0, 0.5),
            ValueError,
            r"would make it float32; cast",
        ),
        (lambda x: fw.sort(x + 1j), ValueError, r"sort of complex128: complex numbers have no"),
        (lambda x: fw.max(x + 1j), ValueError, r"max of complex128: complex numbers have no max"),
        (lambda x: fw.astype(x + 1j, fw.float32), ValueError, r"astype of complex128 to float32"),
        (lambda x: fw.nonzero(x[0, 0]), ValueError, r"nonzero of an array of rank 0"),
        (lambda x: fw.searchsorted(x, x), ValueError, r"searchsorted in .*: the ordered array has"),
        (lambda x: fw.searchsorted(x[0], x, side="up"), ValueError, r"side='up'; use 'left' or"),
        (lambda x: fw.asarray([300], dtype=fw.int8), ValueError, r"asarray of a list in int8"),
        (lambda x: fw.asarray([[1], [2, 3]]), ValueError, r"asarray of a list in numbers"),
        (lambda x: fw.asarray(x, dtype=fw.int8, copy=False), ValueError, r"copy=False\) of Array"),
        (lambda x: x.to_device("cuda"), ValueError, r"to_device\(device='cuda'\): the only device"),
        (lambda x: fw.zeros(2, device="cuda"), ValueError, r"zeros\(device='cuda'\): the only"),
        (lambda x: x.__dlpack__(stream=1), ValueError, r"stream=1\): values on the host have no"),
        (lambda x: fw.from_dlpack(3), ValueError, r"from_dlpack of int: it has no __dlpack__"),
    ],
)
def test_wrong_use(call: Any, kind: type[Exception], message: str):
    with pytest.raises(fw.UserError, match=message) as caught:
        call(fw.asarray(X))
    assert isinstance(caught.value, kind)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            fw.unique_values,
            r"unique_values of the traced array .* give it as size=",
        ),
        (fw.nonzero, r"nonzero of the traced array"),
        (lambda x: fw.astype(x, fw.complex64), r"kernels hold no complex numbers; use two real"),
    ],
)
def test_what_kernels_do_not_compute_is_unsupported_in_a_trace(call: Any, message: str):
    with pytest.raises(fw.UnsupportedError, match=message):
        fw.trace(call, fw.TensorSpec((4,), fw.float32))


def test_complex_arguments_are_unsupported():
    with pytest.raises(fw.UnsupportedError, match="TensorSpec of complex64: kernels hold no"):
        fw.TensorSpec((4,), fw.complex64)
