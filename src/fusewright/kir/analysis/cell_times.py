"""When each cell of a shared buffer is first and last touched, in lockstep order.

Lockstep runs each statement for all threads before the next, so a point in time is a number: of a
statement in straight code its place, in a loop also the iterations that went before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fusewright.core.expr import constant_value
from fusewright.kir.analysis.accesses import Access
from fusewright.kir.analysis.lanes import Array
from fusewright.kir.analysis.ownership import Footprint
from fusewright.kir.analysis.sites import Path
from fusewright.kir.ir import Body, For, If, Kernel, Role, Roles

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class CellTimes:
    """Per cell of a buffer the first and the last time that anything touches it; a cell that
    nothing touches has its first time after its last."""

    first: Array
    last: Array


@dataclass(frozen=True, slots=True)
class Timeline:
    """`start` of every statement in the first iterations of its loops, `span` of one iteration of
    every loop. A loop whose extent is not constant takes the time of one iteration."""

    start: dict[Path, int]
    span: dict[Path, int]


def timeline(kernel: Kernel, trips: Mapping[Path, int] | None = None) -> Timeline:
    """Where the statements of a kernel stand in time, of roles one after the other. `trips` tells
    how many iterations loops are given when it is not their extent."""
    line = Timeline({}, {})
    _lay_out(kernel.body, (), 0, line, trips or {})
    return line


def _lay_out(body: Body, path: Path, now: int, line: Timeline, known: Mapping[Path, int]) -> int:
    """The time at the end of a body that starts at `now`."""
    for i, statement in enumerate(body):
        here = (*path, i)
        line.start[here] = now
        match statement:
            case For():
                span = _lay_out(statement.body, here, now, line, known) - now
                line.span[here] = span
                trips = known.get(here) or constant_value(statement.extent)
                now += span * (1 if trips is None else trips)
            case If():
                now = _lay_out(statement.then, (*here, 0), now, line, known)
                now = _lay_out(statement.otherwise, (*here, 1), now, line, known)
            case Roles():
                for number, role in enumerate(statement.body):
                    assert isinstance(role, Role)
                    now = _lay_out(role.body, (*here, number), now, line, known)
            case _:
                now += 1
    return now


def cell_times(
    prints: Iterable[Footprint], ncells: int, line: Timeline, within: Collection[Path]
) -> CellTimes:
    """The times of a buffer of `ncells` cells, whose footprints all have known cells, in one
    iteration of the loops `within`."""
    first = np.full(ncells, _NEVER, dtype=np.int64)
    last = np.full(ncells, -1, dtype=np.int64)
    for f in prints:
        assert f.cells is not None
        low, high = _row_times(f, line, within)
        np.minimum.at(first, f.cells, low)
        np.maximum.at(last, f.cells, high)
    return CellTimes(first, last)


def _row_times(f: Footprint, line: Timeline, within: Collection[Path]) -> tuple[Array, Array]:
    """The earliest and latest time of every row."""
    access: Access = f.access
    low = np.full(f.first.size, line.start[access.site.path], dtype=np.int64)
    high = low.copy()
    begun = np.zeros_like(low)
    coords = dict(zip(f.loops, f.coords, strict=True))
    for i, (loop, trips) in enumerate(zip(access.site.loops, access.trips, strict=True)):
        if loop.path in within:
            continue
        span = line.span[loop.path]
        if loop.trips is None or loop.trips != trips:
            whole = begun + line.start[loop.path]
            return whole, whole + span - 1
        if i in coords:
            passed = coords[i] * span
            low, high, begun = low + passed, high + passed, begun + passed
        else:
            high = high + (trips - 1) * span
    return low, high


def meet(a: CellTimes, b: CellTimes, shift: int) -> bool:
    """Whether a cell is in use by both at some time when `b` lies `shift` cells after `a`."""
    start, stop = max(0, shift), min(a.first.size, b.first.size + shift)
    if start >= stop:
        return False
    mine, other = slice(start, stop), slice(start - shift, stop - shift)
    apart = (a.last[mine] < b.first[other]) | (b.last[other] < a.first[mine])
    unused = (a.last[mine] < 0) | (b.last[other] < 0)
    return not bool((apart | unused).all())
