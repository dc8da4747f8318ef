"""Values at the places of a map, computed there of arguments.

gelu(x) at i -> n - 1 - i          gelu(x at n - 1 - i)
sum(x, axis=1) at i -> i + 1       sum(x at (i + 1, j), axis=1)
scan(x, axis=1) at i -> i + 1      scan(x at (i + 1, j), axis=1)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial, reduce

from fusewright import dtypes
from fusewright.core.atoms import Commutative, Max, Min, Xor
from fusewright.core.conditions import less, less_equal, prove
from fusewright.core.expr import (
    ONE,
    ZERO,
    Division,
    Expr,
    FloorDiv,
    Int,
    Mod,
    Term,
    Var,
    add,
    mul,
    parts_of,
    variables,
)
from fusewright.core.substitution import substitute
from fusewright.dtypes import DType
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Broadcast,
    Concat,
    Input,
    Iota,
    Pointwise,
    Reduce,
    Resize,
    Scan,
    Shape,
    Tensor,
    behind_views,
    is_alone,
    with_operands,
)
from fusewright.fusion.passes.crop_joins import overlap_of
from fusewright.fusion.passes.fold_crops import behind_crops, is_crop, only_crops, only_grows
from fusewright.fusion.passes.index_maps import Map, map_of, moved


class ReadAt:
    """Reads values at the places of maps; what the values share stays shared. `place` may choose
    other places for arguments, which are neither computed nor moved, and for reductions; what is
    `stored` is like an argument. `turns`: by axis a coordinate and the places that it reads, all of
    the axis in another order, in which reductions along that axis take their elements: what is read
    beside them is read there."""

    def __init__(
        self,
        place: Callable[[Tensor, Map], Map] | None = None,
        *,
        stored: Set[Tensor] = frozenset(),
        turns: Mapping[int, tuple[Var, Expr]] | None = None,
    ) -> None:
        self._made: dict[tuple[Tensor, tuple[Expr, ...]], Tensor] = {}
        self._place = place or _same_places
        self._stored = stored
        self._turns = turns or {}
        self._stops = False

    def passes_whole(self, t: Tensor, by: Map) -> bool:
        """Whether no join, no pad and no scan has to be made before it is read."""
        self.read(t, by)
        return not self._stops

    def read(self, t: Tensor, by: Map) -> Tensor:
        used = [c for c in by.at if any(c in variables(e) for e in by.index)]
        key = (t, by.index)
        if key not in self._made:
            extents = dict(zip(by.at, by.shape, strict=True))
            narrow = Map(tuple(extents[c] for c in used), tuple(used), by.index)
            self._made[key] = found = self._read(t, narrow)
            found.source = found.source or t.source
        return _along(self._made[key], used, by)

    def _read(self, t: Tensor, by: Map) -> Tensor:
        if t in self._stored:
            return moved(t, self._place(t, by))
        if isinstance(t.op, Iota):
            return _coordinates(t, t.op.axis, by)
        if isinstance(t.op, Pointwise) and not is_alone(t):
            operands = tuple(self.read(o, by) for o in t.op.operands)
            return build.value(by.shape, t.dtype, with_operands(t.op, operands))
        if isinstance(t.op, Reduce):
            return self._reduced(t.op, self._place(t, by))
        if isinstance(t.op, Scan):
            return self._scanned(t, t.op, by)
        if isinstance(t.op, Concat):
            part = self._part_of_join(t, t.op, by)
            if part is not None:
                return part
        if isinstance(t.op, Resize) and not is_crop(t):
            part = self._part_of_pad(t, t.op, by)
            if part is not None:
                return part
        changed = _changed_axes(t)
        if changed:
            kept = _coordinates_of(changed, t.shape, by)
            if kept is not None:
                return self._changed(t, kept, by)
            self._stops = True
        inner = map_of(t)
        behind = None if inner is None else by.through(inner)
        if behind is None:
            return moved(t, self._place(t, by))
        return self.read(t.op.operands[0], behind)

    def _part_of_join(self, t: Tensor, op: Concat, by: Map) -> Tensor | None:
        """A join at a run of places along its axis: the join of what lies there of its operands.
        None where the places are no such run, or all of the axis."""
        run = _run_along(op.axis, by)
        if run is None or (run[0] is not None and by.shape[run[0]] == t.shape[op.axis]):
            return None
        position, first = run
        last = add(first, ONE if position is None else by.shape[position])
        parts: list[Tensor] = []
        start: Expr = ZERO
        for o in op.operands:
            end = add(start, o.shape[op.axis])
            taken = overlap_of(start, end, first, last)
            if taken is None:
                return None
            extent = add(o.shape[op.axis], *taken)
            if position is None and extent not in (ZERO, ONE):  # the place may lie behind it
                return None
            if extent != ZERO and position is None:
                at_place = add(first, mul(start, -1))
                index = [at_place if k == op.axis else e for k, e in enumerate(by.index)]
                return self.read(o, Map(by.shape, by.at, tuple(index)))
            if extent != ZERO and position is not None:
                shape = tuple(extent if k == position else n for k, n in enumerate(by.shape))
                at = build.coordinates(shape)
                own = dict(zip(by.at, at, strict=True))
                index = [substitute(e, own) for e in by.index]
                index[op.axis] = add(at[position], mul(taken[0], -1))
                parts.append(self.read(o, Map(shape, at, tuple(index))))
            start = end
        return build.concat(parts, position) if parts and position is not None else None

    def _part_of_pad(self, t: Tensor, op: Resize, by: Map) -> Tensor | None:
        """A pad of an argument, or of a function of some, at runs of places along the axes that it
        changes: what lies there of the argument, with what is left of the pad around it, or the
        fill where nothing is left of the argument. None for other places, for results of reductions
        and of scans, and where sizes do not tell how much is left of either.

        pad(x, 1) at i -> i + 3   ->   pad(x at i -> i + 2, high=1)
        """
        (source,) = op.operands
        read = behind_views(behind_crops(source))
        if not (isinstance(read.op, Input | Pointwise) or is_alone(read) or source in self._stored):
            return None
        extents, index = list(by.shape), list(by.index)
        low: list[Expr] = [ZERO] * len(extents)
        high = list(low)
        for axis in _changed_axes(t):
            run = _run_along(axis, by)
            if run is None:
                return None
            position, first = run
            count = ONE if position is None else by.shape[position]
            begin = add(op.low[axis], mul(first, -1))
            end = add(count, mul(add(begin, source.shape[axis]), -1))
            if not all(only_grows(e) or only_crops(e) for e in (begin, end)):
                return None
            if any(prove(less_equal(count, e)) is True for e in (begin, end)):
                return build.full(by.shape, op.fill, t.dtype)
            if position is None:
                if not (only_crops(begin) and only_crops(end)):
                    return None
                index[axis] = mul(begin, -1)
                continue
            low[position], high[position] = (e if only_grows(e) else ZERO for e in (begin, end))
            extents[position] = add(by.shape[position], mul(add(low[position], high[position]), -1))
            if prove(less(0, extents[position])) is not True:
                return None
            index[axis] = add(by.at[position], ZERO if only_grows(begin) else mul(begin, -1))
        shape = tuple(extents)
        at = build.coordinates(shape)
        own = dict(zip(by.at, at, strict=True))
        places = tuple(substitute(e, own) for e in index)
        part = self.read(source, Map(shape, at, places))
        if isinstance(part.op, Resize) and is_crop(part):  # each end is cropped or padded: one op
            low = [add(a, b) for a, b in zip(low, part.op.low, strict=True)]
            high = [add(a, b) for a, b in zip(high, part.op.high, strict=True)]
            (part,) = part.op.operands
        return build.resize(part, low, high, op.fill)

    def _changed(self, t: Tensor, kept: dict[int, int], by: Map) -> Tensor:
        """A join or a pad at places that differ along other axes: that of its operands there."""
        parts: list[Tensor] = []
        for o in t.op.operands:
            extents = list(by.shape)
            for axis, position in kept.items():
                extents[position] = o.shape[axis]
            shape = tuple(extents)
            at = build.coordinates(shape)
            own = dict(zip(by.at, at, strict=True))
            part = Map(shape, at, tuple(substitute(e, own) for e in by.index))
            parts.append(self.read(o, part))
        if isinstance(t.op, Concat):
            return build.concat(parts, kept[t.op.axis])
        assert isinstance(t.op, Resize)
        low: list[Expr] = [ZERO] * len(by.shape)
        high = list(low)
        for axis, position in kept.items():
            low[position], high[position] = t.op.low[axis], t.op.high[axis]
        return build.resize(parts[0], low, high, t.op.fill)

    def _reduced(self, op: Reduce, by: Map) -> Tensor:
        """A reduction at the places of a map. The axes that it reduces keep their place among the
        coordinates of the map."""
        extents = dict(zip(by.at, by.shape, strict=True))
        source = op.operands[0]
        kept = iter(by.index)
        at: list[Var] = []
        index: list[Expr] = []
        axes: list[int] = []
        for k, extent in enumerate(source.shape):
            if k in op.axes:
                axes.append(len(at))
                c = Var(f"r{k}", 0, add(extent, -1))
                extents[c] = extent
                at.append(c)
                index.append(ZERO if extent == ONE else self._turned(k, c))
            else:
                e = next(kept)
                at += [c for c in by.at if c in variables(e) and c not in at]
                index.append(e)
        part = Map(tuple(extents[c] for c in at), tuple(at), tuple(index))
        out = build.reduce(op.fn, self.read(source, part), tuple(axes))
        places = [c for k, c in enumerate(at) if k not in axes]
        used = [c for c in by.at if c in places]
        return _along(build.permute(out, [places.index(c) for c in used]), used, by)

    def _scanned(self, t: Tensor, op: Scan, by: Map) -> Tensor:
        """A scan of what it scans at the places of a map that runs along all of each line. Others
        read the scan where it is stored."""
        kept = _coordinates_of((op.axis,), t.shape, by)
        if kept is None:
            self._stops = True
            return moved(t, self._place(t, by))
        lines = self.read(op.operands[0], by)
        along = replace(op, operands=(lines,), axis=kept[op.axis])
        return build.value(by.shape, t.dtype, along)

    def _turned(self, axis: int, c: Var) -> Expr:
        """The place that a reduction along an axis takes its element `c` from."""
        at, place = self._turns.get(axis, (c, c))
        return substitute(place, {at: c}) if at.upper == c.upper else c


def _along(t: Tensor, used: Sequence[Var], by: Map) -> Tensor:
    """A value with an axis for each of the coordinates `used`, in their order, along all of a
    map."""
    if len(used) == len(by.at):
        return t
    axes = tuple(used.index(c) if c in used else None for c in by.at)
    return build.value(by.shape, t.dtype, Broadcast((t,), axes))


def _same_places(_: Tensor, by: Map) -> Map:
    return by


def _changed_axes(t: Tensor) -> tuple[int, ...]:
    """The axes along which a value has elements of several operands, or of none: those of a join,
    and of a pad."""
    if isinstance(t.op, Concat):
        return (t.op.axis,)
    if not isinstance(t.op, Resize) or is_crop(t):
        return ()
    ends = zip(t.op.low, t.op.high, strict=True)
    return tuple(a for a, (low, high) in enumerate(ends) if (low, high) != (ZERO, ZERO))


def _coordinates_of(axes: tuple[int, ...], shape: Shape, by: Map) -> dict[int, int] | None:
    """The coordinates of a map that run along these axes of a value of a shape, each along all of
    one, and along no other; None where one of them is missing."""
    out: dict[int, int] = {}
    for axis in axes:
        c = by.index[axis]
        others = (e for k, e in enumerate(by.index) if k != axis)
        if c not in by.at or any(c in variables(e) for e in others):
            return None
        out[axis] = by.at.index(c)
        if by.shape[out[axis]] != shape[axis]:
            return None
    return out


def _run_along(axis: int, by: Map) -> tuple[int | None, Expr] | None:
    """The coordinate of a map that runs along an axis alone, in steps of one, and where it begins;
    no coordinate for a single place, None where several run along it or in other steps."""
    own = [c for c in by.at if c in variables(by.index[axis])]
    if not own:
        return None, by.index[axis]
    others = (e for k, e in enumerate(by.index) if k != axis)
    if len(own) != 1 or any(own[0] in variables(e) for e in others):
        return None
    first = add(by.index[axis], mul(own[0], -1))
    return None if own[0] in variables(first) else (by.at.index(own[0]), first)


def _coordinates(t: Tensor, axis: int, by: Map) -> Tensor:
    """The coordinates that a map reads along an axis, computed from those of its result. Those of
    types that may not hold what is in between go by way of int64."""
    index = by.index[axis]
    if index in by.at:
        return build.iota(by.shape, by.at.index(index), t.dtype)
    wide = t.dtype if t.dtype.kind == "int" and t.dtype.nbytes >= 4 else dtypes.int64
    return build.cast(_computed(index, by, wide), t.dtype)


def _computed(e: Expr, by: Map, dtype: DType) -> Tensor:
    """An expression in the coordinates of a map as a value of its shape."""
    if e in by.at:
        return build.iota(by.shape, by.at.index(e), dtype)
    if not any(c in by.at for c in variables(e)):
        return build.spread(build.size(e, dtype), by.shape)
    match e:
        case Commutative():
            sides, fn = (e.left, e.right), _FUNCTIONS[type(e)]
        case Division():
            sides, fn = (e.numerator, e.denominator), _FUNCTIONS[type(e)]
        case _:
            constant, terms = parts_of(e)
            products = [_product(t, by, dtype) for t in terms]
            if constant:
                products.append(_computed(Int(constant), by, dtype))
            return reduce(partial(build.pointwise, "add"), products)
    left, right = (_computed(side, by, dtype) for side in sides)
    return build.pointwise(fn, left, right)


def _product(term: Term, by: Map, dtype: DType) -> Tensor:
    factors = [_computed(a, by, dtype) for a in term.atoms]
    if term.coefficient != 1:
        factors.append(_computed(Int(term.coefficient), by, dtype))
    return reduce(partial(build.pointwise, "mul"), factors)


_FUNCTIONS: Mapping[type[Expr], str] = {
    Min: "min", Max: "max", Xor: "bitwise_xor", FloorDiv: "floordiv", Mod: "rem",
}  # fmt: skip
