"""What a replay goes through: the sync events of one block, as each unit of strands comes to them.

Strands that block at the same events make a unit. All of it is found once, for every replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusewright.kir import ir
from fusewright.kir.traits import Team
from fusewright.sim.clocks import LAUNCHES, Barrier, Columns, Teams, cluster_barrier, engines_of
from fusewright.sim.compute import Array
from fusewright.sim.conflicts import Conflicts
from fusewright.sim.edges import agents_of
from fusewright.sim.launches import SharedTouch
from fusewright.sim.lives import RemoteWrite
from fusewright.sim.model import Model
from fusewright.sim.trace import SyncEvent, Trace, rows_of, warps_of

_BLOCKING = (
    ir.BlockSync, ir.WarpSync, ir.NamedSync, ir.MbarWait, ir.ClusterWait, ir.SemaphoreAcquire,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SyncArrival:
    """One sync event of a block: its place among the events, and the strands that take part, with
    the number of their lanes that do, their mbarriers and parities."""

    at: int
    above: int
    below: int
    statement: ir.Statement
    strands: Array
    lanes: Array
    mbarriers: Array
    parities: Array


@dataclass(frozen=True, slots=True)
class AtBarrier:
    """Strands that name one mbarrier, by its first byte, and one parity, with their lanes."""

    byte: int
    parity: int
    strands: Array
    lanes: Array


@dataclass(frozen=True, slots=True)
class UnitStep:
    """A point as one unit comes to it: the unit's strands, their places in `point`, which of them
    make one warp, and which name one mbarrier. Of the statement whether warps execute it in step,
    the kind of groups that it is part of, and the bytes that it brings an mbarrier."""

    point: SyncArrival
    place: float
    mine: Array
    strands: Array
    warps: Teams
    barriers: tuple[AtBarrier, ...]
    is_in_step: bool
    group: ir.AsyncKind | None
    delivers: int | None


@dataclass(slots=True)
class Replayable:
    """Blocks, or clusters, that execute the same events with the same syncs: one replay decides
    for all. `steps` is what each unit executes, `remote` lists the writes to other blocks' shared
    memory, `shared` the accesses to what other launches touch. `starts`: by sync the replay
    (`order.py`) that changes of it go on from."""

    trace: Trace
    model: Model
    agents: Array
    strands: Array
    warps: Array
    blocks: Array
    sizes: Array
    points: list[SyncArrival]
    units: list[Array]
    steps: list[list[UnitStep]]
    columns: Columns
    has_proxy: bool
    conflicts: list[Conflicts] = field(default_factory=list[Conflicts])
    remote: dict[RemoteWrite, None] = field(default_factory=dict[RemoteWrite, None])
    shared: dict[SharedTouch, None] = field(default_factory=dict[SharedTouch, None])
    starts: dict[ir.Statement, Any] = field(default_factory=dict[ir.Statement, Any])

    @property
    def nstrands(self) -> int:
        return len(self.warps)


def replayable(trace: Trace, row: int, strands: Array, model: Model) -> Replayable:
    """The sync events of one block of a batch, ready for replays by a model's rules."""
    nstrands = int(strands.max()) + 1
    first_thread = np.array([int(np.argmax(strands == s)) for s in range(nstrands)])
    rows = np.array([row])
    n, t = trace.nblocks, trace.nthreads
    points: list[SyncArrival] = []
    for i, e in enumerate(trace.events):
        if not isinstance(e, SyncEvent):
            continue
        mask = rows_of(e.mask, rows, t, n)[0]
        lanes = np.bincount(strands[mask], minlength=nstrands)
        who = np.flatnonzero(lanes)
        if len(who):
            named, parity = (
                np.full(len(who), v, np.int64)
                if isinstance(v, int)
                else rows_of(v, rows, t, n)[0][first_thread[who]]
                for v in (e.mbarrier, e.parity)
            )
            points.append(
                SyncArrival(i, e.above, e.below, e.statement, who, lanes[who], named, parity)
            )
    statements = tuple(dict.fromkeys(e.statement for e in trace.events))
    groups = (s.kind if isinstance(s, ir.AsyncWait) else s.group() for s in statements)
    kinds = {kind for kind in groups if kind is not None}
    blocks = first_thread // trace.block_nthreads
    units = _units(points, nstrands)
    warps = warps_of(trace)[first_thread]
    in_step = warps if model.warp_sync_stays_in_warp else np.zeros_like(warps)
    return Replayable(
        trace,
        model,
        agents_of(trace, model),
        strands,
        warps,
        blocks,
        np.bincount(strands, minlength=nstrands),
        points,
        units,
        _steps(points, units, in_step),
        Columns.of(
            nstrands,
            tuple(sorted(k for kind in kinds for k in engines_of(kind))),
            _barriers(points, blocks, trace.cluster),
        ),
        any(u.in_async_proxy for s in statements for u in s.memory_uses()),
    )


def _units(points: Sequence[SyncArrival], nstrands: int) -> list[Array]:
    """Strands that block at the same events and on the same mbarriers."""
    blocks: list[list[tuple[int, int]]] = [[] for _ in range(nstrands)]
    for p in points:
        if isinstance(p.statement, _BLOCKING):
            for k, s in enumerate(p.strands):
                blocks[int(s)].append((p.at, int(p.mbarriers[k])))
    groups: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for s, found in enumerate(blocks):
        groups.setdefault(tuple(found), []).append(s)
    return [np.array(g) for g in groups.values()]


def _steps(
    points: Sequence[SyncArrival], units: Sequence[Array], warps: Array
) -> list[list[UnitStep]]:
    """By unit the points at which some of its strands take part; `warps` is the warp of each
    strand."""
    found: list[list[UnitStep]] = [[] for _ in units]
    unit_of = np.zeros(len(warps), np.int64)
    for k, unit in enumerate(units):
        unit_of[unit] = k
    teams: dict[bytes, Teams] = {}
    for p in points:
        owner, use = unit_of[p.strands], p.statement.mbarrier_use()
        is_in_step = p.statement.executed_by() in (Team.WARP, Team.WARPGROUP)
        group = p.statement.group()
        for k in map(int, np.unique(owner)):
            mine = np.flatnonzero(owner == k)
            strands = p.strands[mine]
            key = strands.tobytes()
            if key not in teams:
                teams[key] = Teams.of(strands, warps[strands])
            places, nbytes = ((), None) if use is None else (_places(p, mine), use.nbytes)
            step = UnitStep(p, p.at, mine, strands, teams[key], places, is_in_step, group, nbytes)
            found[k].append(step)
    return found


def _places(p: SyncArrival, mine: Array) -> tuple[AtBarrier, ...]:
    """The strands of a unit by the mbarrier that they name, and by parity."""
    groups: dict[tuple[int, int], list[int]] = {}
    for k in mine.tolist():
        groups.setdefault((int(p.mbarriers[k]), int(p.parities[k])), []).append(k)
    return tuple(
        AtBarrier(byte, parity, p.strands[here], p.lanes[here])
        for (byte, parity), here in groups.items()
    )


def _barriers(points: Sequence[SyncArrival], blocks: Array, cluster: int) -> list[Barrier]:
    """Each named barrier of each block and each life of an mbarrier, in a cluster also its making,
    the barriers of clusters of so many blocks, and the launches before."""
    found: dict[Barrier, None] = {}
    lives: dict[int, int] = {}
    for p in points:
        match p.statement:
            case ir.ClusterArrive() | ir.ClusterWait():
                for k in np.unique(blocks[p.strands] // cluster).tolist():
                    found[cluster_barrier(k)] = None
            case ir.LaunchWait():
                found[LAUNCHES] = None
            case ir.NamedSync() | ir.BarrierArrive():
                for block in np.unique(blocks[p.strands]).tolist():
                    found["named", p.statement.barrier, block] = None
            case ir.MbarInit():
                for byte in p.mbarriers.tolist():
                    life = lives.get(byte, 0)
                    lives[byte] = life + 1
                    found["mbarrier", byte, life] = None
                    if cluster > 1:
                        found["made", byte, life] = None
            case _:
                pass
    return list(found)
