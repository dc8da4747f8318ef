"""The graph of a host program: edges that others imply dropped, and its longest path."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.host.ir import Edge


def reduce_edges(edges: Sequence[Edge], count: int) -> tuple[Edge, ...]:
    """The edges that no chain of others implies. Launches run in the order of their numbers.

    One pass with bit sets of ancestors: the latest producer first, any producer that an accepted
    one already waits for is implied.
    """
    into = by_consumer(edges, count)
    ancestors = [0] * count
    kept: list[Edge] = []
    for c in range(count):
        reached = 0
        chosen: list[Edge] = []
        for e in sorted(into[c], key=lambda e: -e.producer):
            if not reached >> e.producer & 1:
                chosen.append(e)
                reached |= ancestors[e.producer] | 1 << e.producer
        ancestors[c] = reached
        kept += reversed(chosen)
    return tuple(kept)


def by_consumer(edges: Sequence[Edge], count: int) -> list[list[Edge]]:
    """The edges into each launch."""
    into: list[list[Edge]] = [[] for _ in range(count)]
    for e in edges:
        into[e.consumer].append(e)
    return into


def ancestors(edges: Sequence[Edge], count: int) -> list[int]:
    """For each launch the set, as bits, of launches that surely end before it starts."""
    into = by_consumer(edges, count)
    reached = [0] * count
    for c in range(count):
        for e in into[c]:
            reached[c] |= reached[e.producer] | 1 << e.producer
    return reached


def critical_path(edges: Sequence[Edge], count: int) -> int:
    """The launches on the longest chain."""
    into = by_consumer(edges, count)
    depth = [1] * count
    for c in range(count):
        depth[c] += max((depth[e.producer] for e in into[c]), default=0)
    return max(depth, default=0)
