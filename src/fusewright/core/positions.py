"""What functions of positions compute, as expressions and conditions: masks by position are told
from others by these, in kernels and on schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from fusewright.core.atoms import Max, maximum
from fusewright.core.conditions import (
    Cond,
    all_of,
    any_of,
    equal,
    less,
    less_equal,
    negate,
)
from fusewright.core.expr import Expr, Int, add, floordiv, is_natural, mod, mul
from fusewright.dtypes import DType

Place: TypeAlias = Expr | Cond
"""What positions decide: a number, or a condition."""


def place_of(fn: str, operands: Sequence[Place | None], dtype: DType) -> Place | None:
    """What a function computes of places, as a result of this dtype: a condition, or a number that
    the dtype holds. None where the function is none of positions, or an operand no place."""
    places = [o for o in operands if isinstance(o, Expr)]
    conditions = [o for o in operands if isinstance(o, Cond)]
    if not operands or len(operands) not in (len(places), len(conditions)):
        return None
    if conditions:
        return _joined(fn, conditions)
    if dtype.name == "bool":
        return _compared(fn, places)
    value = _computed(fn, places)
    return value if value is not None and _fits(value, dtype) else None


def _fits(value: Expr, dtype: DType) -> bool:
    """Whether an integer type holds every value: the kernel's arithmetic wraps around."""
    if not dtype.is_integer:
        return False
    low, high = value.interval
    most = 1 << (8 * dtype.nbytes - 1)
    return low is not None and high is not None and -most <= low and high < most


def _joined(fn: str, conditions: Sequence[Cond]) -> Cond | None:
    match fn:
        case "and":
            return all_of(conditions)
        case "or":
            return any_of(conditions)
        case "logical_not" | "not":
            return negate(conditions[0])
        case "copy":
            return conditions[0]
        case _:
            return None


def _computed(fn: str, operands: Sequence[Expr]) -> Expr | None:
    match fn, operands:
        case (("copy" | "cast"), [a]):
            return a
        case "add", [a, b]:
            return add(a, b)
        case "sub", [a, b]:
            return a - b
        case "mul", [a, b] if isinstance(a, Int) or isinstance(b, Int):
            return mul(a, b)
        case "neg", [a]:
            return mul(a, -1)
        case "floordiv", [a, Int(value=n)] if n > 0 and is_natural(a):
            return floordiv(a, n)
        case "rem", [a, Int(value=n)] if n > 0 and is_natural(a):
            return mod(a, n)
        case "abs", [a]:
            return maximum(a, mul(a, -1))
        case _:
            return None


def _compared(fn: str, operands: Sequence[Expr]) -> Cond | None:
    if len(operands) != 2:
        return None
    a, b = operands
    if isinstance(a, Max) and fn in ("lt", "le"):
        parts = [_compared(fn, (part, b)) for part in (a.left, a.right)]
        return all_of(p for p in parts if p is not None)
    match fn:
        case "lt":
            return less(a, b)
        case "le":
            return less_equal(a, b)
        case "gt":
            return less(b, a)
        case "ge":
            return less_equal(b, a)
        case "eq":
            return equal(a, b)
        case "ne":
            return negate(equal(a, b))
        case _:
            return None
