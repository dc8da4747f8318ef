"""Integer expressions and conditions as CUDA C++.

An expression is printed in 32-bit arithmetic when the bounds of every partial result prove that
it fits, else in 64-bit arithmetic. Division by a power of two is a shift, which rounds down for
negative numbers too; where the numerator cannot be negative, one by another literal is a product
with its inverse, and one by a size is plain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fusewright.core import atoms, conditions, expr as ex
from fusewright.core.conditions import Cond
from fusewright.core.expr import Division, Expr, Var
from fusewright.core.terms import Term
from fusewright.errors import InternalError

_LOW, _HIGH = -(2**31), 2**31 - 1


@dataclass(frozen=True, slots=True)
class IntegerText:
    """C++ text of type int, or long long when `wide`; `atomic` needs no parentheses."""

    code: str
    wide: bool
    atomic: bool = False

    @property
    def operand(self) -> str:
        """The text as an operand of any operator."""
        return self.code if self.atomic else f"({self.code})"

    def widened(self) -> IntegerText:
        """The same value as a long long."""
        if self.wide:
            return self
        if self.code.isdigit():
            return IntegerText(f"{self.code}ll", wide=True, atomic=True)
        return IntegerText(f"(long long){self.operand}", wide=True)


Spell = Callable[[Var | Division], IntegerText | None]
"""The text of a variable, or of a division that has a name; None where it has none."""


def fits_int(e: Expr) -> bool:
    """Whether the bounds prove that every value of `e` fits an int."""
    low, high = e.interval
    return low is not None and high is not None and low >= _LOW and high <= _HIGH


def integer(e: Expr, spell: Spell) -> IntegerText:
    """The expression as C++; `spell` gives the text of a variable, and of what has a name."""
    known = spell(e) if isinstance(e, Var | Division) else None
    if known is not None:
        return known
    match e:
        case ex.Int():
            wide = not _LOW < e.value <= _HIGH
            code = f"{e.value}{'ll' if wide else ''}"
            return IntegerText(code, wide, atomic=e.value >= 0)
        case ex.Sum():
            return _sum(e, spell)
        case ex.FloorDiv():
            return _floordiv(e, spell)
        case ex.Mod():
            return _mod(e, spell)
        case atoms.Min() | atoms.Max():
            name = "min" if isinstance(e, atoms.Min) else "max"
            left, right, wide = _pair(e.left, e.right, spell)
            return IntegerText(f"{name}({left.code}, {right.code})", wide, atomic=True)
        case atoms.Xor():
            left, right, wide = _pair(e.left, e.right, spell)
            return IntegerText(f"{left.operand} ^ {right.operand}", wide)
        case _:
            raise InternalError(f"no CUDA spelling for the expression {type(e).__name__} {e}")


def _pair(left: Expr, right: Expr, spell: Spell) -> tuple[IntegerText, IntegerText, bool]:
    a, b = integer(left, spell), integer(right, spell)
    if a.wide == b.wide:
        return a, b, a.wide
    return a.widened(), b.widened(), True


def _magnitude(t: Term) -> Term:
    return Term(t.atoms, abs(t.coefficient))


def _sum(e: ex.Sum, spell: Spell) -> IntegerText:
    """The terms, positive ones first; the constant last, or first when all terms are negative."""
    terms = sorted(e.terms, key=lambda t: t.coefficient < 0)
    head = e.constant if e.constant > 0 and terms[0].coefficient < 0 else 0
    prefixes = [ex.Sum(head, tuple(terms[: k + 1])) for k in range(len(terms))]
    fits = fits_int(e) and all(map(fits_int, prefixes))
    texts = [_product(_magnitude(t), spell) for t in terms]
    first = integer(ex.Int(head), spell) if head else texts.pop(0)
    first_code = first.code if fits else first.widened().code
    negated = not head and terms[0].coefficient < 0
    code = f"-{_bracketed(first_code)}" if negated else first_code
    for t, text in zip(terms[len(terms) - len(texts) :], texts, strict=True):
        code += f" {'-' if t.coefficient < 0 else '+'} {text.code}"
    tail = e.constant - head
    if tail:
        code += f" {'-' if tail < 0 else '+'} {integer(ex.Int(abs(tail)), spell).code}"
    return IntegerText(code, wide=not fits or first.wide or any(t.wide for t in texts))


def _bracketed(code: str) -> str:
    return code if code.isidentifier() else f"({code})"


def _product(t: Term, spell: Spell) -> IntegerText:
    """`atoms * coefficient`; binds at least as strongly as a factor of a sum."""
    factors = [integer(a, spell) for a in t.atoms]
    if t.coefficient != 1:
        factors.append(integer(ex.Int(t.coefficient), spell))
    if len(factors) == 1:
        only = factors[0]
        return only if only.atomic else IntegerText(only.operand, only.wide, atomic=True)
    prefixes = [ex.Sum(0, (Term(t.atoms[: k + 1], 1),)) for k in range(len(t.atoms))]
    fits = all(map(fits_int, prefixes)) and fits_int(ex.Sum(0, (t,)))
    cast = not fits and not factors[0].wide
    first = factors[0].widened().code if cast else factors[0].operand
    code = " * ".join((first, *(f.operand for f in factors[1:])))
    return IntegerText(code, wide=not fits or any(f.wide for f in factors))


def _log2(e: Expr) -> int | None:
    value = ex.constant_value(e)
    return value.bit_length() - 1 if value is not None and value & (value - 1) == 0 else None


def _never_negative(e: Expr) -> bool:
    low = ex.lower_bound(e)
    return low is not None and low >= 0


def _floordiv(e: ex.FloorDiv, spell: Spell, *, plain: bool = False) -> IntegerText:
    shift = _log2(e.denominator)
    if shift is not None:
        numerator = integer(e.numerator, spell)
        return IntegerText(f"{numerator.operand} >> {shift}", numerator.wide)
    return _divide("/", "fw_floordiv", e, spell, plain=plain)


def _mod(e: ex.Mod, spell: Spell, *, plain: bool = False) -> IntegerText:
    shift = _log2(e.denominator)
    if shift is not None:
        numerator = integer(e.numerator, spell)
        return IntegerText(f"{numerator.operand} & {(1 << shift) - 1}", numerator.wide)
    return _divide("%", "fw_rem", e, spell, plain=plain)


def _divide(operator: str, function: str, e: Division, spell: Spell, *, plain: bool) -> IntegerText:
    a, b, wide = _pair(e.numerator, e.denominator, spell)
    if _never_negative(e.numerator):
        if not (plain or wide) and ex.constant_value(e.denominator) is not None:
            known = "fw_over" if operator == "/" else "fw_rest"
            return IntegerText(f"{known}<{b.code}>({a.code})", wide, atomic=True)
        return IntegerText(f"{a.operand} {operator} {b.operand}", wide)
    ctype = "long long" if wide else "int"
    return IntegerText(f"{function}<{ctype}>({a.code}, {b.code})", wide, atomic=True)


def plain_division(d: Division, spell: Spell) -> IntegerText:
    """A division by the operator of the language, which a compiler can fold."""
    if isinstance(d, ex.Mod):
        return _mod(d, spell, plain=True)
    assert isinstance(d, ex.FloorDiv)
    return _floordiv(d, spell, plain=True)


def every(c: Cond, spell: Spell) -> str:
    """The condition as C++, without short circuits: what a part costs is less than a branch."""
    return condition(c, spell, both="&", either="|")


def condition(c: Cond, spell: Spell, *, both: str = "&&", either: str = "||") -> str:
    """The condition as C++."""

    def part(of: Cond) -> str:
        text = condition(of, spell, both=both, either=either)
        is_joined = isinstance(of, conditions.And | conditions.Or)
        return f"({text})" if is_joined or both == "&" else text

    match c:
        case conditions.Truth():
            return "true" if c.value else "false"
        case conditions.Less():
            return f"{_side(c.left, spell)} < {_side(c.right, spell)}"
        case conditions.Equal():
            return f"{_side(c.left, spell)} == {_side(c.right, spell)}"
        case conditions.And():
            return f" {both} ".join(map(part, c.parts))
        case conditions.Or():
            return f" {either} ".join(map(part, c.parts))
        case conditions.Not():
            return f"!({condition(c.part, spell, both=both, either=either)})"
        case _:
            raise InternalError(f"no CUDA spelling for the condition {type(c).__name__} {c}")


def _side(e: Expr, spell: Spell) -> str:
    """One side of a comparison; sums bind more strongly than that."""
    text = integer(e, spell)
    return text.code if isinstance(e, ex.Sum) else text.operand
