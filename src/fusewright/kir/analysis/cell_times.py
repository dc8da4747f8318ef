"""When each cell of a shared buffer is first and last touched, in lockstep order."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from fusewright.kir.analysis.accesses import Access
from fusewright.kir.analysis.lanes import Array
from fusewright.kir.analysis.ownership import Footprint
from fusewright.kir.analysis.sites import Path
from fusewright.kir.analysis.times import StatementTimes

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class CellTimes:
    """Per cell of a buffer the first and the last time that anything touches it; a cell that
    nothing touches has its first time after its last."""

    first: Array
    last: Array


def cell_times(
    prints: Iterable[Footprint], ncells: int, line: StatementTimes, within: Collection[Path]
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


def _row_times(f: Footprint, line: StatementTimes, within: Collection[Path]) -> tuple[Array, Array]:
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
        if not access.stands_for_all[i]:
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
