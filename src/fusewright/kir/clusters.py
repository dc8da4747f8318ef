"""What the blocks of a cluster share: the buffers they write for each other, their barriers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from fusewright.core.node import Node
from fusewright.kir.ir import Body, Buffer, ClusterArrive, ClusterWait, Kernel, RemoteStore
from fusewright.kir.traverse import body_fields, walk_statements


def exported_buffers(kernel: Kernel) -> tuple[Buffer, ...]:
    """The shared buffers that other blocks of the cluster write, and the mbarriers that count what
    they write, in textual order of the stores."""
    stores = [s for s in walk_statements(kernel) if isinstance(s, RemoteStore)]
    found = (b for s in stores for b in (s.dst, s.barrier) if b is not None)
    return tuple(dict.fromkeys(found))


def cluster_barriers(kernel: Kernel) -> tuple[tuple[ClusterArrive, ClusterWait], ...]:
    """Each arrival with the wait that follows it in the same body."""
    return tuple(
        (a, b)
        for body in _bodies(kernel)
        for a, b in _neighbours(body)
        if isinstance(a, ClusterArrive) and isinstance(b, ClusterWait)
    )


def unpaired_in(kernel: Kernel) -> Iterator[ClusterArrive | ClusterWait]:
    """The arrivals and waits that belong to no barrier."""
    paired = {s for pair in cluster_barriers(kernel) for s in pair}
    for s in walk_statements(kernel):
        if isinstance(s, ClusterArrive | ClusterWait) and s not in paired:
            yield s


def _bodies(node: Node) -> Iterator[Body]:
    for owner in (node, *walk_statements(node)):
        for name in body_fields(type(owner)):
            yield getattr(owner, name)


def _neighbours(body: Body) -> Iterator[tuple[ClusterArrive | ClusterWait, ...]]:
    """The arrivals and waits of a body two by two, as they follow each other; a statement that
    holds others between them stands for what it holds."""
    found: list[ClusterArrive | ClusterWait | None] = []
    for s in body:
        if isinstance(s, ClusterArrive | ClusterWait):
            found.append(s)
        elif any(isinstance(t, ClusterArrive | ClusterWait) for t in walk_statements(s)):
            found.append(None)
    for a, b in pairwise(found):
        if a is not None and b is not None:
            yield a, b
