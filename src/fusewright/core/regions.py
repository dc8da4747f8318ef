"""Regions: where all of some conditions hold, as limits of expressions, so that regions that
exclude or imply each other are recognised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from fusewright.core.conditions import And, Cond, Less, Truth, all_of, less_equal, negate
from fusewright.core.expr import Expr, add, mul, parts_of

Limits: TypeAlias = tuple[Expr, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Region:
    """The points where `low <= e <= high` for all `limits` (e, low, high), and `others` hold."""

    limits: tuple[Limits, ...] = ()
    others: tuple[Cond, ...] = ()

    @property
    def condition(self) -> Cond:
        """The condition that holds in the region and nowhere else."""
        parts: list[Cond] = []
        for e, low, high in self.limits:
            parts += [] if low is None else [less_equal(low, e)]
            parts += [] if high is None else [less_equal(e, high)]
        return all_of((*parts, *self.others))

    def within(self, c: Cond) -> Region | None:
        """The part of the region where the condition holds too; None when there is none."""
        match c:
            case Truth():
                return self if c.value else None
            case And():
                region: Region | None = self
                for p in c.parts:
                    region = region.within(p) if region is not None else None
                return region
            case Less():
                return self._limited(*_limits(c))
            case _:
                if negate(c) in self.others:
                    return None
                return self if c in self.others else Region(self.limits, (*self.others, c))

    def without(self, c: Cond) -> tuple[Region, ...]:
        """Regions that together are the part where the condition does not hold."""
        return united(r for r in self._beyond(c) if r is not None)

    def implies(self, c: Cond) -> bool:
        """Whether the condition is known to hold in the whole region."""
        return all(r is None for r in self._beyond(c))

    def excludes(self, other: Region) -> bool:
        """Whether the two are known to have no point in common."""
        return self.within(other.condition) is None

    def _beyond(self, c: Cond) -> Iterator[Region | None]:
        parts = c.parts if isinstance(c, And) else (c,)
        return (self.within(negate(p)) for p in parts)

    def _limited(self, e: Expr, low: int | None, high: int | None) -> Region | None:
        kept = {x: (a, b) for x, a, b in self.limits}
        had_low, had_high = kept.get(e, (None, None))
        lows = [a for a in (low, had_low) if a is not None]
        highs = [b for b in (high, had_high) if b is not None]
        if lows and highs and max(lows) > min(highs):
            return None
        kept[e] = (max(lows, default=None), min(highs, default=None))
        ordered = sorted(kept.items(), key=lambda item: str(item[0]))
        return Region(tuple((x, a, b) for x, (a, b) in ordered), self.others)


Regions: TypeAlias = tuple[Region, ...]
EVERYWHERE: Regions = (Region(),)


def united(regions: Iterable[Region]) -> Regions:
    """The union, without regions that lie in another one."""
    kept: list[Region] = []
    for r in regions:
        if any(r.implies(k.condition) for k in kept):
            continue
        kept = [k for k in kept if not k.implies(r.condition)]
        kept.append(r)
    return tuple(kept)


def _limits(c: Less) -> Limits:
    """`left < right` as limits of `left - right` without its constant, or of the opposite when
    that starts with a positive term."""
    constant, terms = parts_of(add(c.left, mul(c.right, -1)))
    rest = add(c.left, mul(c.right, -1), -constant)
    if terms[0].coefficient > 0:
        return rest, None, -constant - 1
    return mul(rest, -1), constant + 1, None
