"""Semaphores while a kernel runs: blocks go on in turns, each as far as it gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusewright.kir import ir
from fusewright.sim.asynchrony import issued_by
from fusewright.sim.compute import Array, ExprFn, Mask
from fusewright.sim.frame import AnyStep, Blocking, Frame, Run, Step, Wait
from fusewright.sim.report import statement_text
from fusewright.sim.trace import SyncEvent

_Semaphore = ir.SemaphoreAcquire | ir.SemaphoreRelease | ir.SemaphoreArrive | ir.SemaphoreLeave


class _Cell:
    """The semaphore that a statement names."""

    def __init__(self, s: _Semaphore, run: Run) -> None:
        self.statement = s
        self.array: Array = run.execution.memory.arrays[s.semaphore]
        self.place = run.execution.memory.places[s.semaphore]
        self.index = run.scope.expression(s.index)

    def find(self, f: Frame, mask: Mask) -> tuple[int, int] | None:
        """The element, and its number among the semaphores of the blocks that run together; None,
        with a finding, for one that is outside."""
        at = _of_issuer(self.index, f, mask)
        if not 0 <= at < len(self.array):
            f.run.execution.findings.add(
                "range",
                f"{self.statement.semaphore}[{at}] is outside its {len(self.array)} elements in "
                f"`{statement_text(self.statement)}`",
                statement=self.statement,
            )
            return None
        key = self.place.space, self.place.offset + at * self.array.itemsize
        return at, f.trace.semaphores.setdefault(key, len(f.trace.semaphores))


def _of_issuer(expression: ExprFn, f: Frame, mask: Mask) -> int:
    """The value of an expression in the one thread of a mask."""
    chosen = f.active(mask)
    return int(np.broadcast_to(np.asarray(expression(f.values)), chosen.shape)[chosen][0])


def _acquire(s: ir.SemaphoreAcquire, run: Run) -> Blocking:
    cell, value = _Cell(s, run), run.scope.expression(s.value)

    def wait(f: Frame) -> Wait:
        mask, some = issued_by(f, s.issuer)
        found = cell.find(f, mask) if some else None
        if found is None:
            return
        wanted = _of_issuer(value, f, mask)
        while int(cell.array[found[0]]) < wanted:
            yield (s,)
        f.record(SyncEvent(s, mask, found[1], wanted))

    return Blocking(wait)


def _release(s: ir.SemaphoreRelease, run: Run) -> Step:
    cell, value = _Cell(s, run), run.scope.expression(s.value)

    def step(f: Frame) -> None:
        mask, some = issued_by(f, s.issuer)
        found = cell.find(f, mask) if some else None
        if found is not None:
            new = _of_issuer(value, f, mask)
            cell.array[found[0]] = new
            f.record(SyncEvent(s, mask, found[1], new))

    return step


def _count(s: ir.SemaphoreArrive | ir.SemaphoreLeave, run: Run) -> Step:
    cell, period = _Cell(s, run), run.scope.expression(s.period)

    def step(f: Frame) -> None:
        mask, some = issued_by(f, s.issuer)
        found = cell.find(f, mask) if some else None
        if found is not None:
            wraps = _of_issuer(period, f, mask)
            cell.array[found[0]] = (int(cell.array[found[0]]) + 1) % wraps
            f.record(SyncEvent(s, mask, found[1], wraps))

    return step


SEMAPHORES: Mapping[type[ir.Statement], Callable[[Any, Run], AnyStep]] = {
    ir.SemaphoreAcquire: _acquire,
    ir.SemaphoreRelease: _release,
    ir.SemaphoreArrive: _count,
    ir.SemaphoreLeave: _count,
}
