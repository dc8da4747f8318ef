"""Asynchronous operations that something meets, or the kernel ends, before they are complete.

Between the issue of an operation and the wait behind which it is complete nobody, its own thread
included, may touch the bytes it writes or write those it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fusewright.kir.analysis.accesses import Access, Found, Moment, find
from fusewright.kir.analysis.cell_times import Timeline, timeline
from fusewright.kir.analysis.completion import Instance, has_operations
from fusewright.kir.analysis.lanes import Array
from fusewright.kir.analysis.ownership import Footprint, Space, common_offsets, spaces_of
from fusewright.kir.analysis.sites import are_concurrent
from fusewright.kir.ir import Kernel, Memory

_NEVER = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class Unfinished:
    """`issue` is under way when `meets` (None: the end of the kernel) touches the same bytes;
    `is_committed` when its group was ended before."""

    access: Access
    issue: Instance
    meets: Access | None
    coords: tuple[int, ...]
    time: int
    is_committed: bool


def unfinished(kernel: Kernel) -> tuple[Unfinished, ...]:
    """What is met too early, one example for each pair of accesses, in the order of meeting."""
    if not has_operations(kernel):
        return ()
    return unfinished_in(kernel, find(kernel))


def unfinished_in(kernel: Kernel, found: Found) -> tuple[Unfinished, ...]:
    """`unfinished`, for accesses that have been found already."""
    if not found.completions.issued:
        return ()
    line = timeline(kernel, found.trips)
    clock = _Clock(found, line)
    out: list[Unfinished] = []
    for space in spaces_of(found.accesses, common_offsets(kernel)):
        out.extend(_met(space, clock))
    for a in found.accesses:
        if a.moment is Moment.ISSUE:
            out.extend(_left(a, clock))
    return tuple(sorted(out, key=lambda u: (u.time, u.issue.order, u.coords)))


@dataclass(frozen=True, slots=True)
class _Clock:
    """Times of instances."""

    found: Found
    line: Timeline

    def time(self, a: Access, coords: Sequence[int]) -> int:
        """When an access happens, in the given iteration."""
        spans = (self.line.span[loop.path] for loop in a.site.loops)
        start = self.line.start[a.site.path]
        return start + sum(k * n for k, n in zip(coords, spans, strict=True))

    def end(self, a: Access, issue: Instance) -> int:
        """When the operation is known to be complete."""
        done = self.found.completions
        if issue in done.trusted:
            return self.time(a, issue.coords)
        wait = done.end_of(issue, a.use.completes)
        return _NEVER if wait is None else self._moment(wait)

    def is_committed(self, issue: Instance, time: int) -> bool:
        """Whether the group of the operation was ended before a time."""
        commit = self.found.completions.commits.get(issue)
        return commit is not None and self._moment(commit) < time

    def _moment(self, instance: Instance) -> int:
        site = self.found.places[instance.order]
        spans = (self.line.span[loop.path] for loop in site.loops)
        start = self.line.start[site.path]
        return start + sum(k * n for k, n in zip(instance.coords, spans, strict=True))


def _left(a: Access, clock: _Clock) -> Iterator[Unfinished]:
    """Operations that nobody waits for: those on shared memory, which ends with the block, and
    those that an mbarrier there counts."""
    if a.buffer.memory is not Memory.SHARED and not a.use.completes.by_mbarrier:
        return
    for issue in clock.found.completions.instances(a.order):
        if clock.end(a, issue) == _NEVER:
            yield Unfinished(a, issue, None, (), _NEVER, clock.is_committed(issue, _NEVER))
            return


# --- cells, with times --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Cells that instances of an access touch: `which` instance, by its number among `coords`."""

    cells: Array
    which: Array
    coords: Array


def _met(space: Space, clock: _Clock) -> Iterator[Unfinished]:
    under_way = [f for f in space.footprints if f.access.moment is Moment.ISSUE]
    if not under_way:
        return
    prints = space.footprints
    exact = all(f.cells is not None for f in prints) and len({f.unknown for f in prints}) == 1
    for f in under_way:
        issues = clock.found.completions.instances(f.access.order)
        if not issues:
            continue
        mine = _rows(f, [i.coords for i in issues], exact=exact)
        start = np.array([clock.time(f.access, i.coords) for i in issues])[mine.which]
        end = np.array([clock.end(f.access, i) for i in issues])[mine.which]
        for g in prints:
            if not _may_meet(f.access, g.access, space, exact=exact):
                continue
            theirs = _rows(g, _all_coords(g.access), exact=exact)
            met = _first_inside(mine, start, end, theirs, clock, g.access)
            if met is not None:
                row, coords, time = met
                issue = issues[int(mine.which[row])]
                settled = clock.is_committed(issue, time)
                yield Unfinished(f.access, issue, g.access, coords, time, settled)


def _may_meet(a: Access, b: Access, space: Space, *, exact: bool) -> bool:
    if b.moment is Moment.DONE or not (a.writes or b.writes) or are_concurrent(a.site, b.site):
        return False
    return exact or space.memory is Memory.SHARED or not (a.writes and b.writes)


def _all_coords(a: Access) -> list[tuple[int, ...]]:
    return [tuple(map(int, c)) for c in np.ndindex(*a.trips)]


def _rows(f: Footprint, instances: Sequence[tuple[int, ...]], *, exact: bool) -> _Rows:
    """The rows of a footprint for each of the instances; one cell for all where addresses cannot be
    compared."""
    coords = np.array(instances, dtype=np.int64).reshape(len(instances), len(f.access.trips))
    if not exact or f.cells is None:
        return _Rows(np.zeros(len(instances), np.int64), np.arange(len(instances)), coords)
    key, rows_key = np.zeros(len(instances), np.int64), np.zeros(f.cells.size, np.int64)
    for i, values in zip(f.loops, f.coords, strict=True):
        n = f.access.trips[i]
        key, rows_key = key * n + coords[:, i], rows_key * n + values
    order = np.argsort(rows_key, kind="stable")
    ordered = rows_key[order]
    first, stop = np.searchsorted(ordered, key, "left"), np.searchsorted(ordered, key, "right")
    counts = stop - first
    which = np.repeat(np.arange(len(instances)), counts)
    within = np.arange(which.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return _Rows(f.cells[order[np.repeat(first, counts) + within]], which, coords)


def _first_inside(
    mine: _Rows, start: Array, end: Array, theirs: _Rows, clock: _Clock, access: Access
) -> tuple[int, tuple[int, ...], int] | None:
    """A row of `mine` that `access` meets between its start and its end, with the iteration and the
    time of the meeting; the earliest there is."""
    times = np.array([clock.time(access, c) for c in theirs.coords.tolist()])[theirs.which]
    if not times.size or not mine.cells.size:
        return None
    scale = int(max(times.max(), start.max())) + 2
    keys = theirs.cells * scale + times
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    after = np.searchsorted(ordered, mine.cells * scale + start, "right")
    limit = np.searchsorted(ordered, mine.cells * scale + np.minimum(end, scale - 1), "left")
    hit = np.flatnonzero(after < limit)
    if not hit.size:
        return None
    at = order[after[hit]]
    best = int(np.argmin(times[at]))
    row = int(at[best])
    coords = tuple(int(k) for k in theirs.coords[theirs.which[row]])
    return int(hit[best]), coords, int(times[row])
