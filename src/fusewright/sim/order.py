"""Happens-before by replaying the sync events of a trace with vector clocks.

Strands that block at the same events make a unit; units run in turn, each through its own events,
until it blocks. Who knows what does not depend on the turns: where it would, a rule is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from fusewright.kir import ir
from fusewright.sim.clocks import (
    KINDS,
    LAUNCHES,
    Barrier,
    Clocks,
    History,
    Teams,
    cluster_barrier,
    engines_of,
)
from fusewright.sim.compute import Array
from fusewright.sim.conflicts import Conflicts
from fusewright.sim.edges import EdgeTest
from fusewright.sim.flags import Flags
from fusewright.sim.launches import EarlyLaunch
from fusewright.sim.lives import Lives
from fusewright.sim.model import Model
from fusewright.sim.phases import BarrierState, Fault
from fusewright.sim.replayable import Replayable, SyncArrival, UnitStep
from fusewright.sim.report import statement_text
from fusewright.sim.trace import TracedAccess


@dataclass(frozen=True, slots=True)
class Change:
    """A variation of the traced kernel: some syncs left out, one moved over a statement, or one
    replaced by a weaker one."""

    without: frozenset[ir.SyncStatement] = frozenset()
    moved: ir.SyncStatement | None = None
    direction: Literal["up", "down"] = "up"
    weaker: tuple[ir.SyncStatement, ir.SyncStatement] | None = None


def _place(p: SyncArrival, change: Change) -> float:
    """Where a point stands in the changed kernel: before every event with a number above it."""
    if p.statement is change.moved:
        return (p.above if change.direction == "up" else p.below) - 0.5
    return p.at


@dataclass(slots=True)
class _Replay:
    """A run of all units. By event and strand `loads` gives the barrier and phase of what is
    delivered to an mbarrier, `made` the column that says who knows that an mbarrier is made."""

    group: Replayable
    change: Change
    model: Model
    clocks: Clocks
    faults: list[Fault] = field(default_factory=list[Fault])
    barriers: dict[Barrier, BarrierState] = field(default_factory=dict[Barrier, BarrierState])
    lives: dict[int, int] = field(default_factory=dict[int, int])
    alive: dict[int, BarrierState] = field(default_factory=dict[int, BarrierState])
    met: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    entered: dict[tuple[int, int], list[int]] = field(
        default_factory=dict[tuple[int, int], list[int]]
    )
    loads: dict[tuple[int, int], tuple[Barrier, int]] = field(
        default_factory=dict[tuple[int, int], tuple[Barrier, int]]
    )
    made: dict[tuple[int, int], Barrier] = field(default_factory=dict[tuple[int, int], Barrier])
    arrivals: dict[int, int] = field(default_factory=dict[int, int])
    flags: Flags = field(init=False)
    ends: Array = field(init=False)
    unit: int = 0
    has_moved: bool = False
    reached: list[int] = field(init=False)
    """The unit whose turn it is, whether one has moved since the first one's, and the step that
    each comes to."""

    def __post_init__(self) -> None:
        self.flags = Flags(self.clocks, self.group.blocks, self.group.trace.cluster)
        self.reached = [0] * len(self.group.steps)

    def fork(self, change: Change) -> _Replay:
        """The replay as far as it is, to go on by itself with a change."""
        clocks = self.clocks.fork()
        barriers = {which: b.fork(clocks) for which, b in self.barriers.items()}
        new = replace(
            self, change=change, clocks=clocks, faults=[*self.faults], barriers=barriers,
            lives={**self.lives}, alive={k: barriers[b.which] for k, b in self.alive.items()},
            met={at: {*strands} for at, strands in self.met.items()}, entered={**self.entered},
            loads={**self.loads}, made={**self.made}, arrivals={**self.arrivals},
        )  # fmt: skip
        new.flags.cells.update(self.flags.cells)
        new.reached = [*self.reached]
        return new

    # --- turns ----------------------------------------------------------------------------------

    def run(self, before: Callable[[UnitStep], None] | None = None) -> None:
        """Let every unit go as far as it gets; `ends` is the place each strand comes to. What is to
        be done `before` a step is done at each attempt."""
        steps, reached = [self._changed(s) for s in self.group.steps], self.reached
        while steps:
            u = self.unit
            mine = steps[u]
            while reached[u] < len(mine):
                if before is not None:
                    before(mine[reached[u]])
                if not self._advance(u, mine[reached[u]]):
                    break
                reached[u] += 1
                self.has_moved = True
            self.unit = (u + 1) % len(steps)
            if not self.unit:
                if not self.has_moved:
                    break
                self.has_moved = False
        self.ends = np.full(self.group.nstrands, np.inf)
        stuck: list[SyncArrival] = []
        for u, mine in enumerate(steps):
            if reached[u] < len(mine):
                self.ends[self.group.units[u]] = mine[reached[u]].place
                stuck.append(mine[reached[u]].point)
        self._conclude(stuck)

    def _changed(self, steps: list[UnitStep]) -> list[UnitStep]:
        """The steps of a unit in the changed kernel."""
        without, moved = self.change.without, self.change.moved
        found = [s for s in steps if s.point.statement not in without]
        if moved is None:
            return found
        found = [replace(s, place=_place(s.point, self.change)) for s in found]
        return sorted(found, key=lambda s: s.place)

    def _conclude(self, stuck: list[SyncArrival]) -> None:
        if stuck:
            texts = ", ".join(dict.fromkeys(f"`{statement_text(p.statement)}`" for p in stuck))
            message = f"threads wait for ever at {texts}"
            for p in stuck:
                b = self.alive.get(int(p.mbarriers[0]))
                if b is not None and not b.pending and b.nbytes:
                    message += f"; phase {b.complete} lacks {b.nbytes} bytes"
            self.faults.append(Fault("deadlock", message, stuck[0].statement))
            return
        if self.model.waits_do_not_miss:
            for b in self.barriers.values():
                self.faults += b.missed()
        if not self.group.trace.is_cut:
            self._check_exit()
            self.faults += self.flags.left()

    def _check_exit(self) -> None:
        c = self.clocks
        for k, kind in enumerate(KINDS):
            late = np.flatnonzero(c.issued[:, k] > c.own[:, engines_of(kind)[0]])
            if len(late) and self.model.groups_end_before_exit:
                statement = next(
                    p.statement
                    for p in reversed(self.group.points)
                    if p.statement.group() is kind and np.isin(late, p.strands).any()
                )
                text = statement_text(statement)
                what = "is complete" if kind is ir.AsyncKind.MMA else "has read its source"
                message = f"a thread may exit before `{text}` {what}; wait for it"
                self.faults.append(Fault("rule", message, statement))
        for (event, _), (which, phase) in self.loads.items():
            column = c.columns.barrier(which)
            if self.model.loads_are_awaited and (c.known[:, column] <= phase).all():
                statement = self.group.trace.events[event].statement
                text = statement_text(statement)
                message = f"nobody waits for `{text}`; the block may exit before it is complete"
                self.faults.append(Fault("rule", message, statement))

    # --- events ---------------------------------------------------------------------------------

    def _advance(self, unit: int, step: UnitStep) -> bool:
        """Let a unit execute an event; False while it has to wait there."""
        s = step.point.statement
        if self.change.weaker is not None and s is self.change.weaker[0]:
            s = self.change.weaker[1]
        if not isinstance(s, ir.SyncStatement):
            return self._go_on(step, s)
        match s:
            case ir.BlockSync():
                teams = [step.point.strands]
                if self.model.block_sync_stays_in_block:
                    teams = _teams(self.group.blocks, step.point.strands)
                return self._meet(step, teams, orders=self.model.block_sync_orders)
            case ir.WarpSync():
                return self._meet(
                    step, self._warps(step.point.strands), orders=self.model.warp_sync_orders
                )
            case ir.ClusterWait():
                return self._wait_cluster(step)
            case ir.NamedSync():
                return self._named_sync(unit, step, s)
            case ir.MbarWait():
                return self._wait(step)
            case ir.SemaphoreAcquire():
                return self._take_turn(step, s)
            case _:
                return self._go_on(step, s)

    def _go_on(self, step: UnitStep, s: ir.Statement) -> bool:
        """An event that blocks at most until the lanes of a warp are there."""
        is_there = self._come_together(step)
        if is_there:
            self._pass(step, s)
        return is_there

    def _come_together(self, step: UnitStep) -> bool:
        """Whether the warps that execute a statement in step have all their strands there: some of
        them may wait for a semaphore of their own before it."""
        in_step = step.is_in_step and self.model.lanes_meet_in_time
        if not in_step or len(step.mine) == len(step.point.strands):
            return True
        arrived = self.met.setdefault(step.point.at, set())
        mine = set(step.strands.tolist())
        is_first = not mine <= arrived
        arrived |= mine
        teams = [t for t in self._warps(step.point.strands) if not mine.isdisjoint(t.tolist())]
        whole = [t for t in teams if arrived.issuperset(t.tolist())]
        for members in whole if is_first else ():
            self.clocks.meet(Teams.whole(members))
        return len(whole) == len(teams)

    def _warps(self, strands: Array) -> list[Array]:
        if not self.model.warp_sync_stays_in_warp:
            return [strands]
        return _teams(self.group.warps, strands)

    def _pass(self, step: UnitStep, s: ir.Statement) -> None:
        """An event that never blocks."""
        if isinstance(s, ir.SyncStatement):
            self._sync(step, s)
        else:
            self._issue(step, s)
        if step.is_in_step and self.model.lanes_meet_in_time:
            self.clocks.meet(step.warps)
        self.clocks.note(step.strands, step.place)

    def _sync(self, step: UnitStep, s: ir.SyncStatement) -> None:
        c, strands = self.clocks, step.strands
        match s:
            case ir.AsyncCommit():
                c.commit(strands, s.kind)
            case ir.MmaFence():
                c.fence_mma_registers(strands)
            case ir.AsyncWait():
                c.wait(strands, s.kind, s.keep, reads_only=s.reads_only)
            case ir.ProxyFence():
                c.fence_proxy(strands, s.space)
            case ir.LaunchWait() if self.model.launch_waits_order:
                c.learn_phase(strands, c.columns.barrier(LAUNCHES), 1)
            case ir.LaunchWait() | ir.LaunchDependents():
                pass
            case ir.BarrierArrive():
                self._arrive_named(step, s)
            case ir.ClusterArrive():
                self._arrive_cluster(step, s)
            case ir.MbarInit():
                for k in step.mine.tolist():
                    strand, byte = int(step.point.strands[k]), int(step.point.mbarriers[k])
                    self._start(step.point.at, strand, byte, s.count)
            case ir.MbarInvalidate():
                for byte in step.point.mbarriers[step.mine].tolist():
                    self.alive.pop(byte, None)
            case ir.MbarArrive():
                self._arrive(step, s, 0)
            case ir.MbarExpect():
                self._arrive(step, s, s.nbytes)
            case ir.SemaphoreRelease():
                for strand, cell, value in self._cells(step):
                    self.flags.release(strand, cell, value, s)
            case ir.SemaphoreArrive() | ir.SemaphoreLeave():
                for strand, cell, period in self._cells(step):
                    self.flags.count(strand, cell, period, s)
            case _:
                raise TypeError(f"no order is known for {type(s).__name__}")

    def _issue(self, step: UnitStep, s: ir.Statement) -> None:
        """A statement that is no sync starts work that completes later."""
        kind = step.group
        if step.delivers is not None:
            self._deliver(step, s, step.delivers)
        if kind is not None:
            self.clocks.issue(step.strands, kind)
        needs_fence = kind is ir.AsyncKind.MMA and self.model.mma_needs_fence
        if needs_fence and (self.clocks.fence_mma[step.strands] == 0).any():
            message = f"`{statement_text(s)}` comes before any fence for its registers"
            self.faults.append(Fault("rule", message, s))

    def _meet(self, step: UnitStep, teams: list[Array], *, orders: bool) -> bool:
        """All strands of each team wait for each other."""
        arrived = self.met.setdefault(step.point.at, set())
        mine = set(step.strands.tolist())
        is_first = not mine <= arrived
        arrived |= mine
        own = [members for members in teams if not mine.isdisjoint(members.tolist())]
        whole = [members for members in own if arrived.issuperset(members.tolist())]
        for members in whole if is_first and orders else ():
            row = self.clocks.release(members)
            everyone = np.arange(self.group.nstrands)
            learn = members if self.model.only_participants_learn else everyone
            self.clocks.acquire(learn, row)
            self.clocks.note(learn, step.place)
        return len(whole) == len(own)

    # --- semaphores -------------------------------------------------------------------------------

    def _cells(self, step: UnitStep) -> Iterator[tuple[int, int, int]]:
        """The strands that are at semaphores, with the numbers of these and the values given."""
        p = step.point
        for k in step.mine.tolist():
            yield int(p.strands[k]), int(p.mbarriers[k]), int(p.parities[k])

    def _take_turn(self, step: UnitStep, s: ir.SemaphoreAcquire) -> bool:
        """Wait for a value."""
        waits = list(self._cells(step))
        if not all(self.flags.is_at_least(cell, value) for _, cell, value in waits):
            return False
        for strand, cell, _ in waits:
            self.faults += self.flags.acquire(strand, cell, s)
        self.clocks.note(step.strands, step.place)
        return True

    # --- barriers of several phases ---------------------------------------------------------------

    def _barrier(self, which: Barrier, count: int) -> BarrierState:
        if which not in self.barriers:
            self.barriers[which] = BarrierState(which, count, self.clocks)
        return self.barriers[which]

    def _start(self, at: int, strand: int, byte: int, count: int) -> None:
        life = self.lives.get(byte, 0)
        self.lives[byte] = life + 1
        self.alive[byte] = self._barrier(("mbarrier", byte, life), count)
        if self.group.trace.is_cluster:
            self.made[at, strand] = "made", byte, life
            column = self.clocks.columns.barrier(("made", byte, life))
            self.clocks.learn_phase(strand, column, 1)

    def _enter(
        self, b: BarrierState, strand: int, arrivals: int, nbytes: int, s: ir.Statement
    ) -> None:
        row = self.clocks.release_one(strand)
        is_relaxed = isinstance(s, ir.ClusterArrive) and s.relaxed
        if is_relaxed or not self.model.arrivals_release:
            row = self.clocks.phase_row(strand)
        elif isinstance(s, ir.MbarArrive) and s.rank is not None and self.model.far_arrivals_free:
            released, row = row, self.clocks.phase_row(strand)
            row.with_memory(released)
        fault = b.arrive(strand, arrivals, nbytes, row, s)
        if fault is not None:
            self.faults.append(fault)
        if self.model.arrivals_acquire:
            latest = b.past[-1] if b.past else b.now
            self.clocks.acquire(strand, latest.row)

    def _enter_all(
        self, b: BarrierState, strands: Array, lanes: Array, nbytes: int, s: ir.SyncStatement
    ) -> None:
        """Arrivals of several strands, `nbytes` expected by each: at once where none of them can
        be early and all hand on what they did in memory."""
        model = self.model
        is_far = isinstance(s, ir.MbarArrive) and s.rank is not None
        hands_on = model.arrivals_release and not model.arrivals_acquire and not is_far
        if len(strands) > 1 and hands_on and b.fits(strands, lanes):
            row = self.clocks.release(strands)
            b.arrive_together(strands, lanes, nbytes * len(strands), row)
            return
        for strand, n in zip(strands.tolist(), lanes.tolist(), strict=True):
            self._enter(b, strand, n, nbytes, s)

    def _at_named(
        self, step: UnitStep, s: ir.NamedSync | ir.BarrierArrive
    ) -> list[tuple[BarrierState, Array, Array]]:
        """The strands of a step with their lanes, by the barrier of their block."""
        strands, lanes = step.strands, step.point.lanes[step.mine]
        blocks = self.group.blocks[strands]
        found: list[tuple[BarrierState, Array, Array]] = []
        for block in dict.fromkeys(blocks.tolist()):
            b, here = self._barrier(("named", s.barrier, block), s.nthreads), blocks == block
            found.append((b, strands[here], lanes[here]))
        return found

    def _arrive_named(self, step: UnitStep, s: ir.NamedSync | ir.BarrierArrive) -> None:
        for b, strands, lanes in self._at_named(step, s):
            self._enter_all(b, strands, lanes, 0, s)

    def _named_sync(self, unit: int, step: UnitStep, s: ir.NamedSync) -> bool:
        key = (unit, step.point.at)
        here = self._at_named(step, s)
        if key not in self.entered:
            self.entered[key] = [b.complete for b, _, _ in here]
            self._arrive_named(step, s)
            self.clocks.note(step.strands, step.place)
        phases = self.entered[key]
        if any(b.complete <= phase for (b, _, _), phase in zip(here, phases, strict=True)):
            return False
        for (b, strands, _), phase in zip(here, phases, strict=True):
            if self.model.named_sync_orders:
                self.clocks.acquire(strands, b.past[phase].row)
            self.clocks.learn_phase(strands, b.column, phase + 1)
        self.clocks.note(step.strands, step.place)
        return True

    def _arrive_cluster(self, step: UnitStep, s: ir.ClusterArrive) -> None:
        for strand, lanes in zip(step.strands.tolist(), step.point.lanes[step.mine], strict=True):
            self._enter(self._cluster_barrier(strand), strand, int(lanes), 0, s)
            self.arrivals[strand] = self.arrivals.get(strand, 0) + 1

    def _cluster_barrier(self, strand: int) -> BarrierState:
        """The barrier of the cluster that a strand is in."""
        trace = self.group.trace
        number = int(self.group.blocks[strand]) // trace.cluster
        return self._barrier(cluster_barrier(number), trace.block_nthreads * trace.cluster)

    def _wait_cluster(self, step: UnitStep) -> bool:
        """Wait for the phase that each strand arrived in last."""
        waits = [
            (strand, self._cluster_barrier(strand), self.arrivals.get(strand, 0))
            for strand in step.strands.tolist()
        ]
        if any(n <= self.clocks.met[s, b.column] or b.complete < n for s, b, n in waits):
            return False
        for strand, b, n in waits:
            if self.model.cluster_barrier_orders:
                self.clocks.acquire(strand, b.past[n - 1].row)
            self.clocks.learn_phase(strand, b.column, n)
        self.clocks.note(step.strands, step.place)
        return True

    def _arrive(self, step: UnitStep, s: ir.MbarArrive | ir.MbarExpect, nbytes: int) -> None:
        for at in step.barriers:
            b = self.alive.get(at.byte)
            if b is None:
                self._no_mbarrier(step.point.statement)
            else:
                self._enter_all(b, at.strands, at.lanes, nbytes, s)

    def _deliver(self, step: UnitStep, s: ir.Statement, nbytes: int) -> None:
        for k in step.mine.tolist():
            b = self.alive.get(int(step.point.mbarriers[k]))
            if b is None:
                self._no_mbarrier(s)
                continue
            strand, lanes = int(step.point.strands[k]), int(step.point.lanes[k])
            self.loads[step.point.at, strand] = (b.which, b.complete)
            fault = b.arrive(strand, 0, -nbytes * lanes, self.clocks.phase_row(strand), s)
            if fault is not None:
                self.faults.append(fault)

    def _wait(self, step: UnitStep) -> bool:
        found: list[tuple[BarrierState, Array, Array]] = []
        for at in step.barriers:
            b = self.alive.get(at.byte)
            if b is None:
                return False
            phases = b.resolve(at.strands, at.parity)
            if b.complete < phases.max():
                return False
            found.append((b, at.strands, phases))
        for b, strands, phases in found:
            for n in dict.fromkeys(phases.tolist()):
                b.learn(strands[phases == n], n, step.point.statement)
        self.clocks.note(step.strands, step.place)
        return True

    def _no_mbarrier(self, s: ir.Statement) -> None:
        message = f"`{statement_text(s)}` may come where no mbarrier is initialised"
        self.faults.append(Fault("rule", message, s))


def _teams(groups: Array, strands: Array) -> list[Array]:
    """The strands by the group (warp or block) that each belongs to."""
    mine = groups[strands]
    return [strands[mine == g] for g in np.unique(mine)]


# --- conflicts ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unordered:
    """Conflicts of a group that no sync orders: rows of `conflicts.edges`."""

    group: Replayable
    conflicts: Conflicts
    edges: Array


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a replay found: conflicts without an order, and broken rules."""

    unordered: list[Unordered]
    faults: list[Fault]


def _places(group: Replayable, change: Change) -> Array:
    """Where each event stands in the changed kernel: what a sync does in memory moves with it, in
    front of it or behind it as before."""
    events = group.trace.events
    places = np.arange(len(events), dtype=np.float64)
    if change.moved is None:
        return places
    points = [p for p in group.points if p.statement is change.moved]
    at = np.array([p.at for p in points])
    for number, e in enumerate(events):
        if e.statement is change.moved and isinstance(e, TracedAccess):
            nearest = points[int(np.abs(at - number).argmin())]
            behind = 0.25 if number > nearest.at else -0.25
            places[number] = _place(nearest, change) + behind
    return places


def _begun(group: Replayable, change: Change) -> _Replay:
    """A replay of the changed kernel, as far as the unchanged one comes to none of the syncs that
    are left out or others: that far the two are the same."""
    new = _Replay(group, change, group.model, _clocks(group))
    changed = set[ir.Statement](change.without)
    if change.weaker is not None:
        changed.add(change.weaker[0])
    if change.moved is not None or not changed:
        return new
    if not group.starts:
        group.starts = _starts(group)
    found: list[_Replay] = [group.starts[s] for s in changed if s in group.starts]
    if len(found) < len(changed):
        return new
    return min(found, key=lambda x: sum(x.reached)).fork(change)


def _starts(group: Replayable) -> dict[ir.Statement, _Replay]:
    """By sync a replay of the unchanged kernel that stopped before the sync comes for the first
    time: right before it, or earlier where more such replays would take more memory than a whole
    one keeps of its clocks."""
    out: dict[ir.Statement, _Replay] = {}
    run = _Replay(group, Change(), group.model, _clocks(group))
    stopped, nbytes = [run.fork(run.change)], run.clocks.table.nbytes

    def keep(step: UnitStep) -> None:
        s = step.point.statement
        if s in out or not isinstance(s, ir.SyncStatement):
            return
        if len(stopped) * nbytes < sum(x.nbytes for x in run.clocks.lessons):
            stopped.append(run.fork(run.change))
        out[s] = stopped[-1]

    run.run(keep)
    return out


def _clocks(group: Replayable) -> Clocks:
    return Clocks(group.columns, group.warps, group.sizes, group.model, group.has_proxy)


def end_of(group: Replayable) -> EarlyLaunch:
    """The end of a replay of the blocks as they are."""
    run, trace = _begun(group, Change()), group.trace
    run.run()
    known = History.of(run.clocks, len(trace.events))
    return EarlyLaunch(trace, group.blocks, run.clocks, known, run.ends)


def replay(group: Replayable, change: Change) -> Verdict:
    """What the syncs, changed as asked, leave without an order, and the rules they break."""
    model = group.model
    run = _begun(group, change)
    run.run()
    clocks = run.clocks
    if not (group.conflicts or group.remote or group.trace.begins_early):
        return Verdict([], run.faults)
    history = History.of(clocks, len(group.trace.events))
    faults = [*run.faults]
    if not group.trace.is_cut:
        lives = Lives(group.trace, group.blocks, clocks, history, run.ends, run.loads)
        faults += lives.faults(group.remote, model)
    test = EdgeTest(
        group.agents, group.columns, group.warps, group.blocks, model, history, run.ends, run.loads,
        run.made, _places(group, change),
    )  # fmt: skip
    if group.trace.begins_early:
        early = EarlyLaunch(group.trace, group.blocks, clocks, history, run.ends)
        faults += early.faults(group.shared, test.places, model)
    found: list[Unordered] = []
    for c in group.conflicts:
        bad = test.unordered(c.edges)
        if bad.any():
            found.append(Unordered(group, c, c.edges[bad]))
    return Verdict(found, faults)
