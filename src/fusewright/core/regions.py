"""Regions: where all of some conditions hold, as limits of expressions, so that regions that
exclude or imply each other are recognised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from fusewright.core.conditions import (
    TRUE,
    And,
    Cond,
    Less,
    Limits,
    Truth,
    all_of,
    less_equal,
    negate,
)
from fusewright.core.expr import Division, Expr, parts_of, sum_of
from fusewright.core.terms import Term


@dataclass(frozen=True, slots=True)
class PointRegion:
    """The points where `low <= e <= high` for all `limits` (e, low, high), and `others` hold."""

    limits: tuple[Limits, ...] = ()
    others: tuple[Cond, ...] = ()
    _condition: Cond | None = field(default=None, init=False, compare=False, repr=False)
    _limit_of: dict[Expr, tuple[int | None, int | None]] | None = field(
        default=None, init=False, compare=False, repr=False
    )

    _hash: int | None = field(default=None, init=False, compare=False, repr=False)

    def __hash__(self) -> int:
        """Found once: regions are keys of tables, with all their expressions."""
        if self._hash is None:
            object.__setattr__(self, "_hash", hash((self.limits, self.others)))
        assert self._hash is not None
        return self._hash

    @property
    def condition(self) -> Cond:
        """The condition that holds in the region and nowhere else."""
        if self._condition is None:
            object.__setattr__(self, "_condition", self._spelled())
        assert self._condition is not None
        return self._condition

    @property
    def limit_of(self) -> Mapping[Expr, tuple[int | None, int | None]]:
        """The least and the largest value of each expression that is limited: regions are compared
        in pairs, so that each is asked for its limits many times."""
        if self._limit_of is None:
            object.__setattr__(self, "_limit_of", {e: (a, b) for e, a, b in self.limits})
        assert self._limit_of is not None
        return self._limit_of

    def _spelled(self) -> Cond:
        parts: list[Cond] = []
        for e, low, high in self.limits:
            parts += [] if low is None else [less_equal(low, e)]
            parts += [] if high is None else [less_equal(e, high)]
        return all_of((*parts, *self.others))

    def within(self, c: Cond) -> PointRegion | None:
        """The part of the region where the condition holds too; None when there is none."""
        match c:
            case Truth():
                return self if c.value else None
            case And():
                region: PointRegion | None = self
                for p in c.parts:
                    region = region.within(p) if region is not None else None
                return region
            case Less():
                return self._limited(*c.limits)
            case _:
                if negate(c) in self.others:
                    return None
                return self if c in self.others else PointRegion(self.limits, (*self.others, c))

    def without(self, c: Cond) -> tuple[PointRegion, ...]:
        """Regions that together are the part where the condition does not hold."""
        return united(r for r in self._beyond(c) if r is not None)

    def implies(self, c: Cond) -> bool:
        """Whether the condition is known to hold in the whole region."""
        for p in _conjuncts(c):  # noqa: SIM110 no generator: asked for each pair of regions
            if not self._lies_beyond(negate(p)):
                return False
        return True

    def excludes(self, other: PointRegion) -> bool:
        """Whether the two are known to have no point in common."""
        return self.within(other.condition) is None

    def lies_in(self, other: PointRegion) -> bool:
        """Whether the other region is known to hold all points of this one."""
        return all(_follows(p, self) for p in _parts(other))

    def _beyond(self, c: Cond) -> Iterator[PointRegion | None]:
        return (self.within(negate(p)) for p in _conjuncts(c))

    def _lies_beyond(self, c: Cond) -> bool:
        """Whether the condition is known to hold nowhere in the region."""
        if not isinstance(c, Less):
            return self.within(c) is None
        e, low, high = c.limits
        least, most = self.limit_of.get(e, (None, None))
        too_low = low is not None and most is not None and most < low
        return too_low or (high is not None and least is not None and high < least)

    def _limited(self, e: Expr, low: int | None, high: int | None) -> PointRegion | None:
        kept = {**self.limit_of}
        had_low, had_high = kept.get(e, (None, None))
        lows = [a for a in (low, had_low) if a is not None]
        highs = [b for b in (high, had_high) if b is not None]
        if lows and highs and max(lows) > min(highs):
            return None
        kept[e] = (max(lows, default=None), min(highs, default=None))
        ordered = sorted(kept.items(), key=lambda item: str(item[0]))
        return PointRegion(tuple((x, a, b) for x, (a, b) in ordered), self.others)


KEPT = 1 << 10
"""Unions that are kept: the statements of a body ask for the same ones, each for its operands."""

KEPT_PAIRS = 1 << 13
"""Pairs of conditions for which is kept whether one follows from the other."""

Regions: TypeAlias = tuple[PointRegion, ...]
EVERYWHERE: Regions = (PointRegion(),)


def united(regions: Iterable[PointRegion]) -> Regions:
    """The union, without regions that lie in another one."""
    return _united(tuple(regions))


@lru_cache(KEPT)
def _united(regions: Regions) -> Regions:
    kept: list[PointRegion] = []
    for r in regions:
        if any(r.implies(k.condition) for k in kept):
            continue
        kept = [k for k in kept if not k.implies(r.condition)]
        kept.append(r)
    return tuple(kept)


def hull(regions: Iterable[PointRegion]) -> PointRegion:
    """A region that holds all points of the regions: where all of their conditions hold that each
    of them is known to imply."""
    regions = tuple(regions)
    parts = dict.fromkeys(p for r in regions for p in _parts(r))
    kept: list[Cond] = []
    for p in (p for p in parts if all(_follows(p, r) for r in regions)):
        if not any(follows(p, k) for k in kept):
            kept = [*(k for k in kept if not follows(k, p)), p]
    return PointRegion().within(all_of(kept)) or PointRegion()


@lru_cache(KEPT_PAIRS)
def follows(c: Cond, given: Cond) -> bool:
    """Whether a condition is known to hold wherever another one does.

    For `c` as `0 <= a` and the other as `0 <= b` it does if there are positive n and m so that
    `n*b - m*a < m` everywhere: `i < 513` where `8*i - lane < 4096`.
    """
    if not isinstance(c, Less) or not isinstance(given, Less):
        return c == given
    a, b = parts_of(c.gap), parts_of(given.gap)
    for s in a[1]:
        for t in b[1]:
            if s.atoms == t.atoms and s.coefficient * t.coefficient > 0:
                n, m = abs(s.coefficient), abs(t.coefficient)
                most = _most_of_difference(b, n, a, m)
                if most is not None and most < m:
                    return True
    return False


def _most_of_difference(
    a: tuple[int, tuple[Term, ...]], m: int, b: tuple[int, tuple[Term, ...]], n: int
) -> int | None:
    """An upper bound of `m*a - n*b` for sums in their parts, None when there is none. A bound of
    this comparison is asked for so often that the difference is only made where digits in it may
    become whole again."""
    table = {t.atoms: m * t.coefficient for t in a[1]}
    for t in b[1]:
        table[t.atoms] = table.get(t.atoms, 0) - n * t.coefficient
    left = [Term(atoms, k) for atoms, k in table.items() if k]
    constant = m * a[0] - n * b[0]
    if any(isinstance(x, Division) for t in left for x in t.atoms):
        return sum_of(constant, left).interval[1]
    for t in left:
        most = t.interval[1]
        if most is None:
            return None
        constant += most
    return constant


def _conjuncts(c: Cond) -> tuple[Cond, ...]:
    return c.parts if isinstance(c, And) else (c,)


def _parts(r: PointRegion) -> tuple[Cond, ...]:
    return () if r.condition == TRUE else _conjuncts(r.condition)


def _follows(c: Cond, r: PointRegion) -> bool:
    return any(follows(c, p) for p in _parts(r))
