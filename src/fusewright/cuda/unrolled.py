"""Indices in loops that the compiler unrolls: what is a literal then stands apart.

A compiler sums an address in the order of the text before it unrolls, and looks for what iterations
have in common only by halves behind that. So what no iteration changes is written first.
"""

from __future__ import annotations

from collections.abc import Collection

from fusewright.core.atoms import Xor, bit_above, low_bit, xor
from fusewright.core.expr import ZERO, Expr, Var, add, parts_of, sum_of, variables
from fusewright.cuda.exprs import IntegerText, Spell, fits_int, integer


def spelled(e: Expr, unrolled: Collection[Var], spell: Spell) -> IntegerText:
    """The expression as C++, in which the literals of loops over `unrolled` variables come last:

    (8*b + 16*(i % 4))^(8*c) + 64*t + 4096*i    b < 2, c < 8
        ->   (((8*b)^(8*c)) + 64*t ^ 16*(i % 4)) + 4096*i
    """
    plain = integer(e, spell)
    if not unrolled or plain.wide or not any(v in unrolled for v in variables(e)):
        return plain
    rest, added = _divided(e, unrolled)
    rest, mixed = _unmixed(rest, unrolled)
    if rest == ZERO or not all(map(fits_int, (rest, mixed, added))):
        return plain
    text = integer(rest, spell)
    for operator, literal in (("^", mixed), ("+", added)):
        if literal != ZERO:
            behind = integer(literal, spell).operand
            text = IntegerText(f"{text.operand} {operator} {behind}", wide=False)
    return text


def _divided(e: Expr, unrolled: Collection[Var]) -> tuple[Expr, Expr]:
    """The terms of a sum that more than `unrolled` variables say, and the others."""
    constant, terms = parts_of(e)
    literal = [t for t in terms if all(v in unrolled for a in t.atoms for v in variables(a))]
    others = [t for t in terms if t not in literal]
    return sum_of(0, others), sum_of(constant, literal)


def _unmixed(e: Expr, unrolled: Collection[Var]) -> tuple[Expr, Expr]:
    """A sum without the bits that only `unrolled` variables say, and those, where one exclusive or
    of it has them and nothing else in the sum reaches that far down; the sum and 0 elsewhere."""
    constant, terms = parts_of(e)
    for t in terms:
        found = t.atoms[0] if t.coefficient == len(t.atoms) == 1 else None
        if not isinstance(found, Xor):
            continue
        beside = sum_of(constant, (x for x in terms if x is not t))
        if beside.divisor % bit_above(found):
            continue
        for x, by in ((found.left, found.right), (found.right, found.left)):
            rest, literal = _divided(x, unrolled)
            if literal != ZERO and _are_apart(rest, literal):
                return add(beside, xor(rest, by)), literal
    return e, ZERO


def _are_apart(a: Expr, b: Expr) -> bool:
    """Whether two expressions that are not negative have no bit in common."""
    return bit_above(a) <= low_bit(b.divisor) or bit_above(b) <= low_bit(a.divisor)
