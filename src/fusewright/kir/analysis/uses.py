"""Which memory the statements of a kernel touch."""

from __future__ import annotations

from functools import lru_cache

from fusewright.kir.ir import Buffer, Kernel, Memory, Statement
from fusewright.kir.traits import MemoryUse
from fusewright.kir.traverse import KEPT, acting_statements
from fusewright.kir.unread import UnreadKernel


@lru_cache(maxsize=KEPT)
def memory_uses(statement: Statement) -> tuple[MemoryUse, ...]:
    """What a statement does to shared and global memory."""
    return tuple(u for u in statement.memory_uses() if u.buffer.memory is not Memory.LOCAL)


def global_reads(kernel: Kernel) -> frozenset[Buffer]:
    """The buffers in global memory that a kernel reads."""
    if isinstance(kernel, UnreadKernel):
        return kernel.buffers(kernel.border.reads)
    return _global_buffers(kernel, writes=False)


def reads_before(kernel: Kernel) -> frozenset[Buffer]:
    """The buffers in global memory of which a kernel reads what was there before the launch: not
    those of which it reads what its own blocks have stored."""
    return global_reads(kernel).difference(kernel.scratch, kernel.stored_in_turns)


def global_writes(kernel: Kernel) -> frozenset[Buffer]:
    """The buffers in global memory that a kernel writes."""
    if isinstance(kernel, UnreadKernel):
        return kernel.buffers(kernel.border.writes)
    return _global_buffers(kernel, writes=True)


def written_buffers(kernel: Kernel) -> tuple[Buffer, ...]:
    """The parameters that some statement writes, in parameter order."""
    written = global_writes(kernel)
    return tuple(b for b in kernel.params if b in written)


def _global_buffers(kernel: Kernel, *, writes: bool) -> frozenset[Buffer]:
    uses = (u for s in acting_statements(kernel) for u in memory_uses(s))
    found = (u.buffer for u in uses if u.writes is writes)
    return frozenset(b for b in found if b.memory is Memory.GLOBAL)
