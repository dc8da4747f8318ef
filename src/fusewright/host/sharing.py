"""Which intermediates share bytes of the arena, and which launches that makes wait.

Bytes are given on along the data's own edges where that costs little more memory than program order
would. Where it costs more, launches that leave multiprocessors idle still keep memory of their own,
as long as the launches that need not wait for it are worth the bytes; launches that fill the device
run one after the other anyway, and share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import Expr, constant_value
from fusewright.fusion.ir import Tensor
from fusewright.host.arena import Arena, Conflicts, Lifetime, pack
from fusewright.host.subspans import LAUNCH_NBYTES, Subspan, nbytes_of

Runs = Callable[[int, int], bool]
"""Whether two launches could run side by side with a gain."""


class LaunchedCall(Protocol):
    """A launch: the sites that it reads, those that it writes, and the multiprocessors that it
    leaves idle."""

    @property
    def inputs(self) -> tuple[Subspan, ...]: ...
    @property
    def made(self) -> tuple[Subspan, ...]: ...
    @property
    def idle(self) -> int: ...


def packed(inner: Sequence[Subspan], calls: Sequence[LaunchedCall], before: Sequence[int]) -> Arena:
    """The arena of the intermediates `inner`. `before`: for each launch, as bits, those that the
    data alone make it wait for."""
    uses = uses_of(inner, calls, before)
    idle = [x.idle > 0 for x in calls]

    def either(m: int, u: int) -> bool:
        return idle[m] or idle[u]

    def both(m: int, u: int) -> bool:
        return idle[m] and idle[u]

    tight = pack(uses.lives)
    beside = tight
    for side_by_side in (any_pair, either, both):
        beside = pack(uses.lives, uses.conflicts(side_by_side))
        if _is_affordable(beside.nbytes, tight.nbytes):
            return beside
    more = constant_value(beside.nbytes - tight.nbytes)
    freed = len(set(uses.waiting(tight, both)))
    return beside if more is not None and more <= freed * LAUNCH_NBYTES else tight


def any_pair(m: int, u: int) -> bool:
    """Any two launches could run side by side."""
    return True


def _is_affordable(free: Expr, tight: Expr) -> bool:
    """Whether running launches side by side costs at most a sixteenth more memory."""
    return prove(less_equal(free * 16, tight * 17)) is True


@dataclass(frozen=True, slots=True)
class Uses:
    """Of each intermediate the launches that make it, and all that touch it."""

    lives: list[Lifetime]
    makers: list[list[int]]
    users: list[list[int]]
    before: Sequence[int]

    def conflicts(self, side_by_side: Runs) -> Conflicts:
        """Which intermediates may not share bytes: those needed at one launch, and those that made
        launches wait which could run side by side."""

        @cache
        def conflict(a: int, b: int) -> bool:
            if a > b:
                return conflict(b, a)
            waits = any(True for _ in self._waits(a, b, side_by_side))
            return waits or self.lives[a].meets(self.lives[b])

        return conflict

    def _waits(self, a: int, b: int, side_by_side: Runs) -> Iterator[int]:
        """The launches that would wait for bytes of the other one, and not for its data."""
        p, q = (a, b) if self.lives[a].first <= self.lives[b].first else (b, a)
        for m in self.makers[q]:
            if any(not self.before[m] >> u & 1 and side_by_side(m, u) for u in self.users[p]):
                yield m

    def waiting(self, arena: Arena, side_by_side: Runs) -> Iterator[int]:
        """The launches that an arena makes wait, though they could run side by side."""
        ranges: list[tuple[int, int] | None] = []
        for t, offset in zip(self.lives, arena.offsets, strict=True):
            start, size = constant_value(offset), constant_value(t.nbytes)
            ranges.append(None if start is None or size is None else (start, start + size))
        for a, x in enumerate(ranges):
            for b, y in enumerate(ranges[:a]):
                if x is not None and y is not None and x[0] < y[1] and y[0] < x[1]:
                    yield from self._waits(a, b, side_by_side)


def uses_of(inner: Sequence[Subspan], calls: Sequence[LaunchedCall], before: Sequence[int]) -> Uses:
    """Who makes and who touches each intermediate. `before` as that of `packed`."""
    number: dict[Tensor, int] = {s.root: k for k, s in enumerate(inner)}
    users: list[list[int]] = [[] for _ in inner]
    makers: list[list[int]] = [[] for _ in inner]
    for i, x in enumerate(calls):
        for s in (*x.inputs, *x.made):
            if s.root in number:
                users[number[s.root]].append(i)
        for s in x.made:
            if s.root in number:
                makers[number[s.root]].append(i)
    lives = [
        Lifetime(s.root.name, nbytes_of(s), u[0], u[-1]) for s, u in zip(inner, users, strict=True)
    ]
    return Uses(lives, makers, users, before)
