"""Give every shared buffer its offset."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from fusewright.core.node import Node, rewrite
from fusewright.errors import InternalError, ScheduleError
from fusewright.kir.analysis.accesses import Access, accesses, shared_allocs
from fusewright.kir.analysis.cell_times import CellTimes, cell_times, meet
from fusewright.kir.analysis.hazards import are_exclusive, can_conflict
from fusewright.kir.analysis.lanes import Array, different
from fusewright.kir.analysis.liveness import Interval, begins_within, interferes, intervals_of
from fusewright.kir.analysis.order import (
    Hazard,
    SyncPoint,
    SyncScope,
    orders,
    position_of,
    sync_points,
)
from fusewright.kir.analysis.ownership import (
    Footprint,
    by_space,
    cell_nbytes,
    even_edges,
    footprint,
    shared_nbytes,
)
from fusewright.kir.analysis.sites import are_concurrent, common_loops
from fusewright.kir.analysis.times import timeline
from fusewright.kir.analysis.unfinished import unfinished
from fusewright.kir.clusters import exported_buffers
from fusewright.kir.ir import Alloc, Buffer, Kernel, MbarInit
from fusewright.kir.passes.packing import Item, Overlap, Rules, pack
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory
from fusewright.target import SHARED_BASE_ALIGNMENT, WARP_SIZE, Target

_MANY = -2
_NOBODY = -1
_MAX_DISTANCES = 16


def pack_shared(kernel: Kernel, target: Target) -> Kernel:
    """Place shared buffers so that they need the fewest bytes under the syncs that exist.

    Two buffers may share bytes where both of these hold:

    - No byte of one is written while it is still needed for the other. This is asked byte by byte:
      a loop that reads one buffer element by element, and writes the other behind itself, works in
      place.
    - Between every two accesses to a shared byte, a sync stands on every path, or the byte belongs
      to one thread, or to one warp and a warp sync stands there.

    A buffer that other blocks of a cluster write shares its bytes with none. Where a buffer would
    lie in bytes that a copy of an earlier iteration still writes, nothing is shared.

    rewrite:  alloc a;  alloc b   ->   alloc a @0;  alloc b @256
    checks:   alignments divide that of the base, else InternalError; what a block needs together is
              no more than it has, else ScheduleError
    order:    after place_syncs and promote, before prune_syncs (addresses make hazards)
    """
    offsets = packing_of(kernel)
    packed = with_offsets(kernel, offsets)
    if _shares_bytes(offsets) and len(unfinished(packed)) > len(unfinished(kernel)):
        packed = pack_apart(kernel, target)
    _check_room(packed, target)
    return packed


def check_each_fits(kernel: Kernel, target: Target) -> None:
    """Raises ScheduleError where one buffer alone, such as a ring of many tiles, takes more shared
    memory than a block has: before its copies are looked at one by one."""
    found = [s.buffer for s in walk_statements(kernel) if isinstance(s, Alloc)]
    shared = [b for b in found if b.memory is Memory.SHARED]
    largest = max(shared, key=shared_nbytes, default=None)
    if largest is not None and shared_nbytes(largest) > target.shared_nbytes_per_block:
        raise ScheduleError(
            f"{largest} of {kernel.name} needs {shared_nbytes(largest)} bytes of shared memory; a "
            f"block of {target} has {target.shared_nbytes_per_block}; use smaller tiles or fewer "
            "stages"
        )


def _check_room(kernel: Kernel, target: Target) -> None:
    placed = [a for _, a in shared_allocs(kernel)]
    needed = max(((a.offset or 0) + shared_nbytes(a.buffer) for a in placed), default=0)
    if needed > target.shared_nbytes_per_block:
        largest = max(placed, key=lambda a: shared_nbytes(a.buffer)).buffer
        raise ScheduleError(
            f"{kernel.name} needs {needed} bytes of shared memory; a block of {target} has "
            f"{target.shared_nbytes_per_block}; use smaller tiles or fewer stages (the largest "
            f"buffer is {largest}, of {shared_nbytes(largest)} bytes)"
        )


def _shares_bytes(offsets: dict[Buffer, int]) -> bool:
    """Whether two buffers have a byte in common."""
    ends = sorted((offset, offset + shared_nbytes(b)) for b, offset in offsets.items())
    return any(stop > start for (_, stop), (start, _) in pairwise(ends))


def packing_of(
    kernel: Kernel, more: Sequence[SyncPoint] = (), *, in_place: bool = True
) -> dict[Buffer, int]:
    """The offsets that `pack_shared` would give if the syncs `more` existed too; with `in_place`
    off buffers that are alive at once share nothing."""
    allocs = [a.buffer for _, a in shared_allocs(kernel)]
    exported = exported_buffers(kernel)
    for b in allocs:
        if SHARED_BASE_ALIGNMENT % b.alignment:
            raise InternalError(
                f"shared buffer {b} is to be aligned to {b.alignment} bytes; the base of shared "
                f"memory is aligned to {SHARED_BASE_ALIGNMENT}, a multiple of what is possible"
            )
    own = [b for b in allocs if b not in exported]
    offsets = dict.fromkeys(own, 0)
    if len(own) > 1:
        points = [*(p for _, p in sync_points(kernel)), *more]
        pairs = _Pairs(kernel, own, points, in_place=in_place)
        items = [Item(shared_nbytes(b), b.alignment) for b in own]
        rules = Rules(pairs.overlap, pairs.fits, pairs.distances)
        offsets = dict(zip(own, pack(items, rules), strict=True))
    return _with_exported(offsets, [b for b in allocs if b in exported])


def _with_exported(offsets: dict[Buffer, int], exported: Sequence[Buffer]) -> dict[Buffer, int]:
    """The offsets with further buffers behind all others, one behind the other."""
    out = dict(offsets)
    end = max((offset + shared_nbytes(b) for b, offset in offsets.items()), default=0)
    for b in exported:
        out[b] = -(-end // b.alignment) * b.alignment
        end = out[b] + shared_nbytes(b)
    return out


def pack_whole(kernel: Kernel, target: Target) -> Kernel:
    """`pack_shared` where buffers that are alive at once share no byte."""
    return with_offsets(kernel, packing_of(kernel, in_place=False))


def pack_apart(kernel: Kernel, target: Target) -> Kernel:
    """Place shared buffers side by side: what reuse is measured against."""
    return with_offsets(kernel, offsets_apart(kernel))


def offsets_apart(kernel: Kernel) -> dict[Buffer, int]:
    """The offsets of the fewest bytes in which no two buffers share any."""
    allocs = [a.buffer for _, a in shared_allocs(kernel)]
    items = [Item(shared_nbytes(b), b.alignment) for b in allocs]
    never = [[Overlap.NEVER] * len(items) for _ in items]
    rules = Rules(never, lambda i, j, d: False, lambda i, j: ())
    return dict(zip(allocs, pack(items, rules), strict=True))


def with_offsets(kernel: Kernel, offsets: dict[Buffer, int]) -> Kernel:
    """The kernel with the given byte offsets of shared buffers."""

    def place(node: Node) -> Node:
        if isinstance(node, Alloc) and node.buffer in offsets:
            offset = offsets[node.buffer]
            return node if node.offset == offset else replace(node, offset=offset)
        return node

    return rewrite(kernel, place) if offsets else kernel


# --- which pairs may overlap --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Accesses to one buffer, in textual order, that the same syncs separate from any other."""

    members: tuple[Access, ...]

    @property
    def sample(self) -> Access:
        """An access that stands for all."""
        return self.members[0]


@dataclass(frozen=True, slots=True, eq=False)
class _Need:
    """Two groups of which no block-wide sync separates any access from any: the bytes they share
    must have one owner, a thread or, where warp syncs separate them, a warp."""

    a: _Group
    b: _Group
    scope: SyncScope


class _Pairs:
    """What is known of each pair of buffers; owners of bytes are found when first asked for."""

    def __init__(
        self,
        kernel: Kernel,
        buffers: Sequence[Buffer],
        points: Sequence[SyncPoint],
        *,
        in_place: bool,
    ) -> None:
        self._in_place = in_place
        found = [a for a in accesses(kernel) if a.buffer in buffers]
        self._kernel = kernel
        self._buffers = buffers
        self._points = points
        self._allocs = [site for site, a in shared_allocs(kernel) if a.buffer in buffers]
        self._barriers = _barriers(kernel)
        self._cell = _cell_nbytes(found, buffers)
        self._found = found
        self._groups = [_groups([a for a in found if a.buffer is b], points) for b in buffers]
        self._prints: dict[Access, Footprint] = {}
        self._owned: dict[tuple[_Group, SyncScope], _Owners] = {}
        self._answers: dict[tuple[int, int, int], bool] = {}
        self._needs: dict[tuple[int, int], tuple[_Need, ...]] = {}
        self._distances: dict[tuple[int, int], Sequence[int]] = {}
        self._line = timeline(kernel)
        self._times: dict[tuple[int, int], CellTimes] = {}
        self._timed: set[tuple[int, int]] = set()
        lives = [life for life in intervals_of(kernel, found) if life.buffer in buffers]
        self.overlap = [[Overlap.FREE] * len(buffers) for _ in buffers]
        for i in range(len(buffers)):
            for j in range(i):
                kind = self._classify(i, j, lives)
                self.overlap[i][j] = self.overlap[j][i] = kind

    def _classify(self, i: int, j: int, lives: Sequence[Interval]) -> Overlap:
        if self._barriers.intersection((self._buffers[i], self._buffers[j])):
            return Overlap.NEVER
        are_alive = interferes(lives[i], lives[j], self._found)
        if are_alive and (begins_within(lives[i], lives[j]) or not self._in_place):
            return Overlap.NEVER
        pairs = [(a, b) for a in self._groups[i] for b in self._groups[j]]
        if any(are_concurrent(a.sample.site, b.sample.site) for a, b in pairs):
            return Overlap.NEVER
        needs = [n for a, b in pairs for n in self._needs_of(a, b)]
        if not needs and not are_alive:
            return Overlap.FREE
        if are_alive:
            self._timed.update({(i, j), (j, i)})
        self._needs[i, j] = tuple(needs)
        self._needs[j, i] = tuple(_Need(n.b, n.a, n.scope) for n in needs)
        return Overlap.SOMETIMES if self.distances(i, j) else Overlap.NEVER

    def _needs_of(self, a: _Group, b: _Group) -> list[_Need]:
        """What two groups need; what holds of one pair holds of all pairs in the same order."""
        if not (a.sample.writes or b.sample.writes):
            return []
        runs = _runs(a, b)
        scopes: dict[bool, SyncScope | None] = {}
        for x, y, is_first in runs:
            if is_first not in scopes:
                pair = (x.sample, y.sample) if is_first else (y.sample, x.sample)
                scopes[is_first] = self._open_scope(*pair)
        if len(set(scopes.values())) == 1:
            runs = [(a, b, runs[0][2])]
        found = ((x, y, scopes[is_first]) for x, y, is_first in runs)
        return [_Need(x, y, scope) for x, y, scope in found if scope is not None]

    def _open_scope(self, first: Access, second: Access) -> SyncScope | None:
        """Who must own a byte that both touch: nobody when syncs separate them always."""
        worst: SyncScope | None = None
        for h in _assumed_hazards(first, second, self._kernel):
            if any(orders(p, h) for p in self._points):
                continue
            if not any(orders(p, replace(h, scope=SyncScope.WARP)) for p in self._points):
                return SyncScope.BLOCK
            worst = SyncScope.WARP
        return worst

    def fits(self, i: int, j: int, distance: int) -> bool:
        """Whether buffer `j` may lie `distance` bytes after buffer `i`."""
        key = (i, j, distance)
        if key not in self._answers:
            self._answers[key] = (
                distance % self._cell == 0
                and not self._meet(i, j, distance // self._cell)
                and all(self._agree(need, distance // self._cell) for need in self._needs[i, j])
            )
        return self._answers[key]

    def _meet(self, i: int, j: int, shift: int) -> bool:
        """Whether the two, alive at once, are so in a cell that they would share."""
        if (i, j) not in self._timed:
            return False
        return meet(self._cell_times(i, j), self._cell_times(j, i), shift)

    def _cell_times(self, i: int, j: int) -> CellTimes:
        """The times of buffer `i` in an iteration of the loops that hold both allocations."""
        if (i, j) not in self._times:
            rows = [self._print(a) for g in self._groups[i] for a in g.members]
            around = [loop.path for loop in common_loops(self._allocs[i], self._allocs[j])]
            ncells = shared_nbytes(self._buffers[i]) // self._cell
            self._times[i, j] = cell_times(rows, ncells, self._line, around)
        return self._times[i, j]

    def _agree(self, need: _Need, shift: int) -> bool:
        a, b = self._owners(need.a, need.scope).whole, self._owners(need.b, need.scope).whole
        start, stop = max(0, shift), min(a.size, b.size + shift)
        if start >= stop:
            return True
        x, y = a[start:stop], b[start - shift : stop - shift]
        clash = (x != _NOBODY) & (y != _NOBODY) & ((x != y) | (x == _MANY))
        return not clash.any()

    def _owners(self, group: _Group, scope: SyncScope) -> _Owners:
        """A need of BLOCK scope has no sync at all to rely on, so one thread must own a cell."""
        key = (group, scope)
        if key not in self._owned:
            unit = 1 if scope is SyncScope.BLOCK else WARP_SIZE
            rows = [self._print(a) for a in group.members]
            ncells = shared_nbytes(group.sample.buffer) // self._cell
            self._owned[key] = _owners(rows, ncells, unit)
        return self._owned[key]

    def _edges(self, access: Access) -> Array:
        """Cells of one size, so that buffers can be laid over each other."""
        return even_edges(shared_nbytes(access.buffer) * access.ncopies, self._cell)

    def _print(self, access: Access) -> Footprint:
        if access not in self._prints:
            self._prints[access] = footprint(access, 0, self._edges(access))
        return self._prints[access]

    def distances(self, i: int, j: int) -> Sequence[int]:
        """Distances from `i` to `j` at which some thread's bytes coincide and all others fit."""
        if (i, j) not in self._distances:
            found = self._find_distances(i, j)
            self._distances[i, j] = _nearest_first(found)
            self._distances[j, i] = _nearest_first(-d for d in found)
        return self._distances[i, j]

    def _find_distances(self, i: int, j: int) -> list[int]:
        shifts = [np.zeros(1, dtype=np.int64)]
        for need in self._needs[i, j]:
            a, b = self._owners(need.a, need.scope), self._owners(need.b, need.scope)
            shifts += [a.coincide(b), -b.coincide(a)]
        step = min(self._buffers[k].alignment for k in (i, j))
        found: list[int] = (np.unique(np.concatenate(shifts)) * self._cell).tolist()
        return [d for d in found if d % step == 0 and self.fits(i, j, d)]


def _nearest_first(distances: Iterable[int]) -> list[int]:
    return sorted(distances, key=lambda d: (abs(d), d))


def _groups(found: Sequence[Access], points: Sequence[SyncPoint]) -> list[_Group]:
    """The accesses by all that decides which syncs stand between them and another access: the
    body they stand in, the syncs before and behind them, and what kind they are of."""
    groups: dict[object, list[Access]] = {}
    for a in sorted(found, key=lambda a: a.order):
        at = position_of(a.site.path)
        sides = tuple((at < p.since, p.position < at) for p in points)
        kind = (a.writes, a.can_precede, a.can_follow, a.use.ends_turn, a.use.is_wait)
        groups.setdefault((a.site.path[:-1], sides, kind), []).append(a)
    return [_Group(tuple(g)) for g in groups.values()]


def _runs(a: _Group, b: _Group) -> list[tuple[_Group, _Group, bool]]:
    """The pairs of both groups as pairs of parts, and of each whether its first part comes first:
    before some of `b` stand all of a part of `a`, and behind the others."""
    orders_of_b = [y.order for y in b.members]
    parts: dict[int, list[Access]] = {}
    for x in a.members:
        parts.setdefault(bisect_right(orders_of_b, x.order), []).append(x)
    out: list[tuple[_Group, _Group, bool]] = []
    for count, members in parts.items():
        part = _Group(tuple(members))
        earlier, later = b.members[:count], b.members[count:]
        out += [(part, _Group(earlier), False)] if earlier else []
        out += [(part, _Group(later), True)] if later else []
    return out


def _barriers(kernel: Kernel) -> frozenset[Buffer]:
    """The buffers that hold mbarriers, whose bytes may not be used for anything else (PTX ISA,
    "mbarrier object")."""
    return frozenset(s.barrier for s in walk_statements(kernel) if isinstance(s, MbarInit))


def _cell_nbytes(found: Sequence[Access], buffers: Sequence[Buffer]) -> int:
    cells = [cell_nbytes(group, {}) for group in by_space(found, {})]
    return int(np.gcd.reduce([*cells, *(b.alignment for b in buffers)]))


@dataclass(frozen=True, slots=True, eq=False)
class _Owners:
    """Per cell of a buffer the thread or warp that touches it, `_NOBODY` or `_MANY`: in `whole` by
    any of some accesses, in `each` by one of them. `starts` lists, by owner, where the accesses
    that it begins begin."""

    whole: Array
    each: tuple[Array, ...]
    starts: dict[int, list[int]]

    def coincide(self, other: _Owners) -> Array:
        """Shifts of the other buffer that bring one of the first cells of an owner there to where
        an access of the same owner begins here."""
        shifts = [np.zeros(0, dtype=np.int64)]
        for owner, starts in self.starts.items():
            where = [np.flatnonzero(e == owner)[:_MAX_DISTANCES] for e in other.each]
            cells = different(np.concatenate(where))
            shifts.append(np.subtract.outer(np.array(starts), cells).reshape(-1))
        return np.concatenate(shifts)


def _owners(prints: Sequence[Footprint], ncells: int, unit: int) -> _Owners:
    each = tuple(_owner_of_cells([rows], ncells, unit) for rows in prints)
    starts: dict[int, dict[int, None]] = {}
    for owner in each:
        start = int(np.argmax(owner >= 0))
        if owner[start] >= 0:
            starts.setdefault(int(owner[start]), {})[start] = None
    lists = {owner: list(found) for owner, found in starts.items()}
    return _Owners(_owner_of_cells(prints, ncells, unit), each, lists)


def _owner_of_cells(prints: Sequence[Footprint], ncells: int, unit: int) -> Array:
    owner = np.full(ncells, _NOBODY, dtype=np.int64)
    cells = np.concatenate([f.cells for f in prints if f.cells is not None])
    first = np.concatenate([f.first for f in prints]) // unit
    last = np.concatenate([f.last for f in prints]) // unit
    owner[cells] = first
    owner[cells[(owner[cells] != first) | (first != last)]] = _MANY
    return owner


def _assumed_hazards(first: Access, second: Access, kernel: Kernel) -> list[Hazard]:
    """The pairs of instances that would conflict if the two touched the same bytes."""
    loops = common_loops(first.site, second.site)
    carriers = [loop.path for loop in loops if loop.trips is None or loop.trips > 1]
    out: list[Hazard] = []
    if can_conflict(first, second) and not are_exclusive(first.site, second.site, kernel):
        out.append(_assumed(first, second))
    for path in carriers:
        both = ((first, second), (second, first))
        out += [_assumed(x, y, carried=path) for x, y in both if can_conflict(x, y)]
    return out


def _assumed(before: Access, after: Access, carried: tuple[int, ...] | None = None) -> Hazard:
    kind = "WAW" if after.writes else "RAW"
    return Hazard(
        kind=kind if before.writes else "WAR",
        space="shared memory",
        before=before.site.path,
        after=after.site.path,
        before_buffer=before.buffer,
        after_buffer=after.buffer,
        scope=SyncScope.BLOCK,
        carried=carried,
        distance=0 if carried is None else 1,
        more_before=(),
        more_after=(),
        is_simultaneous=False,
        example=None,
    )
