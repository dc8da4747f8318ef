"""Reductions of one value along different axes, by its rows.

    m = max(x, (0, 3));  s = sum(x, (1, 2))       x of (8, 32, 64, 9821)
        ->   m = max(max(x, 3), 0);  s = sum(x, (1, 2))

Rows run along the axes that are fast in memory, which the first kind reduces and the second kind
keeps. The blocks of one kernel then walk over rows, with sums of their columns beside them, and
read x once (`row_partials`). Rows that no block holds are cut in chunks of equal length:

    m = max(x, 1);  s = sum(x, 0)                 x of (74, 821504)
        ->   y = reshape(x, (74, 256, 3209));  m = max(max(y, 2), 1);  s = reshape(sum(y, 0))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fusewright.core.expr import Int
from fusewright.fusion import build
from fusewright.fusion.inputs_behind import in_memory_order
from fusewright.fusion.ir import Fusion, Reduce, Tensor, constant_shape
from fusewright.fusion.partitioning import LEAST_TOTAL, held_of, inputs_of
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.rebuild import rebuild

SHORTEST = 64
"""Elements of a row that is worth a walk: of fewer, partial results are a large part."""


def rows_of_reductions(fusion: Fusion) -> Fusion:
    """Reduces along rows first where other reductions of the value keep them.

    checks:   constant sizes; values that fill the chip
    order:    after nest_reductions, before row_partials, which cuts the reductions that keep rows
    """
    found: dict[Tensor, list[Tensor]] = {}
    for t in fusion.values:
        if isinstance(t.op, Reduce):
            found.setdefault(t.op.operands[0], []).append(t)
    ways: dict[Tensor, tuple[tuple[int, ...], int]] = {}
    for source, reductions in found.items():
        rows = _rows(source, reductions)
        if rows:
            ways |= dict.fromkeys(reductions, (rows, _chunk(source, rows, reductions)))

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        return _by_rows(t, operands[0], *ways[t]) if t in ways else None

    return cse(rebuild(fusion, replace)) if ways else fusion


def _rows(source: Tensor, reductions: Sequence[Tensor]) -> tuple[int, ...]:
    """The fast axes of a value that some of its reductions reduce and the others keep; none where
    all reduce the fast one, or none does, or they are too short."""
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
    return tuple(sorted(rows)) if math.prod(sizes[a] for a in rows) >= SHORTEST else ()


def _chunk(source: Tensor, rows: tuple[int, ...], reductions: Sequence[Tensor]) -> int:
    """The length of chunks of a row, which a block holds with the sums of its columns: the longest
    that divides it; 0 where a block holds the row, or no such length is in sight."""
    sizes = constant_shape(source) or ()
    length, total = math.prod(sizes[a] for a in rows), math.prod(sizes)
    sums = sum(not set(_axes(t)) & set(rows) for t in reductions)
    held = held_of(set(inputs_of(source)), total, length, sums)
    if held.blocks(length) or len(rows) > 1:
        return 0
    divisors = (n for n in range(length // 2, SHORTEST - 1, -1) if length % n == 0)
    return next((n for n in divisors if held.blocks(n)), 0)


def _by_rows(t: Tensor, source: Tensor, rows: tuple[int, ...], chunk: int) -> Tensor | None:
    fn, axes = _op(t).fn, _axes(t)
    wide = build.cast(source, t.dtype.compute)
    if chunk:
        (row,) = rows
        chunks = (wide.shape[row] // chunk, Int(chunk))
        shape = (*wide.shape[:row], *chunks, *wide.shape[row + 1 :])
        wide = build.reshape("rows_of_reductions", wide, shape)
        moved = {a: a + (a > row) for a in range(source.ndim)}
        if row not in axes:
            kept = build.reduce(fn, wide, tuple(moved[a] for a in axes))
            return build.cast(build.reshape("rows_of_reductions", kept, t.shape), t.dtype)
        return _in_steps(t, wide, (row + 1,), tuple(moved[a] for a in axes))
    if set(axes) == set(rows) or not set(axes) & set(rows):
        return None
    return _in_steps(t, wide, rows, tuple(a for a in axes if a not in rows))


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
