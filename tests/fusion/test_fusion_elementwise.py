"""Elementwise operations: values against numpy, promotion against the standard, rejections."""

from __future__ import annotations

import itertools
import math

import array_api_strict as xp
import ml_dtypes
import numpy as np
import pytest
from fusion_cases import assert_same, run

from fusewright import dtypes
from fusewright.errors import UnsupportedError, UserError
from fusewright.fusion import ops as fw
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import TensorSpec
from fusewright.fusion.trace import trace

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 1e-40, -1e-40, 1e30, -1e30, np.inf, -np.inf, np.nan]
)
FLOAT_UNARY = """
abs negative sign sqrt exp expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh
asinh acosh atanh floor ceil trunc round signbit isnan isinf isfinite reciprocal square positive
""".split()  # noqa: SIM905
FLOAT_BINARY = """
add subtract multiply divide floor_divide remainder pow atan2 maximum minimum hypot copysign
logaddexp equal not_equal less less_equal greater greater_equal nextafter
""".split()  # noqa: SIM905
INTEGER_BINARY = """
add subtract multiply floor_divide remainder maximum minimum bitwise_and bitwise_or bitwise_xor
equal not_equal less less_equal greater greater_equal
""".split()  # noqa: SIM905
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
_NUMPY = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh"} | {
    "acosh": "arccosh",
    "atanh": "arctanh",
    "atan2": "arctan2",
    "pow": "power",
    "bitwise_invert": "invert",
    "round": "rint",
}


def reference(name: str, *args: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        found = np.asarray(getattr(np, _NUMPY.get(name, name))(*args))
        if name == "floor_divide" and found.dtype.kind == "f":  # numpy's goes with its remainder
            odd = np.isinf(args[0]) | np.isinf(args[1])
            return np.where(odd, args[0] / args[1], found)
        return found


@pytest.mark.parametrize("name", FLOAT_UNARY)
def test_unary_functions_of_special_values(name: str):
    assert_same(run(getattr(fw, name), SPECIAL), reference(name, SPECIAL))


@pytest.mark.parametrize("name", FLOAT_BINARY)
def test_binary_functions_of_special_values(name: str):
    a, b = (g.ravel().copy() for g in np.meshgrid(SPECIAL, SPECIAL))
    assert_same(run(getattr(fw, name), a, b), reference(name, a, b))


@pytest.mark.parametrize("name", INTEGER_BINARY)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_binary_functions_of_integer_extremes(name: str, dtype: str):
    limits = np.iinfo(dtype)
    values = np.array([limits.min, limits.min + 1, 0, 1, 2, 7, limits.max], dtype)
    a, b = (g.ravel().copy() for g in np.meshgrid(values, values))
    assert_same(run(getattr(fw, name), a, b), reference(name, a, b))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_unary_functions_of_integers(dtype: str):
    limits = np.iinfo(dtype)
    x = np.array([limits.min, 0, 1, limits.max], dtype)
    for name in ("abs", "negative", "sign", "square", "bitwise_invert"):
        assert_same(run(getattr(fw, name), x), reference(name, x))
    for name in ("floor", "ceil", "trunc", "round"):
        assert_same(run(getattr(fw, name), x), x)
    for name in ("isnan", "isinf", "isfinite"):
        assert_same(run(getattr(fw, name), x), reference(name, x))


def test_functions_of_bools():
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for name in ("logical_and", "logical_or", "logical_xor", "equal", "bitwise_xor"):
        assert_same(run(getattr(fw, name), a, b), reference(name, a, b))
    assert_same(run(lambda x: ~x, a), ~a)
    assert_same(run(fw.logical_not, a), ~a)


def test_erf_rsqrt_exp2_fma():
    x = np.linspace(-3, 3, 7)
    assert_same(run(fw.exp2, x), np.exp2(x))
    np.testing.assert_allclose(run(fw.erf, x), [math.erf(v) for v in x], rtol=1e-15)
    np.testing.assert_allclose(run(fw.rsqrt, x + 4), (x + 4) ** -0.5, rtol=1e-15)
    assert_same(run(lambda a: fw.fma(a, 2.0, 1.0), x), x * 2 + 1)


def test_nextafter_steps_on_the_grid_of_the_dtype():
    x = np.array([1.0, 0.0, -1.0], np.float32)
    up = np.full(3, np.inf, np.float32)
    assert_same(run(fw.nextafter, x, up), np.nextafter(x, up))


# --- promotion ----------------------------------------------------------------------------------

STRICT = ["bool", *INTEGERS, "float32", "float64"]


@pytest.mark.parametrize(("a", "b"), list(itertools.product(STRICT, STRICT)))
def test_promotion_follows_the_standard(a: str, b: str):
    x, y = xp.ones(2, dtype=getattr(xp, a)), xp.ones(2, dtype=getattr(xp, b))
    specs = TensorSpec((2,), a), TensorSpec((2,), b)
    try:
        expected = str(xp.result_type(x, y)).rsplit(".")[-1]
    except TypeError:
        return  # mixed kinds are left open by the standard
    fusion = trace(lambda p, q: fw.where(fw.equal(p, p), p, q), *specs)
    assert str(fusion.outputs[0].dtype) == expected


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        ("float16", "bfloat16", "float32"),
        ("float8_e4m3", "float16", "float16"),
        ("bfloat16", "float32", "float32"),
        ("int32", "float16", "float16"),
        ("bool", "bfloat16", "bfloat16"),
    ],
)
def test_promotion_beyond_the_standard(a: str, b: str, result: str):
    fusion = trace(lambda p, q: p + q, TensorSpec((2,), a), TensorSpec((2,), b))
    assert str(fusion.outputs[0].dtype) == result


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "int8", "uint32"])
def test_a_scalar_takes_the_dtype_of_the_array(dtype: str):
    fusion = trace(lambda x: (x + 1, 2 * x, x > 1), TensorSpec((3,), dtype))
    assert [str(t.dtype) for t in fusion.outputs] == [dtype, dtype, "bool"]


def test_a_float_literal_is_rounded_to_the_compute_dtype_only():
    values = trace(lambda x: x * 0.1, TensorSpec((3,), "bfloat16")).values
    (constant,) = [t.op.value for t in values if type(t.op).__name__ == "Constant"]
    assert constant == float(np.float32(0.1)) != float(ml_dtypes.bfloat16(0.1))


def test_nothing_is_rounded_between_ops_but_casts_round():
    x = np.full(3, 1.0, ml_dtypes.bfloat16)
    exact = run(lambda a: (a + 2**-10) - 1, x)
    cast = run(lambda a: fw.astype(fw.astype(a + 2**-10, "float16"), "bfloat16") - 1, x)
    twice = run(lambda a: fw.astype(fw.astype(a + 2**-12, "float16"), "bfloat16") - 1, x)
    assert (exact == 2**-10).all() and (cast == 0).all() and (twice == 0).all()


def test_where_of_two_scalars_takes_the_default_dtype():
    c = np.array([True, False])
    assert_same(run(lambda x: fw.where(x, 1.0, 0.0), c), np.array([1, 0], np.float32))
    assert_same(run(lambda x: fw.where(x, 1, 0), c), np.array([1, 0], np.int64))
    assert_same(run(lambda x: fw.where(x, False, True), c), ~c)


def test_clip():
    x = np.array([-2.0, 0.5, 9.0, np.nan])
    assert_same(run(lambda a: fw.clip(a, 0.0, 1.0), x), np.clip(x, 0, 1))
    assert_same(run(lambda a: fw.clip(a, max=1), x), np.minimum(x, 1))
    assert_same(run(lambda a: fw.clip(a), x), x)
    assert_same(run(lambda a, b: fw.clip(a, b), x, x[::-1].copy()), np.maximum(x, x[::-1]))


# --- casts --------------------------------------------------------------------------------------


def test_casts_between_integers_wrap():
    x = np.array([-1, 0, 255, 256, 2**31 - 1], np.int32)
    for dtype in INTEGERS:
        assert_same(run(lambda a, d=dtype: fw.astype(a, d), x), x.astype(dtype))


def test_casts_of_floats_to_integers_truncate_and_saturate():
    x = np.array([1.9, -1.9, np.nan, np.inf, -np.inf, 127.0, 300.0, -300.0])
    expected = np.array([1, -1, 0, 127, -128, 127, 127, -128], np.int8)
    assert_same(run(lambda a: fw.astype(a, "int8"), x), expected)
    big = np.array([2.0**63, -(2.0**63), 2.0**62])
    expected = np.array([2**63 - 1, -(2**63), 2**62], np.int64)
    assert_same(run(lambda a: fw.astype(a, "int64"), big), expected)


def test_casts_to_bool_ask_for_not_zero():
    x = np.array([0.0, -0.0, 0.25, np.nan])
    assert_same(run(lambda a: fw.astype(a, "bool"), x), x.astype(bool))


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32"])
def test_casts_to_shorter_floats_round(dtype: str):
    x = np.random.default_rng(3).normal(size=200).astype(np.float32)
    expected = x.astype(dtypes.dtype_of(dtype).numpy)
    actual = run(lambda a: fw.astype(a, dtype), x)
    np.testing.assert_array_equal(actual.view(np.uint8), expected.view(np.uint8))


# --- broadcasting -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_random_shapes_broadcast_as_numpy_does(seed: int):
    rng = np.random.default_rng(seed)
    full = rng.integers(0, 4, rng.integers(0, 5))
    shapes = []
    for _ in range(3):
        kept = full[rng.integers(0, len(full) + 1) :]
        shapes.append(tuple(int(s) if rng.random() < 0.6 else 1 for s in kept))
    a, b, c = (rng.normal(size=s) for s in shapes)
    assert_same(run(lambda x, y, z: x + y * z, a, b, c), a + b * c)
    assert_same(run(lambda x, y, z: fw.where(x > 0, y, z), a, b, c), np.where(a > 0, b, c))


# --- rejections ---------------------------------------------------------------------------------

F = TensorSpec((2, 3), "float32")
I32 = TensorSpec((2, 3), "int32")
B = TensorSpec((2, 3), "bool")


@pytest.mark.parametrize(
    ("fn", "specs", "message"),
    [
        (fw.sin, [B], r"sin of bool: it takes float arrays; cast with fw.astype"),
        (lambda x: x / x, [B], r"divide of bool: it takes float"),
        (lambda x: x + x, [B], r"add of bool: it takes numeric arrays"),
        (lambda x: x & x, [F], r"bitwise_and of float32: it takes integer or bool"),
        (fw.logical_not, [I32], r"logical_not of int32: it takes bool arrays; compare first"),
        (lambda x: x + True, [B], r"add of bool: it takes numeric arrays"),
        (lambda x: x & 0.5, [B], r"bitwise_and of float32"),
        (lambda x: x + True, [F], r"add: the Python bool True with an array of float32"),
        (lambda x: x + 2**40, [I32], r"add: 1099511627776 does not fit int32 \(-2147483648 to"),
        (lambda x: x * 1j, [F], r"multiply: complex numbers are not supported"),
        (lambda x: fw.add(1, 2), [F], r"add: no operand is an array"),
        (lambda x: x + np.ones(3, "U"), [F], r"add: a numpy array of shape \(3,\): dtype"),
        (lambda x: fw.exp("x"), [F], r"exp: expected an array, got str 'x'"),
        (lambda x: fw.where(x, x, x), [F], r"where \(condition\) of float32: it takes bool"),
        (lambda x: fw.astype(x, "float7"), [F], r"dtype 'float7' is not supported; use one of"),
        (
            lambda x, y: x + y,
            [F, TensorSpec((2, 4), "float32")],
            r"add: axis 1 has sizes 3 and 4 \(shapes \(2, 3\) and \(2, 4\)\): sizes must be equal",
        ),
        (
            lambda x, y: x + y,
            [TensorSpec((2,), "uint64"), TensorSpec((2,), "int8")],
            r"add: uint64 and int8 have no common integer type; cast",
        ),
        (
            lambda x, y: fw.clip(x, y),
            [TensorSpec((2,), "float32"), TensorSpec((2,), "float64")],
            r"clip of float32 by a float64 limit: the result has x's dtype",
        ),
    ],
)
def test_rejections(fn: object, specs: list[TensorSpec], message: str):
    with pytest.raises(UserError, match=message):
        trace(fn, *specs)


def test_nextafter_of_short_floats_is_unsupported():
    with pytest.raises(UnsupportedError, match="nextafter of bfloat16: kernels hold it as float32"):
        trace(fw.nextafter, TensorSpec((2,), "bfloat16"), TensorSpec((2,), "bfloat16"))


@pytest.mark.parametrize(
    ("fn", "want"),
    [
        (lambda n: n / 2, [0, 0.5, 1, 1.5]),
        (lambda n: 1 / (n + 1), [1, 1 / 2, 1 / 3, 1 / 4]),
        (lambda n: n * 0.5, [0, 0.5, 1, 1.5]),
        (lambda n: 2.0**n, [1, 2, 4, 8]),
        (lambda n: n / n.shape[0], [0, 0.25, 0.5, 0.75]),
        (lambda n: fw.where(n > 2, n, 0.5), [0.5, 0.5, 0.5, 3]),
        (fw.sqrt, [0, 1, math.sqrt(2), math.sqrt(3)]),
        (lambda n: fw.hypot(n, 4), [math.hypot(k, 4) for k in range(4)]),
    ],
)
def test_integers_count_as_float32_where_floats_are_asked_for(fn, want) -> None:
    for dtype in ("int64", "uint8"):
        n = np.arange(4).astype(dtype)
        (got,) = evaluate(trace(fn, TensorSpec((4,), dtype)), n)
        assert got.dtype == np.float32 and np.allclose(got, want, rtol=1e-6)
