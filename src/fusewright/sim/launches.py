"""Launches that overlap: what one does before those before it have ended, and may still touch.

A launch may begin as soon as all blocks of the one before it have let it, or have ended; what those
did in memory is there only for threads behind a wait (PTX ISA, "griddepcontrol"). So an access that
no wait stands before happens at the same time as everything that launches before it do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from fusewright.kir import ir
from fusewright.kir.traverse import statements_of
from fusewright.sim.clocks import LAUNCHES, Clocks, History
from fusewright.sim.compute import Array
from fusewright.sim.memory import GlobalMemory
from fusewright.sim.model import Model
from fusewright.sim.phases import Fault
from fusewright.sim.report import statement_text
from fusewright.sim.trace import SyncEvent, Trace, TracedAccess, rows_of


@dataclass(frozen=True, slots=True)
class SharedTouch:
    """An event by which a strand touches memory that launches before may still touch."""

    event: int
    strand: int


def shared_touches(trace: Trace, rows: Array, strands: Array) -> Iterator[SharedTouch]:
    """Those of some rows of a launch that begins early; `strands` is the strand of each thread."""
    for i, e in enumerate(trace.events):
        if isinstance(e, TracedAccess) and e.buffer in trace.awaited:
            inside = rows_of(e.mask, rows, trace.nthreads, trace.nblocks).any(axis=0)
            for strand in np.unique(strands[inside]).tolist():
                yield SharedTouch(i, strand)


@dataclass(frozen=True, slots=True)
class EarlyLaunch:
    """A finished replay of blocks of a launch that begins early: the block of each strand, what
    all know at the end and knew on the way, and the place that each strand comes to."""

    trace: Trace
    blocks: Array
    clocks: Clocks
    history: History
    ends: Array

    def knows(self, strands: Array, places: Array) -> Array:
        """Which strands know, when they come to a place, that the launches before have ended."""
        column = self.clocks.columns.barriers.get(LAUNCHES)
        if column is None:
            return np.zeros(len(strands), bool)
        state = self.history.state
        return state.known[state.learned[self.history.at(strands, places)], column] > 0

    @property
    def ends_behind(self) -> bool:
        """Whether in every block some thread knows at its end that the launches before have."""
        column = self.clocks.columns.barriers.get(LAUNCHES)
        if column is None:
            return False
        knows = self.clocks.known[:, column] > 0
        return all(knows[self.blocks == b].any() for b in np.unique(self.blocks).tolist())

    def faults(self, touches: Iterable[SharedTouch], places: Array, model: Model) -> list[Fault]:
        """The accesses that no wait stands before, and a launch that may end out of order."""
        found: list[Fault] = []
        mine = [t for t in touches if t.event < self.ends[t.strand]]
        if mine and model.launches_overlap:
            events = np.array([t.event for t in mine])
            known = self.knows(np.array([t.strand for t in mine]), places[events])
            found += [self._fault(mine[k]) for k in np.flatnonzero(~known).tolist()]
        is_over = bool(np.isinf(self.ends).all()) and bool(self.trace.events)
        if model.launches_end_in_order and is_over and not (found or self.ends_behind):
            text = "a block may end before the launches before this one; the next one relies on it"
            found.append(Fault("rule", text, self.trace.events[-1].statement))
        return found

    def _fault(self, t: SharedTouch) -> Fault:
        access = self.trace.events[t.event]
        assert isinstance(access, TracedAccess)
        verb = "touches" if access.writes else "writes"
        message = (
            f"`{statement_text(access.statement)}` may come while a launch before this one still "
            f"{verb} {access.buffer}; wait for it before"
        )
        return Fault("race", message, access.statement)


# --- what a whole launch touches ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TouchedElements:
    """The elements of a parameter that a launch reads and writes, as masks; `early`: those of them
    that it touches where no wait stands before."""

    read: Array
    written: Array
    early_read: Array
    early_written: Array

    @staticmethod
    def none(count: int) -> TouchedElements:
        """Of a parameter of so many elements."""
        return TouchedElements(*(np.zeros(count, bool) for _ in range(4)))


@dataclass(slots=True)
class TouchedMemory:
    """What a launch touches, by parameter. `waits`: every block ends behind a wait for the launches
    before; `triggers_late`: no block lets the launch behind it begin before it has waited itself;
    `triggers`: every block lets it begin."""

    memory: GlobalMemory
    kernel: ir.Kernel
    elements: dict[ir.Buffer, TouchedElements] = field(init=False)
    waits: bool = True
    triggers: bool = True
    triggers_late: bool = True

    def __post_init__(self) -> None:
        arrays: Mapping[ir.Buffer, Array] = self.memory.arrays
        self.elements = {b: TouchedElements.none(len(a)) for b, a in arrays.items()}

    def observe(self, trace: Trace, rows: Array, strands: Array, end: EarlyLaunch) -> None:
        """Takes in rows of a batch, which do what `end` is the end of."""
        self.waits &= end.ends_behind
        triggered = np.zeros((len(rows), trace.nthreads), bool)
        names = np.arange(int(strands.max()) + 1)
        for i, e in enumerate(trace.events):
            known = end.knows(names, np.full(len(names), i, np.float64))
            match e:
                case TracedAccess() if e.space > 0:
                    self._touch(e, trace, rows, ~known[strands])
                case SyncEvent() if isinstance(e.statement, ir.LaunchDependents):
                    inside = np.broadcast_to(_inside(e, trace, rows), triggered.shape)
                    triggered |= inside
                    self.triggers_late &= bool(known[strands][inside.any(axis=0)].all())
                case _:
                    pass
        of_blocks = triggered.reshape(len(rows), trace.row_blocks, trace.block_nthreads)
        self.triggers &= bool(of_blocks.any(axis=2).all())

    def _touch(self, e: TracedAccess, trace: Trace, rows: Array, early: Array) -> None:
        n, t = trace.nblocks, trace.nthreads
        low = rows_of(e.block, rows, t, n) + rows_of(e.thread, rows, t, n)
        inside = _inside(e, trace, rows)
        low, inside = np.broadcast_arrays(low, inside)
        early = np.broadcast_to(early, inside.shape)
        nbytes, begin = e.buffer.dtype.nbytes, self.memory.places[e.buffer].offset
        found = self.elements[e.buffer]
        masks = (found.written, found.early_written) if e.writes else (found.read, found.early_read)
        for mask, where in zip(masks, (inside, inside & early), strict=True):
            first = (low[where] - begin)[:, None]
            if e.runs is not None:
                first = (first + e.runs).reshape(-1, 1)
            mask[first // nbytes + np.arange(e.nbytes // nbytes)] = True


def _inside(e: TracedAccess | SyncEvent, trace: Trace, rows: Array) -> Array:
    return rows_of(e.mask, rows, trace.nthreads, trace.nblocks)


def takes_part(kernel: ir.Kernel) -> bool:
    """Whether a launch of the kernel may overlap with others."""
    return kernel.begins_early or bool(statements_of(kernel, ir.LaunchDependents))
