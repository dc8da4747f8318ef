"""Every access to memory that threads share: what, where, by whom, as enumerated byte ranges.

A statement says which memory it touches (`kir/traits.py`); everything behind it works on
`Access`. What an asynchronous operation does is two accesses: one where it is issued, and one
where its completion is known (`kir/analysis/completion.py`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TypeAlias

import numpy as np

from fusewright.choice import Choice
from fusewright.core.conditions import TRUE, Cond, negate
from fusewright.core.expr import Expr, add, constant_value
from fusewright.core.memo import Memo
from fusewright.core.substitution import substitute
from fusewright.kir.analysis.async_run import Instance
from fusewright.kir.analysis.completion import Completions, completions
from fusewright.kir.analysis.iterations import (
    LoopPlan,
    Threads,
    loop_plans,
    repeats,
    threads_in,
)
from fusewright.kir.analysis.lanes import (
    ALWAYS,
    Array,
    Holds,
    Known,
    Unknown,
    conjunction,
    different,
    evaluate_lanes,
    holds,
    split_unknown,
)
from fusewright.kir.analysis.sites import KEPT, LoopScope, Path, StatementSite, acting_sites, sites
from fusewright.kir.analysis.uses import memory_uses
from fusewright.kir.clusters import exported_buffers
from fusewright.kir.ir import Alloc, Buffer, Kernel, Memory
from fusewright.kir.traits import MemoryUse
from fusewright.target import WARP_SIZE

MAX_ENTRIES = 1 << 18
"""Byte ranges enumerated per access; an access with more is treated as touching everything."""

MAX_PLACES = 1 << 14
"""Different places of wide accesses."""


class Moment(Choice):
    """Which part of a use an access is: all of it, or the issue or the completion of one that is
    asynchronous. An issue comes after what precedes it, a completion before what follows it."""

    WHOLE = "whole"
    ISSUE = "issue"
    DONE = "done"


@dataclass(frozen=True, slots=True, eq=False)
class Enumerated:
    """Byte ranges `[lo, lo + nbytes)` relative to the buffer, by (loops..., thread).

    `lo` and `mask` broadcast against each other; `loops` are the dimensions before the last, which
    counts the threads several times over where an access consists of several runs.
    `unknown` is a summand of `lo` that is the same everywhere in the block; `starts` are the
    different values of `lo`. What is enumerated alike is one object, whichever statement it is of.
    """

    lo: Array
    mask: Holds
    unknown: Unknown
    starts: Array


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """The operations that a wait ends: `issue` is the access that issues them, and every row of
    `issued` and of `waited` the iteration of an operation and that of the wait behind it."""

    issue: Access
    issued: Array
    waited: Array


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One use of one buffer by one statement. `order` is its textual position.

    `ranges` is None when the addresses are not known; then any byte of the buffer is meant.
    `trips` gives, per enclosing loop, the number of iterations enumerated, and `stands_for_all`
    whether they, in order, show all that the loop does. Of a completion, `site`, `order` and
    `trips` are those of the wait, `ranges` those of the operations by their own iterations, and
    `ended` says which; it `is_public` when all threads of the role, or of the block, wait. An
    access to a buffer that other blocks of the cluster write is one by the `nthreads` threads of
    the whole cluster, to the `ncopies` copies of all blocks side by side.
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
    ended: Ended | None = None

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
        for order, site in acting_sites(kernel)
        for use in memory_uses(site.statement)
    ]
    written = {u.buffer for _, _, u in uses if u.writes}.difference(kernel.stored_once)
    uses = [x for x in uses if x[2].buffer.memory is Memory.SHARED or x[2].buffer in written]
    own, every = threads_in(kernel), threads_in(kernel, across_blocks=True)
    acting = [site for _, site in acting_sites(kernel)]
    plans = loop_plans(uses, acting, own, _packed(kernel))
    values = {path: plan.values for path, plan in plans.items()}
    base = tuple(
        _access(order, site, use, every if use.buffer in exported else own, plans)
        for order, site, use in uses
    )
    done = completions(kernel, places, values)
    ends = (end for a in base for end in _ends(a, done, places, plans))
    return Found(tuple(sorted((*base, *ends), key=lambda a: a.order)), done, values, places)


def _across(use: MemoryUse, kernel: Kernel) -> MemoryUse:
    """The use with its index in the copies of all blocks of the cluster side by side."""
    rank = kernel.cluster[0].var if use.rank is None else use.rank
    return replace(use, index=rank * use.buffer.size + use.index)


@lru_cache(maxsize=KEPT)
def shared_allocs(kernel: Kernel) -> tuple[tuple[StatementSite, Alloc], ...]:
    """The allocations of shared memory, in textual order."""
    return tuple(
        (s, s.statement)
        for s in sites(kernel)
        if type(s.statement) is Alloc and s.statement.buffer.memory is Memory.SHARED
    )


def _packed(kernel: Kernel) -> dict[Buffer, tuple[int, int]]:
    """The bytes of packed buffers: the first, and the one behind the last."""
    out: dict[Buffer, tuple[int, int]] = {}
    for _, a in shared_allocs(kernel):
        if a.offset is not None:
            nbytes = (constant_value(a.buffer.size) or 0) * a.buffer.dtype.nbytes
            out[a.buffer] = a.offset, a.offset + nbytes
    return out


# --- what is enumerated once --------------------------------------------------------------------

_KEPT_NBYTES = 1 << 26
"""Of what is kept: that of the passes over one large kernel, or of some forty. Where less is kept
than one kernel needs, each pass enumerates most of it again."""
_ENTRY_NBYTES = 1 << 10
"""What keeping something takes beside its arrays, roughly."""


def _nbytes(_: Hashable, found: Enumerated | None) -> int:
    if found is None:
        return _ENTRY_NBYTES
    return _ENTRY_NBYTES + 2 * (found.lo.nbytes + found.mask.may.nbytes + found.mask.must.nbytes)


_ENUMERATED: Memo[Enumerated | None] = Memo(_KEPT_NBYTES, _nbytes)
_ALIKE: Memo[Enumerated] = Memo(_KEPT_NBYTES, _nbytes)


def _enumerated(lo: Array, mask: Holds, unknown: Unknown) -> Enumerated:
    """The ranges as the one object that is like them."""
    may, must = np.asarray(mask.may), np.asarray(mask.must)
    key = (lo.shape, may.shape, must.shape, lo.tobytes(), may.tobytes(), must.tobytes(), unknown)
    return _ALIKE.get(key, lambda: Enumerated(lo, mask, unknown, different(lo)))


# --- enumeration --------------------------------------------------------------------------------


def _access(
    order: int,
    site: StatementSite,
    use: MemoryUse,
    threads: Threads,
    plans: Mapping[Path, LoopPlan],
) -> Access:
    around = tuple((loop, plans[loop.path]) for loop in site.loops)
    conditions = _conditions(site, use)
    role = None if site.role is None else (site.role.node.first, site.role.node.stop)
    key = (
        use.index, use.run, use.width, use.buffer.dtype, use.issuer, role, threads.key,
        conditions, tuple((loop.node.var, plan) for loop, plan in around),
    )  # fmt: skip
    make = partial(_enumerate, use, conditions, role, threads, around)
    return Access(
        order,
        site,
        use,
        trips=tuple(plan.trips for _, plan in around),
        ranges=_ENUMERATED.get(key, make),
        nthreads=threads.nthreads,
        stands_for_all=tuple(plan.stands_for_all for _, plan in around),
        ncopies=threads.ncopies,
        moment=Moment.WHOLE if use.completes.at_once else Moment.ISSUE,
    )


_Around: TypeAlias = Sequence[tuple[LoopScope, LoopPlan]]
"""The loops around an access, outermost first, and the iterations that stand for each."""


def _enumerate(
    use: MemoryUse,
    conditions: Sequence[Cond],
    role: tuple[int, int] | None,
    threads: Threads,
    around: _Around,
) -> Enumerated | None:
    known = _with_loops(_with_runs(threads, use), around)
    varying = frozenset(x.node.var for x, plan in around if not _is_enumerated(use.index, x, plan))
    steady = {v: values for v, values in known.items() if v not in varying}
    split = split_unknown(use.index, steady, varying)
    if split is None:
        return None
    mask = _mask(conditions, _participants(role, use, threads), known, around)
    lo = np.asarray(evaluate_lanes(split[0], known)) * use.buffer.dtype.nbytes
    lo = lo.reshape((1,) * (len(around) + 1 - lo.ndim) + lo.shape)
    nlanes = threads.nthreads * use.nruns
    entries = math.prod(np.broadcast_shapes(lo.shape, np.shape(mask.may), (nlanes,)))
    if use.issuer is not None:
        entries //= threads.nthreads // threads.ncopies
    if entries * use.width > MAX_ENTRIES:
        entries = _nplaces(lo)
    if entries * use.width > MAX_ENTRIES and entries > MAX_PLACES:
        return None
    return _enumerated(lo, mask, split[1])


def _nplaces(lo: Array) -> int:
    """How many different places there are, counted for each iteration."""
    rows = np.sort(lo.reshape(-1, lo.shape[-1]), axis=1)
    return rows.shape[0] + int(np.count_nonzero(rows[:, 1:] != rows[:, :-1]))


def _is_enumerated(index: Expr, loop: LoopScope, plan: LoopPlan) -> bool:
    """Whether the iterations that stand for a loop show every value of an index."""
    v = loop.node.var
    if plan.is_whole or not plan.trips:
        return plan.is_whole
    return substitute(index, {v: add(v, plan.period)}) == index


def _with_loops(threads: Known, around: _Around) -> Known:
    known = dict(threads)
    for i, (loop, plan) in enumerate(around):
        if plan.trips:
            shape = [1] * (len(around) + 1)
            shape[i] = plan.trips
            known[loop.node.var] = plan.values.reshape(shape)
    return known


def _with_runs(threads: Threads, use: MemoryUse) -> Known:
    """What threads are known by, and the number of the run: every thread once for each run."""
    if use.run is None:
        return threads.known
    n = use.nruns
    known = {v: np.tile(values, n) for v, values in threads.known.items()}
    return known | {use.run: np.repeat(np.arange(n, dtype=np.int64), threads.nthreads)}


def _conditions(site: StatementSite, use: MemoryUse) -> tuple[Cond, ...]:
    """Under which an access happens: its predicate, and those of the branches around it."""
    branches = ((b.node.condition, b.taken) for b in site.branches)
    return use.predicate, *(c if taken else negate(c) for c, taken in branches)


def _mask(conditions: Sequence[Cond], who: Holds, known: Known, around: _Around) -> Holds:
    """Where conditions hold, among the threads that an access is for."""
    if all(c is TRUE for c in conditions):
        return who
    usable = dict(known)
    for loop, plan in around:
        if plan.stands_for_all or plan.is_whole or not plan.trips:
            continue
        if not all(repeats(c, loop.node.var, plan.period) for c in conditions):
            del usable[loop.node.var]
    return conjunction([who, *(holds(c, usable) for c in conditions)])


def _participants(role: tuple[int, int] | None, use: MemoryUse, threads: Threads) -> Holds:
    linear = np.tile(np.arange(threads.nthreads, dtype=np.int64), use.nruns)
    if use.issuer is not None:
        mine = linear % (threads.nthreads // threads.ncopies) == use.issuer
        return Holds(mine, mine)
    if role is None:
        return ALWAYS
    warps = linear % (threads.nthreads // threads.ncopies) // WARP_SIZE
    mine = (role[0] <= warps) & (warps < role[1])
    return Holds(mine, mine)


# --- where asynchronous accesses end -------------------------------------------------------------


def _ends(
    access: Access,
    done: Completions,
    places: Sequence[StatementSite],
    plans: Mapping[Path, LoopPlan],
) -> Iterator[Access]:
    """The completions of an asynchronous access, one for each wait that has any."""
    waits: dict[int, list[tuple[Instance, Instance]]] = {}
    ends = done.ends(access.use.completes)
    for instance in done.instances(access.order):
        for wait in ends.get(instance, ()):
            if wait.order not in waits:
                waits[wait.order] = []
            waits[wait.order].append((instance, wait))
    for order, pairs in waits.items():
        site = places[order]
        yield replace(
            access,
            order=order,
            site=site,
            trips=tuple(plans[loop.path].trips for loop in site.loops),
            stands_for_all=tuple(plans[loop.path].stands_for_all for loop in site.loops),
            moment=Moment.DONE,
            is_public=pairs[0][1].is_public,
            ended=_ended(access, pairs),
        )


def _ended(access: Access, pairs: Sequence[tuple[Instance, Instance]]) -> Ended:
    issued, waited = (
        np.array([p[k].coords for p in pairs], np.int64).reshape(len(pairs), -1) for k in (0, 1)
    )
    return Ended(access, issued, waited)
