"""What touches the memory or the registers of asynchronous operations behind their issue.

Between the issue of an operation and the wait behind which it is complete nobody, its own thread
included, may touch the bytes it writes or write those it reads; the same holds for registers, but
that products under way may share an accumulator. Which iterations meet follows from addresses and
control flow alone, not from waits.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count
from typing import NamedTuple, TypeAlias

import numpy as np

from fusewright.kir.analysis.accesses import Access, Found, Moment, find
from fusewright.kir.analysis.async_run import Agent, Branch, Instance, agent_of
from fusewright.kir.analysis.completion import Completions
from fusewright.kir.analysis.lanes import Array
from fusewright.kir.analysis.ownership import Footprint, Space, spaces
from fusewright.kir.analysis.places import are_of_different_blocks
from fusewright.kir.analysis.sites import KEPT, Path, StatementSite, are_concurrent
from fusewright.kir.analysis.times import UNIT, StatementTimes, timeline
from fusewright.kir.ir import Kernel, Memory, Mma
from fusewright.kir.symbols import Buffer
from fusewright.kir.traits import WITH_PHASE, Completes, RegisterUse
from fusewright.kir.traverse import register_uses, registers_read

NEVER = 1 << 60


@dataclass(slots=True, eq=False)
class Meeting:
    """The operation `issue` of the statement at `site`, to be complete as `completes` says, is met
    by the statement at `meets` (None: the end of the kernel) in the iteration `coords`, at `time`,
    in `branches`. `buffer` holds what both touch; `writes` says whether the operation writes it.
    `agent` and `issuer` are who meets it."""

    site: StatementSite
    issue: Instance
    completes: Completes
    buffer: Buffer
    writes: bool
    meets: StatementSite | None
    coords: tuple[int, ...]
    time: int
    branches: frozenset[Branch]
    agent: Agent = None
    issuer: int | None = None


@lru_cache(maxsize=KEPT)
def meetings(kernel: Kernel) -> tuple[Meeting, ...]:
    """For each operation, the first time that statements of each body behind it meet it: those of
    the same body that come later find it complete when that one does."""
    found = find(kernel)
    line = timeline(kernel, found.trips)
    first = _First({}, count())
    for space in spaces(kernel):
        _in_memory(space, kernel, found, line, first)
    for a in found.accesses:
        if a.moment is Moment.ISSUE:
            _at_exit(a, found, first)
    _in_registers(found, line, first)
    return first.in_order()


class _By(NamedTuple):
    """Who meets an operation where: a statement, in the iteration `coords`, at a time; None for the
    statement at the end of the kernel. `agent` and `issuer` as in `Meeting`."""

    site: StatementSite | None
    coords: Callable[[], tuple[int, ...]]
    time: int
    agent: Agent
    issuer: int | None = None


_Which: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _First:
    """The first meeting of each operation with each body and agent, and its number."""

    found: dict[_Which, tuple[int, int, Meeting]]
    numbers: Iterator[int]

    def add(
        self,
        site: StatementSite,
        issue: Instance,
        completes: Completes,
        touched: tuple[Buffer, bool],
        by: _By,
    ) -> None:
        """Note a meeting in `touched`, a buffer that the operation writes or not, unless one is
        known that comes before."""
        body = None if by.site is None else by.site.path[:-1]
        key = issue, completes, touched[1], body, by.agent, by.issuer
        known = self.found.get(key)
        if known is None or by.time < known[0]:
            nowhere: frozenset[Branch] = frozenset()
            m = Meeting(
                site, issue, completes, *touched, by.site, by.coords(), by.time, nowhere, by.agent,
                by.issuer,
            )  # fmt: skip
            self.found[key] = by.time, next(self.numbers), m

    def in_order(self) -> tuple[Meeting, ...]:
        """The meetings in order of time, of one time in that of their operations."""
        listed = sorted(self.found.values(), key=lambda x: (x[0], x[2].issue.time, x[1]))
        return tuple(m for *_, m in listed)


def _at_exit(a: Access, found: Found, first: _First) -> None:
    """Operations on shared memory, which ends with the block, and those that an mbarrier there
    counts, are complete before that."""
    if a.buffer.memory is not Memory.SHARED and not a.use.completes.by_mbarrier:
        return
    for issue in found.completions.instances(a.order):
        end = _By(None, tuple[int, ...], NEVER, issue.agent)
        first.add(a.site, issue, a.use.completes, (a.buffer, a.writes), end)


# --- memory -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Touched:
    """The instances of an access: `coords` in order, `times`, and by `kind` which of `cells` each
    touches. Iterations that touch the same are of one kind."""

    footprint: Footprint
    coords: Array
    times: Array
    kind: Array
    cells: tuple[Array, ...]

    @property
    def access(self) -> Access:
        return self.footprint.access

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last cell that any instance touches; the last before the first where
        none does."""
        ends = [(int(c[0]), int(c[-1])) for c in self.cells if c.size]
        return min((a for a, _ in ends), default=1), max((b for _, b in ends), default=0)

    def coords_of(self, k: int) -> tuple[int, ...]:
        """The iteration of an instance."""
        return tuple(self.coords[k].tolist())


_Ends: TypeAlias = dict[tuple[_Touched, Agent], list[int]]
"""By loads that an mbarrier counts, and by who waits, when each is known to be complete."""


def _touched(f: Footprint, found: Found, line: StatementTimes, *, exact: bool) -> _Touched:
    a = f.access
    if a.moment is Moment.ISSUE:
        instances = found.completions.instances(a.order)
        times = np.array([i.time for i in instances], np.int64)
        coords = np.array([i.coords for i in instances], np.int64)
        coords = coords.reshape(len(instances), len(a.trips))
    else:
        coords = np.indices(a.trips).reshape(len(a.trips), math.prod(a.trips)).T
        spans = np.array([line.span[loop.path] for loop in a.site.loops], np.int64)
        times = UNIT * (line.start[a.site.path] + coords @ spans)
    if not exact or f.cells is None:
        return _Touched(f, coords, times, np.zeros(len(times), np.int64), (np.zeros(1, np.int64),))
    key, rows = np.zeros(len(times), np.int64), np.zeros(f.cells.size, np.int64)
    for i, values in zip(f.loops, f.coords, strict=True):
        key, rows = key * a.trips[i] + coords[:, i], rows * a.trips[i] + values
    order = np.argsort(rows, kind="stable")
    cells, rows = f.cells[order], rows[order]
    wanted, kind = np.unique(key, return_inverse=True)
    first, stop = np.searchsorted(rows, wanted, "left"), np.searchsorted(rows, wanted, "right")
    kinds: dict[bytes, int] = {}
    parts: list[Array] = []
    numbers: list[int] = []
    for i, j in zip(first.tolist(), stop.tolist(), strict=True):
        mine = np.sort(cells[i:j])
        number = kinds.setdefault(mine.tobytes(), len(parts))
        if number == len(parts):
            parts.append(mine)
        numbers.append(number)
    return _Touched(f, coords, times, np.array(numbers, np.int64)[kind.reshape(-1)], tuple(parts))


def _in_memory(
    space: Space, kernel: Kernel, found: Found, line: StatementTimes, first: _First
) -> None:
    under_way = [f for f in space.footprints if f.access.moment is Moment.ISSUE]
    if not under_way:
        return
    prints = [f for f in space.footprints if f.access.moment is not Moment.DONE]
    exact = all(f.cells is not None for f in prints) and len({f.unknown for f in prints}) == 1
    touched = [_touched(f, found, line, exact=exact) for f in prints]
    ended: _Ends = {}
    late = sorted((t for t in touched if t.times.size), key=lambda t: t.times.min())
    who = [_who(b) for b in late]
    facts = [(*t.span, t.times.min(), t.times.max()) for t in late]
    low, high, start, last = np.array(facts, np.int64).reshape(-1, 4).T
    starts: list[int] = start.tolist()
    for a in touched:
        if a.access.moment is not Moment.ISSUE or not a.times.size:
            continue
        x, issues = a.access, found.completions.instances(a.access.order)
        begin, end = a.span
        meeting = (low <= end) & (begin <= high)
        if x.site.role is None:
            meeting &= last > a.times.min()
        known = _Known(len(issues), {}, {})
        for k in np.flatnonzero(meeting).tolist():
            b = late[k]
            if known.until.get(who[k], NEVER) <= starts[k]:
                continue
            if not _may_meet(x, b.access, space, exact=exact):
                continue
            if are_of_different_blocks(x, b.access, kernel):
                continue
            meets = _conflicts(a, b)
            if not meets.any():
                continue
            if are_concurrent(x.site, b.access.site):
                met = _across(a, b, issues, meets, found, ended)
            else:
                met = known.noted(who[k], _behind(a, b, issues, meets))
            for issue, by in met:
                first.add(x.site, issue, x.use.completes, (x.buffer, x.writes), by)


def _who(b: _Touched) -> _Which:
    """The body of an access, its agent and its issuer."""
    site = b.access.site
    return site.path[:-1], agent_of(site), b.access.use.issuer


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """When so many operations of an access are met, by who meets them; of whom all of them are met,
    the last time: what begins then or later meets none of them before."""

    noperations: int
    times: dict[_Which, dict[Instance, int]]
    until: dict[_Which, int]

    def noted(
        self, who: _Which, met: Iterator[tuple[Instance, _By]]
    ) -> Iterator[tuple[Instance, _By]]:
        """Meetings, which are known from then on."""
        known = self.times.setdefault(who, {})
        for issue, by in met:
            known[issue] = min(by.time, known.get(issue, NEVER))
            yield issue, by
        if len(known) == self.noperations:
            self.until[who] = max(known.values())


def _behind(
    a: _Touched, b: _Touched, issues: Sequence[Instance], meets: Array
) -> Iterator[tuple[Instance, _By]]:
    site, issuer = b.access.site, b.access.use.issuer
    for i, k in _first_behind(a, b, meets):
        yield issues[i], _By(site, partial(b.coords_of, k), int(b.times[k]), agent_of(site), issuer)


def _may_meet(a: Access, b: Access, space: Space, *, exact: bool) -> bool:
    if not (a.writes or b.writes):
        return False
    return exact or space.memory is Memory.SHARED or not (a.writes and b.writes)


def _conflicts(a: _Touched, b: _Touched) -> Array:
    """Which kinds of instances of the two touch a cell both."""
    out = np.zeros((len(a.cells), len(b.cells)), bool)
    for i, x in enumerate(a.cells):
        for j, y in enumerate(b.cells):
            if x.size and y.size and x[0] <= y[-1] and y[0] <= x[-1]:
                at = np.minimum(np.searchsorted(x, y), x.size - 1)
                out[i, j] = bool((x[at] == y).any())
    return out


def _first_behind(a: _Touched, b: _Touched, meets: Array) -> Iterator[tuple[int, int]]:
    """For each instance of one access the first of the other that it conflicts with, later."""
    order = np.argsort(b.times, kind="stable")
    for kind in range(len(a.cells)):
        mine = np.flatnonzero(a.kind == kind)
        theirs = order[meets[kind][b.kind[order]]]
        if not theirs.size:
            continue
        at = np.searchsorted(b.times[theirs], a.times[mine], "right")
        for i, k in zip(mine.tolist(), at.tolist(), strict=True):
            if k < theirs.size:
                yield i, int(theirs[k])


# --- roles --------------------------------------------------------------------------------------


def _across(
    a: _Touched,
    b: _Touched,
    issues: Sequence[Instance],
    meets: Array,
    found: Found,
    known: _Ends,
) -> Iterator[tuple[Instance, _By]]:
    """Operations that another role meets before they begin, behind the last time that it is known
    to them to have met them: they are to be complete before the arrival by which it knows of them.
    """
    done, roles = found.completions, found.completions.roles
    f, g = a.access, b.access
    of, to = agent_of(f.site), agent_of(g.site)
    ended = _ended(b, of, done, known)
    order = np.argsort(b.times, kind="stable")
    met_by = [order[meets[kind][b.kind[order]]] for kind in range(len(a.cells))]
    times = [b.times[found].tolist() for found in met_by]
    kinds: list[int] = a.kind.tolist()
    for kind, issue in zip(kinds, issues, strict=True):
        past = roles.arrival_known(to, of, f.use.issuer, issue.time)
        first = 0 if past is None else bisect_left(times[kind], past.time)
        for at in range(first, len(times[kind])):
            time, k = times[kind][at], int(met_by[kind][at])
            if ended is not None and ended[k] < issue.time:
                continue
            arrival = roles.arrival_known(of, to, g.use.issuer, time)
            if arrival is None or arrival.time < issue.time or f.use.completes.by_mbarrier:
                yield issue, _By(g.site, partial(b.coords_of, k), time, to, g.use.issuer)
            else:
                place, coords = found.places[arrival.order], arrival.coords
                again = partial(tuple[int, ...], coords)
                yield issue, _By(place, again, arrival.time, of, g.use.issuer)
            break


def _ended(b: _Touched, agent: Agent, done: Completions, known: _Ends) -> list[int] | None:
    """By instance of a load that an mbarrier counts, when an agent first comes to a wait behind
    which it is complete; None for other accesses."""
    if not b.access.use.completes.by_mbarrier:
        return None
    if (b, agent) not in known:
        loads = {i.coords: i for i in done.instances(b.access.order)}
        found = (loads.get(tuple(row)) for row in b.coords.tolist())
        ends = (() if load is None else done.ends_of(load, WITH_PHASE) for load in found)
        known[b, agent] = [
            min((e.time for e in each if e.agent == agent), default=NEVER) for each in ends
        ]
    return known[b, agent]


# --- registers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Touch:
    """Registers `low .. high-1` of a buffer that a statement uses."""

    site: StatementSite
    low: int
    high: int
    writes: bool
    is_reg_of: Mma | None


def _in_registers(found: Found, line: StatementTimes, first: _First) -> None:
    operations = [
        (order, site, use)
        for order, site in enumerate(found.places)
        for use in register_uses(site.statement)
        if not use.completes.at_once
    ]
    if not operations:
        return
    touched = _touches(found.places, {use.reg.buffer for *_, use in operations})
    for order, site, use in operations:
        low, high = _span(use)
        meets = [
            t
            for t in touched[use.reg.buffer]
            if low < t.high
            and t.low < high
            and (use.writes or t.writes)
            and not are_concurrent(site, t.site)
            and not _is_same_accumulator(site, use, t)
        ]
        for t in _first_of_bodies(site, meets):
            for issue, by in _register_meetings(order, t, found, line):
                first.add(site, issue, use.completes, (use.reg.buffer, use.writes), by)


def _first_of_bodies(site: StatementSite, found: Sequence[_Touch]) -> list[_Touch]:
    """In each body the first, and the first behind what holds the operation: the others come
    later wherever control comes from."""
    first: dict[tuple[Path, bool], _Touch] = {}
    for t in found:
        body = t.site.path[:-1]
        is_behind = site.path[: len(body)] == body and t.site.path > site.path
        first.setdefault((body, is_behind), t)
    return list(first.values())


def _touches(places: Sequence[StatementSite], buffers: set[Buffer]) -> dict[Buffer, list[_Touch]]:
    out: dict[Buffer, list[_Touch]] = {b: [] for b in buffers}
    for site in places:
        s = site.statement
        mma = s if type(s) is Mma else None
        for use in register_uses(s):
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


def _is_same_accumulator(site: StatementSite, use: RegisterUse, t: _Touch) -> bool:
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
    order: int, t: _Touch, found: Found, line: StatementTimes
) -> Iterator[tuple[Instance, _By]]:
    """For each operation of a statement the first time behind it that another runs."""
    trips = [len(found.values.get(loop.path, (0,))) for loop in t.site.loops]
    coords = np.indices(trips).reshape(len(trips), math.prod(trips)).T
    spans = np.array([line.span[loop.path] for loop in t.site.loops], np.int64)
    times = UNIT * (line.start[t.site.path] + coords @ spans)
    issues = found.completions.instances(order)
    at = np.searchsorted(times, np.array([i.time for i in issues], np.int64), "right")
    for issue, k in zip(issues, at.tolist(), strict=True):
        if k < len(times):
            where = partial(_row, coords, k)
            yield issue, _By(t.site, where, int(times[k]), agent_of(t.site))


def _row(coords: Array, k: int) -> tuple[int, ...]:
    return tuple(coords[k].tolist())
