"""Lanes of an access that end one row and begin another: two runs, each of neighbours.

    x[9*r + c], vectors of 4 that run from one row of 5 into the next

    lanes          0  1  2  3        the row ends behind lane 1: cut = 2
    first run      3  4  .  .        steps of 1 from the place of lane 0
    second run     .  .  9 10        steps of 1 that end at the place of lane 3

All digits of a place change where a row ends, and grow by one step or stay elsewhere; so the two
ends of a vector tell the places of all lanes, whatever an address makes of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import gcd

from fusewright.core.atoms import minimum
from fusewright.core.expr import (
    Division,
    Expr,
    Mod,
    Sum,
    Var,
    constant_value,
    mod,
    variables,
)
from fusewright.core.substitution import substitute


@dataclass(frozen=True, slots=True)
class Pieces:
    """Lanes before `cut` are steps of `step`, which is 1, -1 or 0, from the place `first` of the
    first one; others are such steps and lead up to the place `last` of the last one. All lanes are
    one run where `cut` is their number or more."""

    first: Expr
    last: Expr
    step: int
    cut: Expr


@dataclass(frozen=True, slots=True)
class _RowEnd:
    """Rows end where `numerator`, which grows by `step` from lane to lane, passes a multiple of
    `size`."""

    numerator: Expr
    size: int
    step: int

    def first_behind(self, lane: Var) -> Expr:
        """The first lane behind the end of the row of lane 0."""
        inside = mod(substitute(self.numerator, {lane: 0}), self.size)
        return self.size - inside if self.step > 0 else inside + 1

    def is_implied_by(self, other: _RowEnd) -> bool:
        """Whether a row of the other ends wherever one of this one does."""
        same = self.step == other.step and self.size % other.size == 0
        return same and self._apart(other, other.size) == 0

    def is_never_near(self, other: _RowEnd, count: int) -> bool:
        """Whether no two places between `count` neighbouring lanes are ends of both kinds."""
        common = gcd(self.size, other.size)
        apart = self._apart(other, common)
        if apart is None or self.step != other.step:
            return False
        near = min(apart, common - apart)
        return near >= count - 1 or (apart == 0 and common >= count - 1)

    def _apart(self, other: _RowEnd, modulus: int) -> int | None:
        """How far the ends of one kind are from those of the other, modulo a number."""
        return constant_value(mod(self.numerator - other.numerator, modulus))


@lru_cache(512)
def pieces_of(address: Expr, lane: Var, count: int) -> Pieces | None:
    """The two runs of `count` lanes; None where they may be more, or steps are longer."""
    ends: dict[_RowEnd, None] = {}
    step = _step(address, lane, count, ends)
    if step not in (0, 1, -1) or not ends:
        return None
    own: list[_RowEnd] = []
    for e in sorted(ends, key=lambda e: e.size):
        if not any(e.is_implied_by(o) for o in own):
            own.append(e)
    if not all(a.is_never_near(b, count) for a, b in combinations(own, 2)):
        return None
    cut: Expr = own[0].first_behind(lane)
    for e in own[1:]:
        cut = minimum(cut, e.first_behind(lane))
    first, last = (substitute(address, {lane: k}) for k in (0, count - 1))
    return Pieces(first, last, step, cut)


def _step(e: Expr, lane: Var, count: int, ends: dict[_RowEnd, None]) -> int | None:
    """By how much an expression grows from lane to lane inside of a row; the ends of rows are added
    to `ends`. None where that is not known, or rows may end twice between the lanes."""
    if lane not in variables(e):
        return 0
    if e is lane:
        return 1
    if isinstance(e, Division):
        inside, size = _step(e.numerator, lane, count, ends), constant_value(e.denominator)
        if not inside:
            return inside
        is_row = size is not None and size >= count - 1 and inside in (1, -1)
        if size is None or not is_row or lane in variables(e.numerator - inside * lane):
            return None
        ends[_RowEnd(e.numerator, size, inside)] = None
        return inside if isinstance(e, Mod) else 0
    return _step_of_sum(e, lane, count, ends) if isinstance(e, Sum) else None


def _step_of_sum(e: Sum, lane: Var, count: int, ends: dict[_RowEnd, None]) -> int | None:
    """The same of a sum of products: of several factors all stay the same."""
    total = 0
    for t in e.terms:
        steps = [_step(a, lane, count, ends) for a in t.atoms]
        if any(s is None for s in steps) or (len(steps) > 1 and any(steps)):
            return None
        total += t.coefficient * sum(s for s in steps if s is not None)
    return total


def run_of(pieces: Pieces, first: int, width: int, count: int, *, is_last: bool) -> Expr:
    """Where the lanes `first .. first + width` of one of the runs would begin in memory if all of
    them were in that run."""
    low = first if pieces.step >= 0 else first + width - 1
    if is_last:
        return pieces.last - pieces.step * (count - 1 - low)
    return pieces.first + pieces.step * low


def places(pieces: Pieces, width: int) -> Sequence[int]:
    """At which element of a run in memory each of its lanes lies."""
    if pieces.step:
        return range(width)[:: pieces.step]
    return [0] * width
