"""How a group walks global memory: its accesses as strides over a few common dimensions.

The axes of the reference output and of every tensor read are words of digits. Cut at each other's
borders and merged again where all accesses are contiguous across, they become the dimensions of
the group; an access is then a stride for each, and its fast dimension is the one of stride 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fusewright.axes.classes import AxisClass, AxisGraph, LineAtom
from fusewright.axes.frames import Computed, Gathered, OperandAxis, Pinned
from fusewright.core.expr import ONE, ZERO, Expr, constant_value, is_multiple, variables
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import Resize
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.heuristics.common import numel
from fusewright.schedule.nest import computed
from fusewright.target import MAX_VECTOR_NBYTES, REGISTER_NBYTES


@dataclass(frozen=True, slots=True)
class StridedAccess:
    """One access to global memory: operand `position` of `stage`, or for None what it writes.
    `strides` in elements, for the dimensions that the tensor has. `moved`: those along which it
    goes to other places, of its own for each coordinate, as a flip or a roll does, or all so far
    apart, as a crop or a pad does: these are `shifted`, by `offset` elements of memory in all."""

    stage: Stage
    position: int | None
    strides: dict[AxisClass, Expr]
    moved: frozenset[AxisClass] = frozenset()
    shifted: frozenset[AxisClass] = frozenset()
    offset: Expr = ZERO

    @property
    def tensor(self) -> Stage:
        """The input or output in global memory."""
        return self.stage if self.position is None else self.stage.operands[self.position]

    @property
    def nbytes(self) -> int:
        """The size of the tensor, estimated."""
        return numel(self.tensor.shape) * self.tensor.dtype.nbytes

    @property
    def fast(self) -> AxisClass | None:
        """The dimension along which neighbours are adjacent in memory; None for none."""
        return next((d for d, stride in self.strides.items() if stride == ONE), None)

    def width(self) -> int:
        """Elements along the fast dimension that one access may take, at most 16 bytes. What is
        read may begin anywhere, or be moved: it is cut, taken or put together out of two words,
        where that takes fewer accesses than shorter words do. Of rows that begin inside of words
        elements of less than a register are read in shorter words: to shift their bytes takes
        longer (permutations of float16 and bfloat16 1.03 to 1.11 times, of float32 0.87 times;
        H100, 2026-11-26)."""
        word, full = self.word_width(), self._words_from()
        is_read = self.fast is not None and self.position is not None
        shifts = self.tensor.dtype.nbytes < REGISTER_NBYTES and not self.has_rows_of(full)
        return full if is_read and 2 * word < full and not shifts else word

    def word_width(self) -> int:
        """The same where each access has to be a word of memory; what is moved along the fast
        dimension is accessed one by one, unless it is shifted by whole words."""
        fast = self.fast
        if fast in self.moved - self.shifted:
            return 1
        width = self._words_from()
        while fast is not None and width > 1 and not self._begins_in_words(width):
            width //= 2
        return width

    def _begins_in_words(self, width: int) -> bool:
        return self.has_rows_of(width) and is_multiple(self.offset, width)

    def has_rows_of(self, width: int) -> bool:
        """Whether rows along the fast dimension are so many elements each, or several times, and
        begin so many apart."""
        fast = self.fast
        steps = [s for d, s in self.strides.items() if d is not fast]
        own = fast is None or is_multiple(fast.extent, width)
        return own and all(is_multiple(s, width) for s in steps)

    def _words_from(self) -> int:
        """Elements of a word of memory, counted from where the tensor begins."""
        return min(self.tensor.alignment, MAX_VECTOR_NBYTES) // self.tensor.dtype.nbytes or 1


@dataclass(frozen=True, slots=True)
class StridedTraffic:
    """The dimensions of a group, outermost in the reference's memory first, and the accesses that
    can be told as strides over them."""

    dims: tuple[AxisClass, ...]
    walks: tuple[StridedAccess, ...]


@dataclass(frozen=True, slots=True)
class _Access:
    """An access before there are dimensions: the class and the stride of every axis that is not of
    size one."""

    stage: Stage
    position: int | None
    axes: tuple[tuple[AxisClass, Expr], ...]
    moved: frozenset[AxisClass]
    shifted: frozenset[AxisClass]
    offset: Expr


def traffic(flow: Dataflow, reference: Stage) -> StridedTraffic:
    """How the stages of a pointwise group walk global memory, in dimensions of `reference`."""
    graph = flow.graph
    accesses = [a for s in computed(flow.stages) for a in _accesses(s)]
    own = next(a for a in accesses if a.stage is reference and a.position is None)
    borders = _borders(c for a in accesses for c, _ in a.axes)
    dims = list(_strides(graph, own, borders))
    tables = [(a, _strides(graph, a, borders)) for a in accesses]
    told = [(a, t) for a, t in tables if all(d in dims for d in t)]
    merged = _merged(graph, dims, [t for _, t in told])
    walks = [
        StridedAccess(
            a.stage,
            a.position,
            {m: t[group[-1]] for m, group in merged.items() if group[-1] in t},
            frozenset(m for m in merged if graph.depends(m, tuple(a.moved))),
            frozenset(m for m in merged if graph.depends(m, tuple(a.shifted))),
            a.offset,
        )
        for a, t in told
    ]
    return StridedTraffic(tuple(merged), tuple(walks))


def _accesses(s: Stage) -> Iterable[_Access]:
    """The accesses of a stage whose places classes decide, or one coordinate for each axis; not
    data."""
    reads = [(k, p, s.frame.operands[k]) for k, p in enumerate(s.operands)]
    for position, tensor, axes in [*reads, (None, s, s.frame.output)]:
        if tensor.memory is not Memory.GLOBAL or any(isinstance(c, Gathered) for c in axes):
            continue
        sized = [
            (c, stride)
            for c, stride, extent in zip(axes, strides_of(tensor), tensor.shape, strict=True)
            if extent != ONE and not isinstance(c, Pinned)
        ]
        told = [(class_along(s, c), stride) for c, stride in sized]
        known = [(c, stride) for c, stride in told if c is not None]
        if len(known) == len(sized) == len({c for c, _ in known}):
            pairs = [(own, c) for (own, _), (c, _) in zip(known, sized, strict=True)]
            moved = frozenset(own for own, c in pairs if own is not c)
            shifted = frozenset(own for own, c in pairs if isinstance(c, AxisClass)) & moved
            offset = ZERO if position is None else _offset(s, tensor)
            yield _Access(s, position, tuple(known), moved, shifted, offset)


def class_along(s: Stage, c: OperandAxis) -> AxisClass | None:
    """The class along which an axis is accessed: that of the one coordinate which decides the
    place, or that which a crop or a pad makes of it; None for several, or none."""
    if isinstance(c, AxisClass):
        return _resized(s).get(c, c)
    if not isinstance(c, Computed):
        return None
    deciding = [k for k, v in enumerate(c.coordinates) if v in variables(c.index)]
    return s.frame.output[deciding[0]] if len(deciding) == 1 else None


def _resized(s: Stage) -> dict[AxisClass, AxisClass]:
    """For the axes of what a stage crops or pads those that it makes of them."""
    if not isinstance(s.op, Resize):
        return {}
    pairs = zip(s.frame.operands[0], s.frame.output, strict=True)
    return {c: own for c, own in pairs if isinstance(c, AxisClass)}


def _offset(s: Stage, tensor: Stage) -> Expr:
    """By how many elements of memory a crop or a pad reads a tensor behind its own place."""
    low = s.op.low if isinstance(s.op, Resize) else ()
    return sum((n * -stride for n, stride in zip(low, strides_of(tensor), strict=False)), ZERO)


def _borders(classes: Iterable[AxisClass]) -> dict[LineAtom, list[int]]:
    """For every atom the strides at which digits of these classes begin and end, ascending."""
    found: dict[LineAtom, set[int]] = {}
    for c in classes:
        for d in c.digits:
            ends = (constant_value(d.stride), constant_value(d.stride * d.extent))
            found.setdefault(d.atom, set()).update(e for e in ends if e is not None)
    return {a: sorted(ends) for a, ends in found.items()}


def _strides(
    graph: AxisGraph, access: _Access, borders: dict[LineAtom, list[int]]
) -> dict[AxisClass, Expr]:
    """The stride of every piece of the axes, outermost in memory first."""
    table: list[tuple[AxisClass, Expr]] = []
    for c, stride in access.axes:
        step = stride
        for piece in _pieces(graph, c, borders):
            table.append((piece, step))
            step = step * piece.extent
    return dict(sorted(table, key=lambda entry: -estimate(entry[1])))


def _pieces(
    graph: AxisGraph, c: AxisClass, borders: dict[LineAtom, list[int]]
) -> Iterable[AxisClass]:
    """A class cut at the borders inside its digits, innermost piece first."""
    rest = c
    for d in reversed(c.digits):
        start, size = constant_value(d.stride), constant_value(d.extent)
        cuts = [] if start is None or size is None else [start, start * size]
        if cuts:
            cuts[1:1] = [b for b in borders[d.atom] if cuts[0] < b < cuts[-1]]
        if any(b % a for a, b in pairwise(cuts)):
            cuts = [cuts[0], cuts[-1]]
        least = d.extent.interval[0]
        if size == 0 or (not cuts and (least is None or least < 1)):
            yield rest  # a size that may be 0 cannot be split off
            return
        for size in [b // a for a, b in pairwise(cuts)] or [d.extent]:
            rest, piece = graph.split(rest, size)
            yield piece


def _merged(
    graph: AxisGraph, dims: Sequence[AxisClass], tables: Sequence[dict[AxisClass, Expr]]
) -> dict[AxisClass, list[AxisClass]]:
    """Neighbouring dimensions as one where every access is contiguous across them or has neither;
    with the dimensions that each is made of."""
    groups: list[list[AxisClass]] = []
    for d in dims:
        if groups and all(runs_on(t, groups[-1][-1], d) for t in tables):
            groups[-1].append(d)
        else:
            groups.append([d])
    out: dict[AxisClass, list[AxisClass]] = {}
    for group in groups:
        whole = group[0]
        for d in group[1:]:
            whole = graph.merge(whole, d)
        out[whole] = group
    return out


def runs_on(table: Mapping[AxisClass, Expr], outer: AxisClass, inner: AxisClass) -> bool:
    """Whether a tensor has neither of two dimensions, or both next to each other in memory."""
    if outer not in table or inner not in table:
        return outer not in table and inner not in table
    return table[outer] == table[inner] * inner.extent
