"""Which iterations stand for a loop: all of them, or a few periods of everything in it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

import numpy as np

from fusewright.core.conditions import TRUE, Cond, substitute_condition
from fusewright.core.expr import Expr, FloorDiv, Mod, Var, add, constant_value, variables
from fusewright.core.memo import Memo
from fusewright.core.substitution import substitute
from fusewright.core.symbolic import walk
from fusewright.kir.analysis.lanes import Array, Known, holds, is_known, thread_values
from fusewright.kir.analysis.rotation import Turning, rotation
from fusewright.kir.analysis.sites import LoopScope, Path, RoleScope, StatementSite
from fusewright.kir.ir import Buffer, For, Kernel, Memory
from fusewright.kir.traits import MbarrierUse, MemoryUse
from fusewright.target import WARP_SIZE

MAX_TRIPS = 1 << 12
"""Iterations enumerated per loop."""

MIN_TRIPS = 3
"""Iterations that stand for a loop at least: a first, a last, and one that is neither."""

MAX_WHOLE = 1 << 16
"""Iterations of a loop whose conditions are tried for all."""

_MAX_ENDS, _MAX_OPEN = 1 << 12, 1 << 8
"""Iterations of a loop over rings of which each is looked at by itself, for a condition that asks
for threads, and for one that asks for what is not known."""


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
    everything in the loop is the same again; `is_whole` when they are all that there are at any
    size, `stands_for_all` when whole periods only are left out, between iterations that begin and
    end as the loop does."""

    values: Array
    period: int = 0
    is_whole: bool = False
    stands_for_all: bool = False

    @property
    def trips(self) -> int:
        """How many iterations stand for the loop."""
        return len(self.values)


_KEPT_NBYTES = 1 << 22
_KEPT_PERIODS = 1 << 12
"""Expressions of which periods are kept: those of the passes over some large kernels."""
_PLANS: Memo[LoopPlan] = Memo(_KEPT_NBYTES, lambda _, plan: 1024 + plan.values.nbytes)
"""Plans by what they follow from: passes look again at loops that the last one left alone."""
_ALIKE: Memo[LoopPlan] = Memo(_KEPT_NBYTES, lambda _, plan: 1024 + plan.values.nbytes)
"""Plans by what they say: what is enumerated by one is not again by another that says the same."""


@dataclass(slots=True, eq=False)
class _Inside:
    """A loop, the role it stands in, the expressions in it that must repeat, the conditions, the
    accesses to memory and to mbarriers, and the other loops around those."""

    loop: LoopScope
    role: RoleScope | None
    exprs: dict[Expr, None] = field(default_factory=dict[Expr, None])
    conditions: dict[Cond, None] = field(default_factory=dict[Cond, None])
    uses: dict[Hashable, MemoryUse] = field(default_factory=dict[Hashable, MemoryUse])
    mbarriers: dict[Hashable, MbarrierUse] = field(default_factory=dict[Hashable, MbarrierUse])
    others: dict[For, None] = field(default_factory=dict[For, None])

    @property
    def key(self) -> Hashable:
        """All that the iterations that stand for it follow from."""
        return (
            self.loop.trips, self.loop.most, self.loop.node.var, tuple(self.exprs),
            tuple(self.conditions), tuple(self.uses), tuple(self.mbarriers),
            tuple(x.extent for x in self.others), tuple(x.var for x in self.others), self._warps,
        )  # fmt: skip

    @property
    def _warps(self) -> tuple[int, int] | None:
        return None if self.role is None else (self.role.node.first, self.role.node.stop)

    def turning(self, threads: Known) -> Turning:
        """What may turn in it, for the threads that run it."""
        if self._warps is not None:
            first, stop = (WARP_SIZE * w for w in self._warps)
            threads = {v: x[first:stop] for v, x in threads.items()}
        uses, mbarriers = [*self.uses.values()], [*self.mbarriers.values()]
        return Turning(self.loop.node.var, uses, mbarriers, threads)


def loop_plans(
    uses: Iterable[tuple[int, StatementSite, MemoryUse]],
    places: Iterable[StatementSite],
    threads: Threads,
    offsets: Mapping[Buffer, tuple[int, int]],
) -> dict[Path, LoopPlan]:
    """Per loop: all iterations, or a few periods of everything in it that depends on its variable.
    `places` are the sites of statements that are not private, `offsets` the bytes of packed
    buffers: the first, and the one behind the last.

    A loop that allows neither gets no iterations: its variable is unknown.
    """
    alike: dict[object, list[_Inside]] = {}
    for found in _insides(uses, places).values():
        role = found.loop.path if found.role is None else found.loop.node.extent
        alike.setdefault(role, []).append(found)
    out: dict[Path, LoopPlan] = {}
    for group in alike.values():
        key = (*(x.key for x in group), threads.key, tuple(offsets.items()))
        plan = _PLANS.get(key, partial(_same_plan, group, threads.known, offsets))
        out.update((x.loop.path, plan) for x in group)
    return out


def _insides(
    uses: Iterable[tuple[int, StatementSite, MemoryUse]], places: Iterable[StatementSite]
) -> dict[Path, _Inside]:
    """Per loop what stands in it."""
    inside: dict[Path, _Inside] = {}

    def note(site: StatementSite, exprs: Iterable[Expr], predicate: Cond) -> list[_Inside]:
        conditions = [predicate, *(b.node.condition for b in site.branches)]
        around = [inside.setdefault(x.path, _Inside(x, site.role)) for x in site.loops]
        for found in around:
            found.exprs.update(dict.fromkeys(exprs))
            found.conditions.update(dict.fromkeys(conditions))
            found.others.update((x.node, None) for x in site.loops if x is not found.loop)
        return around

    for _, site, use in uses:
        counts = use.buffer.memory is Memory.SHARED or use.completes.at_once
        key = use.buffer, use.index, use.width, use.rank
        for found in note(site, [use.index] if counts else [], use.predicate):
            if counts:
                found.uses.setdefault(key, use)
    for site in places:
        mbarrier = site.statement.mbarrier_use()
        if mbarrier is not None:
            key = mbarrier.barrier, mbarrier.act, mbarrier.steers, mbarrier.rank
            for found in note(site, mbarrier.steers, TRUE):
                found.mbarriers.setdefault(key, mbarrier)
    return inside


def _same_plan(
    group: Sequence[_Inside], threads: Known, offsets: Mapping[Buffer, tuple[int, int]]
) -> LoopPlan:
    """The plan of loops, as the one object that says this."""
    plan = _loop_plan(group, threads, offsets)
    key = plan.values.tobytes(), plan.period, plan.is_whole, plan.stands_for_all
    return _ALIKE.get(key, lambda: plan)


def _loop_plan(
    group: Sequence[_Inside], threads: Known, offsets: Mapping[Buffer, tuple[int, int]]
) -> LoopPlan:
    """One plan for loops of several roles that run as often: what one hands on the others take."""
    n = group[0].loop.trips
    periods = [_period(list(x.exprs), x.loop.node.var) for x in group]
    period = None if None in periods else math.lcm(*(p or 1 for p in periods))
    if n is None or n > MAX_WHOLE:
        if period is None or 4 * period + 2 > MAX_TRIPS:
            return _at_most([x.loop.most for x in group])
        if n is None:
            return LoopPlan(np.arange(2 * period + 1, dtype=np.int64), period)
    conditions = [(c, x.loop.node.var) for x in group for c in x.conditions]
    values = _shortened(n, period, conditions, threads)
    if period is not None and (values is None or len(values) > MIN_TRIPS):
        turned = _turned(n, period, group, threads, offsets)
        if turned is not None and (values is None or len(turned) < len(values)):
            values = turned
    if values is not None:
        return LoopPlan(values, period or 0, stands_for_all=True)
    if n <= MAX_TRIPS:
        return LoopPlan(np.arange(n, dtype=np.int64), n, is_whole=True, stands_for_all=True)
    assert period is not None
    return LoopPlan(np.arange(2 * period + 1, dtype=np.int64), period)


def _at_most(most: Sequence[int | None]) -> LoopPlan:
    """All iterations that loops have at some size: what may happen at any, but the last one that
    there is at a size is not known. None where they may be too many."""
    known = [m for m in most if m is not None]
    n = max(known, default=0) if len(known) == len(most) else 0
    return LoopPlan(
        np.arange(n if n <= MAX_TRIPS else 0, dtype=np.int64), n, is_whole=0 < n <= MAX_TRIPS
    )


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


def _turned(
    n: int,
    period: int,
    group: Sequence[_Inside],
    threads: Known,
    offsets: Mapping[Buffer, tuple[int, int]],
) -> Array | None:
    """Fewer iterations than two periods for a loop whose iterations turn rings; None where they are
    not known to, or where these are all there are.

    Which iterations a and b of the loop meet follows, of two accesses to a ring, from b - a modulo
    `turn`, after which slots repeat, and of an access to a ring and one to fixed bytes, from that
    one's iteration modulo `turn`. The classes of pairs (`kir/analysis/hazards.py`) tell apart
    b - a = 0, 1, and more; of pairs that a loop around carries, or none does, whether a is the last
    iteration, and whether b is the first; and conditions tell some iterations at both ends from the
    steady ones between. What is kept stands at both ends, whole periods between are left out, and
    `turn + 2` steady iterations follow each other in what is kept. Then each pair of the loop has
    one that is kept, in the same class, of iterations with the same remainders:

    - Both are steady. Carried by this loop, the first of the row has one right behind it, and from
      two to `turn + 1` iterations later one for each b - a; the first `turn` of the row have each
      remainder of a, all with a b right behind and further behind. Carried by another one, each is
      found alone: but for the first and the last, `turn` in a row have each remainder.
    - One is at an end, which is kept itself. The steady ones have each remainder; the one beside an
      end is kept, and all others are two or more away from it, as what they stand for.
    - Both are at ends: they are kept themselves, and as far apart modulo the period.

    An access meets by the sum of what its loops add to its slot, so that in each of several loops
    an iteration may be replaced by one of the same remainder. Hence no condition may ask for two
    loops at once, and no loop inside may run as often as this one says.

    Where nothing is known of a condition but that it differs, all iterations may touch the same,
    and only the branches differ in which operations start and end. These ask for the first access
    that meets an operation, `turn` iterations behind it at the latest, so that `turn + 1` in a row
    do. What is under way and what roles know behind an iteration is the same as behind the one
    before, with slots renamed, since phases turn with their slots.
    """
    turn = (
        None if n < MIN_TRIPS + period else rotation([x.turning(threads) for x in group], offsets)
    )
    ends = None if turn is None else _ends(n, group, threads)
    if turn is None or ends is None:
        return None
    front, tail = (max(found.touch, found.branch) for found in ends)
    touched = sum(found.touch for found in ends) + turn + 2
    least = max(touched, front + tail + turn + 1)
    kept = least + (n - least) % period
    if kept + period > n:
        return None
    first = front + (kept - front - tail + 1) // 2
    return np.concatenate((np.arange(first), np.arange(n - kept + first, n))).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _End:
    """How many iterations from one end of a loop differ from those between in what they may touch,
    and in which branch they are."""

    touch: int = 0
    branch: int = 0

    def joined(self, other: _End) -> _End:
        """That of both of two conditions."""
        return _End(max(self.touch, other.touch), max(self.branch, other.branch))


def _ends(n: int, group: Sequence[_Inside], threads: Known) -> tuple[_End, _End] | None:
    """How the first and the last iterations of loops differ; None if that is not known."""
    front, tail = _End(), _End()
    for x in group:
        v, loops = x.loop.node.var, {y.var for y in x.others}
        if any(v in variables(y.extent) for y in x.others):
            return None
        for c in x.conditions:
            inside = variables(c)
            if v not in inside:
                continue
            known = {**threads, v: np.arange(n, dtype=np.int64)[:, None]}
            is_open = not is_known(c, known)
            is_long = n > (_MAX_OPEN if is_open else _MAX_ENDS)
            if not loops.isdisjoint(inside) or (is_long and len(inside) > 1):
                return None
            touch, branch = _unlike(_touching(n, c, known)), (0, 0)
            if is_open:
                found = [substitute_condition(c, {v: i}) for i in range(n)]
                branch = _unlike(np.array([x == found[n // 2] for x in found])[:, None])
            if touch is None or branch is None:
                return None
            front = front.joined(_End(touch[0], branch[0]))
            tail = tail.joined(_End(touch[1], branch[1]))
    return front, tail


def _touching(n: int, c: Cond, known: Known) -> Array:
    """By iteration a row that says which threads a condition may, and must, hold for."""
    found = holds(c, known)
    may, must = (np.atleast_2d(x) for x in np.broadcast_arrays(found.may, found.must))
    both = np.concatenate((may, must), axis=1)
    return np.broadcast_to(both, (n, both.shape[1]))


def _unlike(rows: Array) -> tuple[int, int] | None:
    """How many rows from either end differ from those between, which are the same; None where they
    are not."""
    alike = (rows == rows[len(rows) // 2]).all(axis=1)
    begin, end = int(alike.argmax()), int(alike[::-1].argmax())
    return (begin, end) if alike[begin : len(rows) - end].all() else None


def _period(exprs: list[Expr], v: Var) -> int | None:
    """The least number of steps of `v` found after which every expression has the same value."""
    found = [_period_of(e, v) for e in exprs if v in variables(e)]
    return None if None in found else math.lcm(*(p or 1 for p in found))


@lru_cache(maxsize=_KEPT_PERIODS)
def _period_of(e: Expr, v: Var) -> int | None:
    """As `_period`, of one expression: a divisor of the product of all that it is divided by."""
    period = 1
    for part in walk(e):
        if isinstance(part, Mod | FloorDiv) and v in variables(part):
            period *= constant_value(part.denominator) or 1
    divisors = (steps for steps in range(1, period + 1) if period % steps == 0)
    return next((n for n in divisors if substitute(e, {v: add(v, n)}) == e), None)


def repeats(c: Cond, v: Var, period: int) -> bool:
    return v not in variables(c) or substitute_condition(c, {v: add(v, period)}) == c
