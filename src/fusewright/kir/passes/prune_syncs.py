"""Remove syncs that order nothing."""

from __future__ import annotations

from fusewright.core.node import Node, rewrite
from fusewright.kir.analysis.hazards import hazards
from fusewright.kir.analysis.order import sync_id, sync_points, unordered_by
from fusewright.kir.ir import Kernel, SyncStatement
from fusewright.target import Target


def prune_syncs(kernel: Kernel, target: Target) -> Kernel:
    """Remove, in program order, every sync without which all hazards stay ordered.

    rewrite:  BlockSync;  s[t] = a;  b = s[t]   ->   s[t] = a;  b = s[t]
    checks:   none; what is unordered stays for the static pair check to report
    order:    after pack_shared, whose addresses create hazards
    """
    found = hazards(kernel)
    points = {sync_id(s): p for s, p in sync_points(kernel)}
    open_before = len(unordered_by(points.values(), found))
    kept = dict(points)
    for number in points:
        rest = {k: p for k, p in kept.items() if k != number}
        if len(unordered_by(rest.values(), found)) == open_before:
            kept = rest
    removed = points.keys() - kept.keys()

    def drop(node: Node) -> Node | tuple[Node, ...]:
        return () if isinstance(node, SyncStatement) and node.id in removed else node

    return rewrite(kernel, drop) if removed else kernel
