"""Atoms, digits and words: what axis classes are made of, as plain values.

An atom is an interval of a line. It may be defined: by a word of digits (a box), or by one word
moved by another (a twist). A digit is `(atom // stride) % extent`, a word is a tuple of digits,
outer first, and stands for the mixed-radix number of its digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from fusewright.core.atoms import xor
from fusewright.core.expr import (
    KEPT,
    ONE,
    ZERO,
    Expr,
    Int,
    constant_value,
    floordiv,
    integer,
    mod,
    mul,
    parts_of,
)
from fusewright.core.terms import Term

MAX_QUOTIENT_TERMS = 8
"""Of exact quotients of sizes that are looked for: sizes of views of views have few."""


@dataclass(frozen=True, slots=True, eq=False)
class LineAtom:
    """The interval `[low, low + extent)` of a line; interned, so identity is equality."""

    line: int
    low: Expr
    extent: Expr
    name: str

    def __str__(self) -> str:
        return self.name if self.low == ZERO else f"{self.name}[{self.low}:]"


class Digit(NamedTuple):
    """`(atom // stride) % extent`, where `stride * extent` divides the atom's extent."""

    atom: LineAtom
    stride: Expr
    extent: Expr

    @property
    def top(self) -> Expr:
        """The stride of the digit above."""
        return mul(self.stride, self.extent)

    @property
    def is_whole(self) -> bool:
        """Whether the digit is its atom."""
        return self.stride == ONE and self.extent == self.atom.extent

    def __str__(self) -> str:
        text = str(self.atom)
        if self.stride != ONE:
            text += f"//{self.stride}"
        whole = mul(self.stride, self.extent) == self.atom.extent
        return text if whole else f"{text}%{self.extent}"


Word: TypeAlias = tuple[Digit, ...]


@dataclass(frozen=True, slots=True)
class Twist:
    """`base ^ by`: both extents are the same power of two. A twist is known where both are; its
    base follows from it and what it is twisted by."""

    base: Word
    by: Word

    @property
    def extent(self) -> Expr:
        """The number of values, in range of which every base is."""
        return word_extent(self.base)

    @property
    def is_onto(self) -> bool:
        """Whether every value is that of a base, whatever it is twisted by."""
        return True

    @property
    def sign(self) -> str:
        """What stands between the two in a name."""
        return "^"

    def twisted(self, base: Expr, by: Expr) -> Expr:
        """The value for a base."""
        return xor(base, by)

    def untwisted(self, value: Expr, by: Expr) -> Expr:
        """The base of a value; beyond the base's extent where the value has none."""
        return xor(value, by)


@dataclass(frozen=True, slots=True)
class Skew(Twist):
    """`base + (by * scale) % modulus`: the positions of a row counted from the last multiple of
    `modulus` before it, when rows follow each other every `scale` elements."""

    scale: Expr
    modulus: int

    @property
    def extent(self) -> Expr:
        return word_extent(self.base) + (self.modulus - 1)

    @property
    def is_onto(self) -> bool:
        return False

    @property
    def sign(self) -> str:
        return "~"

    def twisted(self, base: Expr, by: Expr) -> Expr:
        return base + self._moved(by)

    def untwisted(self, value: Expr, by: Expr) -> Expr:
        return value - self._moved(by)

    def _moved(self, by: Expr) -> Expr:
        return mod(mul(by, self.scale), self.modulus)


@dataclass(frozen=True, slots=True)
class Serpentine(Twist):
    """`base` where `by` is even, and counted from the end of `base` where it is odd."""

    @property
    def sign(self) -> str:
        return "|"

    def twisted(self, base: Expr, by: Expr) -> Expr:
        size, odd = self.extent, mod(by, 2)
        return mod(base - odd * (base * 2 + 1), size)  # -1 - base, modulo the size, where odd

    def untwisted(self, value: Expr, by: Expr) -> Expr:
        return self.twisted(value, by)


Definition: TypeAlias = Word | Twist


def digits_of(definition: Definition) -> Word:
    """Every digit that a definition mentions."""
    return definition.base + definition.by if isinstance(definition, Twist) else definition


def ratio(a: Expr, b: Expr) -> Expr | None:
    """`a / b` when the division is exact in the normal form, else None."""
    if type(b) is Int:
        kb = b.value
        if type(a) is Int:
            return integer(a.value // kb) if kb and a.value % kb == 0 else None
        if kb == 1:
            return a
        if kb == 0:
            return None
    if a == b:
        return ONE
    q = floordiv(a, b)
    if mul(q, b) == a:
        return q if q != ZERO else None
    return _polynomial_ratio(a, b)


def _polynomial_ratio(a: Expr, b: Expr) -> Expr | None:
    """`a / b` by long division, for a divisor of several terms such as `(n-1)//f + 1`."""
    constant, terms = parts_of(b)
    if not terms or (len(terms) == 1 and not constant):
        return None
    divisor = _leading(terms)
    quotient: Expr = ZERO
    for _ in range(MAX_QUOTIENT_TERMS):
        left = parts_of(a)[1]
        k = ratio(term_value(_leading(left)), term_value(divisor)) if left else None
        if k is None:
            return None
        if (_leading(left).coefficient < 0) != (divisor.coefficient < 0):
            k = mul(k, -1)
        quotient, a = quotient + k, a - k * b
        if a == ZERO:
            return quotient
    return None


def _leading(terms: Sequence[Term]) -> Term:
    """The term of the highest degree, of equal ones the first in an order that products keep."""
    degree = max(len(t.atoms) for t in terms)
    return min(
        (t for t in terms if len(t.atoms) == degree), key=lambda t: sorted(map(str, t.atoms))
    )


def term_value(t: Term) -> Expr:
    """A term as an expression, without its sign."""
    value: Expr = integer(abs(t.coefficient))
    for a in t.atoms:
        value = mul(value, a)
    return value


def word_extent(word: Word) -> Expr:
    """The number of values of a word."""
    extent: Expr = ONE
    for d in word:
        extent = mul(extent, d.extent)
    return extent


def cut_aligned(word: Word, factor: Expr) -> tuple[Word, Word] | None:
    """`word = outer, inner` with `inner` of extent `factor`, when the cut falls on or inside one
    digit; None when it would need several digits as one number."""
    inner: Word = ()
    rest = factor
    position = len(word)
    while rest != ONE:
        position -= 1
        if position < 0:
            return None
        d = word[position]
        smaller = ratio(rest, d.extent)
        if smaller is not None:
            inner = (d, *inner)
            rest = smaller
            continue
        larger = ratio(d.extent, rest)
        if larger is None:
            return None
        above = Digit(d.atom, mul(d.stride, rest), larger)
        below = Digit(d.atom, d.stride, rest)
        return (*word[:position], above), (below, *inner)
    return word[:position], inner


def cut_between(word: Word, stride: Expr, extent: Expr) -> Word | None:
    """The digits of a word that make up `(word // stride) % extent`, when they align."""
    above = cut_aligned(word, stride)
    here = above and cut_aligned(above[0], extent)
    return here[1] if here else None


def _common(a: Expr, b: Expr, *, multiple: bool) -> Expr | None:
    """The least common multiple or the greatest common divisor, where it is known."""
    if ratio(a, b) is not None:
        return a if multiple else b
    if ratio(b, a) is not None:
        return b if multiple else a
    ka, kb = constant_value(a), constant_value(b)
    if ka is None or kb is None:
        return None
    return Int(math.lcm(ka, kb) if multiple else math.gcd(ka, kb))


def _borders(word: Word) -> list[tuple[Expr, Expr]]:
    """The (lower, upper) position of each digit, innermost first."""
    found: list[tuple[Expr, Expr]] = []
    position: Expr = ONE
    for d in reversed(word):
        above = mul(position, d.extent)
        found.append((position, above))
        position = above
    return found


def _first_aligned(word: Word, start: Expr, end: Expr | None) -> Expr | None:
    """The lowest position on or within a digit that is a multiple of `start` and divides `end`."""
    for below, above in _borders(word):
        p = _common(start, below, multiple=True)
        fits = p is not None and ratio(above, p) is not None
        if p is not None and fits and (end is None or ratio(end, p) is not None):
            return p
    return None


def _last_aligned(word: Word, start: Expr | None, end: Expr) -> Expr | None:
    """The highest position on or within one digit that divides `end`, a multiple of `start`."""
    for below, above in reversed(_borders(word)):
        p = _common(end, above, multiple=False)
        fits = p is not None and ratio(p, below) is not None
        if p is not None and fits and (start is None or ratio(p, start) is not None):
            return p
    return None


def aligned_core(word: Word, stride: Expr, extent: Expr) -> tuple[Expr, Expr] | None:
    """The largest part (stride, extent) of `(word // stride) % extent` that aligns with the word's
    digits: from the first to the last position inside that lies on or within one digit."""
    end = mul(stride, extent)
    low, high = _first_aligned(word, stride, end), _last_aligned(word, stride, end)
    if low is None or high is None or low == high:
        return None
    size = ratio(high, low)
    return None if size is None else (low, size)


@lru_cache(KEPT)
def aligned_hull(word: Word, stride: Expr, extent: Expr) -> Word:
    """The digits of a word on which `(word // stride) % extent` depends: the smallest aligned part
    around it, or the whole word where that is not known."""
    low = _last_aligned(word, None, stride)
    high = _first_aligned(word, mul(stride, extent), None)
    size = ratio(high, low) if low is not None and high is not None else None
    part = cut_between(word, low, size) if low is not None and size is not None else None
    return word if part is None else part
