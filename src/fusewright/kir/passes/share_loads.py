"""What a thread reads several times, one time after the other, it loads once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from fusewright.core.expr import Expr, constant_value
from fusewright.kir.ir import (
    Alloc,
    Body,
    Buffer,
    Compute,
    Kernel,
    Load,
    Memory,
    Reg,
    Statement,
)
from fusewright.kir.passes.copy_propagation import Slot, propagate_copies
from fusewright.kir.traverse import (
    map_bodies,
    positions,
    registers_read,
    registers_written,
    walk_statements,
)

Key: TypeAlias = tuple[object, ...]
"""All that decides what registers hold behind a load, but for which registers they are."""

Place: TypeAlias = tuple[Buffer, Expr]
"""Where a load begins."""


def share_loads(kernel: Kernel) -> Kernel:
    """Load once what several loads of a thread bring with nothing but arithmetic between them, as
    those of a window's rows do.

    rewrite:  a = load x[8*i + 8];  b = load x[8*i + 8]   ->   a = load x[8*i + 8];  b = copy(a)
    checks:   nothing; buffers that the kernel writes are left alone
    order:    when addresses are in normal form; what reads the copies reads the original
    """
    loads = [s for s in walk_statements(kernel) if isinstance(s, Load)]
    places = Counter((s.src, s.index) for s in loads if s.src.memory is Memory.GLOBAL)
    again = {place for place, count in places.items() if count > 1}
    if not again:
        return kernel
    written = {u.buffer for s in walk_statements(kernel) for u in s.memory_uses() if u.writes}
    again = {(source, index) for source, index in again if source not in written}
    copied: set[Slot] = set()
    new = map_bodies(kernel, lambda body: tuple(_shared(body, again, copied)))
    return without_unread(propagate_copies(new), copied) if copied else kernel


def _key(s: Load) -> Key | None:
    """None where registers say from where, or to where, it is loaded, or keep what they hold."""
    if not s.is_total or constant_value(s.dst.index) is None or positions(s):
        return None
    fill = None if s.fill is None else (s.fill.value, s.fill.dtype)
    lanes = (s.lanes.begins, s.lanes.first, s.lanes.stop)
    return s.src, s.index, s.width, s.predicate, fill, s.cache, lanes, s.dst.buffer.dtype


def _shared(body: Body, again: set[Place], copied: set[Slot]) -> Iterator[Statement]:
    known: dict[Key, Load] = {}
    for s in body:
        load = s if isinstance(s, Load) and (s.src, s.index) in again else None
        key = None if load is None else _key(load)
        first = None if key is None else known.get(key)
        if load is not None and first is not None:
            yield from _copies(load, first)
            begin = constant_value(load.dst.index) or 0
            copied |= {(load.dst.buffer, begin + k) for k in range(load.width)}
        else:
            yield s
        if not isinstance(s, Load | Compute | Alloc):
            known.clear()
        for use in registers_written(s) if known else ():
            known = {k: x for k, x in known.items() if not _meet(x, use.reg, use.width)}
        if load is not None and key is not None and first is None:
            known[key] = load


def _meet(x: Load, r: Reg, width: int) -> bool:
    """Whether a load fills one of `width` registers from `r` on."""
    if x.dst.buffer is not r.buffer:
        return False
    begin, own = constant_value(r.index), constant_value(x.dst.index)
    return begin is None or own is None or (begin < own + x.width and own < begin + width)


def _copies(s: Load, first: Load) -> Iterator[Statement]:
    for k in range(s.width):
        source = Reg(first.dst.buffer, first.dst.index + k)
        yield Compute("copy", Reg(s.dst.buffer, s.dst.index + k), (source,))


def without_unread(kernel: Kernel, copied: set[Slot]) -> Kernel:
    """The kernel without the copies that nothing reads any more: words that loads alone fill stay
    words."""
    read: set[Slot] = set()
    for s in walk_statements(kernel):
        for r, width in registers_read(s):
            begin = constant_value(r.index)
            if begin is None:
                copied = {slot for slot in copied if slot[0] is not r.buffer}
            else:
                read |= {(r.buffer, begin + k) for k in range(width)}
    unread = copied - read

    def is_unread(s: Statement) -> bool:
        if not isinstance(s, Compute) or s.fn != "copy":
            return False
        return (s.dst.buffer, constant_value(s.dst.index)) in unread

    return map_bodies(kernel, lambda body: tuple(s for s in body if not is_unread(s)))
