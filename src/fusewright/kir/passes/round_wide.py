"""Values rounded to a short float on their way, kept in the wide one."""

from __future__ import annotations

from dataclasses import replace

from fusewright.core.functions import ROUNDED
from fusewright.dtypes import float32
from fusewright.kir.ir import Alloc, Buffer, Compute, Kernel, Reg, Statement
from fusewright.kir.substitute import Substitution
from fusewright.kir.traverse import map_bodies, own_registers, statements_of, walk_statements


def round_wide(kernel: Kernel) -> Kernel:
    """Keep what is only narrowed to be widened again as a rounded float.

    rewrite:  local h: bfloat16[1];  h[0] = cast(x[0]);            y[0] = cast(h[0])
          ->  local h: float32[1];   h[0] = round_bfloat16(x[0]);  y[0] = copy(h[0])
    checks:   every use of the buffer is such a cast
    order:    before the last simplify, which propagates the copies
    """
    wide = {b: Buffer(b.name, float32, b.size, b.memory, b.alignment) for b in _kept_wide(kernel)}
    if not wide:
        return kernel
    renamed = Substitution(buffers=wide)
    return map_bodies(kernel, lambda body: tuple(_rounded(s, renamed) for s in body))


def _kept_wide(kernel: Kernel) -> list[Buffer]:
    """The buffers of short floats in registers that floats are cast to and cast from, and nothing
    else touches."""
    narrowed: set[Buffer] = set()
    widened: set[Buffer] = set()
    casts = [s for s in statements_of(kernel, Compute) if s.fn == "cast"]
    for s in casts:
        target, source = _narrowing(s), _widening(s)
        narrowed |= set() if target is None else {target.buffer}
        widened |= set() if source is None else {source.buffer}
    both = narrowed & widened
    if not both:
        return []
    for s in walk_statements(kernel):
        ends = (_narrowing(s), _widening(s))
        both -= {r.buffer for r in own_registers(s) if all(r is not end for end in ends)}
    return [s.buffer for s in statements_of(kernel, Alloc) if s.buffer in both]


def _narrowing(s: Statement) -> Reg | None:
    """The short float that a statement casts a float to."""
    found = _cast(s)
    return found[0] if found and found[1].buffer.dtype is float32 and _is_short(found[0]) else None


def _widening(s: Statement) -> Reg | None:
    """The short float that a statement casts to a float."""
    found = _cast(s)
    return found[1] if found and found[0].buffer.dtype is float32 and _is_short(found[1]) else None


def _cast(s: Statement) -> tuple[Reg, Reg] | None:
    """The registers that a statement casts to and from."""
    if isinstance(s, Compute) and s.fn == "cast" and isinstance(s.operands[0], Reg):
        return s.dst, s.operands[0]
    return None


def _is_short(r: Reg) -> bool:
    return r.buffer.dtype.name in ROUNDED


def _rounded(s: Statement, renamed: Substitution) -> Statement:
    target, source = _narrowing(s), _widening(s)
    new = renamed.node(s)
    if new is s or not isinstance(new, Compute):
        return new
    if target is not None and target.buffer in renamed.buffers:
        new = replace(new, fn=ROUNDED[target.buffer.dtype.name])
    elif source is not None and source.buffer in renamed.buffers:
        new = replace(new, fn="copy")
    return new
