"""Semaphores while a kernel runs: blocks go on in turns, each as far as it gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fusewright.kir import ir
from fusewright.sim.asynchrony import issued_by
from fusewright.sim.compute import Array, ExprFn, Mask
from fusewright.sim.frame import AnyStep, BatchFrame, Blocking, Run, Step, Wait
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

    def find(self, f: BatchFrame, mask: Mask) -> tuple[Array, Array] | None:
        """The element of each thread of a mask, one in each block of a cluster, and for all threads
        its number among the semaphores of the blocks that run together; None, with a finding, for
        one that is outside."""
        at = _of_issuers(self.index, f, mask)
        outside = at[(at < 0) | (at >= len(self.array))]
        if len(outside):
            f.run.execution.findings.add(
                "range",
                f"{self.statement.semaphore}[{outside[0]}] is outside its {len(self.array)} "
                f"elements in `{statement_text(self.statement)}`",
                statement=self.statement,
            )
            return None
        known = f.trace.semaphores
        keys = ((self.place.space, self.place.offset + n * self.array.itemsize) for n in at)
        return at, _of_threads([known.setdefault(k, len(known)) for k in keys], f, mask)


def _of_issuers(expression: ExprFn, f: BatchFrame, mask: Mask) -> Array:
    """The values of an expression in the threads of a mask."""
    chosen = f.active(mask)
    return np.broadcast_to(np.asarray(expression(f.values)), chosen.shape)[chosen]


def _of_threads(values: Sequence[int] | Array, f: BatchFrame, mask: Mask) -> Array:
    """The values of the threads of a mask among those of all threads."""
    chosen = f.active(mask)
    found = np.zeros(chosen.shape, np.int64)
    found[chosen] = values
    return found


def _acquire(s: ir.SemaphoreAcquire, run: Run) -> Blocking:
    cell, value = _Cell(s, run), run.scope.expression(s.value)

    def wait(f: BatchFrame) -> Wait:
        mask, some = issued_by(f, s.issuer)
        found = cell.find(f, mask) if some else None
        if found is None:
            return
        wanted = _of_issuers(value, f, mask)
        while (cell.array[found[0]] < wanted).any():
            yield (s,)
        f.record(SyncEvent(s, mask, found[1], _of_threads(wanted, f, mask)))

    return Blocking(wait)


def _release(s: ir.SemaphoreRelease, run: Run) -> Step:
    cell, value = _Cell(s, run), run.scope.expression(s.value)

    def step(f: BatchFrame) -> None:
        mask, some = issued_by(f, s.issuer)
        found = cell.find(f, mask) if some else None
        if found is not None:
            new = _of_issuers(value, f, mask)
            cell.array[found[0]] = new
            f.record(SyncEvent(s, mask, found[1], _of_threads(new, f, mask)))

    return step


def _count(s: ir.SemaphoreArrive | ir.SemaphoreLeave, run: Run) -> Step:
    cell, period = _Cell(s, run), run.scope.expression(s.period)

    def step(f: BatchFrame) -> None:
        mask, some = issued_by(f, s.issuer)
        found = cell.find(f, mask) if some else None
        if found is not None:
            wraps = _of_issuers(period, f, mask)
            for at, n in zip(found[0].tolist(), wraps.tolist(), strict=True):
                cell.array[at] = (int(cell.array[at]) + 1) % n
            f.record(SyncEvent(s, mask, found[1], _of_threads(wraps, f, mask)))

    return step


SEMAPHORES: Mapping[type[ir.Statement], Callable[[Any, Run], AnyStep]] = {
    ir.SemaphoreAcquire: _acquire,
    ir.SemaphoreRelease: _release,
    ir.SemaphoreArrive: _count,
    ir.SemaphoreLeave: _count,
}
