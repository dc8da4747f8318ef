"""What the blocks of a cluster share: the buffers they write for each other, their barriers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from fusewright.kir.ir import Body, Buffer, ClusterArrive, ClusterWait, Kernel, RemoteStore
from fusewright.kir.traverse import (
    acting_statements,
    bodies_of,
    body_fields,
    statements_of,
    walk_statements,
)

KEPT = 4
"""Kernels of which is kept what was found: several passes ask in turn."""


@lru_cache(maxsize=KEPT)
def exported_buffers(kernel: Kernel) -> tuple[Buffer, ...]:
    """The shared buffers that other blocks of the cluster write, and the mbarriers that count what
    they write, in textual order of the stores."""
    uses = (u for s in acting_statements(kernel) for u in s.memory_uses())
    return tuple(dict.fromkeys(u.buffer for u in uses if u.rank is not None))


@lru_cache(maxsize=KEPT)
def counters_of_stores(kernel: Kernel) -> frozenset[Buffer]:
    """The mbarriers that count what threads of other blocks store."""
    stores = statements_of(kernel, RemoteStore)
    return frozenset(s.barrier for s in stores if s.barrier is not None)


@lru_cache(maxsize=KEPT)
def cluster_barriers(kernel: Kernel) -> tuple[tuple[ClusterArrive, ClusterWait], ...]:
    """Each arrival with the wait that follows it in the same body."""
    if not statements_of(kernel, ClusterArrive, ClusterWait):
        return ()
    return tuple(
        (a, b)
        for owner in (kernel, *walk_statements(kernel))
        for body in bodies_of(owner)
        for a, b in _neighbours(body)
        if isinstance(a, ClusterArrive) and isinstance(b, ClusterWait)
    )


def unpaired_in(kernel: Kernel) -> Iterator[ClusterArrive | ClusterWait]:
    """The arrivals and waits that belong to no barrier."""
    paired = {s for pair in cluster_barriers(kernel) for s in pair}
    for s in statements_of(kernel, ClusterArrive, ClusterWait):
        if s not in paired:
            yield s


def _neighbours(body: Body) -> Iterator[tuple[ClusterArrive | ClusterWait, ...]]:
    """The arrivals and waits of a body two by two, as they follow each other; a statement that
    holds others between them stands for what it holds."""
    found: list[ClusterArrive | ClusterWait | None] = []
    for s in body:
        if isinstance(s, ClusterArrive | ClusterWait):
            found.append(s)
        elif body_fields(type(s)) and any(
            isinstance(t, ClusterArrive | ClusterWait) for t in walk_statements(s)
        ):
            found.append(None)
    for a, b in pairwise(found):
        if a is not None and b is not None:
            yield a, b
