"""Loads of the next iteration, issued before this one waits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TypeAlias

from fusewright.core.atoms import minimum
from fusewright.core.conditions import TRUE, Cond, all_of, less
from fusewright.core.expr import ONE, ZERO, Int, variables
from fusewright.dtypes import DType
from fusewright.fusion.persistent_rows import nbytes_ahead
from fusewright.kir.analysis.occupancy import register_cap
from fusewright.kir.ir import (
    Alloc,
    Body,
    Buffer,
    Compute,
    Exchange,
    For,
    Kernel,
    Load,
    Reg,
    RegVar,
    Statement,
)
from fusewright.kir.substitute import Substitution
from fusewright.kir.traverse import map_bodies, walk_statements
from fusewright.memory import Memory
from fusewright.target import Target

_Place: TypeAlias = tuple[Buffer, object, int, DType]
"""What is read, where, under which condition and which lanes, how many elements, and as what."""


def prefetch(kernel: Kernel, target: Target) -> Kernel:
    """In loops whose iterations meet at a barrier, load one iteration ahead.

    rewrite:  for (i < n) { r = load x[f(i)]; .. reduce .. }
                  ->   next = load x[f(0)];
                       for (i < n) { r = next; next = load x[f(i + 1)] where i + 1 < n; .. }
              a single element in the last iteration once more: under a condition a register would
              keep what it held, and wait for the load to tell
    checks:   the address depends on the loop alone; nothing in the loop writes that tensor; what
              is under way fits into a few registers
    order:    behind unroll, which shows the loads one by one, before reductions become barriers
    """
    bounded = kernel.min_blocks
    registers = register_cap(target, kernel.nthreads, bounded) if bounded else 0
    most = nbytes_ahead(registers)
    return map_bodies(kernel, lambda body: _body(body, most))


def _body(body: Body, most: int) -> Body:
    out: list[Statement] = []
    for s in body:
        exchanges = isinstance(s, For) and any(isinstance(x, Exchange) for x in s.body)
        if isinstance(s, For) and exchanges and not s.is_open:
            out += _ahead(s, most)
        else:
            out.append(s)
    same = len(out) == len(body)
    return body if same else tuple(out)


def _ahead(loop: For, most: int) -> list[Statement]:
    """The loop with its loads one iteration ahead, behind the first of them, where they are at most
    `most` bytes. Loads of one address become one."""
    chosen = _independent(loop)
    once: dict[_Place, Buffer] = {}
    for s in chosen:
        b = s.dst.buffer
        ahead = Buffer(f"{b.name}_next", b.dtype, Int(s.width), b.memory, b.alignment)
        once.setdefault(_place(s), ahead)
    nbytes = sum(width * dtype.nbytes for _, _, width, dtype in once)
    if not once or nbytes > most:
        return [loop]
    now = Substitution({loop.var: ZERO})
    then = Substitution({loop.var: loop.var + ONE})
    again = Substitution({loop.var: minimum(loop.var + ONE, loop.extent - 1)})
    exists = less(loop.var + ONE, loop.extent)
    before: list[Statement] = []
    body: list[Statement] = []
    waiting = Counter(_place(s) for s in chosen)
    for s in loop.body:
        if not isinstance(s, Load) or s not in chosen:
            body.append(s)
            continue
        ahead = once[_place(s)]
        for k in range(s.width):
            body.append(Compute("copy", Reg(s.dst.buffer, s.dst.index + k), (Reg(ahead, Int(k)),)))
        waiting[_place(s)] -= 1
        if not waiting[_place(s)]:  # the last to read what this iteration has
            before += [Alloc(ahead), _at(s, ahead, now, less(ZERO, loop.extent))]
            is_short = s.width == 1
            body.append(_at(s, ahead, again, TRUE) if is_short else _at(s, ahead, then, exists))
    return [*before, replace(loop, body=tuple(body), overlap=1)]


def _place(s: Load) -> _Place:
    return s.src, (s.index, s.predicate, s.fill, s.lanes), s.width, s.dst.buffer.dtype


def _independent(loop: For) -> list[Load]:
    """The loads from global memory into registers of the iteration, at addresses that follow
    from the loop alone, of tensors that the loop does not write."""
    own = {a.buffer for a in loop.body if isinstance(a, Alloc)}
    stored = {u.buffer for s in walk_statements(loop) for u in s.memory_uses() if u.writes}
    return [
        s
        for s in loop.body
        if isinstance(s, Load)
        and s.src.memory is Memory.GLOBAL
        and s.src not in stored
        and s.dst.buffer in own
        and loop.var in variables(s.index)
        and not any(isinstance(v, RegVar) for v in variables(s.index))
        and s.is_total
    ]


def _at(s: Load, dst: Buffer, iteration: Substitution, exists: Cond) -> Load:
    """The load as another iteration does it, where that exists."""
    return replace(
        s,
        dst=Reg(dst),
        index=iteration.expr(s.index),
        lanes=iteration.node(s.lanes),
        predicate=all_of((exists, iteration.condition(s.predicate))),
    )
