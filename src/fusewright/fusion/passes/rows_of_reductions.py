"""Reductions of one value along different axes, by its rows.

    m = max(x, (0, 3));  s = sum(x, (1, 2))       x of (8, 32, 64, 9821)
        ->   m = max(max(x, 3), 0);  s = sum(x, (1, 2))

Rows run along the axes that are fast in memory, which the first kind reduces and the second kind
keeps. The blocks of one kernel then walk over rows, with sums of their columns beside them, and
read x once (`row_partials`). Rows that no block holds are cut in chunks of equal length, along the
axis up to which a block holds what is faster in memory:

    m = max(x, 1);  s = sum(x, 0)                 x of (74, 821504)
        ->   y = reshape(x, (74, 256, 3209));  m = max(max(y, 2), 1);  s = reshape(sum(y, 0))

A variance of such rows is combined from those of the chunks, and one of few rows, column by column,
computed from sums around the first row, as in `chunk_reductions`: neither reads x a second time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusewright.core.expr import ONE, Int
from fusewright.core.substitution import estimate
from fusewright.fusion import build
from fusewright.fusion.inputs_behind import in_memory_order
from fusewright.fusion.ir import Fusion, Reduce, Tensor, constant_shape
from fusewright.fusion.partitioning import (
    LEAST_ROWS_OF_BLOCK,
    LEAST_TOTAL,
    SHIFTED_ROWS,
    divisors,
    held_of,
    inputs_of,
    is_read_again,
)
from fusewright.fusion.passes.chunk_reductions import Pair, first_rows, pair_of
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.target import Target

SHORTEST = 64
"""Elements of a row that is worth a walk: of fewer, partial results are a large part."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The axes of a value along which its rows run, ascending; of `cut`, if there is one, chunks of
    `length` elements. `is_held`: whether a block holds one."""

    axes: tuple[int, ...]
    cut: int | None = None
    length: int = 0
    is_held: bool = False


def rows_of_reductions(fusion: Fusion, target: Target, *, has_variances: bool = True) -> Fusion:
    """Reduces along rows first where other reductions of the value keep them; variances too, unless
    they are to read the value again.

    checks:   constant sizes; values that fill the chip
    order:    after nest_reductions, before row_partials, which cuts the reductions that keep rows
    """
    found: dict[Tensor, list[Tensor]] = {}
    for t in fusion.values:
        if isinstance(t.op, Reduce):
            found.setdefault(t.op.operands[0], []).append(t)
    summed = fusion.values if has_variances else ()
    pairs = {p.first: p for t in summed if (p := _variance_at_once(t, fusion))}
    ways: dict[Tensor, Rows] = {}
    for source, reductions in found.items():
        axes = _fast_axes(source, reductions)
        if axes:
            sums = sum(_sums_of_column(t, axes, pairs) for t in reductions)
            ways |= dict.fromkeys(reductions, _held_rows(source, axes, sums, target))
    chosen = {t: p for t, p in pairs.items() if t in ways and _is_of_walk(p, ways[t])}
    seconds = {p.second for p in chosen.values()}
    made: dict[Tensor, Tensor] = {}

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if t in chosen:
            first, made[chosen[t].second] = _variance(chosen[t], operands[0], ways[t])
            return first
        if t in seconds:
            return made[t]
        return _by_rows(t, operands[0], ways[t]) if t in ways else None

    return cse(rebuild(fusion, replace)) if ways else fusion


def _variance_at_once(t: Tensor, fusion: Fusion) -> Pair | None:
    """The sum and the sum of squares around the mean, of which this is the second, if nothing of
    the size of what they reduce is computed from them."""
    pair = pair_of(t)
    if pair is None or pair.kind != "variance" or is_read_again(t, pair.facts.total, fusion):
        return None
    return pair


def _is_of_walk(p: Pair, rows: Rows) -> bool:
    """Whether a walk over the rows can compute a variance: of rows in chunks, or of so few rows of
    an input that sums around the first one are exact enough."""
    if rows.cut in p.axes:
        return True
    return rows.is_held and not set(p.axes) & set(rows.axes) and _is_around_first(p)


def _is_around_first(p: Pair) -> bool:
    return p.is_shifted and p.facts.size <= SHIFTED_ROWS[1]


def _sums_of_column(t: Tensor, rows: Sequence[int], pairs: Mapping[Tensor, Pair]) -> int:
    """What registers hold of a column for a reduction beside rows along these axes: its result, and
    of a variance the sum of squares and the first element, too."""
    if set(_axes(t)) & set(rows):
        return 0
    return 3 if t in pairs and _is_around_first(pairs[t]) else 1


def _fast_axes(source: Tensor, reductions: Sequence[Tensor]) -> tuple[int, ...]:
    """The fast axes of a value, the slowest of them first, that some of its reductions reduce and
    the others keep; none where all reduce the fast one, or none does, or they are too short."""
    sizes = constant_shape(source)
    if sizes is None or math.prod(sizes) < LEAST_TOTAL:
        return ()
    sized = [a for a, n in enumerate(sizes) if n > 1]
    order = in_memory_order(source, sized, lambda v: v.op.operands)
    reducing = [t for t in reductions if order[-1] in _axes(t)]
    keeping = [t for t in reductions if t not in reducing]
    rows: list[int] = []
    for a in reversed(order) if reducing and keeping else ():
        if any(a in _axes(t) for t in keeping) or any(a not in _axes(t) for t in reducing):
            break
        rows.insert(0, a)
    return tuple(rows) if math.prod(sizes[a] for a in rows) >= SHORTEST else ()


def _held_rows(source: Tensor, axes: tuple[int, ...], sums: int, target: Target) -> Rows:
    """Rows along these axes, the slowest first, or chunks of them that a block holds with so many
    sums of their columns: the longest of which there are more than multiprocessors, and for half of
    these a block that walks over enough of them; the shortest where all are too few. Whole rows
    where none is held."""
    sizes = constant_shape(source) or ()
    inputs, total = set(inputs_of(source)), math.prod(sizes)
    row = math.prod(sizes[a] for a in axes)
    parts = max(total // row // LEAST_ROWS_OF_BLOCK, 1)
    found = Rows(tuple(sorted(axes)))
    inner = 1
    for k, a in reversed(list(enumerate(axes))):
        for n in divisors(sizes[a]):
            length = inner * n
            held = held_of(inputs, total, length, sums)
            if length < SHORTEST or not held.blocks(length):
                continue
            blocks = min(2 * parts * (row // length), total // length - 1)
            if blocks < target.multiprocessors and found.is_held:
                return found
            is_cut = n < sizes[a]
            found = Rows(tuple(sorted(axes[k:])), a if is_cut else None, n if is_cut else 0, True)
        inner *= sizes[a]
    return found


def _by_rows(t: Tensor, source: Tensor, rows: Rows) -> Tensor | None:
    fn, axes = _op(t).fn, _axes(t)
    if rows.cut is not None:
        wide, first, rest = _in_chunks(t, source, rows, rows.cut)
        if rows.cut not in axes:
            kept = build.reduce(fn, wide, rest)
            return build.cast(build.reshape("rows_of_reductions", kept, t.shape), t.dtype)
        return _in_steps(t, wide, first, rest)
    rest = tuple(a for a in axes if a not in rows.axes)
    sized = [a for a in rest if source.shape[a] != ONE]
    if not sized or not set(axes) & set(rows.axes):
        return None
    return _in_steps(t, build.cast(source, t.dtype.compute), rows.axes, rest)


def _in_chunks(
    t: Tensor, source: Tensor, rows: Rows, cut: int
) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """The operand of a reduction with its rows in chunks, and the axes of it that are reduced:
    those of a chunk, and the others."""
    wide = build.cast(source, t.dtype.compute)
    chunks = (wide.shape[cut] // rows.length, Int(rows.length))
    shape = (*wide.shape[:cut], *chunks, *wide.shape[cut + 1 :])
    moved = {a: a + (a >= cut) for a in range(source.ndim)}
    along = [a for a in rows.axes if a in _axes(t)]
    rest = [moved[a] for a in _axes(t) if a not in rows.axes] + ([cut] if cut in along else [])
    first = tuple(moved[a] for a in along)
    return build.reshape("rows_of_reductions", wide, shape), first, tuple(sorted(rest))


def _variance(p: Pair, source: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """The sum, and the sum of squares around the mean, from one walk over the rows."""
    if rows.cut in p.axes:
        return _of_chunks(p.first, source, rows, rows.cut)
    return _around_first(p, source, rows)


def _of_chunks(t: Tensor, source: Tensor, rows: Rows, cut: int) -> tuple[Tensor, Tensor]:
    """The same of rows in chunks."""
    wide, first, rest = _in_chunks(t, source, rows, cut)
    elements = math.prod(estimate(wide.shape[a]) for a in first)
    kept = [a for a in range(wide.ndim) if a not in first]
    again = tuple(kept.index(a) for a in rest)
    sums = build.reduce("add", wide, first)
    d = build.pointwise("sub", wide, _spread(_divided(sums, elements), wide, first))
    squares = build.reduce("add", build.pointwise("mul", d, d), first)
    total = build.reduce("add", sums, again)
    chunks = math.prod(estimate(sums.shape[a]) for a in again)
    off = build.pointwise("sub", sums, _spread(_divided(total, chunks), sums, again))
    apart = build.pointwise("mul", off, _divided(off, elements))
    around = build.reduce("add", build.pointwise("add", squares, apart), again)
    return build.cast(total, t.dtype), build.cast(around, t.dtype)


def _around_first(p: Pair, source: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """The same of columns, from the sums of what differs from the first row, and of its squares."""
    wide, axes, length = build.cast(source, p.first.dtype.compute), p.axes, p.facts.size
    if rows.cut is not None:
        wide, _, axes = _in_chunks(p.first, source, rows, rows.cut)
    kept = tuple(e for a, e in enumerate(wide.shape) if a not in axes)
    first = build.reshape("rows_of_reductions", first_rows(p.source, p.axes, 1, 0), kept)
    first = build.cast(first, wide.dtype)
    d = build.pointwise("sub", wide, _spread(first, wide, axes))
    moved = build.reduce("add", d, axes)
    squares = build.reduce("add", build.pointwise("mul", d, d), axes)
    count = build.spread(build.constant(float(length), moved.dtype), moved.shape)
    total = build.pointwise("add", moved, build.pointwise("mul", first, count))
    around = build.pointwise("sub", squares, build.pointwise("mul", moved, _divided(moved, length)))
    zero = build.spread(build.constant(0.0, around.dtype), around.shape)
    around = build.pointwise("max", around, zero)
    shaped = (build.reshape("rows_of_reductions", v, p.first.shape) for v in (total, around))
    total, around = (build.cast(v, p.first.dtype) for v in shaped)
    return total, around


def _divided(t: Tensor, n: int) -> Tensor:
    return build.pointwise("div", t, build.spread(build.constant(float(n), t.dtype), t.shape))


def _spread(t: Tensor, like: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A value without these axes spread along them over the shape of another."""
    for a in sorted(axes):
        t = build.expand(t, a)
    return build.spread(t, like.shape)


def _in_steps(t: Tensor, wide: Tensor, first: tuple[int, ...], rest: tuple[int, ...]) -> Tensor:
    """A reduction over the first axes, and one of its results over the rest."""
    place: Mapping[int, int] = {
        a: k for k, a in enumerate(a for a in range(wide.ndim) if a not in first)
    }
    partial = build.reduce(_op(t).fn, wide, first)
    return build.cast(build.reduce(_op(t).fn, partial, tuple(place[a] for a in rest)), t.dtype)


def _op(t: Tensor) -> Reduce:
    assert isinstance(t.op, Reduce)
    return t.op


def _axes(t: Tensor) -> tuple[int, ...]:
    return _op(t).axes
