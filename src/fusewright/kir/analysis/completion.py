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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Literal, TypeAlias

import numpy as np

from fusewright.kir.analysis.async_run import (
    Agent,
    AsyncRun,
    Branch,
    Changes,
    Event,
    Instance,
    Plan,
)
from fusewright.kir.analysis.lanes import Array
from fusewright.kir.analysis.role_order import RoleOrder, role_order
from fusewright.kir.analysis.sites import KEPT, Path, StatementSite, sites
from fusewright.kir.analysis.times import timeline
from fusewright.kir.ir import AsyncCommit, AsyncKind, AsyncWait, Kernel, Statement
from fusewright.kir.traits import Completes, is_asynchronous

Ends: TypeAlias = Mapping[Instance, Sequence[Instance]]
"""By operation the waits that end it."""
Side: TypeAlias = Literal["left", "right"]


@dataclass(frozen=True, slots=True, eq=False)
class Completions:
    """The operations of a kernel in a `run`: `issued` by textual order, the waits that end each
    `by_phase`, or with its group, as far as the first that its threads certainly come to, and how
    roles know of each other; `concerned`: by kind what starts, ends or awaits its groups."""

    issued: Mapping[int, Sequence[Instance]]
    by_phase: Ends
    groups: Mapping[AsyncKind, Groups]
    roles: RoleOrder
    run: AsyncRun | None = None
    concerned: Mapping[AsyncKind, Sequence[Acts]] = field(
        default_factory=dict["AsyncKind", "Sequence[Acts]"]
    )

    def instances(self, order: int) -> Sequence[Instance]:
        """The operations of the statement at a textual position."""
        return self.issued.get(order, ())

    def ends(self, completes: Completes) -> Ends:
        """The waits behind which operations of a kind are complete; operations that no wait ends
        are not among them. Those that the same waits end have one row."""
        if completes.kind is None:
            return self.by_phase if completes.by_mbarrier else {}
        found = self.groups.get(completes.kind)
        if found is None:
            return {}
        return found.read if completes.is_read else found.whole

    def ends_of(self, instance: Instance, completes: Completes) -> Sequence[Instance]:
        """The waits behind which an operation is complete."""
        return self.ends(completes).get(instance, ())

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
    concerned: dict[AsyncKind, list[Acts]] = {kind: [] for kind in AsyncKind}
    for acts in _by_site(events):
        if is_asynchronous(acts.statement):
            issued[acts.instances[0].order] = acts.instances
        kind = _concerned(acts.statement)
        if kind is not None:
            concerned[kind].append(acts)
    roles, loads = role_order(events)
    groups = {kind: _groups(kind, found) for kind, found in concerned.items()}
    return Completions(issued, loads, groups, roles, run, concerned)


def with_planned(done: Completions, plan: Plan) -> Completions:
    """What completes when, with further commits and waits."""
    assert done.run is not None
    added: dict[AsyncKind, list[Acts]] = {}
    for acts in _by_site(done.run.planned(plan)):
        kind = _concerned(acts.statement)
        if kind is not None:
            added.setdefault(kind, []).append(acts)
    new = {kind: _groups(kind, [*done.concerned[kind], *found]) for kind, found in added.items()}
    return replace(done, groups={**done.groups, **new})


def changed_groups(done: Completions, kind: AsyncKind, changes: Changes) -> Completions:
    """What completes when, after changes to the commits and waits of one kind."""
    mine = done.concerned[kind]
    changed = [acts for acts in mine if acts.statement in changes]
    if not changed:
        return done
    now: list[Acts] = []
    for acts in mine:
        new = changes.get(acts.statement, acts.statement)
        if new is not None:
            now.append(acts if new is acts.statement else Acts(new, acts.agent, acts.instances))
    group = _regrouped(kind, done.groups[kind], now, changed)
    return replace(done, groups={**done.groups, kind: group})


@dataclass(frozen=True, slots=True, eq=False)
class Acts:
    """A statement where it stands, the agent that runs it, and each time that it does, in order."""

    statement: Statement
    agent: Agent
    instances: list[Instance]


def _by_site(events: Iterable[Event]) -> Iterable[Acts]:
    """The events of each statement where it stands, so that it is asked once what it is."""
    out: dict[object, Acts] = {}
    for e in events:
        key = e.statement, e.instance.order, e.instance.agent
        if key not in out:
            out[key] = Acts(e.statement, e.instance.agent, [])
        out[key].instances.append(e.instance)
    return out.values()


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

    def positions(self, agent: Agent, times: Array, side: Side) -> Array:
        """Where times of an agent stand among the commits of its own, and of all threads: a column
        for each, of which the sum is how many come before."""
        listed = [self.times[a] for a in _with_all(agent) if a in self.times]
        found = [np.searchsorted(of_agent, times, side) for of_agent in listed]
        return np.stack(found, axis=1) if found else np.zeros((len(times), 1), np.int64)

    def count(self, op: Instance, stop: int, branches: frozenset[Branch]) -> int:
        """Those that the threads of an operation come to certainly before a time, when they are in
        some branches then."""
        out, around = 0, op.branches | branches
        for agent in (op.agent, None):
            if agent in self.times:
                first = bisect_right(self.times[agent], op.time)
                last = bisect_left(self.times[agent], stop, first)
                for c in self.of[agent][first:last]:
                    out += c.branches <= around
            if agent is None:
                break
        return out


def _with_all(agent: Agent) -> tuple[Agent, ...]:
    """Who ends groups for an agent: itself, and all threads."""
    return (None,) if agent is None else (agent, None)


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The groups of one kind: where they end, and the waits behind which operations are complete
    as a `whole`, or have `read` what they read."""

    commits: _Commits
    whole: Ends
    read: Ends


def _groups(kind: AsyncKind, listed: Sequence[Acts]) -> Groups:
    """The groups of operations, commits and waits."""
    commits = _commits(listed)
    whole = _ends(kind, listed, commits, {}, takes_reads=False)
    read = _ends(kind, listed, commits, {}, takes_reads=True) if kind.waits_for_reads else whole
    return Groups(commits, whole, read)


def _regrouped(
    kind: AsyncKind, before: Groups, listed: Sequence[Acts], changed: Sequence[Acts]
) -> Groups:
    """The groups of events, of which some are others than before: what completes before the first
    of those or begins behind the last one is as it was."""
    first = min(acts.instances[0].time for acts in changed)
    last = max(acts.instances[-1].time for acts in changed)
    has_commits = any(isinstance(acts.statement, AsyncCommit) for acts in changed)
    commits = _commits(listed) if has_commits else before.commits

    def ends(known: Ends, *, takes_reads: bool) -> Ends:
        kept: dict[Instance, Sequence[Instance]] = {}
        for acts in listed:
            for op in acts.instances if acts.statement.group() is kind else ():
                found = known.get(op, ())
                is_over = found and found[-1].time < first and found[-1].branches <= op.branches
                if is_over or op.time > last:
                    kept[op] = found
        return _ends(kind, listed, commits, kept, takes_reads=takes_reads)

    whole = ends(before.whole, takes_reads=False)
    read = ends(before.read, takes_reads=True) if kind.waits_for_reads else whole
    return Groups(commits, whole, read)


def _commits(listed: Sequence[Acts]) -> _Commits:
    """Where groups end."""
    ended: dict[Agent, list[Instance]] = {}
    for acts in listed:
        if isinstance(acts.statement, AsyncCommit):
            ended.setdefault(acts.agent, []).extend(acts.instances)
    for found in ended.values():
        found.sort(key=attrgetter("time"))
    times = {agent: [i.time for i in found] for agent, found in ended.items()}
    certain = not any(map(attrgetter("branches"), chain.from_iterable(ended.values())))
    return _Commits(ended, times, certain)


_Wait: TypeAlias = tuple[int, Instance, AsyncWait]


def _ends(
    kind: AsyncKind,
    listed: Sequence[Acts],
    commits: _Commits,
    kept: Ends,
    *,
    takes_reads: bool,
) -> Ends:
    """For each operation the waits that end it, until one that it certainly comes to, unless they
    are `kept`. Those that nothing stands between have one row of waits."""
    waits: dict[Agent, list[_Wait]] = {}
    operations: dict[Agent, list[Instance]] = {}
    for acts in listed:
        s = acts.statement
        if isinstance(s, AsyncWait):
            if takes_reads or not s.reads_only:
                found = [(i.time, i, s) for i in acts.instances]
                waits.setdefault(acts.agent, []).extend(found)
        elif s.group() is kind:
            left = [op for op in acts.instances if op not in kept]
            if left:
                operations.setdefault(acts.agent, []).extend(left)
    out = {op: found for op, found in kept.items() if found}
    for agent, mine in operations.items():
        out.update(_ends_of_agent(agent, mine, _waits_of(agent, waits, commits), commits))
    return out


def _ends_of_agent(
    agent: Agent, operations: Sequence[Instance], waits: _Waits, commits: _Commits
) -> Ends:
    """The waits that end the operations of one agent."""
    times = np.array([op.time for op in operations], np.int64)
    first = np.searchsorted(waits.times, times, "right").tolist()
    positions = commits.positions(agent, times, "right")
    begun: list[int] = positions.sum(axis=1).tolist()
    alike: dict[object, list[Instance]] = {}
    out: dict[Instance, Sequence[Instance]] = {}
    for op, k, row, n in zip(operations, first, positions.tolist(), begun, strict=True):
        key = op.branches, k, *row
        if key not in alike:
            alike[key] = _ends_of(op, k, n, waits, commits)
        if alike[key]:
            out[op] = alike[key]
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Waits:
    """The waits that an agent comes to, in order of time, and how many groups end `before` each."""

    found: Sequence[_Wait]
    times: Array
    before: Sequence[int]


def _waits_of(agent: Agent, waits: Mapping[Agent, Sequence[_Wait]], commits: _Commits) -> _Waits:
    """The waits of an agent, and of all threads."""
    found = [w for a in _with_all(agent) for w in waits.get(a, ())]
    found.sort(key=itemgetter(0))
    times = np.array([time for time, *_ in found], np.int64)
    before: list[int] = commits.positions(agent, times, "left").sum(axis=1).tolist()
    return _Waits(found, times, before)


def _ends_of(
    op: Instance, first: int, begun: int, waits: _Waits, commits: _Commits
) -> list[Instance]:
    """The waits that end an operation, of those from the `first` behind it on, where so many groups
    have ended; others that no commit and no wait stands between have the same."""
    out: list[Instance] = []
    for k in range(first, len(waits.found)):
        _, wait, s = waits.found[k]
        ended = waits.before[k] - begun
        if not commits.certain:
            ended = commits.count(op, wait.time, wait.branches)
        if ended > s.keep:
            out.append(wait)
            if wait.branches <= op.branches:
                break
    return out
