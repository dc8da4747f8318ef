"""Joins and pads are selections where a kernel has to compute them at other places than its rows.

    y = rms_norm(x)                            at j:  a = x[(j + n / 2) % n] / rms
    concat([-y[n / 2:], y[:n / 2]])      ->           j < n / 2 ? -a : a

    roll(relu(pad(x, 1)), k)             ->           relu(0 < (i + k) % n < n - 1 ? x[..] : 0)

The parts of a join have axes of their own, of which the rows that a kernel reduces or scans know
nothing, and a move along the axis of a join or of a pad reads some parts of each. As a selection it
has the axes of the rows, and its arguments are read at other places of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from fusewright.core.atoms import maximum, minimum
from fusewright.core.expr import ZERO, Expr, Var, add, constant_value, mod, mul, variables
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Concat,
    Constant,
    Fusion,
    IndexMap,
    Input,
    Iota,
    Pointwise,
    Reduce,
    Resize,
    Scan,
    Size,
    Tensor,
    is_alone,
    topological,
)
from fusewright.fusion.passes.fold_crops import is_crop
from fusewright.fusion.passes.hoist_moves import filled
from fusewright.fusion.passes.index_maps import Map, map_of
from fusewright.fusion.passes.read_at import ReadAt
from fusewright.fusion.passes.rebuild import rebuild

MAX_PARTS = 4
"""Parts of a join that every element computes, to keep one of them; of joins of joins all of them.
What a pad puts around a value is one, too."""


def select_joins(fusion: Fusion) -> Fusion:
    """Computes the parts of a join at all of its places, and keeps at each the one that lies there;
    of a pad, what it pads, at the nearest place that there is.

    rewrite:  concat([f(x), g(y)])  ->  where(i < n, f(x at i), g(y at i - n))
              pad(f(x), (1, 1))     ->  where(0 < i < n + 1, f(x at i - 1), 0)
    checks:   few parts, those of joins and pads behind them included, which can be computed at
              other places; a reduction goes into two of them, or functions of the join are scanned,
              or moved, as those of pads have to be; and none has to be computed again for a part:
              those run along the axis of the join
    order:    before hoist_moves, as another form of the fusion, whose predicted time decides
    """
    if not any(isinstance(t.op, Concat | Resize) for t in fusion.values):
        return fusion
    moved = _read_in_place(fusion, lambda t: isinstance(t.op, IndexMap))
    scanned = _read_in_place(fusion, lambda t: isinstance(t.op, Scan))

    parts: dict[Tensor, int] = {}  # of values that can be read at any places

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        behind = [parts[o] for o in t.op.operands if o in parts]
        if len(behind) < len(operands):
            return None
        is_pad = isinstance(t.op, Resize) and not is_crop(t) and t in moved
        if not (is_pad or isinstance(t.op, Concat)):
            if _is_read(t):
                parts[t] = max(behind, default=1)
            return None
        count = sum(behind) + is_pad
        if count > MAX_PARTS:
            return None
        if not isinstance(t.op, Concat):
            parts[t] = count
            return filled(t, operands[0])
        counts = Counter(r for part in operands for r in _reductions(part))
        if max(counts.values(), default=0) < 2 and t not in moved and t not in scanned:
            return None
        selected = _selected(t, t.op.axis, operands)
        if selected is not None:
            parts[t] = count
        return selected

    return rebuild(fusion, replace)


def _read_in_place(fusion: Fusion, reads: Callable[[Tensor], bool]) -> set[Tensor]:
    """The values that some ops read, and those that these are computed from element by element."""
    found: set[Tensor] = set()
    for t in reversed(fusion.values):
        if reads(t) or (t in found and isinstance(t.op, Pointwise) and not is_alone(t)):
            found.update(t.op.operands)
    return found


def _reductions(part: Tensor) -> list[Tensor]:
    return [t for t in topological((part,)) if isinstance(t.op, Reduce)]


def _is_read(t: Tensor) -> bool:
    """Whether a value can be read at any places: an argument, or computed or moved."""
    return isinstance(t.op, Input | Constant | Size | Iota | Pointwise | Reduce) or (
        map_of(t) is not None
    )


def _selected(t: Tensor, axis: int, parts: tuple[Tensor, ...]) -> Tensor | None:
    at = build.coordinates(t.shape)
    places = _JoinPlaces(at[axis])
    maps: list[Map] = []
    start: Expr = ZERO
    for part in parts:
        own = tuple(add(c, mul(start, -1)) if c is at[axis] else c for c in at)
        maps.append(Map(t.shape, at, own))
        ReadAt(places.noted).read(part, maps[-1])
        start = add(start, part.shape[axis])
    if not places.agree_on_reductions():
        return None
    along = build.iota(t.shape, axis)
    reader = ReadAt(places.chosen)
    *before, last = zip(parts, maps, strict=True)
    out = reader.read(*last)
    for part, by in reversed(before):
        start = add(part.shape[axis], add(at[axis], mul(by.index[axis], -1)))
        end = build.spread(build.size(start, along.dtype), t.shape)
        mine = build.pointwise("lt", along, end)
        out = build.pointwise("where", mine, reader.read(part, by), out)
    return out


@dataclass(slots=True)
class _JoinPlaces:
    """Where the parts of a join along a coordinate read arguments and reductions, and where they
    may: what a part reads beyond its own places nobody keeps."""

    along: Var
    asked: dict[Tensor, list[tuple[Expr, ...]]] = field(
        default_factory=dict[Tensor, list[tuple[Expr, ...]]]
    )

    def noted(self, t: Tensor, by: Map) -> Map:
        """Notes the places of one part."""
        listed = self.asked.setdefault(t, [])
        if self._moves(by.index) and by.index not in listed:
            listed.append(by.index)
        return by

    def agree_on_reductions(self) -> bool:
        """Whether one map has all the places at which the parts read a reduction, which is then
        computed once."""
        return all(
            self._turn(t, index) is not None
            for t, listed in self.asked.items()
            if isinstance(t.op, Reduce)
            for index in listed
        )

    def chosen(self, t: Tensor, by: Map) -> Map:
        """The places of all parts where one map has them, else those of a part, the nearest ones
        that there are."""
        if not self._moves(by.index):
            return by
        index = self._turn(t, by.index) or tuple(
            minimum(maximum(e, 0), add(n, -1)) if self.along in variables(e) else e
            for e, n in zip(by.index, t.shape, strict=True)
        )
        return Map(by.shape, by.at, index)

    def _moves(self, index: tuple[Expr, ...]) -> bool:
        return any(self.along in variables(e) for e in index)

    def _turn(self, t: Tensor, own: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
        """The places of all parts that differ from those of one part along a single axis, as a turn
        of that axis; None where there is none."""
        turned = [a for a, e in enumerate(own) if self.along in variables(e)]
        if len(turned) != 1:
            return None
        (axis,) = turned
        extent = constant_value(t.shape[axis])
        offsets: list[int | None] = []
        for index in self.asked[t]:
            if all(e == o for a, (e, o) in enumerate(zip(index, own, strict=True)) if a != axis):
                offsets.append(constant_value(add(index[axis], mul(self.along, -1))))
        first = offsets[0] if offsets else None
        if extent is None or first is None:
            return None
        if any(o is None or (o - first) % extent for o in offsets):
            return None
        place = mod(add(self.along, first % extent), extent)
        return tuple(place if a == axis else e for a, e in enumerate(own))
