"""Semaphores in a replay: what each holds, and what its last release hands on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fusewright.kir import ir
from fusewright.sim.clocks import ClockRow, Clocks
from fusewright.sim.compute import Array
from fusewright.sim.phases import Fault
from fusewright.sim.report import statement_text


@dataclass(slots=True)
class Flag:
    """One semaphore: its value, what who acquires it learns, and the block that set it."""

    value: int = 0
    row: ClockRow | None = None
    block: int = -1


@dataclass(slots=True)
class Flags:
    """The semaphores of the blocks of a domain, by number; `blocks` is the block of each strand."""

    clocks: Clocks
    blocks: Array
    cells: dict[int, Flag] = field(default_factory=dict[int, Flag])

    def acquire(self, strand: int, cell: int, s: ir.SemaphoreAcquire) -> list[Fault]:
        """A strand comes through its wait."""
        flag, model = self._cell(cell), self.clocks.model
        if flag.row is not None and model.semaphores_acquire:
            self.clocks.acquire(np.array([strand]), flag.row)
        if flag.block <= self.blocks[strand] or not model.blocks_wait_for_earlier_ones:
            return []
        return [
            Fault(
                "rule",
                f"`{statement_text(s)}` in block {self.blocks[strand]} of its group waits for "
                f"block {flag.block}, which may not start before this one ends",
                s,
            )
        ]

    def is_at_least(self, cell: int, wanted: int) -> bool:
        """Whether a wait for a value is over."""
        return self._cell(cell).value >= wanted

    def holds(self, cell: int, value: int) -> bool:
        """Whether a semaphore has a value."""
        return self._cell(cell).value == value

    def release(self, strand: int, cell: int, value: int, scope: ir.Visibility) -> None:
        """A strand sets a semaphore."""
        self.cells[cell] = Flag(value, self._handed(strand, scope), int(self.blocks[strand]))

    def add(self, strand: int, cell: int) -> None:
        """A strand adds 1; what was handed on before stays with it."""
        flag = self._cell(cell)
        row = self._handed(strand, ir.Visibility.GPU)
        if flag.row is not None:
            row.join(flag.row)
        self.cells[cell] = Flag(flag.value + 1, row, max(flag.block, int(self.blocks[strand])))

    def _handed(self, strand: int, scope: ir.Visibility) -> ClockRow:
        row = self.clocks.release(np.array([strand]))
        model = self.clocks.model
        is_far = scope is ir.Visibility.GPU or not model.scopes_end_at_the_block
        return row if is_far and model.semaphores_release else self.clocks.phase_row(strand)

    def _cell(self, cell: int) -> Flag:
        return self.cells.setdefault(cell, Flag())
