"""What a run records: accesses and sync events, in an order that really happened.

Addresses and masks stay in minimal shape: a leading 1 when equal for all blocks of the batch, a
second 1 when equal for all threads. Reads of memory that no statement writes are not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from fusewright.kir import ir
from fusewright.kir.traits import AT_ONCE, Act, Completes, MemoryUse
from fusewright.sim.compute import Array, Mask, Value
from fusewright.target import WARP_SIZE

REGISTERS = -1
"""The space of the registers that products use; a cell of each is a byte of its thread."""


@dataclass(frozen=True, slots=True)
class Agent:
    """Who makes an access: the thread itself, its engine of the groups that it completes with, or
    what an mbarrier counts; in the async proxy or not."""

    completes: Completes = AT_ONCE
    in_async_proxy: bool = False


GENERIC = Agent()


def agent_of(use: MemoryUse) -> Agent:
    """Who makes the accesses of an operand."""
    return GENERIC if use.completes.at_once else Agent(use.completes, use.in_async_proxy)


@dataclass(slots=True)
class TracedAccess:
    """`nbytes` bytes at `block + thread` of `space`, by every thread of `mask`.

    `buffer` and `base` (its first byte in the space) name the element in a report. `issue` is the
    number of the event that issued an asynchronous access. `rank` is the block of the cluster whose
    shared memory another block writes, -1 for an access to a thread's own. With `runs` there are
    several runs of `nbytes` bytes, so far behind the first.
    """

    statement: ir.Statement
    space: int
    block: Value
    thread: Value
    nbytes: int
    writes: bool
    mask: Mask
    buffer: ir.Buffer
    base: int
    agent: Agent = GENERIC
    issue: int = -1
    rank: Value = -1
    runs: Array | None = None


@dataclass(slots=True)
class Undefine:
    """Bytes `first .. first+nbytes` of a block's shared memory lose their contents (an Alloc)."""

    statement: ir.Statement
    first: int
    nbytes: int
    mask: Mask


@dataclass(slots=True)
class SyncEvent:
    """One execution of a sync statement, or of one that issues asynchronous work or meets the lanes
    of a warp, by the threads of `mask`.

    `mbarrier` is the mbarrier concerned (its byte in shared memory), `parity` what a wait gives.
    Moved one statement up it stands before event `above`, moved down before event `below`.
    """

    statement: ir.Statement
    mask: Mask
    mbarrier: Value = -1
    parity: Value = 0
    above: int = -1
    below: int = -1


Event = TracedAccess | Undefine | SyncEvent


@dataclass(slots=True)
class Trace:
    """The events of one batch. A row is one block, or the `row_blocks` blocks of one cluster or of
    one domain, which wait for each other; their threads are numbered, and their `shared_nbytes`
    bytes of shared memory each lie, one block after the other. `rows` are the numbers of the rows,
    `blocks` the linear numbers of the blocks of each, `nthreads` counts the threads of a row.
    Neighbours in a row, `cluster` of them, reach each other's shared memory."""

    rows: Array
    blocks: Array
    nthreads: int
    row_blocks: int = 1
    cluster: int = 1
    shared_nbytes: int = 0
    events: list[Event] = field(default_factory=list["Event"])
    is_cut: bool = False
    """Whether the blocks came to a deadlock before their end."""
    is_domain: bool = False
    """Whether the blocks of a row wait for each other at semaphores."""
    begins_early: bool = False
    """Whether launches before may still run."""
    awaited: frozenset[ir.Buffer] = frozenset()
    """The parameters in whose memory these write, or read what this one writes."""
    semaphores: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """The semaphores of a domain, by space and byte, numbered in the order in which they are used:
    domains that do the same then look alike."""

    @property
    def nblocks(self) -> int:
        """The number of rows."""
        return len(self.blocks)

    @property
    def is_cluster(self) -> bool:
        """Whether blocks reach each other's shared memory."""
        return self.cluster > 1

    @property
    def block_nthreads(self) -> int:
        """Threads of one block."""
        return self.nthreads // self.row_blocks

    def block_of(self, row: int, thread: int) -> tuple[int, int]:
        """The block of a thread of a row, and its number in the block."""
        rank, own = divmod(thread, self.block_nthreads)
        return int(self.blocks[row, rank]), own


def rows_of(value: Value | Mask, rows: Array, nthreads: int, nblocks: int) -> Array:
    """The rows of selected blocks, as (1 or len(rows), nthreads)."""
    if value is None:
        return np.ones((1, nthreads), bool)
    if isinstance(value, int):
        return np.full((1, nthreads), value, np.int64)
    picked = value[rows] if value.shape[0] == nblocks and nblocks > 1 else value
    if picked.shape[1] == nthreads:
        return picked
    return np.broadcast_to(picked, (picked.shape[0], nthreads))


_MIX = np.uint64(0x9E3779B97F4A7C15)


@lru_cache(64)
def _weights(nthreads: int) -> Array:
    return np.random.default_rng(20240229).integers(
        1, 2**63, nthreads, dtype=np.uint64
    ) | np.uint64(1)


class _Digests:
    """64-bit fingerprints of values of blocks; shape (1,) where all blocks are alike. Many events
    share an array: each is looked at once."""

    def __init__(self, nthreads: int) -> None:
        self.weights = _weights(nthreads)
        self.everyone = self.weights.sum(keepdims=True)
        self._found: dict[int, Array] = {}

    def of(self, value: Value | Mask) -> Array:
        """The fingerprint; arrays stay alive as long as the digests."""
        if value is None:
            return self.everyone
        if isinstance(value, int):
            return self.everyone * np.uint64(value % 2**64)
        found = self._found.get(id(value))
        if found is None:
            numbers = value.astype(np.uint64)
            if value.shape[1] == 1:
                found = numbers[:, 0] * self.everyone
            else:
                found = (numbers * self.weights).sum(axis=1)
            self._found[id(value)] = found
        return found


@dataclass(frozen=True, slots=True)
class Signatures:
    """Per block of a batch: `sync` is equal for blocks with the same sync events, `full` for those
    that also make the same shared accesses (and accesses to the spaces in question)."""

    sync: Array
    full: Array


def signatures(trace: Trace, spaces: frozenset[int]) -> Signatures:
    """Fingerprint every block; accesses outside `spaces` do not count, those to global memory
    count relative to the block's first."""
    digests = _Digests(trace.nthreads)
    sync = np.zeros(1, np.uint64)
    full = np.zeros(1, np.uint64)
    first: dict[int, Array] = {}
    for e in trace.events:
        tag = np.uint64(id(e.statement) % 2**63)
        match e:
            case SyncEvent():
                sync = sync * _MIX + digests.of(e.mask) + tag
                sync = sync * _MIX + digests.of(e.mbarrier) + digests.of(e.parity)
            case TracedAccess() if e.space in spaces:
                mask = digests.of(e.mask)
                where = digests.of(e.block) + digests.of(e.thread)
                if e.space > 0:
                    where = where - _origin(e, first) * digests.everyone
                if e.runs is not None:
                    tag = tag + _Digests(len(e.runs)).of(e.runs[None])
                full = (full * _MIX + mask) * _MIX + where + tag
            case Undefine():
                full = full * _MIX + digests.of(e.mask) + tag
            case _:
                pass
    shape = (trace.nblocks,)
    full = full * _MIX + sync
    return Signatures(np.broadcast_to(sync, shape), np.broadcast_to(full, shape))


def _origin(e: TracedAccess, first: dict[int, Array]) -> Array:
    """The first byte thread 0 of each block touched in the access's space."""
    if e.space not in first:
        start = np.atleast_2d(np.asarray(e.block)) + np.atleast_2d(np.asarray(e.thread))
        first[e.space] = start[:, 0].astype(np.uint64)
    return first[e.space]


def splits_warps(statement: ir.Statement) -> bool:
    """Whether only the lanes that execute a statement release what they did or learn by it."""
    use = statement.mbarrier_use()
    if use is None:
        return isinstance(statement, ir.SyncStatement)
    return use.act in (Act.ARRIVE, Act.WAIT) or is_delivered_by_lanes(statement)


def is_delivered_by_lanes(statement: ir.Statement) -> bool:
    """Whether each thread that executes a statement brings bytes of its own to an mbarrier."""
    use = statement.mbarrier_use()
    delivers = use is not None and use.act is Act.DELIVER
    return delivers and statement.issuing_thread() is None


def warps_of(trace: Trace) -> Array:
    """The number of the warp of each thread of a row: the last one of a block may have fewer
    threads than others."""
    rank, own = np.divmod(np.arange(trace.nthreads), trace.block_nthreads)
    return rank * -(-trace.block_nthreads // WARP_SIZE) + own // WARP_SIZE


def strands_of(trace: Trace, row: int) -> Array:
    """The strand of each thread: lanes of one warp that take part in exactly the same sync events,
    and store to the same blocks.

    A strand is named by a number; numbers go up with the first thread.
    """
    label = warps_of(trace)
    rows = np.array([row])
    told: set[bytes] = set()  # what trips of a loop repeat tells no more strands apart
    for e in trace.events:
        if not isinstance(e, SyncEvent) or not splits_warps(e.statement):
            continue
        inside = rows_of(e.mask, rows, trace.nthreads, trace.nblocks)[0].astype(np.int64)
        if is_delivered_by_lanes(e.statement):
            named = rows_of(e.mbarrier, rows, trace.nthreads, trace.nblocks)[0]
            inside = np.where(inside, 1 + named, 0)
        elif e.mask is None:
            continue
        if (key := inside.tobytes()) in told:
            continue
        told.add(key)
        pairs = label * (int(inside.max()) + 1) + inside
        label = np.unique(pairs, return_inverse=True)[1]
    firsts = np.unique(label, return_index=True)[1]
    order = np.argsort(np.argsort(firsts))
    return order[np.unique(label, return_inverse=True)[1]]
