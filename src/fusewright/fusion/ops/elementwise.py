"""Elementwise operations under their array API names, with the standard's promotion.

Operands are arrays and Python scalars, at least one an array; scalars take the arrays' dtype.
Every function raises UserError for dtypes it does not take and for shapes that do not broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusewright.dtypes import bool_, complex64, data_dtype_of, float32, int64
from fusewright.errors import UnsupportedError, UserError
from fusewright.fusion import array as core, build
from fusewright.fusion.array import Array, Operand, check_array, elementwise
from fusewright.fusion.operands import Category, check_category, check_device, check_flag

Unary = Callable[[Operand], Array]
Binary = Callable[[Operand, Operand], Array]


def _named(f: Callable[..., Any], name: str, doc: str) -> Any:
    f.__name__ = f.__qualname__ = name
    f.__doc__ = doc
    return f


def _unary(name: str, fn: str, category: Category, doc: str) -> Unary:
    def op(x: Operand, /) -> Array:
        return elementwise(name, fn, category, x)

    return _named(op, name, doc)


def _binary(name: str, fn: str, category: Category, doc: str) -> Binary:
    def op(x1: Operand, x2: Operand, /) -> Array:
        return elementwise(name, fn, category, x1, x2)

    return _named(op, name, doc)


def _bitwise(name: str, fn: str, doc: str) -> Binary:
    def op(x1: Operand, x2: Operand, /) -> Array:
        return core.bitwise(name, fn, x1, x2)

    return _named(op, name, doc)


def _rounding(name: str, fn: str, doc: str) -> Unary:
    def op(x: Operand, /) -> Array:
        x = check_array(name, x)
        return x if x.dtype.is_integer else elementwise(name, fn, "float", x)

    return _named(op, name, doc)


def _classification(name: str, fn: str, of_integers: str, doc: str) -> Unary:
    def op(x: Operand, /) -> Array:
        x = check_array(name, x)
        if x.dtype.is_integer:
            return Array(build.pointwise(of_integers, x.tensor, x.tensor))
        return elementwise(name, fn, "float", x)

    return _named(op, name, doc)


# --- one operand --------------------------------------------------------------------------------

negative = _unary("negative", "neg", "numeric", "-x; unsigned integers wrap.")
sign = _unary("sign", "sign", "numeric", "-1, 0 or 1; NaN for NaN.")
sqrt = _unary("sqrt", "sqrt", "float", "The square root; NaN below 0.")
rsqrt = _unary("rsqrt", "rsqrt", "float", "1 / sqrt(x).")
reciprocal = _unary("reciprocal", "reciprocal", "float", "1 / x.")
exp = _unary("exp", "exp", "float", "e to the power x.")
exp2 = _unary("exp2", "exp2", "float", "2 to the power x.")
expm1 = _unary("expm1", "expm1", "float", "exp(x) - 1, accurate near 0.")
log = _unary("log", "log", "float", "The natural logarithm; -inf at 0, NaN below.")
log2 = _unary("log2", "log2", "float", "The logarithm to base 2.")
log10 = _unary("log10", "log10", "float", "The logarithm to base 10.")
log1p = _unary("log1p", "log1p", "float", "log(1 + x), accurate near 0.")
sin = _unary("sin", "sin", "float", "The sine of x radians.")
cos = _unary("cos", "cos", "float", "The cosine of x radians.")
tan = _unary("tan", "tan", "float", "The tangent of x radians.")
asin = _unary("asin", "asin", "float", "The inverse sine, in radians.")
acos = _unary("acos", "acos", "float", "The inverse cosine, in radians.")
atan = _unary("atan", "atan", "float", "The inverse tangent, in radians.")
sinh = _unary("sinh", "sinh", "float", "The hyperbolic sine.")
cosh = _unary("cosh", "cosh", "float", "The hyperbolic cosine.")
tanh = _unary("tanh", "tanh", "float", "The hyperbolic tangent.")
asinh = _unary("asinh", "asinh", "float", "The inverse hyperbolic sine.")
acosh = _unary("acosh", "acosh", "float", "The inverse hyperbolic cosine.")
atanh = _unary("atanh", "atanh", "float", "The inverse hyperbolic tangent.")
erf = _unary("erf", "erf", "float", "The error function.")
signbit = _unary("signbit", "signbit", "float", "Whether the sign bit is set, also of -0 and NaN.")
logical_not = _unary("logical_not", "logical_not", "bool", "Not x.")
floor = _rounding("floor", "floor", "The greatest integer not above x; integers unchanged.")
ceil = _rounding("ceil", "ceil", "The least integer not below x; integers unchanged.")
trunc = _rounding("trunc", "trunc", "x without its fraction; integers unchanged.")
round = _rounding("round", "round", "The nearest integer, halves to even; integers unchanged.")
isnan = _classification("isnan", "isnan", "ne", "Whether x is NaN; never for integers.")
isinf = _classification("isinf", "isinf", "ne", "Whether x is infinite; never for integers.")
isfinite = _classification("isfinite", "isfinite", "eq", "Whether x is neither infinite nor NaN.")


def positive(x: Operand, /) -> Array:
    """x itself."""
    return +check_array("positive", x)


def square(x: Operand, /) -> Array:
    """x * x."""
    return elementwise("square", "mul", "numeric", x, x)


def abs(x: Operand, /) -> Array:
    """|x|; the least signed integer stays as it is."""
    return core.magnitude(check_array("abs", x))


def real(x: Operand, /) -> Array:
    """The real part: of numbers that are not complex, x itself."""
    x = check_array("real", x)
    return core.of_complex(x, np.real) if x.dtype.is_complex else +x


def imag(x: Operand, /) -> Array:
    """The imaginary part: of numbers that are not complex, 0."""
    x = check_array("imag", x)
    check_category("imag", x.dtype, "numeric", of_complex=True)
    zero = build.full(x.tensor.shape, 0, x.dtype)
    return core.of_complex(x, np.imag) if x.dtype.is_complex else Array(zero)


def conj(x: Operand, /) -> Array:
    """The complex conjugate: of numbers that are not complex, x itself."""
    x = check_array("conj", x)
    return core.of_complex(x, np.conj) if x.dtype.is_complex else +x


def bitwise_invert(x: Operand, /) -> Array:
    """Every bit flipped; of bools, not x."""
    return core.bitwise("bitwise_invert", "bitwise_not", x)


# --- two operands -------------------------------------------------------------------------------

add = _binary("add", "add", "numeric", "x1 + x2; integers wrap.")
subtract = _binary("subtract", "sub", "numeric", "x1 - x2; integers wrap.")
multiply = _binary("multiply", "mul", "numeric", "x1 * x2; integers wrap.")
divide = _binary("divide", "div", "float", "x1 / x2.")
floor_divide = _binary(
    "floor_divide",
    "floordiv",
    "numeric",
    "The floor of x1 / x2, at infinities too; integer x // 0 is 0.",
)
remainder = _binary("remainder", "rem", "numeric", "x1 % x2, signed as x2; integer x % 0 is 0.")
pow = _binary("pow", "pow", "numeric", "x1 ** x2; integers wrap.")
atan2 = _binary("atan2", "atan2", "float", "The angle of the point (x2, x1), in radians.")
maximum = _binary("maximum", "max", "numeric", "The larger of two; NaN if either is.")
minimum = _binary("minimum", "min", "numeric", "The smaller of two; NaN if either is.")
hypot = _binary("hypot", "hypot", "float", "sqrt(x1**2 + x2**2) without overflow.")
copysign = _binary("copysign", "copysign", "float", "|x1| with the sign of x2.")
logaddexp = _binary("logaddexp", "logaddexp", "float", "log(exp(x1) + exp(x2)).")
equal = _binary("equal", "eq", "any", "x1 == x2; false for NaN.")
not_equal = _binary("not_equal", "ne", "any", "x1 != x2; true for NaN.")
less = _binary("less", "lt", "numeric", "x1 < x2.")
less_equal = _binary("less_equal", "le", "numeric", "x1 <= x2.")
greater = _binary("greater", "gt", "numeric", "x1 > x2.")
greater_equal = _binary("greater_equal", "ge", "numeric", "x1 >= x2.")
logical_and = _binary("logical_and", "and", "bool", "x1 and x2.")
logical_or = _binary("logical_or", "or", "bool", "x1 or x2.")
logical_xor = _binary("logical_xor", "xor", "bool", "Exactly one of x1 and x2.")
bitwise_and = _bitwise("bitwise_and", "bitwise_and", "The common bits.")
bitwise_or = _bitwise("bitwise_or", "bitwise_or", "The bits of either.")
bitwise_xor = _bitwise("bitwise_xor", "bitwise_xor", "The bits of exactly one.")
bitwise_left_shift = _binary("bitwise_left_shift", "shl", "integer", "x1 << x2.")
bitwise_right_shift = _binary("bitwise_right_shift", "shr", "integer", "x1 >> x2; keeps the sign.")


def nextafter(x1: Operand, x2: Operand, /) -> Array:
    """The next representable value after x1 towards x2, for float32 and float64.

    Raises UnsupportedError for shorter floats, which kernels hold as float32.
    """
    left, right = core.promoted("nextafter", "float", x1, x2)
    if left.dtype is not left.dtype.compute:
        raise UnsupportedError(
            f"nextafter of {left.dtype}: kernels hold it as {left.dtype.compute}, whose neighbours "
            "differ; cast to float32 first"
        )
    return Array(build.pointwise("nextafter", left, right))


# --- three operands -----------------------------------------------------------------------------


def where(condition: Array, x1: Operand, x2: Operand, /) -> Array:
    """x1 where the condition holds, else x2; of two Python scalars the default dtype."""
    condition = check_array("where", condition)
    check_category("where (condition)", condition.dtype, "bool")
    x1, x2 = core.as_number("where", x1), core.as_number("where", x2)
    if isinstance(x1, Array) or isinstance(x2, Array):
        dtype = core.common_dtype("where", (x1, x2))
    elif isinstance(x1, complex) or isinstance(x2, complex):
        dtype = complex64
    else:
        is_float = isinstance(x1, float) or isinstance(x2, float)
        is_bool = isinstance(x1, bool) and isinstance(x2, bool)
        dtype = float32 if is_float else (bool_ if is_bool else int64)
    tensors = (condition.tensor, core.as_tensor(x1, dtype), core.as_tensor(x2, dtype))
    return Array(build.pointwise("where", *build.broadcast_all("where", *tensors)))


def clip(x: Array, /, min: Operand | None = None, max: Operand | None = None) -> Array:
    """x limited to [min, max]; NaN stays. The result has x's dtype.

    Raises UserError for limits of a dtype that would not promote to x's.
    """
    x = check_array("clip", x)
    check_category("clip", x.dtype, "numeric")
    out = x
    for limit, fn in ((min, "max"), (max, "min")):
        if limit is None:
            continue
        out = elementwise("clip", fn, "numeric", out, limit)
        if out.dtype is not x.dtype:
            raise UserError(
                f"clip of {x.dtype} by a {check_array('clip', limit).dtype} limit: the result "
                "has x's dtype, so cast the limit to it with fw.astype"
            )
    return out


def fma(x1: Operand, x2: Operand, x3: Operand, /) -> Array:
    """x1 * x2 + x3, rounded once."""
    return elementwise("fma", "fma", "float", x1, x2, x3)


def astype(x: Array, dtype: object, /, *, copy: bool = True, device: object = None) -> Array:
    """x rounded to a dtype. Floats become integers by truncation, integers wrap, bool is x != 0.

    `copy` and `device` are there for the standard's sake: a value of a program has neither. Raises
    UserError for a complex x and a dtype that is real."""
    check_device("astype", device)
    check_flag("astype", "copy", copy)
    x, target = check_array("astype", x), data_dtype_of(dtype)
    if x.dtype.is_complex and not target.is_complex and target is not bool_:
        raise UserError(
            f"astype of {x.dtype} to {target}: a complex number is no real one; take fw.real or "
            "fw.abs first"
        )
    if target.kind == "bool" and x.dtype.kind != "bool":
        return elementwise("astype", "ne", "any", x, 0)
    return Array(build.cast(x.tensor, target))


def copy(x: Array, /) -> Array:
    """A value of its own that equals x: a place for a schedule to hold it."""
    return Array(build.pointwise("copy", check_array("copy", x).tensor))
