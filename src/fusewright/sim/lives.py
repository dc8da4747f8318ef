"""Whether the blocks of a cluster live while others write their shared memory.

Source: CUDA C++ Programming Guide, "Distributed Shared Memory": all blocks of the cluster have
begun, and none exits, while shared memory is accessed remotely.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fusewright.sim.clocks import CLUSTER, Barrier, Clocks, History
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
        code = np.broadcast_to(strands * trace.cluster + rank, shape)
        for pair in np.unique(code[np.broadcast_to(mask, shape)]).tolist():
            strand, block = divmod(pair, trace.cluster)
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
        found: list[Fault] = []
        for w in writes:
            if w.event >= self.ends[w.strand]:
                continue
            if model.blocks_begin_before_use and not self._has_begun(w):
                found.append(self._fault(w, "has not begun; let the blocks meet before"))
            if model.blocks_outlive_use and not self._lasts(w):
                found.append(self._fault(w, "has exited; let the blocks meet after it"))
        return found

    def _has_begun(self, w: RemoteWrite) -> bool:
        """Whether the writer knows that all threads of the cluster have met."""
        column = self.clocks.columns.barriers.get(CLUSTER)
        known = self.history.state.known[self._state(w)]
        return column is not None and bool(known[self.clocks.columns.barrier(CLUSTER)] > 0)

    def _lasts(self, w: RemoteWrite) -> bool:
        """Whether some thread of the block knows of the write at its end, or waits for ever."""
        owners = np.flatnonzero(self.blocks == w.block)
        column, stamp = w.strand, int(self.history.state.epoch[self._state(w)])
        event = self.trace.events[w.event]
        load = self.loads.get((event.issue, w.strand)) if isinstance(event, TracedAccess) else None
        if load is not None:
            column, stamp = self.clocks.columns.barrier(load[0]), load[1]
        knows = self.clocks.known[owners, column] > stamp
        return bool((knows | np.isfinite(self.ends[owners])).any())

    def _state(self, w: RemoteWrite) -> int:
        return int(self.history.at(np.array([w.strand]), np.array([w.event]))[0])

    def _fault(self, w: RemoteWrite, what: str) -> Fault:
        statement = self.trace.events[w.event].statement
        text = statement_text(statement)
        message = f"`{text}` may write the memory of a block of its cluster that {what}"
        return Fault("rule", message, statement)
