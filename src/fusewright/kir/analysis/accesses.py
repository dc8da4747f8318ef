"""Every access to memory that threads share: what, where, by whom, as enumerated byte ranges.

`memory_uses` is the one place that knows which node touches which memory; everything behind it
works on `Access`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fusewright.core.expr import (
    TRUE,
    Cond,
    Expr,
    FloorDiv,
    Mod,
    Var,
    add,
    constant_value,
    negate,
    substitute,
    substitute_condition,
    variables,
    walk,
)
from fusewright.errors import UnsupportedError
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
from fusewright.kir.analysis.sites import LoopScope, Path, Site, sites
from fusewright.kir.ir import (
    Alloc,
    Buffer,
    BulkLoad,
    BulkReduce,
    BulkStore,
    CpAsync,
    Kernel,
    Load,
    Memory,
    Statement,
    Store,
)

MAX_ENTRIES = 1 << 18
"""Byte ranges enumerated per access; an access with more is treated as touching everything."""

MAX_TRIPS = 1 << 12
"""Iterations enumerated per loop."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryUse:
    """One operand of a statement in shared or global memory; `index` and `width` in elements."""

    buffer: Buffer
    writes: bool
    index: Expr
    width: int
    predicate: Cond


@dataclass(frozen=True, slots=True, eq=False)
class Enumerated:
    """Byte ranges `[lo, lo + nbytes)` relative to the buffer, by (loops..., thread).

    `lo` and `mask` broadcast against each other; `loops` are the dimensions before the last.
    `unknown` is a summand of `lo` that is the same everywhere in the block.
    """

    lo: Array
    mask: Holds
    unknown: Unknown


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One use of one buffer by one statement. `order` is its textual position.

    `ranges` is None when the addresses are not known; then any byte of the buffer is meant.
    `trips` gives, per enclosing loop, the number of iterations enumerated.
    """

    order: int
    site: Site
    use: MemoryUse
    trips: tuple[int, ...]
    ranges: Enumerated | None

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


def memory_uses(statement: Statement) -> tuple[MemoryUse, ...]:
    """What a statement does to shared and global memory."""
    match statement:
        case Load():
            use = MemoryUse(
                statement.src, False, statement.index, statement.width, statement.predicate
            )
        case Store():
            use = MemoryUse(
                statement.dst, True, statement.index, statement.width, statement.predicate
            )
        case CpAsync() | BulkLoad() | BulkStore() | BulkReduce():
            raise UnsupportedError(
                f"the static analyses do not know when {type(statement).__name__} completes; "
                "synchronise such a kernel by hand"
            )
        case _:
            return ()
    return () if use.buffer.memory is Memory.LOCAL else (use,)


def accesses(kernel: Kernel) -> tuple[Access, ...]:
    """The accesses that can take part in a hazard, in textual order.

    Those to shared memory, and those to global buffers that this launch writes; two parameters
    are two places in memory.
    """
    uses = [
        (order, site, use)
        for order, site in enumerate(sites(kernel))
        for use in memory_uses(site.statement)
    ]
    written = {u.buffer for _, _, u in uses if u.writes}
    uses = [x for x in uses if x[2].buffer.memory is Memory.SHARED or x[2].buffer in written]
    threads = thread_values(kernel)
    plans = _loop_plans(uses)
    return tuple(_access(order, site, use, threads, plans) for order, site, use in uses)


def shared_allocs(kernel: Kernel) -> tuple[tuple[Site, Alloc], ...]:
    """The allocations of shared memory, in textual order."""
    return tuple(
        (s, s.statement)
        for s in sites(kernel)
        if isinstance(s.statement, Alloc) and s.statement.buffer.memory is Memory.SHARED
    )


# --- loops that are too long to enumerate -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _LoopPlan:
    """How many iterations stand for a loop; `is_whole` when that is all of them."""

    trips: int
    is_whole: bool


def _loop_plans(uses: Iterable[tuple[int, Site, MemoryUse]]) -> dict[Path, _LoopPlan]:
    """Per loop: all iterations, or two periods of everything in it that depends on its variable.

    A loop that allows neither gets no iterations: its variable is unknown.
    """
    inside: dict[Path, tuple[LoopScope, list[MemoryUse]]] = {}
    for _, site, use in uses:
        for loop in site.loops:
            inside.setdefault(loop.path, (loop, []))[1].append(use)
    return {path: _loop_plan(loop, found) for path, (loop, found) in inside.items()}


def _loop_plan(loop: LoopScope, uses: list[MemoryUse]) -> _LoopPlan:
    if loop.trips is not None and loop.trips <= MAX_TRIPS:
        return _LoopPlan(loop.trips, True)
    period = _period([u.index for u in uses], loop.node.var)
    if period is None or 2 * period + 1 > MAX_TRIPS:
        return _LoopPlan(0, False)
    return _LoopPlan(2 * period + 1, False)


def _period(exprs: list[Expr], v: Var) -> int | None:
    """A number of steps of `v` after which every expression has the same value again."""
    period = 1
    dependent = [e for e in exprs if v in variables(e)]
    for e in dependent:
        for part in walk(e):
            if isinstance(part, Mod | FloorDiv) and v in variables(part):
                period *= constant_value(part.denominator) or 1
    shifted = {v: add(v, period)}
    return period if all(substitute(e, shifted) == e for e in dependent) else None


def _repeats(c: Cond, v: Var, period: int) -> bool:
    return v not in variables(c) or substitute_condition(c, {v: add(v, period)}) == c


# --- enumeration --------------------------------------------------------------------------------


def _access(
    order: int, site: Site, use: MemoryUse, threads: Known, plans: dict[Path, _LoopPlan]
) -> Access:
    loops = site.loops
    trips = tuple(plans[loop.path].trips for loop in loops)
    known = _with_loops(threads, loops, trips)
    nthreads = next(iter(threads.values())).shape[0]
    varying = frozenset(x.node.var for x, n in zip(loops, trips, strict=True) if not n)
    split = split_unknown(use.index, known, varying)
    mask = _mask(site, use, known, plans)
    if split is None:
        return Access(order, site, use, trips, None)
    lo = np.asarray(evaluate_lanes(split[0], known)) * use.buffer.dtype.nbytes
    lo = lo.reshape((1,) * (len(loops) + 1 - lo.ndim) + lo.shape)
    entries = math.prod(np.broadcast_shapes(lo.shape, np.shape(mask.may), (nthreads,)))
    if entries * use.width > MAX_ENTRIES:
        return Access(order, site, use, trips, None)
    return Access(order, site, use, trips, Enumerated(lo, mask, split[1]))


def _with_loops(threads: Known, loops: tuple[LoopScope, ...], trips: tuple[int, ...]) -> Known:
    known = dict(threads)
    for i, (loop, n) in enumerate(zip(loops, trips, strict=True)):
        if n:
            shape = [1] * (len(loops) + 1)
            shape[i] = n
            known[loop.node.var] = np.arange(n, dtype=np.int64).reshape(shape)
    return known


def _mask(site: Site, use: MemoryUse, known: Known, plans: dict[Path, _LoopPlan]) -> Holds:
    """Where the access happens: its predicate and the conditions of the branches around it."""
    conditions = [use.predicate]
    for branch in site.branches:
        c = branch.node.condition
        conditions.append(c if branch.taken else negate(c))
    if all(c is TRUE for c in conditions):
        return ALWAYS
    usable = dict(known)
    for loop in site.loops:
        plan = plans[loop.path]
        period = (plan.trips - 1) // 2
        v = loop.node.var
        if not plan.is_whole and plan.trips and not all(_repeats(c, v, period) for c in conditions):
            del usable[v]
    return conjunction([holds(c, usable) for c in conditions])
