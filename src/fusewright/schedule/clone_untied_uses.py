"""Clones of values that are read at places that cannot share one loop nest.

    e = f(x); y = concat(e * a, e * b)   ->   e1 = f(x); e2 = f(x); y = concat(e1 * a, e2 * b)
    i = iota(n); i[:, None] >= i         ->   i1 = iota(n); i2 = iota(n); i1[:, None] >= i2

A value that two readers need at different places of one line (two halves of a concat, a shifted
and an unshifted use) can be inlined into one of them only. Where it is cheap, the other gets a
clone of its own. Coordinates come first: one that is read along two axes ties these to each other,
and what stands between then seems to be read elsewhere.

    i = iota(n); t = table[i - i[:, None]]; y = where(i[:, None] > 0, x + t, 0)
        ->   i1 = iota(n); i2 = iota(n); i3 = iota(n); t = table[i1 - i2[:, None]]; ..
"""

from __future__ import annotations

from fusewright.axes.classes import AxisClass
from fusewright.fusion.ir import Iota, Pointwise, Take, TakeAlong, moves_data
from fusewright.memory import Memory
from fusewright.schedule.edits import edit
from fusewright.schedule.graph import Dataflow, Stage

MAX_CLONES = 64
"""Clones that compute. Those that only move values are addresses, and there may be more of them."""


@edit("clone_untied_uses")
def clone_untied_uses(flow: Dataflow) -> int:
    """Gives readers that are not tied to what they read a cone of their own: clones of the cheap
    values behind it that others read too. Before any loop is transformed: the axis graph is built
    again. Returns the number of clones that compute."""
    clones = 0
    tried: set[tuple[Stage, int]] = set()
    while clones < MAX_CLONES:
        use = next(
            (
                (s, k)
                for s in reversed(flow.stages)
                for k in range(len(s.operands))
                if (s, k) not in tried and is_loose(s, k)
            ),
            None,
        )
        if use is None:
            break
        if not tried and (owned := _own_coordinates(flow)):
            clones += owned
            continue
        tried.add(use)
        cone = _cone(flow, *use)
        if cone:
            _clone(flow, cone, *use)
            clones += sum(not moves_data(p.op) for p in cone)
    return clones


def _own_coordinates(flow: Dataflow) -> int:
    """Gives every reader of a coordinate, or of one that is moved, one of its own; the number of
    clones, moves among them."""
    count = 0
    coordinates: dict[Stage, list[Stage]] = {}
    for s in flow.stages:
        behind = [coordinates.get(o) for o in s.operands]
        if isinstance(s.op, Iota) or (behind and moves_data(s.op) and None not in behind):
            coordinates[s] = [p for cone in behind for p in cone or ()] + [s]
    for p in reversed(list(coordinates)):
        uses = [(s, k) for s in flow.consumers(p) for k, o in enumerate(s.operands) if o is p]
        for s, k in uses[1:]:
            cone = list(dict.fromkeys(coordinates[p]))
            _clone(flow, cone, s, k)
            count += len(cone)
    return count


def is_loose(s: Stage, position: int) -> bool:
    """Whether an axis of an operand is read at another class than its own."""
    p = s.operands[position]
    if p.is_input or p.is_virtual:
        return False
    return any(
        isinstance(index, AxisClass) and index is not axis and not axis.is_unit
        for index, axis in zip(s.frame.operands[position], p.frame.output, strict=True)
    )


def _is_cheap(p: Stage) -> bool:
    """Whether a value costs no more to make again than an element costs to read: what is computed
    by element, moved, gathered, or a coordinate."""
    by_element = isinstance(p.op, Pointwise | Iota | Take | TakeAlong) or moves_data(p.op)
    return p.memory is Memory.LOCAL and by_element


def _cone(flow: Dataflow, s: Stage, position: int) -> list[Stage]:
    """The cheap values behind an operand, in program order, if others read some of them; else, or
    when something behind it is not cheap, nothing."""
    found: set[Stage] = set()
    stack = [s.operands[position]]
    while stack:
        p = stack.pop()
        if p.is_input or p.is_virtual or p in found:
            continue
        if not _is_cheap(p):
            return []
        found.add(p)
        stack.extend(p.operands)
    own = {*found, s}
    shared = any(c not in own for p in found for c in flow.consumers(p))
    twice = sum(o in found for o in s.operands) > 1
    return [p for p in flow.stages if p in found] if shared or twice else []


def _clone(flow: Dataflow, cone: list[Stage], s: Stage, position: int) -> None:
    made: dict[Stage, Stage] = {}
    for p in cone:
        operands = [made.get(o, o) for o in p.operands]
        made[p] = flow.insert(cone[-1], p.name, p.shape, p.dtype, p.op, operands)
        made[p].cache = p.cache
    operands = list(s.operands)
    operands[position] = made[operands[position]]
    s.operands = tuple(operands)
    for p in reversed(cone):
        if not flow.consumers(p) and p not in flow.outputs:
            flow.remove(p)
    flow.sort()
    flow.rebuild_axes()
