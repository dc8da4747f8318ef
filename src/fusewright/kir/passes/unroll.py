"""Loops written out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import count

from fusewright.core.expr import Var, constant_value
from fusewright.core.node import rewrite
from fusewright.kir.ir import Alloc, Body, Buffer, For, If, Kernel, Memory, Statement, SyncStatement
from fusewright.kir.substitute import Substitution
from fusewright.kir.traverse import all_variables, own_registers, walk_statements


def unroll(kernel: Kernel) -> Kernel:
    """Write out the loops that ask for it, and those that count through registers.

    rewrite:  for (i < 2) unroll { r[i] = f(s[4*i]) }   ->   r[0] = f(s[0]);  r[1] = f(s[4])
    checks:   nothing; a loop of unknown extent stays, and the final spec names it if a register
              index is left without a literal
    order:    before syncs are placed, so that addresses are explicit; each copy has registers and
              inner loop variables of its own, and syncs ids that are new; shared memory is
              allocated once, before the copies, which use it in turn as the iterations did
    """
    ids = [s.id for s in walk_statements(kernel) if isinstance(s, SyncStatement)]
    body = _Unroller(count(max(ids, default=-1) + 1)).body(kernel.body)
    return kernel if body is kernel.body else dataclasses.replace(kernel, body=body)


class _Unroller:
    """Unrolls from the outside in, so that inner extents become constant first."""

    def __init__(self, ids: Iterator[int]) -> None:
        self._ids = ids

    def body(self, body: Body) -> Body:
        """The body with its loops unrolled; the same object when there is nothing to do."""
        out: list[Statement] = []
        for s in body:
            trips = constant_value(s.extent) if isinstance(s, For) else None
            if isinstance(s, For) and trips is not None and (s.unroll or counts_registers(s)):
                once = [a for a in walk_statements(s) if _is_shared(a)]
                out += once
                loop = rewrite(s, lambda n, gone=once: () if n in gone else n) if once else s
                for k in range(trips):
                    out += self.body(self._copy(loop, k))
            else:
                out.append(self._inside(s))
        same = len(out) == len(body) and all(a is b for a, b in zip(out, body, strict=True))
        return body if same else tuple(out)

    def _inside(self, s: Statement) -> Statement:
        match s:
            case For():
                body = self.body(s.body)
                return s if body is s.body else dataclasses.replace(s, body=body)
            case If():
                then, otherwise = self.body(s.then), self.body(s.otherwise)
                if then is s.then and otherwise is s.otherwise:
                    return s
                return dataclasses.replace(s, then=then, otherwise=otherwise)
            case _:
                return s

    def _copy(self, loop: For, k: int) -> Body:
        if k == 0:
            return Substitution({loop.var: 0}).body(loop.body)
        return self._renumber(trip_of(loop, k))

    def _renumber(self, body: Body) -> Body:
        return tuple(self._renumber_one(s) for s in body)

    def _renumber_one(self, s: Statement) -> Statement:
        match s:
            case SyncStatement():
                return dataclasses.replace(s, id=next(self._ids))
            case For():
                return dataclasses.replace(s, body=self._renumber(s.body))
            case If():
                then, otherwise = self._renumber(s.then), self._renumber(s.otherwise)
                return dataclasses.replace(s, then=then, otherwise=otherwise)
            case _:
                return s


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


def _is_shared(s: Statement) -> bool:
    return isinstance(s, Alloc) and s.buffer.memory is Memory.SHARED


def counts_registers(loop: For) -> bool:
    """Whether the loop's variable is in the index of a register."""
    return any(
        loop.var in all_variables(r.index) for s in walk_statements(loop) for r in own_registers(s)
    )
