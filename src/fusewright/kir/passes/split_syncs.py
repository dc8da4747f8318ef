"""Let threads arrive early at syncs that promotion buys, where they have work to do meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fusewright.core.expr import lower_bound
from fusewright.kir.analysis.accesses import shared_allocs
from fusewright.kir.analysis.occupancy import blocks_by_memory
from fusewright.kir.analysis.order import gap_position
from fusewright.kir.analysis.ownership import shared_nbytes
from fusewright.kir.analysis.sites import LoopScope
from fusewright.kir.analysis.split_barriers import run_number
from fusewright.kir.ir import (
    Alloc,
    Body,
    For,
    If,
    Kernel,
    Memory,
    Statement,
    SyncStatement,
)
from fusewright.kir.passes.pack_shared import packing_of
from fusewright.kir.passes.place_syncs import place_syncs
from fusewright.kir.sync_placement import Placement, insert_syncs
from fusewright.kir.traverse import walk_statements
from fusewright.target import WARP_SIZE, Target

LEAST_OPERATIONS = 64
"""Operations of a thread that hide a barrier: an arrival and a wait take some tens of cycles more
than a barrier of all threads, which itself takes as many when all come at once."""


def split_syncs(
    kernel: Kernel,
    target: Target,
    bought: Sequence[Placement],
    arrivals: Mapping[Placement, Sequence[int]],
) -> list[Placement]:
    """The syncs to insert, where it pays as split barriers: with a global load or enough other work
    between the arrival and the wait, as many blocks on a multiprocessor, bytes still saved, and no
    further sync outside of loops for the start of the mbarrier.

    `arrivals` lists, for each sync, the statements of its body before which threads may arrive.
    """
    chosen = list(bought)
    if not target.has_bulk or kernel.cluster or kernel.nthreads <= WARP_SIZE:
        return chosen
    for i, p in enumerate(bought):
        if run_number(p.point.scopes) is None:
            continue
        body = _body_around(p, kernel)
        early = [a for a in arrivals[p] if _hides_a_barrier(body[a : p.index])]
        offers = [_arriving(p, a) for a in early]
        sizes = {o: _nbytes(kernel, [*chosen[:i], o, *chosen[i + 1 :]]) for o in offers}
        if not offers:
            continue
        best = min(offers, key=lambda o: sizes[o])
        changed = [*chosen[:i], best, *chosen[i + 1 :]]
        without = _nbytes(kernel, [*chosen[:i], *chosen[i + 1 :]])
        n = kernel.nthreads
        blocks = blocks_by_memory(target, n, _nbytes(kernel, chosen))
        is_as_good = blocks_by_memory(target, n, sizes[best]) == blocks and sizes[best] < without
        if is_as_good and _starts_in_time(kernel, target, changed, best):
            chosen = changed
    return chosen


def _body_around(p: Placement, kernel: Kernel) -> Body:
    """The body a sync is to stand in, which only loops are around."""
    scope = p.point.scopes[-1] if p.point.scopes else None
    return scope.node.body if isinstance(scope, LoopScope) else kernel.body


def _arriving(p: Placement, index: int) -> Placement:
    """The sync with its arrival before statement `index` of its body."""
    return replace(p, point=replace(p.point, since=gap_position(p.body, index)))


def _starts_in_time(
    kernel: Kernel, target: Target, chosen: Sequence[Placement], new: Placement
) -> bool:
    """Whether syncs that are there order the start of the mbarrier before the first arrival, or a
    loop around makes up for one more."""
    if any(isinstance(s, LoopScope) and s.trips != 1 for s in new.point.scopes):
        return True
    inserted = insert_syncs(kernel, chosen)
    return place_syncs(inserted, target) is inserted


def _nbytes(kernel: Kernel, chosen: Sequence[Placement]) -> int:
    """Bytes of shared memory with these syncs, mbarriers included."""
    k = insert_syncs(kernel, chosen)
    offsets = packing_of(k)
    return max(offsets[a.buffer] + shared_nbytes(a.buffer) for _, a in shared_allocs(k))


# --- what lies between --------------------------------------------------------------------------


def _hides_a_barrier(body: Body) -> bool:
    """Whether the statements wait for global memory, or take a while."""
    inside = (x for s in body for x in (s, *walk_statements(s)))
    uses = (u for s in inside for u in s.memory_uses())
    loads = any(not u.writes and u.buffer.memory is Memory.GLOBAL for u in uses)
    return loads or sum(map(_operations, body)) >= LEAST_OPERATIONS


def _operations(s: Statement) -> int:
    """What every thread certainly executes."""
    match s:
        case For():
            return (lower_bound(s.extent) or 0) * sum(map(_operations, s.body))
        case If():
            return min(sum(map(_operations, part)) for part in (s.then, s.otherwise))
        case Alloc() | SyncStatement():
            return 0
        case _:
            return 1
