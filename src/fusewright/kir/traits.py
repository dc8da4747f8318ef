"""What a statement says of itself: the bases of all statements, and the values of their traits.

Specs, analyses, passes, the simulator and the emitter ask a statement for these; none of them asks
what class it is, but for the one place that spells it and the one that executes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeAlias

from fusewright.choice import Choice
from fusewright.core.conditions import TRUE, Cond, substitute_condition
from fusewright.core.expr import ZERO, Expr, Var
from fusewright.core.node import Node
from fusewright.core.substitution import substitute
from fusewright.errors import InternalError
from fusewright.kir.symbols import Buffer, Reg
from fusewright.target import WARP_SIZE, Feature

# --- when work is complete ----------------------------------------------------------------------


class AsyncKind(Choice):
    """What completes by groups: copies by a thread, bulk stores and bulk reductions, and matrix
    products of a warpgroup."""

    CP_ASYNC = "cp_async"
    BULK = "bulk"
    MMA = "mma"

    @property
    def waits_for_reads(self) -> bool:
        """Whether a wait may be for what the groups read alone."""
        return self is AsyncKind.BULK

    @property
    def feature(self) -> Feature:
        """What an architecture must have for it."""
        match self:
            case AsyncKind.CP_ASYNC:
                return Feature.CP_ASYNC
            case AsyncKind.BULK:
                return Feature.BULK
            case AsyncKind.MMA:
                return Feature.WGMMA


@dataclass(frozen=True, slots=True, eq=False)
class Completes:
    """When a use is complete: where it stands, with the phase of an mbarrier, or with its group of
    a kind in the threads that issued it, if it `is_read` behind a wait for reads already. Each is
    one object: `AT_ONCE`, `WITH_PHASE`, or what `with_group` gives."""

    kind: AsyncKind | None = None
    is_read: bool = False
    by_mbarrier: bool = False

    @property
    def at_once(self) -> bool:
        """Whether it is complete where it stands."""
        return self.kind is None and not self.by_mbarrier


AT_ONCE = Completes()
WITH_PHASE = Completes(by_mbarrier=True)


_WITH_GROUP = {(k, r): Completes(k, is_read=r) for k in AsyncKind for r in (False, True)}


def with_group(kind: AsyncKind, *, is_read: bool = False) -> Completes:
    """Complete with its group."""
    return _WITH_GROUP[kind, is_read and kind.waits_for_reads]


# --- what is used -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class MemoryUse:
    """One operand of a statement in shared or global memory; `index` and `width` in elements.

    The index is `begins` more than a multiple of `step`, by default of the width. With `run` the
    use is one of several runs of `width` elements, and the index that of run number `run`, a
    variable of constant limits.
    `issuer` is the one thread that does it, None for all that come there. What happens in the
    async proxy sees what threads wrote behind a proxy fence only. An arrival for bytes begins the
    next phase of its mbarrier, which who waits for this one may not miss: it `ends_turn` of waits.
    `rank` is the block of the cluster whose shared memory it is, None for the thread's own.
    That it `makes_mbarrier` even a relaxed arrival of the cluster hands on. Those that are
    `is_atomic` blocks may do to the same bytes in any order.
    """

    buffer: Buffer
    writes: bool
    index: Expr
    width: int
    predicate: Cond = TRUE
    issuer: int | None = None
    completes: Completes = AT_ONCE
    in_async_proxy: bool = False
    ends_turn: bool = False
    is_wait: bool = False
    rank: Expr | None = None
    makes_mbarrier: bool = False
    is_atomic: bool = False
    step: int | None = None
    begins: int = 0
    run: Var | None = None

    @property
    def nruns(self) -> int:
        """How many runs of consecutive elements it consists of."""
        if self.run is None:
            return 1
        low, high = self.run.interval
        if low != 0 or high is None:
            raise InternalError(f"runs are numbered from 0 to a constant, {self.run} is not")
        return high + 1

    @property
    def runs(self) -> tuple[MemoryUse, ...]:
        """Its runs, each as a use of its own."""
        if self.run is None:
            return (self,)
        return tuple(self._run(self.run, k) for k in range(self.nruns))

    def _run(self, run: Var, k: int) -> MemoryUse:
        at = substitute(self.index, {run: k})
        where = substitute_condition(self.predicate, {run: k})
        return dataclasses.replace(self, index=at, predicate=where, run=None)


@dataclass(frozen=True, slots=True, eq=False)
class RegisterUse:
    """`width` consecutive registers that a statement names as one operand, from `reg` on.

    What it writes `is_total` when nothing of what the registers held before is left. Where it
    `takes_any` operand, a literal or an argument may stand for the register. Between its issue and
    its completion nobody may touch what an asynchronous statement reads or writes.
    """

    reg: Reg
    reads: bool
    writes: bool
    width: int = 1
    is_total: bool = False
    takes_any: bool = False
    completes: Completes = AT_ONCE


class Team(Enum):
    """Who executes a statement together: all lanes of a warp, the four warps of a warpgroup, all
    threads of a block, or all of a cluster."""

    WARP = "warp"
    WARPGROUP = "warpgroup"
    BLOCK = "block"
    CLUSTER = "cluster"


class Visibility(Enum):
    """Who sees what a semaphore hands on: the threads of the block, or those of all blocks."""

    BLOCK = "block"
    GPU = "gpu"


# --- barriers -----------------------------------------------------------------------------------


class Act(Choice):
    """What is done at an mbarrier: making it, arriving, bringing bytes that it counts, waiting for
    a phase, making it ordinary memory again."""

    MAKE = "make"
    ARRIVE = "arrive"
    DELIVER = "deliver"
    WAIT = "wait"
    END = "end"


@dataclass(frozen=True, slots=True, eq=False)
class MbarrierUse:
    """What a statement does at the mbarrier `barrier[slot]`, of block `rank` of the cluster, or of
    each of its first `blocks` blocks.

    MAKE: its phases take `count` arrivals. ARRIVE: one arrival by each `threads_each` threads that
    come there, or by the one that issues it; the phase also takes `nbytes`. DELIVER: each execution
    brings `nbytes` to it. WAIT: while the phase under way has `parity`.
    """

    act: Act
    barrier: Buffer
    slot: Expr
    count: int = 0
    nbytes: int = 0
    threads_each: int = 1
    parity: Expr = ZERO
    rank: Expr | None = None
    blocks: int = 1

    @property
    def steers(self) -> tuple[Expr, ...]:
        """The expressions that say which mbarrier it is about, and which phase."""
        return (self.slot, self.parity) if self.act is Act.WAIT else (self.slot,)

    @property
    def arrives_by_warp(self) -> bool:
        """Whether the lanes of a warp arrive as one."""
        return self.act is Act.ARRIVE and self.threads_each == WARP_SIZE


Barrier: TypeAlias = int | Buffer
"""A named barrier by its number, or a buffer of mbarriers."""


# --- bases of statements ------------------------------------------------------------------------


class Statement(Node):
    """Base of everything that can stand in a body. What a class does not say holds as given here:
    it touches no memory and no registers as operands, is complete where it stands, belongs to no
    barrier, and is executed by each thread that comes there for itself.

    A class `is_private` where all its statements are as given here, but for their operands in
    registers: who asks what threads do to each other need not look at them.
    """

    __slots__ = ()

    is_private: ClassVar[bool] = False

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        """What it does to shared and global memory, reads first."""
        return ()

    def register_uses(self) -> tuple[RegisterUse, ...]:
        """Its operands in registers, in the order of its fields, those it writes first; registers
        that stand in its indices and conditions are read besides."""
        return ()

    def group(self) -> AsyncKind | None:
        """The kind of group that what it starts completes with."""
        return None

    def mbarrier_use(self) -> MbarrierUse | None:
        """What it does at an mbarrier."""
        return None

    def arrives_at(self) -> Barrier | None:
        """The barrier at which it, or the copy that it starts, arrives."""
        use = self.mbarrier_use()
        return use.barrier if use is not None and use.act in (Act.ARRIVE, Act.DELIVER) else None

    def waits_at(self) -> Barrier | None:
        """The barrier at which some of the threads wait for others."""
        use = self.mbarrier_use()
        return use.barrier if use is not None and use.act is Act.WAIT else None

    def issuing_thread(self) -> int | None:
        """The number of the one thread of the block that executes it; None for all that come."""
        return None

    def executed_by(self) -> Team | None:
        """Who meets there, in time at least; None where each thread passes for itself."""
        return None

    def feature(self) -> Feature | None:
        """What an architecture must have for it."""
        kind, mbarrier = self.group(), self.mbarrier_use()
        if any(u.rank is not None for u in self.memory_uses()):
            return Feature.CLUSTER
        if kind is not None:
            return kind.feature
        return None if mbarrier is None else Feature.BULK

    def problems(self) -> Iterator[str]:
        """What breaks the statement's own rules: about its operands, wherever it stands."""
        return iter(())


Body: TypeAlias = tuple[Statement, ...]


class Guarded(Statement):
    """Base of statements that do what they do where their `predicate` holds."""

    __slots__ = ()

    predicate: Cond

    def where(self, predicate: Cond) -> Statement:
        """The statement under another predicate; the same object where that is no other."""
        if predicate == self.predicate:
            return self
        return dataclasses.replace(self, predicate=predicate)  # type: ignore[type-var]

    def where_false(self) -> Body:
        """What is left of it where its predicate never holds."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class SyncStatement(Statement):
    """Base of every sync: `id` is unique in the kernel and reaches the PTX; `why` is for people."""

    id: int
    why: str


def is_asynchronous(s: Statement) -> bool:
    """Whether a statement starts what is complete later."""
    use = s.mbarrier_use()
    return s.group() is not None or (use is not None and use.act is Act.DELIVER)
