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
from fusewright.core.expr import Expr, Int, constant_value, is_multiple, mod, variables
from fusewright.core.substitution import estimate, substitute
from fusewright.fusion.row_alignment import are_short
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.common import (
    accessors,
    by_stride,
    fast_axis,
    global_accesses,
    merge_all,
    numel,
    split,
)
from fusewright.schedule.heuristics.reduction_facts import (
    inputs_width,
    is_inner,
    widest_vectors,
)
from fusewright.schedule.heuristics.space import joined_axes
from fusewright.schedule.parallel import Loop
from fusewright.schedule.propagate import transform_like

LEAST_WORDS = 4
"""Words of 16 bytes that a row should have: of fewer, those that are not whole are too many."""


def aligned_columns(
    flow: Dataflow, reference: Stage, kept: Loop | None, reduced: Loop | None
) -> Loop | None:
    """The loop over the reduced axes, counted from an aligned address in every row, where rows
    begin at addresses that allow short vectors only. Reduced axes that memory does not join are
    rows, too, but for the last."""
    if reduced is None or not is_inner(reference):
        return reduced
    others = by_stride(flow, reference.frame.output)
    width = inputs_width(flow)
    plain = widest_vectors(flow, reference, kept, reduced, inner=True).whole
    if not are_short(plain, width):
        return reduced
    joined = joined_axes(flow, reference, by_stride(flow, reference.frame.reduced), others)
    for axes in _rows_and_columns(flow, joined or [reduced]):
        if len(axes) < 2 or estimate(axes[-1].axis.extent) < LEAST_WORDS * width:
            axes = [reduced]
        for even in _even_columns(flow, reference, others, axes, width):
            whole = merge_all(flow, [*axes[:-1], even])
            if _helps(flow, reference, kept, (reduced, whole), plain):
                return whole
    return reduced


def _rows_and_columns(flow: Dataflow, joined: Sequence[Loop]) -> Iterator[list[Loop]]:
    """Reduced axes as memory joins them, of which only the first and the last vector may be no
    words, and, as other tensors may be read elsewhere, with the rows of the largest input apart."""
    yield [*joined]
    parts = _by_memory(flow, joined[-1])
    if len(parts) > 1:
        yield [*joined[:-1], *parts]


def _even_columns(
    flow: Dataflow, reference: Stage, kept: Sequence[Loop], axes: Sequence[Loop], width: int
) -> Iterator[Loop]:
    """The last of the reduced axes counted from an aligned address in the rows of the largest
    input, and in whole vectors that begin with each row, at any address."""
    columns, slow = axes[-1], axes[:-1]
    rows = tuple(x.axis for x in (*kept, *slow) if x.axis.extent != Int(1))
    uneven = _uneven_strides(flow, reference, rows, columns)
    several = merge_all(flow, by_stride(flow, tuple(uneven)))
    if several is not None:
        yield aligned(flow, several, columns, min(uneven.values(), key=estimate), width)
    yield Loop(flow.graph.resize(columns.axis, 0, mod(-columns.axis.extent, width)))


def _by_memory(flow: Dataflow, columns: Loop) -> list[Loop]:
    """Columns that are rows of the largest input, one behind the other, as rows and columns."""
    fast = fast_axis(flow)
    size = None if fast is None else constant_value(fast.extent)
    if size is None or not is_multiple(columns.axis.extent, size):
        return [columns]
    rows, row = split(flow, columns, size)
    return [rows, row] if row.axis is fast and rows.axis.extent != Int(1) else [columns]


def aligned_parts(
    flow: Dataflow, partial: Stage, parts: Sequence[Loop], each: Loop, columns: Loop
) -> Loop:
    """The same of the columns that partial results of parts of the rows keep: counted from an
    aligned address in the first row of a part, where all rows of a part begin alike; where inputs
    begin elsewhere than each other, counted as the largest result is, and read at any address."""
    width = inputs_width(flow)
    rows = merge_all(flow, [each, *parts])
    plain = widest_vectors(flow, partial, rows, columns, inner=True).whole
    if rows is None or not are_short(plain, width):
        return columns
    axes = (each.axis, *(x.axis for x in parts))
    has_words = estimate(columns.axis.extent) >= LEAST_WORDS * width
    for of_results in (False, True) if has_words else (False,):
        uneven = _uneven_strides(flow, partial, axes, columns, of_results=of_results)
        if len(uneven) != 1 or each.axis in uneven:
            continue
        ((moving, stride),) = uneven.items()
        even = aligned(flow, Loop(moving), columns, stride, width)
        if _helps(flow, partial, rows, (columns, even), plain, anywhere=of_results):
            return even
    return columns


def padded_kept(flow: Dataflow, reference: Stage, reduced: Loop | None) -> Loop | None:
    """One loop over the kept axes, the fastest one innermost. Where threads take neighbours along
    it and vectors would run from one row into the next, rows are counted from an aligned address
    if all rows of a part begin alike, else they end with a part of a vector; but where reads can be
    put together of two rows, so that all that is stored are whole words."""
    axes = by_stride(flow, reference.frame.output)
    kept = merge_all(flow, axes)
    if is_inner(reference):
        return kept
    axes = joined_axes(flow, reference, axes, by_stride(flow, reference.frame.reduced))
    if len(axes) < 2:
        return kept
    width = inputs_width(flow)
    plain, cut = widest_vectors(flow, reference, kept, reduced, inner=False)
    if not are_short(plain, width):
        return kept
    if not are_short(cut, width):
        return kept
    if reduced is not None:
        even = aligned_parts(flow, reference, axes[:-1], reduced, axes[-1])
        if even is not axes[-1]:
            return merge_all(flow, [*axes[:-1], even])
    for even in _ragged(flow, reference, axes, reduced, width):
        candidate = merge_all(flow, [*axes[:-1], even])
        found = widest_vectors(flow, reference, candidate, reduced, inner=False)
        if not are_short(found.cut, width):
            return candidate
    return kept


def _ragged(
    flow: Dataflow, reference: Stage, axes: Sequence[Loop], reduced: Loop | None, width: int
) -> Iterator[Loop]:
    """The last of some axes in whole vectors that begin with each row, and in words of the largest
    result: reads are cut out of two words, stores are not."""
    fast = axes[-1]
    yield Loop(flow.graph.resize(fast.axis, 0, mod(-fast.axis.extent, width)))
    rows = tuple(x.axis for x in (*axes[:-1], reduced) if x is not None)
    uneven = _uneven_strides(flow, reference, rows, fast, of_results=True)
    several = merge_all(flow, by_stride(flow, tuple(uneven)))
    if several is not None and (reduced is None or reduced.axis not in uneven):
        yield aligned(flow, several, fast, min(uneven.values(), key=estimate), width)


def even_rows(flow: Dataflow, reference: Stage, width: int) -> Iterator[Loop]:
    """Loops over all axes in which rows begin at aligned addresses: the last of the joined axes,
    the last two, and so on are taken as rows."""
    sized = joined_axes(flow, reference, reference.loops)
    stride: Expr = Int(1)
    for k in range(len(sized) - 1, 0, -1):
        stride = stride * sized[k].axis.extent
        rows, columns = merge_all(flow, sized[:k]), merge_all(flow, sized[k:])
        assert rows is not None and columns is not None
        even = aligned(flow, rows, columns, stride, width)
        if even.axis is not columns.axis:
            yield Loop(flow.graph.merge(rows.axis, even.axis))


def aligned(flow: Dataflow, rows: Loop, columns: Loop, stride: Expr, width: int) -> Loop:
    """A loop over the columns whose steps of `width` begin at multiples of it in memory in every
    row, where rows follow each other every `stride` elements; its first and last steps reach
    beyond the row."""
    skewed = flow.graph.skew(columns.axis, rows.axis, stride, width)
    beyond = mod(-skewed.extent, width)
    return Loop(flow.graph.resize(skewed, 0, beyond))


def _helps(
    flow: Dataflow,
    reference: Stage,
    rows: Loop | None,
    columns: tuple[Loop, Loop | None],
    plain: int,
    *,
    anywhere: bool = True,
) -> bool:
    """Whether the second of these columns allows longer vectors than `plain` elements, with
    `anywhere` reads that begin at any address, and all values follow that follow the first."""
    before, after = columns
    found = widest_vectors(flow, reference, rows, after, inner=True)
    width = found.cut if anywhere else found.whole
    strays = _strays(flow, reference, (rows, after)) - _strays(flow, reference, (rows, before))
    return width > plain and not strays


def _uneven_strides(
    flow: Dataflow,
    reference: Stage,
    rows: tuple[AxisClass, ...],
    columns: Loop,
    *,
    of_results: bool = False,
) -> dict[AxisClass, Expr]:
    """By how much the addresses of rows grow along axes that do not keep them aligned."""
    strides = _row_strides(flow, reference, rows, columns, of_results=of_results)
    width = inputs_width(flow)
    return {c: stride for c, stride in strides.items() if not is_multiple(stride, width)}


def _row_strides(
    flow: Dataflow,
    reference: Stage,
    rows: tuple[AxisClass, ...],
    columns: Loop,
    *,
    of_results: bool,
) -> dict[AxisClass, Expr]:
    """By how much the address of an access to the largest tensor, or the largest result, grows with
    each of these axes; without those along which it grows unevenly."""
    lane = flow.graph.variable("lane", columns.axis.extent)
    with flow.trial():
        reference.loops = (*(Loop(c) for c in rows), columns)
        transform_like(flow, reference, accessors(flow), align=True)
        loops = {s: s.loops for s in flow.stages}
        accesses = global_accesses(flow, columns.axis, lane)
    if of_results:
        accesses = [a for a in accesses if a.tensor is a.stage]
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


def _strays(flow: Dataflow, reference: Stage, loops: tuple[Loop | None, ...]) -> set[Stage]:
    """The stages that could not take these loops."""
    with flow.trial():
        reference.loops = tuple(x for x in loops if x is not None)
        return set(transform_like(flow, reference, align=True))
