"""What sums are made of, below the arithmetic that keeps them in normal form."""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from fusewright.core import intervals
from fusewright.core.intervals import Interval
from fusewright.core.symbolic import Symbolic, sum_text

if TYPE_CHECKING:
    from fusewright.core.expr import Atom


class Term(NamedTuple):
    """`coefficient * product(atoms)`; atoms sorted by their text."""

    atoms: tuple[Atom, ...]
    coefficient: int

    @property
    def interval(self) -> Interval:
        """An interval that contains it."""
        product = reduce(intervals.multiply, [a.interval for a in self.atoms])
        return intervals.scale(product, self.coefficient)

    @property
    def divisor(self) -> int:
        """A divisor of it."""
        return math.prod([a.divisor for a in self.atoms], start=abs(self.coefficient))

    def over(self, f: Term) -> Term | None:
        """The quotient of two terms, which may have no atom left; None when it is none."""
        if self.coefficient % f.coefficient:
            return None
        remaining = list(self.atoms)
        for a in f.atoms:
            if a not in remaining:
                return None
            remaining.remove(a)
        return Term(tuple(remaining), self.coefficient // f.coefficient)


def copies_in(terms: list[Term], constant: int, divisor: tuple[Term, ...]) -> int:
    """How often the terms hold a symbolic divisor that is a sum of a constant and terms."""
    if len(divisor) == 1 and not constant:
        return 0
    lead = divisor[0]
    return {t.atoms: t.coefficient for t in terms}.get(lead.atoms, 0) // lead.coefficient


class Coarse(NamedTuple):
    """`unit * (constant + terms) + fine`, where `fine` is in `[0, unit)`."""

    unit: int
    constant: int
    terms: list[Term]
    fine_constant: int
    fine: list[Term]


def coarse_part(constant: int, terms: tuple[Term, ...], modulus: int) -> Coarse | None:
    """A sum as multiples of a divisor of `modulus`, the largest that is found, and what is less
    than one of it: 4*a + lane is 4*a and lane for lanes below 4. None where there is no such."""
    unit = 0
    for each in sorted({math.gcd(modulus, t.coefficient) for t in terms}, reverse=True):
        unit = math.gcd(unit, each)
        if unit == 1:
            return None
        fine = [t for t in terms if t.coefficient % unit]
        least = constant % unit
        low, high = intervals.add(((least, least), *(t.interval for t in fine)))
        if low is not None and low >= 0 and high is not None and high < unit:
            whole = [
                Term(t.atoms, t.coefficient // unit) for t in terms if not t.coefficient % unit
            ]
            return Coarse(unit, constant // unit, whole, least, fine)
    return None


class Polynomial(Symbolic):
    """`constant + terms`. Text, hash, interval and divisor are found when they are first asked
    for: most sums are steps on the way to another."""

    __slots__ = ()
    constant: int
    terms: tuple[Term, ...]
    interval: Interval
    divisor: int

    def __getattr__(self, name: str) -> object:
        match name:
            case "_key":
                pairs = [(t.coefficient, t.atoms) for t in self.terms]
                self._key = sum_text(self.constant, pairs)
            case "_hash":
                self._hash = hash((self.constant, self.terms))
            case "interval":
                whole = (self.constant, self.constant)
                self.interval = intervals.add((whole, *[t.interval for t in self.terms]))
            case "divisor":
                self.divisor = math.gcd(self.constant, *[t.divisor for t in self.terms])
            case _:
                raise AttributeError(f"a sum has no attribute {name!r}")
        return getattr(self, name)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Polynomial) or self.constant != other.constant:
            return False
        return self.terms == other.terms

    __hash__ = Symbolic.__hash__

    @property
    def children(self) -> tuple[Atom, ...]:
        return tuple(a for t in self.terms for a in t.atoms)
