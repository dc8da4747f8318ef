"""What launches touch of one root: which accesses may meet, found at once among thousands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import Expr, Int, add, constant_value, floordiv, mod, mul
from fusewright.host.ir import Binding, ViewBox
from fusewright.host.regions import ByteRegion, meet, region_of


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """One binding of a launch, and its bytes where they are known numbers."""

    launch: int
    binding: Binding
    region: ByteRegion | None


def bound(launch: int, b: Binding) -> Bound:
    """A binding of a launch with its bytes."""
    return Bound(launch, b, region_of(b))


def overlaps(p: Bound, c: Bound) -> bool | None:
    """Whether two bindings touch a common byte, or would if neither were empty; None when it
    depends on sizes not known, or takes too long to find out."""
    a, b = p.binding, c.binding
    if a.root is not b.root:
        return False
    if p.region is not None and c.region is not None:
        return meet(p.region, c.region)
    if constant_value(a.nbytes) == 0 or constant_value(b.nbytes) == 0:
        return False
    before, after = _before(a, b), _before(b, a)
    if before is True or after is True:
        return False
    if a.box is not None and b.box is not None and _boxes_apart(a.box, b.box):
        return False
    if _interleaved(a, b) or _interleaved(b, a):
        return False
    return True if _holds_byte(a, b) or _holds_byte(b, a) else None


def _interleaved(a: Binding, b: Binding) -> bool:
    """Whether one binding's bytes lie between the other's, all of which repeat after one pitch:
    the columns of a matrix that two writers share, as in `[a a b b | a a b b | ..]`."""
    for pitch in dict.fromkeys(step for _, step in (*a.axes, *b.axes)):
        spans = _span_within(a, pitch), _span_within(b, pitch)
        if spans[0] is None or spans[1] is None:
            continue
        apart = mod(add(b.offset, mul(a.offset, -1)), pitch)
        if _at_most(spans[0], apart) and _at_most(add(apart, spans[1]), pitch):
            return True
    return False


def _span_within(b: Binding, pitch: Expr) -> Expr | None:
    """The bytes from the first to the last of what repeats after a pitch; None where the pitch is
    not above 0, or may be."""
    if not _at_most(Int(1), pitch):
        return None
    inner = [(n, step) for n, step in b.axes if mod(step, pitch) != Int(0)]
    return add(b.width, *(mul(add(n, -1), step) for n, step in inner))


def _holds_byte(a: Binding, b: Binding) -> bool:
    """Whether `a` surely touches the first or the last byte of `b`: one without holes that reaches
    over it, one with the same steps of which `b` is a part, or one that begins there as well."""
    if a.anywhere or b.anywhere:
        return _covers(a, b) and a.content == a.nbytes
    if a.offset == b.offset or _is_part(b, a):
        return True
    ends = b.offset, b.offset + b.nbytes - 1
    return a.content == a.nbytes and any(
        _at_most(a.offset, e) and _at_most(e + 1, a.offset + a.nbytes) for e in ends
    )


def _is_part(b: Binding, a: Binding) -> bool:
    """Whether one binding has the steps of the other and, along one axis, only some of its places:
    rows of an array, or columns, beside all of them."""
    first = add(b.offset, mul(a.offset, -1))
    if a.width != b.width or [step for _, step in a.axes] != [step for _, step in b.axes]:
        return False
    for k, ((whole, step), (part, _)) in enumerate(zip(a.axes, b.axes, strict=True)):
        alike = all(x == y for i, (x, y) in enumerate(zip(a.axes, b.axes, strict=True)) if i != k)
        if alike and _at_most(Int(1), step) and mod(first, step) == Int(0):
            begin = floordiv(first, step)
            if _at_most(Int(0), begin) and _at_most(begin + part, whole):
                return True
    return False


def _before(a: Binding, b: Binding) -> bool | None:
    return prove(less_equal(a.offset + a.nbytes, b.offset))


def _boxes_apart(a: ViewBox, b: ViewBox) -> bool:
    if a.base != b.base or a.step != b.step:
        return False
    axes = zip(a.start, a.extent, b.start, b.extent, strict=True)
    return any(
        prove(less_equal(s + n, t)) is True or prove(less_equal(t + m, s)) is True
        for s, n, t, m in axes
    )


# --- many accesses of one root -------------------------------------------------------------------

Ints = npt.NDArray[np.int64]
_FAR = np.iinfo(np.int64).max


class Accesses:
    """Accesses of one root. Those near to another one are found by their hulls, and by their boxes
    where bases and steps agree. What is not a known number is near to everything."""

    def __init__(self) -> None:
        self.accesses: list[Bound] = []
        self.hulls: Ints = np.empty((0, 2), np.int64)
        self.writes: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self.boxes: dict[object, _Boxes] = {}

    def add(self, x: Bound) -> None:
        k = len(self.accesses)
        self.accesses.append(x)
        self.hulls = _put(self.hulls, k, _hull(x))
        self.writes = _put(self.writes, k, x.binding.access.writes)
        ranges = _ranges(x.binding.box)
        if ranges is not None:
            of = self.boxes.setdefault(_pitch(x.binding), _Boxes(len(ranges)))
            of.add(k, ranges)

    def near(self, x: Bound) -> list[Bound]:
        """Those that may conflict with an access, in order."""
        count = len(self.accesses)
        start, end = _hull(x)
        hulls = self.hulls[:count]
        chosen = (hulls[:, 0] < end) & (hulls[:, 1] > start)
        if not x.binding.access.writes:
            chosen &= self.writes[:count]
        ranges, of = _ranges(x.binding.box), self.boxes.get(_pitch(x.binding))
        if ranges is not None and of is not None:
            chosen[of.apart(ranges)] = False
        return [self.accesses[k] for k in np.flatnonzero(chosen).tolist()]

    def cover(self, x: Bound) -> None:
        """Forgets what a later access replaces: it writes every byte of it."""
        b, count = x.binding, len(self.accesses)
        if not (b.total and b.access.writes) or b.box is not None:
            return
        if x.region is not None and x.region.axes:
            return
        if x.region is None:
            covered = [k for k, p in enumerate(self.accesses) if _covers(b, p.binding)]
        else:
            start, end = _hull(x)
            hulls = self.hulls[:count]
            covered = np.flatnonzero((hulls[:, 0] >= start) & (hulls[:, 1] <= end)).tolist()
        for k in covered:
            if self.accesses[k].launch != x.launch:
                self.hulls[k] = _FAR, -_FAR


class _Boxes:
    """Boxes of one base and pitch: the numbers of their accesses, per axis where they start and
    end."""

    def __init__(self, naxes: int) -> None:
        self.count = 0
        self.numbers: Ints = np.empty(0, np.int64)
        self.ranges: Ints = np.empty((0, naxes, 2), np.int64)

    def add(self, number: int, ranges: Sequence[tuple[int, int]]) -> None:
        self.numbers = _put(self.numbers, self.count, number)
        self.ranges = _put(self.ranges, self.count, _pairs(ranges))
        self.count += 1

    def apart(self, ranges: Sequence[tuple[int, int]]) -> Ints:
        """The accesses whose boxes share no element with another box."""
        held, other = self.ranges[: self.count], _pairs(ranges)
        outside = (held[:, :, 0] >= other[:, 1]) | (held[:, :, 1] <= other[:, 0])
        return self.numbers[: self.count][outside.any(axis=1)]


def _pairs(ranges: Sequence[tuple[int, int]]) -> Ints:
    """One row an axis; a value without axes has none."""
    return np.array(ranges, np.int64).reshape(-1, 2)


def _put(array: npt.NDArray[Any], k: int, row: object) -> npt.NDArray[Any]:
    """The array with a row; its room doubles where it has none left."""
    if k == len(array):
        more = np.empty((max(8, 2 * k), *array.shape[1:]), array.dtype)
        more[:k] = array
        array = more
    array[k] = row
    return array


def _hull(x: Bound) -> tuple[int, int]:
    return (-_FAR, _FAR) if x.region is None else (x.region.start, x.region.end)


def _pitch(b: Binding) -> object:
    return None if b.box is None else (b.box.base, b.box.step)


def _ranges(box: ViewBox | None) -> list[tuple[int, int]] | None:
    """Where a box starts and ends along every axis; None where that is not known."""
    if box is None:
        return None
    out: list[tuple[int, int]] = []
    for first, count in zip(box.start, box.extent, strict=True):
        start, extent = constant_value(first), constant_value(count)
        if start is None or extent is None:
            return None
        out.append((start, start + extent))
    return out


def _covers(b: Binding, p: Binding) -> bool:
    starts = _at_most(b.offset, p.offset)
    return starts and _at_most(p.offset + p.nbytes, b.offset + b.nbytes)


def _at_most(a: Expr, b: Expr) -> bool:
    return prove(less_equal(a, b)) is True
