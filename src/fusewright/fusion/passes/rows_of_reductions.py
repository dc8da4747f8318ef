"""Reductions of one value along different axes, by its rows.

    m = max(x, (0, 3));  s = sum(x, (1, 2))       x of (8, 32, 64, 9821)
        ->   m = max(max(x, 3), 0);  s = sum(x, (1, 2))

Rows run along the axes that are fast in memory, which the first kind reduces and the second kind
keeps. The blocks of one kernel then walk over rows, with sums of their columns beside them, and
read x once (`row_partials`). Rows that no block holds are cut in chunks of equal length, along the
axis up to which a block holds what is faster in memory:

    m = max(x, 1);  s = sum(x, 0)                 x of (74, 821504)
        ->   y = reshape(x, (74, 256, 3209));  m = max(max(y, 2), 1);  s = reshape(sum(y, 0))

A variance of such rows is combined from those of the chunks, as in `chunk_reductions`, so that it
does not read x a second time.
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
    divisors,
    held_of,
    inputs_of,
    is_read_again,
)
from fusewright.fusion.passes.chunk_reductions import Pair, pair_of
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


def rows_of_reductions(fusion: Fusion, target: Target) -> Fusion:
    """Reduces along rows first where other reductions of the value keep them.

    checks:   constant sizes; values that fill the chip
    order:    after nest_reductions, before row_partials, which cuts the reductions that keep rows
    """
    found: dict[Tensor, list[Tensor]] = {}
    for t in fusion.values:
        if isinstance(t.op, Reduce):
            found.setdefault(t.op.operands[0], []).append(t)
    ways: dict[Tensor, Rows] = {}
    for source, reductions in found.items():
        axes = _fast_axes(source, reductions)
        if axes:
            ways |= dict.fromkeys(reductions, _held_rows(source, axes, reductions, target))

    pairs = {p.first: p for t in fusion.values if (p := _chunked_pair(t, ways, fusion))}
    seconds = {p.second for p in pairs.values()}
    made: dict[Tensor, Tensor] = {}

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if t in pairs:
            first, made[pairs[t].second] = _variance(t, operands[0], ways[t])
            return first
        if t in seconds:
            return made[t]
        return _by_rows(t, operands[0], ways[t]) if t in ways else None

    return cse(rebuild(fusion, replace)) if ways else fusion


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


def _held_rows(
    source: Tensor, axes: tuple[int, ...], reductions: Sequence[Tensor], target: Target
) -> Rows:
    """Rows along these axes, the slowest first, or chunks of them that a block holds with the sums
    of their columns: the longest of which there are more than multiprocessors, and for half of
    these a block that walks over enough of them; the shortest where all are too few. Whole rows
    where none is held."""
    sizes = constant_shape(source) or ()
    inputs, total = set(inputs_of(source)), math.prod(sizes)
    row = math.prod(sizes[a] for a in axes)
    parts = max(total // row // LEAST_ROWS_OF_BLOCK, 1)
    sums = sum(not set(_axes(t)) & set(axes) for t in reductions)
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


def _chunked_pair(t: Tensor, ways: Mapping[Tensor, Rows], fusion: Fusion) -> Pair | None:
    """The sum and the sum of squares around the mean, of which this is the second, if both are
    along rows that are cut in chunks, and nothing of the rows' size is computed from them."""
    pair = pair_of(t)
    if pair is None or pair.kind != "variance" or pair.first not in ways:
        return None
    is_cut = ways[pair.first].cut in pair.axes
    return pair if is_cut and not is_read_again(t, pair.facts.total, fusion) else None


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
    """The operand of a reduction with its rows in chunks, and the axes of it that are reduced: those
    of a chunk, and the others."""
    wide = build.cast(source, t.dtype.compute)
    chunks = (wide.shape[cut] // rows.length, Int(rows.length))
    shape = (*wide.shape[:cut], *chunks, *wide.shape[cut + 1 :])
    moved = {a: a + (a >= cut) for a in range(source.ndim)}
    along = [a for a in rows.axes if a in _axes(t)]
    rest = [moved[a] for a in _axes(t) if a not in rows.axes] + ([cut] if cut in along else [])
    first = tuple(moved[a] for a in along)
    return build.reshape("rows_of_reductions", wide, shape), first, tuple(sorted(rest))


def _variance(t: Tensor, source: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """The sum of rows in chunks, and the sum of squares around their mean, from one walk."""
    assert rows.cut is not None
    wide, first, rest = _in_chunks(t, source, rows, rows.cut)
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
