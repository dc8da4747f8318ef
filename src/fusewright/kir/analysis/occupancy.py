"""How many blocks a multiprocessor holds, and the registers that a kernel will want.

Source: CUDA C++ Programming Guide, "Compute Capabilities" and "Multiprocessor Level"; registers
are given to warps in units, and warps to the four partitions of a multiprocessor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from fusewright.core.expr import constant_value
from fusewright.kir.ir import (
    Alloc,
    Body,
    Buffer,
    For,
    If,
    Kernel,
    Reg,
    Role,
    Roles,
    Statement,
)
from fusewright.kir.traverse import registers_read, registers_written
from fusewright.target import PARTITIONS, REGISTER_UNIT, WARP_REGISTER_UNIT, WARP_SIZE, Target

_FIXED = 24
"""Registers for addresses and predicates, beside half as many for loads under way as there are
values alive: the compiler starts loads early."""


def blocks_by_memory(target: Target, nthreads: int, shared_nbytes: int) -> int:
    """Blocks that a multiprocessor holds, registers aside; 0 when one does not fit."""
    if shared_nbytes > target.shared_nbytes_per_block:
        return 0
    return target.blocks_at_once(nthreads, shared_nbytes)


def blocks_by_registers(target: Target, nthreads: int, registers: int) -> int:
    """Blocks that a multiprocessor's registers suffice for, at `registers` a thread."""
    per_warp = -(-registers * WARP_SIZE // WARP_REGISTER_UNIT) * WARP_REGISTER_UNIT
    warps = target.registers_per_sm // PARTITIONS // per_warp * PARTITIONS
    return warps // _nwarps(nthreads)


def register_cap(target: Target, nthreads: int, blocks: int) -> int:
    """The most registers a thread may use so that `blocks` blocks fit; 0 when they never do."""
    most = target.max_registers_per_thread
    for registers in (most, *range(most - most % REGISTER_UNIT, 0, -REGISTER_UNIT)):
        if blocks_by_registers(target, nthreads, registers) >= blocks:
            return registers
    return 0


def _nwarps(nthreads: int) -> int:
    return -(-nthreads // WARP_SIZE)


# --- registers ----------------------------------------------------------------------------------


def estimate_registers(kernel: Kernel, target: Target) -> int:
    """32-bit registers a thread: the most values alive at once, and some for addresses."""
    peak = _Liveness().peak(kernel.body)
    wanted = -(-(_FIXED + peak + peak // 2) // REGISTER_UNIT) * REGISTER_UNIT
    return min(wanted, target.max_registers_per_thread)


def spare_registers(kernel: Kernel, target: Target) -> int:
    """32-bit registers of a thread that loads under way may take, beside all that is alive where
    most is; 0 where there are none."""
    cap = register_cap(target, kernel.nthreads, max(1, kernel.min_blocks))
    return max(0, cap - _FIXED - _Liveness().peak(kernel.body))


_Slot: TypeAlias = tuple[Buffer, int | None]
"""An element of a buffer, one of those that its index may name; None where that is not known."""


class _Liveness:
    """Walks backwards; `live` holds elements, which take so many registers. A buffer of which a
    loop writes the elements in turn is alive from where it is allocated on."""

    def __init__(self) -> None:
        self._live: dict[_Slot, None] = {}
        self._nregisters = 0
        self._peak = 0
        self._looped: set[Buffer] = set()

    def peak(self, body: Body) -> int:
        """The most 32-bit registers alive at once in a body that nothing follows."""
        self._body(body)
        return self._peak

    def _body(self, body: Body) -> None:
        for s in reversed(body):
            match s:
                case For():
                    self._body(s.body)
                    self._body(s.body)
                case If():
                    after = dict(self._live)
                    self._body(s.then)
                    then = self._live
                    self._set(after)
                    self._body(s.otherwise)
                    self._add(then)
                case Roles():
                    after, before = self._live, dict(self._live)
                    for role in s.body:
                        self._set(dict(after))
                        self._body((role,))
                        before |= self._live
                    self._set(before)
                case Role():
                    self._body(s.body)
                case Alloc() if s.buffer in self._looped:
                    self._drop([slot for slot in self._live if slot[0] is s.buffer])
                case _:
                    self._leaf(s)

    def _leaf(self, s: Statement) -> None:
        written = [(u, _slots(u.reg, u.width)) for u in registers_written(s)]
        self._add(slot for _, slots in written for slot in slots)
        self._peak = max(self._peak, self._nregisters)
        for use, slots in written:
            if constant_value(use.reg.index) is None:
                self._looped.add(use.reg.buffer)
            elif use.is_total:
                self._drop(slots)
        for r, width in registers_read(s):
            self._add(_slots(r, width))

    def _drop(self, slots: Iterable[_Slot]) -> None:
        for slot in slots:
            del self._live[slot]
            self._nregisters -= _nregisters(*slot)

    def _add(self, slots: Iterable[_Slot]) -> None:
        for slot in slots:
            if slot not in self._live:
                self._live[slot] = None
                self._nregisters += _nregisters(*slot)

    def _set(self, live: dict[_Slot, None]) -> None:
        self._live, self._nregisters = live, sum(_nregisters(b, i) for b, i in live)


def _slots(r: Reg, width: int) -> list[_Slot]:
    low, high = r.index.interval
    if low is None or high is None:
        return [(r.buffer, None)]
    return [(r.buffer, k) for k in range(low, high + width)]


def _nregisters(buffer: Buffer, element: int | None) -> int:
    """32-bit registers of an element, or of the whole buffer."""
    count = 1 if element is not None else constant_value(buffer.size) or 1
    return count * -(-buffer.dtype.nbytes // 4)
