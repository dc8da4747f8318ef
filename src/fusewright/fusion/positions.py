"""Arrays of rank 0 as integer expressions: those that every call knows before it launches anything,
and those that are sums of what only the device knows.

fw.fori_loop(0, n, lambda i, c: fw.insert(c, x[i + 1], (i, 0)), c)     i + 1 is lap0 + 1
"""

from __future__ import annotations

from collections.abc import Callable

from fusewright.core.atoms import maximum, minimum
from fusewright.core.expr import Expr, add, as_expr, constant_value, floordiv, mod, mul
from fusewright.fusion.ir import Constant, Pointwise, Size, Tensor, position

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


def sum_on_device(t: Tensor, found: dict[Tensor, None]) -> Expr:
    """The integer that a value of rank 0 is, over the numbers in the values of `found`
    (`ir.position`), to which those that it needs are added. Sums of such numbers, and of what every
    call knows, are followed to what they are made of where integers are wide enough not to wrap."""
    known = expression_of(t)
    if known is not None:
        return known
    is_wide = t.dtype.kind == "int" and t.dtype.nbytes >= 4
    match t.op:
        case Pointwise(fn="cast" | "copy", operands=(o,)) if is_wide and (
            o.dtype.is_integer and o.dtype.nbytes <= t.dtype.nbytes and o.dtype.name != "uint64"
        ):
            return sum_on_device(o, found)
        case Pointwise(fn="add", operands=(a, b)) if is_wide:
            return add(sum_on_device(a, found), sum_on_device(b, found))
        case Pointwise(fn="sub", operands=(a, b)) if is_wide:
            return add(sum_on_device(a, found), mul(sum_on_device(b, found), -1))
        case _:
            found[t] = None
            return position(list(found).index(t))


def _of_two(fn: str, a: Expr, b: Expr) -> Expr | None:
    if fn in _DIVISIONS:
        return _DIVISIONS[fn](a, b) if (constant_value(b) or 0) > 0 else None
    return _OF_TWO[fn](a, b) if fn in _OF_TWO else None
