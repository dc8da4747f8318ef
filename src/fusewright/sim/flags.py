"""Semaphores in a replay: what each holds, and what its last release hands on."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusewright.kir import ir
from fusewright.sim.clocks import ClockRow, Clocks
from fusewright.sim.compute import Array
from fusewright.sim.phases import Fault
from fusewright.sim.report import statement_text


@dataclass(slots=True)
class SemaphoreState:
    """One semaphore: its value, what who acquires it learns, and the block and the statement that
    set it."""

    value: int = 0
    row: ClockRow | None = None
    block: int = -1
    setter: ir.SyncStatement | None = None


@dataclass(slots=True)
class Flags:
    """The semaphores of the blocks of a domain, by number; `blocks` is the block of each strand,
    `cluster` of which start together."""

    clocks: Clocks
    blocks: Array
    cluster: int = 1
    cells: dict[int, SemaphoreState] = field(default_factory=dict[int, SemaphoreState])

    def acquire(self, strand: int, cell: int, s: ir.SemaphoreAcquire) -> list[Fault]:
        """A strand comes through its wait."""
        flag, model = self._cell(cell), self.clocks.model
        if flag.row is not None and model.semaphores_acquire and self._is_far(s.scope):
            self.clocks.acquire(strand, flag.row)
        is_early = flag.block // self.cluster <= self.blocks[strand] // self.cluster
        if is_early or not model.blocks_wait_for_earlier_ones:
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

    def release(self, strand: int, cell: int, value: int, s: ir.SemaphoreRelease) -> None:
        """A strand sets a semaphore."""
        self.cells[cell] = SemaphoreState(
            value, self._handed(strand, s.scope), int(self.blocks[strand]), s
        )

    def count(
        self, strand: int, cell: int, period: int, s: ir.SemaphoreArrive | ir.SemaphoreLeave
    ) -> None:
        """A strand adds 1, up to `period`; what was handed on before stays with it. Blocks that
        count run at once, so that nobody waits for one that has not started."""
        flag = self._cell(cell)
        row = flag.row
        if isinstance(s, ir.SemaphoreArrive):
            row = self._handed(strand, s.scope)
            if flag.row is not None:
                row.join(flag.row)
        self.cells[cell] = SemaphoreState((flag.value + 1) % period, row, setter=s)

    def left(self) -> list[Fault]:
        """Semaphores that the next launch would not find at zero."""
        return [
            Fault(
                "rule",
                f"a semaphore holds {flag.value} when the kernel ends, set by "
                f"`{statement_text(flag.setter)}`; the next launch wants it at zero",
                flag.setter,
            )
            for flag in self.cells.values()
            if flag.value and flag.setter is not None and self.clocks.model.semaphores_end_at_zero
        ]

    def _handed(self, strand: int, scope: ir.Visibility) -> ClockRow:
        row = self.clocks.release_one(strand)
        if self._is_far(scope) and self.clocks.model.semaphores_release:
            return row
        return self.clocks.phase_row(strand)

    def _is_far(self, scope: ir.Visibility) -> bool:
        """Whether a scope reaches other blocks."""
        return scope is ir.Visibility.GPU or not self.clocks.model.scopes_end_at_the_block

    def _cell(self, cell: int) -> SemaphoreState:
        return self.cells.setdefault(cell, SemaphoreState())
