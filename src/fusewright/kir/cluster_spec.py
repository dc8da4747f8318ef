"""Checks of clusters: the header, what blocks bring each other, cluster barriers; `kir/spec.py`
lists all checks.

A cluster barrier is an arrival and the next wait of the same body, so that no path passes one
without the other and no two are under way at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusewright.core.expr import constant_value
from fusewright.kir.analysis.uniformity import is_cluster_agreed, is_cluster_uniform
from fusewright.kir.checks import Check, KernelFacts, Problem
from fusewright.kir.clusters import exported_buffers, unpaired_in
from fusewright.kir.ir import Alloc, ClusterArrive, For, Memory
from fusewright.kir.traits import Act, Team
from fusewright.kir.traverse import walk_statements
from fusewright.target import MAX_CLUSTER, WARP_SIZE, Feature


def _header(facts: KernelFacts) -> Iterator[Problem]:
    k = facts.kernel
    if not k.cluster:
        return
    if [d.var.name for d in k.cluster] != ["cx"]:
        yield None, f"the cluster has {len(k.cluster)} dimensions; it has one, which is cx"
        return
    size = constant_value(k.cluster[0].extent)
    if size is None or not 2 <= size <= MAX_CLUSTER:
        extent = k.cluster[0].extent
        yield None, f"the cluster extent {extent} is not a constant from 2 to {MAX_CLUSTER}"
        return
    if facts.target is not None and size > facts.target.max_cluster:
        limit = facts.target.max_cluster
        yield None, f"clusters of {size} blocks; {facts.target} has clusters of {limit}"
    if k.nthreads % WARP_SIZE:
        yield None, f"{k.nthreads} threads a block; the blocks of a cluster have whole warps"


def _statements(facts: KernelFacts) -> Iterator[Problem]:
    for place in facts.acting:
        s = place.statement
        if not facts.kernel.cluster and s.feature() is Feature.CLUSTER:
            yield s, "the kernel has no cluster; give it one: cluster (cx < 2)"
        if place.role is not None and s.executed_by() is Team.CLUSTER:
            yield s, "all threads of the cluster meet, but a role has only some warps"


def _exchanges(facts: KernelFacts) -> Iterator[Problem]:
    """What mbarriers of other blocks count all blocks do alike: each knows by its own part how
    much the others bring, and when."""
    k = facts.kernel
    for place in facts.acting:
        s, use = place.statement, place.statement.mbarrier_use()
        if use is None or not k.cluster or (use.blocks == 1 and use.rank is None):
            continue
        if use.blocks not in (1, k.cluster_size):
            yield s, f"it goes to {use.blocks} blocks of a cluster of {k.cluster_size}; to all or 1"
        if use.rank is not None and use.act is Act.DELIVER:
            continue
        for e in (*place.conditions, *use.steers):
            if not is_cluster_agreed(e, k):
                yield s, f"blocks of a cluster do this for each other, but may disagree on '{e}'"


def _counted(facts: KernelFacts) -> Iterator[Problem]:
    """Who stores for another block never learns that an mbarrier there has counted it: nothing
    else may write the place."""
    stores = [
        (p.statement, u)
        for p in facts.acting
        for u in p.statement.memory_uses()
        if u.rank is not None and u.writes
    ]
    counted = {u.buffer for _, u in stores if u.completes.by_mbarrier}
    for s, u in stores:
        if not u.completes.by_mbarrier and u.buffer in counted:
            yield s, f"mbarriers count other stores to {u.buffer}; let one count this store too"


def _pairs(facts: KernelFacts) -> Iterator[Problem]:
    for s in unpaired_in(facts.kernel):
        if isinstance(s, ClusterArrive):
            yield s, "no wait follows in the same body before the next arrival or its end"
        else:
            yield s, "no arrival comes before it in the same body"
    for place in facts.acting:
        s = place.statement
        if not isinstance(s, For):
            continue
        if is_cluster_uniform(s.extent, facts.kernel):
            continue
        if any(t.executed_by() is Team.CLUSTER for t in walk_statements(s)):
            yield s, f"blocks of a cluster meet inside, but may run {s.extent} trips each"


def _exported(facts: KernelFacts) -> Iterator[Problem]:
    """Memory that other blocks write holds one buffer all the time: no block knows what another
    does with the bytes."""
    exported = exported_buffers(facts.kernel)
    found = [
        p.statement
        for p in facts.places
        if isinstance(p.statement, Alloc) and p.statement.buffer.memory is Memory.SHARED
    ]
    for a in found:
        for b in found:
            if a is not b and a.buffer in exported and _overlap(a, b):
                yield a, f"blocks of the cluster write {a.buffer}; {b.buffer} shares its bytes"


def _overlap(a: Alloc, b: Alloc) -> bool:
    if a.offset is None or b.offset is None:
        return False
    ends = [
        (constant_value(x.buffer.size) or 0) * x.buffer.dtype.nbytes + (x.offset or 0)
        for x in (a, b)
    ]
    return a.offset < ends[1] and b.offset < ends[0]


CLUSTER_CHECKS: tuple[Check, ...] = (
    Check("cluster", "lowered", _header),
    Check("cluster statements", "lowered", _statements),
    Check("exchanges of blocks", "lowered", _exchanges),
    Check("cluster barriers", "lowered", _pairs),
    Check("counted stores", "lowered", _counted),
    Check("memory that blocks share", "packed", _exported),
)
