"""What threads wrote and the async proxy touches afterwards, and the proxy fences in between.

A writer's fence stands behind its write and before the sync that hands it on (PTX ISA, "async
proxy"); where one thread writes and issues, between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from fusewright.kir.analysis.completion import has_operations
from fusewright.kir.analysis.hazards import Rule, hazards_in
from fusewright.kir.analysis.order import (
    Hazard,
    SyncPoint,
    SyncScope,
    orders,
    path_at,
    position_of,
    sync_at,
    sync_points,
)
from fusewright.kir.analysis.ownership import spaces
from fusewright.kir.analysis.sites import KEPT, Path, acting_sites
from fusewright.kir.ir import Kernel, Memory, ProxyFence


@dataclass(frozen=True, slots=True, eq=False)
class Fence:
    """A proxy fence, present or, without a `statement`, proposed."""

    point: SyncPoint
    space: Memory
    statement: ProxyFence | None = None


@lru_cache(maxsize=KEPT)
def proxy_hazards(kernel: Kernel) -> tuple[Hazard, ...]:
    """Writes by threads before accesses of the async proxy to the same bytes."""
    if not has_operations(kernel):
        return ()
    return hazards_in(spaces(kernel), kernel, Rule.PROXIES)


def fences_of(kernel: Kernel) -> tuple[Fence, ...]:
    """The proxy fences of a kernel, in textual order."""
    return tuple(
        Fence(
            sync_at(position_of(s.path), s.scopes, SyncScope.BLOCK), s.statement.space, s.statement
        )
        for _, s in acting_sites(kernel)
        if isinstance(s.statement, ProxyFence)
    )


def unfenced(kernel: Kernel) -> tuple[Hazard, ...]:
    """The proxy hazards that no fence covers."""
    syncs, fences = [p for _, p in sync_points(kernel)], fences_of(kernel)
    return tuple(h for h in proxy_hazards(kernel) if not is_covered(h, handed_on(h, syncs), fences))


def handed_on(h: Hazard, syncs: Iterable[SyncPoint]) -> Iterator[Hazard]:
    """The ways from a write to where its thread fences at the latest: the arrival at each sync that
    hands it on, or, where one thread writes and issues, the access itself."""
    if h.scope is SyncScope.THREAD:
        yield h
        return
    yield from (_before_sync(h, path_at(p.since)) for p in syncs if orders(p, h))


def is_covered(h: Hazard, ways: Iterable[Hazard], fences: Iterable[Fence]) -> bool:
    """Whether one of the fences stands where it makes the write visible."""
    points = [f.point for f in fences if f.space is h.before_buffer.memory]
    for way in ways if points else ():
        for p in points:
            if orders(p, way):
                return True
    return False


def _before_sync(h: Hazard, sync: Path) -> Hazard:
    """From the write to the arrival at the sync that hands it on, which a loop may carry: a matter
    of the writer's block, also where the sync is one of a cluster."""
    carried = h.carried if sync < h.before else None
    distance = h.distance if carried else 0
    scope = SyncScope.BLOCK if h.scope is SyncScope.CLUSTER else h.scope
    return replace(h, after=sync, carried=carried, distance=distance, more_after=(), scope=scope)
