"""Loads, stores and allocations: positions, ranges, what is recorded, and what moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from fusewright.errors import SpecError
from fusewright.kir import ir
from fusewright.kir.traits import MemoryUse
from fusewright.memory import Cache, Memory
from fusewright.sim.compute import Array, ExprFn, IndexFn, Mask, Value, narrow
from fusewright.sim.frame import BatchFrame, Execution, Run, Step
from fusewright.sim.memory import BufferPlace, as_scalar
from fusewright.sim.report import AccessSite, Kind, statement_text
from fusewright.sim.trace import GENERIC, Agent, TracedAccess, Undefine, agent_of

_NOWHERE: Array = np.zeros((1, 1), np.int64)


@dataclass(frozen=True, slots=True)
class Reach:
    """An access's static facts: which elements of which buffer a statement touches.

    Its index must be `begins` more than a multiple of `step`; a copy in bulk is not `counted` as an
    access;
    `rank` is the block of the cluster whose shared memory it is, None for the thread's own.
    """

    statement: ir.Statement
    buffer: ir.Buffer
    index: IndexFn
    width: int
    size: int
    place: BufferPlace
    shared: bool
    writes: bool
    recorded: bool
    step: int = 1
    begins: int = 0
    agent: Agent = GENERIC
    counted: bool = True
    rank: ExprFn | None = None
    latest: list[Value] = field(default_factory=list["Value"])
    """The thread part last recorded: a loop that repeats it keeps one array, not one a trip."""

    def positions(self, f: BatchFrame, mask: Mask, issue: int = -1) -> tuple[Array, Mask, bool]:
        """Element positions in the flat array (0 for inactive threads), the threads whose access
        is inside the buffer, and whether there are any. Counts and records the access."""
        block, thread = self.index(f.values)
        mask, some = self._inside(f, block, thread, mask)
        if not some:
            return _NOWHERE, mask, False
        rank = self._rank(f, mask)
        itemsize = self.buffer.dtype.nbytes
        at, by = block * itemsize, thread * itemsize
        nbytes = itemsize * self.width
        if self.counted:
            self._count(f, block, thread, mask)
        if rank is not None:
            by = by + rank * f.trace.shared_nbytes
            thread = thread + rank * (f.trace.shared_nbytes // itemsize)
        if self.recorded:
            offset = self.place.offset
            f.record(
                TracedAccess(
                    self.statement,
                    self.place.space,
                    at + offset,
                    self._kept(by),
                    nbytes,
                    self.writes,
                    mask,
                    self.buffer,
                    offset,
                    self.agent,
                    issue,
                    -1 if self.rank is None or rank is None else rank,
                )
            )
        if self.shared:
            stride = f.run.execution.shared.row_nbytes // itemsize
            block = block + f.base * stride + self.place.offset // itemsize
        where = np.atleast_2d(np.asarray(block + thread))
        return where if mask is None else np.where(mask, where, 0), mask, True

    def count(self, f: BatchFrame, mask: Mask) -> None:
        """Counts the access of the threads of a mask."""
        if self.counted:
            self._count(f, *self.index(f.values), mask)

    def _count(self, f: BatchFrame, block: Value, thread: Value, mask: Mask) -> None:
        itemsize = self.buffer.dtype.nbytes
        f.run.execution.counters.access(
            buffer=self.buffer,
            writes=self.writes,
            block=block * itemsize,
            thread=thread * itemsize,
            nbytes=itemsize * self.width,
            mask=mask,
            nblocks=f.nblocks,
        )

    def check_step(self, f: BatchFrame, mask: Mask) -> None:
        """Reports accesses that begin elsewhere in a word of their width than they say."""
        if self.step > 1:
            self._check_step(f, *self.index(f.values), mask)

    def _check_step(self, f: BatchFrame, block: Value, thread: Value, mask: Mask) -> None:
        thread = thread - self.begins if self.begins else thread
        if _leaves_rest(block, self.step) or _leaves_rest(thread, self.step):
            full = np.atleast_2d(np.asarray(block + thread))
            bad = full % self.step != 0
            bad = bad if mask is None else bad & mask
            if bad.any():
                more = f"{self.begins} more than " if self.begins else ""
                what = f"not {more}a multiple of the width {self.step}"
                self._report(f, full + self.begins, bad, what, "rule")

    def _rank(self, f: BatchFrame, mask: Mask) -> Value | None:
        """The block of the row whose shared memory each thread accesses; None where there is one
        block. Reports numbers that are no blocks of its cluster and takes the nearest."""
        if not self.shared or f.run.ranks is None:
            return None
        if self.rank is None:
            return f.run.ranks
        found = np.atleast_2d(np.asarray(self.rank(f.values)))
        nearest = np.clip(found, 0, f.trace.cluster - 1)
        bad = found != nearest if mask is None else (found != nearest) & mask
        if bad.any():
            row, lane = f.first(bad)
            wrong = np.broadcast_to(found, (f.nblocks, f.nthreads))[row, lane]
            block, thread = f.trace.block_of(row, lane)
            f.run.execution.findings.add(
                "range",
                f"thread {thread} of block {block} names block {wrong} of its cluster, which has "
                f"{f.trace.cluster}, in `{statement_text(self.statement)}`",
                statement=self.statement,
            )
        return nearest + f.first_of_cluster

    def _kept(self, thread: Value) -> Value:
        """The same value, as the array recorded before where that is equal."""
        if not isinstance(thread, int):
            if self.latest and np.array_equal(self.latest[0], thread):
                return self.latest[0]
            self.latest[:] = [thread]
        return thread

    def _inside(self, f: BatchFrame, block: Value, thread: Value, mask: Mask) -> tuple[Mask, bool]:
        """Report accesses outside the buffer, or not aligned to their width; drop the former."""
        low, high = _bounds(block, thread, mask)
        if low < 0 or high + self.width > self.size:
            full = np.atleast_2d(np.asarray(block + thread))
            outside = (full < 0) | (full + self.width > self.size)
            bad = outside if mask is None else outside & mask
            if bad.any():
                self._report(f, full, bad, f"outside its {self.size} elements", "range")
                return narrow(mask, ~outside)
        if self.step > 1:
            self._check_step(f, block, thread, mask)
        return mask, True

    def _report(self, f: BatchFrame, full: Array, bad: Array, what: str, kind: Kind) -> None:
        row, lane = f.first(bad)
        element = int(np.broadcast_to(full, (f.nblocks, f.nthreads))[row, lane])
        itemsize = self.buffer.dtype.nbytes
        site = AccessSite(
            self.statement,
            *f.trace.block_of(row, lane),
            self.buffer.name,
            element * itemsize,
            self.width * itemsize,
            element,
            self.writes,
        )
        f.run.execution.findings.add(
            kind,
            f"{self.buffer}[{element} : +{self.width}] is {what}",
            first=site,
            statement=self.statement,
            count=int(np.broadcast_to(bad, (f.nblocks, f.nthreads)).sum()),
        )


def _leaves_rest(value: Value, step: int) -> bool:
    """Whether any value is no multiple of the step."""
    rest = value % step
    return rest != 0 if isinstance(rest, int) else bool(rest.any())


def _bounds(block: Value, thread: Value, mask: Mask) -> tuple[int, int]:
    """The smallest and largest index of active threads (a hull when the mask is not simple, or
    differs among threads of one index)."""
    if not isinstance(thread, int) and mask is not None and mask.shape == (1, thread.shape[1]):
        thread = thread[np.broadcast_to(mask, thread.shape)]
    low = (block if isinstance(block, int) else int(block.min())) + (
        thread if isinstance(thread, int) else int(thread.min())
    )
    high = (block if isinstance(block, int) else int(block.max())) + (
        thread if isinstance(thread, int) else int(thread.max())
    )
    return low, high


def reach_of(
    s: ir.Statement,
    use: MemoryUse,
    run: Run,
    *,
    agent: Agent | None = None,
    counted: bool = True,
) -> Reach:
    """The accesses of a statement to one of its operands, by who makes them unless given."""
    buffer = use.buffer
    shared = buffer.memory is Memory.SHARED
    execution = run.execution
    if shared and buffer not in execution.shared.sizes:
        raise SpecError(f"shared buffer {buffer} has no Alloc, used in `{statement_text(s)}`")
    if not shared and buffer not in execution.memory.places:
        raise SpecError(f"{buffer} is no parameter of the kernel, used in `{statement_text(s)}`")
    if shared:
        place, size = execution.shared.places[buffer], execution.shared.sizes[buffer]
    else:
        place, size = execution.memory.places[buffer], len(execution.memory.arrays[buffer])
    is_watched = buffer in execution.watched
    recorded = shared or is_watched or place.space in execution.memory.writers
    return Reach(
        s,
        buffer,
        run.scope.index(use.index),
        use.width,
        size,
        place,
        shared,
        use.writes,
        recorded,
        use.width if use.step is None else use.step,
        use.begins,
        agent_of(use) if agent is None else agent,
        counted and execution.counters.counts,
        None if use.rank is None else run.scope.expression(use.rank),
    )


def _changes(buffer: ir.Buffer, execution: Execution) -> bool:
    """Whether memory in global memory is written while the kernel runs."""
    place = execution.memory.places.get(buffer)
    is_written = place is not None and place.space in execution.memory.writers
    return is_written or buffer in execution.kernel.awaited


def compile_load(s: ir.Load, run: Run) -> Step:
    gathered = run.gathered(s, s.index)
    conditions = run.refresh(s, s.predicate)
    holds = run.scope.condition(s.predicate)
    at = run.scope.expression(s.dst.index)
    (use,) = s.memory_uses()
    reach = reach_of(s, use, run)
    fill = None if s.fill is None else as_scalar(s.fill.value, s.dst.buffer.dtype)
    if s.cache is Cache.NON_COHERENT and _changes(s.src, run.execution):
        run.execution.findings.add(
            "rule",
            f"`{statement_text(s)}` reads {s.src} by the non-coherent path, but the kernel writes "
            "that memory (PTX ISA, ld.global.nc); use another cache policy",
            statement=s,
        )
    initialised = run.execution.memory.initialised.get(s.src)
    if not s.lanes.all_exist:
        return _load_of_lanes(s, run, reach)

    def step(f: BatchFrame) -> None:
        for r in conditions:
            r(f)
        inside, some = narrow(f.mask, holds(f.values))
        if not some and fill is None:
            return
        first = f.element(s, s.dst.buffer, at, inside if fill is None else f.mask, s.width)
        where = _NOWHERE
        if some:
            for g in gathered:
                g.fetch(f, inside)
            where, inside, some = reach.positions(f, inside)
        if not some:
            if fill is not None:
                for k in range(s.width):
                    f.registers.write(s.dst.buffer, first + k, fill, None, f.mask)
            return
        flat = elements_of(f, s.src)
        for k in range(s.width):
            places = np.add(where, k)
            value = flat.take(places)
            unknown = _unwritten(f, s, places, inside, initialised)
            target = inside
            if fill is not None and inside is not None and inside is not f.mask:
                value = np.where(inside, value, fill)
                unknown = None if unknown is None else unknown & inside
                target = f.mask
            f.registers.write(s.dst.buffer, first + k, value, unknown, target)

    return step


def _load_of_lanes(s: ir.Load, run: Run, reach: Reach) -> Step:
    """A load of which only some lanes exist: those are read one by one, counted as one access, and
    the others hold what no program may depend on."""
    low_lane, high_lane = s.lanes.first, s.lanes.stop
    assert low_lane is not None and high_lane is not None
    gathered = [g for e in (s.index, low_lane, high_lane) for g in run.gathered(s, e)]
    conditions = run.refresh(s, s.predicate)
    at, holds = run.scope.expression(s.dst.index), run.scope.condition(s.predicate)
    bounds = run.scope.expression(low_lane), run.scope.expression(high_lane)
    lanes = [
        replace(reach, index=run.scope.index(s.index + k), width=1, step=1, begins=0, counted=False)
        for k in range(s.width)
    ]
    junk = np.full((1, 1), -1, f"i{s.dst.buffer.dtype.nbytes}").view(s.dst.buffer.dtype.numpy)

    def step(f: BatchFrame) -> None:
        for r in conditions:
            r(f)
        inside, some = narrow(f.mask, holds(f.values))
        first = f.element(s, s.dst.buffer, at, f.mask, s.width)
        if some:
            for g in gathered:
                g.fetch(f, inside)
            reach.check_step(f, inside)
            reach.count(f, inside)
        low, high = (np.atleast_2d(np.asarray(b(f.values))) for b in bounds)
        for k, lane in enumerate(lanes):
            f.registers.write(s.dst.buffer, first + k, junk, None, f.mask)
            if not some:
                continue
            here, any_here = narrow(inside, (low <= k) & (k < high))
            if not any_here:
                continue
            where, here, any_here = lane.positions(f, here)
            if any_here:
                value = elements_of(f, s.src).take(where)
                f.registers.write(s.dst.buffer, first + k, value, None, here)

    return step


def elements_of(f: BatchFrame, buffer: ir.Buffer) -> Array:
    """The elements that positions in a buffer number: all of shared memory, or its own array."""
    if buffer.memory is Memory.SHARED:
        return f.pool.view(buffer.dtype)
    return f.run.execution.memory.arrays[buffer]


def _unwritten(
    f: BatchFrame, s: ir.Load, where: Array, mask: Mask, initialised: Array | None
) -> Mask:
    """Where a load sees a value that a thread stored from an undefined register; reads of output
    elements nobody wrote are reported here."""
    if s.src.memory is Memory.SHARED:
        if f.pool.unknown is None:
            return None
        unknown = f.pool.unknown.take(where * s.src.dtype.nbytes)
        return unknown if unknown.any() else None
    if initialised is not None:
        missing = ~initialised.take(where)
        missing = missing if mask is None else missing & mask
        if missing.any():
            row, thread = f.first(missing)
            element = int(np.broadcast_to(where, (f.nblocks, f.nthreads))[row, thread])
            f.undefined(s, f"{s.src}[{element}]", missing)
    return None


def compile_store(
    s: ir.Store | ir.RemoteStore, run: Run, issue: Callable[[BatchFrame, Mask], int] | None = None
) -> Step:
    """A store; `issue` does what comes with one that is asynchronous, for the threads that store,
    and gives the number of its event."""
    use = s.memory_uses()[0]
    width, rank = use.width, use.rank
    gathered = run.gathered(s, s.index, *(() if rank is None else (rank,)))
    conditions = run.refresh(s, s.predicate)
    holds = run.scope.condition(s.predicate)
    at = run.scope.expression(s.src.index)
    reach = reach_of(s, use, run)
    initialised = run.execution.memory.initialised.get(s.dst)

    def step(f: BatchFrame) -> None:
        for r in conditions:
            r(f)
        mask, some = narrow(f.mask, holds(f.values))
        if not some:
            return
        for g in gathered:
            g.fetch(f, mask)
        where, mask, some = reach.positions(f, mask, -1 if issue is None else issue(f, mask))
        if not some:
            return
        flat = elements_of(f, s.dst)
        first = f.element(s, s.src.buffer, at, mask, width)
        shape = (f.nblocks, f.nthreads)
        for k in range(width):
            value, unknown = f.registers.read(s.src.buffer, first + k)
            places = where + k
            if mask is not None:
                chosen = np.broadcast_to(mask, shape)
                places = np.broadcast_to(places, shape)[chosen]
                value = np.broadcast_to(value, shape)[chosen]
            elif places.size < shape[0] * shape[1]:
                places = np.broadcast_to(places, shape)
            flat[places] = value
            _note_store(f, s, places, unknown, mask)
            if initialised is not None:
                initialised[places] = True

    return step


def _note_store(
    f: BatchFrame, s: ir.Store | ir.RemoteStore, places: Array, unknown: Mask, mask: Mask
) -> None:
    """Follow undefined values into shared memory; report them on their way to global memory."""
    if unknown is not None and mask is not None:
        unknown = unknown & mask
    if unknown is not None and not unknown.any():
        unknown = None
    if s.dst.memory is not Memory.SHARED:
        if unknown is not None:
            f.undefined(s, f"the stored register {s.src.buffer}", unknown)
        return
    if f.pool.unknown is None and unknown is None:
        return
    shape = (f.nblocks, f.nthreads)
    if unknown is None:
        marks = False
    else:
        marks = np.broadcast_to(unknown, shape)
        marks = marks if mask is None else marks[np.broadcast_to(mask, shape)]
    f.pool.mark(places, s.dst.dtype.nbytes, marks)


def compile_alloc(s: ir.Alloc, run: Run) -> Step:
    if s.buffer.memory is Memory.LOCAL:
        size = run.locals[s.buffer]
        return lambda f: f.registers.reset(s.buffer, size)
    shared = run.execution.shared
    event = Undefine(s, shared.places[s.buffer].offset, shared.nbytes_of(s.buffer), None)

    def step(f: BatchFrame) -> None:
        f.record(replace(event, mask=f.mask) if f.trace.is_domain else event)

    return step
