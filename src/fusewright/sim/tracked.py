"""The only registers whose accesses are recorded: accumulators and fragments of products.

A product may use its registers at any time from its issue until it is waited for. The registers of
one product are one cell, so that an access is one byte of its thread, in a space of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fusewright.core.expr import Expr, constant_value
from fusewright.kir import ir
from fusewright.kir.traverse import all_statements, own_registers, register_uses
from fusewright.sim.compute import Mask, narrow
from fusewright.sim.frame import BatchFrame, Run, Step
from fusewright.sim.trace import GENERIC, REGISTERS, Agent, TracedAccess


class TrackedRegisters:
    """The cells of a kernel: those of a buffer are cut where the registers of a product begin."""

    def __init__(self, kernel: ir.Kernel, sizes: Mapping[ir.Buffer, int]) -> None:
        cuts: dict[ir.Buffer, set[int]] = {}
        for s in all_statements(kernel):
            for use in register_uses(s):
                if use.completes.at_once:
                    continue
                buffer, first = use.reg.buffer, constant_value(use.reg.index)
                found = cuts.setdefault(buffer, {0, sizes[buffer]})
                found |= set[int]() if first is None else {first, first + use.width}
        self._cuts: dict[ir.Buffer, list[int]] = {b: sorted(c) for b, c in cuts.items()}
        self._first: dict[ir.Buffer, int] = {}
        self.ncells = 0
        for b, c in self._cuts.items():
            self._first[b] = self.ncells
            self.ncells += len(c) - 1

    def cells(self, buffer: ir.Buffer, index: Expr, count: int) -> tuple[int, int] | None:
        """The first cell and the number of cells of some registers; None for others."""
        cuts = self._cuts.get(buffer)
        if cuts is None:
            return None
        first = constant_value(index)
        low, high = (0, cuts[-1]) if first is None else (first, first + count)
        inside = [k for k in range(len(cuts) - 1) if cuts[k] < high and low < cuts[k + 1]]
        return (self._first[buffer] + inside[0], len(inside)) if inside else None

    def record(
        self,
        f: BatchFrame,
        s: ir.Statement,
        buffer: ir.Buffer,
        cells: tuple[int, int],
        mask: Mask,
        *,
        writes: bool,
        agent: Agent = GENERIC,
        issue: int = -1,
    ) -> None:
        """Record an access of the threads of a mask."""
        thread = np.arange(f.nthreads)[None, :] * self.ncells + cells[0]
        f.record(
            TracedAccess(
                s, REGISTERS, 0, thread, cells[1], writes, mask, buffer, cells[0], agent, issue
            )
        )


def _registers(s: ir.Statement) -> Iterator[tuple[ir.Reg, int, bool]]:
    """The registers a statement names itself: the first, their number, whether it writes them."""
    operands = register_uses(s)
    for use in operands:
        yield use.reg, use.width, use.writes
    named = {u.reg for u in operands}
    for reg in own_registers(s):
        if reg not in named:
            yield reg, 1, False


def follow_registers(s: ir.Statement, run: Run) -> Step | None:
    """Records what a statement that is no product does to the registers of products; None when it
    names none of them. What only repeats since the last sync is recorded once."""
    tracked = run.execution.tracked
    found: list[tuple[ir.Buffer, tuple[int, int], bool]] = []
    for reg, count, writes in _registers(s):
        cells = tracked.cells(reg.buffer, reg.index, count)
        if cells is not None:
            found.append((reg.buffer, cells, writes))
    if not found:
        return None
    predicate = getattr(s, "predicate", None)
    holds = None if predicate is None else run.scope.condition(predicate)

    def step(f: BatchFrame) -> None:
        mask, some = (f.mask, True) if holds is None else narrow(f.mask, holds(f.values))
        if not some:
            return
        for buffer, cells, writes in found:
            key = (cells, writes)
            known = f.touched.get(key)
            if known is None or known[0] != f.nsyncs or known[1] is not mask:
                f.touched[key] = (f.nsyncs, mask)
                tracked.record(f, s, buffer, cells, mask, writes=writes)

    return step
