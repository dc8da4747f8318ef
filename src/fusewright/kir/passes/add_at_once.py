"""Terms of sums that exist under a condition only are added where they are made."""

from __future__ import annotations

import dataclasses
from typing import TypeGuard

from fusewright.core.conditions import TRUE, all_of
from fusewright.core.expr import constant_value
from fusewright.core.identities import reduction_identity
from fusewright.kir.analysis.needs import Slot, is_lasting, uses_of_slots
from fusewright.kir.ir import Alloc, Body, Compute, Imm, Kernel, Reg, Statement
from fusewright.kir.passes.trim_loops import REDUCTIONS
from fusewright.kir.traverse import map_bodies


def add_at_once(kernel: Kernel) -> Kernel:
    """Add a term where it is made, instead of holding it, or what adds nothing, until its turn.

    rewrite:  v = copy(0);  v = copy(t) if c;  ...;  a = add(a, v) if p
         ->   a = add(a, t) if c and p;  ...
    checks:   nobody else reads v, and nothing in between reads or writes a; the conditions read no
              registers, so that they hold in both places or in neither
    order:    after addresses are simplified, which names each term once; before branches are made,
              so that no register has to leave one with either of two values
    """
    return map_bodies(kernel, _body)


def _body(body: Body) -> Body:
    """The body with its sums taken early; the same where there are none."""
    if all(_term(s) is None for s in body):
        return body
    uses = _Uses(body)
    moved: dict[int, Compute] = {}
    gone: set[int] = set()
    for k, s in enumerate(body):
        term = _term(s)
        if term is None or not isinstance(s, Compute):
            continue
        made = uses.choice_of(term, k, reduction_identity(s.fn, s.dst.buffer.dtype))
        total = _slot(s.dst)
        if made is None or total is None or not uses.move(total, k, made[1]):
            continue
        before, at = made
        choice = body[at]
        assert isinstance(choice, Compute)
        predicate = all_of([choice.predicate, s.predicate])
        operands = (s.operands[0], *choice.operands)
        moved[at] = dataclasses.replace(s, operands=operands, predicate=predicate)
        gone |= {before, k}
    if not moved:
        return body
    return tuple(moved.get(k, s) for k, s in enumerate(body) if k not in gone)


class _Uses:
    """Where a body, and what is nested in it, reads and writes registers."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._own = {s.buffer for s in body if isinstance(s, Alloc)}
        self._reads, self._writes = uses_of_slots(body)

    def choice_of(self, term: Slot, reader: int, identity: object) -> tuple[int, int] | None:
        """The two statements that make a term which one statement reads: what adds nothing, and
        the value instead under a condition. None where it is made in other ways."""
        writes = self._writes.get(term, [])
        if term[0] not in self._own or self._reads.get(term) != [reader] or len(writes) != 2:
            return None
        first, choice = (self._body[k] for k in writes)
        if not _is_copy(first) or not _is_copy(choice) or not is_lasting(choice.predicate):
            return None
        fill = first.operands[0]
        adds_nothing = isinstance(fill, Imm) and fill.value == identity and first.predicate == TRUE
        return (writes[0], writes[1]) if adds_nothing and writes[1] < reader else None

    def move(self, total: Slot, start: int, to: int) -> bool:
        """Notes that the statement which adds to a total stands elsewhere from now on; False where
        another one between the two places sees the total."""
        reads, writes = self._reads[total], self._writes[total]
        if any(to <= k < start for k in (*reads, *writes)):
            return False
        for uses in (reads, writes):
            uses[uses.index(start)] = to
        return True


def _is_copy(s: Statement) -> TypeGuard[Compute]:
    return isinstance(s, Compute) and s.fn == "copy"


def _term(s: Statement) -> Slot | None:
    """What a statement adds to a total in registers: the register of it; None for others."""
    if not isinstance(s, Compute) or s.fn not in REDUCTIONS or len(s.operands) != 2:
        return None
    before, added = s.operands
    if not isinstance(before, Reg) or not isinstance(added, Reg) or not is_lasting(s.predicate):
        return None
    total, term = _slot(s.dst), _slot(added)
    is_sum = total is not None and _slot(before) == total and term != total
    return term if is_sum else None


def _slot(r: Reg) -> Slot | None:
    """A register with a literal index."""
    index = constant_value(r.index)
    return None if index is None else (r.buffer, index)
