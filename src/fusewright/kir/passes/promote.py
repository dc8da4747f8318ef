"""Buy syncs that let shared memory be reused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.kir.analysis.accesses import Access, accesses, shared_allocs
from fusewright.kir.analysis.liveness import Interval, intervals_of
from fusewright.kir.analysis.occupancy import blocks_by_memory
from fusewright.kir.analysis.order import (
    SyncPoint,
    SyncScope,
    gap_position,
    sync_at,
    sync_points,
)
from fusewright.kir.analysis.ownership import shared_nbytes
from fusewright.kir.analysis.sites import (
    BranchScope,
    LoopScope,
    Path,
    RoleScope,
    Scope,
    contains,
)
from fusewright.kir.analysis.uniformity import is_block_uniform
from fusewright.kir.clusters import exported_buffers
from fusewright.kir.ir import Buffer, Kernel
from fusewright.kir.passes.pack_shared import packing_of
from fusewright.kir.passes.place_syncs import place_syncs
from fusewright.kir.passes.split_syncs import split_syncs
from fusewright.kir.sync_placement import Placement, insert_syncs
from fusewright.target import Target


def promote(kernel: Kernel, target: Target) -> Kernel:
    """Free shared buffers early: where `Alloc.promote` asks, and where it buys occupancy.

    A buffer is freed by a block-wide sync between its last access and the next first write to
    another one. A sync that stands there is used, a new one serves all buffers free at that
    point, and none is bought that saves no bytes. Unasked, syncs are bought when without them the
    kernel does not fit, or when they raise the number of blocks a multiprocessor holds. Where
    loads or enough work lie in between, threads arrive at an mbarrier behind the last access and
    wait before the first write.

    rewrite:  b = a[t+1];  c[t] = d   ->   b = a[t+1];  BlockSync;  c[t] = d
              b = a[t+1];  d = x[t];  c[t] = d
                  ->   b = a[t+1];  MbarArrive;  d = x[t];  MbarWait;  c[t] = d
    checks:   none: where no later buffer is written there is nothing to free for
    order:    after place_syncs (uses its syncs), before pack_shared (packs under these)
    """
    bought, gaps = _bought(kernel, target)
    arrivals = {p: sorted({g.first for g in gaps if _lies_in(p.point, g)}) for p in bought}
    chosen = split_syncs(kernel, target, bought, arrivals)
    inserted = insert_syncs(kernel, chosen)
    is_split = any(p.point.since != p.point.position for p in chosen)
    return place_syncs(inserted, target) if is_split else inserted


def promote_whole(kernel: Kernel, target: Target) -> Kernel:
    """`promote` with syncs at which all threads meet only."""
    return insert_syncs(kernel, _bought(kernel, target)[0])


def _bought(kernel: Kernel, target: Target) -> tuple[list[Placement], list[_Gap]]:
    """The syncs to buy, and the stretches in which some sync frees a buffer."""
    exported = exported_buffers(kernel)
    allocs = [a for a in shared_allocs(kernel) if a[1].buffer not in exported]
    if len(allocs) < 2:
        return [], []
    found = [a for a in accesses(kernel) if any(a.buffer is x.buffer for _, x in allocs)]
    gaps = _gaps(kernel, found)
    present = [p for _, p in sync_points(kernel) if p.scope.covers(SyncScope.BLOCK)]
    asked = {x.buffer for _, x in allocs if x.promote}
    wanted = [g for g in gaps if g.buffer in asked and not any(_lies_in(p, g) for p in present)]
    bought = _saving(kernel, _stab(wanted))
    rest = [g for g in gaps if g.buffer not in asked]
    points = [*present, *(b.point for b in bought)]
    rest = [g for g in rest if not any(_lies_in(p, g) for p in points)]
    bought += _worth_buying(kernel, target, bought, _stab(rest))
    return bought, gaps


@dataclass(frozen=True, slots=True, eq=False)
class _Gap:
    """The stretch in which a sync frees `buffer`: before statements `first .. last` of the body
    at `body`; `reader` is its last access, `writer` the buffer written next."""

    buffer: Buffer
    writer: Buffer
    reader: Path
    body: Path
    scopes: tuple[Scope, ...]
    first: int
    last: int


def _gaps(kernel: Kernel, found: Sequence[Access]) -> list[_Gap]:
    lives = [i for i in intervals_of(kernel, found) if i.first is not None]
    gaps = (_gap(kernel, life, lives, found) for life in lives)
    return [g for g in gaps if g is not None]


def _gap(
    kernel: Kernel, life: Interval, lives: Sequence[Interval], found: Sequence[Access]
) -> _Gap | None:
    """The gap after a buffer's last access, in the innermost body where another buffer's first
    write follows all its accesses and its contents do not go around the loop."""
    mine = [a for a in found if a.buffer is life.buffer]
    scopes = mine[0].site.scopes
    for a in mine:
        scopes = tuple(x for x, y in zip(scopes, a.site.scopes, strict=False) if x.path == y.path)
    for depth in range(len(scopes), -1, -1):
        around = scopes[:depth]
        body = around[-1].path if around else ()
        if not all(_can_hold_sync(s, kernel) for s in around):
            continue
        if around and isinstance(around[-1], LoopScope) and _goes_around(life, body, found):
            continue
        end = max(a.site.path[len(body)] for a in mine)
        nearest = _next_first_write(life, lives, body, end)
        last = max(a.site.path for a in mine)
        if nearest is not None:
            writer, index = nearest
            return _Gap(life.buffer, writer, last, body, around, end + 1, index)
        if around and isinstance(around[-1], LoopScope):
            writer = _first_writer(life, lives, body)
            if writer is not None:
                size = len(around[-1].node.body)
                return _Gap(life.buffer, writer, last, body, around, end + 1, size)
    return None


def _can_hold_sync(scope: Scope, kernel: Kernel) -> bool:
    """Whether all threads of the block can meet inside the scope."""
    match scope:
        case LoopScope():
            return True
        case BranchScope():
            return is_block_uniform(scope.node.condition, kernel)
        case RoleScope():
            return False


def _goes_around(life: Interval, body: Path, found: Sequence[Access]) -> bool:
    """Whether the contents are needed at the end of an iteration of the loop at `body`."""
    inside = [a.site.path for a in found if contains(body, a.site.path)]
    return max(inside) in life.live_after


def _next_first_write(
    life: Interval, lives: Sequence[Interval], body: Path, end: int
) -> tuple[Buffer, int] | None:
    """The buffer first accessed next after statement `end` of the body, and by which statement."""
    later = [s for s in _starts(life, lives, body) if s[1] > end]
    return min(later, key=lambda s: s[1]) if later else None


def _first_writer(life: Interval, lives: Sequence[Interval], body: Path) -> Buffer | None:
    """The buffer first accessed in the next iteration of the loop at `body`."""
    starts = _starts(life, lives, body)
    return min(starts, key=lambda s: s[1])[0] if starts else None


def _starts(life: Interval, lives: Sequence[Interval], body: Path) -> list[tuple[Buffer, int]]:
    """The other buffers first accessed in a body, and by which of its statements."""
    return [
        (other.buffer, other.first[len(body)])
        for other in lives
        if other.first is not None and other is not life and contains(body, other.first)
    ]


def _lies_in(point: SyncPoint, gap: _Gap) -> bool:
    low, high = gap_position(gap.body, gap.first), gap_position(gap.body, gap.last)
    return len(point.position) == len(low) and low <= point.since <= point.position <= high


def _stab(gaps: Sequence[_Gap]) -> list[Placement]:
    """The fewest syncs that meet every gap, each as late as possible."""
    out: list[Placement] = []
    for g in sorted(gaps, key=lambda g: (g.body, g.last, g.first)):
        if any(_lies_in(p.point, g) for p in out):
            continue
        point = sync_at(gap_position(g.body, g.last), g.scopes, SyncScope.BLOCK)
        read = ".".join(map(str, g.reader))
        why = f"reuse smem {g.buffer}: access L{read} -> first write of {g.writer}"
        out.append(Placement(g.body, g.last, point, why))
    return out


# --- what a sync is worth -----------------------------------------------------------------------


def _saving(kernel: Kernel, asked: Sequence[Placement]) -> list[Placement]:
    """The fewest of the syncs asked for that need as few bytes as all of them together."""
    chosen = list(asked)
    best = _total_nbytes(kernel, chosen) if chosen else 0
    for p in asked:
        fewer = [q for q in chosen if q is not p]
        if _total_nbytes(kernel, fewer) <= best:
            chosen = fewer
    return chosen


def _total_nbytes(kernel: Kernel, more: Sequence[Placement]) -> int:
    """Bytes of shared memory that packing needs with the syncs `more`."""
    offsets = packing_of(kernel, [p.point for p in more])
    return max(offset + shared_nbytes(b) for b, offset in offsets.items())


def _worth_buying(
    kernel: Kernel, target: Target, bought: Sequence[Placement], offered: Sequence[Placement]
) -> list[Placement]:
    """The fewest of the offered syncs that reach the occupancy all of them together would,
    registers aside."""
    if not offered:
        return []
    buffers = [a.buffer for _, a in shared_allocs(kernel)]
    most = sum(shared_nbytes(b) + b.alignment for b in buffers)
    n = kernel.nthreads
    if blocks_by_memory(target, n, most) == blocks_by_memory(target, n, 0):
        return []

    def blocks(extra: Sequence[Placement]) -> int:
        return blocks_by_memory(target, n, _total_nbytes(kernel, [*bought, *extra]))

    chosen = list(offered)
    best = blocks(chosen)
    if best <= blocks([]):
        return []
    for p in offered:
        fewer = [q for q in chosen if q is not p]
        if blocks(fewer) == best:
            chosen = fewer
    return chosen
