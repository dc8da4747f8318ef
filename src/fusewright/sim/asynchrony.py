"""The meaning of asynchronous copies, barriers of several phases, and fences.

A copy moves its data where it is issued; what it would be too early or too late for is decided
later, from the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fusewright.core.functions import FUNCTIONS
from fusewright.kir import ir
from fusewright.kir.traits import WITH_PHASE, MemoryUse
from fusewright.sim.accesses import compile_store, elements_of, reach_of
from fusewright.sim.boxes import Box, box_step
from fusewright.sim.compute import Array, Mask, narrow
from fusewright.sim.frame import AnyStep, BatchFrame, Blocking, Run, Step, Wait
from fusewright.sim.report import statement_text
from fusewright.sim.trace import GENERIC, Agent, SyncEvent
from fusewright.target import MBARRIER_NBYTES, WARP_SIZE

_Bulk: TypeAlias = "ir.BulkLoad | ir.BulkStore | ir.BulkReduce"


# --- copies by groups of a thread -----------------------------------------------------------------


def _cp_async(s: ir.CpAsync, run: Run) -> Step:
    refresh = run.refresh(s, s.predicate)
    holds = run.scope.condition(s.predicate)
    *sources, to = (reach_of(s, use, run) for use in s.memory_uses())
    exist = [run.scope.condition(predicate) for _, _, predicate in s.read_parts()]

    def step(f: BatchFrame) -> None:
        for r in refresh:
            r(f)
        inside, some = narrow(f.mask, holds(f.values))
        target = f.mask if s.zero_fill else inside
        if not some and not s.zero_fill:
            return
        issue = f.record(SyncEvent(s, target))
        values: list[Array] = []
        for source, there in zip(sources, exist, strict=True):
            inside, some = narrow(f.mask, there(f.values))
            where = None
            if some:
                where, inside, some = source.positions(f, inside, issue)
            for k in range(s.width // len(sources)):
                value: Array = np.zeros((1, 1), s.dst.dtype.numpy)
                if where is not None and some:
                    value = elements_of(f, s.src).take(where + k)
                    value = value if inside is None else np.where(inside, value, 0)
                values.append(value)
        places, target, fits = to.positions(f, target, issue)
        if not fits:
            return
        for k, value in enumerate(values):
            _scatter(f, s.dst, places + k, value, target)

    return step


def _scatter(f: BatchFrame, buffer: ir.Buffer, places: Array, value: Array, mask: Mask) -> None:
    shape = (f.nblocks, f.nthreads)
    places, value = np.broadcast_to(places, shape), np.broadcast_to(value, shape)
    if mask is not None:
        chosen = np.broadcast_to(mask, shape)
        places, value = places[chosen], value[chosen]
    elements_of(f, buffer)[places] = value
    f.pool.mark(places, buffer.dtype.nbytes, False)


def _passed(s: ir.SyncStatement, run: Run) -> Step:
    """A sync at which threads pass in the simulator, and that replays look at."""

    def step(f: BatchFrame) -> None:
        f.record(SyncEvent(s, f.mask))

    return step


# --- bulk copies ----------------------------------------------------------------------------------


def issued_by(f: BatchFrame, issuer: int) -> tuple[Mask, bool]:
    """The one thread of each block that issues, in the blocks where it is active."""
    return narrow(f.mask, (np.arange(f.nthreads) % f.trace.block_nthreads == issuer)[None, :])


def _bulk(s: _Bulk, run: Run) -> Step:
    gathered = run.gathered(s, s.index, s.src_index)
    uses = {(u.buffer, u.writes): u for u in s.memory_uses()}
    source = reach_of(s, uses[s.src, False], run, counted=False)
    to = reach_of(s, uses[s.dst, True], run, counted=False)
    barrier = None if s.mbarrier_use() is None else _MbarrierSlot(s, run)
    nbytes = s.nbytes
    combine = FUNCTIONS[s.fn].numpy if isinstance(s, ir.BulkReduce) else None
    initialised = run.execution.memory.initialised.get(s.dst)

    def step(f: BatchFrame) -> None:
        mask, some = issued_by(f, s.issuer)
        if not some:
            return
        for g in gathered:
            g.fetch(f, mask)
        number = -1 if barrier is None else barrier.number(f)
        issue = f.record(SyncEvent(s, mask, number))
        where, inside, some = source.positions(f, mask, issue)
        places, _, fits = to.positions(f, inside, issue)
        if some and fits:
            chosen = f.active(inside)
            span = np.arange(s.size)
            take = np.broadcast_to(where, chosen.shape)[chosen][:, None] + span
            put = np.broadcast_to(places, chosen.shape)[chosen][:, None] + span
            value = elements_of(f, s.src)[take]
            _note_undefined(f, s, take, put, inside)
            flat = elements_of(f, s.dst)
            if combine is None:
                flat[put] = value
            else:  # blocks of a batch may add to one place
                for at, part in zip(put, value, strict=True):
                    flat[at] = combine(flat[at], part)
            if initialised is not None:
                initialised[put] = True
            totals = f.run.execution.counters
            totals.add("global_bytes_written" if barrier is None else "global_bytes_read", nbytes)
            totals.add("shared_bytes_read" if barrier is None else "shared_bytes_written", nbytes)
        if barrier is not None:
            barrier.take(f, mask, 0, -nbytes, issue)

    return step


def _box(s: Box, run: Run) -> Step:
    """What goes to several blocks is an event for each, which brings its bytes to that block."""
    use = s.mbarrier_use()
    counts = [] if use is None else [u for u in s.memory_uses() if u.buffer is use.barrier]
    barriers = [_MbarrierSlot(s, run, u) for u in counts]

    def issue(f: BatchFrame, mask: Mask) -> list[int]:
        numbers = [b.number(f) for b in barriers] or [-1]
        return [f.record(SyncEvent(s, mask, number)) for number in numbers]

    def done(f: BatchFrame, mask: Mask, numbers: Sequence[int]) -> None:
        for barrier, number in zip(barriers, numbers, strict=False):
            barrier.take(f, mask, 0, -s.map.box_nbytes, number)

    return box_step(s, run, lambda f: issued_by(f, s.issuer), issue, done)


# --- stores to other blocks that an mbarrier counts -----------------------------------------------


def _remote_store(s: ir.RemoteStore, run: Run) -> Step:
    if s.barrier is None:
        return compile_store(s, run)
    barrier, nbytes = _MbarrierSlot(s, run), s.nbytes

    def issue(f: BatchFrame, mask: Mask) -> int:
        number = f.record(SyncEvent(s, mask, barrier.number(f)))
        barrier.take(f, mask, 0, -nbytes, number)
        return number

    return compile_store(s, run, issue)


def _note_undefined(f: BatchFrame, s: _Bulk, take: Array, put: Array, mask: Mask) -> None:
    if isinstance(s, ir.BulkLoad):
        f.pool.mark(put, s.dst.dtype.nbytes, False)
    elif f.pool.unknown is not None and f.pool.unknown[take * s.src.dtype.nbytes].any():
        f.undefined(s, f"an element of {s.src} that came from a register", np.asarray(mask))


# --- mbarriers ------------------------------------------------------------------------------------


class _MbarrierSlot:
    """The mbarrier a statement names, as an access to its bytes and as a number."""

    def __init__(self, s: ir.Statement, run: Run, use: MemoryUse | None = None) -> None:
        at = s.mbarrier_use()
        assert at is not None
        use = use or next(u for u in s.memory_uses() if u.buffer is at.barrier)
        agent = Agent(WITH_PHASE, in_async_proxy=True) if use.in_async_proxy else GENERIC
        self.statement = s
        self.reach = reach_of(s, use, run, agent=agent, counted=False)
        self.slot = run.scope.expression(at.slot)

    def number(self, f: BatchFrame) -> int | Array:
        """The byte at which each thread's mbarrier lies in the shared memory of its block, or of
        all blocks of the cluster side by side."""
        own = self.reach.place.offset + self.slot(f.values) * MBARRIER_NBYTES
        if f.run.ranks is None:
            return own
        rank = f.run.ranks
        if self.reach.rank is not None:
            rank = self.reach.rank(f.values) + f.first_of_cluster
        return np.atleast_2d(np.asarray(own + rank * f.trace.shared_nbytes))

    def at(self, f: BatchFrame, mask: Mask, issue: int = -1) -> Array:
        """The numbers in the batch's state, one for each active thread; records the access."""
        where, mask, some = self.reach.positions(f, mask, issue)
        if not some:
            return np.zeros(0, np.int64)
        chosen = f.active(mask)
        return np.broadcast_to(where, chosen.shape)[chosen]

    def take(self, f: BatchFrame, mask: Mask, arrivals: int, nbytes: int, issue: int = -1) -> None:
        """Each active thread arrives so often, and expects or delivers so many bytes."""
        at, threads = np.unique(self.at(f, mask, issue), return_counts=True)
        missing, over = f.syncs.mbarriers.take(at, threads * arrivals, threads * nbytes)
        for found, what in (
            (missing, "is at a place that is no mbarrier; initialise it before"),
            (over, "makes more arrivals than a phase takes; count them, or wait for the phase"),
        ):
            if len(found):
                self._report(f, what)

    def _report(self, f: BatchFrame, what: str) -> None:
        f.run.execution.findings.add(
            "rule",
            f"`{statement_text(self.statement)}` in block {f.trace.blocks[0, 0]} {what}",
            statement=self.statement,
        )


def _mbarrier_start(s: ir.MbarInit | ir.MbarInvalidate, run: Run) -> Step:
    slot = _MbarrierSlot(s, run)
    count = s.count if isinstance(s, ir.MbarInit) else 0

    def step(f: BatchFrame) -> None:
        mask, some = issued_by(f, s.issuer)
        if some:
            issue = f.record(SyncEvent(s, mask, slot.number(f)))
            f.syncs.mbarriers.start(slot.at(f, mask, issue), count)

    return step


def _mbarrier_arrive(s: ir.MbarArrive | ir.MbarExpect, run: Run) -> Step:
    slot = _MbarrierSlot(s, run)
    nbytes = s.nbytes if isinstance(s, ir.MbarExpect) else 0
    size = run.execution.nthreads // run.execution.row_blocks
    first_lane = (np.arange(run.execution.nthreads) % size % WARP_SIZE == 0)[None, :]

    def step(f: BatchFrame) -> None:
        mask, some = f.mask, True
        if isinstance(s, ir.MbarExpect):
            mask, some = issued_by(f, s.issuer)
        elif s.per_warp:
            f.diverged(s, WARP_SIZE)
            mask, some = narrow(f.mask, first_lane)
        if some:
            f.record(SyncEvent(s, mask, slot.number(f)))
            slot.take(f, mask, 1, nbytes)

    return step


def _mbarrier_wait(s: ir.MbarWait, run: Run) -> Blocking:
    slot = _MbarrierSlot(s, run)
    parity_of = run.scope.expression(s.parity)

    def wait(f: BatchFrame) -> Wait:
        mask, some = (f.mask, True) if s.issuer is None else issued_by(f, s.issuer)
        if not some:
            return
        number, parity = slot.number(f), parity_of(f.values)
        at = slot.at(f, mask)
        chosen = f.active(mask)
        wanted = np.broadcast_to(np.asarray(parity), chosen.shape)[chosen]
        at, first = np.unique(at, return_index=True)
        while not f.syncs.mbarriers.is_over(at, wanted[first]):
            yield (s,)
        f.record(SyncEvent(s, mask, number, parity))

    return Blocking(wait)


# --- named barriers -------------------------------------------------------------------------------


def _arrive(f: BatchFrame, s: ir.NamedSync | ir.BarrierArrive) -> None:
    f.diverged(s, WARP_SIZE)
    f.syncs.barrier(s.barrier).arrive(_by_block(f).sum(axis=2), s.nthreads)


def _by_block(f: BatchFrame) -> Array:
    """The threads that are active, by row, block of it and number in the block."""
    return f.active(f.mask).reshape(f.nblocks, f.trace.row_blocks, -1)


def _named_sync(s: ir.NamedSync, run: Run) -> Blocking:
    def wait(f: BatchFrame) -> Wait:
        barrier, blocks = f.syncs.barrier(s.barrier), _by_block(f).any(axis=2)
        mine = barrier.generation.copy()
        _arrive(f, s)
        f.record(SyncEvent(s, f.mask))
        while not (barrier.generation > mine)[blocks].all():
            yield (s,)

    return Blocking(wait)


def _barrier_arrive(s: ir.BarrierArrive, run: Run) -> Step:
    def step(f: BatchFrame) -> None:
        _arrive(f, s)
        f.record(SyncEvent(s, f.mask))

    return step


ASYNCHRONOUS: Mapping[type[ir.Statement], Callable[[Any, Run], AnyStep]] = {
    ir.CpAsync: _cp_async,
    ir.AsyncCommit: _passed,
    ir.AsyncWait: _passed,
    ir.ProxyFence: _passed,
    ir.LaunchWait: _passed,
    ir.LaunchDependents: _passed,
    ir.BulkLoad: _bulk,
    ir.BulkStore: _bulk,
    ir.BulkReduce: _bulk,
    ir.BoxLoad: _box,
    ir.BoxStore: _box,
    ir.BoxReduce: _box,
    ir.RemoteStore: _remote_store,
    ir.MbarInit: _mbarrier_start,
    ir.MbarInvalidate: _mbarrier_start,
    ir.MbarArrive: _mbarrier_arrive,
    ir.MbarExpect: _mbarrier_arrive,
    ir.MbarWait: _mbarrier_wait,
    ir.NamedSync: _named_sync,
    ir.BarrierArrive: _barrier_arrive,
}
