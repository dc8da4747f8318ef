"""Row reductions beside columns that blocks hold: partial results of strips of the rows come first.

    c = sum(f(x), 0);  dx = g(x, c);  dw = sum(h(x), 1)
        ->   dw_p = sum(parts(h(x), 1), 2);  dw = sum(dw_p, 1)     parts: as many columns as a block

A block that holds a strip of the columns for dx has all of h(x) there, and makes one partial result
of each row of its strip (the backward of a normalisation along slow axes, or a normalisation along
one axis whose results are summed along another one). They are few; a second, small kernel sums
those of a row in fixed order. It is what `row_partials` is to rows.

The same where inputs of one row lie across each other: a block that holds a tile of some whole rows
has there, of each of their elements, all that lies in the strip of these rows.

    r = sum(f(x, y), 1);  dx = g(x, y, r);  dw = sum(h(x, y), 0)      y of strides (1, m)
        ->   dw_p = sum(parts(h(x, y), 0), 1);  dw = sum(dw_p, 0)     parts: the rows of a tile
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusewright.core.expr import constant_value
from fusewright.core.identities import reduction_identity
from fusewright.fusion import build
from fusewright.fusion.inputs_behind import Behind, whole_inputs
from fusewright.fusion.ir import Fusion, Reduce, Tensor, constant_shape
from fusewright.fusion.partition import Partition
from fusewright.fusion.partitioning import (
    LEAST_TOTAL,
    PartitionFacts,
    is_read_again,
    large_inputs,
    strip_of_columns,
    strip_of_tile,
)
from fusewright.fusion.passes.match import reduced_axes
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.passes.split_reductions import as_parts, is_held, reduce_in_parts
from fusewright.target import Target


def strip_partials(fusion: Fusion, target: Target, *, across: bool = False) -> Fusion:
    """Splits reductions over the fast axes in two where blocks hold the columns of the same inputs;
    with `across`, where inputs lie across each other, so that blocks hold tiles of them.

    checks:   constant sizes; strips that waste few threads, or whose tiles fit
    order:    after row_partials, which leaves columns that are held alone, before split_reductions;
              `across` instead of row_partials, whose rows one of the inputs would not follow
    """
    alike: dict[tuple[int, ...], list[Tensor]] = {}
    for t in fusion.values:
        sizes = constant_shape(t.op.operands[0]) if isinstance(t.op, Reduce) else None
        if sizes is not None and t.ndim and math.prod(sizes) >= LEAST_TOTAL:
            alike.setdefault(sizes, []).append(t)
    wanted: dict[Tensor, _Strips] = {}
    for reductions in alike.values():
        if len(reductions) > 1:
            wanted |= _strips(reductions, fusion, target, across=across)

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        return _in_strips(t, operands[0], *wanted[t], last=not across) if t in wanted else None

    return rebuild(fusion, replace) if wanted else fusion


_Strips = tuple[tuple[int, ...], Partition]
"""The fast axes of what is reduced, slow ones first, and the strips that they are cut in."""


def _strips(
    reductions: Sequence[Tensor], fusion: Fusion, target: Target, *, across: bool
) -> dict[Tensor, _Strips]:
    """How rows among the reductions of values of one shape are cut beside the columns that blocks
    hold."""
    is_held = _is_tile if across else _is_held
    columns = {t: set(reduced_axes(t)) for t in reductions if is_held(t, fusion, target)}
    out: dict[Tensor, _Strips] = {}
    if not columns:
        return out
    whole = {t: whole_inputs(t.op.operands[0], lambda v: v.op.operands) for t in reductions}
    large = {t: large_inputs(t.op.operands[0]) for t in reductions}
    for row in reductions:
        apart = [t for t, axes in columns.items() if axes.isdisjoint(reduced_axes(row))]
        beside = [t for t in apart if not large[t].isdisjoint(large[row])]
        if not beside or row in columns:
            continue
        inputs = [b for r in (*beside, row) for b in whole[r]]
        facts = PartitionFacts.of(beside[0].op.operands[0], reduced_axes(beside[0]))
        if facts is None:
            continue
        types = [x.dtype for x in {b.source for b in inputs}]
        nbytes = sum((d.compute if across else d).nbytes for d in types)
        if across:
            runs = _run_across(row, [b for b in inputs if b.fast in reduced_axes(row)])
        else:
            runs = _runs(row, inputs)
        for run in runs:
            length = math.prod(constant_value(row.op.operands[0].shape[a]) or 0 for a in run)
            strip = strip_of_tile if across else strip_of_columns
            width = strip(facts, length, nbytes, target)
            if width:
                out[row] = run, Partition.by_length(length, width, is_strip=True)
                break
    return out


def _is_tile(t: Tensor, fusion: Fusion, _: Target) -> bool:
    """Whether what a reduction reduces is needed again, and is made of inputs of which one is fast
    along an axis that is reduced, another along one that is kept."""
    facts = PartitionFacts.of(t.op.operands[0], reduced_axes(t))
    return facts is not None and facts.is_crossed and is_read_again(t, facts.total, fusion)


def _is_held(t: Tensor, fusion: Fusion, target: Target) -> bool:
    """Whether blocks hold the columns that a reduction reduces, as all that needs them begins at
    words in every row."""
    facts = PartitionFacts.of(t.op.operands[0], reduced_axes(t))
    if facts is None or facts.is_inner or facts.period > 1:
        return False
    return is_held(t, facts, fusion, target)


def _runs(row: Tensor, inputs: Sequence[Behind[Tensor]]) -> list[tuple[int, ...]]:
    """The fast axes that a reduction reduces, slow ones first: those along which all inputs lie in
    one run, then all that it reduces. None where some input is fast along another axis."""
    sizes = constant_shape(row.op.operands[0])
    if sizes is None or not inputs:
        return []
    first = inputs[0].apart
    own = sorted((a for a in reduced_axes(row) if sizes[a] > 1), key=lambda a: -first.get(a, 0))
    start, length = len(own), 1
    while start and all(b.apart.get(own[start - 1]) == length for b in inputs):
        start -= 1
        length *= sizes[own[start]]
    if start == len(own):
        return []
    runs = dict.fromkeys((tuple(own[start:]), tuple(own)))
    return [_with_units(run, row, sizes) for run in runs]


def _run_across(row: Tensor, inputs: Sequence[Behind[Tensor]]) -> list[tuple[int, ...]]:
    """The same where other inputs lie across them: as many of the fast axes as are in the order of
    the value, so that nothing is moved, then the whole run."""
    runs = _runs(row, inputs)
    run = runs[0] if runs else ()
    in_order = next((k for k in range(len(run)) if list(run[k:]) == sorted(run[k:])), 0)
    return [*dict.fromkeys((run[in_order:], run))] if run else []


def _with_units(run: tuple[int, ...], row: Tensor, sizes: Sequence[int]) -> tuple[int, ...]:
    """A run with the axes of one element between its own, so that these need not be moved."""
    if list(run) != sorted(run):
        return run
    between = range(run[0], run[-1] + 1)
    return tuple(a for a in between if a in run or (sizes[a] == 1 and a in reduced_axes(row)))


def _in_strips(
    t: Tensor, source: Tensor, run: tuple[int, ...], strips: Partition, *, last: bool
) -> Tensor:
    """A reduction over the strips of a run, then over these and all other axes. The results of a
    strip lie side by side, or, `last`, those of a row."""
    assert isinstance(t.op, Reduce)
    fn = t.op.fn
    wide = build.cast(source, t.dtype.compute)
    parts = as_parts(wide, run, strips, reduction_identity(fn, wide.dtype), last=last)
    out = reduce_in_parts(fn, parts)
    left = [a for a in range(source.ndim) if a not in run]
    rest = tuple(k for k, a in enumerate(left) if a in t.op.axes)
    return build.cast(build.reduce(fn, out, rest) if rest else out, t.dtype)
