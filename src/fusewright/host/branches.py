"""Branches: which launches may run side by side because they leave multiprocessors idle.

A launch whose blocks fit on half of the multiprocessors leaves room for another one like it that
does not wait for it. Launches that need more gain little from running side by side: they stand on
one branch, and share memory one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.host.graph import ancestors, by_consumer
from fusewright.host.ir import Edge

MAX_BRANCHES = 16
"""Streams that a caller's capture is forked into. Sixteen launches that each fill a sixteenth of
the device fill it; smaller ones take as long as it takes to start them."""


@dataclass(frozen=True, slots=True)
class Branches:
    """`of`: the branch of each launch, 0 for the first one; launches of one branch run in order.
    `waits`: for each launch those of other branches that it waits for. `why`: for each launch why
    it stands there."""

    of: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]
    why: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many there are; 1 where everything runs in order."""
        return 1 + max(self.of, default=0)

    @property
    def last(self) -> tuple[int, ...]:
        """The last launch of every branch."""
        return tuple(dict(zip(self.of, range(len(self.of)), strict=True)).values())


def branches(edges: Sequence[Edge], idle: Sequence[int]) -> Branches:
    """The branches of launches that leave `idle` multiprocessors each, 0 where none.

    A launch follows what it waits for where that is the last of its branch, else the last launch
    of a branch that it comes behind anyway, or that fills the device as it does itself. Otherwise
    one of the two leaves room for the other, and it begins a branch.
    """
    into = by_consumer(edges, len(idle))
    before = ancestors(edges, len(idle))
    of: list[int] = []
    last: list[int] = []
    for c in range(len(idle)):
        producers = [e.producer for e in into[c]]
        behind = [b for b, t in enumerate(last) if before[c] >> t & 1]
        full = [b for b, t in enumerate(last) if not idle[c] and not idle[t]]
        near = [b for b in behind if last[b] in producers]
        chosen = next(iter((*near, *behind, *full)), len(last))
        if chosen == MAX_BRANCHES:
            chosen = 0
        last[chosen : chosen + 1] = [c]
        of.append(chosen)
    waits = tuple(
        tuple(e.producer for e in into[c] if of[e.producer] != of[c]) for c in range(len(idle))
    )
    count = 1 + max(of, default=0)
    return Branches(tuple(of), waits, tuple(_why(i, count) for i in idle))


def _why(idle: int, count: int) -> str:
    if not idle:
        return "takes most multiprocessors: shares memory with launches before and behind it"
    if count == 1:
        return f"leaves room on {idle} multiprocessors, but no launch could run beside it"
    return f"leaves room on {idle} multiprocessors: memory of its own, beside other branches"
