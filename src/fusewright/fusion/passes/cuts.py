"""Axes cut in parts, some of which may be short.

    (.., N, ..)  ->  (.., P, Q, ..)   runs: element p*Q + q; the last part may be short
    (N, ..)      ->  (Q, P, ..)       strides: element q*P + p; parts differ by one element at most

Q*P >= N, and what parts lack is a fill value. Where Q*P > N the axis is padded first. That padding
is never stored: whoever needs the parts reads through it (`is_padding_of_cut`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fusewright.core.expr import Expr, Int
from fusewright.fusion import build
from fusewright.fusion.ir import Reshape, Resize, Scalar, Tensor


@dataclass(frozen=True, slots=True)
class Cut:
    """`size` elements as `parts` of `each`, of which some may be short."""

    size: int
    parts: int
    each: int

    @property
    def is_even(self) -> bool:
        """Whether all parts are full."""
        return self.parts * self.each == self.size


def parts_of_length(size: int, each: int) -> Cut:
    """As many parts of that length as it takes."""
    return Cut(size, -(-size // each), each)


def parts_of_rows(sizes: Sequence[int], most: int, step: int = 1) -> int:
    """In how many parts rows of these axes are dealt: a multiple of `step` of them, `most` at most;
    1 for none. Parts that divide the rows are whole slices of the axes, since a number cannot be
    spelled in digits of two kinds."""
    number = math.prod(sizes)
    choices = range(most - most % step, 0, -step)
    return next((p for p in choices if number % p or _are_slices(p, sizes)), 1)


def parts_of_rows_near(sizes: Sequence[int], wanted: int, step: int = 1) -> int:
    """The same within a factor of two of `wanted`: a divisor where there is one, so that no part is
    short. Where no multiple of `step` is that near, any number."""
    number = math.prod(sizes)
    choices = range(step * -(-wanted // (2 * step)), 2 * wanted + 1, step)
    if not choices:
        return parts_of_rows_near(sizes, wanted)
    even = [p for p in choices if number % p == 0 and _are_slices(p, sizes)]
    if even:
        return min(even, key=lambda p: (abs(p - wanted), p))
    return parts_of_rows(sizes, max(wanted, choices[0]), step)


def _are_slices(parts: int, sizes: Sequence[int]) -> bool:
    """Whether so many elements are the last axes and a divisor of the one before."""
    for size in reversed(sizes):
        if size % parts == 0:
            return True
        if parts % size:
            return False
        parts //= size
    return False


def cut_axes(t: Tensor, place: int, count: int, cut: Cut, fill: Scalar) -> Tensor:
    """A tensor whose `count` axes from `place` on together become two: the parts, which are runs,
    and what is in them."""
    t = _padded(t, place, count, cut, fill)
    before, after = t.shape[:place], t.shape[place + (count if cut.is_even else 1) :]
    shape = (*before, Int(cut.parts), Int(cut.each), *after)
    return build.value(shape, t.dtype, Reshape((t,)))


def interleave_rows(t: Tensor, count: int, cut: Cut, fill: Scalar) -> Tensor:
    """A tensor whose first `count` axes together become two, as rows are dealt to parts in turn:
    what is in the parts, and the parts."""
    columns = t.shape[count:]
    t = _padded(t, 0, count, cut, fill)
    return build.value((Int(cut.each), Int(cut.parts), *columns), t.dtype, Reshape((t,)))


def _padded(t: Tensor, place: int, count: int, cut: Cut, fill: Scalar) -> Tensor:
    """The tensor, its `count` axes from `place` on as one that is long enough where the cut is not
    even."""
    before, after = t.shape[:place], t.shape[place + count :]
    if not cut.is_even:
        if count > 1:
            t = build.value((*before, Int(cut.size), *after), t.dtype, Reshape((t,)))
        missing = [cut.parts * cut.each - cut.size if a == place else 0 for a in range(t.ndim)]
        t = build.resize(t, [0] * t.ndim, missing, fill)
    return t


def is_padding_of_cut(t: Tensor, consumers: Sequence[Tensor]) -> bool:
    """Whether a value is only the padding between an axis and its parts."""
    axis = _padded_axis(t)
    return axis is not None and all(_cuts(c, t, axis) for c in consumers)


def is_merge_for(t: Tensor, consumers: Sequence[Tensor], paddings: Collection[Tensor]) -> bool:
    """Whether a value only makes one axis of several so that it can be padded."""
    return isinstance(t.op, Reshape) and bool(consumers) and all(c in paddings for c in consumers)


def cut_source(t: Tensor) -> Tensor | None:
    """What a reshape cuts in two along its leading axes, (r.., c..) -> (a, b, c..), behind the
    padding of short parts; None for other reshapes."""
    if not isinstance(t.op, Reshape) or t.ndim < 2:
        return None
    (source,) = t.op.operands
    columns = t.shape[2:]
    if _padded_axis(source) == 0:
        (source,) = source.op.operands
        if isinstance(source.op, Reshape) and _leads(source.op.operands[0], columns):
            (source,) = source.op.operands
    return source if _leads(source, columns) else None


def _leads(t: Tensor, columns: tuple[Expr, ...]) -> bool:
    """Whether a tensor is axes in front of the columns."""
    count = t.ndim - len(columns)
    return count > 0 and t.shape[count:] == columns


def _padded_axis(t: Tensor) -> int | None:
    """The one axis that a resize makes longer, at its end; None for other values."""
    if not isinstance(t.op, Resize):
        return None
    zero = Int(0)
    grown = [a for a, e in enumerate(t.op.high) if e != zero]
    if len(grown) != 1 or any(e != zero for e in t.op.low):
        return None
    low = t.op.high[grown[0]].interval[0]
    return grown[0] if low is not None and low > 0 else None


def _cuts(t: Tensor, source: Tensor, axis: int) -> bool:
    """Whether a value is another one with one axis in two."""
    before, after = source.shape[:axis], source.shape[axis + 1 :]
    around = t.shape[:axis] == before and t.shape[axis + 2 :] == after
    return isinstance(t.op, Reshape) and around and t.ndim == source.ndim + 1
