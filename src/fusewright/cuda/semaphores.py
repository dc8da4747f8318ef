"""Semaphores as inline assembly.

Source: PTX ISA, "Memory Consistency Model" (release and acquire patterns are cumulative: what other
threads did before a barrier of the block is handed on with what the one thread did), `ld`, `st` and
`atom`.
"""

from __future__ import annotations

from fusewright.cuda import ptx
from fusewright.cuda.writer import Spellings, Writer
from fusewright.kir import ir

_SCOPE = {ir.Visibility.BLOCK: "cta", ir.Visibility.GPU: "gpu"}
_ACQUIRE = (
    "{{\\n\\t.reg .pred done;\\n\\t.reg .b32 now;\\n\\tagain:\\n\\t"
    "ld.acquire.{scope}.global.u32 now, [%0];\\n\\tsetp.ge.u32 done, now, %1;\\n\\t"
    "@!done bra again;\\n\\t}}"
)


def acquire(w: Writer, s: ir.SemaphoreAcquire) -> None:
    """One thread reads until the value is there."""
    _sync(w, s, _ACQUIRE.format(scope=_SCOPE[s.scope]))


def release(w: Writer, s: ir.SemaphoreRelease) -> None:
    """One thread writes the value."""
    _sync(w, s, f"st.release.{_SCOPE[s.scope]}.global.u32 [%0], %1;")


def _sync(w: Writer, s: ir.SemaphoreAcquire | ir.SemaphoreRelease, instruction: str) -> None:
    at = ptx.in_global(w.address(s.semaphore, s.index))
    text = ptx.assembly(instruction, [at, ptx.number(w.integer(s.value))], s)
    why = f"  // {' '.join(s.why.split())}" if s.why else ""
    w.guarded(w.by(s.issuer), lambda: w.line(f"{text}{why}"))


def add(w: Writer, s: ir.SemaphoreAdd) -> None:
    """One thread adds 1, and learns what was there."""
    at = ptx.in_global(w.address(s.semaphore, s.index))
    text = (
        'asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : '
        f'"=r"({w.register(s.dst)}) : "{at.constraint}"({at.text}) : "memory");'
    )
    w.guarded(w.by(s.issuer), lambda: w.line(text))


SPELLINGS: Spellings = {
    ir.SemaphoreAcquire: acquire,
    ir.SemaphoreRelease: release,
    ir.SemaphoreAdd: add,
}
"""By class of statement."""
