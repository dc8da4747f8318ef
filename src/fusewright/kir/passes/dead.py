"""What nobody reads."""

from __future__ import annotations

from fusewright.kir.ir import (
    Alloc,
    Body,
    Buffer,
    Compute,
    CpAsync,
    For,
    If,
    Kernel,
    Load,
    RemoteStore,
    Shuffle,
    Statement,
    Store,
    ThreadReduce,
)
from fusewright.kir.traverse import map_bodies, own_registers, own_values, walk_statements
from fusewright.memory import Memory


def remove_dead(kernel: Kernel) -> Kernel:
    """Remove what only fills buffers that no output depends on, and their allocations.

    rewrite:  local a;  a[0] = load x[0];  a[0] = add(a[0], 1)   ->   (nothing)
    checks:   nothing; statements of other kinds are kept with all they mention
    order:    after copies are propagated
    """
    live = _live(kernel)

    def keep(body: Body) -> Body:
        out = tuple(s for s in body if not _is_dead(s, live))
        return body if len(out) == len(body) else out

    return map_bodies(kernel, keep)


def target_of_write(s: Statement) -> Buffer | None:
    """The buffer whose change is all that a statement does; None for one that does more."""
    match s:
        case Load() | Compute() | Shuffle() | ThreadReduce():
            return s.dst.buffer
        case Store() | RemoteStore() | CpAsync():
            return s.dst if s.dst.memory is Memory.SHARED else None
        case _:
            return None


def _is_dead(s: Statement, live: dict[Buffer, None]) -> bool:
    match s:
        case Alloc():
            return s.buffer not in live
        case For():
            return not s.body
        case If():
            return not s.then and not s.otherwise
        case _:
            target = target_of_write(s)
            return target is not None and target not in live


def _live(kernel: Kernel) -> dict[Buffer, None]:
    """The buffers that reach an effect, found by marking backwards from the effects."""
    feeds: dict[Buffer, list[Buffer]] = {}
    work: list[Buffer] = []
    for s in walk_statements(kernel):
        if isinstance(s, Alloc):
            continue
        mentioned = [v for v in own_values(s) if isinstance(v, Buffer)]
        mentioned += [r.buffer for r in own_registers(s)]
        target = target_of_write(s)
        if target is None:
            work += mentioned
        else:
            feeds.setdefault(target, []).extend(mentioned)
    live: dict[Buffer, None] = {}
    while work:
        b = work.pop()
        if b not in live:
            live[b] = None
            work += feeds.get(b, ())
    return live
