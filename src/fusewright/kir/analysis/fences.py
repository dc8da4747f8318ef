"""What threads wrote and the async proxy touches afterwards, and the proxy fences in between.

A writer's fence stands behind its write and before the sync that hands it on (PTX ISA, "async
proxy"); where one thread writes and issues, between the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from fusewright.kir.analysis.sites import Path, Site, sites
from fusewright.kir.ir import Kernel, Memory, ProxyFence


@dataclass(frozen=True, slots=True, eq=False)
class Fence:
    """A proxy fence, present or proposed."""

    point: SyncPoint
    space: Memory


def proxy_hazards(kernel: Kernel) -> tuple[Hazard, ...]:
    """Writes by threads before accesses of the async proxy to the same bytes."""
    if not has_operations(kernel):
        return ()
    return hazards_in(spaces(kernel), kernel, Rule.PROXIES)


def fences_of(kernel: Kernel) -> tuple[Fence, ...]:
    """The proxy fences of a kernel, in textual order."""
    return tuple(
        Fence(sync_at(position_of(s.path), s.scopes, SyncScope.BLOCK), s.statement.space)
        for s in sites(kernel)
        if isinstance(s.statement, ProxyFence)
    )


def unfenced(kernel: Kernel) -> tuple[Hazard, ...]:
    """The proxy hazards that no fence covers."""
    syncs, fences = sync_points(kernel), fences_of(kernel)
    return tuple(h for h in proxy_hazards(kernel) if not any(covers(f, h, syncs) for f in fences))


def covers(fence: Fence, h: Hazard, syncs: Sequence[tuple[Site, SyncPoint]]) -> bool:
    """Whether the fence stands where it makes the write visible."""
    if fence.space is not h.before_buffer.memory:
        return False
    if h.scope is SyncScope.THREAD:
        return orders(fence.point, h)
    return any(
        orders(point, h) and orders(fence.point, _before_sync(h, path_at(point.since)))
        for _, point in syncs
    )


def _before_sync(h: Hazard, sync: Path) -> Hazard:
    """From the write to the arrival at the sync that hands it on, which a loop may carry."""
    carried = h.carried if sync < h.before else None
    distance = h.distance if carried else 0
    return replace(h, after=sync, carried=carried, distance=distance, more_after=())
