"""Which nodes of an aten graph are computed together.

A node that can be fused has a level: the greatest number of changes between fused and other nodes,
and between devices, on a way to it. Fused nodes of one level that read each other are one region;
no way leads out of a region and back in, because every change raises the level. Then cheap nodes
sink into the region that alone reads them, where that moves fewer bytes. Regions of a level that
read the same memory are one, so that it may be read once. Small operators that are left alone on a
level are one region, whose kernels stand side by side in few launches.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from fusewright.frontends.torch.calls import (
    device_of,
    hint,
    is_getitem,
    is_host_scalar,
    is_view,
    reduces,
    refusal,
    tensors_of,
    whole,
)
from fusewright.frontends.torch.control_calls import ControlFlow
from fusewright.frontends.torch.effects import predecessors
from fusewright.frontends.torch.host_scalars import host_scalars
from fusewright.frontends.torch.library import aten
from fusewright.frontends.torch.options import Options
from fusewright.frontends.torch.plain_writes import SCATTERS
from fusewright.frontends.torch.product_choice import left_products
from fusewright.frontends.torch.table import CREATIONS, ELEMENTWISE, OWN

_KEPT = 3  # bytes that may be kept alive per byte that is not stored
_SMALL = 1 << 16
"""Bytes of a small result: a GPU moves more than ten times as many in the 2 us of a launch, and
they do not count as memory that is kept."""

_LAUNCH = 10 * _SMALL
"""Bytes that a GPU moves in the time of a launch, at least."""

_UPDATES = 16
"""Components that update arguments in one region: so many steps of AdamW fill a kernel
(`programs.join_launches`)."""


@dataclass(frozen=True, slots=True)
class GraphPartition:
    """Regions, each a list of nodes in order; constants, which every region that reads them makes
    for itself; and why every other operator call is in no region."""

    regions: tuple[tuple[Any, ...], ...]
    constants: Mapping[Any, None]
    reasons: Mapping[Any, str]


def partition(graph: Any, options: Options) -> GraphPartition:
    """The regions of a graph whose nodes carry example values. Regions with fewer than
    `options.min_ops`
    operators that compute something are left to torch."""
    nodes = list(graph.nodes)
    known: dict[Hashable, str | None] = {}
    reasons = {n: r for n in nodes if (r := refusal(n, known)) is not None}
    reasons |= left_products(nodes, reasons, options)
    constants = _constants(nodes, reasons)
    before = predecessors(graph)
    depth = _depths([n for n in nodes if n not in constants], before, reasons)
    level = {n: d for n, d in depth.items() if n not in reasons}
    _sink(nodes, before, depth, level)
    regions: list[tuple[Any, ...]] = []
    found = _small_ones_joined(_components(nodes, level), level, constants, options.min_ops)
    for members in _siblings_joined(found, level, constants):
        launches = _computing(members) + _reductions(members) + _own_constants(members, constants)
        launches += _crossings(members)
        if launches < options.min_ops and not _has_own(members):
            reasons |= dict.fromkeys(members, "alone: torch's own kernel moves the same bytes")
        elif not _pays_for_scalars(members, constants, launches):
            reasons |= dict.fromkeys(members, "the host's scalars would be launches of their own")
        else:
            regions.append(_without_first_views(members))
    calls = {n: r for n, r in reasons.items() if n.op == "call_function"}
    return GraphPartition(tuple(regions), constants, calls)


def _constants(nodes: Sequence[Any], refused: Mapping[Any, str]) -> dict[Any, None]:
    """The nodes that make a tensor from numbers alone, with a few operations an element."""
    found: dict[Any, None] = {}
    for n in nodes:
        read = [p for p in n.all_input_nodes if any(True for _ in tensors_of(p.meta.get("val")))]
        cheap = n.target in CREATIONS or n.target in ELEMENTWISE or is_view(n)
        if n not in refused and cheap and all(p in found for p in read):
            found[n] = None
    return found


def _depths(
    nodes: Sequence[Any], before: Mapping[Any, Sequence[Any]], refused: Mapping[Any, str]
) -> dict[Any, int]:
    """The greatest number of changes between fused and other nodes, and between devices, on a way
    to each node."""
    depth: dict[Any, int] = {}
    for n in nodes:
        place = n not in refused and device_of(n)
        known = (p for p in before[n] if p in depth)
        changes = (depth[p] + ((p not in refused and device_of(p)) != place) for p in known)
        depth[n] = max(changes, default=0)
    return depth


# --- sinking ------------------------------------------------------------------------------------


def _sink(
    nodes: Sequence[Any],
    before: Mapping[Any, Sequence[Any]],
    depth: Mapping[Any, int],
    level: dict[Any, int],
) -> None:
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
        if any(device_of(u) != device_of(n) for u in users):
            continue
        target = min(level[u] for u in users)
        if target > level[n] and not is_getitem(n) and _is_cheaper_late(n, target, depth, level):
            level[n] = target


def _is_cheaper_late(
    node: Any, target: int, depth: Mapping[Any, int], level: Mapping[Any, int]
) -> bool:
    """Whether no more has to be stored for a later region than the node's result, and not much more
    has to be kept that nobody else reads then. A few bytes cost nothing: what is subtracted from
    all of an image is as many numbers as it has channels."""
    read = node.all_input_nodes
    stored = sum(nbytes(p.meta.get("val")) for p in read if whole(p) in level and _is_large(p))
    kept = sum(nbytes(p.meta.get("val")) for p in read if not _is_alive(p, node, target, depth))
    own = nbytes(node.meta["val"])
    return stored <= own and kept <= _KEPT * own


def _is_alive(tensor: Any, node: Any, target: int, depth: Mapping[Any, int]) -> bool:
    """Whether something else reads the tensor's memory just before a level, or later."""
    waiting = list(whole(tensor).users)
    while waiting:
        u = waiting.pop()
        if u is node:
            continue
        if is_view(u):
            waiting += u.users
        elif u.op == "output" or depth.get(u, 0) >= target - 1:
            return True
    return False


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


@dataclass(slots=True)
class _Siblings:
    """Nodes that are computed together, and the bytes of each tensor that they read."""

    members: list[Any]
    read: dict[Any, int]

    def shared(self, read: Mapping[Any, int]) -> int:
        """The bytes that others read, too."""
        return sum(size for p, size in read.items() if p in self.read)


def _siblings_joined(
    found: Iterable[tuple[Any, ...]], level: Mapping[Any, int], constants: Mapping[Any, None]
) -> list[tuple[Any, ...]]:
    """The components, those of a level as one of which one reads little but what the other reads,
    too, such as the gradients of a norm's argument and of its weight. The first one is computed
    later then, so that what it reads alone, and is kept, must not be much more than they share."""
    groups: list[_Siblings] = []
    reading: dict[Hashable, dict[int, _Siblings]] = {}
    for members in found:
        read = _read(members, constants)
        where = level[members[0]], device_of(members[0])
        places = [(where, p) for p in read]
        near = {k: g for place in places for k, g in reading.get(place, {}).items()}
        at = next((k for k, g in near.items() if _is_sibling(g, members, read)), len(groups))
        if at == len(groups):
            groups.append(_Siblings([], {}))
        own = groups[at]
        own.members += members
        own.read |= read
        for place in places:
            reading.setdefault(place, {})[at] = own
    return [tuple(g.members) for g in groups]


def _read(members: Sequence[Any], constants: Mapping[Any, None]) -> dict[Any, int]:
    """The bytes of the tensors that nodes read of others. Another view of all of a tensor is that
    tensor."""
    inside = dict.fromkeys(members)
    found: dict[Any, int] = {}
    for p in dict.fromkeys(p for n in members for p in n.all_input_nodes):
        size = nbytes(p.meta.get("val"))
        if p in inside or p in constants or not size:
            continue
        base = whole(p)
        found[base if nbytes(base.meta.get("val")) == size else p] = size
    return found


def _is_sibling(group: _Siblings, members: Sequence[Any], read: Mapping[Any, int]) -> bool:
    """Whether nodes, which read so many bytes of each tensor, are computed with a group."""
    shared = group.shared(read)
    known = sum(group.read.values())
    is_close = 2 * shared >= min(known, sum(read.values()))
    both_compute = _computing(members) > 0 and _computing(group.members) > 0
    return both_compute and is_close and known - shared <= _KEPT * shared


def _computing(members: Sequence[Any]) -> int:
    """How many of the nodes compute something."""
    return sum(1 for n in members if not is_view(n) and not is_getitem(n))


def _own_constants(members: Sequence[Any], constants: Mapping[Any, None]) -> int:
    """How many tensors torch would make of numbers alone for these nodes, and for no others, each
    by a kernel of its own: the zero of `where(mask, 0, x)` is a number in a kernel of ours."""
    inside = dict.fromkeys(members)
    waiting = [p for n in members for p in n.all_input_nodes]
    found = 0
    while waiting:
        p = waiting.pop()
        if p in constants and p not in inside and all(u in inside for u in p.users):
            inside[p] = None
            waiting += p.all_input_nodes
            found += not is_view(p)
    return found


def _pays_for_scalars(members: Sequence[Any], constants: Mapping[Any, None], launches: int) -> bool:
    """Whether as many launches of torch's, of which one is left, and the bytes between them, cost
    at least what it does to bring the host's scalars to the device, each by a launch."""
    scalars = len({s for _, s in host_scalars(members, constants)})
    inside = dict.fromkeys(members)
    between = (n for n in members if not is_view(n) and all(u in inside for u in n.users))
    saved = 2 * sum(nbytes(n.meta.get("val")) for n in between)
    return saved + (launches - 1 - scalars) * _LAUNCH >= 0


def _has_own(members: Sequence[Any]) -> bool:
    """Whether torch would compute one of the nodes in several kernels, or call graphs."""
    return any(n.target in OWN or isinstance(n.target, ControlFlow) for n in members)


def _reductions(members: Sequence[Any]) -> int:
    """How many of the nodes reduce more than a few bytes. Each is worth a region of its own, where
    torch's elementwise kernels are at the speed of memory: of a layer norm of rows of 96 to 768
    bfloat16 torch's kernel takes 7 times as long as the bytes, its sums of columns 2 to 4 times
    (ConvNeXt, one H200, 2026-11-25, bench/zoo-2026-11-25-h200.json)."""
    computing = [n for n in members if not is_view(n) and not is_getitem(n)]
    return sum(
        1
        for n in computing
        if not _is_simple(n) and any(map(_is_large, n.all_input_nodes)) and reduces(n)
    )


def _crossings(members: Sequence[Any]) -> int:
    """How many of the nodes compute element by element of large values that are fast along other
    axes than each other or the result: torch's kernel walks as one of them lies, and asks for a
    sector for each element of the others."""
    return sum(1 for n in members if n.target in ELEMENTWISE and len(_fast_axes(n)) > 1)


def _fast_axes(node: Any) -> set[int]:
    """Along which axes of its result the large values that a node reads and makes are fast, those
    that vary along all axes."""
    shape = list(map(hint, node.meta["val"].shape))
    long = [a for a, n in enumerate(shape) if n > 1]
    found: set[int] = set()
    for v in (node, *node.all_input_nodes) if long else ():
        value = v.meta.get("val")
        if _is_large(v) and hasattr(value, "stride") and list(map(hint, value.shape)) == shape:
            strides = list(map(hint, value.stride()))
            if all(strides[a] for a in long):
                found.add(min(long, key=lambda a: strides[a]))
    return found


def _is_large(node: Any) -> bool:
    return nbytes(node.meta.get("val")) > _SMALL


def _small_ones_joined(
    found: Iterable[tuple[Any, ...]],
    level: Mapping[Any, int],
    constants: Mapping[Any, None],
    least: int,
) -> list[tuple[Any, ...]]:
    """The components, some of those of a level and device as one: no way leads from one to another
    but by a change of the level. Those that are too few operators for a region, and small, are
    joined; and, by so many, those that update arguments, such as an optimiser's step."""
    joined: dict[Hashable, list[Any]] = {}
    updates: dict[Hashable, int] = {}
    for members in found:
        own = _computing(members)
        place = level[members[0]], device_of(members[0])
        if own and _is_update(members, constants):
            number = updates[place] = updates.get(place, -1) + 1
            joined.setdefault((*place, number // _UPDATES), []).extend(members)
        elif 0 < own < least and all(map(_is_small, members)):
            joined.setdefault(place, []).extend(members)
        else:
            joined[members[0]] = list(members)
    return [tuple(members) for members in joined.values()]


def _is_update(members: Sequence[Any], constants: Mapping[Any, None]) -> bool:
    """Whether operators compute element by element of arguments of the graph, and of scalars of the
    host, what only becomes an argument or a result of it: nothing is kept longer when others are
    computed with them."""
    inside = dict.fromkeys(members)
    for n in members:
        read = (p for p in n.all_input_nodes if p not in inside and p not in constants)
        known = (whole(p).op == "placeholder" or is_host_scalar(p.meta.get("val")) for p in read)
        if not _is_simple(n) or not all(known):
            return False
        if any(u not in inside and not _is_last(u) for u in n.users):
            return False
    return True


def _is_last(node: Any) -> bool:
    """Whether a node is the output, or a copy into an argument."""
    return node.op == "output" or (node.target is aten.copy_.default and not node.users)


def _is_simple(node: Any) -> bool:
    """Whether a node computes element by element, reads no elements, or is a view."""
    known = node.target in ELEMENTWISE or node.target in CREATIONS
    return known or is_view(node) or is_getitem(node)


def _is_small(node: Any) -> bool:
    """Whether a node's result, and what it is made of, are a few bytes, element by element."""
    read = max((nbytes(p.meta.get("val")) for p in node.all_input_nodes), default=0)
    return _is_simple(node) and max(read, nbytes(node.meta["val"])) <= _SMALL


def _without_first_views(members: Sequence[Any]) -> tuple[Any, ...]:
    """The nodes without views of what the region reads: torch makes them without a kernel, and the
    region's kernels read through their strides."""
    inside = dict.fromkeys(members)
    for n in members:
        is_first = is_view(n) and not any(p in inside for p in n.all_input_nodes)
        if is_first and _reads_well(n) and not _is_written(n):
            del inside[n]
    return tuple(inside)


def _is_written(view: Any) -> bool:
    """Whether a view is what a scatter changes: what it shows of an argument may stay there."""
    return any(u.target in SCATTERS and u.args[0] is view for u in view.users)


def _reads_well(view: Any) -> bool:
    """Whether neighbours along the last axis are neighbours in memory, and nothing is repeated."""
    for t in tensors_of(view.meta["val"]):
        sizes, strides = list(map(hint, t.shape)), list(map(hint, t.stride()))
        if any(s == 0 for n, s in zip(sizes, strides, strict=True) if n > 1):
            return False
        if sizes and sizes[-1] > 1 and strides[-1] != 1:
            return False
    return True
