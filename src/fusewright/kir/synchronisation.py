"""Kernel IR: asynchronous work and synchronisation, one doc line a node.

Group-completing operations are ordered by `AsyncCommit` and `AsyncWait` in the thread that issued
them; bulk loads complete on an mbarrier and are visible to whoever waits on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fusewright.core.conditions import TRUE, Cond
from fusewright.core.expr import Expr
from fusewright.kir.symbols import Buffer, Statement, SyncStatement
from fusewright.memory import Cache, Memory

# --- asynchronous work --------------------------------------------------------------------------


class AsyncKind(Enum):
    """What completes by groups: copies by a thread, bulk stores and bulk reductions, and matrix
    products of a warpgroup."""

    CP_ASYNC = "cp_async"
    BULK = "bulk"
    MMA = "mma"


@dataclass(frozen=True, slots=True, eq=False)
class CpAsync(Statement):
    """`dst[index .. index+width) = src[src_index .. +width)` from global to shared memory, complete
    when its group is; where the predicate fails, zeros if `zero_fill`, else nothing. Moves 4, 8 or
    16 bytes; `cache` NO_ALLOCATE (16 bytes only) passes by the first-level cache."""

    dst: Buffer
    index: Expr
    src: Buffer
    src_index: Expr
    width: int = 1
    predicate: Cond = TRUE
    zero_fill: bool = False
    cache: Cache = Cache.DEFAULT


@dataclass(frozen=True, slots=True, eq=False)
class BulkLoad(Statement):
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


@dataclass(frozen=True, slots=True, eq=False)
class BulkStore(Statement):
    """Thread `issuer` copies `size` elements from shared to global memory in the async proxy;
    completes with its group of kind BULK."""

    dst: Buffer
    index: Expr
    src: Buffer
    src_index: Expr
    size: int
    issuer: int


@dataclass(frozen=True, slots=True, eq=False)
class BulkReduce(Statement):
    """`dst = fn(dst, src)` for `size` elements, as `BulkStore`; `fn` in add, min, max."""

    fn: str
    dst: Buffer
    index: Expr
    src: Buffer
    src_index: Expr
    size: int
    issuer: int


# --- synchronisation ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class BlockSync(SyncStatement):
    """All threads of the block wait for each other; orders all memory among them."""


@dataclass(frozen=True, slots=True, eq=False)
class WarpSync(SyncStatement):
    """The 32 lanes of each warp wait for each other; orders all memory among them."""


@dataclass(frozen=True, slots=True, eq=False)
class NamedSync(SyncStatement):
    """Arrives at barrier number `barrier` and waits until `nthreads` threads have arrived."""

    barrier: int
    nthreads: int


@dataclass(frozen=True, slots=True, eq=False)
class BarrierArrive(SyncStatement):
    """Arrives at barrier number `barrier` of `nthreads` threads and goes on."""

    barrier: int
    nthreads: int


@dataclass(frozen=True, slots=True, eq=False)
class ClusterArrive(SyncStatement):
    """All threads of the cluster arrive, each when it comes here, and go on; hands on what they
    did in memory, or with `relaxed` only that they came, and the mbarriers that they made. The
    next `ClusterWait` of the same body waits for it."""

    relaxed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ClusterWait(SyncStatement):
    """Waits until all threads of the cluster have arrived; orders all memory among them."""


@dataclass(frozen=True, slots=True, eq=False)
class AsyncCommit(SyncStatement):
    """Ends the thread's group of operations of a kind; groups complete in order."""

    kind: AsyncKind


@dataclass(frozen=True, slots=True, eq=False)
class AsyncWait(SyncStatement):
    """Waits until at most the `keep` latest groups of the thread are under way; with `reads_only`
    (BULK) until they have read their sources."""

    kind: AsyncKind
    keep: int = 0
    reads_only: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ProxyFence(SyncStatement):
    """Makes the thread's accesses to `space` so far visible to the async proxy, for those ordered
    after it."""

    space: Memory


@dataclass(frozen=True, slots=True, eq=False)
class MmaFence(SyncStatement):
    """Orders what the thread did with its registers before the matrix products that follow."""


@dataclass(frozen=True, slots=True, eq=False)
class MbarInit(SyncStatement):
    """Thread `issuer` makes `barrier[slot]` an mbarrier whose phases take `count` arrivals."""

    barrier: Buffer
    slot: Expr
    count: int
    issuer: int


@dataclass(frozen=True, slots=True, eq=False)
class MbarExpect(SyncStatement):
    """Thread `issuer` arrives at `barrier[slot]`; the phase also takes `nbytes` of bulk loads."""

    barrier: Buffer
    slot: Expr
    nbytes: int
    issuer: int


@dataclass(frozen=True, slots=True, eq=False)
class MbarArrive(SyncStatement):
    """Each thread, or lane 0 of each warp if `per_warp`, arrives at `barrier[slot]`."""

    barrier: Buffer
    slot: Expr
    per_warp: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class MbarWait(SyncStatement):
    """Waits while the phase of `barrier[slot]` under way has `parity` (0 for the first phase): all
    threads of the role, or of the block, or only thread `issuer`."""

    barrier: Buffer
    slot: Expr
    parity: Expr
    issuer: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class MbarInvalidate(SyncStatement):
    """Thread `issuer` makes `barrier[slot]` ordinary memory again."""

    barrier: Buffer
    slot: Expr
    issuer: int
