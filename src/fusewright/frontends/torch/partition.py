"""Which nodes of an aten graph are computed together.

A node that can be fused has a level: the greatest number of changes between fused and other nodes
on a way to it. Fused nodes of one level that read each other are one region; no way leads out of a
region and back in, because every change raises the level. Then cheap nodes sink into the region
that alone reads them, where that moves fewer bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from fusewright.frontends.torch.calls import hint, is_getitem, is_view, refusal, tensors_of
from fusewright.frontends.torch.effects import predecessors
from fusewright.frontends.torch.options import Options
from fusewright.frontends.torch.table import CREATIONS


@dataclass(frozen=True, slots=True)
class Partition:
    """Regions, each a list of nodes in order; constants, which every region that reads them makes
    for itself; and why every other operator call is in no region."""

    regions: tuple[tuple[Any, ...], ...]
    constants: Mapping[Any, None]
    reasons: Mapping[Any, str]


def partition(graph: Any, options: Options) -> Partition:
    """The regions of a graph whose nodes carry example values. Regions with fewer than
    `options.min_ops`
    operators that compute something are left to torch."""
    nodes = list(graph.nodes)
    reasons = {n: r for n in nodes if (r := refusal(n)) is not None}
    constants = {n: None for n in nodes if n not in reasons and _is_constant(n)}
    before = predecessors(graph)
    level = _levels([n for n in nodes if n not in constants], before, reasons)
    _sink(nodes, before, level)
    regions: list[tuple[Any, ...]] = []
    for members in _components(nodes, level):
        why = _not_worth_it(members, constants, options.min_ops)
        if why is None:
            regions.append(members)
        else:
            reasons |= dict.fromkeys(members, why)
    calls = {n: r for n, r in reasons.items() if n.op == "call_function"}
    return Partition(tuple(regions), constants, calls)


def _is_constant(node: Any) -> bool:
    """Whether a node makes a tensor from numbers alone."""
    if node.target not in CREATIONS:
        return False
    return not any(True for p in node.all_input_nodes for _ in tensors_of(p.meta.get("val")))


def _levels(
    nodes: Sequence[Any], before: Mapping[Any, Sequence[Any]], refused: Mapping[Any, str]
) -> dict[Any, int]:
    """The level of each node that can be fused."""
    depth: dict[Any, int] = {}
    for n in nodes:
        fused = n not in refused
        known = (p for p in before[n] if p in depth)
        depth[n] = max((depth[p] + ((p not in refused) != fused) for p in known), default=0)
    return {n: d for n, d in depth.items() if n not in refused}


# --- sinking ------------------------------------------------------------------------------------


def _sink(nodes: Sequence[Any], before: Mapping[Any, Sequence[Any]], level: dict[Any, int]) -> None:
    """Moves nodes to the one later level that reads them, where that region then reads no more
    bytes than it would have read of their results."""
    after: dict[Any, list[Any]] = {n: [] for n in nodes}
    for n, preceding in before.items():
        for p in preceding:
            after[p].append(n)
    for n in reversed(nodes):
        users = after[n]
        if n not in level or not users or any(u not in level for u in users):
            continue
        target = min(level[u] for u in users)
        if target > level[n] and not is_getitem(n) and _is_cheaper_late(n):
            level[n] = target


def _is_cheaper_late(node: Any) -> bool:
    read = sum(nbytes(p.meta.get("val")) for p in node.all_input_nodes)
    return read <= nbytes(node.meta["val"])


def nbytes(value: object) -> int:
    """The bytes of the tensors of a node's value."""
    return sum(prod(map(hint, t.shape)) * t.dtype.itemsize for t in tensors_of(value))


# --- regions ------------------------------------------------------------------------------------


def _components(nodes: Sequence[Any], level: Mapping[Any, int]) -> Iterable[tuple[Any, ...]]:
    """Nodes of one level that are joined by reading each other, in order of their first node."""
    parent: dict[Any, Any] = {n: n for n in level}

    def root(n: Any) -> Any:
        while parent[n] is not n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    for n in level:
        for p in n.all_input_nodes:
            if p in level and level[p] == level[n]:
                parent[root(n)] = root(p)
    found: dict[Any, list[Any]] = {}
    for n in nodes:
        if n in level:
            found.setdefault(root(n), []).append(n)
    return [tuple(members) for members in found.values()]


def _not_worth_it(
    members: Sequence[Any], constants: Mapping[Any, None], min_ops: int
) -> str | None:
    computing = [
        n for n in members if not is_view(n) and not is_getitem(n) and n.target not in CREATIONS
    ]
    if len(computing) < min_ops:
        return "alone: torch's own kernel moves the same bytes"
    own = set(members)
    read = dict.fromkeys(p for n in members for p in n.all_input_nodes)
    outside = [p for p in read if p not in own and p not in constants]
    if not any(True for p in outside for _ in tensors_of(p.meta.get("val"))):
        return "reads no tensor"
    return None
