"""Coordinates are free: every reader computes its own, along the loops it has."""

from __future__ import annotations

from fusewright.fusion.ir import Broadcast, Iota, Permute, Reshape
from fusewright.fusion.leaves import MAX_STEPS, is_step
from fusewright.schedule.graph import Dataflow, Stage


def separate_coordinates(flow: Dataflow) -> None:
    """Gives every reader of a coordinate, or of what a few steps make of one, a clone of its own.

    rewrite:  i = iota(n);  i[:, None] >= i[None, :]   ->   i = iota(n);  j = iota(n);  i .. >= j ..
    order:    first in scheduling; loops start again as the ops' own domains

    One coordinate read along two axes could be inlined along one of them only.
    """
    found = False
    for s in reversed(list(flow.stages)):
        if s in flow.outputs or not _is_coordinate(s):
            continue
        for reader in flow.consumers(s)[1:]:
            c = flow.insert(s, s.name, s.shape, s.dtype, s.op, s.operands)
            flow.replace_operand([reader], s, c)
            found = True
    if found:
        flow.sort()
        flow.rebuild_axes()


def _is_coordinate(s: Stage) -> bool:
    steps = None if s.is_virtual else _steps(s)
    return steps is not None and steps <= MAX_STEPS


def _steps(s: Stage) -> int | None:
    """The elementwise ops behind what follows from coordinates alone; None for other values."""
    if s.is_virtual or isinstance(s.op, Iota):
        return 0
    if not isinstance(s.op, Broadcast | Reshape | Permute) and not is_step(s.op):
        return None
    total = int(is_step(s.op))
    for o in s.operands:
        found = _steps(o)
        if found is None:
            return None
        total += found
    return total
