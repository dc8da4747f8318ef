"""Loops of which every iteration turns the rings in shared memory by as many slots as the last one.

A ring of `slots` slots of `stride` elements is indexed with `stride*((step*v + rest) % slots)` and
a place inside of the slot. Whether two such accesses meet depends on how many iterations of `v` lie
between them, and on nothing else about `v`; of its mbarriers the phase follows from the same sum,
`((step*v + rest) // slots) % 2`. So what a few iterations show, later ones show again, with the
slots renamed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fusewright.core.expr import (
    Expr,
    FloorDiv,
    Mod,
    Term,
    Var,
    add,
    constant_value,
    mul,
    parts_of,
    sum_of,
    variables,
)
from fusewright.kir.analysis.lanes import Known, evaluate_lanes, is_known
from fusewright.kir.symbols import Buffer
from fusewright.kir.traits import MbarrierUse, MemoryUse


@dataclass(frozen=True, slots=True)
class Turn:
    """How an access goes around a ring as a loop goes on: `step` slots of `stride` elements in each
    iteration, of `slots`; `lap` is the sum whose remainder is the slot."""

    stride: int
    slots: int
    step: int
    lap: Expr

    @property
    def way(self) -> tuple[int, int, int]:
        """What accesses that meet alike in all iterations have in common."""
        return self.stride, self.slots, self.step % self.slots

    @property
    def period(self) -> int:
        """After how many iterations it touches the same slot."""
        return self.slots // math.gcd(self.slots, self.step)


@dataclass(frozen=True, slots=True)
class Turning:
    """What turns in a loop over `v`: the operands in memory, and what happens at mbarriers; and the
    values of the variables of the threads that run it."""

    v: Var
    uses: Sequence[MemoryUse]
    mbarriers: Sequence[MbarrierUse]
    threads: Known


def rotation(loops: Iterable[Turning], offsets: Mapping[Buffer, tuple[int, int]]) -> int | None:
    """After how many iterations of loops that run side by side everything in them touches the same
    bytes again, if they are known to turn; `offsets` are the first bytes of packed buffers and the
    ones behind them.

    None unless all accesses to a buffer that depend on the iteration go the same way around one
    ring, stay inside of a slot, and share no bytes with another ring; and unless mbarriers of a
    ring are used in no other way, each phase following from the sum that the slot follows from.
    """
    listed = list(loops)
    ways: dict[Buffer, set[tuple[int, int, int] | None]] = {}
    period = 1
    for x in listed:
        for use in x.uses:
            if not _depends_on(use.index, x.v):
                ways.setdefault(use.buffer, set()).add(None)
                continue
            turn = turn_of(use.index, x, use.width, use.buffer)
            if turn is None or _depends_on(use.rank, x.v):
                return None
            ways.setdefault(use.buffer, set()).add(turn.way)
            period = math.lcm(period, turn.period)
    if not _phases_turn(listed):
        return None
    rings = [b for b, found in ways.items() if found != {None}]
    barriers = {use.barrier for x in listed for use in x.mbarriers}
    for b in rings:
        if len(ways[b] - {None}) > 1 or (b in barriers and None in ways[b]):
            return None
    return None if _overlap([offsets[b] for b in rings if b in offsets]) else period


def turn_of(index: Expr, loop: Turning, width: int, buffer: Buffer) -> Turn | None:
    """How `width` elements from an index into a buffer on go around a ring as a loop goes on, the
    copies of a cluster's blocks alike; None if they do not."""
    size = constant_value(buffer.size)
    constant, terms = parts_of(index)
    moving = [t for t in terms if _is_moved(t, loop.v)]
    if size is None or len(moving) != 1 or len(moving[0].atoms) != 1:
        return None
    atom, stride = moving[0].atoms[0], moving[0].coefficient
    if not isinstance(atom, Mod):
        return None
    slots, step = constant_value(atom.denominator), _step(atom.numerator, loop.v)
    inside = [t for t in terms if t is not moving[0] and t.coefficient % size]
    low, high = _limits(constant % size, inside, loop.threads)
    if slots is None or step is None or low is None or high is None:
        return None
    is_slot = low >= 0 and high + width <= stride and stride * slots <= size
    return Turn(stride, slots, step, atom.numerator) if is_slot else None


def _limits(constant: int, terms: Iterable[Term], threads: Known) -> tuple[int | None, int | None]:
    """Bounds of a sum, the least and the greatest where only threads are in it."""
    own, others = sum_of(constant, ()), list[Term]()
    for t in terms:
        if all(is_known(a, threads) for a in t.atoms):
            own = add(own, sum_of(0, [t]))
        else:
            others.append(t)
    values = np.asarray(evaluate_lanes(own, threads))
    low, high = sum_of(0, others).interval
    if low is None or high is None:
        return low, high
    return low + int(values.min()), high + int(values.max())


def _phases_turn(loops: Iterable[Turning]) -> bool:
    """Whether the phases that are waited for at every buffer of mbarriers go on alike."""
    found: dict[Buffer, set[object]] = {}
    for x in loops:
        for use in x.mbarriers:
            steers = use.steers
            slot = turn_of(use.slot, x, 1, use.barrier)
            if _depends_on(use.rank, x.v) or (slot is None and _depends_on(use.slot, x.v)):
                return False
            if len(steers) == 1:
                continue
            advance = _advance(use.parity, x.v, slot)
            if advance is None:
                return False
            found.setdefault(use.barrier, set()).add(advance)
    return all(len(ways) == 1 for ways in found.values())


def _advance(parity: Expr, v: Var, slot: Turn | None) -> tuple[str, int] | None:
    """How the parity that is waited for goes on: with the laps of the slot, or by so many phases in
    each iteration, of one mbarrier; None if not known."""
    if not _depends_on(parity, v):
        return ("phases", 0) if slot is None else None
    if not isinstance(parity, Mod) or constant_value(parity.denominator) != 2:
        return None
    moving = [t for t in parts_of(parity.numerator)[1] if _is_moved(t, v)]
    if len(moving) != 1 or len(moving[0].atoms) != 1:
        return None
    atom, factor = moving[0].atoms[0], moving[0].coefficient
    if atom is v:
        return ("phases", factor % 2) if slot is None else None
    if slot is None or not isinstance(atom, FloorDiv) or factor % 2 == 0:
        return None
    constant, terms = parts_of(add(atom.numerator, mul(-1, slot.lap)))
    is_same = all(n % slot.slots == 0 for n in (constant, *(t.coefficient for t in terms)))
    is_lap = is_same and constant_value(atom.denominator) == slot.slots
    return ("laps", slot.slots) if is_lap else None


def _step(e: Expr, v: Var) -> int | None:
    """By how much a sum grows with `v`; None where it does not grow evenly."""
    moving = [t for t in parts_of(e)[1] if _is_moved(t, v)]
    if len(moving) != 1 or moving[0].atoms != (v,):
        return None
    return moving[0].coefficient


def _depends_on(e: Expr | None, v: Var) -> bool:
    return e is not None and v in variables(e)


def _is_moved(t: Term, v: Var) -> bool:
    return any(v in variables(a) for a in t.atoms)


def _overlap(ranges: Iterable[tuple[int, int]]) -> bool:
    """Whether two ranges of bytes have one in common."""
    ordered = sorted(ranges)
    return any(a[1] > b[0] for a, b in pairwise(ordered))
