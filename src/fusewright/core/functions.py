"""The scalar functions that fusions, the simulator and the emitter share: name, arity, meaning.

`numpy` computes on arrays of one dtype, returns that dtype, warns of nothing, and is the
definition. Integer overflow wraps. Division and remainder of integers by zero give 0; quotients
round down and the remainder has the divisor's sign, for floats as Python has it. An integer to a
negative integer power is the exact result cut to an integer (0, 1 or -1). Shifts by the bit width
or more give 0 (-1 for a negative signed left operand of a right shift); a negative amount counts
as that. A float quotient with an infinite operand is `a / b`, as the array API standard has it.
`max` and `min` propagate NaN. `round` takes halves to even. The results of "cast" and "bitcast"
have the dtype of what they are assigned to (`convert`, `reinterpret`); "bitcast" goes between a
float of 32 or 64 bits and the unsigned integer of its size.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fusewright.core import complex_functions
from fusewright.dtypes import DType, bfloat16

Array = npt.NDArray[Any]
Result = Literal["same", "bool", "uint32"]


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """One function: `result` is "same" (the operands' dtype, the last one's for `where`), "bool"
    or "uint32". `is_continuous`: a small relative error of an operand stays small, or is rounded
    away at the end."""

    name: str
    arity: int
    result: Result
    numpy: Callable[..., Array]
    is_continuous: bool = False


def _quiet(f: Callable[..., Any]) -> Callable[..., Array]:
    """`f` with numpy's floating point warnings off."""

    @functools.wraps(f)
    def call(*args: Array) -> Array:
        with np.errstate(all="ignore"):
            return f(*args)

    return call


# --- single functions ---------------------------------------------------------------------------


def _identity(x: Array) -> Array:
    return np.asarray(x)


def _is_integer(x: Array) -> bool:
    return x.dtype.kind in "iu"


def _rsqrt(x: Array) -> Array:
    return np.reciprocal(np.sqrt(x))


def _floordiv(a: Array, b: Array) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    rounded = np.floor_divide(a, b)
    if a.dtype.kind in "iu":
        return rounded
    return np.where(np.isinf(a) | np.isinf(b), np.true_divide(a, b), rounded)


def _pow(a: Array, b: Array) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    if not _is_integer(a):
        return np.power(a, b)
    negative = b < 0
    power = np.power(a, np.where(negative, b & 1, b).astype(b.dtype))
    return np.where(negative & (np.abs(a) != 1), np.zeros_like(power), power)


def _shl(a: Array, b: Array) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    width = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < width)
    shifted = np.left_shift(a, np.where(inside, b, 0).astype(b.dtype))
    return np.where(inside, shifted, np.zeros_like(shifted))


def _shr(a: Array, b: Array) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    width = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < width)
    shifted = np.right_shift(a, np.where(inside, b, 0).astype(b.dtype))
    rest = -(a < 0).astype(a.dtype) if a.dtype.kind == "i" else np.zeros_like(a)
    return np.where(inside, shifted, rest)


def _fma(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c`; the product of two floats of at most 32 bits is not rounded."""
    a, b, c = np.asarray(a), np.asarray(b), np.asarray(c)
    if a.dtype.kind in "iub" or a.dtype.itemsize >= 8:
        return a * b + c
    wide = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    return wide.astype(a.dtype)


def reinterpret(x: Array, dtype: DType) -> Array:
    """The bits of `x` as another dtype of as many bytes; a float64 is rounded to the float of
    that size first."""
    x = np.asarray(x)
    if x.dtype.itemsize != dtype.nbytes:
        with np.errstate(all="ignore"):
            x = x.astype(np.dtype(f"f{dtype.nbytes}"))
    return x.view(dtype.numpy)


def round_tf32(x: Array) -> Array:
    """`x` as float32 with 10 bits behind the point, rounded to the nearest, ties to even;
    infinities and NaN stay. So the copy engine rounds what it reads through a tensor map of element
    type TFLOAT32 (triton pull request 11751 compares both, ties included)."""
    values = np.asarray(x, np.float32)
    bits = values.view(np.uint32)
    even = bits >> np.uint32(13) & np.uint32(1)
    rounded = bits + np.uint32(0xFFF) + even & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), rounded, bits).view(np.float32)


def convert(x: Array, dtype: DType) -> Array:
    """`x` in another dtype. Floats become integers by truncation, NaN as 0 and values out of range
    as the nearest integer; integers wrap; floats round to the nearest, ties to even."""
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        if not dtype.is_integer or x.dtype.kind in "iub":
            return x.astype(dtype.numpy)
        low, high = dtype.integer_range
        wide = x if x.dtype.itemsize == 8 else x.astype(np.float64)
        whole = np.trunc(np.where(np.isnan(wide), 0.0, wide))
        inside = np.clip(whole, float(low), np.nextafter(float(high), 0.0)).astype(dtype.numpy)
        return np.where(whole < float(high), inside, np.asarray(high, dtype.numpy))


# --- erf ----------------------------------------------------------------------------------------

_ERF_STEP = 1 / 16
_ERF_END = 6.0  # erf(6) rounds to 1 in float64
_ERF_DEGREE = 11


def _erf_table() -> npt.NDArray[np.float64]:
    """Taylor coefficients of erf about every multiple of the step, one row a power.

    erf'(a) = 2/sqrt(pi) exp(-a^2), and the n-th derivative of exp(-a^2) is (-1)^n H_n(a) exp(-a^2)
    with the Hermite polynomials H_{n+1} = 2 a H_n - 2 n H_{n-1}.
    """
    rows: list[list[float]] = [[] for _ in range(_ERF_DEGREE + 1)]
    for k in range(round(_ERF_END / _ERF_STEP) + 1):
        a = k * _ERF_STEP
        slope = 2 / math.sqrt(math.pi) * math.exp(-a * a)
        hermite, before = 1.0, 0.0
        rows[0].append(math.erf(a))
        for n in range(_ERF_DEGREE):
            rows[n + 1].append((-1) ** n * slope * hermite / math.factorial(n + 1))
            hermite, before = 2 * a * hermite - 2 * n * before, hermite
    return np.array(rows)


_ERF = _erf_table()


def _erf(x: Array) -> Array:
    """The error function, within an ulp of float64: Taylor about the nearest table point."""
    x = np.asarray(x)
    magnitude = np.minimum(np.abs(x.astype(np.float64)), _ERF_END)
    row = np.nan_to_num(np.rint(magnitude / _ERF_STEP)).astype(np.intp)
    h = magnitude - row * _ERF_STEP
    tail = _ERF[_ERF_DEGREE][row]
    for coefficients in _ERF[_ERF_DEGREE - 1 : 0 : -1]:
        tail = tail * h + coefficients[row]
    return np.copysign(_ERF[0][row] + tail * h, x.astype(np.float64)).astype(x.dtype)


# --- Philox -------------------------------------------------------------------------------------

_PHILOX_ROUNDS = 10
_PHILOX_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def _philox(seed: Array, offset: Array, index: Array) -> Array:
    """Word `index % 4` of block `offset + index // 4` of Philox4x32-10 keyed by `seed`.

    The key is (low, high) of the seed, the counter (low, high, 0, 0) of the block number.
    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC11), section 2.
    """
    seed, offset, index = (np.asarray(v).astype(np.uint64) for v in (seed, offset, index))
    block = offset + index // np.uint64(4)
    zero = np.zeros_like(block)
    c0, c1, c2, c3 = block & _WORD, block >> _HALF, zero, zero
    k0, k1 = seed & _WORD, seed >> _HALF
    for _ in range(_PHILOX_ROUNDS):
        p0, p1 = c0 * _PHILOX_MULTIPLIERS[0], c2 * _PHILOX_MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _WORD, (p0 >> _HALF) ^ c3 ^ k1, p0 & _WORD
        k0 = (k0 + np.uint64(_PHILOX_WEYL[0])) & _WORD
        k1 = (k1 + np.uint64(_PHILOX_WEYL[1])) & _WORD
    lane = index % np.uint64(4)
    low = np.where(lane == 0, c0, c1)
    high = np.where(lane == 2, c2, c3)
    return np.where(lane < 2, low, high).astype(np.uint32)


# --- the table ----------------------------------------------------------------------------------

_UNARY: dict[str, Callable[..., Any]] = {
    "neg": np.negative,
    "abs": np.absolute,
    "sign": np.sign,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": complex_functions.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": complex_functions.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": _erf,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "reciprocal": np.reciprocal,
    "bitwise_not": np.invert,
    "cast": _identity,
    "bitcast": _identity,
    "copy": _identity,
    "segment_set": _identity,
}
_UNARY_TO_BOOL: dict[str, Callable[..., Any]] = {
    "logical_not": np.logical_not,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "signbit": np.signbit,
}
_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "floordiv": _floordiv,
    "rem": np.remainder,
    "pow": _pow,
    "atan2": np.arctan2,
    "max": np.maximum,
    "min": np.minimum,
    "hypot": np.hypot,
    "copysign": np.copysign,
    "nextafter": np.nextafter,
    "logaddexp": np.logaddexp,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "shl": _shl,
    "shr": _shr,
}
_BINARY_TO_BOOL: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


# fmt: off
_CONTINUOUS = (
    "add", "sub", "mul", "div", "neg", "abs", "max", "min", "fma", "where", "exp", "exp2", "sqrt",
    "rsqrt", "reciprocal", "tanh", "erf", "copy", "cast", "expm1", "log", "log2", "log10", "log1p",
)
_APPROXIMATED = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "div", "reciprocal", "sqrt",
    "rsqrt", "erf",
)
# fmt: on
APPROXIMATE: dict[str, str] = {name: f"{name}_approx" for name in _APPROXIMATED}
"""Functions that have a fast float32 form, good to about 2**-18: for values that only reach 16 bits
or fewer. The error of `erf` is absolute, so it is for sums with 1. The simulator computes them like
the exact ones."""

ADDED: dict[str, str] = {"exp": "exp_added"}
"""Functions that have a float32 form for terms of sums of which one is 1: good to
2**-22 + |x| * 2**-26, and 0 where the result is subnormal. Computed here like the exact ones."""

ROUNDED: dict[str, str] = {"bfloat16": "round_bfloat16"}
"""The float32 functions that round to what a shorter float could hold, by its name: one instruction
where a cast there and back takes two."""


def _round_bfloat16(x: Array) -> Array:
    return np.asarray(x).astype(bfloat16.numpy).astype(x.dtype)


def _table() -> dict[str, ScalarFunction]:
    exact = _UNARY | _BINARY
    fast = {APPROXIMATE[name]: exact[name] for name in APPROXIMATE}
    fast |= {ADDED[name]: exact[name] for name in ADDED}
    groups: tuple[tuple[int, Result, dict[str, Callable[..., Any]]], ...] = (
        (1, "same", _UNARY),
        (1, "bool", _UNARY_TO_BOOL),
        (2, "same", _BINARY),
        (2, "bool", _BINARY_TO_BOOL),
        (1, "same", {k: f for k, f in fast.items() if k != APPROXIMATE["div"]}),
        (1, "same", {ROUNDED["bfloat16"]: _round_bfloat16}),
        (2, "same", {APPROXIMATE["div"]: exact["div"]}),
        (3, "same", {"where": np.where, "fma": _fma}),
        (3, "uint32", {"philox": _philox}),
    )
    return {
        name: ScalarFunction(name, arity, result, _quiet(f), name in _CONTINUOUS)
        for arity, result, group in groups
        for name, f in group.items()
    }


FUNCTIONS: dict[str, ScalarFunction] = _table()
