"""Loads of what a mask by position drops, or a join does not choose, do not take place.

x = load a[i];  y = where(i <= j, x, 0)     ->     x = load a[i] if i <= j;  y = where(..)
r = load a[i];  s = load b[i];  r = s if c  ->     r = load a[i] if !c;  s = load b[i] if c;  ..
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

from fusewright.core.atoms import Max, maximum
from fusewright.core.conditions import (
    TRUE,
    Cond,
    all_of,
    any_of,
    equal,
    less,
    less_equal,
    negate,
)
from fusewright.core.expr import Expr, Int, add, mul
from fusewright.core.regions import EVERYWHERE, Regions, hull
from fusewright.kir.analysis.lane_regions import FEW_WARPS
from fusewright.kir.analysis.needs import Slot, is_choice, needs, slots_written
from fusewright.kir.analysis.uniformity import meeting_share, parting_share, thread_share
from fusewright.kir.ir import Body, Compute, Imm, Index, Kernel, Load, Operand, Reg, Statement
from fusewright.kir.traverse import map_bodies
from fusewright.memory import Memory

MOST_READING = 3 / 4
"""Of the threads that one comparison lets read, those that still do where each lane asks: a vector
of 16 bytes takes a warp 27 cycles of a multiprocessor's share of an H200's memory, the comparisons
of eight lanes four."""

Place: TypeAlias = Expr | Cond
"""What positions decide: a number, or a condition."""


def guard_masked(kernel: Kernel) -> Kernel:
    """Give loads from global memory the condition under which somebody looks at them.

    rewrite:  x = load a[i];  y = where(i <= j, f(x), 0)   ->   x = load a[i] if i <= j;  ...
    checks:   every use of the loaded registers is in the same body, behind `where`s whose
              conditions are comparisons of positions, or behind choices that warps make as one;
              others keep their loads as they are
    order:    after addresses are simplified and scalars unrolled, so that positions are one
              expression; before branches are made, which loads with conditions may join
    """
    return map_bodies(kernel, lambda body: _guarded(body, kernel))


def _guarded(body: Body, kernel: Kernel) -> Body:
    """The body with conditions for its loads; the same where no mask and no choice is known."""
    told = _told(body)
    if not told:
        return _guarded_by_choice(body, kernel)
    shadow: list[Statement] = []
    owner: list[int] = []
    for k, s in enumerate(body):
        parts = _as_choices(s, told[k]) if k in told and isinstance(s, Compute) else (s,)
        shadow += parts
        owner += [k] * len(parts)
    needed = dict(zip(owner, needs(tuple(shadow)), strict=True))
    return tuple(_with_condition(s, needed[k], kernel) for k, s in enumerate(body))


def _guarded_by_choice(body: Body, kernel: Kernel) -> Body:
    """The body in which a warp reads the pieces of a join that it takes. Pieces side by side have
    such conditions, as each reads its own places; of pieces one behind the other that begin at the
    same place, as those of a stack do, every thread could read all."""
    if not any(is_choice(s) for s in body):
        return body

    def spares(s: Statement, needed: Regions) -> bool:
        if not isinstance(s, Load) or s.predicate != TRUE or not needed:
            return False
        around = hull(needed).condition
        return parting_share(around, kernel) <= FEW_WARPS and meeting_share(around, kernel) < 1

    pairs = zip(body, needs(body), strict=True)
    out = tuple(_with_condition(s, n, kernel) if spares(s, n) else s for s, n in pairs)
    return body if out == body else out


def _with_condition(s: Statement, needed: Regions, kernel: Kernel) -> Statement:
    """A load under a condition that holds wherever one of its lanes is needed: one comparison for
    all of them where lanes follow each other in a row; else, as where a vector runs from one row
    into the next, any of theirs, if enough threads are spared for that."""
    if not isinstance(s, Load) or s.src.memory is not Memory.GLOBAL:
        return s
    if not needed or EVERYWHERE[0] in needed:
        return s
    condition = hull(needed).condition
    if len(needed) > 1:
        each = any_of(r.condition for r in needed)
        if thread_share(each, kernel) <= MOST_READING * thread_share(condition, kernel):
            condition = each
    if condition == TRUE:
        return s
    return dataclasses.replace(s, predicate=all_of([s.predicate, condition]))


def _as_choices(s: Compute, c: Cond) -> tuple[Statement, ...]:
    """A `where` as two statements that each need one operand, as far as needs are concerned."""
    _, chosen, other = s.operands
    return (
        dataclasses.replace(s, fn="copy", operands=(other,), predicate=negate(c)),
        dataclasses.replace(s, fn="copy", operands=(chosen,), predicate=c),
    )


# --- masks --------------------------------------------------------------------------------------


def _told(body: Body) -> dict[int, Cond]:
    """The `where`s of a body whose conditions positions decide."""
    known: dict[Slot, Place] = {}
    found: dict[int, Cond] = {}
    for k, s in enumerate(body):
        value: Place | None = None
        if isinstance(s, Compute) and s.predicate == TRUE:
            operands = [_place(o, known) for o in s.operands]
            if s.fn == "where" and isinstance(operands[0], Cond):
                found[k] = operands[0]
            value = _value(s, operands)
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


def _value(s: Compute, operands: Sequence[Place | None]) -> Place | None:
    """What a statement computes, if that is an expression or a condition of positions."""
    places = [o for o in operands if isinstance(o, Expr)]
    conditions = [o for o in operands if isinstance(o, Cond)]
    if operands and len(places) == len(operands):
        if s.dst.buffer.dtype.name == "bool":
            return _compared(s.fn, places)
        value = _computed(s.fn, places)
        return value if value is not None and _fits(value, s) else None
    if operands and len(conditions) == len(operands):
        match s.fn:
            case "and":
                return all_of(conditions)
            case "or":
                return any_of(conditions)
            case "logical_not" | "not":
                return negate(conditions[0])
            case "copy":
                return conditions[0]
            case _:
                return None
    return None


def _fits(value: Expr, s: Compute) -> bool:
    """Whether an integer type holds every value: the kernel's arithmetic wraps around."""
    if not s.dst.buffer.dtype.is_integer:
        return False
    low, high = value.interval
    most = 1 << (8 * s.dst.buffer.dtype.nbytes - 1)
    return low is not None and high is not None and -most <= low and high < most


def _computed(fn: str, operands: Sequence[Expr]) -> Expr | None:
    match fn, operands:
        case (("copy" | "cast"), [a]):
            return a
        case "add", [a, b]:
            return add(a, b)
        case "sub", [a, b]:
            return a - b
        case "mul", [a, b] if isinstance(a, Int) or isinstance(b, Int):
            return mul(a, b)
        case "neg", [a]:
            return mul(a, -1)
        case "abs", [a]:
            return maximum(a, mul(a, -1))
        case _:
            return None


def _compared(fn: str, operands: Sequence[Expr]) -> Cond | None:
    if len(operands) != 2:
        return None
    a, b = operands
    if isinstance(a, Max) and fn in ("lt", "le"):
        parts = [_compared(fn, (part, b)) for part in (a.left, a.right)]
        return all_of(p for p in parts if p is not None)
    match fn:
        case "lt":
            return less(a, b)
        case "le":
            return less_equal(a, b)
        case "gt":
            return less(b, a)
        case "ge":
            return less_equal(b, a)
        case "eq":
            return equal(a, b)
        case "ne":
            return negate(equal(a, b))
        case _:
            return None
