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
    parts_of,
    sum_of,
)
from fusewright.core.symbolic import parenthesised


class Commutative(Atom):
    """A function of two expressions whose order does not matter."""

    __slots__ = ("left", "right")

    def __init__(self, left: Expr, right: Expr, text: str) -> None:
        self.left = left
        self.right = right
        self._seal(text)

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.left, self.right)


class Min(Commutative):
    """The smaller of two."""

    __slots__ = ()

    def __init__(self, left: Expr, right: Expr) -> None:
        super().__init__(left, right, f"min({left}, {right})")
        self.interval = intervals.minimum(left.interval, right.interval)
        self.divisor = math.gcd(left.divisor, right.divisor)


class Max(Commutative):
    """The larger of two."""

    __slots__ = ()

    def __init__(self, left: Expr, right: Expr) -> None:
        super().__init__(left, right, f"max({left}, {right})")
        self.interval = intervals.maximum(left.interval, right.interval)
        self.divisor = math.gcd(left.divisor, right.divisor)


class Xor(Commutative):
    """Bitwise exclusive or of two non-negative expressions."""

    __slots__ = ()

    def __init__(self, left: Expr, right: Expr) -> None:
        super().__init__(left, right, f"({parenthesised(left)}^{parenthesised(right)})")
        self.interval = intervals.xor(left.interval, right.interval)
        self.divisor = min(low_bit(left.divisor), low_bit(right.divisor))


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
    """Bitwise exclusive or; both operands must be non-negative. What stands below all bits of the
    other one, or above them, is added instead:

        (64*i + 8*j + k) ^ (8*m)    j, m < 8, k < 8    ->    64*i + k + ((8*j)^(8*m))
    """
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
    for x, by in ((a, b), (b, a)):
        low = low_bit(by.divisor)
        for bit in (*(low >> k for k in range(low.bit_length() - 1)), bit_above(by)):
            beside, met = _parted(x, by, bit)
            if beside != ZERO:
                return add(beside, xor(met, by))
    return Xor(*sorted((a, b), key=str))


def _parted(x: Expr, by: Expr, bit: int) -> tuple[Expr, Expr]:
    """Of `x` the sum of the terms on the side of a bit where all others of `by` are zero, and the
    rest; zero and all of `x` where carries may pass the bit."""
    below, above = _parts_at(x, bit)
    if bit == 1 or below is None:
        return ZERO, x
    return (below, above) if by.divisor % bit == 0 else (above, below)


def _parts_at(x: Expr, bit: int) -> tuple[Expr | None, Expr]:
    """`x` as what is below a bit, None where it may reach it, and what is a multiple of it."""
    constant, terms = parts_of(x)
    above = sum_of(constant - constant % bit, (t for t in terms if t.divisor % bit == 0))
    below = add(x, mul(above, -1))
    low, high = below.interval
    fits = low is not None and low >= 0 and high is not None and high < bit
    return (below if fits and is_natural(above) else None), above


def low_bit(n: int) -> int:
    """The largest power of two that divides a number; 1 for 0."""
    return n & -n or 1


def bit_above(e: Expr) -> int:
    """The power of two that all values of an expression are below; 1 where none is known."""
    high = e.interval[1]
    return 1 if high is None else 1 << int(high).bit_length()
