"""Exchanges between the blocks of a cluster without a barrier of all its threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fusewright.core.expr import ZERO, Int
from fusewright.dtypes import uint64
from fusewright.kir.analysis.deliveries import delivered_nbytes
from fusewright.kir.insertion import next_sync_id
from fusewright.kir.ir import (
    Alloc,
    Body,
    Buffer,
    Kernel,
    MbarExpect,
    MbarInit,
    MbarWait,
    Memory,
    RemoteStore,
    Role,
    Roles,
    Statement,
)
from fusewright.kir.traverse import (
    body_fields,
    map_body,
    own_buffers,
    statements_of,
    with_bodies,
    with_inner,
)
from fusewright.target import COUNTED_STORE_NBYTES

_ISSUER = 0
"""The thread that makes the mbarriers of its block and announces the bytes."""


def count_remote_stores(kernel: Kernel) -> Kernel:
    """Let mbarriers count what blocks, or a role in each of them, store for each other, where that
    happens once.

    rewrite:  remote_store w[i] of block r = a;  b = w[j]
              ->   MbarInit f;  MbarExpect f;  ..;  remote_store w[i] of block r = a on f;
                   MbarWait f;  b = w[j]
    checks:   none: where stores are repeated, under a condition, or bring different numbers of
              bytes to different blocks, they stay what they are, and a barrier is placed for them
    order:    after expand_reductions, which makes the stores, and before hazards are looked for:
              who waited for the bytes needs no barrier, whose arrival would wait for all that its
              thread ever stored
    """
    exchanges = [x for run in _runs(kernel) for x in _exchanges(kernel, run)]
    if not exchanges:
        return kernel
    number = next_sync_id(kernel)
    begin: list[Statement] = []
    changed: dict[Statement, Statement | tuple[Statement, ...]] = {}
    for i, x in enumerate(exchanges):
        names = ", ".join(dict.fromkeys(s.dst.name for s in x.stores))
        full = Buffer(f"full{i + 1}", uint64, Int(1), Memory.SHARED, uint64.nbytes)
        why = f"{x.nbytes} bytes of {names}"
        begin += [
            Alloc(full),
            MbarInit(number, f"arrivals of {names}", full, ZERO, 1, _ISSUER),
            MbarExpect(number + 1, why, full, ZERO, x.nbytes, _ISSUER),
        ]
        changed |= {s: replace(s, barrier=full) for s in x.stores}
        changed[x.reader] = (MbarWait(number + 2, why, full, ZERO, ZERO), x.reader)
        number += 3
    return replace(kernel, body=(*begin, *_changed(kernel.body, changed)))


def _changed(body: Body, changed: Mapping[Statement, Statement | tuple[Statement, ...]]) -> Body:
    """A body with some statements in it, or below it, replaced."""

    def inner(s: Statement) -> Statement | tuple[Statement, ...]:
        if s in changed or not body_fields(type(s)):
            return changed.get(s, s)
        return with_bodies(s, lambda b: _changed(b, changed))

    return map_body(body, inner)


@dataclass(frozen=True, slots=True, eq=False)
class _SingleRun:
    """Statements that some threads of a block run once: those of the kernel's own body, or those of
    a role in it."""

    body: Body
    role: Role | None = None


def _runs(kernel: Kernel) -> list[_SingleRun]:
    """The bodies of a kernel that are run once, without a condition."""
    roles = (r for s in kernel.body if isinstance(s, Roles) for r in s.body)
    return [_SingleRun(kernel.body), *(_SingleRun(r.body, r) for r in roles if isinstance(r, Role))]


@dataclass(frozen=True, slots=True, eq=False)
class _Exchange:
    """Stores that bring `nbytes` to each block, and the first statement that uses them."""

    stores: tuple[RemoteStore, ...]
    reader: Statement
    nbytes: int


def _exchanges(kernel: Kernel, run: _SingleRun) -> list[_Exchange]:
    """What the statements of a body itself store and then read; stores that are used at one place
    together."""
    buffers = _once_exchanged(kernel, run)
    found: list[_Exchange] = []
    open_: list[RemoteStore] = []
    for s in run.body:
        if isinstance(s, RemoteStore) and s.dst in buffers:
            open_.append(s)
        elif any(_uses(s, x.dst) for x in open_):
            sizes = [_delivered(x, kernel, run) or 0 for x in open_]
            found.append(_Exchange(tuple(open_), s, sum(sizes)))
            open_ = []
    return found


def _once_exchanged(kernel: Kernel, run: _SingleRun) -> frozenset[Buffer]:
    """The buffers that only remote stores of this body itself write, all before they are read, with
    as many bytes for every block."""
    stored = statements_of(kernel, RemoteStore)
    good: set[Buffer] = set()
    for buffer in dict.fromkeys(s.dst for s in stored):
        mine = [s for s in stored if s.dst is buffer]
        users = [i for i, s in enumerate(run.body) if _uses(s, buffer) and s not in mine]
        places = [i for i, s in enumerate(run.body) if s in mine]
        fits = buffer.dtype.nbytes in COUNTED_STORE_NBYTES
        fits &= len(places) == len(mine) and all(_delivered(s, kernel, run) for s in mine)
        if fits and users and users[0] > places[-1]:
            good.add(buffer)
    return frozenset(good)


def _delivered(s: RemoteStore, kernel: Kernel, run: _SingleRun) -> int | None:
    return delivered_nbytes(s, s.rank, s.nbytes, kernel, run.role)


def _uses(s: Statement, buffer: Buffer) -> bool:
    """Whether a statement, or one inside it, accesses the buffer."""
    if s.is_private and not body_fields(type(s)):
        return False
    return any(buffer in own_buffers(x) for x in with_inner(s) if not x.is_private)
