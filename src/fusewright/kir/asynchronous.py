"""Kernel IR: asynchronous work, one doc line a node.

Group-completing operations are ordered by `AsyncCommit` and `AsyncWait` in the thread that issued
them; what an mbarrier counts is visible to whoever waits on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fusewright.core.conditions import TRUE, Cond, all_of, less
from fusewright.core.expr import ZERO, Expr
from fusewright.kir.rules import accesses_words, is_misaligned, lives_in, same_dtype
from fusewright.kir.symbols import Buffer, Reg
from fusewright.kir.traits import (
    AT_ONCE,
    WITH_PHASE,
    Act,
    AsyncKind,
    Body,
    Completes,
    Guarded,
    MbarrierUse,
    MemoryUse,
    RegisterUse,
    Statement,
    with_group,
)
from fusewright.memory import Cache, Memory
from fusewright.target import (
    BULK_ALIGNMENT,
    COUNTED_STORE_NBYTES,
    CP_ASYNC_NBYTES,
    REMOTE_STORE_WIDTH,
)

BULK_REDUCTIONS = {
    "add": ("float16", "bfloat16", "float32", "float64", "int32", "uint32", "uint64"),
    "min": ("float16", "bfloat16", "int32", "uint32", "int64", "uint64"),
    "max": ("float16", "bfloat16", "int32", "uint32", "int64", "uint64"),
}
"""The dtypes that `cp.reduce.async.bulk` takes (PTX ISA, data movement instructions)."""


# --- copies by a thread -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class CpAsync(Guarded):
    """`dst[index .. index+width) = src[src_index .. +width)` from global to shared memory, complete
    when its group is; where the predicate fails, zeros if `zero_fill`, else nothing. With `stop`
    only elements before it are read, and the others are zeros, too. Moves 4, 8 or 16 bytes; `cache`
    NO_ALLOCATE (16 bytes only) passes by the first-level cache."""

    dst: Buffer
    index: Expr
    src: Buffer
    src_index: Expr
    width: int = 1
    predicate: Cond = TRUE
    zero_fill: bool = False
    stop: Expr | None = None
    cache: Cache = Cache.DEFAULT

    def where_false(self) -> Body:
        return (self,) if self.zero_fill else ()

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        done = with_group(AsyncKind.CP_ASYNC)
        where = TRUE if self.zero_fill else self.predicate
        return (
            *(
                MemoryUse(self.src, False, index, width, predicate, completes=done)
                for index, width, predicate in self.read_parts()
            ),
            MemoryUse(self.dst, True, self.index, self.width, where, completes=done),
        )

    def read_parts(self) -> tuple[tuple[Expr, int, Cond], ...]:
        """What is read of the source: where, how many elements, and when."""
        if self.stop is None:
            return ((self.src_index, self.width, self.predicate),)
        return tuple(
            (self.src_index + k, 1, all_of((self.predicate, less(k, self.stop))))
            for k in range(self.width)
        )

    def group(self) -> AsyncKind:
        return AsyncKind.CP_ASYNC

    def problems(self) -> Iterator[str]:
        yield from lives_in(self.dst, Memory.SHARED)
        yield from lives_in(self.src, Memory.GLOBAL)
        yield from same_dtype(self.src.dtype, self.dst.dtype, "a copy keeps the dtype")
        nbytes = self.width * self.dst.dtype.nbytes
        if nbytes not in CP_ASYNC_NBYTES:
            known = ", ".join(map(str, CP_ASYNC_NBYTES))
            dtype = self.dst.dtype
            yield f"{self.width} elements of {dtype} are {nbytes} bytes, not one of {known}"
            return
        yield from accesses_words(self.dst, self.index, self.width)
        yield from accesses_words(self.src, self.src_index, self.width)
        if self.stop is not None and not self.zero_fill:
            yield f"elements from {self.stop} on are zeros, so that it fills with zeros: zero_fill"
        if self.cache not in (Cache.DEFAULT, Cache.NO_ALLOCATE):
            yield f"cache policy {self.cache.value} does not apply to asynchronous copies"
        if self.cache is Cache.NO_ALLOCATE and nbytes != max(CP_ASYNC_NBYTES):
            yield f"only copies of {max(CP_ASYNC_NBYTES)} bytes pass by the first-level cache"


# --- bulk copies --------------------------------------------------------------------------------


class _Bulk(Statement):
    """What bulk copies have in common: one thread issues them, the async proxy does them."""

    __slots__ = ()

    dst: Buffer
    index: Expr
    src: Buffer
    src_index: Expr
    size: int
    issuer: int

    @property
    def nbytes(self) -> int:
        """The bytes that are moved."""
        return self.size * self.dst.dtype.nbytes

    def issuing_thread(self) -> int:
        return self.issuer

    def _use(self, completes: Completes, *, writes: bool) -> MemoryUse:
        buffer, index = (self.dst, self.index) if writes else (self.src, self.src_index)
        return MemoryUse(
            buffer,
            writes,
            index,
            self.size,
            issuer=self.issuer,
            completes=completes,
            in_async_proxy=True,
            step=BULK_ALIGNMENT // buffer.dtype.nbytes,
        )

    def _operand_problems(self, to: Memory, source: Memory) -> Iterator[str]:
        yield from lives_in(self.dst, to)
        yield from lives_in(self.src, source)
        yield from same_dtype(self.src.dtype, self.dst.dtype, "a copy keeps the dtype")
        if self.nbytes < 1 or self.nbytes % BULK_ALIGNMENT:
            yield f"{self.nbytes} bytes are not a positive multiple of {BULK_ALIGNMENT}"
            return
        for buffer, index in ((self.dst, self.index), (self.src, self.src_index)):
            if buffer.alignment % BULK_ALIGNMENT:
                yield f"{buffer} is aligned to {buffer.alignment} bytes, not to {BULK_ALIGNMENT}"
            elif is_misaligned(index, BULK_ALIGNMENT // buffer.dtype.nbytes):
                yield f"the index {index} is not at a multiple of {BULK_ALIGNMENT} bytes"


class _BulkOut(_Bulk):
    """Bulk copies from shared to global memory, which complete with their group."""

    __slots__ = ()

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        source = self._use(with_group(AsyncKind.BULK, is_read=True), writes=False)
        return source, self._use(with_group(AsyncKind.BULK), writes=True)

    def group(self) -> AsyncKind:
        return AsyncKind.BULK

    def problems(self) -> Iterator[str]:
        return self._operand_problems(Memory.GLOBAL, Memory.SHARED)


@dataclass(frozen=True, slots=True, eq=False)
class BulkLoad(_Bulk):
    """Thread `issuer` copies `size` elements from global to shared memory in the async proxy; the
    bytes are counted by phase of the mbarrier `barrier[slot]`, which makes them visible."""

    dst: Buffer
    index: Expr
    src: Buffer
    src_index: Expr
    size: int
    barrier: Buffer
    slot: Expr
    issuer: int

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        return (
            self._use(WITH_PHASE, writes=False),
            self._use(WITH_PHASE, writes=True),
            MemoryUse(self.barrier, False, self.slot, 1, issuer=self.issuer, in_async_proxy=True),
        )

    def mbarrier_use(self) -> MbarrierUse:
        return MbarrierUse(Act.DELIVER, self.barrier, self.slot, nbytes=self.nbytes)

    def problems(self) -> Iterator[str]:
        return self._operand_problems(Memory.SHARED, Memory.GLOBAL)


@dataclass(frozen=True, slots=True, eq=False)
class BulkStore(_BulkOut):
    """Thread `issuer` copies `size` elements from shared to global memory in the async proxy;
    completes with its group of kind BULK."""

    dst: Buffer
    index: Expr
    src: Buffer
    src_index: Expr
    size: int
    issuer: int


@dataclass(frozen=True, slots=True, eq=False)
class BulkReduce(_BulkOut):
    """`dst = fn(dst, src)` for `size` elements, as `BulkStore`; `fn` in add, min, max."""

    fn: str
    dst: Buffer
    index: Expr
    src: Buffer
    src_index: Expr
    size: int
    issuer: int

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        source, target = _BulkOut.memory_uses(self)
        target = replace(target, is_atomic=True)
        return source, replace(target, writes=False), target

    def problems(self) -> Iterator[str]:
        yield from _BulkOut.problems(self)
        if self.dst.dtype.name not in BULK_REDUCTIONS.get(self.fn, ()):
            yield f"there is no bulk reduction '{self.fn}' of {self.dst.dtype}"


# --- stores to other blocks ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class RemoteStore(Guarded):
    """`dst[index .. index+width) = src[i .. i+width)` in the shared memory of block `rank` of the
    cluster, where the predicate holds; the index is a multiple of the width. With a `barrier` the
    store is asynchronous: its bytes are counted by phase of that block's mbarrier `barrier[slot]`,
    which makes them visible."""

    dst: Buffer
    index: Expr
    rank: Expr
    src: Reg
    width: int = 1
    predicate: Cond = TRUE
    barrier: Buffer | None = None
    slot: Expr = ZERO

    @property
    def nbytes(self) -> int:
        """What a thread stores."""
        return self.width * self.dst.dtype.nbytes

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        done = AT_ONCE if self.barrier is None else WITH_PHASE
        buffers = ((self.dst, self.index, self.width, True), (self.barrier, self.slot, 1, False))
        return tuple(
            MemoryUse(b, writes, index, width, self.predicate, completes=done, rank=self.rank)
            for b, index, width, writes in buffers
            if b is not None
        )

    def register_uses(self) -> tuple[RegisterUse, ...]:
        return (RegisterUse(self.src, reads=True, writes=False, width=self.width),)

    def mbarrier_use(self) -> MbarrierUse | None:
        if self.barrier is None:
            return None
        return MbarrierUse(Act.DELIVER, self.barrier, self.slot, nbytes=self.nbytes, rank=self.rank)

    def problems(self) -> Iterator[str]:
        yield from accesses_words(self.dst, self.index, self.width)
        if self.width > REMOTE_STORE_WIDTH:
            yield f"{self.width} elements at once; other blocks get at most {REMOTE_STORE_WIDTH}"
        yield from same_dtype(self.src.buffer.dtype, self.dst.dtype, "a store keeps the dtype")
        if self.dst.memory is not Memory.SHARED:
            where = self.dst.memory.value
            yield f"{self.dst} lives in {where} memory; blocks share shared memory"
        nbytes = self.dst.dtype.nbytes
        if self.barrier is not None and nbytes not in COUNTED_STORE_NBYTES:
            known = " or ".join(map(str, COUNTED_STORE_NBYTES))
            yield f"elements of {self.dst} have {nbytes} bytes; mbarriers count {known} a store"
