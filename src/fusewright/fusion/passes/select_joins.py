"""Joins of what reductions go into are selections, in the kernel of the reductions.

    y = rms_norm(x)                            at j:  a = x[(j + n / 2) % n] / rms
    concat([-y[n / 2:], y[:n / 2]])      ->           j < n / 2 ? -a : a

The parts of a join have axes of their own, of which the rows that a kernel reduces know nothing. As
a selection the join has the axes of the rows, and its arguments are read at other places of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fusewright.core.atoms import maximum, minimum
from fusewright.core.expr import ZERO, Expr, Var, add, constant_value, mod, mul, variables
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Concat,
    Constant,
    Fusion,
    Input,
    Iota,
    Pointwise,
    Reduce,
    Size,
    Tensor,
    topological,
)
from fusewright.fusion.passes.index_maps import Map, map_of, moved
from fusewright.fusion.passes.read_at import ReadAt
from fusewright.fusion.passes.rebuild import rebuild

MAX_PARTS = 4
"""Parts of a join that every element computes, to keep one of them."""


def select_joins(fusion: Fusion) -> Fusion:
    """Computes the parts of a join at all of its places, and keeps at each the one that lies there.

    rewrite:  concat([f(x), g(y)])  ->  where(i < n, f(x at i), g(y at i - n))
    checks:   few parts, which can be computed at other places; a reduction goes into two of them,
              and none has to be computed again for a part: those run along the axis of the join
    order:    before hoist_moves, as another form of the fusion, whose predicted time decides
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Concat) or len(operands) > MAX_PARTS:
            return None
        counts = Counter(r for part in operands for r in _reductions(part))
        if max(counts.values(), default=0) < 2 or not all(map(_is_read, topological(operands))):
            return None
        return _selected(t, t.op.axis, operands)

    return rebuild(fusion, replace)


def _reductions(part: Tensor) -> list[Tensor]:
    return [t for t in topological((part,)) if isinstance(t.op, Reduce)]


def _is_read(t: Tensor) -> bool:
    """Whether a value can be read at any places: an argument, or computed or moved."""
    return isinstance(t.op, Input | Constant | Size | Iota | Pointwise | Reduce) or (
        map_of(t) is not None
    )


def _selected(t: Tensor, axis: int, parts: tuple[Tensor, ...]) -> Tensor | None:
    at = build.coordinates(t.shape)
    places = _Places(at[axis])
    starts: list[Expr] = [ZERO]
    for part in parts:
        own = tuple(add(c, mul(starts[-1], -1)) if c is at[axis] else c for c in at)
        first = ReadAt(places.noted)
        first.read(part, Map(t.shape, at, own))
        if any(at[axis] in variables(e) for _, by in first.reduced for e in by.index):
            return None
        starts.append(add(starts[-1], part.shape[axis]))
    along = build.iota(t.shape, axis)
    out: Tensor | None = None
    for part, start in reversed(list(zip(parts, starts, strict=False))):
        own = tuple(add(c, mul(start, -1)) if c is at[axis] else c for c in at)
        read = ReadAt(places.read).read(part, Map(t.shape, at, own))
        if out is None:
            out = read
            continue
        end = build.spread(build.size(add(start, part.shape[axis]), along.dtype), t.shape)
        out = build.pointwise("where", build.pointwise("lt", along, end), read, out)
    assert out is not None
    return out


@dataclass(slots=True)
class _Places:
    """Where the parts of a join along a coordinate read arguments, and where they may: what a part
    reads beyond its own places nobody keeps."""

    along: Var
    asked: dict[Tensor, list[tuple[Expr, ...]]] = field(
        default_factory=dict[Tensor, list[tuple[Expr, ...]]]
    )

    def noted(self, t: Tensor, by: Map) -> Tensor:
        """Notes the places of one part. What it returns is of no use."""
        listed = self.asked.setdefault(t, [])
        if self._moves(by) and by.index not in listed:
            listed.append(by.index)
        return build.value(by.shape, t.dtype, t.op)

    def read(self, t: Tensor, by: Map) -> Tensor:
        """An argument at the places of all parts where one map has them, else at those of a part,
        the nearest ones that there are."""
        if not self._moves(by):
            return moved(t, by)
        index = self._common(t) or tuple(
            minimum(maximum(e, 0), add(n, -1)) if self.along in variables(e) else e
            for e, n in zip(by.index, t.shape, strict=True)
        )
        return moved(t, Map(by.shape, by.at, index))

    def _moves(self, by: Map) -> bool:
        return any(self.along in variables(e) for e in by.index)

    def _common(self, t: Tensor) -> tuple[Expr, ...] | None:
        """The places of all parts as one turn of an axis; None where there is none."""
        listed = self.asked[t]
        first = listed[0]
        turned = [a for a, e in enumerate(first) if self.along in variables(e)]
        if len(turned) != 1:
            return None
        (axis,) = turned
        extent = constant_value(t.shape[axis])
        offsets = [constant_value(add(index[axis], mul(self.along, -1))) for index in listed]
        if extent is None or any(o is None or (o - (offsets[0] or 0)) % extent for o in offsets):
            return None
        others = {tuple(e for a, e in enumerate(index) if a != axis) for index in listed}
        if len(others) > 1:
            return None
        place = mod(add(self.along, offsets[0] or 0), extent)
        return tuple(place if a == axis else e for a, e in enumerate(first))
