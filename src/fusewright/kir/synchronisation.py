"""Kernel IR: synchronisation, one doc line a node.

`AsyncCommit` and `AsyncWait` order operations that complete by groups in the thread that issued
them; barriers, named ones and those in memory, order what threads do among each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fusewright.core.expr import Expr
from fusewright.kir.symbols import Buffer
from fusewright.kir.traits import (
    Act,
    AsyncKind,
    MbarrierUse,
    MemoryUse,
    SyncStatement,
    Team,
)
from fusewright.memory import Memory
from fusewright.target import MAX_MBARRIER_COUNT, WARP_SIZE, Feature

# --- barriers of the hardware -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class BlockSync(SyncStatement):
    """All threads of the block wait for each other; orders all memory among them."""

    def executed_by(self) -> Team:
        return Team.BLOCK


@dataclass(frozen=True, slots=True, eq=False)
class WarpSync(SyncStatement):
    """The 32 lanes of each warp wait for each other; orders all memory among them."""

    def executed_by(self) -> Team:
        return Team.WARP


@dataclass(frozen=True, slots=True, eq=False)
class NamedSync(SyncStatement):
    """Arrives at barrier number `barrier` and waits until `nthreads` threads have arrived."""

    barrier: int
    nthreads: int

    def arrives_at(self) -> int:
        return self.barrier

    def waits_at(self) -> int:
        return self.barrier


@dataclass(frozen=True, slots=True, eq=False)
class BarrierArrive(SyncStatement):
    """Arrives at barrier number `barrier` of `nthreads` threads and goes on."""

    barrier: int
    nthreads: int

    def arrives_at(self) -> int:
        return self.barrier


@dataclass(frozen=True, slots=True, eq=False)
class ClusterArrive(SyncStatement):
    """All threads of the cluster arrive, each when it comes here, and go on; hands on what they
    did in memory, or with `relaxed` only that they came, and the mbarriers that they made. The
    next `ClusterWait` of the same body waits for it."""

    relaxed: bool = False

    def executed_by(self) -> Team:
        return Team.CLUSTER

    def feature(self) -> Feature:
        return Feature.CLUSTER


@dataclass(frozen=True, slots=True, eq=False)
class ClusterWait(SyncStatement):
    """Waits until all threads of the cluster have arrived; orders all memory among them."""

    def executed_by(self) -> Team:
        return Team.CLUSTER

    def feature(self) -> Feature:
        return Feature.CLUSTER


@dataclass(frozen=True, slots=True, eq=False)
class AsyncCommit(SyncStatement):
    """Ends the thread's group of operations of a kind; groups complete in order."""

    kind: AsyncKind

    def executed_by(self) -> Team | None:
        return Team.WARPGROUP if self.kind is AsyncKind.MMA else None

    def feature(self) -> Feature:
        return self.kind.feature


@dataclass(frozen=True, slots=True, eq=False)
class AsyncWait(SyncStatement):
    """Waits until at most the `keep` latest groups of the thread are under way; with `reads_only`
    (BULK) until they have read their sources."""

    kind: AsyncKind
    keep: int = 0
    reads_only: bool = False

    def executed_by(self) -> Team | None:
        return Team.WARPGROUP if self.kind is AsyncKind.MMA else None

    def feature(self) -> Feature:
        return self.kind.feature

    def problems(self) -> Iterator[str]:
        if self.keep < 0:
            yield f"it keeps {self.keep} groups; the number is at least 0"
        if self.reads_only and not self.kind.waits_for_reads:
            yield f"groups of kind {self.kind.value} have no wait for reads only"


@dataclass(frozen=True, slots=True, eq=False)
class ProxyFence(SyncStatement):
    """Makes the thread's accesses to `space` so far visible to the async proxy, for those ordered
    after it."""

    space: Memory

    def feature(self) -> Feature:
        return Feature.BULK

    def problems(self) -> Iterator[str]:
        if self.space is Memory.LOCAL:
            yield "registers are not seen by the async proxy"


@dataclass(frozen=True, slots=True, eq=False)
class MmaFence(SyncStatement):
    """Orders what the thread did with its registers before the matrix products that follow."""

    def executed_by(self) -> Team:
        return Team.WARPGROUP

    def feature(self) -> Feature:
        return Feature.WGMMA


@dataclass(frozen=True, slots=True, eq=False)
class LaunchWait(SyncStatement):
    """Waits until the launches before this one have ended, of a launch that may begin before that;
    what they did in memory is there for the thread, and for those that are ordered behind it."""

    def feature(self) -> Feature:
        return Feature.EARLY_LAUNCH


@dataclass(frozen=True, slots=True, eq=False)
class LaunchDependents(SyncStatement):
    """Lets the launch behind this one begin when all blocks have come here or have ended. Hands on
    nothing: it orders time alone."""

    def feature(self) -> Feature:
        return Feature.EARLY_LAUNCH


@dataclass(frozen=True, slots=True, eq=False)
class MbarInit(SyncStatement):
    """Thread `issuer` makes `barrier[slot]` an mbarrier whose phases take `count` arrivals."""

    barrier: Buffer
    slot: Expr
    count: int
    issuer: int

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        return (
            MemoryUse(self.barrier, True, self.slot, 1, issuer=self.issuer, makes_mbarrier=True),
        )

    def mbarrier_use(self) -> MbarrierUse:
        return MbarrierUse(Act.MAKE, self.barrier, self.slot, count=self.count)

    def issuing_thread(self) -> int:
        return self.issuer

    def problems(self) -> Iterator[str]:
        if not 1 <= self.count <= MAX_MBARRIER_COUNT:
            yield f"{self.count} arrivals a phase are not 1 .. {MAX_MBARRIER_COUNT}"


@dataclass(frozen=True, slots=True, eq=False)
class MbarExpect(SyncStatement):
    """Thread `issuer` arrives at `barrier[slot]`; the phase also takes `nbytes` of bulk loads."""

    barrier: Buffer
    slot: Expr
    nbytes: int
    issuer: int

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        use = MemoryUse(self.barrier, False, self.slot, 1, issuer=self.issuer)
        return use, replace(use, writes=True, ends_turn=True)

    def mbarrier_use(self) -> MbarrierUse:
        return MbarrierUse(Act.ARRIVE, self.barrier, self.slot, nbytes=self.nbytes)

    def issuing_thread(self) -> int:
        return self.issuer

    def problems(self) -> Iterator[str]:
        if not 1 <= self.nbytes <= MAX_MBARRIER_COUNT:
            yield f"{self.nbytes} bytes a phase are not 1 .. {MAX_MBARRIER_COUNT}"


@dataclass(frozen=True, slots=True, eq=False)
class MbarArrive(SyncStatement):
    """Each thread, or lane 0 of each warp if `per_warp`, arrives at `barrier[slot]`. At that of a
    block `rank` of the cluster it says that the memory it has read is free, and hands on nothing
    that it wrote."""

    barrier: Buffer
    slot: Expr
    per_warp: bool = False
    rank: Expr | None = None

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        return (MemoryUse(self.barrier, False, self.slot, 1, rank=self.rank),)

    def mbarrier_use(self) -> MbarrierUse:
        each = WARP_SIZE if self.per_warp else 1
        return MbarrierUse(
            Act.ARRIVE, self.barrier, self.slot, threads_each=each, rank=self.rank
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class MbarWait(SyncStatement):
    """Waits while the phase of `barrier[slot]` under way has `parity` (0 for the first phase): all
    threads of the role, or of the block, or only thread `issuer`."""

    barrier: Buffer
    slot: Expr
    parity: Expr
    issuer: int | None = None

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        return (MemoryUse(self.barrier, False, self.slot, 1, issuer=self.issuer, is_wait=True),)

    def mbarrier_use(self) -> MbarrierUse:
        return MbarrierUse(Act.WAIT, self.barrier, self.slot, parity=self.parity)

    def issuing_thread(self) -> int | None:
        return self.issuer


@dataclass(frozen=True, slots=True, eq=False)
class MbarInvalidate(SyncStatement):
    """Thread `issuer` makes `barrier[slot]` ordinary memory again."""

    barrier: Buffer
    slot: Expr
    issuer: int

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        return (MemoryUse(self.barrier, True, self.slot, 1, issuer=self.issuer),)

    def mbarrier_use(self) -> MbarrierUse:
        return MbarrierUse(Act.END, self.barrier, self.slot)

    def issuing_thread(self) -> int:
        return self.issuer
