"""What nobody reads."""

from __future__ import annotations

from functools import lru_cache

from fusewright.kir.ir import Alloc, Body, Buffer, For, If, Kernel, Statement, SyncStatement
from fusewright.kir.traverse import (
    HAVE_BODIES,
    KEPT,
    all_statements,
    bodies_of,
    map_bodies,
    own_buffers,
    registers_written,
)
from fusewright.memory import Memory


def remove_dead(kernel: Kernel) -> Kernel:
    """Remove what only fills buffers that no output depends on, and their allocations.

    rewrite:  local a;  a[0] = load x[0];  a[0] = add(a[0], 1)   ->   (nothing)
    checks:   nothing; statements of other kinds are kept with all they mention
    order:    after copies are propagated
    """
    live = frozenset(_live(kernel))

    def keep(body: Body) -> Body:
        out: list[Statement] = []
        for s in body:
            targets = None if HAVE_BODIES[type(s)] else targets_of_write(s)
            if targets is None or type(s) is Alloc:
                is_dead = _is_empty(s, live)
            else:
                is_dead = bool(targets) and live.isdisjoint(targets)
            if not is_dead:
                out.append(s)
        return body if len(out) == len(body) else tuple(out)

    return map_bodies(kernel, keep)


@lru_cache(maxsize=KEPT)
def targets_of_write(s: Statement) -> frozenset[Buffer]:
    """The buffers whose change is all that a statement does; none for one that does more."""
    if s.is_private:
        return frozenset([u.reg.buffer for u in registers_written(s)])
    if isinstance(s, SyncStatement) or s.mbarrier_use() is not None or bodies_of(s):
        return frozenset()
    written = {u.reg.buffer for u in registers_written(s)}
    written |= {u.buffer for u in s.memory_uses() if u.writes}
    return frozenset(() if any(b.memory is Memory.GLOBAL for b in written) else written)


def _is_empty(s: Statement, live: frozenset[Buffer]) -> bool:
    """Whether a statement with bodies has nothing in them, and an allocation no reader."""
    match s:
        case Alloc():
            return s.buffer not in live
        case For():
            return not s.body
        case If():
            return not s.then and not s.otherwise
        case _:
            return False


def _live(kernel: Kernel) -> dict[Buffer, None]:
    """The buffers that reach an effect, found by marking backwards from the effects."""
    feeds: dict[Buffer, list[Buffer]] = {}
    work: list[Buffer] = []
    for s in all_statements(kernel):
        if type(s) is Alloc:
            continue
        mentioned = own_buffers(s)
        targets = targets_of_write(s)
        for target in targets:
            if target not in feeds:
                feeds[target] = []
            feeds[target] += mentioned
        if not targets:
            work += mentioned
    live: dict[Buffer, None] = {}
    while work:
        b = work.pop()
        if b not in live:
            live[b] = None
            work += dict.fromkeys(feeds.pop(b, ()))
    return live
