"""The largest and the smallest that an expression is while one of its variables moves."""

from __future__ import annotations

from fusewright.core.atoms import Max, Min, maximum, minimum
from fusewright.core.expr import (
    ZERO,
    Expr,
    FloorDiv,
    Int,
    Mod,
    Sum,
    Var,
    add,
    floordiv,
    mul,
    variables,
)


def largest(e: Expr, v: Var) -> Expr:
    """An expression without `v` that is at least `e` wherever `v` lies between its limits, of which
    it has both. Atoms of a product in `e` must not be negative, as sizes are not."""
    return _extreme(e, v, is_high=True)


def _extreme(e: Expr, v: Var, *, is_high: bool) -> Expr:
    if v not in variables(e):
        return e

    def same(x: Expr) -> Expr:
        return _extreme(x, v, is_high=is_high)

    match e:
        case Var():
            assert e.upper is not None
            return e.upper if is_high else e.lower
        case Sum():
            terms: list[Expr] = [Int(e.constant)]
            for t in e.terms:
                product: Expr = Int(t.coefficient)
                for a in t.atoms:
                    product = mul(product, _extreme(a, v, is_high=is_high == (t.coefficient > 0)))
                terms.append(product)
            return add(*terms)
        case FloorDiv():
            return floordiv(same(e.numerator), _extreme(e.denominator, v, is_high=not is_high))
        case Mod():
            most = add(_extreme(e.denominator, v, is_high=True), -1)
            return most if is_high else ZERO
        case Min():
            return minimum(same(e.left), same(e.right))
        case Max():
            return maximum(same(e.left), same(e.right))
        case _:
            raise TypeError(f"{type(e).__name__} has no known extremes")
