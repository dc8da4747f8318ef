"""Which launches must wait for which, from what they bind. Exact where bytes can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fusewright.host.accesses import Accesses, Bound, bound, overlaps
from fusewright.host.ir import Binding, Edge, EdgeKind, HostLaunch


def hazards(launches: Sequence[HostLaunch]) -> tuple[Edge, ...]:
    """The edges that the bindings require, in order of consumer; one per pair, the strongest kind.

    Per root the accesses that no later total write has covered are kept; a launch is compared with
    those only, because whoever covered an access already waits for it.
    """
    edges: list[Edge] = []
    for found in binding_hazards(launches):
        strongest: dict[int, Edge] = {}
        for edge in (e for edges_of in found for e in edges_of):
            known = strongest.get(edge.producer)
            if known is None or _RANK[edge.kind] < _RANK[known.kind]:
                strongest[edge.producer] = edge
        edges += [strongest[p] for p in sorted(strongest)]
    return tuple(edges)


def binding_hazards(launches: Sequence[HostLaunch]) -> Iterator[list[list[Edge]]]:
    """For each launch, for each of its bindings, the edges that this one requires. A binding has
    some if and only if it meets an access of any launch before."""
    written = {b.root for x in launches for b in x.bindings if b.access.writes}
    live = {r: Accesses() for r in written}
    for c, launch in enumerate(launches):
        touched = [bound(c, b) for b in launch.bindings if b.root in written]
        found = {
            id(b.binding): [e for p in live[b.binding.root].near(b) if (e := _edge(p, b))]
            for b in touched
        }
        yield [found.get(id(b), []) for b in launch.bindings]
        for b in touched:
            live[b.binding.root].cover(b)
            live[b.binding.root].add(b)


_RANK = {k: i for i, k in enumerate(EdgeKind)}


def _edge(p: Bound, c: Bound) -> Edge | None:
    a, b = p.binding, c.binding
    if not (a.access.writes or b.access.writes):
        return None
    overlap = overlaps(p, c)
    if overlap is False:
        return None
    where = f"{a.tensor} and {b.tensor} in {a.root}" if a.tensor != b.tensor else a.tensor
    if overlap is None:
        return Edge(p.launch, c.launch, EdgeKind.MAYBE, f"{where}: {a} may overlap {b}")
    unsure = next((x for x in (a, b) if x.anywhere), None)
    if unsure is not None and a.memory is b.memory and (b if unsure is a else a).box is not None:
        why = f"{where}: the device decides where {unsure.tensor} lies in {unsure}"
        return Edge(p.launch, c.launch, EdgeKind.MAYBE, why)
    return Edge(p.launch, c.launch, _kind(a, b), where)


def _kind(a: Binding, b: Binding) -> EdgeKind:
    if a.memory is not b.memory:
        return EdgeKind.REUSE
    if a.access.writes and b.access.reads:
        return EdgeKind.RAW
    return EdgeKind.WAW if a.access.writes else EdgeKind.WAR
