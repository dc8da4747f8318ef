"""Masks by position in a body: which `where`s they are, and when a vector of lanes is looked at."""

from __future__ import annotations

from fusewright.core.conditions import TRUE, Cond, any_of
from fusewright.core.expr import Int
from fusewright.core.positions import Place, place_of
from fusewright.core.regions import Regions, hull
from fusewright.kir.analysis.needs import Slot, slots_written
from fusewright.kir.analysis.uniformity import thread_share
from fusewright.kir.ir import Body, Compute, Imm, Index, Kernel, Operand, Reg

MOST_READING = 3 / 4
"""Of the threads that one comparison lets read, those that still do where each lane asks: a vector
of 16 bytes takes a warp 27 cycles of a multiprocessor's share of an H200's memory, the comparisons
of eight lanes four."""


def lanes_condition(needed: Regions, kernel: Kernel) -> Cond:
    """A condition that holds wherever one of some lanes is needed: one comparison for all of them
    where they follow each other in a row; else, as where a vector runs from one row into the next,
    any of theirs, if enough threads are spared for that."""
    condition = hull(needed).condition
    if len(needed) > 1:
        each = any_of(r.condition for r in needed)
        if thread_share(each, kernel) <= MOST_READING * thread_share(condition, kernel):
            return each
    return condition


def masks_told(body: Body) -> dict[int, Cond]:
    """The `where`s of a body whose conditions positions decide, with these, by their places."""
    if not any(isinstance(s, Compute) and s.fn == "where" for s in body):
        return {}
    known: dict[Slot, Place] = {}
    found: dict[int, Cond] = {}
    for k, s in enumerate(body):
        value: Place | None = None
        if isinstance(s, Compute) and s.predicate == TRUE:
            operands = [_place(o, known) for o in s.operands]
            if s.fn == "where" and isinstance(operands[0], Cond):
                found[k] = operands[0]
            value = place_of(s.fn, operands, s.dst.buffer.dtype)
        for slot in slots_written(s):
            known.pop(slot, None)
            if value is not None:
                known[slot] = value
    return found


def _place(o: Operand, known: dict[Slot, Place]) -> Place | None:
    match o:
        case Index():
            return o.expr
        case Imm() if isinstance(o.value, int) and not isinstance(o.value, bool):
            return Int(o.value)
        case Reg(buffer, Int() as index):
            return known.get((buffer, index.value))
        case _:
            return None
