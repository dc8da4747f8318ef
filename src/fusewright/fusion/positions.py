"""Arrays of rank 0 that every call knows before it launches anything, as integer expressions.

fw.fori_loop(0, n, lambda i, c: fw.insert(c, x[i + 1], (i, 0)), c)     i + 1 is lap0 + 1
"""

from __future__ import annotations

from collections.abc import Callable

from fusewright.core.atoms import maximum, minimum
from fusewright.core.expr import Expr, add, as_expr, constant_value, floordiv, mod, mul
from fusewright.fusion.ir import Constant, Pointwise, Size, Tensor

_OF_TWO: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": add,
    "sub": lambda a, b: add(a, mul(b, -1)),
    "mul": mul,
    "min": minimum,
    "max": maximum,
}
_DIVISIONS: dict[str, Callable[[Expr, Expr], Expr]] = {"floordiv": floordiv, "rem": mod}
"""By a positive literal: those of an expression have no other divisors."""


def expression_of(t: Tensor) -> Expr | None:
    """The integer that a value of rank 0 is: an expression in sizes, numbers of the call and
    numbers of iterations. None where it takes data to know, or another operation than these."""
    if t.ndim or not t.dtype.is_integer:
        return None
    match t.op:
        case Constant(value=int(known)):
            return as_expr(known)
        case Size(expr=found):
            return found
        case Pointwise(fn="cast" | "copy", operands=(o,)):
            return expression_of(o)
        case Pointwise(fn="neg", operands=(o,)):
            found = expression_of(o)
            return None if found is None else mul(found, -1)
        case Pointwise(fn=fn, operands=(a, b)):
            left, right = expression_of(a), expression_of(b)
            return None if left is None or right is None else _of_two(fn, left, right)
        case _:
            return None


def _of_two(fn: str, a: Expr, b: Expr) -> Expr | None:
    if fn in _DIVISIONS:
        return _DIVISIONS[fn](a, b) if (constant_value(b) or 0) > 0 else None
    return _OF_TWO[fn](a, b) if fn in _OF_TWO else None
