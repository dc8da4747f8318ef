"""Whether the blocks of a cluster live while others write their shared memory.

Source: CUDA C++ Programming Guide, "Distributed Shared Memory": all blocks of the cluster have
begun, and none exits, while shared memory is accessed remotely.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fusewright.sim.clocks import Barrier, Clocks, History, cluster_barrier
from fusewright.sim.compute import Array
from fusewright.sim.model import Model
from fusewright.sim.phases import Fault
from fusewright.sim.report import statement_text
from fusewright.sim.trace import Trace, TracedAccess, rows_of

Deliveries: TypeAlias = "Mapping[tuple[int, int], tuple[Barrier, int]]"
"""By event and strand, the mbarrier and its phase that count what the strand delivers."""


@dataclass(frozen=True, slots=True)
class RemoteWrite:
    """An event by which a strand writes the shared memory of another block of its cluster."""

    event: int
    strand: int
    block: int


def remote_writes(
    trace: Trace, rows: Array, strands: Array, blocks: Array
) -> Iterator[RemoteWrite]:
    """The remote writes of some rows; `strands` is the strand of each thread, `blocks` the block
    of each strand."""
    n, t = trace.nblocks, trace.nthreads
    for i, e in enumerate(trace.events):
        if not isinstance(e, TracedAccess) or isinstance(e.rank, int):
            continue
        rank, mask = rows_of(e.rank, rows, t, n), rows_of(e.mask, rows, t, n)
        shape = np.broadcast_shapes(rank.shape, mask.shape)
        code = np.broadcast_to(strands * trace.row_blocks + rank, shape)
        for pair in np.unique(code[np.broadcast_to(mask, shape)]).tolist():
            strand, block = divmod(pair, trace.row_blocks)
            if blocks[strand] != block:
                yield RemoteWrite(i, strand, block)


@dataclass(frozen=True, slots=True)
class Lives:
    """A finished replay: the block of each strand, what all know at the end and knew on the way,
    the place that each strand comes to, and what mbarriers counted."""

    trace: Trace
    blocks: Array
    clocks: Clocks
    history: History
    ends: Array
    loads: Deliveries

    def faults(self, writes: Iterable[RemoteWrite], model: Model) -> list[Fault]:
        """The writes into blocks of which nothing says that they have begun, or still run."""
        reached = [w for w in writes if w.event < self.ends[w.strand]]
        if not reached:
            return []
        strands = np.array([w.strand for w in reached])
        states = self.history.at(strands, np.array([w.event for w in reached]))
        nothing = np.zeros(len(reached), bool)
        unbegun = ~self._have_begun(strands, states) if model.blocks_begin_before_use else nothing
        ended = ~self._last(reached, strands, states) if model.blocks_outlive_use else nothing
        found: list[Fault] = []
        for k in np.flatnonzero(unbegun | ended).tolist():
            if unbegun[k]:
                found.append(self._fault(reached[k], "has not begun; let the blocks meet before"))
            if ended[k]:
                found.append(self._fault(reached[k], "has exited; let the blocks meet after it"))
        return found

    def _have_begun(self, strands: Array, states: Array) -> Array:
        """Which writers know that all threads of their cluster have met."""
        state, columns = self.history.state, self.clocks.columns
        met = np.zeros(len(states), bool)
        clusters = self.blocks[strands] // self.trace.cluster
        for k in np.unique(clusters).tolist():
            if cluster_barrier(k) in columns.barriers:
                mine, column = clusters == k, columns.barrier(cluster_barrier(k))
                met[mine] = state.known[state.learned[states[mine]], column] > 0
        return met

    def _last(self, writes: Sequence[RemoteWrite], strands: Array, states: Array) -> Array:
        """Of which writes some thread of the block that is written knows at its end, or waits for
        ever."""
        column, stamp = strands.copy(), self.history.state.epoch[states].astype(np.int64)
        for k, w in enumerate(writes) if self.loads else ():
            event = self.trace.events[w.event]
            if isinstance(event, TracedAccess) and (event.issue, w.strand) in self.loads:
                barrier, stamp[k] = self.loads[event.issue, w.strand]
                column[k] = self.clocks.columns.barrier(barrier)
        known = np.zeros(len(writes), bool)
        blocks = np.array([w.block for w in writes])
        for block in np.unique(blocks).tolist():
            owners, mine = np.flatnonzero(self.blocks == block), blocks == block
            knows = self.clocks.known[np.ix_(owners, column[mine])] > stamp[mine]
            known[mine] = knows.any(axis=0) | np.isfinite(self.ends[owners]).any()
        return known

    def _fault(self, w: RemoteWrite, what: str) -> Fault:
        statement = self.trace.events[w.event].statement
        text = statement_text(statement)
        message = f"`{text}` may write the memory of a block of its cluster that {what}"
        return Fault("rule", message, statement)
