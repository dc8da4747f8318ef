"""Exchanges between the blocks of a cluster without a barrier of all its threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fusewright.core.expr import ZERO, Int
from fusewright.core.node import Node, rewrite
from fusewright.dtypes import uint64
from fusewright.kir.analysis.deliveries import delivered_nbytes
from fusewright.kir.insertion import next_sync_id
from fusewright.kir.ir import (
    Alloc,
    Buffer,
    Kernel,
    MbarExpect,
    MbarInit,
    MbarWait,
    Memory,
    RemoteStore,
    Statement,
)
from fusewright.kir.traverse import own_values, walk_statements
from fusewright.target import COUNTED_STORE_NBYTES

_ISSUER = 0
"""The thread that makes the mbarriers of its block and announces the bytes."""


def count_remote_stores(kernel: Kernel) -> Kernel:
    """Let mbarriers count what blocks store for each other, where that happens once.

    rewrite:  remote_store w[i] of block r = a;  b = w[j]
              ->   MbarInit f;  MbarExpect f;  ..;  remote_store w[i] of block r = a on f;
                   MbarWait f;  b = w[j]
    checks:   none: where stores are repeated, under a condition, or bring different numbers of
              bytes to different blocks, they stay what they are, and a barrier is placed for them
    order:    after expand_reductions, which makes the stores, and before hazards are looked for:
              who waited for the bytes needs no barrier, whose arrival would wait for all that its
              thread ever stored
    """
    exchanges = _exchanges(kernel)
    if not exchanges:
        return kernel
    number = next_sync_id(kernel)
    begin: list[Statement] = []
    counted: dict[Node, Statement] = {}
    waits: dict[Statement, list[Statement]] = {}
    for i, x in enumerate(exchanges):
        names = ", ".join(dict.fromkeys(s.dst.name for s in x.stores))
        full = Buffer(f"full{i + 1}", uint64, Int(1), Memory.SHARED, uint64.nbytes)
        why = f"{x.nbytes} bytes of {names}"
        begin += [
            Alloc(full),
            MbarInit(number, f"arrivals of {names}", full, ZERO, 1, _ISSUER),
            MbarExpect(number + 1, why, full, ZERO, x.nbytes, _ISSUER),
        ]
        waits[x.reader] = [MbarWait(number + 2, why, full, ZERO, ZERO)]
        number += 3
        counted |= {s: replace(s, barrier=full) for s in x.stores}
    body = [t for s in kernel.body for t in (*waits.get(s, ()), s)]
    done = replace(kernel, body=(*begin, *body))
    return rewrite(done, lambda node: counted.get(node, node))


@dataclass(frozen=True, slots=True, eq=False)
class _Exchange:
    """Stores that bring `nbytes` to each block, and the first statement that uses them."""

    stores: tuple[RemoteStore, ...]
    reader: Statement
    nbytes: int


def _exchanges(kernel: Kernel) -> list[_Exchange]:
    """What the kernel's own body stores and then reads; stores that are used at one place
    together."""
    buffers = _once_exchanged(kernel)
    found: list[_Exchange] = []
    open_: list[RemoteStore] = []
    for s in kernel.body:
        if isinstance(s, RemoteStore) and s.dst in buffers:
            open_.append(s)
        elif any(_uses(s, x.dst) for x in open_):
            sizes = [_delivered(x, kernel) or 0 for x in open_]
            found.append(_Exchange(tuple(open_), s, sum(sizes)))
            open_ = []
    return found


def _once_exchanged(kernel: Kernel) -> frozenset[Buffer]:
    """The buffers that only remote stores of the kernel's own body write, all before they are read,
    with as many bytes for every block."""
    stored = [s for s in walk_statements(kernel) if isinstance(s, RemoteStore)]
    good: set[Buffer] = set()
    for buffer in dict.fromkeys(s.dst for s in stored):
        mine = [s for s in stored if s.dst is buffer]
        users = [i for i, s in enumerate(kernel.body) if _uses(s, buffer) and s not in mine]
        places = [i for i, s in enumerate(kernel.body) if s in mine]
        fits = buffer.dtype.nbytes in COUNTED_STORE_NBYTES
        fits &= len(places) == len(mine) and all(_delivered(s, kernel) for s in mine)
        if fits and users and users[0] > places[-1]:
            good.add(buffer)
    return frozenset(good)


def _delivered(s: RemoteStore, kernel: Kernel) -> int | None:
    return delivered_nbytes(s, s.rank, s.dst.dtype.nbytes, kernel)


def _uses(s: Statement, buffer: Buffer) -> bool:
    """Whether a statement, or one inside it, accesses the buffer."""
    inside: Iterable[Statement] = (s, *walk_statements(s))
    return any(_is_access(x, buffer) for x in inside)


def _is_access(s: Statement, buffer: Buffer) -> bool:
    values: Sequence[object] = tuple(own_values(s))
    return not isinstance(s, Alloc) and any(v is buffer for v in values)
