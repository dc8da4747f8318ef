"""Loops in which rows are counted from an aligned address, and whether reductions take them.

    x[r, :], 13 elements a row, vectors of 4

    as rows lie           |0123|4567|89AB|C012|3456|..    vectors run from one row into the next
    from their words      |0123|4567|89AB|C   |           of the first row
                          | 012|3456|789A|BC  |           of the second, which begins in a word

All vectors of a row are then words; its first and its last one have fewer elements. That pays where
vectors are short otherwise (`fusion/row_alignment.py`), where it helps accesses, and where all
values can follow. Elementwise groups weigh such loops against others by the bytes in whole words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import Expr, Int, is_multiple, mod, variables
from fusewright.core.substitution import estimate, substitute
from fusewright.fusion.row_alignment import are_short
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.common import by_stride, global_accesses, merge_all, numel
from fusewright.schedule.heuristics.reduction_facts import inputs_width, is_inner, widest_vector
from fusewright.schedule.heuristics.space import joined_axes
from fusewright.schedule.parallel import Loop
from fusewright.schedule.propagate import transform_like


def aligned_columns(
    flow: Dataflow, reference: Stage, kept: Loop | None, reduced: Loop | None
) -> Loop | None:
    """The loop over the reduced axes, counted from an aligned address in every row, where rows
    begin at addresses that allow short vectors only."""
    if kept is None or reduced is None or not is_inner(reference):
        return reduced
    axes = tuple(c for c in reference.frame.output if c.extent != Int(1))
    uneven = _uneven_strides(flow, reference, axes, reduced)
    rows = merge_all(flow, by_stride(flow, tuple(uneven)))
    if rows is None:
        return reduced
    return _aligned_by(flow, reference, kept, reduced, (rows, min(uneven.values(), key=estimate)))


def aligned_parts(
    flow: Dataflow, partial: Stage, parts: Sequence[Loop], each: Loop, columns: Loop
) -> Loop:
    """The same of the columns that partial results of parts of the rows keep: counted from an
    aligned address in the first row of a part, where all rows of a part begin alike."""
    axes = (each.axis, *(x.axis for x in parts))
    uneven = _uneven_strides(flow, partial, axes, columns)
    rows = merge_all(flow, [each, *parts])
    if rows is None or len(uneven) != 1 or each.axis in uneven:
        return columns
    ((moving, stride),) = uneven.items()
    return _aligned_by(flow, partial, rows, columns, (Loop(moving), stride))


def padded_kept(flow: Dataflow, reference: Stage, reduced: Loop | None) -> Loop | None:
    """One loop over the kept axes, the fastest one innermost. Where threads take neighbours along
    it and vectors would run from one row into the next, rows are counted from an aligned address
    if all rows of a part begin alike, else they end with a part of a vector."""
    axes = by_stride(flow, reference.frame.output)
    kept = merge_all(flow, axes)
    if is_inner(reference):
        return kept
    axes = joined_axes(flow, reference, axes, by_stride(flow, reference.frame.reduced))
    if len(axes) < 2:
        return kept
    width = inputs_width(flow)
    if not are_short(widest_vector(flow, reference, kept, reduced, inner=False), width):
        return kept
    if reduced is not None:
        even = aligned_parts(flow, reference, axes[:-1], reduced, axes[-1])
        if even is not axes[-1]:
            return merge_all(flow, [*axes[:-1], even])
    fast = axes[-1].axis
    padded = Loop(flow.graph.resize(fast, 0, mod(-fast.extent, width)))
    candidate = merge_all(flow, [*axes[:-1], padded])
    cut = widest_vector(flow, reference, candidate, reduced, inner=False, anywhere=True)
    return kept if are_short(cut, width) else candidate


def even_rows(flow: Dataflow, reference: Stage, width: int) -> Iterator[Loop]:
    """Loops over all axes in which rows begin at aligned addresses: the last of the joined axes,
    the last two, and so on are taken as rows."""
    sized = joined_axes(flow, reference, reference.loops)
    stride: Expr = Int(1)
    for k in range(len(sized) - 1, 0, -1):
        stride = stride * sized[k].axis.extent
        rows, columns = merge_all(flow, sized[:k]), merge_all(flow, sized[k:])
        assert rows is not None and columns is not None
        even = _aligned(flow, rows, columns, stride, width)
        if even.axis is not columns.axis:
            yield Loop(flow.graph.merge(rows.axis, even.axis))


def _aligned(flow: Dataflow, rows: Loop, columns: Loop, stride: Expr, width: int) -> Loop:
    """A loop over the columns whose steps of `width` begin at multiples of it in memory in every
    row, where rows follow each other every `stride` elements; its first and last steps reach
    beyond the row."""
    skewed = flow.graph.skew(columns.axis, rows.axis, stride, width)
    beyond = mod(-skewed.extent, width)
    return Loop(flow.graph.resize(skewed, 0, beyond))


def _aligned_by(
    flow: Dataflow, reference: Stage, rows: Loop, columns: Loop, uneven: tuple[Loop, Expr]
) -> Loop:
    """The columns counted from an aligned address, where `uneven` rows follow each other at a
    distance; as they are where vectors that are long enough fit without, and where that helps no
    access or some value cannot follow."""
    width = inputs_width(flow)
    plain = widest_vector(flow, reference, rows, columns, inner=True)
    if not are_short(plain, width):
        return columns
    even = _aligned(flow, uneven[0], columns, uneven[1], width)
    strays = _strays(flow, reference, (rows, even)) - _strays(flow, reference, (rows, columns))
    better = widest_vector(flow, reference, rows, even, inner=True) > plain
    return even if better and not strays else columns


def _uneven_strides(
    flow: Dataflow, reference: Stage, rows: tuple[AxisClass, ...], columns: Loop
) -> dict[AxisClass, Expr]:
    """By how much the addresses of rows grow along axes that do not keep them aligned."""
    strides = _row_strides(flow, reference, rows, columns)
    width = inputs_width(flow)
    return {c: stride for c, stride in strides.items() if not is_multiple(stride, width)}


def _row_strides(
    flow: Dataflow, reference: Stage, rows: tuple[AxisClass, ...], columns: Loop
) -> dict[AxisClass, Expr]:
    """By how much the address of an access to the largest tensor grows with each of these axes;
    without those along which it grows unevenly."""
    lane = flow.graph.variable("lane", columns.axis.extent)
    with flow.trial():
        reference.loops = (*(Loop(c) for c in rows), columns)
        transform_like(flow, reference, align=True)
        loops = {s: s.loops for s in flow.stages}
        accesses = global_accesses(flow, columns.axis, lane)
    if not accesses:
        return {}
    largest = max(accesses, key=lambda a: numel(a.tensor.shape))
    strides: dict[AxisClass, Expr] = {}
    for v in variables(largest.address):
        if v not in largest.variables:
            continue  # a size
        step = substitute(largest.address, {v: v + 1}) - largest.address
        loop = loops[largest.stage][largest.variables.index(v)]
        if loop.axis in rows and not variables(step):
            strides[loop.axis] = step
    return strides


def _strays(flow: Dataflow, reference: Stage, loops: tuple[Loop, ...]) -> set[Stage]:
    """The stages that could not take these loops."""
    with flow.trial():
        reference.loops = loops
        return set(transform_like(flow, reference, align=True))
