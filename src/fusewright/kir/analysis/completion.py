"""When asynchronous operations are complete, and who knows it.

The control flow of a kernel is run with its asynchronous statements and syncs only, which gives
for each operation, iteration by iteration, the waits behind which it is complete. Groups complete
in the threads that issued them, in order; a bulk load completes with the phase of its mbarrier,
for whoever waits. What the blocks of a cluster store for each other all do alike, so that a block's
own stores stand for those that come to it. Roles hand on to each other what they did, and know, at
the barriers at which one arrives and another waits (`kir/analysis/role_order.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fusewright.kir.analysis.async_run import (
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
from fusewright.kir.analysis.sites import Path, StatementSite, sites
from fusewright.kir.analysis.times import timeline
from fusewright.kir.ir import AsyncCommit, AsyncKind, AsyncWait, Kernel
from fusewright.kir.traits import WITH_PHASE, Completes, is_asynchronous, with_group


@dataclass(frozen=True, slots=True, eq=False)
class Completions:
    """The operations of a kernel in a `run`: `issued` by textual order, the waits that end each by
    operation and way to be complete, as far as the first that its threads certainly come to, the
    ends of groups, and how roles know of each other."""

    issued: Mapping[int, Sequence[Instance]]
    ends: Mapping[tuple[Instance, Completes], Sequence[Instance]]
    commits: Mapping[AsyncKind, Sequence[Instance]]
    roles: RoleOrder
    run: AsyncRun | None = None

    def instances(self, order: int) -> Sequence[Instance]:
        """The operations of the statement at a textual position."""
        return self.issued.get(order, ())

    def ends_of(self, instance: Instance, completes: Completes) -> Sequence[Instance]:
        """The waits behind which an operation is complete."""
        return self.ends.get((instance, completes), ())

    def commits_between(
        self, kind: AsyncKind, issue: Instance, stop: int, branches: frozenset[Branch]
    ) -> int:
        """How many groups of a kind the threads of an operation have certainly ended since, at a
        time, when they are in some branches."""
        return _count(self.commits.get(kind, ()), issue, stop, branches)


_NONE = Completions({}, {}, {}, RoleOrder({}, ()))


def has_operations(kernel: Kernel) -> bool:
    """Whether a kernel has asynchronous operations."""
    return any(is_asynchronous(site.statement) for site in sites(kernel))


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
    return completed(AsyncRun(kernel, places, values, line), {})


def completed(run: AsyncRun, plan: Plan) -> Completions:
    """What completes when, with the syncs of a plan."""
    events = run.events(plan)
    issued: dict[int, list[Instance]] = {}
    for e in events:
        if is_asynchronous(e.statement):
            issued.setdefault(e.instance.order, []).append(e.instance)
    roles, loads = role_order(events)
    ends: dict[tuple[Instance, Completes], Sequence[Instance]] = {}
    for load, waits in loads.items():
        ends[load, WITH_PHASE] = waits
    commits: dict[AsyncKind, Sequence[Instance]] = {}
    for kind in AsyncKind:
        group = _Group(kind, [e for e in events if _concerns(e, kind)])
        commits[kind] = group.commits
        ends |= group.ends()
    return Completions(issued, ends, commits, roles, run)


def changed_groups(done: Completions, kind: AsyncKind, changes: Changes) -> Completions:
    """What completes when, after changes to the commits and waits of one kind."""
    assert done.run is not None
    events = [x for e in done.run.events({}) for x in changed_event(e, changes)]
    group = _Group(kind, [e for e in events if _concerns(e, kind)])
    kept = {key: waits for key, waits in done.ends.items() if key[1].kind is not kind}
    commits = {**done.commits, kind: group.commits}
    return replace(done, ends={**kept, **group.ends()}, commits=commits)


# --- groups -------------------------------------------------------------------------------------


def _concerns(e: Event, kind: AsyncKind) -> bool:
    s = e.statement
    return s.group() is kind or (isinstance(s, AsyncCommit | AsyncWait) and s.kind is kind)


@dataclass(slots=True, eq=False)
class _Group:
    """Operations, commits and waits of one kind, in order of time."""

    kind: AsyncKind
    events: Sequence[Event]
    commits: list[Instance] = field(default_factory=list[Instance])

    def __post_init__(self) -> None:
        self.commits = [e.instance for e in self.events if isinstance(e.statement, AsyncCommit)]

    def ends(self) -> dict[tuple[Instance, Completes], list[Instance]]:
        """For each operation the waits that end it, until one that it certainly comes to."""
        out: dict[tuple[Instance, Completes], list[Instance]] = {}
        waits = [(e.instance, e.statement) for e in self.events]
        found = [(i, s) for i, s in waits if isinstance(s, AsyncWait)]
        times = [i.time for i, _ in found]
        for e in self.events:
            if e.statement.group() is not self.kind:
                continue
            op = e.instance
            for completes, takes_reads in self._ways():
                for wait, s in found[bisect_right(times, op.time) :]:
                    if wait.agent not in (op.agent, None) or (s.reads_only and not takes_reads):
                        continue
                    if _count(self.commits, op, wait.time, wait.branches) > s.keep:
                        out.setdefault((op, completes), []).append(wait)
                        if wait.branches <= op.branches:
                            break
        return out

    def _ways(self) -> list[tuple[Completes, bool]]:
        whole = [(with_group(self.kind), False)]
        if not self.kind.waits_for_reads:
            return whole
        return [*whole, (with_group(self.kind, is_read=True), True)]


def _count(
    commits: Sequence[Instance], op: Instance, stop: int, branches: frozenset[Branch]
) -> int:
    """The commits that the threads of an operation come to certainly before a time, when they are
    in some branches then."""
    first = bisect_right(commits, op.time, key=_time)
    last = bisect_left(commits, stop, key=_time)
    known = op.branches | branches
    return sum(
        c.agent in (op.agent, None) and (not c.branches or c.branches <= known)
        for c in commits[first:last]
    )


def _time(i: Instance) -> int:
    return i.time
