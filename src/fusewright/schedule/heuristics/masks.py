"""Under which conditions of positions what a stage reads is looked at: loads of what a mask drops
do not take place (`kir/passes/guard_masked.py`), and ask memory for nothing."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.axes.classes import AxisClass
from fusewright.axes.paths import Refusal, domain_path
from fusewright.core.conditions import FALSE, TRUE, Cond, all_of, any_of, negate
from fusewright.core.expr import Expr, Int
from fusewright.core.positions import Place, place_of
from fusewright.fusion.ir import Broadcast, Constant, Iota, Permute, Pointwise, Reshape
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.views import View, operand


def looked_at(flow: Dataflow, s: Stage, variables: Sequence[Expr]) -> Cond:
    """The condition, over values of its loops, under which some element that a stage computes
    reaches a result, as far as masks by position decide that: those that its readers apply in the
    same loops."""
    if not any(isinstance(t.op, Iota) for t in flow.stages):
        return TRUE
    return _looked_at(flow, s, s, variables)


def _looked_at(flow: Dataflow, first: Stage, s: Stage, variables: Sequence[Expr]) -> Cond:
    readers = flow.consumers(s)
    if not readers or s in flow.outputs:
        return TRUE
    found = FALSE
    for r in readers:
        if [x.axis for x in r.loops] != [x.axis for x in first.loops] or r.is_reduction:
            return TRUE
        own = _chosen(flow, r, s, variables)
        found = any_of((found, all_of((own, _looked_at(flow, first, r, variables)))))
        if found == TRUE:
            return TRUE
    return found


def _chosen(flow: Dataflow, r: Stage, s: Stage, variables: Sequence[Expr]) -> Cond:
    """When a reader takes what it reads of a stage."""
    sides = [k for k, o in enumerate(r.operands) if o is s]
    if not isinstance(r.op, Pointwise) or r.op.fn != "where" or len(sides) != 1 or sides == [0]:
        return TRUE
    loops = [(x.axis, v) for x, v in zip(r.loops, variables, strict=True)]
    path = domain_path(flow.graph, loops, r.frame.domain)
    if isinstance(path, Refusal):
        return TRUE
    read = operand(flow.graph, View(r, tuple(variables), path), 0)
    condition = _place(r.operands[0], read.coordinates)
    if not isinstance(condition, Cond):
        return TRUE
    return condition if sides == [1] else negate(condition)


def _place(s: Stage, coordinates: Sequence[Expr | None]) -> Place | None:
    """What a stage holds at these coordinates, if positions decide it."""
    match s.op:
        case Iota(axis=axis):
            return coordinates[axis]
        case Constant(value=value) if isinstance(value, int) and not isinstance(value, bool):
            return Int(value)
        case Pointwise(fn=fn):
            operands = [_place(o, _read(s, k, coordinates)) for k, o in enumerate(s.operands)]
            return place_of(fn, operands, s.dtype)
        case Broadcast() | Reshape() | Permute():
            return _place(s.operands[0], _read(s, 0, coordinates))
        case _:
            return None


def _read(s: Stage, position: int, coordinates: Sequence[Expr | None]) -> list[Expr | None]:
    """Where a stage reads an operand, along axes that are its own; None for others."""
    own = dict(zip(s.frame.output, coordinates, strict=True))
    return [own.get(c) if isinstance(c, AxisClass) else None for c in s.frame.operands[position]]
