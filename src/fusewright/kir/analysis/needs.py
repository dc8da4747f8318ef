"""Where the results of a body's statements are needed: only then must they be computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from fusewright.core.conditions import TRUE, Cond
from fusewright.core.expr import constant_value, variables
from fusewright.core.regions import EVERYWHERE, PointRegion, Regions, united
from fusewright.kir.ir import Alloc, Body, Buffer, Compute, Load, Reg, RegVar, Statement, Store
from fusewright.kir.traverse import (
    own_registers,
    registers_read,
    registers_written,
    with_inner,
)
from fusewright.memory import Memory

Slot: TypeAlias = tuple[Buffer, int]
MOST_REGIONS = 8
"""A value needed in more regions than this counts as needed everywhere; the lanes of a vector may
each be needed in one of their own."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Where what a statement's registers hold behind it is looked at, and where its operands are
    needed for that: none for dead statements, everywhere for those that do more than fill registers
    of their body."""

    seen: Regions
    needed: Regions


def needs(body: Body) -> tuple[Regions, ...]:
    """For each statement the regions in which its result is needed."""
    return tuple(d.needed for d in demands(body))


def demands(body: Body) -> tuple[Demand, ...]:
    """What is wanted of each statement.

    Backwards: a store needs its source where its predicate holds, an operand is needed where the
    result is, and what a guarded statement overwrites is needed only where it does not.
    """
    own = _own(body)
    demand: dict[Slot, Regions] = {}
    out: list[Demand] = []
    for s in reversed(body):
        seen = need = EVERYWHERE
        match s:
            case Compute() | Load():
                slots = list(slots_written(s))
                if all(b in own for b, _ in slots):
                    seen = _united(r for slot in slots for r in demand.get(slot, ()))
                    need = _overwrite(s, slots, seen, demand)
            case Store():
                need = _within(need, s.predicate)
            case _:
                pass
        for slot in slots_read(s):
            demand[slot] = _united((*demand.get(slot, ()), *need))
        out.append(Demand(seen, need))
    return tuple(reversed(out))


def _overwrite(
    s: Compute | Load, slots: list[Slot], need: Regions, demand: dict[Slot, Regions]
) -> Regions:
    """Where the statement's operands are needed; from `demand` goes what it overwrites."""
    is_partial = s.predicate != TRUE if isinstance(s, Compute) else not s.is_total
    if is_partial and not is_lasting(s.predicate):
        return need
    for slot in slots:
        rest = demand.pop(slot, ())
        if is_partial:
            demand[slot] = _united(r for region in rest for r in region.without(s.predicate))
    return _within(need, s.predicate) if is_partial else need


def is_lasting(c: Cond) -> bool:
    """Whether a condition holds or not for a whole body, since it reads no register."""
    return not any(isinstance(v, RegVar) for v in variables(c))


def is_choice(s: Statement) -> TypeGuard[Compute]:
    """Whether a statement picks its value only under a condition."""
    return (
        isinstance(s, Compute)
        and s.fn == "copy"
        and s.predicate != TRUE
        and is_lasting(s.predicate)
    )


def slots_written(s: Statement) -> Iterator[Slot]:
    """The registers that a statement and those below it may write."""
    for inner in with_inner(s):
        for use in registers_written(inner):
            yield from _slots(use.reg, use.width)


def slots_read(s: Statement) -> Iterator[Slot]:
    """The registers that a statement and those below it mention, but for those they only set."""
    for inner in with_inner(s):
        for r, width in registers_read(inner):
            yield from _slots(r, width)


def uses_of_slots(body: Body) -> tuple[dict[Slot, list[int]], dict[Slot, list[int]]]:
    """The positions of the statements of a body that read each slot, and of those that write it."""
    reads: dict[Slot, list[int]] = {}
    writes: dict[Slot, list[int]] = {}
    for k, s in enumerate(body):
        for slot in slots_read(s):
            reads.setdefault(slot, []).append(k)
        for slot in slots_written(s):
            writes.setdefault(slot, []).append(k)
    return reads, writes


def _slots(r: Reg, width: int) -> Iterator[Slot]:
    start = constant_value(r.index)
    if start is None:
        start, width = 0, constant_value(r.buffer.size) or 1
    return ((r.buffer, start + k) for k in range(width))


def _own(body: Body) -> frozenset[Buffer]:
    """The register buffers that no statement outside the body sees, in registers with literal
    indices only."""
    own = {s.buffer for s in body if isinstance(s, Alloc) and s.buffer.memory is Memory.LOCAL}
    for s in body:
        for inner in with_inner(s):
            own -= {r.buffer for r in own_registers(inner) if constant_value(r.index) is None}
    return frozenset(own)


def _within(need: Regions, c: Cond) -> Regions:
    if c == TRUE or not is_lasting(c):
        return need
    found = [r.within(c) for r in need]
    return _united(r for r in found if r is not None)


def _united(regions: Iterable[PointRegion]) -> Regions:
    found = united(dict.fromkeys(regions))
    return EVERYWHERE if len(found) > MOST_REGIONS else found
