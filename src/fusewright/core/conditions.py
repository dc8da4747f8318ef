"""Conditions on integer expressions, decided where the bounds of the expressions decide them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias

from fusewright.core.expr import (
    Expr,
    FloorDiv,
    Int,
    IntLike,
    Term,
    Var,
    add,
    as_expr,
    is_natural,
    mul,
    parts_of,
    sum_of,
)
from fusewright.core.substitution import substitute
from fusewright.core.symbolic import Symbolic

Limits: TypeAlias = tuple[Expr, int | None, int | None]
"""An expression, and the least and the largest value it may have."""


class Cond(Symbolic):
    """A condition on integer expressions. Immutable; it has no truth value."""

    __slots__ = ()


class Truth(Cond):
    """A condition that is always true or always false."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value
        self._seal("true" if value else "false")


class Comparison(Cond):
    """A relation of two expressions."""

    __slots__ = ("left", "right")

    def __init__(self, left: Expr, right: Expr, sign: str) -> None:
        self.left = left
        self.right = right
        self._seal(f"{left} {sign} {right}")

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.left, self.right)


class Less(Comparison):
    """`left < right`."""

    __slots__ = ("_contrary", "_gap", "_limits")

    def __init__(self, left: Expr, right: Expr) -> None:
        super().__init__(left, right, "<")
        self._contrary: Cond | None = None
        self._gap: Expr | None = None
        self._limits: Limits | None = None

    @property
    def contrary(self) -> Cond:
        """`right <= left`."""
        if self._contrary is None:
            self._contrary = less(self.right, add(self.left, 1))
        return self._contrary

    @property
    def gap(self) -> Expr:
        """What is at least 0 where it holds: `right - left - 1`."""
        if self._gap is None:
            self._gap = self.right - self.left - 1
        return self._gap

    @property
    def limits(self) -> Limits:
        """Limits of `left - right` without its constant, or of the opposite when that starts with
        a positive term."""
        if self._limits is None:
            constant, terms = parts_of(self.left - self.right)
            if terms[0].coefficient > 0:
                self._limits = sum_of(0, terms), None, -constant - 1
            else:
                opposite = [Term(t.atoms, -t.coefficient) for t in terms]
                self._limits = sum_of(0, opposite), constant + 1, None
        return self._limits


class Equal(Comparison):
    """`left == right`."""

    __slots__ = ()

    def __init__(self, left: Expr, right: Expr) -> None:
        super().__init__(left, right, "==")


class Junction(Cond):
    """At least two conditions, joined."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Cond, ...], sign: str) -> None:
        self.parts = parts
        self._seal(f" {sign} ".join(f"({p})" if isinstance(p, Junction) else str(p) for p in parts))

    @property
    def children(self) -> tuple[Cond, ...]:
        return self.parts


class And(Junction):
    """All of at least two conditions."""

    __slots__ = ()

    def __init__(self, parts: tuple[Cond, ...]) -> None:
        super().__init__(parts, "&&")


class Or(Junction):
    """Any of at least two conditions."""

    __slots__ = ()

    def __init__(self, parts: tuple[Cond, ...]) -> None:
        super().__init__(parts, "||")


class Not(Cond):
    """The contrary of a condition that has no simpler contrary."""

    __slots__ = ("part",)

    def __init__(self, part: Cond) -> None:
        self.part = part
        self._seal(f"!({part})")

    @property
    def children(self) -> tuple[Cond, ...]:
        return (self.part,)


TRUE = Truth(True)
FALSE = Truth(False)

_KEPT = 1 << 12
"""Comparisons that are remembered. One takes as long as twenty sums and is asked for ten times."""


def less(a: IntLike, b: IntLike) -> Cond:
    """`a < b`, decided when the bounds decide it, without quotients that stand alone (`x//f < n`
    is `x < n*f`) and without what plays no part, constants on one side."""
    return _less(as_expr(a), as_expr(b))


@lru_cache(_KEPT)
def _less(a: Expr, b: Expr) -> Cond:
    if isinstance(a, FloorDiv):
        return less(a.numerator, mul(b, a.denominator))
    if isinstance(b, FloorDiv):
        return less(add(mul(add(a, 1), b.denominator), -1), b.numerator)
    gap = add(b, mul(a, -1), -1)
    if is_natural(gap):
        return TRUE
    most = gap.interval[1]
    if (most is not None and most < 0) or is_natural(add(a, mul(b, -1))):
        return FALSE
    return _reduced(a, b)


def _reduced(a: Expr, b: Expr) -> Cond:
    """`a < b` in fewer and smaller terms, its constant on the side that has nothing else.

    With `g` dividing some of the terms and `r` the sum of the others, `g*q + r < k` is
    `q < ceil((k - r) / g)`; where that is the same for all values of `r`, they play no part:
    `8*i + lane < 4096` is `i < 512` for `0 <= lane < 8`.
    """
    (ka, left), (kb, right) = parts_of(a), parts_of(b)
    bound = kb - ka
    signed = [*left, *(Term(t.atoms, -t.coefficient) for t in right)]
    weights = [abs(t.coefficient) for t in signed]
    for g in sorted({*weights, math.gcd(*weights)} - {1}, reverse=True):
        low, high = sum_of(0, (t for t in signed if t.coefficient % g)).interval
        if low is None or high is None or -((high - bound) // g) != -((low - bound) // g):
            continue
        whole = [sum_of(0, _quotients(side, g)) for side in (left, right)]
        return less(whole[0], add(whole[1], -((low - bound) // g)))
    new_a = sum_of(0, left) if left else Int(-bound)
    new_b = sum_of(bound if left else 0, right)
    if isinstance(new_a, FloorDiv) or isinstance(new_b, FloorDiv):
        return less(new_a, new_b)
    return Less(new_a, new_b)


def _quotients(terms: Iterable[Term], g: int) -> Iterator[Term]:
    """The terms that `g` divides, divided by it."""
    return (Term(t.atoms, t.coefficient // g) for t in terms if t.coefficient % g == 0)


def less_equal(a: IntLike, b: IntLike) -> Cond:
    """`a <= b`."""
    return less(a, add(b, 1))


def equal(a: IntLike, b: IntLike) -> Cond:
    """`a == b`, decided when the bounds decide it."""
    a, b = as_expr(a), as_expr(b)
    difference = add(a, mul(b, -1))
    if isinstance(difference, Int):
        return TRUE if difference.value == 0 else FALSE
    low, high = difference.interval
    if (low is not None and low > 0) or (high is not None and high < 0):
        return FALSE
    return Equal(a, b)


def all_of(conditions: Iterable[Cond]) -> Cond:
    """The conjunction, without duplicates, in the given order."""
    kept: dict[Cond, None] = {}
    for c in conditions:
        for p in c.parts if isinstance(c, And) else (c,):
            if isinstance(p, Truth):
                if not p.value:
                    return FALSE
            else:
                kept[p] = None
    parts = tuple(kept)
    if not parts:
        return TRUE
    return parts[0] if len(parts) == 1 else And(parts)


def any_of(conditions: Iterable[Cond]) -> Cond:
    """The disjunction, without duplicates, in the given order."""
    kept: dict[Cond, None] = {}
    for c in conditions:
        for p in c.parts if isinstance(c, Or) else (c,):
            if isinstance(p, Truth):
                if p.value:
                    return TRUE
            else:
                kept[p] = None
    parts = tuple(kept)
    if not parts:
        return FALSE
    return parts[0] if len(parts) == 1 else Or(parts)


def negate(c: Cond) -> Cond:
    """The contrary."""
    match c:
        case Truth():
            return FALSE if c.value else TRUE
        case Less():
            return c.contrary
        case And():
            return any_of(negate(p) for p in c.parts)
        case Or():
            return all_of(negate(p) for p in c.parts)
        case Not():
            return c.part
        case _:
            return Not(c)


def substitute_condition(c: Cond, values: Mapping[Var, IntLike]) -> Cond:
    """The condition with variables replaced."""
    match c:
        case Less():
            return less(substitute(c.left, values), substitute(c.right, values))
        case Equal():
            return equal(substitute(c.left, values), substitute(c.right, values))
        case And():
            return all_of(substitute_condition(p, values) for p in c.parts)
        case Or():
            return any_of(substitute_condition(p, values) for p in c.parts)
        case Not():
            return negate(substitute_condition(c.part, values))
        case _:
            return c


def prove(c: Cond) -> bool | None:
    """True or False when the condition is known for all values of its variables, else None."""
    match c:
        case Truth():
            return c.value
        case Less():
            simpler = less(c.left, c.right)
            return simpler.value if isinstance(simpler, Truth) else None
        case Equal():
            simpler = equal(c.left, c.right)
            return simpler.value if isinstance(simpler, Truth) else None
        case And():
            known = [prove(p) for p in c.parts]
            return False if False in known else (True if all(known) else None)
        case Or():
            known = [prove(p) for p in c.parts]
            return True if True in known else (False if all(k is False for k in known) else None)
        case Not():
            inner = prove(c.part)
            return None if inner is None else not inner
        case _:
            raise TypeError(f"not a condition: {type(c).__name__}")
