"""Windows that walk along axes: what their places read, and the way back.

    place j of window c reads element      c * stride + j * dilation - padding
    element e is place j of window         (e + padding - j * dilation) / stride, where it is whole
    windows without dilation that hold e   (e + padding) // stride, and the few in front of that one

A place outside of the array reads a fill. Both ways are one index map with its coordinates held
inside the array and a mask, so that a kernel reads each element where it stands, and each way is
the derivative of the other: a gradient is read, not scattered.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from fusewright import dtypes
from fusewright.core.atoms import maximum, minimum
from fusewright.core.conditions import less, less_equal, prove
from fusewright.core.expr import (
    Expr,
    IntLike,
    Var,
    add,
    as_expr,
    ceildiv,
    constant_value,
    floordiv,
    mul,
)
from fusewright.fusion import build
from fusewright.fusion.array import Array
from fusewright.fusion.derivatives import GivenRule
from fusewright.fusion.ir import Scalar
from fusewright.fusion.ops import equal, greater_equal, less as is_less, logical_and, sum, where

MAX_UNROLLED = 49
"""Places of a window, above which they are an axis that is reduced instead of terms of a sum: a
7x7 window, the largest in common networks, still has its elements in registers."""


@dataclass(frozen=True, slots=True)
class Window:
    """`count` windows of `length` places along an axis of `size` elements."""

    axis: int
    size: Expr
    count: Expr
    length: int
    stride: int
    dilation: int
    padding: int

    def element(self, window: IntLike, place: IntLike) -> Expr:
        """The element that a place of a window reads, before it is held inside the array."""
        return add(mul(window, self.stride), mul(place, self.dilation), -self.padding)

    def distance(self, element: IntLike, place: IntLike) -> Expr:
        """`stride` times the window of which an element is this place."""
        return add(element, self.padding, mul(place, -self.dilation))


def place_count(windows: Sequence[Window]) -> int:
    """How many places a window along several axes has."""
    return math.prod(w.length for w in windows)


def places(windows: Sequence[Window]) -> Iterator[tuple[int, ...]]:
    """The places of a window, in C order."""
    return itertools.product(*(range(w.length) for w in windows))


# --- one place ----------------------------------------------------------------------------------


def read_place(x: Array, windows: Sequence[Window], at: Sequence[int], fill: Scalar) -> Array:
    """What one place of every window reads; windows stand where their elements stood."""
    shape = list(x.tensor.shape)
    for w in windows:
        shape[w.axis] = w.count
    index = build.coordinates(tuple(shape))
    elements: list[Expr] = [as_expr(c) for c in index]
    masks: list[Array] = []
    for w, j in zip(windows, at, strict=True):
        e = w.element(index[w.axis], j)
        elements[w.axis] = _held(e, w.size)
        first = w.padding - j * w.dilation  # of the elements that stride * window is
        along = Array(build.iota(tuple(shape), w.axis))
        behind = ceildiv(add(w.size, first), w.stride)
        masks += _between(along, e, w.size, -(-first // w.stride), behind)
    out = mapped(x, shape, index, elements, masks, fill)
    return _with_way_back(out, x, lambda g: write_place(g, windows, at))


def write_place(g: Array, windows: Sequence[Window], at: Sequence[int]) -> Array:
    """For every element the window of which it is this place, 0 where it is of none."""
    shape = list(g.tensor.shape)
    for w in windows:
        shape[w.axis] = w.size
    index = build.coordinates(tuple(shape))
    found: list[Expr] = [as_expr(c) for c in index]
    masks: list[Array] = []
    for w, j in zip(windows, at, strict=True):
        d = w.distance(index[w.axis], j)
        found[w.axis] = _held(floordiv(d, w.stride), w.count)
        first = j * w.dilation - w.padding
        span = mul(w.count, w.stride)
        along = Array(build.iota(tuple(shape), w.axis))
        masks += _between(along, d, span, first, add(span, first))
        masks += [equal(along % w.stride, first % w.stride)] if w.stride > 1 else []
    out = mapped(g, shape, index, found, masks, 0)
    return _with_way_back(out, g, lambda h: read_place(h, windows, at, 0))


# --- all windows of an element ------------------------------------------------------------------


def covers(windows: Sequence[Window]) -> Iterator[tuple[int, ...]]:
    """How far in front of the last window that begins at an element, or before it, those windows
    stand that may hold it: `length / stride` along each axis, rounded up."""
    return itertools.product(*(range(-(-w.length // w.stride)) for w in windows))


def held_cover(g: Array, windows: Sequence[Window], back: Sequence[int]) -> Array:
    """For every element the window that stands `back` in front of the last one that begins at the
    element or before it, or the nearest to that which exists. Whoever reads it chooses those that
    hold the element: only these get what comes back. Windows have no dilation."""
    shape = _with_sizes(g, windows)
    index = build.coordinates(shape)
    found: list[Expr] = [as_expr(c) for c in index]
    for w, k in zip(windows, back, strict=True):
        found[w.axis] = _held(_cover(w, index[w.axis], k), w.count)
    out = Array(build.index_map(g.tensor, shape, index, found))
    steps = [
        range(k * w.stride, min((k + 1) * w.stride, w.length))
        for w, k in zip(windows, back, strict=True)
    ]
    return _with_way_back(out, g, lambda h: _read_sum(h, windows, itertools.product(*steps)))


def covered(like: Array, windows: Sequence[Window], back: Sequence[int]) -> list[Array]:
    """The conditions under which the window that `held_cover` reads for every element of an array
    begins where it should, but for those that are known to hold."""
    index = build.coordinates(like.tensor.shape)
    masks: list[Array] = []
    for w, k in zip(windows, back, strict=True):
        first = k * w.stride - w.padding
        end = add(mul(w.count, w.stride), first)
        masks += _between(_along(like, w), _cover(w, index[w.axis], k), w.count, first, end)
    return masks


def long_enough(like: Array, windows: Sequence[Window], back: Sequence[int]) -> list[Array]:
    """The conditions under which the window that `held_cover` reads does not end in front of the
    element, but for those that are known to hold."""
    return [
        is_less(_place(_along(like, w), w), w.length - k * w.stride)
        for w, k in zip(windows, back, strict=True)
        if (k + 1) * w.stride > w.length
    ]


def bases(windows: Sequence[Window]) -> tuple[int, ...]:
    """How far places are counted along each axis where they have numbers: the length rounded up to
    whole strides, so that a place that a window lacks has the number of none that it has."""
    return tuple(-(-w.length // w.stride) * w.stride for w in windows)


def cover_place(like: Array, windows: Sequence[Window], back: Sequence[int]) -> Array:
    """The number, counted by `bases`, of the place that every element of an array is of the window
    that `held_cover` reads for it."""
    total: Array | None = None
    distance = 0
    for w, k, base in zip(windows, back, bases(windows), strict=True):
        place = _place(_along(like, w), w)
        total = place if total is None else total * base + place
        distance = distance * base + k * w.stride
    assert total is not None
    return total + distance if distance else total  # one sum for all windows of an element


def _with_sizes(g: Array, windows: Sequence[Window]) -> tuple[Expr, ...]:
    sizes = {w.axis: w.size for w in windows}
    return tuple(sizes.get(k, n) for k, n in enumerate(g.tensor.shape))


def _cover(w: Window, element: IntLike, back: int) -> Expr:
    return add(floordiv(add(element, w.padding), w.stride), -back)


def _along(like: Array, w: Window) -> Array:
    """The coordinates of elements along a window's axis."""
    return Array(build.iota(like.tensor.shape, w.axis, dtypes.int32))


def _place(along: Array, w: Window) -> Array:
    """Which place elements are of the last window that begins at them or before them."""
    shifted = along + w.padding if w.padding else along
    return shifted % w.stride if w.stride > 1 else shifted * 0


def _read_sum(h: Array, windows: Sequence[Window], chosen: Iterable[tuple[int, ...]]) -> Array:
    first, *rest = (read_place(h, windows, at, 0) for at in chosen)
    for found in rest:
        first = first + found
    return first


# --- all places ---------------------------------------------------------------------------------


def read_places(x: Array, windows: Sequence[Window], before: int, fill: Scalar) -> Array:
    """What all places read: one axis of places for each window, in front of axis `before` of what
    one place reads."""
    lead = x.tensor.shape
    counts = {w.axis: w.count for w in windows}
    shape = [counts.get(a, n) for a, n in enumerate(lead)]
    shape[before:before] = [as_expr(w.length) for w in windows]
    own = [a if a < before else a + len(windows) for a in range(x.ndim)]
    index = build.coordinates(tuple(shape))
    elements: list[Expr] = [as_expr(index[k]) for k in own]
    masks: list[Array] = []
    for k, w in enumerate(windows):
        e = w.element(index[own[w.axis]], index[before + k])
        elements[w.axis] = _held(e, w.size)
        number = affine(shape, own[w.axis], w.stride, -w.padding)
        number = number + affine(shape, before + k, w.dilation, 0)
        masks += _inside(e, number, w.size)
    out = mapped(x, shape, index, elements, masks, fill)
    return _with_way_back(out, x, lambda g: write_places(g, windows, before))


def write_places(g: Array, windows: Sequence[Window], before: int) -> Array:
    """For every element the sum over the places that read it; `g` is as `read_places` gives it."""
    if place_count(windows) <= MAX_UNROLLED:
        lead = (slice(None),) * before
        total = None
        for at in places(windows):
            found = write_place(g[(*lead, *at)], windows, at)
            total = found if total is None else total + found
        assert total is not None
        return total
    return sum(_written(g, windows, before), axis=tuple(range(before, before + len(windows))))


def _written(g: Array, windows: Sequence[Window], before: int) -> Array:
    """What `write_places` adds, each place at its own place of the axes in front of `before`."""
    shape = list(g.tensor.shape)
    own = {w.axis: w.axis if w.axis < before else w.axis + len(windows) for w in windows}
    for w in windows:
        shape[own[w.axis]] = w.size
    index = build.coordinates(tuple(shape))
    found: list[Expr] = [as_expr(c) for c in index]
    masks: list[Array] = []
    for k, w in enumerate(windows):
        d = w.distance(index[own[w.axis]], index[before + k])
        found[own[w.axis]] = _held(floordiv(d, w.stride), w.count)
        number = affine(shape, own[w.axis], 1, w.padding)
        number = number - affine(shape, before + k, w.dilation, 0)
        masks += _inside(d, number, mul(w.count, w.stride))
        masks += [equal(number % w.stride, 0)] if w.stride > 1 else []
    return mapped(g, shape, index, found, masks, 0)


# --- maps and masks -----------------------------------------------------------------------------


def _held(e: Expr, size: Expr) -> Expr:
    """A coordinate, moved to the nearest element where it is outside."""
    low = e if prove(less_equal(0, e)) is True else maximum(e, 0)
    return low if prove(less(e, size)) is True else minimum(low, add(size, -1))


def _inside(e: Expr, number: Array, size: Expr) -> list[Array]:
    """The conditions under which a coordinate lies in `[0, size)`, but for those that are known to
    hold; `number` is the coordinate as a value."""
    masks: list[Array] = []
    if prove(less_equal(0, e)) is not True:
        masks.append(greater_equal(number, 0))
    if prove(less(e, size)) is not True:
        masks.append(is_less(number, Array(build.size(size, number.dtype))))
    return masks


def _between(along: Array, e: Expr, size: Expr, first: int, behind: Expr) -> list[Array]:
    """The conditions on a coordinate, from `first` on and below `behind`, under which what it leads
    to, `e`, lies in `[0, size)`; but for those that are known to hold."""
    masks: list[Array] = []
    if prove(less_equal(0, e)) is not True:
        masks.append(greater_equal(along, first))
    if prove(less(e, size)) is not True:
        end = constant_value(behind)
        limit = Array(build.size(behind, along.dtype)) if end is None else end
        masks.append(is_less(along, limit))
    return masks


def affine(shape: Sequence[Expr], axis: int, step: int, first: int) -> Array:
    """`step * coordinate + first` along an axis."""
    number = Array(build.iota(tuple(shape), axis))
    number = number if step == 1 else number * step
    return number + first if first else number


def mapped(
    x: Array,
    shape: Sequence[Expr],
    at: tuple[Var, ...],
    index: Sequence[Expr],
    masks: Sequence[Array],
    fill: Scalar,
) -> Array:
    """What x holds at an index over coordinates `at` of a shape; the fill where a mask is false."""
    found = Array(build.index_map(x.tensor, tuple(shape), at, index))
    if not masks:
        return found
    inside = masks[0]
    for m in masks[1:]:
        inside = logical_and(inside, m)
    return where(inside, found, fill)


def _with_way_back(out: Array, x: Array, back: Callable[[Array], Array]) -> Array:
    out.tensor.rule = GivenRule((x.tensor,), lambda g: (back(g),))
    return out


__all__ = [
    "MAX_UNROLLED",
    "Window",
    "affine",
    "bases",
    "cover_place",
    "covered",
    "covers",
    "held_cover",
    "long_enough",
    "mapped",
    "place_count",
    "places",
    "read_place",
    "read_places",
    "write_place",
    "write_places",
]
