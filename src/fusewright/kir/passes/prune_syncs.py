"""Remove syncs that order nothing, and weaken those that order less than they could."""

from __future__ import annotations

from dataclasses import replace

from fusewright.core.node import Node, rewrite
from fusewright.kir.analysis.hazards import hazards
from fusewright.kir.analysis.order import (
    Hazard,
    SyncPoint,
    SyncScope,
    orders,
    sync_id,
    sync_points,
    unordered_by,
)
from fusewright.kir.ir import Kernel, SyncStatement, WarpSync
from fusewright.target import Target


def prune_syncs(kernel: Kernel, target: Target) -> Kernel:
    """Remove, in program order, every sync without which all hazards stay ordered; then make
    block-wide syncs that order lanes of single warps only warp-wide.

    rewrite:  BlockSync;  s[t] = a;  b = s[t]   ->   s[t] = a;  b = s[t]
    checks:   none; what is unordered stays for the static pair check to report
    order:    after pack_shared, whose addresses create hazards
    """
    points = {sync_id(site): point for site, point in sync_points(kernel)}
    if not points:
        return kernel
    found = hazards(kernel)
    missing = unordered_by(points.values(), found)
    settled = [h for h in found if h not in missing]
    kept = _without_redundant(points, settled)
    warps = _weakened(kept, settled)

    def edit(node: Node) -> Node | tuple[Node, ...]:
        if not isinstance(node, SyncStatement) or node.id not in points:
            return node
        if node.id not in kept:
            return ()
        return WarpSync(node.id, node.why) if node.id in warps else node

    return rewrite(kernel, edit) if warps or len(kept) < len(points) else kernel


def _without_redundant(points: dict[int, SyncPoint], settled: list[Hazard]) -> dict[int, SyncPoint]:
    """The syncs that are left when each, in program order, goes if the rest suffice."""
    keepers = {h: [n for n, p in points.items() if orders(p, h)] for h in settled}
    kept = dict(points)
    for number in points:
        if all(len(by) > 1 for by in keepers.values() if number in by):
            del kept[number]
            for by in keepers.values():
                if number in by:
                    by.remove(number)
    return kept


def _weakened(kept: dict[int, SyncPoint], settled: list[Hazard]) -> frozenset[int]:
    """The block-wide syncs that may become warp-wide: what only they order stays in warps."""
    points = dict(kept)
    out: set[int] = set()
    for number, point in kept.items():
        if point.scope is SyncScope.WARP:
            continue
        weaker = {**points, number: replace(point, scope=SyncScope.WARP)}
        if not unordered_by(weaker.values(), settled):
            points = weaker
            out.add(number)
    return frozenset(out)
