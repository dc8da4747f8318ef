"""Kernel IR: what orders blocks among each other.

A semaphore is an element of uint32 in global memory, zero before and behind every launch. Who
acquires one sees what the releases before handed on; the statements say of which bytes, so that
what the threads around have to wait for follows from their uses of memory like all other hazards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusewright.core.expr import Expr
from fusewright.dtypes import uint32
from fusewright.kir.rules import lives_in, same_dtype
from fusewright.kir.symbols import Buffer, Reg
from fusewright.kir.traits import (
    MemoryUse,
    RegisterUse,
    Statement,
    SyncStatement,
    Visibility,
)
from fusewright.memory import Memory


@dataclass(frozen=True, slots=True, eq=False)
class SemaphoreAcquire(SyncStatement):
    """Thread `issuer` waits until `semaphore[index]` is at least `value`, and then sees what other
    blocks released of `guarded[first .. first + size)`: for the threads around it is as if this
    thread had written it here."""

    semaphore: Buffer
    index: Expr
    value: Expr
    guarded: Buffer
    first: Expr
    size: int
    issuer: int
    scope: Visibility = Visibility.GPU

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        return (_flag(self, writes=False), _guarded(self, writes=True))

    def issuing_thread(self) -> int:
        return self.issuer

    def problems(self) -> Iterator[str]:
        return _problems(self)


@dataclass(frozen=True, slots=True, eq=False)
class SemaphoreRelease(SyncStatement):
    """Thread `issuer` sets `semaphore[index]` to `value` and hands `guarded[first .. first + size)`
    on: for the threads around it is as if this thread had read it here, and had written it for the
    blocks that follow."""

    semaphore: Buffer
    index: Expr
    value: Expr
    guarded: Buffer
    first: Expr
    size: int
    issuer: int
    scope: Visibility = Visibility.GPU

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        mine, theirs = _guarded(self, writes=False), _guarded(self, writes=True)
        return (mine, theirs, _flag(self, writes=True))

    def issuing_thread(self) -> int:
        return self.issuer

    def problems(self) -> Iterator[str]:
        return _problems(self)


@dataclass(frozen=True, slots=True, eq=False)
class SemaphoreAdd(Statement):
    """`dst` = what `semaphore[index]` held, in thread `issuer`, which adds 1 to it and hands
    `guarded[first .. first + size)` on as `SemaphoreRelease` does. It computes: where it is left
    out, another value is found."""

    dst: Reg
    semaphore: Buffer
    index: Expr
    guarded: Buffer
    first: Expr
    size: int
    issuer: int

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        return (
            _guarded(self, writes=False),
            _flag(self, writes=False),
            _flag(self, writes=True),
        )

    def register_uses(self) -> tuple[RegisterUse, ...]:
        return (RegisterUse(self.dst, reads=False, writes=True),)

    def issuing_thread(self) -> int:
        return self.issuer

    def problems(self) -> Iterator[str]:
        yield from _problems(self)
        yield from same_dtype(self.dst.buffer.dtype, uint32, "a semaphore holds uint32")


SEMAPHORE_STATEMENTS = (SemaphoreAcquire, SemaphoreRelease, SemaphoreAdd)
_Semaphore = SemaphoreAcquire | SemaphoreRelease | SemaphoreAdd


def _flag(s: _Semaphore, *, writes: bool) -> MemoryUse:
    return MemoryUse(s.semaphore, writes, s.index, 1, issuer=s.issuer, is_atomic=True)


def _guarded(s: _Semaphore, *, writes: bool) -> MemoryUse:
    return MemoryUse(s.guarded, writes, s.first, s.size, issuer=s.issuer)


def _problems(s: _Semaphore) -> Iterator[str]:
    yield from same_dtype(s.semaphore.dtype, uint32, "a semaphore holds uint32")
    for buffer in (s.semaphore, s.guarded):
        yield from lives_in(buffer, Memory.GLOBAL)
    if s.size < 1:
        yield f"it guards {s.size} elements of {s.guarded}; guard at least one"


# --- turns ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turns:
    """Blocks that take turns on one part of a buffer: `semaphore[index]` counts those that are
    done, and block number `order` of the `count` that share an index comes when it is its turn.

        acquire f[index] until order  ->  w[index * size .. +size] is mine alone
        release f[index] = (order + 1) % count

    The last one sets the semaphore back to zero, so that the next launch finds it as this one did.
    """

    semaphore: Buffer
    index: Expr
    order: Expr
    count: Expr
    guarded: Buffer
    size: int
    issuer: int = 0

    @property
    def first(self) -> Expr:
        """The first element of the part that a group takes turns on."""
        return self.index * self.size

    @property
    def following(self) -> Expr:
        """The value behind the turn of a block."""
        return (self.order + 1) % self.count

    def acquire(self, number: int) -> SemaphoreAcquire:
        """Waits for the turn of this block."""
        return SemaphoreAcquire(
            number, f"turn {self.order} of {self.count} on {self.guarded}", self.semaphore,
            self.index, self.order, self.guarded, self.first, self.size, self.issuer,
        )  # fmt: skip

    def release(self, number: int) -> SemaphoreRelease:
        """Passes the turn on."""
        return SemaphoreRelease(
            number, f"{self.guarded} goes to the next block", self.semaphore,
            self.index, self.following, self.guarded, self.first, self.size,
            self.issuer,
        )  # fmt: skip
