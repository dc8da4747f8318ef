"""Atoms beyond division: minimum, maximum, exclusive or."""

from __future__ import annotations

import math

from fusewright.core import intervals
from fusewright.core.expr import (
    ZERO,
    Atom,
    Expr,
    Int,
    IntLike,
    add,
    as_expr,
    is_natural,
    mul,
)
from fusewright.core.symbolic import parenthesised


class Pair(Atom):
    """A function of two expressions whose order does not matter."""

    __slots__ = ("left", "right")

    def __init__(self, left: Expr, right: Expr, text: str) -> None:
        self.left = left
        self.right = right
        self._seal(text)

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.left, self.right)


class Min(Pair):
    """The smaller of two."""

    __slots__ = ()

    def __init__(self, left: Expr, right: Expr) -> None:
        super().__init__(left, right, f"min({left}, {right})")
        self.interval = intervals.minimum(left.interval, right.interval)
        self.divisor = math.gcd(left.divisor, right.divisor)


class Max(Pair):
    """The larger of two."""

    __slots__ = ()

    def __init__(self, left: Expr, right: Expr) -> None:
        super().__init__(left, right, f"max({left}, {right})")
        self.interval = intervals.maximum(left.interval, right.interval)
        self.divisor = math.gcd(left.divisor, right.divisor)


class Xor(Pair):
    """Bitwise exclusive or of two non-negative expressions."""

    __slots__ = ()

    def __init__(self, left: Expr, right: Expr) -> None:
        super().__init__(left, right, f"({parenthesised(left)}^{parenthesised(right)})")
        self.interval = intervals.xor(left.interval, right.interval)
        self.divisor = 1


def _order(a: Expr, b: Expr) -> bool | None:
    """True when `a <= b` always, False when `a >= b` always, None when neither is known."""
    if is_natural(add(b, mul(a, -1))):
        return True
    return False if is_natural(add(a, mul(b, -1))) else None


def minimum(a: IntLike, b: IntLike) -> Expr:
    """The smaller of two."""
    a, b = as_expr(a), as_expr(b)
    known = _order(a, b)
    if known is not None:
        return a if known else b
    return Min(*sorted((a, b), key=str))


def maximum(a: IntLike, b: IntLike) -> Expr:
    """The larger of two."""
    a, b = as_expr(a), as_expr(b)
    known = _order(a, b)
    if known is not None:
        return b if known else a
    return Max(*sorted((a, b), key=str))


def xor(a: IntLike, b: IntLike) -> Expr:
    """Bitwise exclusive or; both operands must be non-negative."""
    a, b = as_expr(a), as_expr(b)
    if isinstance(a, Int) and isinstance(b, Int):
        return Int(a.value ^ b.value)
    if isinstance(a, Int) and a.value == 0:
        return b
    if isinstance(b, Int) and b.value == 0:
        return a
    if a == b:
        return ZERO
    if isinstance(a, Xor) and b in (a.left, a.right):
        return a.right if b == a.left else a.left
    if isinstance(b, Xor) and a in (b.left, b.right):
        return b.right if a == b.left else b.left
    return Xor(*sorted((a, b), key=str))
