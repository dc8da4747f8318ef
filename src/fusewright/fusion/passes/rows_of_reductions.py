"""Reductions of one value along different axes, by its rows.

    m = max(x, (0, 3));  s = sum(x, (1, 2))       x of (8, 32, 64, 9821)
        ->   m = max(max(x, 3), 0);  s = sum(x, (1, 2))

Rows run along axes that the first kind reduces and the second kind keeps. The blocks of one kernel
then walk over rows, with sums of their columns beside them, and read x once (`row_partials`). Rows
that no block holds are cut in chunks of equal length:

    m = max(x, 1);  s = sum(x, 0)                 x of (74, 821504)
        ->   y = reshape(x, (74, 256, 3209));  m = max(max(y, 2), 1);  s = reshape(sum(y, 0))

Axes that are faster in memory than those of the rows are left to the second step, where both kinds
reduce them or the first one keeps them (`fusion/walked_rows.py`):

    m = max(x, 1);  s = sum(x, (0, 2))            x of (3584, 6144, 8)
        ->   y = reshape(x, (3584, 16, 384, 8))
             m = max(max(y, 2), 1);  s = reshape(sum(sum(y, 0), 2))

A variance of rows is combined from those of the first step. One of columns is computed from sums
around the first row of every part, as in `chunk_reductions`, whatever reduces columns beside it in
the same parts: neither reads x a second time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fusewright.core.expr import ZERO, Int
from fusewright.core.identities import reduction_identity
from fusewright.core.substitution import estimate
from fusewright.dtypes import DType
from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, Input, Reduce, Tensor
from fusewright.fusion.partition import Partition
from fusewright.fusion.partitioning import (
    EVEN_SHARE,
    SHIFTED_ROWS,
    PartitionFacts,
    beside_rows,
    held_of,
    inputs_of,
    is_read_again,
)
from fusewright.fusion.passes.chunk_reductions import (
    ReductionPair,
    combined,
    first_rows,
    pair_of,
    shifted,
    stored_behind,
)
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.passes.split_reductions import as_parts, reduce_in_parts
from fusewright.fusion.walked_rows import (
    Directions,
    Results,
    Rows,
    directions_of,
    held_rows,
    rows_of_least_bytes,
)
from fusewright.target import Target

NAME = "rows_of_reductions"


@dataclass(frozen=True, slots=True)
class _Walk:
    """A walk over the rows of a value, and how the walked axes are cut, where rows keep fast axes
    or a variance of columns asks for it. The first steps reduce the value with its axes in pieces,
    those of columns the fast axes, too (`is_across`), or leave them to the second step."""

    directions: Directions
    rows: Rows
    partition: Partition | None = None
    is_across: bool = False

    def pieces(self, axis: int) -> list[tuple[int, bool]]:
        """The sizes of the pieces of an axis, and whether a row has them and reduces them: chunks,
        what one has, and the neighbours in it that are kept."""
        d, r = self.directions, self.rows
        if axis not in r.axes:
            return [(d.sizes[axis], False)]
        inside = r.length if axis == r.cut else d.sizes[axis]
        out = [(d.sizes[axis] // inside, False)] if axis == r.cut else []
        together = r.together if axis == d.axes[-1] else 1
        out.append((inside // together, True))
        return [*out, (together, False)] if together > 1 else out

    def places(self, axes: Collection[int], *, of_row: bool | None = None) -> tuple[int, ...]:
        """Which axes the pieces of some axes are; of those only that a row reduces, or only the
        others."""
        every = [(a, own) for a in range(len(self.directions.sizes)) for _, own in self.pieces(a)]
        return tuple(k for k, (a, own) in enumerate(every) if a in axes and of_row in (None, own))

    def cut(self, source: Tensor, dtype: DType) -> Tensor:
        """The value with its axes in pieces."""
        pieces = [(a, n) for a in range(source.ndim) for n, _ in self.pieces(a)]
        wide = build.cast(source, dtype)
        if len(pieces) == source.ndim:
            return wide
        return build.reshape(NAME, wide, tuple(Int(n) for _, n in pieces))

    def walked(self, column: Tensor) -> tuple[int, ...]:
        """The axes that are walked over for a reduction of columns."""
        return self.places([a for a in _axes(column) if a not in self.rows.own])

    def steps(self, t: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The axes that the first step of a reduction reduces, and those left to the second."""
        axes = _axes(t)
        if t in self.directions.rows:
            first = self.places(self.rows.axes, of_row=True)
        else:
            left = self.rows.axes if self.is_across else self.rows.own
            first = self.places([a for a in axes if a not in left])
        return first, tuple(k for k in self.places(axes) if k not in first)


def rows_of_reductions(fusion: Fusion, target: Target, *, of_all: bool = True) -> Fusion:
    """Reduces along rows first where other reductions of the value keep them; unless `of_all` only
    along the fast axes, and no variances.

    checks:   constant sizes; values that fill the chip
    order:    after nest_reductions, before row_partials, which cuts the reductions that keep rows
    """
    walks, chosen = _walks(fusion, target, of_all=of_all)
    seconds = {p.second for p in chosen.values()}
    made: dict[Tensor, Tensor] = {}

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if t in chosen:
            first, made[chosen[t].second] = _variance(chosen[t], operands[0], walks[t])
            return first
        if t in seconds:
            return made[t]
        return _in_steps(t, operands[0], walks[t]) if t in walks else None

    return cse(rebuild(fusion, replace)) if walks else fusion


def _walks(
    fusion: Fusion, target: Target, *, of_all: bool = True
) -> tuple[dict[Tensor, _Walk], dict[Tensor, ReductionPair]]:
    """The walk that makes each of some reductions, and the variances among them by their sums."""
    found: dict[Tensor, list[Tensor]] = {}
    for t in fusion.values:
        if isinstance(t.op, Reduce):
            found.setdefault(t.op.operands[0], []).append(t)
    summed = fusion.values if of_all else ()
    pairs = {p.first: p for t in summed if (p := _variance_at_once(t, fusion))}
    walks: dict[Tensor, _Walk] = {}
    for source, reductions in found.items():
        d = directions_of(source, reductions, keeps_fast=of_all) if len(reductions) > 1 else None
        walk = None if d is None else _walk(d, reductions, pairs, target)
        walks |= {} if walk is None else dict.fromkeys(reductions, walk)
    chosen = {t: p for t, p in pairs.items() if t in walks and _is_of_walk(t, walks[t])}
    return walks, chosen


def walked_variances(fusion: Fusion, target: Target) -> frozenset[Tensor]:
    """The sums of those variances that walks over rows would compute."""
    return frozenset(_walks(fusion, target)[1])


def _variance_at_once(t: Tensor, fusion: Fusion) -> ReductionPair | None:
    """The sum and the sum of squares around the mean, of which this is the second, if nothing of
    the size of what they reduce is computed from them."""
    pair = pair_of(t)
    if pair is None or pair.kind != "variance" or is_read_again(t, pair.facts.total, fusion):
        return None
    return pair


def _walk(
    d: Directions,
    reductions: Sequence[Tensor],
    pairs: Mapping[Tensor, ReductionPair],
    target: Target,
) -> _Walk | None:
    """How blocks walk over the rows of a value; None where that is no gain."""
    columns = [t for t in reductions if t not in d.rows]
    is_shifted = _is_stored(d.source) and any(t in pairs for t in columns)
    variances = sum(is_shifted and t in pairs for t in columns)
    sums = len(columns) + 2 * variances
    rows = len(d.rows) + sum(t in pairs for t in d.rows)
    made = Results(sums, rows, sums - variances, SHIFTED_ROWS[1] if is_shifted else None)
    cut = _cut_walk(d, made, columns[0], target, is_shifted) if d.fast or is_shifted else None
    return cut or (None if d.fast else _Walk(d, held_rows(d, sums, target)))


def _cut_walk(
    d: Directions, made: Results, column: Tensor, target: Target, is_shifted: bool
) -> _Walk | None:
    """A walk with the walked axes in parts; for a variance of columns in one, where nothing is held
    beside them, if few rows are walked over."""
    rows = rows_of_least_bytes(d, made, target)
    if rows is None and (d.fast or d.numel(d.walked) > SHIFTED_ROWS[1]):
        return None
    if rows is None:
        whole = Partition.by_count(d.numel(d.walked), 1)
        return _Walk(d, held_rows(d, made.sums, target), whole)
    walk = _Walk(d, rows, is_across=d.is_across(rows) and not is_shifted)
    cut = _partition(walk, column, made.sums, target)
    if cut is None:
        return None
    return replace(walk, partition=_even(walk, cut, is_shifted=is_shifted))


def _partition(walk: _Walk, column: Tensor, sums: int, target: Target) -> Partition | None:
    """How the walked axes are cut beside the rows."""
    d, rows, length = walk.directions, walk.rows, _row_length(walk)
    facts = PartitionFacts.of(walk.cut(d.source, d.source.dtype), walk.walked(column))
    if facts is None:
        return None
    held = held_of(inputs_of(d.source), d.total, length, sums)
    fast = length // math.prod(n for a in rows.axes for n, own in walk.pieces(a) if own)
    return beside_rows(
        facts, held, length, target, fast=fast, at_a_time=rows.at_a_time, may_be_whole=True
    )


def _even(walk: _Walk, cut: Partition, *, is_shifted: bool) -> Partition:
    """As many parts, or a few less of one length, in which threads take as many rows at a time as
    they should; for a variance of columns without packs, so that each part has a first row, and of
    as few rows as sums around that are exact for."""
    if cut.pack > 1 and not is_shifted:
        return cut
    n = walk.rows.at_a_time
    wanted = max(cut.count, -(-cut.size // SHIFTED_ROWS[1]) if is_shifted else 1)
    near = range(wanted, max(int(wanted * (1 - EVEN_SHARE)), 1), -1)
    even = [c for c in near if cut.size % c == 0 and cut.size <= c * SHIFTED_ROWS[1]]
    count = next((c for c in even if cut.size // c % n == 0), even[0] if even else wanted)
    return Partition.by_count(cut.size, count, is_interleaved=True)


def _row_length(walk: _Walk) -> int:
    """The elements of a row, or of a chunk of one, with the neighbours that are kept."""
    d, r = walk.directions, walk.rows
    inside = math.prod(r.length if a == r.cut else d.sizes[a] for a in r.axes)
    return inside * d.numel(r.fast)


def _is_stored(source: Tensor) -> bool:
    return isinstance(stored_behind(source).op, Input)


def _is_of_walk(t: Tensor, walk: _Walk) -> bool:
    """Whether a walk over the rows can compute a variance: of rows in steps, or of columns of an
    input in parts."""
    if t in walk.directions.rows:
        return bool(walk.steps(t)[1])
    return walk.partition is not None


def _in_steps(t: Tensor, source: Tensor, walk: _Walk) -> Tensor | None:
    """A reduction over the axes of its first step, and one of its results over the rest."""
    fn, (first, rest) = _op(t).fn, walk.steps(t)
    is_row = t in walk.directions.rows
    wide = walk.cut(source, t.dtype.compute)
    if is_row or walk.partition is None:
        if not rest and wide.ndim == source.ndim:
            return None
        partial = build.reduce(fn, wide, first)
    else:
        partial = _in_parts(fn, wide, walk.walked(t), first, walk.partition)
    out = build.reduce(fn, partial, _again(wide, first, rest)) if rest else partial
    return build.cast(build.reshape(NAME, out, t.shape), t.dtype)


def _in_parts(
    fn: str, wide: Tensor, walked: tuple[int, ...], first: tuple[int, ...], cut: Partition
) -> Tensor:
    """A reduction over the axes of a first step, those that are walked over in parts."""
    parts = as_parts(wide, walked, cut, reduction_identity(fn, wide.dtype), last=False)
    if first == walked:
        return reduce_in_parts(fn, parts)
    ahead = len(cut.shape)
    across = tuple(
        ahead + a for a in _again(wide, walked, tuple(a for a in first if a not in walked))
    )
    return build.reduce(fn, build.reduce(fn, parts, (*cut.place_axes, *across)), (0,))


def _again(wide: Tensor, first: tuple[int, ...], rest: tuple[int, ...]) -> tuple[int, ...]:
    """The places of axes among those that a first step leaves."""
    left = [a for a in range(wide.ndim) if a not in first]
    return tuple(left.index(a) for a in rest)


def _variance(p: ReductionPair, source: Tensor, walk: _Walk) -> tuple[Tensor, Tensor]:
    """The sum, and the sum of squares around the mean, from one walk over the rows."""
    wide = walk.cut(source, p.first.dtype.compute)
    if walk.partition is None or p.first in walk.directions.rows:
        both = _of_rows(wide, *walk.steps(p.first))
    else:
        both = _of_columns(p, wide, walk, walk.partition)
    shaped = (build.reshape(NAME, v, p.first.shape) for v in both)
    total, around = (build.cast(v, p.first.dtype) for v in shaped)
    return total, around


def _of_rows(wide: Tensor, first: tuple[int, ...], rest: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The same of rows in steps. The results s and v of the n elements of first steps are combined
    in one pass, around the mean k of the first of them: as (k - m)**2 * n is a part of what they
    sum to, no more of the precision is lost than their number, at any data.

    rewrite:  sum(s), sum(v + (s - n*m)**2 / n)
                  ->   d = sum(s - n*k);  d + N*k,  sum(v + (s - n*k)**2 / n) - d**2 / N
    """
    elements = math.prod(estimate(wide.shape[a]) for a in first)
    again = _again(wide, first, rest)
    sums = build.reduce("add", wide, first)
    d = build.pointwise("sub", wide, _spread(_divided(sums, elements), wide, first))
    squares = build.reduce("add", build.pointwise("mul", d, d), first)
    steps = math.prod(estimate(sums.shape[a]) for a in again)
    at = build.coordinates(sums.shape)
    index = [ZERO if a in again else v for a, v in enumerate(at)]
    off = build.pointwise("sub", sums, build.index_map(sums, sums.shape, at, index))
    apart = build.pointwise("mul", off, _divided(off, elements))
    moved = build.reduce("add", off, again)
    around = build.reduce("add", build.pointwise("add", squares, apart), again)
    kept = [e for a, e in enumerate(sums.shape) if a not in again]
    at = build.coordinates(tuple(kept))
    places = iter(at)
    index = [ZERO if a in again else next(places) for a in range(sums.ndim)]
    begin = build.index_map(sums, tuple(kept), at, index)
    total = build.pointwise("add", moved, build.pointwise("mul", begin, _number(steps, begin)))
    lost = build.pointwise("mul", moved, _divided(moved, elements * steps))
    least = build.pointwise("sub", around, lost)
    return total, build.pointwise("max", least, _number(0.0, least))


def _of_columns(
    p: ReductionPair, wide: Tensor, walk: _Walk, cut: Partition
) -> tuple[Tensor, Tensor]:
    """The same of columns in parts, from the sums of what differs from the first row of a part, and
    of its squares."""
    first, rest = walk.steps(p.first)
    assert first == walk.walked(p.first), "a variance of columns reduces fast axes at once"
    walked = [a for a in p.axes if a not in walk.rows.own]
    kept = [e for a, e in enumerate(wide.shape) if a not in first]
    rows = first_rows(p.source, walked, cut.count, 1)
    rows = build.cast(build.reshape(NAME, rows, (Int(cut.count), *kept)), wide.dtype)
    parts = as_parts(wide, first, cut, 0.0, last=False)
    both = shifted(parts, rows, cut)
    if cut.count == 1 and not rest:
        return both
    return combined(*both, (0, *(1 + a for a in _again(wide, first, rest))), cut)


def _divided(t: Tensor, n: int) -> Tensor:
    return build.pointwise("div", t, _number(n, t))


def _number(n: float, like: Tensor) -> Tensor:
    return build.spread(build.constant(float(n), like.dtype), like.shape)


def _spread(t: Tensor, like: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A value without these axes spread along them over the shape of another."""
    for a in sorted(axes):
        t = build.expand(t, a)
    return build.spread(t, like.shape)


def _op(t: Tensor) -> Reduce:
    assert isinstance(t.op, Reduce)
    return t.op


def _axes(t: Tensor) -> tuple[int, ...]:
    return _op(t).axes
