"""Barriers of several phases in a replay: named ones, whose phases are generations, and mbarriers.

A phase is complete when its arrivals and bytes are; its row then holds what the arrivals of this
and of all earlier phases handed on.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field

import numpy as np

from fusewright.kir import ir
from fusewright.sim.clocks import Barrier, ClockRow, Clocks
from fusewright.sim.compute import Array
from fusewright.sim.report import Kind, statement_text


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken rule that is no race."""

    kind: Kind
    message: str
    statement: ir.Statement


@dataclass(slots=True)
class Phase:
    """The arrivals of one phase: epochs behind them by strand, and what they knew in time."""

    row: ClockRow
    behind: Array
    met: Array
    has_bytes: bool = False


@dataclass(frozen=True, slots=True)
class Waiter:
    """A wait of some strands that was let through when `phases` of the barrier were complete."""

    strands: Array
    phases: int
    epochs: Array
    statement: ir.Statement


@dataclass(slots=True)
class BarrierState:
    """One barrier: `count` arrivals a phase, of which `pending` are missing in the one under way,
    and `nbytes` that it still expects."""

    which: Barrier
    count: int
    clocks: Clocks
    column: int = field(init=False)
    pending: int = field(init=False)
    nbytes: int = 0
    past: list[Phase] = field(default_factory=list[Phase])
    now: Phase = field(init=False)
    waiters: list[Waiter] = field(default_factory=list[Waiter])

    def __post_init__(self) -> None:
        self.column = self.clocks.columns.barrier(self.which)
        self.pending = self.count
        self.now = self._begin()

    def _begin(self) -> Phase:
        c = self.clocks
        n = c.columns.nstrands
        return Phase(c.nothing(), np.zeros(n, np.int32), np.zeros(c.columns.width, np.int32))

    def fork(self, clocks: Clocks) -> BarrierState:
        """The barrier as it is, beside clocks of its own. Phases that are complete stay."""
        new, now = copy(self), self.now
        new.clocks, new.past, new.waiters = clocks, [*self.past], [*self.waiters]
        row = ClockRow(now.row.table.copy())
        new.now = Phase(row, now.behind.copy(), now.met.copy(), now.has_bytes)
        return new

    @property
    def complete(self) -> int:
        """Phases that are complete."""
        return len(self.past)

    def fits(self, strands: Array, arrivals: Array) -> bool:
        """Whether arrivals of several strands certainly fall into the phase under way."""
        c = self.clocks
        if int(arrivals.sum()) > self.pending:
            return False
        is_told = not self.past or bool((c.met[strands, self.column] >= self.complete).all())
        return is_told or not c.model.phases_do_not_mix

    def arrive_together(self, strands: Array, arrivals: Array, nbytes: int, row: ClockRow) -> None:
        """Arrivals of several strands that fit, which hand on one row."""
        self.now.row.join(row)
        self.now.has_bytes |= nbytes != 0
        self.now.behind[strands] = self.clocks.epoch[strands]
        np.maximum(self.now.met, row.met, out=self.now.met)
        self.nbytes += nbytes
        self.pending -= int(arrivals.sum())
        if not self.pending and not self.nbytes:
            self._finish()

    def arrive(
        self, strand: int, arrivals: int, nbytes: int, row: ClockRow, s: ir.Statement
    ) -> Fault | None:
        """Arrivals of one strand, which expect bytes or, negative, deliver them."""
        fault = self._early(strand, s)
        self.nbytes += nbytes
        while True:
            take = min(arrivals, self.pending)
            if arrivals and not take:
                return fault or Fault(
                    "rule",
                    f"`{statement_text(s)}` makes more than the {self.count} arrivals of a phase",
                    s,
                )
            self.now.row.join(row)
            self.now.has_bytes |= nbytes != 0
            if take:
                self.now.behind[strand] = self.clocks.epoch[strand]
                np.maximum(self.now.met, row.met, out=self.now.met)
            self.pending -= take
            arrivals -= take
            if not self.pending and not self.nbytes:
                self._finish()
            if not arrivals:
                return fault

    def _finish(self) -> None:
        if self.past:
            self.now.row.join(self.past[-1].row)
        self.past.append(self.now)
        self.now.row.known[self.column] = self.now.row.met[self.column] = len(self.past)
        self.now = self._begin()
        self.pending = self.count

    def _early(self, strand: int, s: ir.Statement) -> Fault | None:
        """An arrival by a strand that may come while the phase before is still under way."""
        p, c = self.complete, self.clocks
        if not p or not c.model.phases_do_not_mix:
            return None
        if c.met[strand, self.column] >= p:
            return None
        last = self.past[-1]
        if not last.has_bytes and bool((c.time_of(strand) >= last.behind).all()):
            return None
        return Fault(
            "rule",
            f"`{statement_text(s)}` in warp {c.warps[strand]} may fall into phase {p - 1} instead "
            f"of {p}: nothing tells its thread that phase {p - 1} is complete",
            s,
        )

    def resolve(self, strands: Array, parity: int) -> Array:
        """The numbers of complete phases that waits on a parity ask for."""
        known = self.clocks.known[strands, self.column]
        return known + ((known & 1) == parity)

    def learn(self, strands: Array, phases: int, s: ir.Statement) -> None:
        """Strands come through a wait for so many phases."""
        c = self.clocks
        if not c.model.parity_is_all_a_wait_learns:
            phases += (self.complete - phases) // 2 * 2
        if phases and c.model.mbarrier_waits_acquire:
            c.acquire(strands, self.past[phases - 1].row)
        c.learn_phase(strands, self.column, phases)
        self.waiters.append(Waiter(strands, phases, c.epoch[strands], s))

    def missed(self) -> list[Fault]:
        """Waits that may look when the phase behind theirs is complete as well."""
        found: list[Fault] = []
        for w in self.waiters:
            if w.phases >= self.complete:
                continue
            for strand in w.strands[self.past[w.phases].met[w.strands] <= w.epochs].tolist():
                message = (
                    f"`{statement_text(w.statement)}` in warp {self.clocks.warps[strand]} may look "
                    f"too late: phase {w.phases} can be complete by then, and the parity asks for "
                    "the next"
                )
                found.append(Fault("rule", message, w.statement))
        return found
