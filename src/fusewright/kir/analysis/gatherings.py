"""Gatherings of blocks, found in the statements of a kernel: each block puts a part of its own into
a buffer, and reads those of all once they are there.

Blocks wait here for later ones too. That ends when all blocks of a group run at once: they are
neighbours in the grid, which starts blocks in order, and no more than there are multiprocessors. Of
clusters the blocks of each rank are a group, and as many clusters as surely run at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewright.core.expr import ONE, constant_value, variables
from fusewright.kir.analysis.accesses import Access, Moment, accesses
from fusewright.kir.analysis.shares import share_of
from fusewright.kir.analysis.sites import StatementSite, sites
from fusewright.kir.analysis.turns import group_faults, is_within, number_of, product_of
from fusewright.kir.ir import (
    BulkReduce,
    Dim,
    Kernel,
    SemaphoreAcquire,
    SemaphoreArrive,
    SemaphoreLeave,
    Statement,
    Visibility,
)
from fusewright.kir.semaphores import SEMAPHORE_STATEMENTS
from fusewright.target import Target


@dataclass(frozen=True, slots=True, eq=False)
class GatheredParts:
    """An arrival with the part that it hands on, and the wait for all parts."""

    arrive: StatementSite
    acquire: StatementSite
    part: SemaphoreArrive
    all_parts: SemaphoreAcquire
    leave: SemaphoreLeave

    def holds(self, access: Access, kernel: Kernel) -> bool:
        """Whether an access writes the block's own part before the arrival, or reads any part
        behind the wait."""
        if access.buffer is not self.part.guarded:
            return False
        body, path = self.arrive.path[:-1], access.site.path
        if path[: len(body)] != body:
            return False
        if self.is_summed:
            return self._holds_sum(access, kernel)
        if access.writes:
            is_in_time = path[len(body)] < self.arrive.path[-1]
            return is_in_time and is_within(access, self.part.first, self.part.size, kernel)
        is_in_time = path[len(body)] > self.acquire.path[-1]
        first, size = self.all_parts.first, self.all_parts.size
        return is_in_time and is_within(access, first, size, kernel)

    @property
    def is_summed(self) -> bool:
        """Whether all blocks add to one part, in any order."""
        return self.part.size == self.all_parts.size and self.part.first == self.all_parts.first

    def _holds_sum(self, access: Access, kernel: Kernel) -> bool:
        """Whether an access adds to the part before the arrival, or keeps behind the wait to a
        share of it that no other block touches."""
        if not is_within(access, self.part.first, self.part.size, kernel):
            return False
        if access.site.path[len(self.arrive.path) - 1] < self.arrive.path[-1]:
            statement = access.site.statement
            return isinstance(statement, BulkReduce) and statement.fn == "add"
        kept = set(variables(self.part.index))
        order = [d for d in kernel.grid if d.extent != ONE and d.var not in kept]
        shares = {
            share_of(a, self.part.first, self.part.size, order, kernel)
            for a in accesses(kernel)
            if a.buffer is self.part.guarded
            and a.moment is not Moment.DONE
            and not isinstance(a.site.statement, (BulkReduce, *SEMAPHORE_STATEMENTS))
        }
        return len(shares) == 1 and None not in shares


def gatherings_of(kernel: Kernel) -> tuple[GatheredParts, ...]:
    """The gatherings of a kernel that are sound; `gathering_problems` names what others lack."""
    places = sites(kernel)
    found = (_gathered(site, places) for site in places)
    return tuple(g for g in found if isinstance(g, GatheredParts) and not list(_faults(g, kernel)))


def gathering_problems(kernel: Kernel, target: Target | None) -> Iterator[tuple[Statement, str]]:
    """What keeps arrivals and waits from being gatherings that end."""
    places = sites(kernel)
    left: set[Statement] = set()
    for site in places:
        if not isinstance(site.statement, SemaphoreArrive):
            continue
        found = _gathered(site, places)
        if found is None:
            yield (
                site.statement,
                "no acquire and leave of the same semaphore follow it in the same body; who "
                "arrives waits for the others, and leaves",
            )
            continue
        left.add(found.leave)
        yield from ((site.statement, fault) for fault in _faults(found, kernel))
        count = constant_value(found.all_parts.value)
        most = None if target is None else target.clusters_at_once(kernel.cluster_size)
        if most is not None and count is not None and count > most:
            who = f"clusters of {kernel.cluster_size} blocks" if kernel.cluster else "blocks"
            yield (
                site.statement,
                f"{count} {who} wait for each other, and {target} is sure to run {most} at once; "
                "let fewer of them gather, or take turns",
            )
    for site in places:
        if isinstance(site.statement, SemaphoreLeave) and site.statement not in left:
            yield site.statement, "no arrival before it in the same body; only who came leaves"


def _gathered(site: StatementSite, places: Sequence[StatementSite]) -> GatheredParts | None:
    """The gathering that begins at a site."""
    part = site.statement
    if not isinstance(part, SemaphoreArrive):
        return None
    behind = [p for p in places if p.path[:-1] == site.path[:-1] and p.path > site.path]
    acquire: StatementSite | None = None
    for p in behind:
        s = p.statement
        if isinstance(s, SemaphoreAcquire) and s.semaphore is part.semaphore:
            acquire = acquire or p
        if isinstance(s, SemaphoreLeave) and s.semaphore is part.semaphore and acquire is not None:
            assert isinstance(acquire.statement, SemaphoreAcquire)
            return GatheredParts(site, acquire, part, acquire.statement, s)
    return None


def _faults(g: GatheredParts, kernel: Kernel) -> Iterator[str]:
    """Why parts may overlap, or be read before they are there."""
    part, parts = g.part, g.all_parts
    if not (part.index == parts.index == g.leave.index and part.guarded is parts.guarded):
        yield "its acquire or leave is of another index or buffer"
    if not part.issuer == parts.issuer == g.leave.issuer:
        yield "another thread waits or leaves than has arrived"
    if Visibility.BLOCK in (part.scope, parts.scope):
        yield "what it hands on is for the threads of its own block; blocks need the scope gpu"
    moving = [d for d in kernel.grid if d.extent != ONE]
    kept = [d for d in moving if d.var in variables(part.index)]
    order = [d for d in moving if d not in kept]
    kept += kernel.cluster
    count = product_of(d.extent for d in order)
    if constant_value(count) is None or parts.value != count:
        yield f"it waits for {parts.value} of the {count} blocks of a group; wait for all of them"
    if not part.period == g.leave.period == count * 2:
        yield (
            f"its counter is zero again behind {part.period} additions; {count} blocks arrive and "
            "leave, each once"
        )
    if order != moving[: len(order)]:
        names = ", ".join(str(d.var) for d in order)
        yield (
            f"the blocks that wait for each other, along {names}, are no neighbours in the grid, "
            "so that some may wait for one that cannot start; let them come first in the grid"
        )
    yield from _part_faults(g, kernel, order, kept)


def _part_faults(
    g: GatheredParts, kernel: Kernel, order: Sequence[Dim], kept: Sequence[Dim]
) -> Iterator[str]:
    """Why parts are not side by side."""
    part, parts = g.part, g.all_parts
    if g.is_summed:
        if part.guarded not in kernel.zeroed:
            yield f"blocks add to {part.guarded} in any order, which does not begin at zero"
    elif part.guarded in kernel.zeroed:
        yield f"{part.guarded} begins at zero for sums, and has parts of several blocks"
    elif part.first != parts.first + number_of(order) * part.size:
        yield f"its part begins at {part.first}, not behind those of the blocks before it"
    if parts.first != parts.index * parts.size:
        yield (
            f"all parts begin at {parts.first}, not at {parts.index} times the {parts.size} "
            "elements of a group, so that parts of two groups may overlap"
        )
    yield from group_faults(parts, g.acquire, kernel, kept)
    around = {v for b in g.acquire.branches for v in variables(b.node.condition)}
    if around & {d.var for d in order}:
        yield "a condition around it leaves out some blocks of its group; the others would wait"
