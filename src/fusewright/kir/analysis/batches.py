"""Rows of many footprints joined at once: which of them share a cell, in which order.

Pairs that follow from others are left out. Take three accesses to one byte, in this order:

    L1: load s[0]    L2: store s[0]    L3: load s[0] or store s[0]

Syncs that order L1 before L2, and L2 before L3, also order L1 before L3, if whoever comes by L1 or
by L3 also comes by L2. So (L1, L3) is no pair, and a long run of stores and loads has as many pairs
as it has accesses, not their square.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fusewright.kir.analysis.accesses import Access, Moment
from fusewright.kir.analysis.lanes import Array
from fusewright.kir.analysis.ownership import Footprint
from fusewright.kir.analysis.places import asks_for_place
from fusewright.kir.analysis.sites import LoopScope, Path, common_loops
from fusewright.kir.ir import Kernel

_MAX_PAIRS = 1 << 21
_MAX_KEY = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of all footprints that stand in the same loops, depend on the same of them and all
    write or all read, joined at once: `member` says whose a row is, `order` where its access stands
    in the text, and `branch` numbers the innermost branch or role that holds it. `is_plain`: see
    `_is_plain`. `span`: the first and the last cell of all rows, of which there is one."""

    members: tuple[Footprint, ...]
    member: Array
    cells: Array
    first: Array
    last: Array
    coords: tuple[Array, ...]
    order: Array
    branch: Array
    is_plain: bool
    span: tuple[int, int]

    def is_apart_from(self, other: Batch) -> bool:
        """Whether no row can touch a cell that one of the other batch does."""
        return self.span[1] < other.span[0] or other.span[1] < self.span[0]

    @property
    def writes(self) -> bool:
        """Whether the members write."""
        return self.members[0].access.writes

    @property
    def loops(self) -> tuple[int, ...]:
        """Positions of the loops on which rows depend."""
        return self.members[0].loops

    @property
    def sample(self) -> Access:
        """An access that stands for the loops of all."""
        return self.members[0].access


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Rows of two batches that touch one cell: indices into each."""

    a: Array
    b: Array


def batches_of(prints: Sequence[Footprint], kernel: Kernel) -> list[Batch]:
    """Footprints of one space by what a batch has in common."""
    groups: dict[object, list[Footprint]] = {}
    branches: dict[Path, int] = {}
    for f in prints:
        branches.setdefault(_branch(f), len(branches))
        around = tuple(loop.path for loop in f.access.site.loops)
        role = f.access.site.role
        kind = (
            f.access.writes,
            f.access.can_precede,
            f.access.can_follow,
            f.access.is_public,
            f.access.use.in_async_proxy,
            f.access.use.ends_turn,
            f.access.use.is_wait,
            f.access.use.makes_mbarrier,
            _is_plain(f.access, kernel),
        )
        key = (around, f.loops, None if role is None else role.path, kind)
        groups.setdefault(key, []).append(f)
    return [_batch(g, branches, _is_plain(g[0].access, kernel)) for g in groups.values()]


def _branch(f: Footprint) -> Path:
    """The innermost branch or role around an access."""
    found = [s.path for s in f.access.site.scopes if not isinstance(s, LoopScope)]
    return found[-1] if found else ()


def _is_plain(a: Access, kernel: Kernel) -> bool:
    """Whether threads make the access themselves, in every block that comes to its body."""
    use = a.use
    is_special = use.in_async_proxy or use.is_wait or use.makes_mbarrier or use.is_atomic
    is_own = use.issuer is None and use.rank is None and not asks_for_place(use.predicate, kernel)
    return a.moment is Moment.WHOLE and is_own and not is_special


def _batch(group: Sequence[Footprint], branches: Mapping[Path, int], is_plain: bool) -> Batch:
    sizes = [f.first.size for f in group]
    cells = np.concatenate([f.cells for f in group if f.cells is not None])
    return Batch(
        members=tuple(group),
        member=np.repeat(np.arange(len(group)), sizes),
        cells=cells,
        first=np.concatenate([f.first for f in group]),
        last=np.concatenate([f.last for f in group]),
        coords=tuple(
            np.concatenate([f.coords[i] for f in group]) for i in range(len(group[0].loops))
        ),
        order=np.repeat([f.access.order for f in group], sizes),
        branch=np.repeat([branches[_branch(f)] for f in group], sizes),
        is_plain=is_plain,
        span=(int(cells.min()), int(cells.max())),
    )


def single(f: Footprint) -> Batch:
    """A batch of one member by itself."""
    return _batch([f], {_branch(f): 0}, is_plain=False)


def singles(batch: Batch) -> Iterator[Batch]:
    """A batch for each member."""
    for i, f in enumerate(batch.members):
        mine = batch.member == i
        cells = batch.cells[mine]
        yield replace(
            batch,
            members=(f,),
            member=np.zeros(f.first.size, dtype=np.int64),
            cells=cells,
            span=(int(cells.min()), int(cells.max())),
            first=batch.first[mine],
            last=batch.last[mine],
            coords=tuple(c[mine] for c in batch.coords),
            order=batch.order[mine],
            branch=batch.branch[mine],
        )


# --- joins --------------------------------------------------------------------------------------


def join_carried(a: Batch, b: Batch, level: int) -> Pairs | None:
    """All pairs of rows that share a cell and the iteration of the first `level` loops; None when
    there are too many."""
    keys = _keys(b, a.loops, level)
    order = np.argsort(keys, kind="stable")
    ordered, wanted = keys[order], _keys(a, b.loops, level)
    start, stop = (np.searchsorted(ordered, wanted, side) for side in ("left", "right"))
    return _in_ranges(start, stop, order)


def _keys(batch: Batch, others: Sequence[int], level: int) -> Array:
    """A number for each row: equal for rows of one cell in one iteration of the first `level`
    loops, of those on which both this batch and the one that depends on the loops `others` do."""
    keys = batch.cells
    for at, i in enumerate(batch.loops):
        if i in others and i < level:
            keys = keys * batch.sample.trips[i] + batch.coords[at]
    return keys


def _in_ranges(start: Array, stop: Array, order: Array) -> Pairs | None:
    """The pairs of row `i` and those at places `start[i]` to `stop[i]` of an order."""
    counts = np.maximum(stop - start, 0)
    total = int(counts.sum())
    if total > _MAX_PAIRS:
        return None
    rows = np.repeat(np.arange(counts.size), counts)
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return Pairs(rows, order[np.repeat(start, counts) + within])


class InOrder:
    """Joins rows of batches of one space that meet in one iteration of the loops around both;
    `leaves_out` those pairs that a write between them implies."""

    def __init__(self, batches: Sequence[Batch], *, leaves_out: bool) -> None:
        self._writers = [w for w in batches if leaves_out and w.writes and w.is_plain]
        found = [f.access for batch in batches for f in batch.members]
        self._norders = 1 + max((a.order for a in found), default=0)
        self._nbranches = 1 + max((int(x.branch.max()) for x in batches), default=0)
        self._ends: dict[Path, tuple[int, int]] = {}
        for a in found:
            for loop in a.site.loops:
                low, high = self._ends.get(loop.path, (a.order, a.order))
                self._ends[loop.path] = min(low, a.order), max(high, a.order)
        self._writes: dict[tuple[tuple[Path, ...], tuple[int, ...]], Array] = {}

    def join(self, a: Batch, b: Batch) -> Pairs | None:
        """All pairs of rows that share a cell and the iteration, the access of `a` first, but for
        those with a write between them; None when there are too many.

        example:  s[t] = a;  s[t] = b;  c = s[t+1]   ->   the stores, and the second with the load
        """
        shared = common_loops(a.sample.site, b.sample.site)
        level = len(shared)
        after, begins = self._last(a, level), self._first(b, level)
        if np.max(begins) <= np.min(after):
            return Pairs(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        key = _keys(a, b.loops, level) * self._norders
        until = self._next_writes(a, b, shared, after)
        codes = _keys(b, a.loops, level) * self._norders + begins
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        start = np.searchsorted(ordered, key + after, "right")
        return _in_ranges(start, np.searchsorted(ordered, key + until, "right"), order)

    def _first(self, batch: Batch, level: int) -> Array | int:
        """Where the loop below the first `level` ones begins that holds a row, or its access."""
        loops = batch.sample.site.loops
        return self._ends[loops[level].path][0] if len(loops) > level else batch.order

    def _last(self, batch: Batch, level: int) -> Array | int:
        """Where that loop ends, or its access stands."""
        loops = batch.sample.site.loops
        return self._ends[loops[level].path][1] if len(loops) > level else batch.order

    def _next_writes(
        self, a: Batch, b: Batch, shared: Sequence[LoopScope], after: Array | int
    ) -> Array | int:
        """For each row of `a` where the next write stands behind it that implies its pairs with
        what comes later, the last place of all where there is none.

        Such a write stands in the branch and role of the row, so that it is made when the row is,
        and in loops that surely run. Whoever waits for all of a role, or ends a turn of waiters, is
        ordered by other means.
        """
        last = self._norders - 1
        mine, others = (tuple(i for i in x.loops if i < len(shared)) for x in (a, b))
        if mine != others or a.sample.is_public or b.sample.use.ends_turn:
            return last
        listed = self._listed(shared, mine)
        if not listed.size:
            return last
        place = _keys(a, mine, len(shared)) * self._nbranches + a.branch
        at = np.searchsorted(listed, place * self._norders + after, "right")
        found = listed[np.minimum(at, listed.size - 1)]
        is_found = (at < listed.size) & (found // self._norders == place)
        return np.where(is_found, found % self._norders, last)

    def _listed(self, shared: Sequence[LoopScope], loops: tuple[int, ...]) -> Array:
        """The writes inside of shared loops that depend on `loops` of them, by cell, iteration,
        branch and place in the text; none where these make too large a number."""
        around = tuple(loop.path for loop in shared)
        if (around, loops) not in self._writes:
            level = len(around)
            codes: list[Array] = [np.zeros(0, dtype=np.int64)]
            for w in self._writers:
                inside = w.sample.site.loops
                is_there = tuple(loop.path for loop in inside[:level]) == around
                is_sure = all(loop.min_trips for loop in inside[level:])
                depends = tuple(i for i in w.loops if i < level)
                if is_there and is_sure and depends == loops:
                    key = _keys(w, loops, level)
                    if int(key.max()) + 1 >= _MAX_KEY // (self._nbranches * self._norders):
                        codes = codes[:1]
                        break
                    codes.append((key * self._nbranches + w.branch) * self._norders + w.order)
            self._writes[around, loops] = np.sort(np.concatenate(codes))
        return self._writes[around, loops]
