"""Coordinates are free: every reader computes its own, along the loops it has."""

from __future__ import annotations

from fusewright.fusion.ir import Broadcast, Iota, Permute, Reshape
from fusewright.schedule.graph import Dataflow, Stage


def separate_coordinates(flow: Dataflow) -> None:
    """Gives every reader of a coordinate, or of a view of one, a clone of its own.

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
    match s.op:
        case Iota():
            return True
        case Broadcast() | Reshape() | Permute():
            return _is_coordinate(s.operands[0])
        case _:
            return False
