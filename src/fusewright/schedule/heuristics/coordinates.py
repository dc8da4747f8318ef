"""Coordinates are free: every reader computes its own, along the loops it has."""

from __future__ import annotations

from fusewright.fusion.ir import Concat, Iota, Parts, ViewBase
from fusewright.fusion.rematerialisable import MAX_STEPS, is_step
from fusewright.schedule.edits import edit
from fusewright.schedule.graph import Dataflow, Stage


@edit("separate_coordinates")
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
        for reader, positions in _uses(flow, s)[1:]:
            c = flow.insert(s, s.name, s.shape, s.dtype, s.op, s.operands)
            reader.operands = tuple(
                c if k in positions else o for k, o in enumerate(reader.operands)
            )
            found = True
    if found:
        flow.sort()
        flow.rebuild_axes()


def _uses(flow: Dataflow, s: Stage) -> list[tuple[Stage, tuple[int, ...]]]:
    """The readers of a stage with the positions of the operand; a concatenation reads each of its
    operands at places of its own."""
    out: list[tuple[Stage, tuple[int, ...]]] = []
    for reader in flow.consumers(s):
        positions = tuple(k for k, o in enumerate(reader.operands) if o is s)
        apart = isinstance(reader.op, Concat)
        out += [(reader, (k,)) for k in positions] if apart else [(reader, positions)]
    return out


def _is_coordinate(s: Stage) -> bool:
    steps = None if s.is_virtual else _steps(s)
    return steps is not None and steps <= MAX_STEPS


def _steps(s: Stage) -> int | None:
    """The elementwise ops behind what follows from coordinates alone; None for other values."""
    if s.is_virtual or isinstance(s.op, Iota):
        return 0
    if not isinstance(s.op, ViewBase | Parts) and not is_step(s.op):
        return None
    total = int(is_step(s.op))
    for o in s.operands:
        found = _steps(o)
        if found is None:
            return None
        total += found
    return total
