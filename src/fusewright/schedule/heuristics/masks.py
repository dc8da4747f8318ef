"""Under which conditions of positions what a stage reads is looked at: loads of what a mask drops
do not take place (`kir/passes/guard_masked.py`), and ask memory for nothing; what the lanes of a
vector have in common where all are dropped is computed once (`kir/passes/skip_masked.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusewright.axes.classes import AxisClass
from fusewright.axes.paths import Refusal, domain_path
from fusewright.core.conditions import FALSE, TRUE, Cond, all_of, any_of, negate
from fusewright.core.expr import Expr, Int
from fusewright.core.positions import Place, place_of
from fusewright.fusion.ir import Broadcast, Constant, Iota, Permute, Pointwise, Reshape
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.parallel import Parallel, trips_of
from fusewright.schedule.views import View, operand

MOST_KEPT = 0.4
"""The share of vectors with a lane that is kept, above which too few are dropped for branches: what
`skip_masked` asks for, with eight lanes of a softmax."""


def looked_at(flow: Dataflow, s: Stage, variables: Sequence[Expr]) -> Cond:
    """The condition, over values of its loops, under which some element that a stage computes
    reaches a result, as far as masks by position decide that: those that its readers apply in the
    same loops."""
    if not any(isinstance(t.op, Iota) for t in flow.stages):
        return TRUE
    return _looked_at(flow, s, s, variables)


def computed_shares(flow: Dataflow, kept: Mapping[Stage, float]) -> dict[Stage, float]:
    """The share of the work of stages that is left where lanes of a vector that a mask drops are
    one: of those that compute with what stages read, of whose vectors these shares have a lane that
    is kept. None in loops, in which the loads of the next trip would wait for a branch."""
    found = {s: share for s, share in kept.items() if share < MOST_KEPT and _is_open_vector(s)}
    held = dict(found)
    for s in flow.stages if found else ():
        own = [found[o] for o in s.operands if o in found]
        if own and s not in found and all(o in found or _is_alike(s, o) for o in s.operands):
            held[s] = max(own) + (1 - max(own)) / trips_of(s.loops[-1:])
            if isinstance(s.op, Pointwise) and s.memory is Memory.LOCAL:
                found[s] = max(own)
    return held


def is_masked(s: Stage) -> bool:
    """Whether a stage is what a mask by position leaves of a value, or a cast of it."""
    match s.op:
        case Pointwise(fn="cast" | "copy"):
            return is_masked(s.operands[0])
        case Pointwise(fn="where"):
            return _is_of_positions(s.operands[0])
        case _:
            return False


def _is_of_positions(s: Stage) -> bool:
    return isinstance(s.op, Iota | Constant) or (
        isinstance(s.op, Pointwise | Broadcast | Reshape | Permute)
        and all(map(_is_of_positions, s.operands))
    )


def _is_open_vector(s: Stage) -> bool:
    """Whether a stage is computed in vectors, and in no loop."""
    kinds = [x.parallel for x in s.loops if trips_of((x,)) > 1]
    return kinds[-1:] == [Parallel.VECTORIZE] and Parallel.SERIAL not in kinds


def _is_alike(s: Stage, o: Stage) -> bool:
    """Whether an operand is one for all lanes of a vector, or says which of them are kept."""
    if o.dtype.name == "bool":
        return True
    while isinstance(o.op, Broadcast | Reshape | Permute):
        o = o.operands[0]
    return isinstance(o.op, Constant) or s.loops[-1].axis not in [x.axis for x in o.loops]


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


def condition_of(s: Stage, coordinates: Sequence[Expr]) -> Cond | None:
    """The condition by which a stage chooses at these coordinates of its own, where positions
    decide it; None for what does not choose so."""
    if not isinstance(s.op, Pointwise) or s.op.fn != "where":
        return None
    found = _place(s.operands[0], _read(s, 0, coordinates))
    return found if isinstance(found, Cond) else None


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
