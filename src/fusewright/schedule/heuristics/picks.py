"""Reads that go where data says: what memory moves for rows that are picked in any order.

    out[i, :] = table[index[i], :]      rows of `table` are picked, some more than once, some never

What is picked for the first time comes from memory; what is picked again is still in the
second-level cache with the chance that the cache has of all that it may be picked from. The rows
are taken to be picked with equal chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright.core.expr import Expr, Var, constant_value, variables
from fusewright.core.instructions import CODE
from fusewright.core.substitution import estimate, substitute
from fusewright.core.symbolic import Symbolic
from fusewright.fusion.ir import Take
from fusewright.schedule.graph import Stage
from fusewright.schedule.heuristics.common import GlobalAccess, numel
from fusewright.target import LINE_NBYTES, SECTOR_NBYTES, WARP_SIZE

PAIR_NBYTES = 2 * SECTOR_NBYTES

ALONE = 0.33
"""How much longer memory takes for pairs of sectors that lie alone, 0.75 of the speed of long rows;
rows of 128 bytes reach 0.88 of it, those of 256 0.99 (sums of rows that are picked in any order,
each once, of 1 GiB; one H100, 2026-11-27): less by `SHRINKS` for each doubling."""
SHRINKS = 2.5


@dataclass(frozen=True, slots=True)
class Picks:
    """Of an array: the bytes of one `region`, all of which may be picked from before the next one
    is, the rows or pairs of sectors in it, and the bytes that all picks of a launch bring, each in
    whole pairs of sectors, whatever others brought before. `run`: those of one pick, which lie side
    by side."""

    region: float
    rows: float
    drawn: float
    run: float

    @property
    def isolation(self) -> float:
        """How much longer memory takes than for long rows. What a warp picks out of as many lines
        as it has lanes lies together."""
        if self.region <= WARP_SIZE * LINE_NBYTES:
            return 1.0
        return 1.0 + ALONE * SHRINKS ** -math.log2(self.run / PAIR_NBYTES)

    def distinct(self, nbytes: float) -> float:
        """The bytes of an array of so many that are picked at all."""
        return nbytes * (1.0 - (1.0 - 1.0 / self.rows) ** (self.rows * self.drawn / nbytes))

    def moved(self, nbytes: float, asked: float, cached: float) -> float:
        """The bytes that come from memory of an array of so many, where warps ask for `asked` of
        it, and the cache holds `cached`."""
        once = min(asked, self.distinct(nbytes))
        return once + (asked - once) * max(0.0, 1.0 - cached / self.region)


def picks_of(a: GlobalAccess) -> Picks | None:
    """What data picks of the array that an access reads; None where data has no part in it, or
    picks out of a few neighbours only, which lie in the same sectors."""
    found = [p for v, _ in a.data for p in _picks(a, v)]
    return max(found, key=lambda p: p.region, default=None)


def _picks(a: GlobalAccess, v: Var) -> Iterator[Picks]:
    itemsize = a.tensor.dtype.nbytes
    step = _step(a.address, v)
    if v.upper is None or step is None:
        return
    count, row = estimate(v.upper) + 1, step * itemsize
    if count * row <= PAIR_NBYTES:
        return
    run = row if _shares_rows(a.stage) else itemsize
    picked = numel(a.stage.shape) * itemsize / run
    rows = count if run >= PAIR_NBYTES else count * row / PAIR_NBYTES
    brought = max(run, PAIR_NBYTES)
    yield Picks(float(count * row), max(2.0, float(rows)), picked * brought, brought)


def _shares_rows(s: Stage) -> bool:
    """Whether all elements of a row are picked together."""
    return isinstance(s.op, Take)


def _step(address: Expr, v: Var) -> int | None:
    """By how many elements an address grows with a variable, if it does so evenly."""
    if v not in variables(address):
        return None
    return constant_value(substitute(address, {v: v + 1}) - address)


def picked_instructions(
    a: GlobalAccess, trips: Mapping[Var, int], parts: dict[Symbolic | tuple[object, ...], float]
) -> float:
    """Instructions of a thread for the indices that an access follows, but for those in `parts`:
    each once for the trips of the loops that it is found by."""
    before = sum(parts.values())
    for v, place in a.data:
        own = [trips[x] for x in variables(place) if x in trips]
        parts.setdefault(v, CODE.picked * math.prod(own))
    return sum(parts.values()) - before


def lie_apart(address: npt.NDArray[Any], itemsize: int) -> bool:
    """Whether some lanes of a vector, along axis 2, are no neighbours in memory."""
    return bool((np.diff(address, axis=2) != itemsize).any())
