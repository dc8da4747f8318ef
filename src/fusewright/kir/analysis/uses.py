"""Which statement touches which memory, who does it, and when it is complete."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from fusewright.core.conditions import TRUE, Cond
from fusewright.core.expr import Expr
from fusewright.kir.ir import (
    Buffer,
    BulkLoad,
    BulkReduce,
    BulkStore,
    CpAsync,
    Kernel,
    Load,
    MbarArrive,
    MbarExpect,
    MbarInit,
    MbarInvalidate,
    MbarWait,
    Memory,
    RemoteStore,
    Statement,
    Store,
    SyncStatement,
)
from fusewright.kir.traverse import walk_statements


class Completes(Enum):
    """When a use is complete: where it stands, with its group of copies by a thread, with its bulk
    group (as a read, or altogether), or with the phase of its mbarrier."""

    AT_ONCE = "at once"
    CP_GROUP = "cp group"
    BULK_READS = "bulk reads"
    BULK_GROUP = "bulk group"
    MBARRIER = "mbarrier"


@dataclass(frozen=True, slots=True, eq=False)
class MemoryUse:
    """One operand of a statement in shared or global memory; `index` and `width` in elements.

    `issuer` is the one thread that does it, None for all that come there. What happens in the
    async proxy sees what threads wrote behind a proxy fence only. An arrival for bytes begins the
    next phase of its mbarrier, which who waits for this one may not miss: it `ends_turn` of waits.
    `rank` is the block of the cluster whose shared memory it is, None for the thread's own.
    That it `makes_mbarrier` even a relaxed arrival of the cluster hands on.
    """

    buffer: Buffer
    writes: bool
    index: Expr
    width: int
    predicate: Cond = TRUE
    issuer: int | None = None
    completes: Completes = Completes.AT_ONCE
    in_async_proxy: bool = False
    ends_turn: bool = False
    is_wait: bool = False
    rank: Expr | None = None
    makes_mbarrier: bool = False


def memory_uses(statement: Statement) -> tuple[MemoryUse, ...]:
    """What a statement does to shared and global memory."""
    return tuple(u for u in _uses(statement) if u.buffer.memory is not Memory.LOCAL)


def _uses(s: Statement) -> tuple[MemoryUse, ...]:
    match s:
        case Load():
            return (MemoryUse(s.src, False, s.index, s.width, s.predicate),)
        case Store():
            return (MemoryUse(s.dst, True, s.index, s.width, s.predicate),)
        case RemoteStore():
            store = MemoryUse(s.dst, True, s.index, 1, s.predicate, rank=s.rank)
            if s.barrier is None:
                return (store,)
            count = MemoryUse(s.barrier, False, s.slot, 1, s.predicate, rank=s.rank)
            return tuple(replace(u, completes=Completes.MBARRIER) for u in (store, count))
        case CpAsync():
            kind = Completes.CP_GROUP
            where = TRUE if s.zero_fill else s.predicate
            return (
                MemoryUse(s.src, False, s.src_index, s.width, s.predicate, completes=kind),
                MemoryUse(s.dst, True, s.index, s.width, where, completes=kind),
            )
        case BulkLoad():
            return (
                _bulk(s, Completes.MBARRIER, writes=False),
                _bulk(s, Completes.MBARRIER, writes=True),
                MemoryUse(s.barrier, False, s.slot, 1, issuer=s.issuer, in_async_proxy=True),
            )
        case BulkStore() | BulkReduce():
            source = _bulk(s, Completes.BULK_READS, writes=False)
            target = _bulk(s, Completes.BULK_GROUP, writes=True)
            if isinstance(s, BulkStore):
                return source, target
            return source, replace(target, writes=False), target
        case MbarInit():
            return (MemoryUse(s.barrier, True, s.slot, 1, issuer=s.issuer, makes_mbarrier=True),)
        case MbarInvalidate():
            return (MemoryUse(s.barrier, True, s.slot, 1, issuer=s.issuer),)
        case MbarWait():
            return (MemoryUse(s.barrier, False, s.slot, 1, issuer=s.issuer, is_wait=True),)
        case MbarExpect():
            return (
                MemoryUse(s.barrier, False, s.slot, 1, issuer=s.issuer),
                MemoryUse(s.barrier, True, s.slot, 1, issuer=s.issuer, ends_turn=True),
            )
        case MbarArrive():
            return (MemoryUse(s.barrier, False, s.slot, 1),)
        case _:
            return ()


def _bulk(s: BulkLoad | BulkStore | BulkReduce, kind: Completes, *, writes: bool) -> MemoryUse:
    buffer, index = (s.dst, s.index) if writes else (s.src, s.src_index)
    return MemoryUse(buffer, writes, index, s.size, TRUE, s.issuer, kind, True)


def steering(s: SyncStatement) -> tuple[Expr, ...]:
    """The expressions that say which mbarrier a sync is about, and which phase."""
    match s:
        case MbarWait():
            return (s.slot, s.parity)
        case MbarInit() | MbarExpect() | MbarArrive() | MbarInvalidate():
            return (s.slot,)
        case _:
            return ()


def global_reads(kernel: Kernel) -> frozenset[Buffer]:
    """The buffers in global memory that a kernel reads."""
    return _global_buffers(kernel, writes=False)


def global_writes(kernel: Kernel) -> frozenset[Buffer]:
    """The buffers in global memory that a kernel writes."""
    return _global_buffers(kernel, writes=True)


def _global_buffers(kernel: Kernel, *, writes: bool) -> frozenset[Buffer]:
    uses = (u for s in walk_statements(kernel) for u in memory_uses(s))
    found = (u.buffer for u in uses if u.writes is writes)
    return frozenset(b for b in found if b.memory is Memory.GLOBAL)
