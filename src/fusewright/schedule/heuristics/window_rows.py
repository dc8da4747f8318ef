"""Rows of a window that one thread takes together, as it reads nearly the same for all of them.

    y[i, j] = x[i, j] + x[i + 1, j] + x[i + 2, j]

    a row a thread       3 reads for each element, each by another block
    four rows a thread   6 reads for 4 elements: x[i], .., x[i + 5]

What is read again is in registers (`kir/passes/share_loads`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fusewright.core.expr import is_multiple
from fusewright.core.substitution import estimate
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.common import (
    GlobalAccess,
    merge_all,
    numel,
    split,
)
from fusewright.schedule.heuristics.reuse_order import ReadAgain, place_of, step_of
from fusewright.schedule.parallel import Loop
from fusewright.schedule.propagate import transform_like
from fusewright.target import WARP_SIZE

ROWS = (4, 3, 2)
"""Rows of a thread that are looked at. Of five reads, four rows took 0.90 to 0.94 times as long as
one, three 0.92 to 0.95, two 0.95, eight 0.89 to 0.92 (four stencils of 40 to 80 MB, one H100,
2026-11-27)."""


@dataclass(frozen=True, slots=True)
class WindowRows:
    """Neighbouring rows of a window, and the loop over all that is not these."""

    around: Loop
    rows: Loop

    @property
    def count(self) -> int:
        """How many rows these are."""
        return estimate(self.rows.axis.extent)


def window_rows(
    flow: Dataflow, reference: Stage, read: ReadAgain, width: int, piece: int | None = None
) -> WindowRows | None:
    """Rows that a thread may take together; None where no large tensor is read in neighbouring
    rows, vectors of `width` would be in two of them, or a warp's, so that what it reads is short
    runs (rows of 64 bytes 80 apart took 1.03 times as long; one H100, 2026-11-27). With `piece`
    blocks follow each other along the rows, each a piece of them of so many elements."""
    axes = list(read.axes)
    found = _windowed(read, numel(reference.shape))
    if found is None:
        return None
    k, distance, reads = found
    if k + 1 == len(axes):  # one axis in memory: rows of what lies between the accesses
        axes = [*axes[:k], *split(flow, axes[k], distance)]
    inner = merge_all(flow, axes[k + 1 :])
    if inner is None or not is_multiple(inner.axis.extent, width):
        return None
    if estimate(inner.axis.extent) < WARP_SIZE * width:
        return None
    outside, several = split(flow, axes[k], _count(estimate(axes[k].axis.extent), reads))
    order = [outside, inner]
    if piece is not None:
        pieces, inside = split(flow, inner, piece)
        order = [pieces, outside, inside]
    whole = merge_all(flow, [*axes[:k], *order])
    if whole is None or _has_strays(flow, reference, [*split(flow, whole, width), several]):
        return None
    return WindowRows(whole, several)


def _count(rows: int, reads: int) -> int:
    """How many rows of so many a thread takes: those that lie beyond the axis cost as much as
    others, and each row a store, a sum, and its part of the reads."""

    def each(n: int) -> float:
        return -(-rows // n) * n / rows * (2 + (reads - 1) / n)

    return min(ROWS, key=each)


def _windowed(read: ReadAgain, size: int) -> tuple[int, int, int] | None:
    """The axis along which a tensor of more than half of so many elements is read in neighbouring
    rows, how many elements of memory these are apart, and how many there are. Accesses that read no
    more than there is read parts of it."""
    axes = read.axes
    middle = [2 * estimate(x.axis.extent) // 3 for x in axes]
    found = [a for a in read.accesses if a.tensor is not a.stage and not a.data]
    for t in dict.fromkeys(a.tensor for a in found):
        reads = [a for a in found if a.tensor is t]
        asked = sum(numel(a.stage.shape) for a in reads)
        if 2 * numel(t.shape) <= size or 2 * asked <= 3 * numel(t.shape):
            continue
        distance = _distance(reads, middle)
        steps = [step_of(reads[0], middle, k) for k in range(len(axes))]
        if distance > 1 and distance in steps:
            return steps.index(distance), distance, len(reads)
        if distance > 1 and steps[-1] == 1 and estimate(axes[-1].axis.extent) > 2 * distance:
            return len(axes) - 1, distance, len(reads)
    return None


def _distance(reads: Sequence[GlobalAccess], middle: Sequence[int]) -> int:
    """How far apart accesses are, each from the next; 0 where these are not all alike."""
    places = sorted({place_of(a, middle) for a in reads})
    apart = {b - a for a, b in pairwise(places)}
    return apart.pop() if len(apart) == 1 else 0


def _has_strays(flow: Dataflow, reference: Stage, loops: Sequence[Loop]) -> bool:
    """Whether some stage cannot follow such loops."""
    with flow.trial():
        reference.loops = tuple(loops)
        return bool(transform_like(flow, reference, align=True))
