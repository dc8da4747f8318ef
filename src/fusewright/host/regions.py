"""Which bytes of a root a binding touches, exactly, where all numbers are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.core.expr import constant_value
from fusewright.host.ir import Binding

MAX_TRIED = 4096
"""Steps after which the search for a common byte is given up: regions of unlike pitch."""


@dataclass(frozen=True, slots=True)
class ByteRegion:
    """The bytes `start + sum(k * step) + [0, width)` for every k below the extent, axis by axis;
    `axes` are pairs (extent, step), the largest step first, none of which continues the next."""

    start: int
    axes: tuple[tuple[int, int], ...]
    width: int

    @property
    def end(self) -> int:
        """Behind the last byte; the start where there are none."""
        if not self.width:
            return self.start
        return self.start + sum((n - 1) * step for n, step in self.axes) + self.width

    @property
    def nbytes(self) -> int:
        """How many bytes there are, where no two points of the axes meet."""
        out = self.width
        for n, _ in self.axes:
            out *= n
        return out


def region(start: int, axes: Sequence[tuple[int, int]], width: int) -> ByteRegion:
    """The region of some axes in any order; those that continue others are joined with them."""
    if any(n == 0 for n, _ in axes):
        return ByteRegion(start, (), 0)
    merged: list[tuple[int, int]] = []
    for n, step in sorted((a for a in axes if a[0] > 1 and a[1] > 0), key=lambda a: a[1]):
        if not merged and step == width:
            width *= n
        elif merged and merged[-1][0] * merged[-1][1] == step:
            merged[-1] = (merged[-1][0] * n, merged[-1][1])
        else:
            merged.append((n, step))
    return ByteRegion(start, tuple(reversed(merged)), width)


def region_of(b: Binding) -> ByteRegion | None:
    """The bytes of a binding; None where a size or place is not known."""
    start = constant_value(b.offset)
    axes = [(constant_value(n), constant_value(step)) for n, step in b.axes]
    known = [(n, step) for n, step in axes if n is not None and step is not None]
    return None if start is None or len(known) < len(axes) else region(start, known, b.width)


def meet(a: ByteRegion, b: ByteRegion) -> bool | None:
    """Whether two regions of one root share a byte; None where the search takes too long.

    The places of the two differ by a sum of multiples of all their steps: the largest step first,
    only those multiples are tried that the smaller steps can still make up for. Where every step
    is a multiple of the next, these are two or three.
    """
    if not a.width or not b.width or a.end <= b.start or b.end <= a.start:
        return False
    bounds: dict[int, tuple[int, int]] = {}
    for n, step in a.axes:
        low, high = bounds.get(step, (0, 0))
        bounds[step] = (low, high + n - 1)
    for n, step in b.axes:
        low, high = bounds.get(step, (0, 0))
        bounds[step] = (low - n + 1, high)
    steps = sorted(bounds, reverse=True)
    reach = [(1 - b.width, a.width - 1)]
    for s in reversed(steps):
        low, high = reach[-1]
        reach.append((low + bounds[s][0] * s, high + bounds[s][1] * s))
    reach.reverse()
    tried = 0
    stack = [(0, b.start - a.start)]
    while stack:
        k, rest = stack.pop()
        if k == len(steps):
            return True
        tried += 1
        if tried > MAX_TRIED:
            return None
        s, (low, high) = steps[k], reach[k + 1]
        first = max(bounds[s][0], -((high - rest) // s))
        last = min(bounds[s][1], (rest - low) // s)
        stack += [(k + 1, rest - c * s) for c in range(first, min(last, first + MAX_TRIED) + 1)]
    return False
