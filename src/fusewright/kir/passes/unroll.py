"""Loops written out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import count

from fusewright.core.expr import Var, constant_value
from fusewright.core.node import rewrite
from fusewright.kir.ir import (
    Alloc,
    Body,
    Buffer,
    Compute,
    For,
    If,
    Kernel,
    Load,
    Memory,
    Mma,
    Statement,
    StMatrix,
    Store,
    SyncStatement,
)
from fusewright.kir.substitute import Substitution
from fusewright.kir.traverse import (
    all_variables,
    map_body,
    own_registers,
    walk_statements,
    with_bodies,
)

MOST_SHARED_ACCESSES = 192
"""Accesses of shared memory, loops written out, from which loops over what a thread does by itself
wait for syncs to be settled: these are judged for every pair of accesses."""


def unroll(kernel: Kernel) -> Kernel:
    """Write out the loops that ask for it, and those that count through registers.

    rewrite:  for (i < 2) unroll { r[i] = f(s[4*i]) }   ->   r[0] = f(s[0]);  r[1] = f(s[4])
    checks:   nothing; a loop of unknown extent stays, and the final spec names it if a register
              index is left without a literal
    order:    before syncs are placed, so that addresses are explicit; each copy has registers and
              inner loop variables of its own, and syncs ids that are new; shared memory is
              allocated once, before the copies, which use it in turn as the iterations did
    """
    has_products = any(isinstance(s, Mma) for s in walk_statements(kernel))
    waits = has_products or _shared_accesses(kernel.body) > MOST_SHARED_ACCESSES
    return _unrolled(kernel, is_late=not waits)


def unroll_last(kernel: Kernel) -> Kernel:
    """Write out the loops over what a thread does by itself, where the kernel has many accesses.

    rewrite:  for (j < 16) { r = f(sums[8*j]); .. }   ->   r_0 = f(sums[0]);  r_1 = f(sums[8]); ..
    checks:   nothing; in kernels without products and with few accesses `unroll` leaves none
    order:    behind all that looks at syncs and memory, which take such a loop as a whole: a
              product's 128 sums are 2,000 statements; before the last simplify
    """
    return _unrolled(kernel, is_late=True)


def _unrolled(kernel: Kernel, *, is_late: bool) -> Kernel:
    ids = [s.id for s in walk_statements(kernel) if isinstance(s, SyncStatement)]
    body = _Unroller(count(max(ids, default=-1) + 1), is_late=is_late).body(kernel.body)
    return kernel if body is kernel.body else dataclasses.replace(kernel, body=body)


class _Unroller:
    """Unrolls from the outside in, so that inner extents become constant first."""

    def __init__(self, ids: Iterator[int], *, is_late: bool) -> None:
        self._ids = ids
        self._is_late = is_late

    def body(self, body: Body) -> Body:
        """The body with its loops unrolled; the same object when there is nothing to do."""
        out: list[Statement] = []
        for s in body:
            trips = constant_value(s.extent) if isinstance(s, For) else None
            if isinstance(s, For) and trips is not None and self._is_wanted(s):
                once = [a for a in walk_statements(s) if _is_shared(a)]
                out += once
                loop = rewrite(s, lambda n, gone=once: () if n in gone else n) if once else s
                for k in range(trips):
                    out += self.body(self._copy(loop, k))
            else:
                out.append(with_bodies(s, self.body))
        same = len(out) == len(body) and all(a is b for a, b in zip(out, body, strict=True))
        return body if same else tuple(out)

    def _is_wanted(self, loop: For) -> bool:
        return (loop.unroll or counts_registers(loop)) and (self._is_late or not _is_own(loop))

    def _copy(self, loop: For, k: int) -> Body:
        if k == 0:
            return Substitution({loop.var: 0}).body(loop.body)
        return self._renumber(trip_of(loop, k))

    def _renumber(self, body: Body) -> Body:
        return map_body(body, self._renumber_one)

    def _renumber_one(self, s: Statement) -> Statement:
        if isinstance(s, SyncStatement):
            return dataclasses.replace(s, id=next(self._ids))
        return with_bodies(s, self._renumber)


def trip_of(loop: For, k: int) -> Body:
    """The statements of trip `k`, with buffers and inner loop variables of their own."""
    substitution = Substitution({loop.var: k})
    for s in walk_statements(loop):
        if isinstance(s, Alloc):
            b = s.buffer
            new = Buffer(f"{b.name}_{k}", b.dtype, b.size, b.memory, b.alignment, b.tile)
            substitution.buffers[b] = new
        elif isinstance(s, For):
            v = s.var
            upper = None if v.upper is None else substitution.expr(v.upper)
            fresh = Var(v.name, substitution.expr(v.lower), upper, v.multiple_of)
            substitution.replace(v, fresh)
    return substitution.body(loop.body)


def _is_own(loop: For) -> bool:
    """Whether a loop holds nothing but what a thread computes, reads once and stores."""
    return all(
        isinstance(s, Compute | Load | Store | StMatrix | If | For)
        or (isinstance(s, Alloc) and s.buffer.memory is Memory.LOCAL)
        for s in walk_statements(loop)
    )


def _shared_accesses(body: Body) -> int:
    """Loads from shared memory and stores to it, with loops that ask for it written out."""
    total = 0
    for s in body:
        match s:
            case For():
                trips = constant_value(s.extent) if s.unroll else 1
                total += (trips or 1) * _shared_accesses(s.body)
            case If():
                total += _shared_accesses(s.then) + _shared_accesses(s.otherwise)
            case Load():
                total += s.src.memory is Memory.SHARED
            case Store():
                total += s.dst.memory is Memory.SHARED
            case _:
                pass
    return total


def _is_shared(s: Statement) -> bool:
    return isinstance(s, Alloc) and s.buffer.memory is Memory.SHARED


def counts_registers(loop: For) -> bool:
    """Whether the loop's variable is in the index of a register."""
    return any(
        loop.var in all_variables(r.index) for s in walk_statements(loop) for r in own_registers(s)
    )
