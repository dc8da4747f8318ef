"""Fills of lanes that do not exist, under one branch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from fusewright.core.conditions import (
    TRUE,
    And,
    Cond,
    Less,
    Truth,
    all_of,
    less_equal,
    negate,
    prove,
)
from fusewright.core.expr import Expr, variables
from fusewright.kir.analysis.uniformity import meeting_share
from fusewright.kir.ir import Body, Buffer, Compute, If, Imm, Kernel, Reg, RegVar, Statement
from fusewright.kir.traverse import map_bodies, own_registers, walk_statements

_Place: TypeAlias = tuple[Buffer, Expr]
LEAST = 4
"""Lanes for each condition of the branch below which selecting every value costs no more."""
SELDOM = 0.25
"""The share of warps that may go through the branch: one that does has gained nothing."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A value that is a number unless a condition holds, as the two statements that make it."""

    filled: Compute
    taken: Compute


@dataclass(frozen=True, slots=True)
class FillGroup:
    """Lanes that are complete before statement `end` of a body; all of them are taken where `whole`
    holds."""

    lanes: tuple[Lane, ...]
    end: int
    whole: Cond


def branch_fills(kernel: Kernel) -> Kernel:
    """Take values as they are, and fill those that do not exist where some of them do not.

    rewrite:  v[k] = copy(fill);  v[k] = copy(r[k]) if (x < n - k)       for k = 0 .. 7
          ->  v[k] = copy(r[k]);  if (n - 7 <= x) { v[k] = copy(fill) if (n - k <= x) }
    checks:   nothing touches the values in between; the conditions are of no registers, and hold
              for all lanes of most warps
    order:    after branches were sunk into, which takes what is worth a branch of its own; before
              the last simplify
    """
    return map_bodies(kernel, lambda body: _edited(body, kernel))


def _edited(body: Body, kernel: Kernel) -> Body:
    found = (g for g in _groups(body) if meeting_share(negate(g.whole), kernel) <= SELDOM)
    groups = {g.end: g for g in found}
    if not groups:
        return body
    dropped = {lane.filled for g in groups.values() for lane in g.lanes}
    taken = {lane.taken for g in groups.values() for lane in g.lanes}
    out: list[Statement] = []
    for i in range(len(body) + 1):
        if i in groups:
            out.append(_fills(groups[i]))
        if i < len(body) and body[i] not in dropped:
            s = body[i]
            out.append(replace(s, predicate=TRUE) if isinstance(s, Compute) and s in taken else s)
    return tuple(out)


def _fills(g: FillGroup) -> If:
    fills = (replace(x.filled, predicate=negate(x.taken.predicate)) for x in g.lanes)
    return If(negate(g.whole), tuple(fills))


def _groups(body: Body) -> Iterator[FillGroup]:
    """The groups of a body for which one branch asks for less than all lanes do, in order."""
    filled: dict[_Place, Compute] = {}
    lanes: dict[_Place, Lane] = {}
    last = 0
    for i, s in enumerate(body):
        fill, take = _as_fill(s), _as_take(s)
        if fill and _place(fill) not in (*filled, *lanes):
            filled[_place(fill)] = fill
            continue
        first = filled.pop(_place(take), None) if take else None
        touched = _read(take) if take and first else _touched(s)
        if any(x.taken.dst.buffer in touched for x in lanes.values()):
            yield from _worthwhile(lanes.values(), last)
            lanes = {}
        filled = {at: f for at, f in filled.items() if f.dst.buffer not in touched}
        if take and first:
            lanes[_place(take)] = Lane(first, take)
            last = i + 1
    yield from _worthwhile(lanes.values(), last)


def _as_fill(s: Statement) -> Compute | None:
    """The statement if it only writes a number to a register."""
    if isinstance(s, Compute) and s.fn == "copy" and isinstance(s.operands[0], Imm):
        return s if s.predicate is TRUE else None
    return None


def _as_take(s: Statement) -> Compute | None:
    """The statement if it copies a register under a condition that stays as it is."""
    if isinstance(s, Compute) and s.fn == "copy" and isinstance(s.operands[0], Reg):
        stays = not any(isinstance(v, RegVar) for v in variables(s.predicate))
        return s if stays and not isinstance(s.predicate, Truth) else None
    return None


def _place(s: Compute) -> _Place:
    return s.dst.buffer, s.dst.index


def _read(s: Compute) -> set[Buffer]:
    return {o.buffer for o in s.operands if isinstance(o, Reg)}


def _touched(s: Statement) -> set[Buffer]:
    return {r.buffer for n in (s, *walk_statements(s)) for r in own_registers(n)}


def _worthwhile(lanes: Iterable[Lane], end: int) -> Iterator[FillGroup]:
    """The lanes as a group, where one branch asks for much less than all of them."""
    found = tuple(lanes)
    whole = _strongest([x.taken.predicate for x in found])
    asked = len(whole.parts) if isinstance(whole, And) else 1
    if len(found) >= LEAST * asked:
        yield FillGroup(found, end, whole)


def _strongest(conditions: Iterable[Cond]) -> Cond:
    """What implies all of these: their conjunction, without what follows from the rest of it."""
    whole = all_of(conditions)
    kept = list(whole.parts) if isinstance(whole, And) else [whole]
    for c in tuple(kept):
        if any(_implies(other, c) for other in kept if other is not c):
            kept.remove(c)
    return all_of(kept)


def _implies(a: Cond, b: Cond) -> bool:
    """Whether one inequality is known to follow from another."""
    if not (isinstance(a, Less) and isinstance(b, Less)):
        return False
    return prove(less_equal(b.left - b.right, a.left - a.right)) is True
