"""Checks of asynchronous work, syncs and roles; `kir/spec.py` holds the list of all checks.

Blocking statements stand only where all warps of their role (of the block, outside of roles) agree
to run them: the warps of a role then wait together, and no warp is late because another waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fusewright.core.conditions import Cond
from fusewright.core.expr import Expr, variables
from fusewright.dtypes import uint64
from fusewright.kir.analysis.lanes import conjunction, evaluate_lanes, holds, is_known
from fusewright.kir.analysis.uniformity import all_agree, threads_of
from fusewright.kir.checks import Check, Facts, Problem, is_misaligned, same_dtype
from fusewright.kir.ir import (
    AsyncKind,
    AsyncWait,
    BarrierArrive,
    BlockSync,
    Buffer,
    BulkLoad,
    BulkReduce,
    BulkStore,
    Cache,
    CpAsync,
    MbarArrive,
    MbarExpect,
    MbarInit,
    MbarInvalidate,
    MbarWait,
    Memory,
    NamedSync,
    ProxyFence,
    RemoteStore,
    Role,
    Roles,
    Statement,
    ThreadReduce,
)
from fusewright.target import (
    BULK_ALIGNMENT,
    CP_ASYNC_NBYTES,
    MAX_MBARRIER_COUNT,
    NAMED_BARRIERS,
    WARP_SIZE,
)

BULK_REDUCTIONS = {
    "add": ("float16", "bfloat16", "float32", "float64", "int32", "uint32", "uint64"),
    "min": ("float16", "bfloat16", "int32", "uint32", "int64", "uint64"),
    "max": ("float16", "bfloat16", "int32", "uint32", "int64", "uint64"),
}
"""The dtypes that `cp.reduce.async.bulk` takes (PTX ISA, data movement instructions)."""

_MAX_TRIED = 1 << 14
_ISSUED = (BulkLoad, BulkStore, BulkReduce, MbarInit, MbarExpect, MbarInvalidate)
_ON_MBARRIER = (MbarInit, MbarExpect, MbarArrive, MbarWait, MbarInvalidate, BulkLoad, RemoteStore)
_BLOCKING = (NamedSync, MbarWait)


# --- who agrees -------------------------------------------------------------------------------


def _blocking(facts: Facts) -> Iterator[Problem]:
    k = facts.kernel
    for place in facts.places:
        s = place.statement
        threads = threads_of(place.role, k)
        whole = "role" if place.role else "block"
        if isinstance(s, _BLOCKING):
            for c in place.conditions:
                if not all_agree(c, k, threads, len(threads)):
                    yield (
                        s,
                        (
                            f"it blocks, but the warps of its {whole} may disagree on '{c}' "
                            "around it; give the warps that run it a Role"
                        ),
                    )
        if isinstance(s, MbarWait):
            for e in (s.slot, s.parity):
                if not all_agree(e, k, threads, len(threads)):
                    yield s, f"the threads of a {whole} wait together, but may disagree on {e}"
        if isinstance(s, BarrierArrive | MbarArrive):
            slots = (s.slot,) if isinstance(s, MbarArrive) else ()
            is_per_warp = isinstance(s, BarrierArrive) or s.per_warp
            for c in (*(place.conditions if is_per_warp else ()), *slots):
                if not all_agree(c, k, threads, WARP_SIZE):
                    yield s, f"a warp arrives as one, but its lanes may disagree on {c}"


def _single_issuers(facts: Facts) -> Iterator[Problem]:
    k = facts.kernel
    for place in facts.places:
        s = place.statement
        if not isinstance(s, (*_ISSUED, MbarWait)) or s.issuer is None:
            continue
        threads = threads_of(place.role, k)
        if s.issuer not in threads:
            yield s, f"thread {s.issuer} issues it, but only threads {_span(threads)} come here"
        for c in place.conditions:
            if not all_agree(c, k, threads, len(threads)):
                yield s, f"the statement names its thread; '{c}' around it asks for threads again"


def _span(threads: range) -> str:
    return f"{threads.start} .. {threads.stop - 1}"


# --- roles ------------------------------------------------------------------------------------


def _roles(facts: Facts) -> Iterator[Problem]:
    k = facts.kernel
    for place in facts.places:
        s = place.statement
        if isinstance(s, Role) and not isinstance(place.parent, Roles):
            yield s, "a role stands directly in roles"
        if place.role is not None and isinstance(s, BlockSync | ThreadReduce | Roles):
            yield s, "all threads of the block meet here, but a role has only some of its warps"
        if not isinstance(s, Roles):
            continue
        for c in place.conditions:
            if not all_agree(c, k, range(k.nthreads), k.nthreads):
                yield s, f"all threads of the block come to roles, but may disagree on '{c}'"
        end = 0
        for role in s.body:
            if not isinstance(role, Role):
                yield role, "only role statements stand directly in roles"
                continue
            if not end <= role.first < role.stop or role.stop * WARP_SIZE > k.nthreads:
                yield (
                    role,
                    (
                        f"warps {role.first} .. {role.stop - 1} are not behind warp {end} and "
                        f"within the {k.nthreads // WARP_SIZE} whole warps of the block"
                    ),
                )
            end = role.stop


# --- named barriers ---------------------------------------------------------------------------


def _named_barriers(facts: Facts) -> Iterator[Problem]:
    counts: dict[int, int] = {}
    for place in facts.places:
        s = place.statement
        if not isinstance(s, NamedSync | BarrierArrive):
            continue
        n, limit = s.nthreads, facts.kernel.nthreads
        if not 1 <= s.barrier < NAMED_BARRIERS:
            yield s, f"barrier {s.barrier} is not one of 1 .. {NAMED_BARRIERS - 1}"
        if n < WARP_SIZE or n % WARP_SIZE or n > limit:
            yield s, f"{n} threads are not a positive number of whole warps of at most {limit}"
        if counts.setdefault(s.barrier, n) != n:
            other = counts[s.barrier]
            yield s, f"barrier {s.barrier} waits for {other} threads elsewhere, here for {n}"


# --- copies -----------------------------------------------------------------------------------


def _async_copies(facts: Facts) -> Iterator[Problem]:
    for place in facts.places:
        s = place.statement
        match s:
            case CpAsync():
                yield from _cp_async(s)
            case BulkLoad():
                yield from _bulk(s, Memory.SHARED, Memory.GLOBAL)
            case BulkStore():
                yield from _bulk(s, Memory.GLOBAL, Memory.SHARED)
            case BulkReduce():
                yield from _bulk(s, Memory.GLOBAL, Memory.SHARED)
                known = BULK_REDUCTIONS.get(s.fn, ())
                if s.dst.dtype.name not in known:
                    yield s, f"there is no bulk reduction '{s.fn}' of {s.dst.dtype}"
            case AsyncWait():
                if s.keep < 0:
                    yield s, f"it keeps {s.keep} groups; the number is at least 0"
                if s.reads_only and s.kind is not AsyncKind.BULK:
                    yield s, f"groups of kind {s.kind.value} have no wait for reads only"
            case ProxyFence():
                if s.space is Memory.LOCAL:
                    yield s, "registers are not seen by the async proxy"
            case _:
                pass


def _cp_async(s: CpAsync) -> Iterator[Problem]:
    yield from _memory_of(s, s.dst, Memory.SHARED)
    yield from _memory_of(s, s.src, Memory.GLOBAL)
    yield from same_dtype(s, s.src.dtype, s.dst.dtype, "a copy keeps the dtype")
    nbytes = s.width * s.dst.dtype.nbytes
    if nbytes not in CP_ASYNC_NBYTES:
        known = ", ".join(map(str, CP_ASYNC_NBYTES))
        yield s, f"{s.width} elements of {s.dst.dtype} are {nbytes} bytes, not one of {known}"
        return
    for buffer, index in ((s.dst, s.index), (s.src, s.src_index)):
        if buffer.alignment % nbytes:
            yield s, f"{buffer} is aligned to {buffer.alignment} bytes, the copy to {nbytes}"
        elif is_misaligned(index, s.width):
            yield s, f"the index {index} is not a multiple of the width {s.width}"
    if s.cache not in (Cache.DEFAULT, Cache.NO_ALLOCATE):
        yield s, f"cache policy {s.cache.value} does not apply to asynchronous copies"
    if s.cache is Cache.NO_ALLOCATE and nbytes != max(CP_ASYNC_NBYTES):
        yield s, f"only copies of {max(CP_ASYNC_NBYTES)} bytes pass by the first-level cache"


def _bulk(s: BulkLoad | BulkStore | BulkReduce, to: Memory, source: Memory) -> Iterator[Problem]:
    yield from _memory_of(s, s.dst, to)
    yield from _memory_of(s, s.src, source)
    yield from same_dtype(s, s.src.dtype, s.dst.dtype, "a copy keeps the dtype")
    nbytes = s.size * s.dst.dtype.nbytes
    if nbytes < 1 or nbytes % BULK_ALIGNMENT:
        yield s, f"{nbytes} bytes are not a positive multiple of {BULK_ALIGNMENT}"
        return
    for buffer, index in ((s.dst, s.index), (s.src, s.src_index)):
        if buffer.alignment % BULK_ALIGNMENT:
            yield s, f"{buffer} is aligned to {buffer.alignment} bytes, not to {BULK_ALIGNMENT}"
        elif is_misaligned(index, BULK_ALIGNMENT // buffer.dtype.nbytes):
            yield s, f"the index {index} is not at a multiple of {BULK_ALIGNMENT} bytes"


def _memory_of(s: Statement, buffer: Buffer, wanted: Memory) -> Iterator[Problem]:
    if buffer.memory is not wanted:
        have = buffer.memory.value
        yield s, f"{buffer} lives in {have} memory where the statement wants {wanted.value} memory"


# --- mbarriers --------------------------------------------------------------------------------


def _mbarriers(facts: Facts) -> Iterator[Problem]:
    for place in facts.places:
        s = place.statement
        if not isinstance(s, _ON_MBARRIER) or s.barrier is None:
            continue
        b = s.barrier
        if b.memory is not Memory.SHARED or b.dtype is not uint64:
            yield s, f"{b} is {b.dtype} in {b.memory.value} memory; mbarriers are uint64 in shared"
            continue
        size = b.size.interval[0] or 0
        if not _fits(s.slot, size, place.conditions):
            yield s, f"slot {s.slot} may lie outside of the {size} mbarriers of {b}"
        if isinstance(s, MbarInit) and not 1 <= s.count <= MAX_MBARRIER_COUNT:
            yield s, f"{s.count} arrivals a phase are not 1 .. {MAX_MBARRIER_COUNT}"
        if isinstance(s, MbarExpect) and not 1 <= s.nbytes <= MAX_MBARRIER_COUNT:
            yield s, f"{s.nbytes} bytes a phase are not 1 .. {MAX_MBARRIER_COUNT}"


def _fits(slot: Expr, size: int, conditions: tuple[Cond, ...]) -> bool:
    """Whether a slot lies in `0 .. size-1`, by its range, or by trying all values that the
    conditions around it allow."""
    low, high = slot.interval
    if low is not None and high is not None and (low > high or (low >= 0 and high < size)):
        return True
    found = variables(slot)
    ranges = [v.interval for v in found]
    lengths = [hi - lo + 1 for lo, hi in ranges if lo is not None and hi is not None]
    if not found or len(lengths) < len(found) or math.prod(lengths) > _MAX_TRIED:
        return False
    grid = np.indices(lengths).reshape(len(found), math.prod(lengths))
    known = {v: grid[i] + (v.interval[0] or 0) for i, v in enumerate(found)}
    usable = [holds(c, known) for c in conditions if is_known(c, known)]
    where = np.broadcast_to(conjunction(usable).may, grid.shape[1:])
    values = np.broadcast_to(evaluate_lanes(slot, known), grid.shape[1:])[where]
    return bool(((values >= 0) & (values < size)).all())


SYNC_CHECKS: tuple[Check, ...] = (
    Check("roles", "lowered", _roles),
    Check("named barriers", "lowered", _named_barriers),
    Check("asynchronous copies", "lowered", _async_copies),
    Check("mbarriers", "lowered", _mbarriers),
    Check("single issuers", "lowered", _single_issuers),
    Check("blocking", "lowered", _blocking),
)
