"""Put proxy fences where bulk copies touch what threads wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewright.kir.analysis.fences import Fence, handed_on, is_covered, unfenced
from fusewright.kir.analysis.order import (
    Hazard,
    SyncPoint,
    SyncScope,
    gap_position,
    orders,
    path_at,
    sync_at,
    sync_points,
)
from fusewright.kir.analysis.sites import Path, Scope, StatementSite, sites
from fusewright.kir.insertion import insert, next_sync_id
from fusewright.kir.ir import Kernel, Memory, ProxyFence
from fusewright.target import Target


def place_fences(kernel: Kernel, target: Target) -> Kernel:
    """Make what threads wrote visible to the async proxy: the writers fence before the sync that
    hands their bytes on.

    rewrite:  s[t] = a;  BlockSync;  y <- s   ->   s[t] = a;  ProxyFence;  BlockSync;  y <- s
    checks:   none; a hazard without a sync stays for the static pair check to report
    order:    after pack_shared (addresses make hazards), before prune_syncs
    """
    pending: list[Hazard] = list(unfenced(kernel))
    if not pending:
        return kernel
    syncs = sync_points(kernel)
    ways = {h: tuple(handed_on(h, [p for _, p in syncs])) for h in pending}
    places = {s.path: s for s in sites(kernel)}
    found: dict[tuple[Path, int, Memory], _FencePlace] = {}
    offers: dict[Hazard, list[_FencePlace]] = {}
    for h in pending:
        listed = [((g.body, g.index, g.fence.space), g) for g in _offers(h, syncs, places)]
        offers[h] = [found.setdefault(key, g) for key, g in listed]
    covers = {g: [h for h in pending if is_covered(h, ways[h], (g.fence,))] for g in found.values()}
    added: dict[tuple[Path, int], list[ProxyFence]] = {}
    number = next_sync_id(kernel)
    while pending:
        left = frozenset(pending)
        gaps = [g for h in pending for g in offers[h]]
        covered = {g: [h for h in covers[g] if h in left] for g in gaps}
        if not any(covered.values()):
            break
        gap = max(covered, key=lambda g: len(covered[g]))
        most = covered[gap]
        fence = ProxyFence(number, f"proxy {most[0]}", gap.fence.space)
        added.setdefault((gap.body, gap.index), []).append(fence)
        pending = [h for h in pending if h not in most]
        number += 1
    return insert(kernel, added)


@dataclass(frozen=True, slots=True, eq=False)
class _FencePlace:
    """A fence before statement `index` of the body at `body`."""

    body: Path
    index: int
    fence: Fence


def _offers(
    h: Hazard, syncs: Sequence[tuple[StatementSite, SyncPoint]], places: dict[Path, StatementSite]
) -> Iterator[_FencePlace]:
    """Where a fence may cover the hazard: right before the arrival at each sync that orders it, or,
    for one thread, before the access in the deepest body that holds both."""
    space = h.before_buffer.memory
    if h.scope is not SyncScope.THREAD:
        for site, point in syncs:
            if orders(point, h):
                at = path_at(point.since)
                yield _gap(at[:-1], at[-1], site.scopes, space)
        return
    body: Path = ()
    scopes: tuple[Scope, ...] = ()
    for a, b in zip(places[h.before].scopes, places[h.after].scopes, strict=False):
        if a.path != b.path or (h.carried is not None and body == h.carried):
            break
        body, scopes = a.path, (*scopes, a)
    yield _gap(body, h.after[len(body)], scopes, space)


def _gap(body: Path, index: int, scopes: tuple[Scope, ...], space: Memory) -> _FencePlace:
    point = sync_at(gap_position(body, index), scopes, SyncScope.BLOCK)
    return _FencePlace(body, index, Fence(point, space))
