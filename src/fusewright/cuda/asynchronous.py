"""Syncs, asynchronous copies and stores to other blocks as inline assembly."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.core.atoms import maximum, minimum
from fusewright.core.conditions import TRUE, equal
from fusewright.cuda import ptx, scalars
from fusewright.cuda.writer import Spellings, Writer
from fusewright.errors import InternalError, SpecError
from fusewright.kir import ir
from fusewright.kir.clusters import counters_of_stores
from fusewright.kir.traits import Act
from fusewright.memory import Cache, Memory
from fusewright.target import WARP_SIZE


def sync(w: Writer, s: ir.SyncStatement) -> None:
    """A sync, with its id and what it is for."""
    use = s.mbarrier_use()
    instruction = ptx.sync_instruction(
        s,
        in_cluster=bool(w.kernel.cluster),
        has_roles=w.has_roles,
        sees_stores=use is not None and use.barrier in counters_of_stores(w.kernel),
    )
    if instruction is None:
        raise InternalError(f"{type(s).__name__} is entered in SPELLINGS and has no instruction")
    operands = [] if use is None else [ptx.shared(w.address(use.barrier, use.slot))]
    if use is not None and use.act is Act.WAIT:
        operands.append(ptx.number(w.integer(use.parity)))
    if use is not None and use.act is Act.ARRIVE and use.rank is not None:
        operands.append(ptx.number(w.integer(use.rank)))
    why = f"  // {_comment(s.why)}" if s.why else ""
    line = f"{ptx.assembly(instruction, operands, s)}{why}"
    if use is not None and use.arrives_by_warp:
        w.guarded(equal(w.thread() % WARP_SIZE, 0), lambda: w.line(line))
    elif isinstance(s, ir.MbarWait) and w.bound_ms:
        w.issued(s.issuer, lambda: _bounded(w, s, operands))
    else:
        w.issued(s.issuing_thread(), lambda: w.line(line))


def _bounded(w: Writer, s: ir.MbarWait, operands: Sequence[ptx.AssemblyOperand]) -> None:
    """A wait that says what it waits for and traps where that takes too long."""
    slot, parity = w.integer(s.slot), w.integer(s.parity)

    def tries() -> None:
        w.line("unsigned done;")
        sees_stores = s.barrier in counters_of_stores(w.kernel)
        w.line(ptx.try_wait(s, "done", operands, sees_stores=sees_stores))
        w.line("if (done) break;")
        told = w.told(s, s.barrier)
        w.line(f"fw_check_time(since, {w.bound_ms}u, {told}, {slot}, {parity});")

    w.block("for (const unsigned long long since = fw_now();;)", tries)


def cp_async(w: Writer, s: ir.CpAsync) -> None:
    """A copy by each thread, to shared memory."""
    nbytes = s.width * s.dst.dtype.nbytes
    operands = [
        ptx.shared(w.address(s.dst, s.index)),
        ptx.in_global(w.address(s.src, s.src_index)),
    ]
    predicate, counts = s.predicate, s.zero_fill and s.predicate != TRUE
    if counts or s.stop is not None:
        operands.append(ptx.number(_read_nbytes(w, s)))
        predicate, counts = TRUE, True
    bypass = s.cache is Cache.NO_ALLOCATE
    text = ptx.assembly(ptx.copy_instruction(nbytes, bypass=bypass, counts=counts), operands)
    w.guarded(predicate, lambda: w.line(text))


def _read_nbytes(w: Writer, s: ir.CpAsync) -> str:
    """The bytes that are read; the others are zeros."""
    itemsize = s.dst.dtype.nbytes
    count = str(s.width * itemsize)
    if s.stop is not None:
        some = minimum(maximum(s.stop, 0), s.width)
        count = w.integer(some * itemsize)
    return count if s.predicate == TRUE else f"({w.condition(s.predicate)}) ? {count} : 0"


def bulk(w: Writer, s: ir.BulkLoad | ir.BulkStore | ir.BulkReduce) -> None:
    """A bulk copy by one thread."""
    to, source = w.address(s.dst, s.index), w.address(s.src, s.src_index)
    operands = [ptx.in_global(to), ptx.shared(source)]
    if isinstance(s, ir.BulkLoad):
        barrier = ptx.shared(w.address(s.barrier, s.slot))
        operands = [ptx.shared(to), ptx.in_global(source), barrier]
    text = ptx.assembly(ptx.bulk_instruction(s), operands)
    w.issued(s.issuer, lambda: w.line(text))


def remote_store(w: Writer, s: ir.RemoteStore) -> None:
    """A store of each thread into the shared memory of a block."""
    if s.dst.memory is not Memory.SHARED or s.src.buffer.dtype is not s.dst.dtype:
        raise SpecError(f"a remote store writes elements of {s.dst} in shared memory")
    bits = [scalars.bits(w.register(s.src, k), s.dst.dtype) for k in range(s.width)]
    address, rank = w.address(s.dst, s.index), w.integer(s.rank)
    barrier = None if s.barrier is None else w.address(s.barrier, s.slot)
    text = ptx.remote_store(address, rank, bits, s.dst.dtype.nbytes, barrier)
    w.guarded(s.predicate, lambda: w.line(text))


def _comment(text: str) -> str:
    return " ".join(text.split()).rstrip("\\")


_SYNCS = (
    ir.BlockSync, ir.WarpSync, ir.NamedSync, ir.BarrierArrive, ir.ClusterArrive, ir.ClusterWait,
    ir.AsyncCommit, ir.AsyncWait, ir.ProxyFence, ir.MbarInit, ir.MbarExpect, ir.MbarArrive,
    ir.MbarWait, ir.MbarInvalidate, ir.LaunchWait, ir.LaunchDependents,
)  # fmt: skip

SPELLINGS: Spellings = {
    **dict.fromkeys(_SYNCS, sync),
    ir.CpAsync: cp_async,
    **dict.fromkeys((ir.BulkLoad, ir.BulkStore, ir.BulkReduce), bulk),
    ir.RemoteStore: remote_store,
}
"""By class of statement."""
