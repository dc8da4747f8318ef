"""Kernel IR: what orders blocks among each other.

A semaphore is an element of uint32 in global memory, zero before and behind every launch. Who
acquires one sees what the releases before handed on; the statements say of which bytes, so that
what the threads around have to wait for follows from their uses of memory like all other hazards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from fusewright.core.conditions import TRUE, Cond, less, negate
from fusewright.core.expr import Expr, Var, constant_value, floordiv, mod
from fusewright.dtypes import uint32
from fusewright.kir.rules import lives_in, same_dtype
from fusewright.kir.symbols import Buffer
from fusewright.kir.traits import (
    MemoryUse,
    SyncStatement,
    Visibility,
)
from fusewright.memory import Memory


@dataclass(frozen=True, slots=True, eq=False)
class SemaphoreAcquire(SyncStatement):
    """Thread `issuer` waits until `semaphore[index]` is at least `value`, and then sees what other
    blocks released of `guarded[first .. first + size)`, and of so many runs beside it as `extents`
    count, `strides` apart: for the threads around it is as if this thread had written it here, but
    for a value of 0, for which nobody came before."""

    semaphore: Buffer
    index: Expr
    value: Expr
    guarded: Buffer
    first: Expr
    size: int
    issuer: int
    scope: Visibility = Visibility.GPU
    extents: tuple[int, ...] = ()
    strides: tuple[Expr, ...] = ()

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        theirs = replace(_guarded(self, writes=True), predicate=less(0, self.value))
        return (_flag(self, writes=False), theirs)

    def issuing_thread(self) -> int:
        return self.issuer

    def problems(self) -> Iterator[str]:
        return _problems(self)


@dataclass(frozen=True, slots=True, eq=False)
class SemaphoreRelease(SyncStatement):
    """Thread `issuer` sets `semaphore[index]` to `value` and hands on what the acquire before it
    guards: for the threads around it is as if this thread had read it here and, where somebody
    `follows` in this launch, had written it for those."""

    semaphore: Buffer
    index: Expr
    value: Expr
    guarded: Buffer
    first: Expr
    size: int
    issuer: int
    scope: Visibility = Visibility.GPU
    follows: Cond = TRUE
    extents: tuple[int, ...] = ()
    strides: tuple[Expr, ...] = ()

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        mine, theirs = _guarded(self, writes=False), _guarded(self, writes=True)
        return (mine, replace(theirs, predicate=self.follows), _flag(self, writes=True))

    def issuing_thread(self) -> int:
        return self.issuer

    def problems(self) -> Iterator[str]:
        return _problems(self)


@dataclass(frozen=True, slots=True, eq=False)
class SemaphoreArrive(SyncStatement):
    """Thread `issuer` adds 1 to `semaphore[index]`, which is 0 again behind `period` additions, and
    hands `guarded[first .. first + size)` on, as `SemaphoreRelease` does."""

    semaphore: Buffer
    index: Expr
    period: Expr
    guarded: Buffer
    first: Expr
    size: int
    issuer: int
    scope: Visibility = Visibility.GPU

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        return (_guarded(self, writes=False), *_counted(self))

    def issuing_thread(self) -> int:
        return self.issuer

    def problems(self) -> Iterator[str]:
        return _problems(self)


@dataclass(frozen=True, slots=True, eq=False)
class SemaphoreLeave(SyncStatement):
    """Thread `issuer` adds 1 to `semaphore[index]`, which is 0 again behind `period` additions: it
    waits for nobody any more. Hands nothing on."""

    semaphore: Buffer
    index: Expr
    period: Expr
    issuer: int

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        return _counted(self)

    def issuing_thread(self) -> int:
        return self.issuer

    def problems(self) -> Iterator[str]:
        yield from same_dtype(self.semaphore.dtype, uint32, "a semaphore holds uint32")
        yield from lives_in(self.semaphore, Memory.GLOBAL)


SEMAPHORE_STATEMENTS = (SemaphoreAcquire, SemaphoreRelease, SemaphoreArrive, SemaphoreLeave)
_Guarding = SemaphoreAcquire | SemaphoreRelease | SemaphoreArrive


def _flag(s: _Guarding | SemaphoreLeave, *, writes: bool) -> MemoryUse:
    return MemoryUse(s.semaphore, writes, s.index, 1, issuer=s.issuer, is_atomic=True)


def _counted(s: SemaphoreArrive | SemaphoreLeave) -> tuple[MemoryUse, ...]:
    return (_flag(s, writes=False), _flag(s, writes=True))


def _guarded(s: _Guarding, *, writes: bool) -> MemoryUse:
    """What is guarded, as runs of elements, which in a result begin anywhere."""
    strides = () if isinstance(s, SemaphoreArrive) else s.strides
    step = math.gcd(s.size, s.first.divisor, *(e.divisor for e in strides))
    if isinstance(s, SemaphoreArrive) or not s.extents:
        return MemoryUse(s.guarded, writes, s.first, s.size, issuer=s.issuer, step=step)
    run = _runs(math.prod(s.extents))
    index, inner = s.first, 1
    for extent, stride in zip(s.extents, s.strides, strict=False):
        index = index + mod(floordiv(run, inner), extent) * stride
        inner *= extent
    return MemoryUse(s.guarded, writes, index, s.size, issuer=s.issuer, step=step, run=run)


@lru_cache(maxsize=64)
def _runs(count: int) -> Var:
    """The number of a run, one variable for all boxes of as many."""
    return Var("guarded_run", 0, count - 1)


def _problems(s: _Guarding) -> Iterator[str]:
    yield from same_dtype(s.semaphore.dtype, uint32, "a semaphore holds uint32")
    for buffer in (s.semaphore, s.guarded):
        yield from lives_in(buffer, Memory.GLOBAL)
    if s.size < 1:
        yield f"it guards {s.size} elements of {s.guarded}; guard at least one"
    if isinstance(s, SemaphoreArrive):
        return
    if len(s.extents) != len(s.strides) or min(s.extents, default=1) < 1:
        yield f"{len(s.extents)} extents and {len(s.strides)} strides of the runs that it guards"


# --- turns ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GuardedBox:
    """The part of a result that a block covers: runs of `size` elements, the first one at `first`,
    the others `extents` of them along each axis, `strides` apart. Beyond the edges of the result it
    has elements that no block has, or those of another one, which nobody touches there."""

    first: Expr
    size: int
    extents: tuple[int, ...]
    strides: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Turns:
    """Blocks that take turns on one part of a buffer: `semaphore[index]` counts those that are
    done, and block number `order` of the `count` that share an index comes when it is its turn.

        acquire f[index] until order  ->  w[index * size .. +size] is mine alone
        release f[index] = (order + 1) % count

    The last one sets the semaphore back to zero, so that the next launch finds it as this one did.
    `box` says where a part lies that is no run of elements with a number: in a result.
    """

    semaphore: Buffer
    index: Expr
    order: Expr
    count: Expr
    guarded: Buffer
    size: int
    issuer: int = 0
    box: GuardedBox | None = None

    @property
    def summed(self) -> bool:
        """Whether all blocks add to one part, in any order."""
        return False

    @property
    def in_result(self) -> bool:
        """Whether blocks add up a result where it lies, instead of in scratch."""
        return self.box is not None

    @property
    def first(self) -> Expr:
        """The first element of the part that a group takes turns on."""
        return self.index * self.size if self.box is None else self.box.first

    @property
    def _runs_beside(self) -> tuple[tuple[int, ...], tuple[Expr, ...]]:
        return ((), ()) if self.box is None else (self.box.extents, self.box.strides)

    @property
    def is_first(self) -> Cond:
        """Whether nobody came before."""
        return less(self.order, 1)

    @property
    def is_last(self) -> Cond:
        """Whether nobody follows."""
        return less(self.count, self.order + 2)

    @property
    def following(self) -> Expr:
        """The value behind the turn of a block."""
        return (self.order + 1) % self.count

    def acquire(self, number: int) -> SemaphoreAcquire:
        """Waits for the turn of this block."""
        extents, strides = self._runs_beside
        return SemaphoreAcquire(
            number, f"turn {self.order} of {self.count} on {self.guarded}", self.semaphore,
            self.index, self.order, self.guarded, self.first, self.size, self.issuer,
            extents=extents, strides=strides,
        )  # fmt: skip

    def release(self, number: int) -> SemaphoreRelease:
        """Passes the turn on."""
        extents, strides = self._runs_beside
        return SemaphoreRelease(
            number, f"{self.guarded} goes to the next block", self.semaphore,
            self.index, self.following, self.guarded, self.first, self.size,
            self.issuer, follows=negate(self.is_last), extents=extents, strides=strides,
        )  # fmt: skip


# --- gatherings ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gathering:
    """Blocks that put a part each into a buffer, and wait until all parts are there: the `count`
    blocks of an index, which are neighbours in the grid, so that all of them run at once.

        w[(index * count + order) * size .. +size] = ..
        arrive f[index]
        acquire f[index] until count     ->  all parts are there, and nobody changes them any more
        leave f[index]                   ->  0 again when all have left

    Nobody leaves before all have arrived, and nobody waits who has left: the counter passes `count`
    once, and is back at zero behind `2 * count` additions.

    Where parts are `summed`, all blocks add to one part of `size` elements, in the order in which
    they come, which is zero before, and again when each has read and zeroed a share of it.
    """

    semaphore: Buffer
    index: Expr
    order: Expr
    count: Expr
    guarded: Buffer
    size: int
    issuer: int = 0
    summed: bool = False

    @property
    def in_result(self) -> bool:
        """Whether the parts lie in a result: no, blocks have a part each."""
        return False

    @property
    def first(self) -> Expr:
        """Where the first part of a group begins."""
        return self.index * self.parts * self.size

    @property
    def own(self) -> Expr:
        """Where the block's own part begins."""
        return self.first if self.summed else self.first + self.order * self.size

    @property
    def parts(self) -> int:
        """The parts of a group."""
        total = constant_value(self.count)
        assert total is not None
        return 1 if self.summed else total

    def arrive(self, number: int) -> SemaphoreArrive:
        """Says that the part of this block is there."""
        return SemaphoreArrive(
            number, f"part {self.order} of {self.count} of {self.guarded} is there",
            self.semaphore, self.index, self.count * 2, self.guarded, self.own, self.size,
            self.issuer,
        )  # fmt: skip

    def acquire(self, number: int) -> SemaphoreAcquire:
        """Waits for all parts."""
        return SemaphoreAcquire(
            number, f"all {self.count} parts of {self.guarded}", self.semaphore, self.index,
            self.count, self.guarded, self.first, self.parts * self.size, self.issuer,
        )  # fmt: skip

    def leave(self, number: int) -> SemaphoreLeave:
        """Says that this block waits no more."""
        return SemaphoreLeave(
            number, "the counter is zero behind the last", self.semaphore, self.index,
            self.count * 2, self.issuer,
        )  # fmt: skip
