"""Values for variables."""

from __future__ import annotations

from collections.abc import Mapping

from fusewright.core.atoms import Max, Min, Xor, maximum, minimum, xor
from fusewright.core.expr import (
    Expr,
    FloorDiv,
    Int,
    IntLike,
    Mod,
    Sum,
    Var,
    add,
    as_expr,
    floordiv,
    integer,
    mod,
    mul,
    variables,
)

TYPICAL_SIZE = 4096
"""What a symbolic size counts as where schedules and cuts are decided, if its range allows it. A
number of a call counts as the middle of its range."""


def substitute(e: Expr, values: Mapping[Var, IntLike]) -> Expr:
    """The expression with variables replaced, in normal form again."""
    match e:
        case Int():
            return e
        case Var():
            return as_expr(values[e]) if e in values else e
        case _ if values.keys().isdisjoint(e.distinct):
            return e
        case Sum():
            known = _counted(e, values)
            if known is not None:
                return integer(known)
            out: list[IntLike] = [e.constant]
            for t in e.terms:
                product: Expr = integer(t.coefficient)
                for a in t.atoms:
                    product = mul(product, substitute(a, values))
                out.append(product)
            return add(*out)
        case FloorDiv():
            return floordiv(substitute(e.numerator, values), substitute(e.denominator, values))
        case Mod():
            return mod(substitute(e.numerator, values), substitute(e.denominator, values))
        case Min():
            return minimum(substitute(e.left, values), substitute(e.right, values))
        case Max():
            return maximum(substitute(e.left, values), substitute(e.right, values))
        case Xor():
            return xor(substitute(e.left, values), substitute(e.right, values))
        case _:
            raise TypeError(f"not an expression: {type(e).__name__}")


def _counted(e: Sum, values: Mapping[Var, IntLike]) -> int | None:
    """The value of a sum of multiples of variables that all have numbers."""
    total = e.constant
    for t in e.terms:
        value = values.get(t.atoms[0]) if len(t.atoms) == 1 else None  # type: ignore[call-overload]
        if type(value) is not int:
            return None
        total += t.coefficient * value
    return total


def estimate(e: Expr) -> int:
    """A size to plan with: the value where every symbol has a typical size, so that `2*n` counts as
    twice what `n` does."""
    if isinstance(e, Int):
        return e.value
    found = evaluate(e, {v: _typical(v) for v in variables(e)})
    return max(found, 0)


def _typical(v: Var) -> int:
    low, high = v.interval
    if v.upper is not None and not isinstance(v.upper, Int):
        high = max(estimate(v.upper), low or 0)
    if v.is_number:
        middle = ((low or 0) + (TYPICAL_SIZE if high is None else high)) // 2
        return middle - middle % v.multiple_of
    most = TYPICAL_SIZE if high is None else min(high, TYPICAL_SIZE)
    n = max(low or 1, most)
    return max(n - n % v.multiple_of, v.multiple_of)


def evaluate(e: Expr, values: Mapping[Var, int]) -> int:
    """The value under an assignment of every variable."""
    result = substitute(e, values)
    if not isinstance(result, Int):
        missing = ", ".join(v.name for v in variables(result))
        raise KeyError(f"no value for {missing} in {e}")
    return result.value
