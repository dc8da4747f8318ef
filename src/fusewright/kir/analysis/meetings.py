"""What touches the memory or the registers of asynchronous operations behind their issue.

Between the issue of an operation and the wait behind which it is complete nobody, its own thread
included, may touch the bytes it writes or write those it reads; the same holds for registers, but
that products under way may share an accumulator. Which iterations meet follows from addresses and
control flow alone, not from waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fusewright.kir.analysis.accesses import Access, Found, Moment
from fusewright.kir.analysis.async_run import Agent, Branch, Instance, agent_of
from fusewright.kir.analysis.lanes import Array
from fusewright.kir.analysis.ownership import Footprint, Space, common_offsets, spaces_of
from fusewright.kir.analysis.sites import Site, are_concurrent
from fusewright.kir.analysis.times import Timeline, timeline
from fusewright.kir.ir import Kernel, Memory, Mma
from fusewright.kir.symbols import Buffer
from fusewright.kir.traits import WITH_PHASE, Completes, RegisterUse
from fusewright.kir.traverse import registers_read

NEVER = 1 << 60


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """The operation `issue` of the statement at `site`, to be complete as `completes` says, is met
    by the statement at `meets` (None: the end of the kernel) in the iteration `coords`, at `time`,
    in `branches`. `buffer` holds what both touch; `writes` says whether the operation writes it.
    `agent` and `issuer` are who meets it."""

    site: Site
    issue: Instance
    completes: Completes
    buffer: Buffer
    writes: bool
    meets: Site | None
    coords: tuple[int, ...]
    time: int
    branches: frozenset[Branch]
    agent: Agent = None
    issuer: int | None = None


def meetings(kernel: Kernel, found: Found) -> tuple[Meeting, ...]:
    """For each operation, the first time that each statement behind it meets it."""
    line = timeline(kernel, found.trips)
    out: list[Meeting] = []
    for space in spaces_of(found.accesses, common_offsets(kernel)):
        out += _in_memory(space, found, line)
    for a in found.accesses:
        if a.moment is Moment.ISSUE:
            out += _at_exit(a, found)
    out += _in_registers(found, line)
    return tuple(sorted(out, key=lambda m: (m.time, m.issue.time)))


def _time(line: Timeline, site: Site, coords: Sequence[int]) -> int:
    return line.moment(site.path, [loop.path for loop in site.loops], coords)


def _at_exit(a: Access, found: Found) -> Iterator[Meeting]:
    """Operations on shared memory, which ends with the block, and those that an mbarrier there
    counts, are complete before that."""
    if a.buffer.memory is not Memory.SHARED and not a.use.completes.by_mbarrier:
        return
    for issue in found.completions.instances(a.order):
        yield Meeting(
            a.site, issue, a.use.completes, a.buffer, a.writes, None, (), NEVER, frozenset(),
            issue.agent,
        )  # fmt: skip


# --- memory -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Cells that instances of an access touch: `which` instance, by its number among `coords`."""

    cells: Array
    which: Array
    coords: Array


def _in_memory(space: Space, found: Found, line: Timeline) -> Iterator[Meeting]:
    under_way = [f for f in space.footprints if f.access.moment is Moment.ISSUE]
    if not under_way:
        return
    prints = space.footprints
    exact = all(f.cells is not None for f in prints) and len({f.unknown for f in prints}) == 1
    theirs = {id(g): _ordered(_rows(g, _all_coords(g.access), exact=exact), g, line)
              for g in prints if g.access.moment is not Moment.DONE}  # fmt: skip
    for f in under_way:
        issues = found.completions.instances(f.access.order)
        if not issues:
            continue
        mine = _rows(f, [i.coords for i in issues], exact=exact)
        start = np.array([i.time for i in issues])
        for g in prints:
            if not _may_meet(f.access, g.access, space, exact=exact):
                continue
            if are_concurrent(f.access.site, g.access.site):
                yield from _across(f, g, issues, mine, theirs[id(g)], found)
                continue
            for i, coords, time in theirs[id(g)].first_behind(mine, start):
                yield _meeting(f, g, issues[i], coords, time, frozenset())


def _meeting(
    f: Footprint, g: Footprint, issue: Instance, coords: tuple[int, ...], time: int,
    branches: frozenset[Branch],
) -> Meeting:  # fmt: skip
    a, b = f.access, g.access
    return Meeting(
        a.site, issue, a.use.completes, a.buffer, a.writes, b.site, coords, time, branches,
        agent_of(b.site), b.use.issuer,
    )  # fmt: skip


def _may_meet(a: Access, b: Access, space: Space, *, exact: bool) -> bool:
    if b.moment is Moment.DONE or not (a.writes or b.writes):
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


@dataclass(frozen=True, slots=True, eq=False)
class _Ordered:
    """Rows by cell and time: `keys` are `cell * scale + time`, `which` the instance of each."""

    keys: Array
    which: Array
    times: Array
    coords: Array
    scale: int

    def first_behind(self, mine: _Rows, start: Array) -> Iterator[tuple[int, tuple[int, ...], int]]:
        """For each instance of `mine` that begins at its `start` the first of these that touches
        one of its cells later: its number, iteration and time."""
        if not self.keys.size or not mine.cells.size:
            return
        scale = max(self.scale, int(start.max()) + 2)
        keys = self.keys if scale == self.scale else self._rescaled(scale)
        base = mine.cells * scale
        at = np.searchsorted(keys, base + start[mine.which], "right")
        hit = np.flatnonzero(
            (at < keys.size) & (keys[np.minimum(at, keys.size - 1)] < base + scale)
        )
        if not hit.size:
            return
        which = self.which[at[hit]]
        found = self.times[which]
        order = np.lexsort((found, mine.which[hit]))
        owners = mine.which[hit][order]
        first = np.flatnonzero(np.concatenate(([True], owners[1:] != owners[:-1])))
        for owner, k in zip(owners[first].tolist(), which[order][first].tolist(), strict=True):
            yield owner, tuple(int(x) for x in self.coords[k]), int(self.times[k])

    def _rescaled(self, scale: int) -> Array:
        cells, times = np.divmod(self.keys, self.scale)
        return cells * scale + times


def _ordered(rows: _Rows, g: Footprint, line: Timeline) -> _Ordered:
    times = np.array([_time(line, g.access.site, c) for c in rows.coords.tolist()], np.int64)
    scale = int(times.max(initial=0)) + 2
    keys = rows.cells * scale + times[rows.which]
    order = np.argsort(keys, kind="stable")
    return _Ordered(keys[order], rows.which[order], times, rows.coords, scale)


# --- roles --------------------------------------------------------------------------------------


def _across(
    f: Footprint, g: Footprint, issues: Sequence[Instance], mine: _Rows, theirs: _Ordered,
    found: Found,
) -> Iterator[Meeting]:  # fmt: skip
    """Operations that another role meets before they begin, behind the last time that it is known
    to them to have met them: they are to be complete before the arrival by which it knows of them.
    """
    done, roles = found.completions, found.completions.roles
    of, to = agent_of(f.access.site), agent_of(g.access.site)
    seen: set[int] = set()
    loads: dict[tuple[int, ...], Instance] = {}
    if g.access.use.completes.by_mbarrier:
        loads = {i.coords: i for i in done.instances(g.access.order)}
    for i, k in _pairs(mine, theirs):
        issue, time = issues[i], int(theirs.times[k])
        if i in seen:
            continue
        coords = tuple(int(x) for x in theirs.coords[k])
        past = roles.arrival_known(to, of, f.access.use.issuer, issue.time)
        if past is not None and past.time > time:
            continue
        ends = done.ends_of(loads[coords], WITH_PHASE) if coords in loads else ()
        if any(e.agent == of and e.time < issue.time for e in ends):
            continue
        seen.add(i)
        met = _meeting(f, g, issue, coords, time, frozenset())
        arrival = roles.arrival_known(of, to, g.access.use.issuer, time)
        if arrival is None or arrival.time < issue.time or f.access.use.completes.by_mbarrier:
            yield met
            continue
        at = found.places[arrival.order]
        yield replace(met, meets=at, coords=arrival.coords, time=arrival.time, agent=of)


def _pairs(mine: _Rows, theirs: _Ordered) -> list[tuple[int, int]]:
    """Which instances touch a cell both, by time of the second."""
    cells = theirs.keys // theirs.scale
    left, right = (np.searchsorted(cells, mine.cells, side) for side in ("left", "right"))
    counts = right - left
    rows = np.repeat(np.arange(mine.cells.size), counts)
    within = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)
    other = theirs.which[np.repeat(left, counts) + within]
    both = np.unique(np.stack((mine.which[rows], other), axis=1), axis=0)
    order = np.argsort(theirs.times[both[:, 1]], kind="stable")
    return [(int(i), int(k)) for i, k in both[order]]


# --- registers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Touch:
    """Registers `low .. high-1` of a buffer that a statement uses."""

    site: Site
    low: int
    high: int
    writes: bool
    is_reg_of: Mma | None


def _in_registers(found: Found, line: Timeline) -> Iterator[Meeting]:
    operations = [
        (order, site, use)
        for order, site in enumerate(found.places)
        for use in site.statement.register_uses()
        if not use.completes.at_once
    ]
    if not operations:
        return
    touched = _touches(found.places, {use.reg.buffer for *_, use in operations})
    for order, site, use in operations:
        low, high = _span(use)
        for t in touched[use.reg.buffer]:
            if t.high <= low or high <= t.low or not (use.writes or t.writes):
                continue
            if are_concurrent(site, t.site) or _is_same_accumulator(site, use, t):
                continue
            yield from _register_meetings(order, site, use, t, found, line)


def _touches(places: Sequence[Site], buffers: set[Buffer]) -> dict[Buffer, list[_Touch]]:
    out: dict[Buffer, list[_Touch]] = {b: [] for b in buffers}
    for site in places:
        s = site.statement
        mma = s if isinstance(s, Mma) else None
        for use in s.register_uses():
            if use.reg.buffer in buffers and use.writes:
                out[use.reg.buffer].append(_Touch(site, *_span(use), True, mma))
        for reg, width in registers_read(s):
            if reg.buffer in buffers:
                use = RegisterUse(reg, True, False, width)
                out[reg.buffer].append(_Touch(site, *_span(use), False, mma))
    return out


def _span(use: RegisterUse) -> tuple[int, int]:
    """The registers that an operand may name."""
    low, high = use.reg.index.interval
    size = use.reg.buffer.size.interval[1]
    end = NEVER if size is None else size
    return (0 if low is None else low), (end if high is None else high + use.width)


def _is_same_accumulator(site: Site, use: RegisterUse, t: _Touch) -> bool:
    """Whether the other is a product whose accumulator is this one's: they are done in order."""
    mine, other = site.statement, t.is_reg_of
    if other is None or not isinstance(mine, Mma) or not use.writes:
        return False
    return (
        other.dst.buffer is mine.dst.buffer
        and other.dst.index == mine.dst.index
        and other.n == mine.n
        and (t.low, t.high) == _span(use)
    )


def _register_meetings(
    order: int, site: Site, use: RegisterUse, t: _Touch, found: Found, line: Timeline
) -> Iterator[Meeting]:
    trips = [found.trips.get(loop.path, 1) for loop in t.site.loops]
    coords = [tuple(map(int, c)) for c in np.ndindex(*trips)]
    times = np.array([_time(line, t.site, c) for c in coords], np.int64)
    for issue in found.completions.instances(order):
        k = int(np.searchsorted(times, issue.time, "right"))
        if k < len(coords):
            yield Meeting(
                site, issue, use.completes, use.reg.buffer, use.writes, t.site, coords[k],
                int(times[k]), frozenset(), agent_of(t.site),
            )  # fmt: skip
