"""Where moves read: for every axis of the operand an expression in the coordinates of the result.

    x[a:b:s]            i -> s*i + a
    x.T                 i, j -> j, i
    roll(flip(x), k)    i -> n - 1 - (i - k) mod n

A move of a move is one map: the expressions of the inner one, at the places of the outer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fusewright.core.conditions import less, prove
from fusewright.core.expr import (
    ONE,
    ZERO,
    Expr,
    Var,
    add,
    constant_value,
    floordiv,
    mod,
    mul,
    variables,
)
from fusewright.core.sampling import Sampler
from fusewright.core.substitution import substitute
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Broadcast,
    IndexMap,
    Permute,
    Reshape,
    Resize,
    Shape,
    Tensor,
)
from fusewright.fusion.passes.fold_crops import is_crop

MAX_EXTENT = 1 << 21
"""Places along an axis that are looked at: a tenth of a second for all of them (a core of a server,
2026-11-27: 16 million take 0.9 s)."""


MAX_MENTIONS = 64
"""How often the index along an axis may mention coordinates. One that folds at an end of an axis
mentions what it folds twice, so that moves of moves double it each time: six of them take about
seven instructions each, of the 48 that a multiprocessor issues for an element of 4 bytes at the
rate of memory. One more is a kernel of its own."""


@dataclass(frozen=True, slots=True)
class Map:
    """A result of `shape` with coordinates `at` reads an operand at `index`."""

    shape: Shape
    at: tuple[Var, ...]
    index: tuple[Expr, ...]

    def through(self, inner: Map) -> Map | None:
        """The map of a move by this one of what `inner` moved; None where its index would mention
        coordinates too often, which is known before it is made."""
        places = dict(zip(inner.at, self.index, strict=True))
        mentions: dict[object, int] = {c: len(e.leaves) for c, e in places.items()}
        if any(sum(mentions.get(c, 1) for c in e.leaves) > MAX_MENTIONS for e in inner.index):
            return None
        return Map(self.shape, self.at, tuple(substitute(e, places) for e in inner.index))


def turns_of(by: Map) -> dict[int, tuple[Var, Expr]]:
    """The axes of which a map reads all places, each once, in another order: of each a coordinate
    and the place that it reads."""
    out: dict[int, tuple[Var, Expr]] = {}
    for axis, e in enumerate(by.index):
        own = variables(e)
        if e in by.at or len(own) != 1 or own[0] not in by.at:
            continue
        extent = constant_value(by.shape[by.at.index(own[0])])
        if extent is None or extent > MAX_EXTENT:
            continue
        places = np.broadcast_to(Sampler({own[0]: np.arange(extent)}).value(e), (extent,))
        is_inside = places.min(initial=0) >= 0 and places.max(initial=0) < extent
        if is_inside and (np.bincount(places, minlength=extent) == 1).all():
            out[axis] = own[0], e
    return out


def map_of(t: Tensor) -> Map | None:
    """Where a value reads its operand; None for what is no move, and for pads."""
    at = t.op.coordinates if isinstance(t.op, IndexMap) else build.coordinates(t.shape)
    places = [ZERO if n == ONE else c for c, n in zip(at, t.shape, strict=True)]
    match t.op:
        case IndexMap():
            known = dict(zip(at, places, strict=True))
            return Map(t.shape, at, tuple(substitute(e, known) for e in t.op.index))
        case Resize() if is_crop(t):
            lows = (mul(low, -1) for low in t.op.low)
            return Map(t.shape, at, tuple(map(add, places, lows)))
        case Permute():
            return Map(t.shape, at, tuple(places[t.op.axes.index(a)] for a in range(t.ndim)))
        case Broadcast():
            source = t.op.operands[0].shape
            known = {a: c for a, c in zip(t.op.axes, places, strict=True) if a is not None}
            index = tuple(ZERO if n == ONE else known[a] for a, n in enumerate(source))
            return Map(t.shape, at, index)
        case Reshape():
            index = _before_reshape(t.op.operands[0].shape, t.shape, places)
            return None if index is None else Map(t.shape, at, index)
        case _:
            return None


def _before_reshape(old: Shape, new: Shape, places: Sequence[Expr]) -> tuple[Expr, ...] | None:
    """The places on the axes from before a reshape: runs of old axes and of new ones that have as
    many elements are one count, of which each old axis is a digit. None where sizes do not tell
    which axes those are.

    rewrite:  (4, 11, 6) -> (44, 2, 3) at i, j, k    ->    i // 11, i % 11, 3 * j + k
    """
    out: list[Expr] = []
    j = 0
    k = 0
    while k < len(old):
        first, count, size = k, old[k], ONE
        place: Expr = ZERO
        k += 1
        while size != count:
            if k < len(old) and (mod(size, count) == ZERO or prove(less(count, size)) is True):
                count = mul(count, old[k])
                k += 1
            elif j < len(new):
                place = add(mul(place, new[j]), places[j])
                size = mul(size, new[j])
                j += 1
            else:
                return None
        out += _digits(place, old[first:k])
    return tuple(out) if all(n == ONE for n in new[j:]) else None


def _digits(place: Expr, sizes: Shape) -> list[Expr]:
    """A place counted over several axes, the last one fastest, as one for each of them."""
    out: list[Expr] = []
    for n in reversed(sizes[1:]):
        out.append(mod(place, n))
        place = floordiv(place, n)
    return [place, *reversed(out)]


def moved(source: Tensor, by: Map) -> Tensor:
    """The value that a map reads of a source: the source itself, a crop of it in any order of its
    axes, or an IndexMap; axes that the map does not look at are broadcast."""
    used = [c for c in by.at if any(c in variables(e) for e in by.index)]
    extents = dict(zip(by.at, by.shape, strict=True))
    out = _box(source, used, by, extents) or _mapped(source, used, by, extents)
    if len(used) == len(by.at):
        return out
    axes = tuple(used.index(c) if c in used else None for c in by.at)
    return build.value(by.shape, source.dtype, Broadcast((out,), axes))


def _mapped(source: Tensor, used: list[Var], by: Map, extents: dict[Var, Expr]) -> Tensor:
    shape = tuple(extents[c] for c in used)
    at = build.coordinates(shape)
    fresh = dict(zip(used, at, strict=True))
    return build.index_map(source, shape, at, [substitute(e, fresh) for e in by.index])


def _box(source: Tensor, used: list[Var], by: Map, extents: dict[Var, Expr]) -> Tensor | None:
    """What a map reads if it is a box of the source, its axes as the map has them; None for other
    maps."""
    found: list[Var] = []
    low: list[Expr] = []
    shape: list[Expr] = []
    for e in by.index:
        known = [c for c in used if c in variables(e)]
        start = add(e, mul(known[0], -1)) if known else e
        if len(known) > 1 or (known and (known[0] in variables(start) or known[0] in found)):
            return None
        found += known
        low.append(mul(start, -1))
        shape.append(extents[known[0]] if known else ONE)
    high = [
        add(n, mul(add(a, whole), -1)) for n, a, whole in zip(shape, low, source.shape, strict=True)
    ]
    box = build.resize(source, low, high, 0)
    plain = build.reshape("index", box, tuple(extents[c] for c in found))
    return build.permute(plain, [found.index(c) for c in used])
