"""Scalars as CUDA C++: types, literals, conversions, and the functions of `core.functions`.

Floats shorter than 32 bits are kept as bits and computed on as float, so every function is spelled
for float, double, signed and unsigned integers, and bool. Integer arithmetic wraps. Functions are
the precise ones; `max` and `min` propagate NaN.
"""

from __future__ import annotations

import math
import re
from functools import cache

import numpy as np

from fusewright import dtypes
from fusewright.dtypes import DType
from fusewright.errors import UnsupportedError

CTYPES: dict[str, str] = {
    "bool": "bool",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "uint64": "unsigned long long",
    "float8_e4m3": "fw_e4m3",
    "float8_e5m2": "fw_e5m2",
    "float16": "fw_f16",
    "bfloat16": "fw_bf16",
    "float32": "float",
    "float64": "double",
}
_SHORT = {"float8_e4m3": "e4m3", "float8_e5m2": "e5m2", "float16": "f16", "bfloat16": "bf16"}


def ctype(dtype: DType) -> str:
    """The C++ type of a value in a register or in memory."""
    return CTYPES[dtype.name]


def bits(text: str, dtype: DType) -> str:
    """The bits of a value as an unsigned number of its size, of at least 16 bits."""
    match dtype.name:
        case "float32":
            return f"__float_as_uint({text})"
        case "float64":
            return f"(unsigned long long)__double_as_longlong({text})"
        case _:
            kind = {1: "unsigned", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
            return f"({kind[dtype.nbytes]})({text})"


# --- literals -----------------------------------------------------------------------------------


def literal(value: bool | int | float, dtype: DType) -> str:
    """A literal in the compute type of `dtype`, rounded to `dtype` first; integers wrap."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.is_float:
        with np.errstate(over="ignore"):
            rounded = np.asarray(value, dtype=np.float64).astype(dtype.numpy)
        return _float_literal(rounded.astype(dtype.compute.numpy).item(), dtype.compute)
    bits = 8 * dtype.nbytes
    wrapped = int(value) & ((1 << bits) - 1)
    if dtype.kind == "uint":
        return f"{wrapped}{'ull' if bits == 64 else 'u'}"
    return _signed_literal(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped, bits)


def stored_literal(value: bool | int | float, source: DType, target: DType) -> str:
    """A literal of `source` as registers of `target` hold it: short floats as their bits."""
    if source is target and target.name in _SHORT:
        return f"{int.from_bytes(np.asarray(value, dtype=target.numpy).tobytes(), 'little'):#x}"
    return convert(literal(value, source), source.compute, target)


def _signed_literal(value: int, bits: int) -> str:
    suffix = "ll" if bits == 64 else ""
    if bits >= 32 and value == -(1 << (bits - 1)):
        return f"(-{-(value + 1)}{suffix} - 1)"
    return f"(-{-value}{suffix})" if value < 0 else f"{value}{suffix}"


def _float_literal(value: float, dtype: DType) -> str:
    if dtype is dtypes.float32:
        special = {"inf": "0x7f800000u", "-inf": "0xff800000u"}
        special |= {"nan": "0x7fc00000u", "-nan": "0xffc00000u"}
        if not math.isfinite(value):
            return f"__uint_as_float({special[dtypes.scalar_text(value)]})"
        text = f"{np.format_float_scientific(np.float32(value), trim='0')}f"
        plain = f"{np.format_float_positional(np.float32(value), trim='0')}f"
    else:
        special = {"inf": "0x7ff0", "-inf": "0xfff0", "nan": "0x7ff8", "-nan": "0xfff8"}
        if not math.isfinite(value):
            return f"__longlong_as_double({special[dtypes.scalar_text(value)]}000000000000ll)"
        text = np.format_float_scientific(value, trim="0")
        plain = np.format_float_positional(value, trim="0")
    shorter = min(plain, text, key=len)
    return f"({shorter})" if shorter.startswith("-") else shorter


# --- conversions --------------------------------------------------------------------------------


def widen(text: str, dtype: DType) -> str:
    """A value of `dtype` in its compute type."""
    short = _SHORT.get(dtype.name)
    return text if short is None else f"fw_{short}_to_float({text})"


def convert(text: str, source: DType, target: DType) -> str:
    """A value of compute type `source` (never a short float) as a value of `target`.

    Float to float rounds to nearest even, 8-bit floats saturate; float to integer cuts; integers
    wrap; anything but zero is true. Doubles and integers reach bfloat16 and the 8-bit floats
    through float, as ml_dtypes does.
    """
    if source is target:
        return text
    if target.kind == "bool":
        return f"({text}) != 0"
    if target.name in _SHORT:
        if source is dtypes.float64 and target is dtypes.float16:
            return f"fw_double_to_f16({text})"
        return f"fw_float_to_{_SHORT[target.name]}({convert(text, source, dtypes.float32)})"
    if source.is_float and target.is_integer:
        return _cut(text, source, target)
    return f"({ctype(target)})({text})"


def _cut(text: str, source: DType, target: DType) -> str:
    """Towards zero. Narrow results are cut from a wider integer, so they wrap like numpy's."""
    origin = "float" if source is dtypes.float32 else "double"
    wide = "ull" if target is dtypes.uint64 else "int" if target.nbytes < 4 else "ll"
    if target is dtypes.int32:
        wide = "int"
    call = f"__{origin}2{wide}_rz({text})"
    return call if target.nbytes == 8 or target is dtypes.int32 else f"({ctype(target)}){call}"


def convert_pair(low: str, high: str, target: DType) -> str | None:
    """Two floats packed into the bits of two `target` elements by one instruction, or None."""
    short = _SHORT.get(target.name)
    return None if short is None else f"fw_float_to_{short}x2({low}, {high})"


def bitcast(text: str, source: DType, target: DType) -> str:
    """The bits of a value of `source` as a value of `target`."""
    match target.name:
        case "float32":
            return f"__uint_as_float({text})"
        case "float64":
            return f"__longlong_as_double((long long)({text}))"
        case _:
            return bits(text, source)


# --- functions ----------------------------------------------------------------------------------

# fmt: off
_UNARY_LIBRARY = (
    "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "floor",
    "ceil", "trunc",
)
# fmt: on
_BINARY_LIBRARY = ("pow", "atan2", "hypot", "copysign", "nextafter")

_COMPARISONS = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "and": "{0} && {1}",
    "or": "{0} || {1}",
    "xor": "(bool){0} != (bool){1}",
    "logical_not": "!{0}",
}
_ANY = {**_COMPARISONS, "copy": "{0}", "cast": "{0}", "where": "{0} ? {1} : {2}"}
_BITS = {
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
}
_BOOL = {
    **_ANY,
    **_BITS,
    "bitwise_not": "!{0}",
    "abs": "{0}",
    "add": "{0} || {1}",
    "mul": "{0} && {1}",
    "max": "{0} || {1}",
    "min": "{0} && {1}",
    "isnan": "false",
    "isinf": "false",
    "isfinite": "true",
}
_INTEGER = {
    **_ANY,
    **_BITS,
    "bitwise_not": "~{0}",
    "neg": "fw_sub<{t}>(0, {0})",
    "add": "fw_add<{t}>({0}, {1})",
    "sub": "fw_sub<{t}>({0}, {1})",
    "mul": "fw_mul<{t}>({0}, {1})",
    "fma": "fw_add<{t}>(fw_mul<{t}>({0}, {1}), {2})",
    "floordiv": "fw_floordiv<{t}>({0}, {1})",
    "rem": "fw_rem<{t}>({0}, {1})",
    "pow": "fw_pow<{t}>({0}, {1})",
    "shl": "fw_shl<{t}>({0}, {1})",
    "shr": "fw_shr<{t}>({0}, {1})",
    "max": "{0} > {1} ? {0} : {1}",
    "min": "{0} < {1} ? {0} : {1}",
    "isnan": "false",
    "isinf": "false",
    "isfinite": "true",
    "signbit": "{0} < 0",
    "philox": "fw_philox({0}, {1}, {2})",
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), "{0}"),
}
_SIGNED = {
    **_INTEGER,
    "abs": "fw_abs<{t}>({0})",
    "sign": "({0} > 0) - ({0} < 0)",
}
_UNSIGNED = {
    **_INTEGER,
    "abs": "{0}",
    "sign": "{0} != 0",
    "signbit": "false",
}
_IN_INT = {name: f"({{t}}){name}((int){{0}}, (int){{1}})" for name in ("max", "min")}
"""Of integers shorter than 32 bits: an instruction for one or two, where a comparison and a choice
in their own type take four, with the extensions of sign that they need."""
_SIGNED_SHORT = _SIGNED | _IN_INT
_UNSIGNED_SHORT = _UNSIGNED | _IN_INT
_FLOAT = {
    **_ANY,
    "neg": "-{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "reciprocal": "{one} / {0}",
    "abs": "fabs{f}({0})",
    "round": "rint{f}({0})",
    "sign": "fw_sign({0})",
    "floordiv": "fw_float_floordiv({0}, {1})",
    "rem": "fw_float_rem({0}, {1})",
    "max": "fw_max({0}, {1})",
    "min": "fw_min({0}, {1})",
    "logaddexp": "fw_logaddexp({0}, {1})",
    "isnan": "{0} != {0}",
    "isinf": "fw_isinf({0})",
    "isfinite": "fw_isfinite({0})",
    "signbit": "fw_signbit({0})",
    "fma": "fma{f}({0}, {1}, {2})",
    **{name: f"{name}{{f}}({{0}})" for name in _UNARY_LIBRARY},
    **{name: f"{name}{{f}}({{0}}, {{1}})" for name in _BINARY_LIBRARY},
}
_FLOAT32 = {
    **_FLOAT,
    "div": "fw_divide({0}, {1})",
    "sqrt": "fw_root({0})",
    "reciprocal": "fw_reciprocal({0})",
    "exp_approx": "fw_exp2_approx({0} * 1.4426950408889634f)",
    "exp_added": "fw_exp_added({0})",
    "exp2_approx": "fw_exp2_approx({0})",
    "div_approx": "fw_div_approx({0}, {1})",
    "reciprocal_approx": "fw_rcp_approx({0})",
    "sqrt_approx": "fw_sqrt_approx({0})",
    "rsqrt_approx": "fw_rsqrt_approx({0})",
    "erf_approx": "fw_erf_approx({0})",
    "expm1_approx": "fw_expm1_approx({0})",
    "log_approx": "fw_log_approx({0})",
    "log2_approx": "(fw_log_approx({0}) * 1.4426950408889634f)",
    "log10_approx": "(fw_log_approx({0}) * 0.4342944819032518f)",
    "log1p_approx": "fw_log1p_approx({0})",
    "tanh_approx": "fw_tanh_approx({0})",
    "round_bfloat16": "fw_round_bf16({0})",
}


def _spellings(dtype: DType) -> dict[str, str]:
    match dtype.kind:
        case "bool":
            return _BOOL
        case "int":
            return _SIGNED_SHORT if dtype.nbytes < 4 else _SIGNED
        case "uint":
            return _UNSIGNED_SHORT if dtype.nbytes < 4 else _UNSIGNED
        case _:
            return _FLOAT32 if dtype.compute is dtypes.float32 else _FLOAT


@cache
def spelled_words() -> frozenset[str]:
    """Every word of the spellings above: what a kernel may call, so that nothing of a program may
    be spelled so."""
    tables = (_BOOL, _SIGNED_SHORT, _UNSIGNED, _FLOAT32)
    texts = [*CTYPES.values(), *(text for table in tables for text in table.values())]
    suffixed = (text.replace("{f}", f) for text in texts for f in ("", "f"))
    plain = (re.sub(r"\{\w+\}", "", text) for text in suffixed)
    return frozenset(word for text in plain for word in re.findall(r"\b[A-Za-z_]\w*", text))


def supports(fn: str, dtype: DType) -> bool:
    """Whether `fn` of operands of `dtype` has a spelling."""
    steps_of_its_own = fn == "nextafter" and dtype.nbytes < 4
    return fn in _spellings(dtype) and not steps_of_its_own


def apply(fn: str, operands: tuple[str, ...], dtype: DType) -> str:
    """`fn` of operands, each a C++ operand in the compute type of `dtype`; the text has that
    compute type too, or bool, or unsigned, as `core.functions` says of `fn`.

    Raises UnsupportedError for a function that `dtype` does not have.
    """
    if not supports(fn, dtype):
        raise UnsupportedError(
            f"{fn} of {dtype} has no CUDA spelling; cast the operands to a type that has {fn}"
        )
    single = dtype.compute is dtypes.float32
    return _spellings(dtype)[fn].format(
        *operands,
        t=ctype(dtype.compute),
        f="f" if single else "",
        one="1.0f" if single else "1.0",
    )


def divided(fn: str, text: str, divisor: int | float | bool, dtype: DType) -> str | None:
    """`floordiv` or `rem` of integers of 32 bits and less by a literal of 2 and more; None for what
    `apply` spells."""
    is_known = fn in ("floordiv", "rem") and dtype.is_integer and dtype.nbytes <= 4
    if not is_known or not 2 <= divisor < 1 << 31:
        return None
    return f"fw_{fn}_by<{ctype(dtype)}, {int(divisor)}>({text})"


def converted(text: str, source: DType, target: DType) -> str:
    """An element of `source`, as it lies in memory, as one of `target`."""
    if source is target:
        return text
    return convert(widen(text, source), source.compute, target)
