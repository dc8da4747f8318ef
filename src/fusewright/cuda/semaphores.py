"""Semaphores as inline assembly.

Source: PTX ISA, "Memory Consistency Model" (release and acquire patterns are cumulative: what other
threads did before a barrier of the block is handed on with what the one thread did), `ld`, `st` and
`red`.
"""

from __future__ import annotations

from typing import TypeAlias

from fusewright.core.expr import Expr
from fusewright.cuda import ptx
from fusewright.cuda.writer import Spellings, Writer
from fusewright.kir import ir

_Semaphore: TypeAlias = (
    ir.SemaphoreAcquire | ir.SemaphoreRelease | ir.SemaphoreArrive | ir.SemaphoreLeave
)
_SCOPE = {ir.Visibility.BLOCK: "cta", ir.Visibility.GPU: "gpu"}
_ACQUIRE = (
    "{{\\n\\t.reg .pred done;\\n\\t.reg .b32 now;\\n\\tagain:\\n\\t"
    "ld.acquire.{scope}.global.u32 now, [%0];\\n\\tsetp.ge.u32 done, now, %1;\\n\\t"
    "@!done bra again;\\n\\t}}"
)


def acquire(w: Writer, s: ir.SemaphoreAcquire) -> None:
    """One thread reads until the value is there; where waits are bounded, not longer."""
    if w.bound_ms:
        w.issued(s.issuer, lambda: _bounded(w, s))
        return
    _sync(w, s, _ACQUIRE.format(scope=_SCOPE[s.scope]), s.value)


def _bounded(w: Writer, s: ir.SemaphoreAcquire) -> None:
    at = ptx.in_global(w.address(s.semaphore, s.index))
    index, value = w.integer(s.index), w.integer(s.value)

    def tries() -> None:
        w.line("unsigned now;")
        w.line(ptx.read_semaphore(s, "now", _SCOPE[s.scope], [at]))
        w.line(f"if (now >= (unsigned)({value})) break;")
        told = w.told(s, s.semaphore)
        w.line(f"fw_check_turn(since, {w.bound_ms}u, {told}, {index}, now, {value});")

    w.block("for (const unsigned long long since = fw_now();;)", tries)


def release(w: Writer, s: ir.SemaphoreRelease) -> None:
    """One thread writes the value."""
    _sync(w, s, f"st.release.{_SCOPE[s.scope]}.global.u32 [%0], %1;", s.value)


def _sync(w: Writer, s: _Semaphore, instruction: str, value: Expr) -> None:
    at = ptx.in_global(w.address(s.semaphore, s.index))
    text = ptx.assembly(instruction, [at, ptx.number(w.integer(value))], s)
    why = f"  // {' '.join(s.why.split())}" if s.why else ""
    w.issued(s.issuer, lambda: w.line(f"{text}{why}"))


def count(w: Writer, s: ir.SemaphoreArrive | ir.SemaphoreLeave) -> None:
    """One thread increments, from the last value back to zero (PTX ISA, `red.inc`)."""
    order = "relaxed.gpu"
    if isinstance(s, ir.SemaphoreArrive):
        order = f"release.{_SCOPE[s.scope]}"
    _sync(w, s, f"red.{order}.global.inc.u32 [%0], %1;", s.period - 1)


SPELLINGS: Spellings = {
    ir.SemaphoreAcquire: acquire,
    ir.SemaphoreRelease: release,
    ir.SemaphoreArrive: count,
    ir.SemaphoreLeave: count,
}
"""By class of statement."""
