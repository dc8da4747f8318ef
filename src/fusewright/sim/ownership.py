"""Which thread wrote and read each cell of global memory, over all blocks of a run.

Blocks have no order among each other, so a cell that two blocks touch, one of them writing, is a
race. A cell that two threads of one block touch needs that block's syncs: its space is handed on
to the analysis of conflicts. Most kernels touch every cell by one thread and need no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fusewright.kir import ir
from fusewright.sim.compute import Array
from fusewright.sim.memory import GlobalMemory
from fusewright.sim.model import Model
from fusewright.sim.report import Findings, Site
from fusewright.sim.trace import Access, Trace

_MANY_BLOCKS = -1


@dataclass(slots=True)
class Ledger:
    """Per cell of one space: 1 + the linear thread that wrote it last, and that read it last.

    A reader of -1 stands for several blocks, of `-2 - block` for several threads of one block.
    """

    cell_nbytes: int
    writer: Array
    reader: Array
    is_read: bool
    by: dict[bool, Statements]


@dataclass(slots=True)
class Statements:
    """The statements that write (or read) a space, and, if several, which touched a cell last."""

    numbers: dict[ir.Statement, int]
    latest: Array

    @staticmethod
    def of(statements: Sequence[ir.Statement], cells: int) -> Statements:
        several = len(statements) > 1
        return Statements(
            {s: i for i, s in enumerate(statements)}, np.zeros(cells if several else 0, np.int32)
        )

    def note(self, cells: Array, statement: ir.Statement) -> None:
        """The statement touched these cells."""
        if len(self.latest):
            self.latest[cells] = self.numbers[statement]

    def at(self, cell: int) -> ir.Statement:
        """The statement that touched the cell last."""
        return list(self.numbers)[int(self.latest[cell]) if len(self.latest) else 0]


class Ownership:
    """The ledgers of all written spaces."""

    def __init__(
        self, memory: GlobalMemory, nthreads: int, model: Model, findings: Findings
    ) -> None:
        self.nthreads = nthreads
        self.model = model
        self.findings = findings
        self.ledgers: dict[int, Ledger] = {}
        for space in sorted(memory.writers):
            cell = memory.cell[space]
            count = -(-memory.nbytes[space] // cell)
            reads = memory.readers.get(space, [])
            is_read = bool(reads)
            self.ledgers[space] = Ledger(
                cell,
                np.zeros(count, np.int64),
                np.zeros(count if is_read else 0, np.int64),
                is_read,
                {
                    True: Statements.of(memory.writers[space], count),
                    False: Statements.of(reads, count),
                },
            )

    def observe(self, trace: Trace) -> frozenset[int]:
        """Enter the accesses of a batch; the spaces where threads of one block met."""
        blocks = np.asarray(trace.blocks, np.int64)[:, None]
        owner = blocks * self.nthreads + np.arange(self.nthreads) + 1
        met: set[int] = set()
        for e in trace.events:
            if not isinstance(e, Access) or e.space not in self.ledgers:
                continue
            ledger = self.ledgers[e.space]
            cells = np.asarray(e.block + e.thread) // ledger.cell_nbytes
            cells = np.broadcast_to(cells, owner.shape)
            mine = owner
            if e.mask is not None:
                chosen = np.broadcast_to(e.mask, owner.shape)
                cells, mine = cells[chosen], mine[chosen]
            for k in range(e.nbytes // ledger.cell_nbytes):
                enter = self._enter_write if e.writes else self._enter_read
                at = cells + k if k else cells
                if enter(trace, e, ledger, at, mine):
                    met.add(e.space)
                ledger.by[e.writes].note(at, e.statement)
        return frozenset(met)

    def _enter_write(
        self, trace: Trace, e: Access, ledger: Ledger, cells: Array, mine: Array
    ) -> bool:
        old = ledger.writer[cells]
        other = (old != 0) & (old != mine)
        met = bool(other.any()) and self._meet(trace, e, ledger, cells, mine, old, other, True)
        ledger.writer[cells] = mine
        now = ledger.writer[cells]
        twice = now != mine
        if twice.any():
            met |= self._meet(trace, e, ledger, cells, mine, now, twice, True)
        if ledger.is_read:
            seen = ledger.reader[cells]
            other = (seen != 0) & (seen != mine)
            if other.any():
                met |= self._meet(trace, e, ledger, cells, mine, seen, other, False)
        return met

    def _enter_read(
        self, trace: Trace, e: Access, ledger: Ledger, cells: Array, mine: Array
    ) -> bool:
        old = ledger.writer[cells]
        other = (old != 0) & (old != mine)
        met = bool(other.any()) and self._meet(trace, e, ledger, cells, mine, old, other, True)
        seen = ledger.reader[cells]
        block = (mine - 1) // self.nthreads
        new = np.where((seen == 0) | (seen == mine), mine, _MANY_BLOCKS)
        together = (seen != 0) & (seen != mine) & (self._block_of(seen) == block)
        new = np.where(together, -2 - block, new)
        ledger.reader[cells] = new
        now = ledger.reader[cells]
        if (now != new).any():
            self._settle_readers(ledger, cells, block)
        return met

    def _settle_readers(self, ledger: Ledger, cells: Array, block: Array) -> None:
        """Several threads read one cell in one statement: were they of one block?"""
        nblocks = int(block.max()) + 1
        pairs = np.sort((cells * nblocks + np.broadcast_to(block, cells.shape)).reshape(-1))
        cell, owner = pairs // nblocks, pairs % nblocks
        first = np.flatnonzero(np.concatenate([[True], cell[1:] != cell[:-1]]))
        last = np.append(first[1:], len(cell)) - 1
        several = last > first
        low, high, cell = owner[first[several]], owner[last[several]], cell[first[several]]
        same = (low == high) & (ledger.reader[cell] != _MANY_BLOCKS)
        ledger.reader[cell] = np.where(same, -2 - low, _MANY_BLOCKS)

    def _block_of(self, owner: Array) -> Array:
        """The block of an entry; -1 for several."""
        single = (owner - 1) // self.nthreads
        return np.where(owner > 0, single, np.where(owner < _MANY_BLOCKS, -2 - owner, -1))

    def _meet(
        self,
        trace: Trace,
        e: Access,
        ledger: Ledger,
        cells: Array,
        mine: Array,
        other: Array,
        where: Array,
        other_writes: bool,
    ) -> bool:
        """Report cells of two blocks; True when threads of one block met."""
        block = (mine[where] - 1) // self.nthreads
        theirs = self._block_of(other[where])
        foreign = theirs != block
        if foreign.any() and self.model.blocks_are_unordered:
            i = int(np.argmax(foreign))
            owner, cell = int(mine[where][i]) - 1, int(cells[where][i])
            before = int(other[where][i])
            self._report(trace, e, ledger, cell, owner, before, other_writes, int(foreign.sum()))
        return not bool(foreign.all())

    def _report(
        self,
        trace: Trace,
        e: Access,
        ledger: Ledger,
        cell: int,
        owner: int,
        before: int,
        other_writes: bool,
        count: int,
    ) -> None:
        first_byte = cell * ledger.cell_nbytes - e.base
        element = first_byte // e.buffer.dtype.nbytes

        def site(statement: ir.Statement, block: int, thread: int, writes: bool) -> Site:
            nbytes = ledger.cell_nbytes
            return Site(
                statement, block, thread, e.buffer.name, first_byte, nbytes, element, writes
            )

        second = site(e.statement, owner // self.nthreads, owner % self.nthreads, e.writes)
        statement = ledger.by[other_writes].at(cell)
        if before > 0:
            block, thread = (before - 1) // self.nthreads, (before - 1) % self.nthreads
            first = site(statement, block, thread, other_writes)
            who = f"block {block}"
        else:
            first = None
            who = "several blocks"
        self.findings.add(
            "race",
            f"block {second.block} {'writes' if e.writes else 'reads'} what {who} "
            f"{'writes' if other_writes else 'reads'}, {e.buffer}[{element}]; blocks have no order",
            first=first,
            second=second,
            count=count,
        )
