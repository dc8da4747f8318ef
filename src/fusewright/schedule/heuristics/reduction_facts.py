"""What a reduction schedule decides from: sizes, strides, registers and shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.axes.classes import AxisClass
from fusewright.axes.frames import Pinned
from fusewright.core.expr import Expr, Int, constant_value, is_multiple, mod, variables
from fusewright.core.substitution import estimate, substitute
from fusewright.errors import InternalError
from fusewright.fusion.inputs_behind import reduces_fast_axis
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.common import (
    aligned,
    by_stride,
    full_width,
    global_accesses,
    is_wide,
    is_wide_read,
    merge_all,
    numel,
    split,
)
from fusewright.schedule.heuristics.reduction_plans import ReductionFacts, ReductionPlan
from fusewright.schedule.inline import consumers_of
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop
from fusewright.schedule.propagate import transform_like


def reference_of(flow: Dataflow) -> Stage:
    for s in flow.stages:
        if s.is_reduction:
            return s
    raise InternalError("a reduction schedule for a group without reductions")


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
        vector = widest_vector(flow, reference, kept, reduced, inner=inner)
        if not inner and 4 * vector <= _full_width(flow):
            cut = widest_vector(flow, reference, kept, reduced, inner=inner, anywhere=True)
            vector = max(vector, cut)
    constant = all(constant_value(c.extent) is not None for c in reference.frame.reduced)
    held = sum(c.dtype.nbytes for c in held_copies(flow, reference, copies))
    again = constant and _is_normalisation(flow, reference)
    columns = estimate(reduced.axis.extent) if reduced is not None else 1
    return ReductionFacts(inner, columns, numel(reference.shape), vector, held, is_read_again=again)


def held_copies(flow: Dataflow, reference: Stage, copies: list[Stage]) -> list[Stage]:
    """The copies of inputs that are worth holding between passes: those that a reduction needs,
    directly or not, and that differ from row to row and along the row. Scalars of a row and vectors
    that all rows share are found in a cache when they are read again."""
    needed: set[Stage] = set()
    stack = [s for s in flow.stages if s.is_reduction]
    while stack:
        for o in stack.pop().operands:
            if o not in needed:
                needed.add(o)
                stack.append(o)
    kept = [c for c in reference.frame.output if c.extent != Int(1)]
    return [
        c
        for c in copies
        if c in needed
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


def aligned_columns(
    flow: Dataflow, reference: Stage, kept: Loop | None, reduced: Loop | None
) -> Loop | None:
    """The loop over the reduced axes, counted from an aligned address in every row, where rows
    begin at addresses that allow vectors of a quarter of 16 bytes at most."""
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


def _uneven_strides(
    flow: Dataflow, reference: Stage, rows: tuple[AxisClass, ...], columns: Loop
) -> dict[AxisClass, Expr]:
    """By how much the addresses of rows grow along axes that do not keep them aligned."""
    strides = _row_strides(flow, reference, rows, columns)
    width = _full_width(flow)
    return {c: stride for c, stride in strides.items() if not is_multiple(stride, width)}


def _aligned_by(
    flow: Dataflow, reference: Stage, rows: Loop, columns: Loop, uneven: tuple[Loop, Expr]
) -> Loop:
    """The columns counted from an aligned address, where `uneven` rows follow each other at a
    distance; as they are where vectors of more than a quarter of 16 bytes fit without, and where
    that helps no access or some value cannot follow."""
    width = _full_width(flow)
    plain = widest_vector(flow, reference, rows, columns, inner=True)
    if 4 * plain > width:
        return columns
    even = aligned(flow, uneven[0], columns, uneven[1], width)
    strays = _strays(flow, reference, (rows, even)) - _strays(flow, reference, (rows, columns))
    better = widest_vector(flow, reference, rows, even, inner=True) > plain
    return even if better and not strays else columns


def padded_kept(flow: Dataflow, reference: Stage, reduced: Loop | None) -> Loop | None:
    """One loop over the kept axes, the fastest one innermost. Where threads take neighbours along
    it and vectors would run from one row into the next, rows are counted from an aligned address
    if all rows of a part begin alike, else they end with a part of a vector."""
    axes = [x for x in by_stride(flow, reference.frame.output) if x.axis.extent != Int(1)]
    kept = merge_all(flow, axes)
    if len(axes) < 2 or is_inner(reference):
        return kept
    width = _full_width(flow)
    if 4 * widest_vector(flow, reference, kept, reduced, inner=False) > width:
        return kept
    if reduced is not None:
        even = aligned_parts(flow, reference, axes[:-1], reduced, axes[-1])
        if even is not axes[-1]:
            return merge_all(flow, [*axes[:-1], even])
    fast = axes[-1].axis
    padded = Loop(flow.graph.resize(fast, 0, mod(-fast.extent, width)))
    candidate = merge_all(flow, [*axes[:-1], padded])
    cut = widest_vector(flow, reference, candidate, reduced, inner=False, anywhere=True)
    return candidate if 4 * cut > width else kept


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


def _full_width(flow: Dataflow) -> int:
    """Lanes that the smallest input allows."""
    inputs = [o for s in computed(flow.stages) for o in s.operands if o.is_input]
    return full_width(inputs, [*inputs, *flow.outputs])


def widest_vector(
    flow: Dataflow,
    reference: Stage,
    kept: Loop | None,
    reduced: Loop | None,
    *,
    inner: bool,
    anywhere: bool = False,
) -> int:
    """Lanes along the reduced axes (`inner`) or the kept ones that all large accesses allow; with
    `anywhere` also reads that begin at any address."""
    lanes, other = (reduced, kept) if inner else (kept, reduced)
    assert lanes is not None
    width = _full_width(flow)
    while width > 1 and not _allows(flow, reference, other, lanes, width, anywhere):
        width //= 2
    return width


def _allows(
    flow: Dataflow,
    reference: Stage,
    other: Loop | None,
    lanes: Loop,
    width: int,
    anywhere: bool,
) -> bool:
    lane = flow.graph.variable("lane", Int(width))
    with flow.trial():
        outer, inside = split(flow, lanes, width)
        reference.loops = tuple(x for x in (other, outer, inside) if x is not None)
        transform_like(flow, reference, align=True)
        accesses = global_accesses(flow, inside.axis, lane)
    large = max((numel(a.tensor.shape) for a in accesses), default=1) // 2
    wide = [
        is_wide(a, lane, width) or (anywhere and is_wide_read(a, lane, width))
        for a in accesses
        if numel(a.tensor.shape) >= large
    ]
    return bool(wide) and all(wide)


def stored_registers(
    flow: Dataflow, reference: Stage, copies: list[Stage], plan: ReductionPlan
) -> int:
    """Registers a thread would need for the values with reduced axes that several passes read."""
    users = consumers_of(flow)
    elements = plan.unrolled * plan.vector
    words = 0
    for s in computed(flow.stages):
        wide = any(flow.graph.depends(c, reference.frame.reduced) for c in s.frame.output)
        several = len({u for u in users[s] if u.is_reduction}) > 0 and len(users[s]) > 1
        if wide and s.memory is Memory.LOCAL and (s in copies or several):
            nbytes = s.dtype.nbytes if s in copies else max(s.dtype.nbytes, 4)
            words += -(-elements * nbytes // 4)
    return words
