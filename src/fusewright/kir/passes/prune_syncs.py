"""Remove syncs that order nothing, and weaken those that order less than they could."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from fusewright.core.node import Node, rewrite
from fusewright.kir.analysis.completion import has_operations
from fusewright.kir.analysis.fences import unfenced
from fusewright.kir.analysis.hazards import hazards, unordered
from fusewright.kir.analysis.order import (
    Hazard,
    SyncPoint,
    SyncScope,
    orders,
    sync_id,
    sync_points,
)
from fusewright.kir.analysis.sites import sites
from fusewright.kir.analysis.split_barriers import replace_split_barriers, split_barriers
from fusewright.kir.analysis.unfinished import unfinished
from fusewright.kir.clusters import cluster_barriers
from fusewright.kir.ir import (
    AsyncCommit,
    AsyncWait,
    Kernel,
    ProxyFence,
    SyncStatement,
    WarpSync,
)
from fusewright.kir.passes.complete_async import MAX_KEEP
from fusewright.target import Target


def prune_syncs(kernel: Kernel, target: Target) -> Kernel:
    """Remove, in program order, every sync without which all hazards stay ordered; then make
    block-wide syncs that order lanes of single warps only warp-wide, and let waits leave as many
    groups under way as they may.

    rewrite:  BlockSync;  s[t] = a;  b = s[t]   ->   s[t] = a;  b = s[t]
    checks:   none; what is unordered stays for the static pair check to report
    order:    after pack_shared and place_fences, whose addresses create hazards
    """
    if has_operations(kernel):
        return _prune_by_trial(kernel)
    points = {sync_id(site): point for site, point in sync_points(kernel)}
    if not points:
        return kernel
    found = hazards(kernel)
    listed = {h: {n for n, p in points.items() if orders(p, h)} for h in found}
    keepers = {h: by for h, by in listed.items() if by}
    kept = _without_redundant(points, keepers)
    warps = _weakened(kept, keepers)
    narrower = [b for b in split_barriers(kernel) if b.wait.id not in kept or b.wait.id in warps]
    if narrower:
        instead = {b.wait: WarpSync(b.wait.id, b.wait.why) for b in narrower if b.wait.id in warps}
        return prune_syncs(replace_split_barriers(kernel, narrower, instead), target)

    waits = {arrive.id: wait.id for arrive, wait in cluster_barriers(kernel)}

    def edit(node: Node) -> Node | tuple[Node, ...]:
        if not isinstance(node, SyncStatement):
            return node
        number = waits.get(node.id, node.id)
        if number not in points:
            return node
        if number not in kept:
            return ()
        return WarpSync(node.id, node.why) if node.id in warps else node

    return rewrite(kernel, edit) if warps or len(kept) < len(points) else kernel


_Keepers: TypeAlias = dict[Hazard, set[int]]
"""By hazard the ids of the syncs that order it."""


def _without_redundant(points: dict[int, SyncPoint], keepers: _Keepers) -> dict[int, SyncPoint]:
    """The syncs that are left when each, in program order, goes if the rest suffice; those that go
    are taken from `keepers`."""
    kept = dict(points)
    for number in points:
        if all(len(by) > 1 for by in keepers.values() if number in by):
            del kept[number]
            for by in keepers.values():
                by.discard(number)
    return kept


def _weakened(kept: dict[int, SyncPoint], keepers: _Keepers) -> frozenset[int]:
    """The block-wide syncs that may become warp-wide: what only they order stays in warps."""
    out: set[int] = set()
    for number, point in kept.items():
        if point.scope is not SyncScope.BLOCK:
            continue
        here = replace(point, scope=SyncScope.WARP, since=point.position)
        if all(orders(here, h) for h, by in keepers.items() if by == {number}):
            out.add(number)
            for h, by in keepers.items():
                by.discard(number)
                if orders(here, h):
                    by.add(number)
    return frozenset(out)


# --- kernels with asynchronous operations --------------------------------------------------------


def faults(kernel: Kernel) -> int:
    """How many pairs of accesses the static analyses find out of order: between threads, between
    a thread and its own asynchronous operations, and between proxies."""
    loose = [h for h in unordered(kernel) if not h.is_simultaneous]
    return len(loose) + len(unfinished(kernel)) + len(unfenced(kernel))


def _prune_by_trial(kernel: Kernel) -> Kernel:
    """A wait, a commit and a barrier rely on each other, so each change is judged on the kernel
    that it leaves. What orders roles is left to the protocol it belongs to, and the two statements
    of a cluster barrier stay."""
    allowed, nsplit = faults(kernel), len(split_barriers(kernel))
    for statement in _prunable(kernel):
        without = _replaced(kernel, statement, ())
        if faults(without) <= allowed:
            kernel = without
            continue
        for weaker in _weaker(statement):
            changed = _replaced(kernel, statement, weaker)
            if faults(changed) > allowed:
                break
            kernel, statement = changed, weaker
    if len(split_barriers(kernel)) < nsplit:
        return _prune_by_trial(kernel)  # nobody waits for that mbarrier's start any more
    return kernel


def _prunable(kernel: Kernel) -> list[SyncStatement]:
    """The syncs that may go, in program order: those that hand bytes to other threads of a block,
    and those about groups of copies, outside of roles."""
    points = {sync_id(site) for site, p in sync_points(kernel) if p.scope is not SyncScope.CLUSTER}
    return [
        site.statement
        for site in sites(kernel)
        if isinstance(site.statement, SyncStatement)
        and site.role is None
        and (
            site.statement.id in points
            or isinstance(site.statement, AsyncCommit | AsyncWait | ProxyFence)
        )
    ]


def _weaker(s: SyncStatement) -> Iterator[SyncStatement]:
    """The same sync demanding less, step by step."""
    match s:
        case AsyncWait():
            if s.kind.waits_for_reads and not s.reads_only:
                s = replace(s, reads_only=True)
                yield s
            for keep in range(s.keep + 1, MAX_KEEP):
                yield replace(s, keep=keep)
        case WarpSync() | AsyncCommit() | ProxyFence():
            return
        case _:
            yield WarpSync(s.id, s.why)


def _replaced(kernel: Kernel, old: SyncStatement, new: SyncStatement | tuple[()]) -> Kernel:
    """The kernel with a sync replaced or left out, of a split barrier all that belongs to it."""
    for b in split_barriers(kernel):
        if b.wait is old:
            return replace_split_barriers(kernel, [b], {b.wait: new} if new else None)
    return rewrite(kernel, lambda node: new if node is old else node)
