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
from fusewright.memory import Memory
from fusewright.sim.compute import Array
from fusewright.sim.memory import GlobalMemory
from fusewright.sim.model import Model
from fusewright.sim.report import AccessSite, Findings, statement_text
from fusewright.sim.trace import GENERIC, Trace, TracedAccess

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
    by: dict[bool, LastTouches]


@dataclass(slots=True)
class LastTouches:
    """The statements that write (or read) a space, and, if several, which touched a cell last."""

    numbers: dict[ir.Statement, int]
    latest: Array

    @staticmethod
    def of(statements: Sequence[ir.Statement], cells: int) -> LastTouches:
        several = len(statements) > 1
        return LastTouches(
            {s: i for i, s in enumerate(statements)}, np.zeros(cells if several else 0, np.int32)
        )

    def note(self, cells: Array, statement: ir.Statement) -> None:
        """The statement touched these cells."""
        if len(self.latest):
            self.latest[cells] = self.numbers[statement]

    def at(self, cell: int) -> ir.Statement:
        """The statement that touched the cell last."""
        return list(self.numbers)[int(self.latest[cell]) if len(self.latest) else 0]


@dataclass(frozen=True, slots=True)
class _CellTouch:
    """One access of a batch at one cell a thread: the cells, and 1 + the linear threads."""

    access: TracedAccess
    ledger: Ledger
    cells: Array
    mine: Array


class Ownership:
    """The ledgers of all written spaces."""

    def __init__(
        self, memory: GlobalMemory, nthreads: int, cluster: int, model: Model, findings: Findings
    ) -> None:
        """`nthreads` threads a row, which holds the `cluster` blocks of a cluster or a domain."""
        self.nthreads = nthreads
        self.blocks: dict[int, Array] = {}
        self.cluster = cluster
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
                    True: LastTouches.of(memory.writers[space], count),
                    False: LastTouches.of(reads, count),
                },
            )

    def observe(self, trace: Trace) -> frozenset[int]:
        """Enter the accesses of a batch; the spaces where threads of one block met."""
        self.blocks.update(zip(trace.rows.tolist(), trace.blocks, strict=True))
        first = np.asarray(trace.rows, np.int64)[:, None]
        owner = first * self.nthreads + np.arange(self.nthreads) + 1
        met: set[int] = set()
        for e in trace.events:
            if not isinstance(e, TracedAccess) or e.space not in self.ledgers:
                continue
            ledger = self.ledgers[e.space]
            cells = np.asarray(e.block + e.thread) // ledger.cell_nbytes
            cells = np.broadcast_to(cells, owner.shape)
            mine = owner
            if e.mask is not None:
                chosen = np.broadcast_to(e.mask, owner.shape)
                cells, mine = cells[chosen], mine[chosen]
            per_thread = e.nbytes // ledger.cell_nbytes
            if e.agent is not GENERIC:
                met.add(e.space)
                runs = np.zeros(1, np.int64) if e.runs is None else e.runs // ledger.cell_nbytes
                span = (runs[:, None] + np.arange(per_thread)).reshape(-1)
                cells = (np.reshape(cells, -1)[:, None] + span).reshape(-1)
                mine, per_thread = np.repeat(np.reshape(mine, -1), len(span)), 1
            for k in range(per_thread):
                touch = _CellTouch(e, ledger, cells + k if k else cells, mine)
                if self._enter_write(touch) if e.writes else self._enter_read(touch):
                    met.add(e.space)
                ledger.by[e.writes].note(touch.cells, e.statement)
        return frozenset(met)

    def _enter_write(self, t: _CellTouch) -> bool:
        met = self._meet(t, t.ledger.writer[t.cells], t.ledger.by[True])
        t.ledger.writer[t.cells] = t.mine
        met |= self._meet(t, t.ledger.writer[t.cells], None)
        if t.ledger.is_read:
            met |= self._meet(t, t.ledger.reader[t.cells], t.ledger.by[False])
        return met

    def _enter_read(self, t: _CellTouch) -> bool:
        met = self._meet(t, t.ledger.writer[t.cells], t.ledger.by[True])
        seen = t.ledger.reader[t.cells]
        block = (t.mine - 1) // self.nthreads
        new = np.where((seen == 0) | (seen == t.mine), t.mine, _MANY_BLOCKS)
        together = (seen != 0) & (seen != t.mine) & (self._block_of(seen) == block)
        new = np.where(together, -2 - block, new)
        t.ledger.reader[t.cells] = new
        if (t.ledger.reader[t.cells] != new).any():
            self._settle_readers(t.ledger, t.cells, block)
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

    def _meet(self, t: _CellTouch, other: Array, by: LastTouches | None) -> bool:
        """Report cells that another block touched, by a statement of `by` (None: by this one);
        True when threads of one block met."""
        where = (other != 0) & (other != t.mine)
        if not where.any():
            return False
        mine, theirs = t.mine[where], other[where]
        foreign = self._block_of(theirs) != (mine - 1) // self.nthreads
        commute = self._commute(t, t.cells[where], by)
        met = not bool(foreign.all())
        foreign &= ~commute
        if foreign.any() and self.model.blocks_are_unordered:
            i = int(np.argmax(foreign))
            cell = int(t.cells[where][i])
            statement = t.access.statement if by is None else by.at(cell)
            self._report(t, cell, int(mine[i]), int(theirs[i]), statement, int(foreign.sum()))
        return met

    def _commute(self, t: _CellTouch, cells: Array, by: LastTouches | None) -> Array:
        """At which cells this access and the one before combine by the copy engine, in one way."""
        mine = t.access.statement
        if not isinstance(mine, ir.BulkReduce | ir.BoxReduce):
            return np.zeros(len(cells), bool)
        if by is None:
            return np.ones(len(cells), bool)
        alike = [
            isinstance(s, ir.BulkReduce | ir.BoxReduce) and s.fn == mine.fn for s in by.numbers
        ]
        if not len(by.latest):
            return np.full(len(cells), alike[0])
        return np.array(alike)[by.latest[cells]]

    def _report(
        self, t: _CellTouch, cell: int, mine: int, theirs: int, earlier: ir.Statement, count: int
    ) -> None:
        buffer = t.access.buffer
        nbytes = t.ledger.cell_nbytes
        first_byte = cell * nbytes - t.access.base
        element = first_byte // buffer.dtype.nbytes

        def writes_it(statement: ir.Statement) -> bool:
            written = (u.buffer.memory for u in statement.memory_uses() if u.writes)
            return Memory.GLOBAL in written

        def site(statement: ir.Statement, owner: int) -> AccessSite:
            row, place = divmod(owner - 1, self.nthreads)
            rank, thread = divmod(place, self.nthreads // self.cluster)
            block = int(self.blocks[row][rank])
            writes = writes_it(statement)
            return AccessSite(
                statement, block, thread, buffer.name, first_byte, nbytes, element, writes
            )

        second = site(t.access.statement, mine)
        first = site(earlier, theirs) if theirs > 0 else None
        who = "several blocks" if first is None else f"block {first.block}"
        verbs = ["writes" if writes_it(s) else "reads" for s in (second.statement, earlier)]
        self.findings.add(
            "race",
            f"block {second.block} {verbs[0]} what {who} {verbs[1]}, {buffer}[{element}], in "
            f"`{statement_text(earlier)}`; blocks have no order",
            first=first,
            second=second,
            count=count,
        )
