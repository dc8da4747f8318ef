"""Happens-before by replaying the sync events of a trace with vector clocks.

`known[s, c]` is the epoch up to which strand s knows the accesses of strand c; an access of strand
c at epoch e is known when `known[s, c] > e`. A sync joins what its participants know and what they
did, gives the result to each, and begins their next epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fusewright.kir import ir
from fusewright.sim.compute import Array
from fusewright.sim.conflicts import Conflicts
from fusewright.sim.model import Model
from fusewright.sim.trace import SyncEvent, Trace, rows_of
from fusewright.target import WARP_SIZE


@dataclass(frozen=True, slots=True)
class Change:
    """A variation of the traced kernel: some syncs left out, or one moved over a statement."""

    without: frozenset[ir.SyncStatement] = frozenset()
    moved: ir.SyncStatement | None = None
    direction: Literal["up", "down"] = "up"


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """One sync event of a block: its place among the events, and the strands that take part."""

    at: int
    above: int
    below: int
    statement: ir.SyncStatement
    strands: Array


@dataclass(slots=True)
class Replayable:
    """Blocks that execute the same events with the same syncs: one replay decides for all."""

    trace: Trace
    strands: Array
    warps: Array
    points: list[SyncPoint]
    conflicts: list[Conflicts] = field(default_factory=list[Conflicts])

    @property
    def nstrands(self) -> int:
        return len(self.warps)


def replayable(trace: Trace, row: int, strands: Array, model: Model) -> Replayable:
    """The sync events of one block of a batch, ready for replays."""
    nstrands = int(strands.max()) + 1
    first_thread = np.array([int(np.argmax(strands == s)) for s in range(nstrands)])
    rows = np.array([row])
    points: list[SyncPoint] = []
    for i, e in enumerate(trace.events):
        if not isinstance(e, SyncEvent):
            continue
        inside = rows_of(e.mask, rows, trace.nthreads, trace.nblocks)[0][first_thread]
        if inside.any():
            who = np.flatnonzero(inside) if model.only_participants_learn else np.arange(nstrands)
            points.append(SyncPoint(i, e.above, e.below, e.statement, who))
    return Replayable(trace, strands, first_thread // WARP_SIZE, points)


def _placed(points: Sequence[SyncPoint], change: Change) -> list[tuple[float, SyncPoint]]:
    """The points that remain, with their places, in the order of the changed kernel.

    A point at place p comes before every event with a number above p.
    """
    placed: list[tuple[float, SyncPoint]] = []
    for p in points:
        if p.statement in change.without:
            continue
        at: float = p.at
        if p.statement is change.moved:
            at = (p.above if change.direction == "up" else p.below) - 0.5
        placed.append((at, p))
    placed.sort(key=lambda pair: pair[0])
    return placed


def _clocks(group: Replayable, points: Sequence[SyncPoint], model: Model) -> tuple[Array, Array]:
    """What every strand knows, and its epoch, before the first point and after each."""
    n = group.nstrands
    known = np.zeros((len(points) + 1, n, n), np.int32)
    epoch = np.zeros((len(points) + 1, n), np.int32)
    now, count = known[0].copy(), epoch[0].copy()
    for k, p in enumerate(points, 1):
        match p.statement:
            case ir.BlockSync():
                if model.block_sync_orders:
                    _join(now, count, p.strands)
            case ir.WarpSync():
                if model.warp_sync_orders:
                    for members in _teams(group.warps, p.strands, model):
                        _join(now, count, members)
            case _:
                raise TypeError(f"no order is known for {type(p.statement).__name__}")
        known[k], epoch[k] = now, count
    return known, epoch


def _teams(warps: Array, strands: Array, model: Model) -> list[Array]:
    if not model.warp_sync_stays_in_warp:
        return [strands]
    mine = warps[strands]
    return [strands[mine == w] for w in np.unique(mine)]


def _join(known: Array, epoch: Array, members: Array) -> None:
    """All members release, and all acquire what the others released."""
    row = known[members].max(axis=0)
    row[members] = np.maximum(row[members], epoch[members] + 1)
    known[members] = row
    epoch[members] += 1


def _passed(places: Array, events: Array) -> Array:
    """How many sync points each event comes after."""
    return np.searchsorted(places, events)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Unordered:
    """Conflicts of a group that no sync orders: rows of `conflicts.edges`."""

    group: Replayable
    conflicts: Conflicts
    edges: Array


def replay(group: Replayable, change: Change, model: Model) -> list[Unordered]:
    """The conflicts that the syncs, changed as asked, leave without an order."""
    placed = _placed(group.points, change)
    places = np.array([p[0] for p in placed], np.float64)
    known, epoch = _clocks(group, [p[1] for p in placed], model)
    found: list[Unordered] = []
    for c in group.conflicts:
        a, sa, b, sb = c.edges.T
        passed_a = _passed(places, a)
        passed_b = _passed(places, b)
        bad = known[passed_b, sb, sa] <= epoch[passed_a, sa]
        if model.warps_are_lockstep:
            bad &= group.warps[sa] != group.warps[sb]
        if bad.any():
            found.append(Unordered(group, c, c.edges[bad]))
    return found
