"""Loops behind which all warps of a role have met: what they waited for came of all their arrivals.

A warp that waits for a tile of a ring waits for the warp that copies, which waited until the tile
that lay there before was handed back by all warps:

    wait full[i % 2];  ..;  arrive empty[i % 2]        wait empty[i % 2];  copy, full[i % 2]

So behind a loop of more trips than the ring has stages each warp knows that all others have begun
the loop: it is a barrier of the role, for what stands before it and behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fusewright.kir.analysis.accesses import Found, find
from fusewright.kir.analysis.async_run import Event, Instance
from fusewright.kir.analysis.order import Hazard, SyncPoint, SyncScope, gap_position, orders
from fusewright.kir.analysis.role_order import role_order
from fusewright.kir.analysis.sites import KEPT, LoopScope, Scope, contains, sites
from fusewright.kir.analysis.times import UNIT
from fusewright.kir.ir import Kernel
from fusewright.kir.traits import Act


def ordered_by_rings(kernel: Kernel, found: Sequence[Hazard]) -> bool:
    """Whether each of the hazards is ordered by a loop over a ring; whatever other barriers do."""
    loops = _waiting_loops(kernel)
    between = [[x for x in loops if orders(x.point, h)] for h in found]
    return all(between) and all(any(_meets(x, kernel) for x in some) for some in between)


@dataclass(frozen=True, slots=True, eq=False)
class _WaitingLoop:
    """A loop of a role in which all of its threads wait at an mbarrier, and what is `around` it;
    `point` is the barrier that it may be."""

    loop: LoopScope
    around: tuple[Scope, ...]
    point: SyncPoint


@lru_cache(maxsize=KEPT)
def _waiting_loops(kernel: Kernel) -> tuple[_WaitingLoop, ...]:
    """Those whose trips, and those of loops inside, are known. None in clusters: an arrival at the
    mbarrier of another block hands on no memory."""
    out: dict[tuple[int, ...], _WaitingLoop] = {}
    for site in () if kernel.cluster else sites(kernel):
        s = site.statement
        if site.role is None or s.waits_at() is None or s.mbarrier_use() is None:
            continue
        for i, scope in enumerate(site.scopes):
            if not isinstance(scope, LoopScope) or not contains(site.role.path, scope.path):
                continue
            if s.issuing_thread() is None and all(
                x.trips for x in site.scopes[i:] if isinstance(x, LoopScope)
            ):
                body, at = scope.path[:-1], scope.path[-1]
                since, behind = gap_position(body, at), gap_position(body, at + 1)
                around = site.scopes[:i]
                point = SyncPoint(behind, around, SyncScope.BLOCK, since)
                out.setdefault(scope.path, _WaitingLoop(scope, around, point))
    return tuple(out.values())


@lru_cache(maxsize=KEPT * KEPT)
def _meets(x: _WaitingLoop, kernel: Kernel) -> bool:
    """Whether at the end of each run of the loop all threads of its role know of an arrival of all
    of them that came in this run."""
    found = find(kernel)
    run = found.completions.run
    if run is None:
        return False
    events = [e for e in run.events if e.use is not None]
    roles, _ = role_order(events)
    for coords in _runs(x, found):
        begin, end = _times(x, coords, found)
        inside = _inside(x, coords, events, found)
        if not inside or len({e.instance.branches for e in inside}) != 1:
            return False
        agent = inside[0].instance.agent
        arrival = roles.arrival_known(agent, agent, None, end)
        if arrival is None or arrival.time < begin or not _is_of_all(arrival, inside):
            return False
    return True


def _runs(x: _WaitingLoop, found: Found) -> Iterator[tuple[int, ...]]:
    """The iterations of the loops around one that stand for all."""
    loops = [s for s in x.around if isinstance(s, LoopScope)]
    return itertools.product(*(range(found.trips.get(s.path, 1)) for s in loops))


def _times(x: _WaitingLoop, coords: Sequence[int], found: Found) -> tuple[int, int]:
    """When a run of the loop begins and ends."""
    run = found.completions.run
    assert run is not None
    outer = [s.path for s in x.around if isinstance(s, LoopScope)]
    passed = sum(k * run.line.span[p] for k, p in zip(coords, outer, strict=True))
    begin = run.line.start[x.loop.path] + passed
    return UNIT * begin, UNIT * (begin + run.line.span[x.loop.path] * found.trips[x.loop.path])


def _inside(
    x: _WaitingLoop, coords: tuple[int, ...], events: Sequence[Event], found: Found
) -> list[Event]:
    """What happens in a run of the loop."""
    return [
        e
        for e in events
        if contains(x.loop.path, found.places[e.instance.order].path)
        and e.instance.coords[: len(coords)] == coords
    ]


def _is_of_all(arrival: Instance, inside: Sequence[Event]) -> bool:
    """Whether all threads of a role arrived there, at an mbarrier of their own block."""
    e = next((e for e in inside if e.instance is arrival), None)
    if e is None or e.use is None or e.use.act is not Act.ARRIVE:
        return False
    return e.use.rank is None and e.statement.issuing_thread() is None
