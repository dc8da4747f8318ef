"""Every access to memory that threads share: what, where, by whom, as enumerated byte ranges.

A statement says which memory it touches (`kir/traits.py`); everything behind it works on
`Access`. What an asynchronous operation does is two accesses: one where it is issued, and one
where its completion is known (`kir/analysis/completion.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

import numpy as np

from fusewright.core.conditions import TRUE, Cond, negate, substitute_condition
from fusewright.core.expr import Expr, FloorDiv, Mod, Var, add, constant_value, variables
from fusewright.core.substitution import substitute
from fusewright.core.symbolic import walk
from fusewright.kir.analysis.async_run import Instance
from fusewright.kir.analysis.completion import Completions, completions
from fusewright.kir.analysis.lanes import (
    ALWAYS,
    Array,
    Holds,
    Known,
    Unknown,
    conjunction,
    evaluate_lanes,
    holds,
    split_unknown,
    thread_values,
)
from fusewright.kir.analysis.sites import KEPT, LoopScope, Path, RoleScope, StatementSite, sites
from fusewright.kir.analysis.uses import memory_uses
from fusewright.kir.clusters import exported_buffers
from fusewright.kir.ir import Alloc, Buffer, Kernel, Memory
from fusewright.kir.traits import MemoryUse
from fusewright.target import WARP_SIZE

MAX_ENTRIES = 1 << 18
"""Byte ranges enumerated per access; an access with more is treated as touching everything."""

MAX_PLACES = 1 << 14
"""Different places of wide accesses."""

MAX_TRIPS = 1 << 12
"""Iterations enumerated per loop."""

MIN_TRIPS = 3
"""Iterations that stand for a loop at least: a first, a last, and one that is neither."""

MAX_WHOLE = 1 << 16
"""Iterations of a loop whose conditions are tried for all."""


class Moment(Enum):
    """Which part of a use an access is: all of it, or the issue or the completion of one that is
    asynchronous. An issue comes after what precedes it, a completion before what follows it."""

    WHOLE = "whole"
    ISSUE = "issue"
    DONE = "done"


@dataclass(frozen=True, slots=True, eq=False)
class Enumerated:
    """Byte ranges `[lo, lo + nbytes)` relative to the buffer, by (loops..., thread).

    `lo` and `mask` broadcast against each other; `loops` are the dimensions before the last, which
    may count the threads several times over, for a completion of several operations.
    `unknown` is a summand of `lo` that is the same everywhere in the block.
    """

    lo: Array
    mask: Holds
    unknown: Unknown


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One use of one buffer by one statement. `order` is its textual position.

    `ranges` is None when the addresses are not known; then any byte of the buffer is meant.
    `trips` gives, per enclosing loop, the number of iterations enumerated, and `stands_for_all`
    whether they, in order, show all that the loop does. Of a completion, `site`
    and `order` are those of the wait; it `is_public` when all threads of the role, or of the block,
    wait. An access to a buffer
    that other blocks of the cluster write is one by the `nthreads` threads of the whole cluster,
    to the `ncopies` copies of all blocks side by side.
    """

    order: int
    site: StatementSite
    use: MemoryUse
    trips: tuple[int, ...]
    ranges: Enumerated | None
    nthreads: int
    stands_for_all: tuple[bool, ...] = ()
    ncopies: int = 1
    moment: Moment = Moment.WHOLE
    is_public: bool = False

    @property
    def can_precede(self) -> bool:
        """Whether syncs behind it can order later accesses after it: all threads that wait for a
        completion are ordered already, and who only issued something does not know its end."""
        is_known = self.is_public and self.site.role is None
        return self.moment is not Moment.ISSUE and not is_known

    @property
    def can_follow(self) -> bool:
        """Whether syncs before it can order it after earlier accesses."""
        return self.moment is not Moment.DONE

    @property
    def buffer(self) -> Buffer:
        """The buffer that is touched."""
        return self.use.buffer

    @property
    def writes(self) -> bool:
        """Whether the access writes."""
        return self.use.writes

    @property
    def nbytes(self) -> int:
        """Bytes per thread."""
        return self.use.width * self.use.buffer.dtype.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What `find` found: the accesses that can take part in a hazard, in textual order, the
    completions of asynchronous ones, the values of each loop's variable that are enumerated, and
    the sites by textual position."""

    accesses: tuple[Access, ...]
    completions: Completions
    values: dict[Path, Array]
    places: tuple[StatementSite, ...]

    @property
    def trips(self) -> dict[Path, int]:
        """How many iterations are enumerated of each loop."""
        return {path: len(v) for path, v in self.values.items()}


def accesses(kernel: Kernel) -> tuple[Access, ...]:
    """The accesses that can take part in a hazard, in textual order.

    Those to shared memory, and those to global buffers that this launch writes, other than those
    it writes once; two parameters are two places in memory.
    """
    return find(kernel).accesses


@lru_cache(maxsize=KEPT)
def find(kernel: Kernel) -> Found:
    """`accesses`, with what was found out on the way. Raises UnsupportedError when asynchronous
    operations or their waits cannot be enumerated."""
    places = sites(kernel)
    exported = exported_buffers(kernel)
    uses = [
        (order, site, _across(use, kernel) if use.buffer in exported else use)
        for order, site in enumerate(places)
        for use in memory_uses(site.statement)
    ]
    written = {u.buffer for _, _, u in uses if u.writes}.difference(kernel.stored_once)
    uses = [x for x in uses if x[2].buffer.memory is Memory.SHARED or x[2].buffer in written]
    plans = _loop_plans(uses, places, thread_values(kernel))
    values = {path: plan.values for path, plan in plans.items()}
    own, every = thread_values(kernel), thread_values(kernel, across_blocks=True)
    base = tuple(
        _access(order, site, use, every, plans, kernel.cluster_size)
        if use.buffer in exported
        else _access(order, site, use, own, plans)
        for order, site, use in uses
    )
    done = completions(kernel, places, values)
    ends = (end for a in base for end in _ends(a, done, places, plans))
    return Found(tuple(sorted((*base, *ends), key=lambda a: a.order)), done, values, places)


def _across(use: MemoryUse, kernel: Kernel) -> MemoryUse:
    """The use with its index in the copies of all blocks of the cluster side by side."""
    rank = kernel.cluster[0].var if use.rank is None else use.rank
    return replace(use, index=rank * use.buffer.size + use.index)


def shared_allocs(kernel: Kernel) -> tuple[tuple[StatementSite, Alloc], ...]:
    """The allocations of shared memory, in textual order."""
    return tuple(
        (s, s.statement)
        for s in sites(kernel)
        if isinstance(s.statement, Alloc) and s.statement.buffer.memory is Memory.SHARED
    )


# --- loops that are too long to enumerate -------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _LoopPlan:
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


@dataclass(slots=True, eq=False)
class _Inside:
    """A loop, the role it stands in, the expressions in it that must repeat, and the conditions."""

    loop: LoopScope
    role: RoleScope | None
    exprs: dict[Expr, None]
    conditions: dict[Cond, None]


def _loop_plans(
    uses: Iterable[tuple[int, StatementSite, MemoryUse]],
    places: Iterable[StatementSite],
    threads: Known,
) -> dict[Path, _LoopPlan]:
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
        mbarrier = site.statement.mbarrier_use()
        if mbarrier is not None:
            note(site, mbarrier.steers, TRUE)
    alike: dict[object, list[_Inside]] = {}
    for found in inside.values():
        role = found.loop.path if found.role is None else found.loop.node.extent
        alike.setdefault(role, []).append(found)
    plans = {id(group[0]): _loop_plan(group, threads) for group in alike.values()}
    return {x.loop.path: plans[id(group[0])] for group in alike.values() for x in group}


def _loop_plan(group: Sequence[_Inside], threads: Known) -> _LoopPlan:
    """One plan for loops of several roles that run as often: what one hands on the others take."""
    n = group[0].loop.trips
    periods = [_period(list(x.exprs), x.loop.node.var) for x in group]
    period = None if None in periods else math.lcm(*(p or 1 for p in periods))
    if n is None or n > MAX_WHOLE:
        if period is None or 4 * period + 2 > MAX_TRIPS:
            return _LoopPlan(np.zeros(0, np.int64))
        if n is None:
            return _LoopPlan(np.arange(2 * period + 1, dtype=np.int64), period)
    conditions = [(c, x.loop.node.var) for x in group for c in x.conditions]
    values = _shortened(n, period, conditions, threads)
    if values is not None:
        return _LoopPlan(values, period or 0, stands_for_all=True)
    if n <= MAX_TRIPS:
        return _LoopPlan(np.arange(n, dtype=np.int64), n, is_whole=True, stands_for_all=True)
    assert period is not None
    return _LoopPlan(np.arange(2 * period + 1, dtype=np.int64), period)


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
        if v in variables(c) and not _repeats(c, v, period):
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


def _repeats(c: Cond, v: Var, period: int) -> bool:
    return v not in variables(c) or substitute_condition(c, {v: add(v, period)}) == c


# --- enumeration --------------------------------------------------------------------------------


def _access(
    order: int,
    site: StatementSite,
    use: MemoryUse,
    threads: Known,
    plans: dict[Path, _LoopPlan],
    ncopies: int = 1,
) -> Access:
    loops = site.loops
    trips = tuple(plans[loop.path].trips for loop in loops)
    nthreads = next(iter(threads.values())).shape[0]
    values = [plans[loop.path].values for loop in loops]
    known = _with_loops(_with_runs(threads, use), loops, values)
    varying = frozenset(x.node.var for x in loops if not _is_enumerated(use.index, x, plans))
    steady = {v: values for v, values in known.items() if v not in varying}
    split = split_unknown(use.index, steady, varying)
    mask = _mask(site, use, known, plans, nthreads, ncopies)
    moment = Moment.WHOLE if use.completes.at_once else Moment.ISSUE
    all_of = tuple(plans[loop.path].stands_for_all for loop in loops)
    unknown = Access(order, site, use, trips, None, nthreads, all_of, ncopies, moment)
    if split is None:
        return unknown
    lo = np.asarray(evaluate_lanes(split[0], known)) * use.buffer.dtype.nbytes
    lo = lo.reshape((1,) * (len(loops) + 1 - lo.ndim) + lo.shape)
    nlanes = nthreads * use.nruns
    entries = math.prod(np.broadcast_shapes(lo.shape, np.shape(mask.may), (nlanes,)))
    if use.issuer is not None:
        entries //= nthreads // ncopies
    if entries * use.width > MAX_ENTRIES:
        entries = _nplaces(lo)
    if entries * use.width > MAX_ENTRIES and entries > MAX_PLACES:
        return unknown
    return replace(unknown, ranges=Enumerated(lo, mask, split[1]))


def _nplaces(lo: Array) -> int:
    """How many different places there are, counted for each iteration."""
    rows = lo.reshape(-1, lo.shape[-1])
    return sum(np.unique(row).size for row in rows)


def _is_enumerated(index: Expr, loop: LoopScope, plans: dict[Path, _LoopPlan]) -> bool:
    """Whether the iterations that stand for a loop show every value of an index."""
    plan, v = plans[loop.path], loop.node.var
    if plan.is_whole or not plan.trips:
        return plan.is_whole
    return substitute(index, {v: add(v, plan.period)}) == index


def _with_loops(threads: Known, loops: tuple[LoopScope, ...], values: Sequence[Array]) -> Known:
    known = dict(threads)
    for i, (loop, found) in enumerate(zip(loops, values, strict=True)):
        if len(found):
            shape = [1] * (len(loops) + 1)
            shape[i] = len(found)
            known[loop.node.var] = found.reshape(shape)
    return known


def _with_runs(threads: Known, use: MemoryUse) -> Known:
    """What threads are known by, and the number of the run: every thread once for each run."""
    if use.run is None:
        return threads
    n, nthreads = use.nruns, next(iter(threads.values())).shape[0]
    known = {v: np.tile(values, n) for v, values in threads.items()}
    return known | {use.run: np.repeat(np.arange(n, dtype=np.int64), nthreads)}


def _mask(
    site: StatementSite,
    use: MemoryUse,
    known: Known,
    plans: dict[Path, _LoopPlan],
    nthreads: int,
    ncopies: int,
) -> Holds:
    """Where the access happens: its predicate, the conditions of the branches around it, and the
    threads that it is for."""
    who = _participants(site, use, nthreads, ncopies)
    conditions = [use.predicate]
    for branch in site.branches:
        c = branch.node.condition
        conditions.append(c if branch.taken else negate(c))
    if all(c is TRUE for c in conditions):
        return who
    usable = dict(known)
    for loop in site.loops:
        plan, v = plans[loop.path], loop.node.var
        if plan.stands_for_all or not plan.trips:
            continue
        if not all(_repeats(c, v, plan.period) for c in conditions):
            del usable[v]
    return conjunction([who, *(holds(c, usable) for c in conditions)])


def _participants(site: StatementSite, use: MemoryUse, nthreads: int, ncopies: int) -> Holds:
    linear = np.tile(np.arange(nthreads, dtype=np.int64), use.nruns)
    if use.issuer is not None:
        mine = linear % (nthreads // ncopies) == use.issuer
        return Holds(mine, mine)
    if site.role is None:
        return ALWAYS
    warps = linear // WARP_SIZE
    mine = (site.role.node.first <= warps) & (warps < site.role.node.stop)
    return Holds(mine, mine)


# --- where asynchronous accesses end -------------------------------------------------------------


def _ends(
    access: Access,
    done: Completions,
    places: Sequence[StatementSite],
    plans: Mapping[Path, _LoopPlan],
) -> Iterator[Access]:
    """The completions of an asynchronous access, one for each wait that has any."""
    waits: dict[int, list[tuple[Instance, Instance]]] = {}
    for instance in done.instances(access.order):
        for wait in done.ends_of(instance, access.use.completes):
            waits.setdefault(wait.order, []).append((instance, wait))
    for order, pairs in waits.items():
        site = places[order]
        counts = tuple(plans[loop.path].trips for loop in site.loops)
        ranges = _ranges_at(access, pairs, counts)
        is_public = pairs[0][1].is_public
        yield replace(
            access,
            order=order,
            site=site,
            trips=counts,
            stands_for_all=tuple(plans[loop.path].stands_for_all for loop in site.loops),
            ranges=ranges,
            moment=Moment.DONE,
            is_public=is_public,
        )


def _ranges_at(
    access: Access,
    pairs: Sequence[tuple[Instance, Instance]],
    counts: tuple[int, ...],
) -> Enumerated | None:
    """The byte ranges of the operations, by iteration of the wait instead of their own."""
    nthreads = access.nthreads * access.use.nruns
    if access.ranges is None:
        return None
    together: dict[tuple[int, ...], int] = {}
    slots: list[int] = []
    for _, wait in pairs:
        slots.append(together.get(wait.coords, 0))
        together[wait.coords] = slots[-1] + 1
    most = max(together.values())
    if math.prod(counts) * most * nthreads > MAX_ENTRIES:
        return None
    ranges, whole = access.ranges, (*access.trips, nthreads)
    sources = [np.broadcast_to(x, whole) for x in (ranges.lo, ranges.mask.may, ranges.mask.must)]
    shape = (*counts, most * nthreads)
    lo = np.zeros(shape, dtype=np.int64)
    may, must = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    for (issue, wait), slot in zip(pairs, slots, strict=True):
        lanes = slice(slot * nthreads, (slot + 1) * nthreads)
        for out, source in zip((lo, may, must), sources, strict=True):
            out[(*wait.coords, lanes)] = source[issue.coords]
    return Enumerated(lo, Holds(may, must), ranges.unknown)
