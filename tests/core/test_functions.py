"""The scalar functions against Python's own arithmetic, published vectors and IEEE tables."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from fusewright.core.functions import FUNCTIONS, ROUNDED, reinterpret
from fusewright.dtypes import float32, float64, uint32, uint64

NAMES = """
neg abs sign sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh
tanh asinh acosh atanh erf floor ceil trunc round reciprocal bitwise_not logical_not isnan isinf
isfinite signbit add sub mul div floordiv rem pow atan2 max min hypot copysign nextafter logaddexp
bitwise_and bitwise_or bitwise_xor shl shr eq ne lt le gt ge and or xor where fma philox cast copy
segment_set bitcast
""".split()  # noqa: SIM905
INF, NAN = math.inf, math.nan


def call(name: str, *args: object, dtype: object = np.float64) -> np.ndarray:
    return FUNCTIONS[name].numpy(*(np.asarray(a, dtype) for a in args))


def test_the_table_has_exactly_these_functions_and_approximations_of_them():
    approximate = [n for n in FUNCTIONS if n.endswith("_approx")]
    added = [n for n in FUNCTIONS if n.endswith("_added")]
    assert sorted(FUNCTIONS) == sorted([*NAMES, *approximate, *added, *ROUNDED.values()])
    assert all(n.removesuffix("_approx") in NAMES for n in approximate)
    assert all(n.removesuffix("_added") in NAMES for n in added)
    assert all(f.name == name for name, f in FUNCTIONS.items())


def test_bits_of_floats_and_back():
    for kind, bits, number in ((float32, uint32, 0xBF800000), (float64, uint64, 0xBFF << 52)):
        found = reinterpret(np.array([-1.0, 0.0]), bits)  # the oracle holds floats as float64
        assert found.dtype == bits.numpy and found.tolist() == [number, 0]
        back = reinterpret(found, kind)
        assert back.dtype == kind.numpy and back.tolist() == [-1.0, 0.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_keep_their_dtype_and_nothing_warns(dtype: type):
    values = [0.0, -0.0, 1.5, -2.0, INF, -INF, NAN, 1e-40, 1e38]
    grid = np.meshgrid(values, values, values)
    skip = {"bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "shl", "shr", "philox"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, f in FUNCTIONS.items():
            if name in skip:
                continue
            args = [g.ravel().astype(dtype) for g in grid[: f.arity]]
            if name == "where":
                args[0] = args[0] > 0
            out = f.numpy(*args)
            assert out.dtype == (np.bool_ if f.result == "bool" else dtype), name


def test_erf_is_accurate_to_two_ulp_of_float64_and_one_of_float32():
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(size=20000) * 2, 10.0 ** rng.uniform(-300, 1, 20000)])
    exact = np.array([math.erf(v) for v in x])
    assert (np.abs(call("erf", x) - exact) <= 2 * np.spacing(np.abs(exact))).all()
    short = x.astype(np.float32)
    exact = np.array([math.erf(v) for v in short.astype(float)])
    got = call("erf", short, dtype=np.float32)
    assert got.dtype == np.float32
    assert (np.abs(got - exact) <= np.spacing(np.abs(exact).astype(np.float32))).all()


def test_erf_of_special_values():
    got = call("erf", [INF, -INF, NAN, 0.0, -0.0, 30.0])
    np.testing.assert_array_equal(got, [1, -1, NAN, 0, 0, 1])
    assert np.signbit(got[4]) and not np.signbit(got[3])


# Known answers of Philox4x32-10 from the Random123 distribution (kat_vectors).
def test_philox_known_answers():
    zero = FUNCTIONS["philox"].numpy(0, 0, np.arange(4))
    assert [hex(v) for v in zero] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def test_philox_words_follow_offset_and_index():
    philox = FUNCTIONS["philox"].numpy
    words = philox(7, 5, np.arange(64))
    assert words.dtype == np.uint32
    np.testing.assert_array_equal(words[8:], philox(7, 7, np.arange(56)))
    assert not np.array_equal(words, philox(8, 5, np.arange(64)))
    high = philox(7, 2**64 - 1, np.arange(8))
    np.testing.assert_array_equal(high[4:], philox(7, 0, np.arange(4)))


def test_philox_bits_are_balanced():
    words = FUNCTIONS["philox"].numpy(123, 0, np.arange(1 << 16))
    ones = ((words[:, None] >> np.arange(32, dtype=np.uint32)) & 1).mean(0)
    assert (np.abs(ones - 0.5) < 0.01).all()


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint32, np.uint64])
def test_integer_division_rounds_down_and_by_zero_gives_zero(dtype: type):
    limits = np.iinfo(dtype)
    values = sorted(
        {limits.min, limits.min + 1, -7, -1, 0, 1, 2, 7, limits.max}
        - set(() if limits.min else (-7, -1))
    )
    for a in values:
        for b in values:
            q = call("floordiv", a, b, dtype=dtype)
            r = call("rem", a, b, dtype=dtype)
            if b == 0:
                assert (q, r) == (0, 0)
            else:
                wrapped = np.asarray(a // b & (2 ** (limits.bits) - 1), np.uint64).astype(dtype)
                assert q == wrapped and r == a % b, (a, b)


FLOATS = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, INF, -INF, NAN]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_float_quotient_is_the_floor_of_the_division_at_special_values(dtype: type):
    a, b = (x.ravel() for x in np.meshgrid(FLOATS, FLOATS))
    with np.errstate(all="ignore"):
        expected = np.floor(a / b)
    got = call("floordiv", a, b, dtype=dtype)
    np.testing.assert_array_equal(got, expected.astype(dtype))
    zeros = got == 0
    assert (np.signbit(got) == np.signbit(expected))[zeros].all()


def complex_call(name: str, re: float, im: float) -> complex:
    return complex(FUNCTIONS[name].numpy(np.asarray(complex(re, im))))


# The array API standard, version 2024.12, expm1; where a sign is unspecified, so here.
@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ((0.0, 0.0), (0.0, 0.0)),
        ((-0.0, 0.0), (0.0, 0.0)),
        ((1.0, INF), (NAN, NAN)),
        ((1.0, NAN), (NAN, NAN)),
        ((INF, 0.0), (INF, 0.0)),
        ((1000.0, 0.0), (INF, 0.0)),
        ((-INF, 2.0), (-1.0, 0.0)),
        ((INF, 2.0), (-INF, INF)),
        ((-INF, INF), (-1.0, 0.0)),
        ((INF, INF), (INF, NAN)),
        ((-INF, NAN), (-1.0, 0.0)),
        ((INF, NAN), (INF, NAN)),
        ((NAN, 0.0), (NAN, 0.0)),
        ((NAN, 1.0), (NAN, NAN)),
    ],
)
def test_complex_expm1_at_special_values(argument: Any, expected: Any):
    (re, im), (real, imag) = argument, expected
    got, conjugate = complex_call("expm1", re, im), complex_call("expm1", re, -im)
    np.testing.assert_array_equal([got.real, abs(got.imag)], [real, imag])
    np.testing.assert_array_equal([conjugate.real, conjugate.imag], [got.real, -got.imag])
    assert np.signbit(got.real) == (real < 0) or math.isnan(real)
    if im == 0:
        assert not np.signbit(got.imag) and np.signbit(conjugate.imag)


def test_complex_expm1_keeps_its_digits_near_zero():
    x = np.array([1e-12 + 1e-9j, -3e-17 + 0.5j, 0.75 - 1e-30j, 2 + 3j])
    expected = [1e-12 - 5e-19 + 1e-9j, np.exp(0.5j) - 1, np.expm1(0.75) - 1e-30j * np.exp(0.75)]
    got = FUNCTIONS["expm1"].numpy(x)
    np.testing.assert_allclose(got.real, np.real([*expected, np.exp(2 + 3j) - 1]), rtol=1e-12)
    np.testing.assert_allclose(got.imag, np.imag([*expected, np.exp(2 + 3j) - 1]), rtol=1e-9)


def test_complex_tanh_at_infinity_keeps_the_sign_of_the_imaginary_part():
    for im in (0.5, 2.0, 3.6e150):
        for sign in (1.0, -1.0):
            got = complex_call("tanh", INF, sign * im)
            assert got == 1 and np.signbit(got.imag) == (sign < 0)


def test_integer_overflow_wraps():
    assert call("add", 127, 1, dtype=np.int8) == -128
    assert call("mul", 2**31, 2, dtype=np.uint32) == 0
    assert call("neg", -128, dtype=np.int8) == -128
    assert call("abs", -128, dtype=np.int8) == -128
    assert call("pow", 2, 33, dtype=np.int32) == 0


@pytest.mark.parametrize(
    ("base", "exponent", "value"),
    [(2, -1, 0), (-1, -3, -1), (-1, -2, 1), (1, -5, 1), (0, 0, 1), (0, -1, 0), (-3, 3, -27)],
)
def test_integer_powers(base: int, exponent: int, value: int):
    assert call("pow", base, exponent, dtype=np.int32) == value


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
def test_shifts_by_the_width_and_more(dtype: type):
    bits = np.iinfo(dtype).bits
    one = 1
    assert call("shl", one, bits - 1, dtype=dtype) == np.asarray(1, dtype) << (bits - 1)
    assert call("shl", one, bits, dtype=dtype) == 0
    assert call("shr", 5, bits, dtype=dtype) == 0
    assert call("shr", 5, 1, dtype=dtype) == 2
    if np.iinfo(dtype).min < 0:
        assert call("shr", -5, 1, dtype=dtype) == -3
        assert call("shr", -5, bits + 3, dtype=dtype) == -1
        assert call("shl", 1, -1, dtype=dtype) == 0


def test_max_and_min_propagate_nan():
    for name in ("max", "min"):
        assert np.isnan(call(name, NAN, 1.0)) and np.isnan(call(name, 1.0, NAN))
    assert call("max", -INF, 1.0) == 1 and call("min", INF, 1.0) == 1


def test_round_takes_halves_to_even():
    np.testing.assert_array_equal(call("round", [0.5, 1.5, 2.5, -0.5]), [0, 2, 2, -0.0])


def test_fma_rounds_a_float32_product_once():
    a = np.float32(1 + 2**-12)
    assert call("fma", a, a, -1, dtype=np.float32) == np.float32(2**-11 + 2**-24)
    assert call("fma", 3, 4, 5, dtype=np.int32) == 17


@pytest.mark.parametrize(
    ("name", "args", "value"),
    [
        ("div", (1.0, 0.0), INF),
        ("div", (-1.0, 0.0), -INF),
        ("div", (0.0, 0.0), NAN),
        ("rem", (5.0, -3.0), -1.0),
        ("rem", (-5.0, 3.0), 1.0),
        ("rem", (1.0, 0.0), NAN),
        ("floordiv", (1.0, 0.1), 9.0),
        ("pow", (0.0, 0.0), 1.0),
        ("pow", (-8.0, 1 / 3), NAN),
        ("rsqrt", (0.0,), INF),
        ("log", (0.0,), -INF),
        ("log", (-1.0,), NAN),
        ("atan2", (0.0, -1.0), math.pi),
        ("logaddexp", (-INF, -INF), -INF),
        ("hypot", (3e200, 4e200), 5e200),
        ("copysign", (NAN, -1.0), NAN),
        ("sign", (NAN,), NAN),
    ],
)
def test_special_values(name: str, args: tuple[float, ...], value: float):
    np.testing.assert_allclose(call(name, *args), value, rtol=1e-15)


def test_floor_division_keeps_every_digit_of_long_integers():
    """Floats of 64 bits have 53 digits, these numbers 63."""
    a = np.array([2**62 + 1, -(2**62) - 1, 2**63 - 1], np.int64)
    got = FUNCTIONS["floordiv"].numpy(a, np.array([3, 3, 1], np.int64))
    assert got.dtype == np.int64
    assert got.tolist() == [(2**62 + 1) // 3, (-(2**62) - 1) // 3, 2**63 - 1]
