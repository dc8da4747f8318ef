"""Elementwise aten operators, computed in the dtype that torch gives the result."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

from fusewright import dtypes
from fusewright.dtypes import DType
from fusewright.errors import UnsupportedError
from fusewright.frontends.torch.library import aten, prims
from fusewright.frontends.torch.promotion import Operand, cast_to, common_dtype
from fusewright.frontends.torch.table import Dtypes, lowers_elementwise
from fusewright.fusion import nn, ops
from fusewright.fusion.array import Array

Function = Callable[..., Array]


def _simple(packet: Any, fn: Function) -> None:
    """An operator whose tensor arguments are all taken to the result's dtype."""

    @lowers_elementwise(packet)
    def _(out: Dtypes, *operands: Operand) -> Array:
        return fn(*(cast_to(x, out[0]) for x in operands))


def take_compilers_operators() -> None:
    """Enters the operators that torch.compile writes into graphs, such as of an optimiser's step,
    which exist once its modules are loaded."""
    room = importlib.import_module("torch._inductor.inductor_prims")
    if hasattr(room, "fma"):
        _simple(room.fma, ops.fma)


def _compare(packet: Any, fn: Function) -> None:
    """An operator with a bool result, computed in the operands' common dtype."""

    @lowers_elementwise(packet)
    def _(out: Dtypes, *operands: Operand) -> Array:
        common = common_dtype(*operands)
        return fn(*(cast_to(x, common) for x in operands))


def _logical(packet: Any, fn: Function) -> None:
    @lowers_elementwise(packet)
    def _(out: Dtypes, *operands: Operand) -> Array:
        return fn(*(cast_to(x, dtypes.bool_) for x in operands))


def _of_bools(on_bools: Function, otherwise: Function) -> Function:
    """A function that has another meaning on bools."""
    return lambda *xs: (on_bools if xs[0].dtype.kind == "bool" else otherwise)(*xs)


def _numeric(fn: Function) -> Function:
    """A comparison of bools as numbers."""

    def compare(*xs: Array) -> Array:
        is_bool = xs[0].dtype.kind == "bool"
        return fn(*(ops.astype(x, dtypes.uint8) if is_bool else x for x in xs))

    return compare


for _fn in (
    *(ops.abs, ops.ceil, ops.floor, ops.trunc, ops.sqrt, ops.rsqrt, ops.reciprocal, ops.erf),
    *(ops.exp, ops.exp2, ops.expm1, ops.log, ops.log2, ops.log10, ops.log1p),
    *(ops.sin, ops.cos, ops.tan, ops.asin, ops.acos, ops.atan),
    *(ops.sinh, ops.cosh, ops.tanh, ops.asinh, ops.acosh, ops.atanh),
):
    _simple(getattr(aten, _fn.__name__), _fn)
_simple(aten.neg, ops.negative)
_simple(aten.sigmoid, nn.sigmoid)
_simple(aten.round.default, ops.round)
_simple(aten.atan2, ops.atan2)
_simple(aten.hypot, ops.hypot)
_simple(aten.copysign, ops.copysign)
_simple(aten.nextafter, ops.nextafter)
_simple(aten.mul, _of_bools(ops.logical_and, ops.multiply))
_simple(aten.maximum, _of_bools(ops.logical_or, ops.maximum))
_simple(aten.minimum, _of_bools(ops.logical_and, ops.minimum))
_simple(aten.remainder, ops.remainder)
_simple(aten.bitwise_and, ops.bitwise_and)
_simple(aten.bitwise_or, ops.bitwise_or)
_simple(aten.bitwise_xor, ops.bitwise_xor)
_simple(aten.bitwise_not, ops.bitwise_invert)
for _packet in (aten.bitwise_left_shift, aten.__lshift__):
    _simple(_packet, ops.bitwise_left_shift)
for _packet in (aten.bitwise_right_shift, aten.__rshift__):
    _simple(_packet, ops.bitwise_right_shift)

for _packet, _fn in (
    (aten.eq, ops.equal),
    (aten.ne, ops.not_equal),
    (aten.lt, _numeric(ops.less)),
    (aten.le, _numeric(ops.less_equal)),
    (aten.gt, _numeric(ops.greater)),
    (aten.ge, _numeric(ops.greater_equal)),
    (aten.isnan, _numeric(ops.isnan)),
    (aten.isinf, _numeric(ops.isinf)),
    (aten.isfinite, _numeric(ops.isfinite)),
):
    _compare(_packet, _fn)

_logical(aten.logical_and, ops.logical_and)
_logical(aten.logical_or, ops.logical_or)
_logical(aten.logical_xor, ops.logical_xor)
_logical(aten.logical_not, ops.logical_not)


# --- arithmetic with more to it -----------------------------------------------------------------


@lowers_elementwise(aten.add)
def _add(out: Dtypes, x: Operand, y: Operand, alpha: Operand = 1) -> Array:
    a, b = cast_to(x, out[0]), _scaled(y, alpha, out[0])
    return ops.logical_or(a, b) if out[0].kind == "bool" else a + b


@lowers_elementwise(aten.sub)
def _sub(out: Dtypes, x: Operand, y: Operand, alpha: Operand = 1) -> Array:
    return cast_to(x, out[0]) - _scaled(y, alpha, out[0])


@lowers_elementwise(aten.rsub)
def _rsub(out: Dtypes, x: Operand, y: Operand, alpha: Operand = 1) -> Array:
    return cast_to(y, out[0]) - _scaled(x, alpha, out[0])


def _scaled(x: Operand, alpha: Operand, dtype: DType) -> Array:
    wide = cast_to(x, dtype)
    if isinstance(alpha, int) and alpha == 1:
        return wide
    factor = cast_to(alpha, dtype)
    return ops.logical_and(wide, factor) if dtype.kind == "bool" else wide * factor


@lowers_elementwise(aten.div, aten.true_divide, prims.div)
def _div(out: Dtypes, x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Array:
    a, b = cast_to(x, out[0]), cast_to(y, out[0])
    match rounding_mode:
        case None:
            return a / b
        case "floor":
            return _floored_quotient(a, b) if out[0].is_float else a // b
        case "trunc":
            return ops.trunc(a / b) if out[0].is_float else _truncated_quotient(a, b)
        case _:
            raise UnsupportedError(f"div with rounding_mode={rounding_mode!r}")


def _floored_quotient(a: Array, b: Array) -> Array:
    """torch's float quotient, which goes with its remainder: -1 for a finite number and an infinity
    of other signs, NaN for an infinity by anything but 0. `a // b` is `a / b` there."""
    paired = ops.where(ops.logical_and(ops.isinf(b), a * b < 0), -1.0, a // b)
    return ops.where(ops.logical_and(ops.isinf(a), b != 0), math.nan, paired)


def _truncated_quotient(a: Array, b: Array) -> Array:
    """The integer quotient rounded towards zero: one more than the floor where that is negative and
    something is left over."""
    floor = a // b
    if a.dtype.kind == "uint":
        return floor
    up = ops.logical_and(a % b != 0, ops.logical_xor(a < 0, b < 0))
    return floor + ops.astype(up, a.dtype)


@lowers_elementwise(aten.fmod)
def _fmod(out: Dtypes, x: Operand, y: Operand) -> Array:
    a, b = cast_to(x, out[0]), cast_to(y, out[0])
    if out[0].kind == "uint":
        return a % b
    rest = abs(a) % abs(b)
    return ops.copysign(rest, a) if out[0].is_float else ops.where(a < 0, -rest, rest)


@lowers_elementwise(aten.pow)
def _pow(out: Dtypes, x: Operand, y: Operand) -> Array:
    base = cast_to(x, out[0])
    if isinstance(y, int | float) and isinstance(x, Array) and y in (1, 2, 3):
        return base if y == 1 else base * base if y == 2 else base * base * base
    if isinstance(y, float) and out[0].is_float and y in (0.5, -0.5):
        return ops.sqrt(base) if y == 0.5 else ops.rsqrt(base)
    return ops.pow(base, cast_to(y, out[0]))


@lowers_elementwise(aten.sign, aten.sgn)
def _sign(out: Dtypes, x: Array) -> Array:
    if not x.dtype.is_float:
        return x if x.dtype.kind == "bool" else ops.sign(x)
    return ops.where(ops.isnan(x), cast_to(0.0, x.dtype), ops.sign(x))


@lowers_elementwise(aten.signbit)
def _signbit(out: Dtypes, x: Array) -> Array:
    if x.dtype.is_float:
        return ops.signbit(x)
    return ops.astype(x, dtypes.int64) < 0


def _ignoring_nan(extreme: Function) -> Function:
    """An extreme of two that is NaN only where both are."""

    def of(a: Array, b: Array) -> Array:
        if not a.dtype.is_float:
            return _of_bools_extreme(extreme, a, b)
        return ops.where(ops.isnan(a), b, ops.where(ops.isnan(b), a, extreme(a, b)))

    return of


def _of_bools_extreme(extreme: Function, a: Array, b: Array) -> Array:
    if a.dtype.kind != "bool":
        return extreme(a, b)
    return (ops.logical_or if extreme is ops.maximum else ops.logical_and)(a, b)


_simple(aten.fmax, _ignoring_nan(ops.maximum))
_simple(aten.fmin, _ignoring_nan(ops.minimum))


# --- selection and limits -----------------------------------------------------------------------


@lowers_elementwise(aten.where)
def _where(out: Dtypes, condition: Array, x: Operand = 0, y: Operand = 0) -> Array:
    return ops.where(ops.astype(condition, dtypes.bool_), cast_to(x, out[0]), cast_to(y, out[0]))


@lowers_elementwise(aten.clamp)
def _clamp(out: Dtypes, x: Array, min: Operand | None = None, max: Operand | None = None) -> Array:
    result = cast_to(x, out[0])
    if min is not None:
        result = _of_bools_extreme(ops.maximum, result, cast_to(min, out[0]))
    if max is not None:
        result = _of_bools_extreme(ops.minimum, result, cast_to(max, out[0]))
    return result


@lowers_elementwise(aten.clamp_min)
def _clamp_min(out: Dtypes, x: Array, min: Operand) -> Array:
    return _clamp(out, x, min, None)


@lowers_elementwise(aten.clamp_max)
def _clamp_max(out: Dtypes, x: Array, max: Operand) -> Array:
    return _clamp(out, x, None, max)


@lowers_elementwise(aten.relu)
def _relu(out: Dtypes, x: Array) -> Array:
    return ops.maximum(x, cast_to(0, x.dtype))


# --- activations --------------------------------------------------------------------------------


@lowers_elementwise(aten.gelu)
def _gelu(out: Dtypes, x: Array, *, approximate: str = "none") -> Array:
    return nn.gelu(x, approximate)


@lowers_elementwise(aten.gelu_backward)
def _gelu_backward(out: Dtypes, dy: Array, x: Array, *, approximate: str = "none") -> Array:
    return nn.gelu_backward(dy, x, approximate)


@lowers_elementwise(aten.silu)
def _silu(out: Dtypes, x: Array) -> Array:
    return nn.silu(x)


@lowers_elementwise(aten.silu_backward)
def _silu_backward(out: Dtypes, dy: Array, x: Array) -> Array:
    return nn.silu_backward(dy, x)


@lowers_elementwise(aten.tanh_backward)
def _tanh_backward(out: Dtypes, dy: Array, y: Array) -> Array:
    return nn.tanh_backward(dy, y)


@lowers_elementwise(aten.sigmoid_backward)
def _sigmoid_backward(out: Dtypes, dy: Array, y: Array) -> Array:
    return nn.sigmoid_backward(dy, y)


@lowers_elementwise(aten.leaky_relu)
def _leaky_relu(out: Dtypes, x: Array, negative_slope: float = 0.01) -> Array:
    return ops.where(x > cast_to(0, x.dtype), x, x * cast_to(negative_slope, x.dtype))


@lowers_elementwise(aten.elu)
def _elu(
    out: Dtypes, x: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Array:
    below = cast_to(alpha, x.dtype) * ops.expm1(x * cast_to(input_scale, x.dtype))
    return ops.where(x > cast_to(0, x.dtype), x, below) * cast_to(scale, x.dtype)


@lowers_elementwise(aten.hardtanh)
def _hardtanh(out: Dtypes, x: Array, min: Operand = -1, max: Operand = 1) -> Array:
    return _clamp(out, x, min, max)


# --- casts --------------------------------------------------------------------------------------


@lowers_elementwise(prims.convert_element_type)
def _convert(out: Dtypes, x: Array, dtype: object) -> Array:
    return cast_to(x, out[0])


@lowers_elementwise(aten._to_copy)
def _to_copy(out: Dtypes, x: Array, **_options: object) -> Array:
    return cast_to(x, out[0])


@lowers_elementwise(aten.clone, aten.lift_fresh_copy)
def _clone(out: Dtypes, x: Array, *, memory_format: object = None) -> Array:
    return x


@lowers_elementwise(aten.copy)
def _copy(out: Dtypes, dest: Array, source: Array, non_blocking: bool = False) -> Array:
    return ops.broadcast_to(cast_to(source, out[0]), dest.shape)
