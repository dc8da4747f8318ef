"""Operations that give back one of their operands, bit for bit, quotients of one, and powers."""

from __future__ import annotations

import math
from typing import Any, cast

import ml_dtypes

from fusewright.core.expr import ONE
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Constant,
    Fusion,
    Permute,
    Pointwise,
    Reduce,
    Scan,
    Tensor,
    behind_views,
)
from fusewright.fusion.passes.rebuild import rebuild


def drop_identities(fusion: Fusion) -> Fusion:
    """Replaces what changes nothing by its operand, and 1 / x and powers by what has fewer
    instructions: an exponent is a number of each launch, which a kernel knows nothing of.

    rewrite:  y = x * 1;  z = y - 0  ->   z = x     (and x / 1, x + 0, x & True, x | False,
                                                          and axes in the order that they have)
              y = 1 / x              ->   y = reciprocal(x), of floats
              y = x / 2 ** k         ->   y = x * 2 ** -k, of floats
              y = x ** 2             ->   y = x * x             (and x ** 1, x ** 3, x ** 4)
              y = sum(x over axes of size 1)  ->   y = x reshaped   (and other reductions and scans)
    checks:   x has the result's type and shape; of floats only what keeps -0.0: not x + 0.0. Powers
              are those of every x, infinities and -0.0 too, which roots are not: -0.0 ** 0.5 is 0.
              Quotients by powers of two are those products exactly, rounded once; sums over their
              count stay, which other passes know for means
    order:    before own_outputs, as a result may then be an input
    """
    return rebuild(fusion, _unchanged)


def _unchanged(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
    if isinstance(t.op, Permute) and t.op.axes == tuple(range(t.ndim)):
        return operands[0]
    if _is_of_single_elements(t) and operands[0].dtype is t.dtype:
        return build.reshape("reduce", operands[0], t.shape)
    if not isinstance(t.op, Pointwise) or len(operands) != 2:
        return None
    left, right = operands
    if _is_neutral(t.op.fn, right) and _is_like(left, t):
        return left
    if t.op.fn in ("add", "mul", "and", "or") and _is_neutral(t.op.fn, left) and _is_like(right, t):
        return right
    if t.op.fn == "pow" and _is_like(left, t):
        return _power(left, right)
    if t.op.fn == "div" and t.dtype.is_float and _is_like(left, t):
        return _product(left, right)
    return None


def _product(x: Tensor, divisor: Tensor) -> Tensor | None:
    """A quotient of floats as a product, or as a reciprocal; None for other quotients."""
    if _is_neutral("div", x):
        return build.pointwise("reciprocal", divisor)
    literal = behind_views(divisor).op
    if not isinstance(literal, Constant) or isinstance(behind_views(x).op, Reduce):
        return None
    value = float(literal.value.real)
    if not math.isfinite(value) or abs(math.frexp(value)[0]) != 0.5:
        return None
    factor, limits = 1 / value, cast("Any", ml_dtypes.finfo(x.dtype.numpy))
    if not float(limits.smallest_normal) <= abs(factor) <= float(limits.max):
        return None
    return build.pointwise("mul", x, build.full(x.shape, factor, x.dtype))


def _power(x: Tensor, exponent: Tensor) -> Tensor | None:
    """A power of floats or integers as products; None for other exponents."""
    literal = behind_views(exponent).op
    if not isinstance(literal, Constant) or not (x.dtype.is_float or x.dtype.is_integer):
        return None
    match literal.value:
        case 1:
            return x
        case 2:
            return build.pointwise("mul", x, x)
        case 3:
            return build.pointwise("mul", build.pointwise("mul", x, x), x)
        case 4:
            square = build.pointwise("mul", x, x)
            return build.pointwise("mul", square, square)
        case _:
            return None


def _is_of_single_elements(t: Tensor) -> bool:
    """Whether a reduction, or a scan, runs along axes of size 1 only."""
    match t.op:
        case Reduce(axes=axes):
            return all(t.op.operands[0].shape[k] == ONE for k in axes)
        case Scan(axis=axis, exclusive=False):
            return t.shape[axis] == ONE
        case _:
            return False


def _is_like(x: Tensor, t: Tensor) -> bool:
    return x.dtype is t.dtype and x.shape == t.shape


def _is_neutral(fn: str, t: Tensor) -> bool:
    """Whether a literal as the second operand of a function leaves the first one as it is."""
    t = behind_views(t)
    if not isinstance(t.op, Constant):
        return False
    value = t.op.value
    match fn:
        case "mul" | "div":
            return value == 1 and (t.dtype.is_float or t.dtype.is_integer)
        case "add":
            return value == 0 and (t.dtype.is_integer or math.copysign(1, value) < 0)
        case "sub":
            return value == 0 and (t.dtype.is_integer or math.copysign(1, value) > 0)
        case "and":
            return bool(value)
        case "or":
            return value == 0
        case _:
            return False
