"""rfactor: one reduction becomes two, with the dataflow between them spelled in ordinary ops.

    s = sum(x, R)   ->   p = sum(split(pad(x, R)), chosen);   s = sum(p, rest)

The reduced axes are padded with the reduction's identity to the extents of their loops and
reshaped to them, so that `evaluate` of the new dataflow is the meaning of the schedule, and every
loop of `p` is an axis of a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.axes.frames import Frame
from fusewright.axes.paths import Refusal, domain_path
from fusewright.core.conditions import TRUE, Cond, less
from fusewright.core.expr import ZERO, Expr, Int, Var, constant_value, parts_of, variables
from fusewright.core.identities import reduction_identity
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import Permute, Reduce, Reshape, Resize, Shape
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.nest import reduced_loops
from fusewright.schedule.parallel import Loop


@dataclass(frozen=True, slots=True)
class ReductionGroup:
    """Reduced axes (positions among the reduced) and the loops over them, outer stride first."""

    axes: tuple[int, ...]
    loops: tuple[int, ...]
    size: Expr
    padded: Expr


def rfactor(flow: Dataflow, s: Stage, chosen: Sequence[int]) -> Stage:
    """Splits the reduction `s`; the new stage reduces the loops `chosen`. Raises ScheduleError
    when the reducing loops are not a plain radix split of the (merged) reduced axes."""
    assert isinstance(s.op, Reduce)
    graph = flow.graph
    reducing = reduced_loops(graph, s)
    groups = _groups(graph, s, reducing)
    operand = s.operands[0]
    source, kept_rank = _reorder_operand(flow, s)
    source = _flatten(flow, s, source, kept_rank, groups)
    source = _pad(flow, s, source, kept_rank, groups)
    order = [i for g in groups for i in g.loops]
    extents = tuple(s.loops[i].axis.extent for i in order)
    kept = s.shape
    spread = _append(flow, source, f"{s.name}_split", (*kept, *extents), Reshape(()))
    inner = tuple(kept_rank + k for k, i in enumerate(order) if i in chosen)
    rest = [i for i in order if i not in chosen]
    shape = (*kept, *(s.loops[i].axis.extent for i in rest))
    partial = _append(flow, spread, f"{s.name}_rf", shape, Reduce((), s.op.fn, inner))
    partial.dtype = s.dtype
    _rebase(flow, s, partial, order, chosen)
    while spread is not operand:
        spread.loops = tuple(Loop(x.axis, x.parallel) for x in partial.loops)
        spread = spread.operands[0]
    return partial


def _append(
    flow: Dataflow, source: Stage, name: str, shape: Shape, op: Permute | Reshape | Resize | Reduce
) -> Stage:
    stage = flow.insert(source, name, shape, source.dtype, op, [source])
    flow.attach(stage)
    return stage


def _reorder_operand(flow: Dataflow, s: Stage) -> tuple[Stage, int]:
    """The operand with its kept axes first."""
    assert isinstance(s.op, Reduce)
    source = s.operands[0]
    kept = [a for a in range(len(source.shape)) if a not in s.op.axes]
    order = (*kept, *s.op.axes)
    if order == tuple(range(len(order))):
        return source, len(kept)
    shape = tuple(source.shape[a] for a in order)
    return _append(flow, source, f"{s.name}_perm", shape, Permute((), order)), len(kept)


def _flatten(
    flow: Dataflow, s: Stage, source: Stage, kept: int, groups: list[ReductionGroup]
) -> Stage:
    shape = (*source.shape[:kept], *(g.size for g in groups))
    if len(shape) == len(source.shape):
        return source
    return _append(flow, source, f"{s.name}_flat", shape, Reshape(()))


def _pad(flow: Dataflow, s: Stage, source: Stage, kept: int, groups: list[ReductionGroup]) -> Stage:
    assert isinstance(s.op, Reduce)
    high = (ZERO,) * kept + tuple(g.padded - g.size for g in groups)
    if all(h == ZERO for h in high):
        return source
    fill = reduction_identity(s.op.fn, source.dtype)
    shape = (*source.shape[:kept], *(g.padded for g in groups))
    op = Resize((), (ZERO,) * len(high), high, fill)
    return _append(flow, source, f"{s.name}_pad", shape, op)


def _groups(graph: AxisGraph, s: Stage, reducing: tuple[int, ...]) -> list[ReductionGroup]:
    loop_vars = [Var(f"i{i}", 0, x.axis.extent - 1) for i, x in enumerate(s.loops)]
    loops = [(x.axis, v) for x, v in zip(s.loops, loop_vars, strict=True)]
    path = domain_path(graph, loops, s.frame.domain)
    if isinstance(path, Refusal):
        raise ScheduleError(f"rfactor({s.name}): {path.reason}")
    values = path.values[len(s.frame.output) :]
    groups: list[ReductionGroup] = []
    pending = list(range(len(values)))
    allowed: list[Cond] = []
    while pending:
        axes, touched = _component(pending, values, loop_vars, reducing)
        pending = [a for a in pending if a not in axes]
        flat: Expr = ZERO
        size: Expr = Int(1)
        for a in axes:
            flat = flat * s.frame.reduced[a].extent + values[a]
            size = size * s.frame.reduced[a].extent
        order, padded = _radix(s, flat, touched, loop_vars)
        allowed.append(less(flat, size))
        groups.append(ReductionGroup(tuple(axes), tuple(order), size, padded))
    if [a for g in groups for a in g.axes] != list(range(len(values))):
        raise ScheduleError(
            f"rfactor({s.name}): its reduced axes are merged out of order; merge neighbours"
        )
    own = {loop_vars[i] for i in reducing}
    for p in path.predicates:
        mentions = any(v in own for v in variables(p))
        if mentions and p not in allowed and p != TRUE:
            raise ScheduleError(
                f"rfactor({s.name}): its loops need the extra condition {p}; split by a factor "
                "that divides, or merge the reduced axes before splitting"
            )
    return groups


def _component(
    pending: list[int], values: Sequence[Expr], loop_vars: list[Var], reducing: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """The first pending axis, the axes that share a loop with it, and those loops."""
    axes = [pending[0]]
    loops: list[int] = []
    grown = True
    while grown:
        grown = False
        for i in reducing:
            if i not in loops and any(loop_vars[i] in variables(values[a]) for a in axes):
                loops.append(i)
                grown = True
        for a in pending:
            if a not in axes and any(loop_vars[i] in variables(values[a]) for i in loops):
                axes.append(a)
                grown = True
    return sorted(axes), loops


def _radix(s: Stage, flat: Expr, loops: list[int], loop_vars: list[Var]) -> tuple[list[int], Expr]:
    """The loops by falling stride in `flat`, and the product of their extents."""
    strides: dict[int, int] = {}
    constant, terms = parts_of(flat)
    for t in terms:
        found = [i for i in loops if t.atoms == (loop_vars[i],)]
        if len(found) != 1 or constant:
            raise ScheduleError(
                f"rfactor({s.name}): the reduced index {flat} is not a sum of its loops; leave its "
                "loops as splits of reduced axes and merges of neighbours make them"
            )
        strides[found[0]] = t.coefficient
    order = sorted(loops, key=lambda i: -strides.get(i, 0))
    expected = 1
    padded: Expr = Int(1)
    for i in reversed(order):
        extent = s.loops[i].axis.extent
        size = constant_value(extent)
        if strides.get(i) != expected or (size is None and i is not order[0]):
            raise ScheduleError(
                f"rfactor({s.name}): loop {i} of {extent} leaves gaps in {flat}, or follows a size "
                "that is not constant; split by constants that divide"
            )
        expected *= size or 1
        padded = padded * extent
    return order, padded


def _rebase(
    flow: Dataflow, s: Stage, partial: Stage, order: list[int], chosen: Sequence[int]
) -> None:
    """Makes `s` reduce the rest of `partial`, and gives both the loops that `s` had."""
    assert isinstance(s.op, Reduce)
    graph = flow.graph
    rank = len(s.shape)
    rest = [i for i in order if i not in chosen]
    old_loops = s.loops
    reduced = tuple(graph.axis(old_loops[i].axis.extent, f"{s.name}.rf") for i in rest)
    s.op = Reduce((), s.op.fn, tuple(range(rank, rank + len(rest))))
    s.operands = (partial,)
    s.frame = Frame(s.frame.output, reduced, ((*s.frame.output, *reduced),))
    graph.register_domain(s.frame.domain)
    flow.sort()
    flow.retie()
    s.inline_depth = 0
    own = dict(zip(rest, s.frame.reduced, strict=True))
    s.loops = tuple(
        Loop(own.get(i, x.axis), x.parallel) for i, x in enumerate(s.loops) if i not in chosen
    )
    inner = dict(zip([i for i in order if i in chosen], partial.frame.reduced, strict=True))
    outer = dict(zip(rest, partial.frame.output[rank:], strict=True))
    partial.loops = tuple(
        Loop(_own_axis(graph, partial, i, x, inner, outer), x.parallel)
        for i, x in enumerate(old_loops)
    )


def _own_axis(
    graph: AxisGraph,
    partial: Stage,
    i: int,
    loop: Loop,
    inner: dict[int, AxisClass],
    outer: dict[int, AxisClass],
) -> AxisClass:
    found = inner.get(i) or outer.get(i)
    return found if found is not None else graph.normal(loop.axis)
