"""What touches the memory or the registers of asynchronous operations behind their issue.

Between the issue of an operation and the wait behind which it is complete nobody, its own thread
included, may touch the bytes it writes or write those it reads; the same holds for registers, but
that products under way may share an accumulator. Which iterations meet follows from addresses and
control flow alone, not from waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TypeAlias

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
    first = _First()
    for space in spaces(kernel):
        _in_memory(space, kernel, found, line, first)
    for a in found.accesses:
        if a.moment is Moment.ISSUE:
            _at_exit(a, found, first)
    _in_registers(found, line, first)
    return first.in_order()


_Which: TypeAlias = tuple[object, ...]
_Coords: TypeAlias = Sequence[tuple[int, ...]]
_Met: TypeAlias = tuple[Instance, int, _Coords, int]
"""An operation, when it is met, and the iteration of that: its number in a row of iterations."""


@dataclass(frozen=True, slots=True, eq=False)
class _By:
    """Who meets operations: the statement at a site, None for the end of the kernel; `agent` and
    `issuer` as in `Meeting`."""

    site: StatementSite | None
    agent: Agent
    issuer: int | None = None

    @property
    def body(self) -> Path | None:
        return None if self.site is None else self.site.path[:-1]


def _by(site: StatementSite, issuer: int | None = None) -> _By:
    return _By(site, agent_of(site), issuer)


@dataclass(frozen=True, slots=True, eq=False)
class _Of:
    """What is met: operations of the statement at a site, which complete as `completes` says, in a
    buffer that they write or not."""

    site: StatementSite
    completes: Completes
    buffer: Buffer
    writes: bool


@dataclass(slots=True, eq=False)
class _First:
    """The first meeting of each operation with each body and agent, and its number."""

    found: dict[_Which, dict[Instance, tuple[int, int, _Of, _By, _Coords, int]]] = field(
        default_factory=dict["_Which", "dict[Instance, tuple[int, int, _Of, _By, _Coords, int]]"]
    )
    number: int = 0

    def add(self, of: _Of, by: _By, met: Iterable[_Met]) -> None:
        """Note meetings, unless some are known that come before."""
        key = of.completes, of.writes, by.body, by.agent, by.issuer
        known = self.found.setdefault(key, {})
        number = self.number
        for issue, time, coords, at in met:
            if issue not in known or time < known[issue][0]:
                known[issue] = time, number, of, by, coords, at
                number += 1
        self.number = number

    def in_order(self) -> tuple[Meeting, ...]:
        """The meetings in order of time, of one time in that of their operations."""
        nowhere: frozenset[Branch] = frozenset()
        listed = [
            (time, issue.time, number, issue, of, by, coords[at])
            for known in self.found.values()
            for issue, (time, number, of, by, coords, at) in known.items()
        ]
        listed.sort(key=itemgetter(0, 1, 2))
        return tuple(
            Meeting(
                of.site, issue, of.completes, of.buffer, of.writes, by.site, coords, time, nowhere,
                by.agent, by.issuer,
            )
            for time, _, _, issue, of, by, coords in listed
        )  # fmt: skip


def _at_exit(a: Access, found: Found, first: _First) -> None:
    """Operations on shared memory, which ends with the block, and those that an mbarrier there
    counts, are complete before that."""
    if a.buffer.memory is not Memory.SHARED and not a.use.completes.by_mbarrier:
        return
    of, nowhere = _Of(a.site, a.use.completes, a.buffer, a.writes), [()]
    for agent, mine in groupby(found.completions.instances(a.order), attrgetter("agent")):
        first.add(of, _By(None, agent), ((issue, NEVER, nowhere, 0) for issue in mine))


# --- memory -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Touched:
    """The instances of an access: `coords` in order, the same in `rows`, `times`, and by `kind`
    which of `cells` each touches. Iterations that touch the same are of one kind."""

    footprint: Footprint
    coords: Array
    times: Array
    kind: Array
    cells: tuple[Array, ...]
    rows: _Coords

    @property
    def access(self) -> Access:
        return self.footprint.access

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last cell that any instance touches; the last before the first where
        none does."""
        ends = [(int(c[0]), int(c[-1])) for c in self.cells if c.size]
        return min((a for a, _ in ends), default=1), max((b for _, b in ends), default=0)


_Ends: TypeAlias = dict[tuple[_Touched, Agent], Array]
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
    listed = [tuple(row) for row in coords.tolist()]
    if not exact or f.cells is None:
        alike, any_cell = np.zeros(len(times), np.int64), np.zeros(1, np.int64)
        return _Touched(f, coords, times, alike, (any_cell,), listed)
    key, rows = np.zeros(len(times), np.int64), np.zeros(f.cells.size, np.int64)
    for i, values in zip(f.loops, f.coords, strict=True):
        key, rows = key * a.trips[i] + coords[:, i], rows * a.trips[i] + values
    order = np.lexsort((f.cells, rows))
    cells, rows = f.cells[order], rows[order]
    wanted, kind = np.unique(key, return_inverse=True)
    first, stop = np.searchsorted(rows, wanted, "left"), np.searchsorted(rows, wanted, "right")
    kinds: dict[bytes, int] = {}
    parts: list[Array] = []
    numbers: list[int] = []
    for i, j in zip(first.tolist(), stop.tolist(), strict=True):
        mine = cells[i:j].tobytes()
        if mine not in kinds:
            kinds[mine] = len(parts)
            parts.append(cells[i:j])
        numbers.append(kinds[mine])
    kind = np.array(numbers, np.int64)[kind.reshape(-1)]
    return _Touched(f, coords, times, kind, tuple(parts), listed)


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
    who = [_by(b.access.site, b.access.use.issuer) for b in late]
    which = [(by.body, by.agent, by.issuer) for by in who]
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
        of = _Of(x.site, x.use.completes, x.buffer, x.writes)
        for k in np.flatnonzero(meeting).tolist():
            b = late[k]
            if known.until.get(which[k], NEVER) <= starts[k]:
                continue
            if not _may_meet(x, b.access, space, exact=exact):
                continue
            if are_of_different_blocks(x, b.access, kernel):
                continue
            meets = _conflicts(a, b)
            if not meets.any():
                continue
            if are_concurrent(x.site, b.access.site):
                for by, met in _across(a, b, issues, meets, found, ended):
                    first.add(of, by, met)
            else:
                met = _first_behind(a, b, issues, meets)
                known.note(which[k], met)
                first.add(of, who[k], met)


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """When so many operations of an access are met, by who meets them; of whom all of them are met,
    the last time: what begins then or later meets none of them before."""

    noperations: int
    times: dict[_Which, dict[Instance, int]]
    until: dict[_Which, int]

    def note(self, who: _Which, met: Iterable[_Met]) -> None:
        """Keep meetings, each the first that is known."""
        known = self.times.setdefault(who, {})
        for issue, time, *_ in met:
            if issue not in known or time < known[issue]:
                known[issue] = time
        if len(known) == self.noperations:
            self.until[who] = max(known.values())


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


def _first_behind(a: _Touched, b: _Touched, issues: Sequence[Instance], meets: Array) -> list[_Met]:
    """For each instance of one access the first of the other that it conflicts with, later."""
    out: list[_Met] = []
    order = b.times.argsort(kind="stable")
    times: list[int] = b.times.tolist()
    for kind in range(len(a.cells)):
        theirs = order[meets[kind][b.kind[order]]]
        if not theirs.size:
            continue
        mine = (a.kind == kind).nonzero()[0]
        at = b.times[theirs].searchsorted(a.times[mine], "right")
        is_met = at < theirs.size
        pairs = zip(mine[is_met].tolist(), theirs[at[is_met]].tolist(), strict=True)
        out += [(issues[i], times[k], b.rows, k) for i, k in pairs]
    return out


# --- roles --------------------------------------------------------------------------------------


def _across(
    a: _Touched,
    b: _Touched,
    issues: Sequence[Instance],
    meets: Array,
    found: Found,
    known: _Ends,
) -> Iterator[tuple[_By, list[_Met]]]:
    """Operations that another role meets before they begin, behind the last time that it is known
    to them to have met them: they are to be complete before the arrival by which it knows of them.
    """
    f, g = a.access, b.access
    of, to = agent_of(f.site), agent_of(g.site)
    roles, at_once = found.completions.roles, f.use.completes.by_mbarrier
    seen_times, seen = roles.arrivals_known(of, to, g.use.issuer)
    times: list[int] = b.times.tolist()
    met: list[_Met] = []
    handed: dict[int, list[_Met]] = {}
    listed = list(_first_across(a, b, meets, found, known))
    positions: list[int]
    positions = np.searchsorted(seen_times, [times[k] for _, k in listed], "left").tolist()
    for (i, k), at in zip(listed, positions, strict=True):
        issue, arrival = issues[i], seen[at]
        if arrival is None or arrival.time < issue.time or at_once:
            met.append((issue, times[k], b.rows, k))
            continue
        if arrival.order not in handed:
            handed[arrival.order] = []
        handed[arrival.order].append((issue, arrival.time, (arrival.coords,), 0))
    yield _by(g.site, g.use.issuer), met
    for order, mine in handed.items():
        yield _By(found.places[order], of, g.use.issuer), mine


def _first_across(
    a: _Touched, b: _Touched, meets: Array, found: Found, known: _Ends
) -> Iterator[tuple[int, int]]:
    """For each instance of one access the first of the other that it conflicts with, behind what is
    known to it to have been; of loads that an mbarrier counts, that are not known to be over."""
    f, g = a.access, b.access
    of, to = agent_of(f.site), agent_of(g.site)
    past_times, past = found.completions.roles.arrivals_known(to, of, f.use.issuer)
    since = np.array([-1 if x is None else x.time for x in past], np.int64)
    begin = since[np.searchsorted(past_times, a.times, "left")]
    ended = _ended(b, of, found.completions, known)
    order = b.times.argsort(kind="stable")
    for kind in range(len(a.cells)):
        theirs = order[meets[kind][b.kind[order]]]
        n = theirs.size
        if not n:
            continue
        mine = (a.kind == kind).nonzero()[0]
        at = b.times[theirs].searchsorted(begin[mine], "left")
        if ended is not None:
            over, issued = np.append(ended[theirs], NEVER), a.times[mine]
            while (is_over := over[at] < issued).any():
                at = at + is_over
        is_met = at < n
        yield from zip(mine[is_met].tolist(), theirs[at[is_met]].tolist(), strict=True)


def _ended(b: _Touched, agent: Agent, done: Completions, known: _Ends) -> Array | None:
    """By instance of a load that an mbarrier counts, when an agent first comes to a wait behind
    which it is complete; None for other accesses."""
    if not b.access.use.completes.by_mbarrier:
        return None
    if (b, agent) not in known:
        loads = {i.coords: i for i in done.instances(b.access.order)}
        waits = done.ends(WITH_PHASE)
        ends = [NEVER] * len(b.rows)
        for k, row in enumerate(b.rows):
            if row not in loads or loads[row] not in waits:
                continue
            for e in waits[loads[row]]:
                if e.agent == agent and e.time < ends[k]:
                    ends[k] = e.time
        known[b, agent] = np.array(ends, np.int64)
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
        of = _Of(site, use.completes, use.reg.buffer, use.writes)
        for t in _first_of_bodies(site, meets):
            first.add(of, _by(t.site), _register_meetings(order, t, found, line))


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


def _register_meetings(order: int, t: _Touch, found: Found, line: StatementTimes) -> Iterator[_Met]:
    """For each operation of a statement the first time behind it that another runs."""
    trips = [len(found.values.get(loop.path, (0,))) for loop in t.site.loops]
    coords = np.indices(trips).reshape(len(trips), math.prod(trips)).T
    spans = np.array([line.span[loop.path] for loop in t.site.loops], np.int64)
    times = UNIT * (line.start[t.site.path] + coords @ spans)
    issues = found.completions.instances(order)
    at = times.searchsorted(np.array([i.time for i in issues], np.int64), "right").tolist()
    rows = [tuple(row) for row in coords.tolist()]
    behind: list[int] = times.tolist()
    for issue, k in zip(issues, at, strict=True):
        if k < len(behind):
            yield issue, behind[k], rows, k
