"""Loads of what a mask by position drops, or a join does not choose, do not take place.

x = load a[i];  y = where(i <= j, x, 0)     ->     x = load a[i] if i <= j;  y = where(..)
r = load a[i];  s = load b[i];  r = s if c  ->     r = load a[i] if !c;  s = load b[i] if c;  ..
"""

from __future__ import annotations

import dataclasses

from fusewright.core.conditions import TRUE, Cond, all_of, negate
from fusewright.core.regions import EVERYWHERE, Regions, hull
from fusewright.kir.analysis.lane_regions import FEW_WARPS
from fusewright.kir.analysis.masked import lanes_condition, masks_told
from fusewright.kir.analysis.needs import is_choice, needs
from fusewright.kir.analysis.uniformity import meeting_share, parting_share
from fusewright.kir.ir import Body, Compute, Kernel, Load, Statement
from fusewright.kir.traverse import map_bodies
from fusewright.memory import Memory


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
    told = masks_told(body)
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
    """A load under a condition that holds wherever one of its lanes is needed."""
    if not isinstance(s, Load) or s.src.memory is not Memory.GLOBAL:
        return s
    if not needed or EVERYWHERE[0] in needed:
        return s
    condition = lanes_condition(needed, kernel)
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
