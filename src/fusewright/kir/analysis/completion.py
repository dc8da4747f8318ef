"""When asynchronous operations are complete, and who knows it.

The control flow of a kernel is run with its asynchronous statements and syncs only, which gives
for each operation, iteration by iteration, the waits behind which it is complete. Groups complete
in the threads that issued them, in order; a bulk load completes with the phase of its mbarrier,
for whoever waits. What the blocks of a cluster store, copy and arrive for each other all do alike,
so that what a block does for all stands for what comes to it. Roles hand on to each other what they
did, and know, at the barriers at which one arrives and another waits
(`kir/analysis/role_order.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter

from fusewright.kir.analysis.async_run import (
    Agent,
    AsyncRun,
    Branch,
    Changes,
    Event,
    Instance,
    Plan,
    changed_event,
)
from fusewright.kir.analysis.lanes import Array
from fusewright.kir.analysis.role_order import RoleOrder, role_order
from fusewright.kir.analysis.sites import KEPT, Path, StatementSite, sites
from fusewright.kir.analysis.times import timeline
from fusewright.kir.ir import AsyncCommit, AsyncKind, AsyncWait, Kernel, Statement
from fusewright.kir.traits import Completes, is_asynchronous

_Ends = Mapping[Instance, Sequence[Instance]]
"""By operation the waits that end it."""


@dataclass(frozen=True, slots=True, eq=False)
class Completions:
    """The operations of a kernel in a `run`: `issued` by textual order, the waits that end each
    `by_phase`, or with its group, as far as the first that its threads certainly come to, and how
    roles know of each other; `concerned`: by kind what starts, ends or awaits its groups."""

    issued: Mapping[int, Sequence[Instance]]
    by_phase: _Ends
    groups: Mapping[AsyncKind, Groups]
    roles: RoleOrder
    run: AsyncRun | None = None
    concerned: Mapping[AsyncKind, Sequence[Event]] = field(
        default_factory=dict[AsyncKind, Sequence[Event]]
    )

    def instances(self, order: int) -> Sequence[Instance]:
        """The operations of the statement at a textual position."""
        return self.issued.get(order, ())

    def ends_of(self, instance: Instance, completes: Completes) -> Sequence[Instance]:
        """The waits behind which an operation is complete."""
        if completes.kind is None:
            return self.by_phase.get(instance, ()) if completes.by_mbarrier else ()
        found = self.groups.get(completes.kind)
        if found is None:
            return ()
        return (found.read if completes.is_read else found.whole).get(instance, ())

    def commits_between(
        self, kind: AsyncKind, issue: Instance, stop: int, branches: frozenset[Branch]
    ) -> int:
        """How many groups of a kind the threads of an operation have certainly ended since, at a
        time, when they are in some branches."""
        found = self.groups.get(kind)
        return 0 if found is None else found.commits.count(issue, stop, branches)


_NONE = Completions({}, {}, {}, RoleOrder({}, ()))


@lru_cache(maxsize=KEPT)
def has_operations(kernel: Kernel) -> bool:
    """Whether a kernel has asynchronous operations."""
    acting = (s.statement for s in sites(kernel) if not s.statement.is_private)
    return any(map(is_asynchronous, acting))


def completions(
    kernel: Kernel, places: Sequence[StatementSite], values: Mapping[Path, Array]
) -> Completions:
    """What completes when. `places` are the kernel's sites, `values` the iterations to look at.

    A loop of unknown extent counts as one that runs just these. Raises UnsupportedError when there
    are too many, or an operation stands in a loop whose iterations are not known to repeat.
    """
    if not has_operations(kernel):
        return _NONE
    line = timeline(kernel, {path: len(v) for path, v in values.items()})
    run = AsyncRun(kernel, places, values, line)
    events = run.events
    issued: dict[int, list[Instance]] = {}
    for e in _of(events, lambda e: is_asynchronous(e.statement)):
        issued.setdefault(e.instance.order, []).append(e.instance)
    roles, loads = role_order(events)
    concerned: dict[AsyncKind, list[Event]] = {kind: [] for kind in AsyncKind}
    for e in events:
        kind = _concerned(e.statement)
        if kind is not None:
            concerned[kind].append(e)
    groups = {kind: _groups(kind, found) for kind, found in concerned.items()}
    return Completions(issued, loads, groups, roles, run, concerned)


def with_planned(done: Completions, plan: Plan) -> Completions:
    """What completes when, with further commits and waits."""
    assert done.run is not None
    added = done.run.planned(plan)
    groups = dict(done.groups)
    for kind in AsyncKind:
        mine = _concerning(added, kind)
        if mine:
            events = [*done.concerned[kind], *mine]
            events.sort(key=attrgetter("instance.time"))
            groups[kind] = _groups(kind, events)
    return replace(done, groups=groups)


def changed_groups(done: Completions, kind: AsyncKind, changes: Changes) -> Completions:
    """What completes when, after changes to the commits and waits of one kind."""
    mine = done.concerned[kind]
    changed = [e for e in mine if e.statement in changes]
    if not changed:
        return done
    now = [x for e in mine for x in changed_event(e, changes)]
    group = _regrouped(kind, done.groups[kind], now, changed)
    return replace(done, groups={**done.groups, kind: group})


def _of(events: Iterable[Event], is_meant: Callable[[Event], bool]) -> list[Event]:
    """The events of statements that are meant, each of which is asked about once."""
    known: dict[Statement, bool] = {}
    out: list[Event] = []
    for e in events:
        wanted = known.get(e.statement)
        if wanted is None:
            wanted = known[e.statement] = is_meant(e)
        if wanted:
            out.append(e)
    return out


def _concerning(events: Iterable[Event], kind: AsyncKind) -> list[Event]:
    """The operations, commits and waits of a kind."""
    return [e for e in events if _concerned(e.statement) is kind]


# --- groups -------------------------------------------------------------------------------------


def _concerned(s: Statement) -> AsyncKind | None:
    """The kind of groups that a statement starts, ends or waits for."""
    return s.kind if isinstance(s, AsyncCommit | AsyncWait) else s.group()


@dataclass(frozen=True, slots=True, eq=False)
class _Commits:
    """The ends of groups by the agent that ends them, in order of time; `certain` when all of them
    stand in no branch that only some threads take."""

    of: Mapping[Agent, Sequence[Instance]]
    times: Mapping[Agent, Sequence[int]]
    certain: bool

    def position(self, op: Instance) -> tuple[int, int]:
        """Where an operation stands among the commits of its agent, and of all threads."""
        mine = bisect_right(self.times.get(op.agent, ()), op.time)
        return mine, bisect_right(self.times.get(None, ()), op.time)

    def before(self, agent: Agent, time: int) -> int:
        """How many an agent comes to before a time, of its own and of all threads."""
        agents = dict.fromkeys((agent, None))
        return sum(bisect_left(self.times.get(a, ()), time) for a in agents)

    def count(self, op: Instance, stop: int, branches: frozenset[Branch]) -> int:
        """Those that the threads of an operation come to certainly before a time, when they are in
        some branches then."""
        out = 0
        for agent in dict.fromkeys((op.agent, None)):
            times = self.times.get(agent, ())
            first, last = bisect_right(times, op.time), bisect_left(times, stop)
            for c in self.of[agent][first:last] if first < last else ():
                out += not c.branches or c.branches <= op.branches | branches
        return out


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The groups of one kind: where they end, and the waits behind which operations are complete
    as a `whole`, or have `read` what they read."""

    commits: _Commits
    whole: _Ends
    read: _Ends


def _groups(kind: AsyncKind, events: Sequence[Event]) -> Groups:
    """The groups of operations, commits and waits, in order of time."""
    commits = _commits(events)
    whole = _ends(kind, events, commits, takes_reads=False)
    read = _ends(kind, events, commits, takes_reads=True) if kind.waits_for_reads else whole
    return Groups(commits, whole, read)


def _regrouped(
    kind: AsyncKind, before: Groups, events: Sequence[Event], changed: Sequence[Event]
) -> Groups:
    """The groups of events, of which some are others than before: what completes before the first
    of those or begins behind the last one is as it was."""
    times = [e.instance.time for e in changed]
    first, last = min(times), max(times)
    has_commits = any(isinstance(e.statement, AsyncCommit) for e in changed)
    commits = _commits(events) if has_commits else before.commits

    def ends(known: _Ends, *, takes_reads: bool) -> _Ends:
        def kept(op: Instance) -> Sequence[Instance] | None:
            found = known.get(op, ())
            is_over = found and found[-1].time < first and found[-1].branches <= op.branches
            return found if is_over or op.time > last else None

        return _ends(kind, events, commits, kept, takes_reads=takes_reads)

    whole = ends(before.whole, takes_reads=False)
    read = ends(before.read, takes_reads=True) if kind.waits_for_reads else whole
    return Groups(commits, whole, read)


def _commits(events: Sequence[Event]) -> _Commits:
    """Where groups end."""
    ended: dict[Agent, list[Instance]] = {}
    for e in events:
        if isinstance(e.statement, AsyncCommit):
            ended.setdefault(e.instance.agent, []).append(e.instance)
    times = {agent: [i.time for i in found] for agent, found in ended.items()}
    certain = not any(i.branches for found in ended.values() for i in found)
    return _Commits(ended, times, certain)


def _nothing(op: Instance) -> Sequence[Instance] | None:
    """What is known of operations before any is looked at."""


def _ends(
    kind: AsyncKind,
    events: Sequence[Event],
    commits: _Commits,
    kept: Callable[[Instance], Sequence[Instance] | None] = _nothing,
    *,
    takes_reads: bool,
) -> _Ends:
    """For each operation the waits that end it, until one that it certainly comes to, unless they
    are `kept`."""
    waits: dict[Agent, list[tuple[Instance, AsyncWait]]] = {}
    operations: list[Instance] = []
    for e in events:
        s = e.statement
        if isinstance(s, AsyncWait):
            if takes_reads or not s.reads_only:
                waits.setdefault(e.instance.agent, []).append((e.instance, s))
        elif s.group() is kind:
            operations.append(e.instance)
    out: dict[Instance, Sequence[Instance]] = {}
    rows: dict[Agent, _Waits] = {}
    alike: dict[object, list[Instance]] = {}
    for op in operations:
        if (known := kept(op)) is not None:
            if known:
                out[op] = known
            continue
        if op.agent not in rows:
            rows[op.agent] = _waits_of(op.agent, waits, commits)
        first = bisect_right(rows[op.agent].times, op.time)
        key = op.agent, op.branches, first, commits.position(op)
        if key not in alike:
            alike[key] = _ends_of(op, first, rows[op.agent], commits)
        if alike[key]:
            out[op] = alike[key]
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Waits:
    """The waits that an agent comes to, in order of time, and how many groups end `before` each."""

    found: Sequence[tuple[Instance, AsyncWait]]
    times: Sequence[int]
    before: Sequence[int]


def _waits_of(
    agent: Agent,
    waits: Mapping[Agent, Sequence[tuple[Instance, AsyncWait]]],
    commits: _Commits,
) -> _Waits:
    """The waits of an agent, and of all threads."""
    found, every = waits.get(agent, ()), waits.get(None, ())
    if every and agent is not None:
        found = sorted((*found, *every), key=lambda w: w[0].time)
    times = [wait.time for wait, _ in found]
    return _Waits(found, times, [commits.before(agent, time) for time in times])


def _ends_of(op: Instance, first: int, waits: _Waits, commits: _Commits) -> list[Instance]:
    """The waits that end an operation, of those from the `first` behind it on; others that no
    commit and no wait stands between have the same."""
    out: list[Instance] = []
    begun = commits.before(op.agent, op.time + 1)
    for k in range(first, len(waits.found)):
        wait, s = waits.found[k]
        ended = waits.before[k] - begun
        if not commits.certain:
            ended = commits.count(op, wait.time, wait.branches)
        if ended > s.keep:
            out.append(wait)
            if wait.branches <= op.branches:
                break
    return out
