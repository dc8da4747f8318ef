"""What a thread keeps of a row between passes where registers do not hold all that passes share.

    v = gelu(x);  m = max(v);  e = exp(v - m);  y = e / sum(e)      x, v and e are read by passes

Each pass computes what is not kept again, from what is. So the values are kept that spare the most
instructions, as many as fit; a value of which only kept ones are computed needs no register then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.phases import is_wide, pass_numbers, separate_phases
from fusewright.schedule.heuristics.work import element_instructions
from fusewright.schedule.inline import consumers_of
from fusewright.schedule.nest import computed
from fusewright.schedule.precision import fast_forms
from fusewright.target import WORD_NBYTES

STORED_REGISTERS = 48
"""Registers for what several passes read, above which they compute some of it again."""


class _Row:
    """The values of a group that have the reduced axes, with their readers."""

    def __init__(self, flow: Dataflow, reference: Stage) -> None:
        self.users = consumers_of(flow)
        self._forms = fast_forms(flow.stages, self.users)
        self._passes = pass_numbers(flow)
        self.wide = [s for s in flow.stages if is_wide(flow, reference, s)]

    def instructions(self, v: Stage, held: Collection[Stage]) -> float:
        """Of one element of a value, from what is held."""
        found = self.behind(v, held)
        return sum(element_instructions(s, self._forms.get(s)) for s in found)

    def behind(self, v: Stage, held: Collection[Stage] = ()) -> set[Stage]:
        """What a value is computed from, itself among it, from what is held."""
        seen: set[Stage] = set()
        stack = [v]
        while stack:
            s = stack.pop()
            if s not in seen:
                seen.add(s)
                stack += [o for o in s.operands if o in self.wide and o not in held]
        return seen

    def times(self, v: Stage, held: Collection[Stage]) -> int:
        """How many passes and held values are computed of a value and not of one held between."""
        return len(self.roots(v, held))

    def roots(self, v: Stage, held: Collection[Stage]) -> set[object]:
        """These passes, by number, and held values."""
        seen: set[Stage] = set()
        found: set[object] = set()
        stack = [v]
        while stack:
            for u in self.users[stack.pop()]:
                if u in self._passes:
                    found.add(self._passes[u])
                elif u in held:
                    found.add(u)
                elif u in self.wide and u not in seen:
                    seen.add(u)
                    stack.append(u)
        return found


def values_to_hold(
    flow: Dataflow, reference: Stage, copies: Sequence[Stage], elements: int, most: int
) -> list[Stage]:
    """The copies of inputs, and of the values that several passes need those that are dearest to
    compute again, while the registers of a thread for so many elements are `most`."""
    row = _Row(flow, reference)
    held = list(copies)
    shared = [s for s in row.wide if s not in held and row.times(s, held) > 1]
    while shared:
        spared = {s: row.instructions(s, held) * (row.times(s, held) - 1) for s in shared}
        fits = [s for s in shared if spared[s] and _words(row, [*held, s], elements) <= most]
        if not fits:
            break
        best = max(fits, key=lambda s: spared[s])
        held.append(best)
        shared = [s for s in shared if s is not best]
    return held


def _words(row: _Row, held: Sequence[Stage], elements: int) -> int:
    """Registers for what several passes read of what is held."""
    kept = [s for s in held if row.times(s, held) > 1]
    return sum(-(-elements * max(s.dtype.nbytes, _least(s)) // WORD_NBYTES) for s in kept)


def _least(s: Stage) -> int:
    """Bytes of a register for an element: what is read from memory stays packed."""
    return s.dtype.nbytes if any(o.is_input for o in s.operands) else WORD_NBYTES


def instead_of(flow: Dataflow, reference: Stage, copies: Sequence[Stage]) -> list[Stage]:
    """What shared memory holds of a row: the copies of inputs, or the one value in no more bytes
    through which alone all passes read them, so that each finds it computed."""
    row = _Row(flow, reference)
    room = sum(c.dtype.nbytes for c in copies)
    through = [
        s
        for s in row.wide
        if s not in copies
        and s.dtype is s.dtype.compute  # else memory would round it
        and s.dtype.nbytes <= room
        and row.times(s, ()) > 1
        and set(copies) <= row.behind(s)
        and all(row.roots(c, (s,)) == {s} for c in copies)
    ]
    spared = {s: row.instructions(s, copies) for s in through}
    best = max(through, key=lambda s: spared[s], default=None)
    return list(copies) if best is None or not spared[best] else [best]


def hold_in_registers(
    flow: Dataflow,
    reference: Stage,
    copies: Sequence[Stage],
    elements: int,
    held: Sequence[Stage] = (),
) -> None:
    """Lets a thread keep what several passes need of its so many elements, `held` first; where that
    takes too many registers, passes compute some of it again. `copies` are those of inputs."""
    if _stored_registers(flow, reference, copies, elements) > STORED_REGISTERS:
        kept = values_to_hold(flow, reference, held, elements, STORED_REGISTERS)
        separate_phases(flow, reference, kept)


def _stored_registers(
    flow: Dataflow, reference: Stage, copies: Sequence[Stage], elements: int
) -> int:
    """Registers a thread would need for the values with reduced axes that several passes read."""
    users = consumers_of(flow)
    words = 0
    for s in computed(flow.stages):
        wide = any(flow.graph.depends(c, reference.frame.reduced) for c in s.frame.output)
        several = len({u for u in users[s] if u.is_reduction}) > 0 and len(users[s]) > 1
        if wide and s.memory is Memory.LOCAL and (s in copies or several):
            nbytes = s.dtype.nbytes if s in copies else max(s.dtype.nbytes, 4)
            words += -(-elements * nbytes // 4)
    return words
