"""What a reduction schedule decides from: sizes, strides, registers and shared memory."""

from __future__ import annotations

import math
from typing import NamedTuple, cast

from fusewright.axes.classes import AxisClass
from fusewright.axes.contiguity import Fit
from fusewright.axes.cover import covers
from fusewright.axes.frames import Pinned
from fusewright.core.expr import Int, constant_value
from fusewright.core.substitution import estimate
from fusewright.errors import InternalError
from fusewright.fusion.inputs_behind import reduces_fast_axis
from fusewright.fusion.row_alignment import are_short
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.common import (
    accessors,
    by_stride,
    full_width,
    global_accesses,
    numel,
    split,
)
from fusewright.schedule.heuristics.held_values import instead_of
from fusewright.schedule.heuristics.masks import is_masked
from fusewright.schedule.heuristics.reduction_plans import ReductionFacts
from fusewright.schedule.heuristics.space import joined_axes
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop
from fusewright.schedule.propagate import transform_like
from fusewright.target import MAX_VECTOR_NBYTES

IN_WORDS = frozenset((Fit.WORDS,))
ANYWHERE = frozenset((Fit.WORDS, Fit.CUT, Fit.TAKEN, Fit.PIECES))
"""What vectors may be: whole words, or also cut, taken or put together out of several."""


def reference_of(flow: Dataflow) -> Stage:
    """The first reduction by whose loops all others come: one of some of the rows of another one
    has no loops for the rest. The first of all where none does."""
    reductions = [s for s in flow.stages if s.is_reduction]
    if not reductions:
        raise InternalError("a reduction schedule for a group without reductions")
    graph = flow.graph
    for s in reductions:
        if all(covers(graph, s.frame.domain, r.frame.domain) for r in reductions):
            return s
    return reductions[0]


def is_inner(reference: Stage) -> bool:
    """Whether the reduced axes hold the fast one of the largest tensor that is reduced."""
    return reduces_fast_axis(reference, lambda s: s.operands)


def facts_of(
    flow: Dataflow,
    reference: Stage,
    kept: Loop | None,
    reduced: Loop | None,
    copies: list[Stage],
) -> ReductionFacts:
    """What a reduction schedule decides from."""
    inner = is_inner(reference)
    vector = 1
    if (reduced if inner else kept) is not None:
        vector = vector_of_rows(flow, reference, kept, reduced, inner=inner)
    constant = all(constant_value(c.extent) is not None for c in reference.frame.reduced)
    kept_between = instead_of(flow, reference, held_copies(flow, reference, copies))
    held = [s.dtype.nbytes for s in kept_between]
    most = math.prod(c.extent.interval[1] or 0 for c in reference.frame.reduced)
    is_bounded = constant or (inner and most > 0)
    again = is_bounded and _is_normalisation(flow, reference)
    columns = estimate(reduced.axis.extent) if reduced is not None else 1
    return ReductionFacts(
        inner,
        columns,
        numel(reference.shape),
        vector,
        sum(held),
        is_read_again=again,
        neighbours=_neighbours(flow, reference),
        is_constant=constant,
        item_nbytes=max(held, default=MAX_VECTOR_NBYTES),
        is_masked=bool(kept_between) and all(map(is_masked, kept_between)),
        most=0 if constant else most,
        run_nbytes=_run_nbytes(flow, reference) if inner else 1 << 30,
    )


def _run_nbytes(flow: Dataflow, reference: Stage) -> int:
    """The bytes of a row that lie next to each other in the largest input, where rows are in
    several pieces."""
    reduced = by_stride(flow, reference.frame.reduced)
    if sum(x.axis.extent != Int(1) for x in reduced) < 2:
        return 1 << 30
    axes = joined_axes(flow, reference, reduced, by_stride(flow, reference.frame.output))
    largest = max(flow.inputs, key=lambda s: numel(s.shape), default=reference)
    return estimate(axes[-1].axis.extent) * largest.dtype.nbytes if len(axes) > 1 else 1 << 30


def _neighbours(flow: Dataflow, reference: Stage) -> int:
    """The kept elements that lie next to each other in the largest input."""
    kept = by_stride(flow, reference.frame.output)
    axes = joined_axes(flow, reference, kept, by_stride(flow, reference.frame.reduced))
    return estimate(axes[-1].axis.extent) if axes else 1


def held_copies(flow: Dataflow, reference: Stage, copies: list[Stage]) -> list[Stage]:
    """The copies of inputs that are worth holding between passes: those that a reduction needs,
    directly or not, and that differ from row to row and along the row. Scalars of a row, vectors
    that all rows share, and what repeats along a row are found in a cache when they are read again.
    """
    needed: set[Stage] = set()
    stack = [s for s in flow.stages if s.is_reduction]
    while stack:
        for o in stack.pop().operands:
            if o not in needed:
                needed.add(o)
                stack.append(o)
    kept = [c for c in reference.frame.output if c.extent != Int(1)]
    row = numel(tuple(c.extent for c in reference.frame.reduced))
    return [
        c
        for c in copies
        if c in needed
        and numel(c.shape) >= row
        and _varies(flow, c, reference.frame.reduced)
        and (not kept or _varies(flow, c, tuple(kept)))
    ]


def _varies(flow: Dataflow, s: Stage, axes: tuple[AxisClass, ...]) -> bool:
    """Whether what a stage reads from memory depends on some of the axes."""
    return any(
        not isinstance(index, AxisClass | Pinned) or flow.graph.depends(index, axes)
        for read in s.frame.operands
        for index in read
        if not isinstance(index, Pinned)
    )


def _is_normalisation(flow: Dataflow, reference: Stage) -> bool:
    """Whether anything that has the reduced axes is computed from a finished reduction, or two
    reductions follow each other: inputs are then needed more than once."""
    after: set[Stage] = set()
    for s in flow.stages:
        if any(o in after or o.is_reduction for o in s.operands):
            after.add(s)
    return any(
        flow.graph.depends(c, reference.frame.reduced) for s in after for c in s.frame.domain
    )


def inputs_width(flow: Dataflow) -> int:
    """Lanes that the smallest input allows."""
    inputs = [o for s in computed(flow.stages) for o in s.operands if o.is_input]
    return full_width(inputs, [*inputs, *flow.outputs])


def vector_of_rows(
    flow: Dataflow, reference: Stage, kept: Loop | None, reduced: Loop | None, *, inner: bool
) -> int:
    """The lanes that all large accesses allow, where these are few also with reads that begin at
    any address."""
    widest = widest_vectors(flow, reference, kept, reduced, inner=inner)
    return widest.cut if are_short(widest.whole, inputs_width(flow)) else widest.whole


class WidestVectors(NamedTuple):
    """Lanes of vectors that are whole words, and of reads that may begin at any address."""

    whole: int
    cut: int


def widest_vectors(
    flow: Dataflow, reference: Stage, kept: Loop | None, reduced: Loop | None, *, inner: bool
) -> WidestVectors:
    """The widest vectors along the reduced axes (`inner`) or the kept ones that all large accesses
    allow."""
    lanes, other = (reduced, kept) if inner else (kept, reduced)
    assert lanes is not None
    width, cut = inputs_width(flow), 1
    while width > 1:
        found = _fits(flow, reference, other, lanes, width)
        cut = max(cut, width if found <= ANYWHERE else 1)
        if found <= IN_WORDS:
            break
        width //= 2
    return WidestVectors(width, max(width, cut))


def _fits(
    flow: Dataflow, reference: Stage, other: Loop | None, lanes: Loop, width: int
) -> frozenset[Fit]:
    """How the large accesses lie in words of memory with so many lanes; as if narrow where there
    are none. Rules that look at one way after the other ask for the same lanes again."""
    key = ("fits", reference, other, lanes, width, tuple(flow.stages))
    found = flow.graph.fresh_memo().get(key)
    if found is None:
        found = _fits_of(flow, reference, other, lanes, width)
        flow.graph.fresh_memo()[key] = found
    return cast("frozenset[Fit]", found)


def _fits_of(
    flow: Dataflow, reference: Stage, other: Loop | None, lanes: Loop, width: int
) -> frozenset[Fit]:
    lane = flow.graph.variable("lane", Int(width))
    with flow.trial():
        outer, inside = split(flow, lanes, width)
        reference.loops = tuple(x for x in (other, outer, inside) if x is not None)
        transform_like(flow, reference, accessors(flow), align=True)
        accesses = global_accesses(flow, inside.axis, lane)
    least = max((numel(a.tensor.shape) for a in accesses), default=1) // 2
    large = [a for a in accesses if numel(a.tensor.shape) >= least]
    return frozenset(a.fit(lane, width) for a in large) or frozenset((Fit.NARROW,))
