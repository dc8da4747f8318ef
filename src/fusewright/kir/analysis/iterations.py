"""Which iterations stand for a loop: all of them, or a few periods of everything in it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fusewright.core.conditions import TRUE, Cond, substitute_condition
from fusewright.core.expr import Expr, FloorDiv, Mod, Var, add, constant_value, variables
from fusewright.core.memo import Memo
from fusewright.core.substitution import substitute
from fusewright.core.symbolic import walk
from fusewright.kir.analysis.lanes import Array, Known, holds, thread_values
from fusewright.kir.analysis.sites import LoopScope, Path, RoleScope, StatementSite
from fusewright.kir.ir import Kernel, Memory
from fusewright.kir.traits import MemoryUse

MAX_TRIPS = 1 << 12
"""Iterations enumerated per loop."""

MIN_TRIPS = 3
"""Iterations that stand for a loop at least: a first, a last, and one that is neither."""

MAX_WHOLE = 1 << 16
"""Iterations of a loop whose conditions are tried for all."""


@dataclass(frozen=True, slots=True, eq=False)
class Threads:
    """The values of thread variables; what stands for them in keys; threads and blocks."""

    known: Known
    key: Hashable
    nthreads: int
    ncopies: int


def threads_in(kernel: Kernel, *, across_blocks: bool = False) -> Threads:
    """The threads of a block, or of all blocks of a cluster."""
    dims = (*kernel.block, *(kernel.cluster if across_blocks else ()))
    key = tuple((d.var, d.extent) for d in dims)
    size = kernel.cluster_size if across_blocks else 1
    known = thread_values(kernel, across_blocks=across_blocks)
    return Threads(known, key, kernel.nthreads * size, size)


@dataclass(frozen=True, slots=True, eq=False)
class LoopPlan:
    """The values of a loop's variable that stand for all of them, after `period` of which
    everything in the loop is the same again; `is_whole` when they are all, `stands_for_all` when
    whole periods only are left out, between iterations that begin and end as the loop does."""

    values: Array
    period: int = 0
    is_whole: bool = False
    stands_for_all: bool = False

    @property
    def trips(self) -> int:
        """How many iterations stand for the loop."""
        return len(self.values)


_KEPT_NBYTES = 1 << 22
_PLANS: Memo[LoopPlan] = Memo(_KEPT_NBYTES, lambda _, plan: 1024 + plan.values.nbytes)
"""Plans by what they follow from: passes look again at loops that the last one left alone."""


@dataclass(slots=True, eq=False)
class _Inside:
    """A loop, the role it stands in, the expressions in it that must repeat, and the conditions."""

    loop: LoopScope
    role: RoleScope | None
    exprs: dict[Expr, None]
    conditions: dict[Cond, None]

    @property
    def key(self) -> Hashable:
        """All that the iterations that stand for it follow from."""
        return self.loop.trips, self.loop.node.var, tuple(self.exprs), tuple(self.conditions)


def loop_plans(
    uses: Iterable[tuple[int, StatementSite, MemoryUse]],
    places: Iterable[StatementSite],
    threads: Threads,
) -> dict[Path, LoopPlan]:
    """Per loop: all iterations, or a few periods of everything in it that depends on its variable.

    A loop that allows neither gets no iterations: its variable is unknown.
    """
    inside: dict[Path, _Inside] = {}

    def note(site: StatementSite, exprs: Iterable[Expr], predicate: Cond) -> None:
        conditions = [predicate, *(b.node.condition for b in site.branches)]
        for loop in site.loops:
            found = inside.setdefault(loop.path, _Inside(loop, site.role, {}, {}))
            found.exprs.update(dict.fromkeys(exprs))
            found.conditions.update(dict.fromkeys(conditions))

    for _, site, use in uses:
        counts = use.buffer.memory is Memory.SHARED or use.completes.at_once
        note(site, [use.index] if counts else [], use.predicate)
    for site in places:
        mbarrier = None if site.statement.is_private else site.statement.mbarrier_use()
        if mbarrier is not None:
            note(site, mbarrier.steers, TRUE)
    alike: dict[object, list[_Inside]] = {}
    for found in inside.values():
        role = found.loop.path if found.role is None else found.loop.node.extent
        alike.setdefault(role, []).append(found)
    out: dict[Path, LoopPlan] = {}
    for group in alike.values():
        key = (*(x.key for x in group), threads.key)
        plan = _PLANS.get(key, partial(_loop_plan, group, threads.known))
        out.update((x.loop.path, plan) for x in group)
    return out


def _loop_plan(group: Sequence[_Inside], threads: Known) -> LoopPlan:
    """One plan for loops of several roles that run as often: what one hands on the others take."""
    n = group[0].loop.trips
    periods = [_period(list(x.exprs), x.loop.node.var) for x in group]
    period = None if None in periods else math.lcm(*(p or 1 for p in periods))
    if n is None or n > MAX_WHOLE:
        if period is None or 4 * period + 2 > MAX_TRIPS:
            return LoopPlan(np.zeros(0, np.int64))
        if n is None:
            return LoopPlan(np.arange(2 * period + 1, dtype=np.int64), period)
    conditions = [(c, x.loop.node.var) for x in group for c in x.conditions]
    values = _shortened(n, period, conditions, threads)
    if values is not None:
        return LoopPlan(values, period or 0, stands_for_all=True)
    if n <= MAX_TRIPS:
        return LoopPlan(np.arange(n, dtype=np.int64), n, is_whole=True, stands_for_all=True)
    assert period is not None
    return LoopPlan(np.arange(2 * period + 1, dtype=np.int64), period)


def _shortened(
    n: int, period: int | None, conditions: Sequence[tuple[Cond, Var]], threads: Known
) -> Array | None:
    """A period and one more iteration, and as many from the end that there are two periods and only
    whole ones are left out: what lies between is like what comes right before it."""
    if period is None:
        return None
    least = max(2 * period, MIN_TRIPS)
    kept = least + (n - least) % period
    if kept + period > n:
        return None
    first = period + 1
    last = kept - first
    values = np.concatenate((np.arange(first), np.arange(n - last, n))).astype(np.int64)
    middle = np.arange(first, n - last, dtype=np.int64)
    before = first - period + (middle - first) % period
    for c, v in conditions:
        if v in variables(c) and not repeats(c, v, period):
            if middle.size > MAX_WHOLE:
                return None
            here, there = (holds(c, {**threads, v: x[:, None]}) for x in (middle, before))
            if not (np.array_equal(here.may, there.may) and np.array_equal(here.must, there.must)):
                return None
    return values


def _period(exprs: list[Expr], v: Var) -> int | None:
    """The least number of steps of `v` found after which every expression has the same value."""
    period = 1
    dependent = [e for e in exprs if v in variables(e)]
    for e in dependent:
        steps = 1
        for part in walk(e):
            if isinstance(part, Mod | FloorDiv) and v in variables(part):
                steps *= constant_value(part.denominator) or 1
        period = math.lcm(period, steps)
    for steps in range(1, period + 1):
        if period % steps == 0:
            shifted = {v: add(v, steps)}
            if all(substitute(e, shifted) == e for e in dependent):
                return steps
    return None


def repeats(c: Cond, v: Var, period: int) -> bool:
    return v not in variables(c) or substitute_condition(c, {v: add(v, period)}) == c
