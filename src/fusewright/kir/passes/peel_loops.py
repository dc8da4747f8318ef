"""Loops of which only the last trip needs a condition."""

from __future__ import annotations

import dataclasses

from fusewright.core.conditions import TRUE, And, Cond, prove
from fusewright.core.expr import Int, Var, constant_value
from fusewright.kir.ir import (
    Alloc,
    Body,
    Compute,
    For,
    Guarded,
    If,
    Kernel,
    Load,
    Memory,
    Statement,
    Store,
)
from fusewright.kir.overlap import overlap_of
from fusewright.kir.passes.simplify import settle_body
from fusewright.kir.passes.unroll import trip_of
from fusewright.kir.substitute import Substitution
from fusewright.kir.traverse import all_variables, map_body, walk_statements, with_bodies


def peel_loops(kernel: Kernel) -> Kernel:
    """Write out the last trip of loops in which a condition fails in that trip only: the compiler
    starts the loads of many trips at once where nothing guards them and their number is known.

    rewrite:  for (i < 5) { r = load x[4*i + tx] if (c) else 0;  a = add(a, r) },  c = 4*i + tx < 18
                 ->   for (i < 4) { r = load x[4*i + tx];  a = add(a, r) }
                      r = load x[tx + 16] if (tx < 2) else 0;  a = add(a, r)
    checks:   the trips are a constant, more than one; bounds prove the condition for all but the
              last and not for it; nothing in the loop meets other threads or touches shared memory,
              whose lifetimes and owners are judged loop by loop
    order:    behind trim_loops, which ends loops that meet at barriers instead; before addresses
              are simplified, so that the trip that is written out has them in its own terms
    """
    return with_bodies(kernel, _body)


def _body(body: Body) -> Body:
    return map_body(body, _statement)


def _statement(s: Statement) -> Statement | Body:
    if isinstance(s, For):
        narrow = _all_but_last(s) if is_private(s) else None
        if narrow is not None and _is_guarded(s, narrow):
            return _body(_peeled(s, narrow))
    return with_bodies(s, _body)


def is_private(loop: For) -> bool:
    """Whether a thread runs the loop by itself, on registers and global memory."""
    return all(_is_own(s) for s in walk_statements(loop))


def _is_own(s: Statement) -> bool:
    match s:
        case Alloc():
            return s.buffer.memory is Memory.LOCAL
        case Load() | Store() | Compute():
            return all(u.buffer.memory is not Memory.SHARED for u in s.memory_uses())
        case For() | If():
            return True
        case _:
            return False


def _all_but_last(loop: For) -> Var | None:
    """The loop's variable in the trips before the last one; None where there is no such trip, or
    their number is not known."""
    trips = constant_value(loop.extent)
    if trips is None or trips < 2:
        return None
    return Var(loop.var.name, loop.var.lower, Int(trips - 2), loop.var.multiple_of)


def _is_guarded(loop: For, narrow: Var) -> bool:
    """Whether a condition in the loop holds in all trips but the last one."""
    early = Substitution({loop.var: narrow})
    return any(
        prove(c) is None and prove(early.condition(c)) is True
        for s in walk_statements(loop)
        for c in _conditions(s)
        if loop.var in all_variables(c)
    )


def _conditions(s: Statement) -> tuple[Cond, ...]:
    match s:
        case Guarded():
            c = s.predicate
        case If():
            c = s.condition
        case _:
            c = TRUE
    return c.parts if isinstance(c, And) else (c,)


def _peeled(loop: For, narrow: Var) -> Body:
    last = constant_value(loop.extent)
    assert last is not None
    last -= 1
    body = settle_body(Substitution({loop.var: narrow}).body(loop.body), frozenset())
    extent = Int(last)
    overlap = loop.overlap or overlap_of(extent)
    first = dataclasses.replace(loop, var=narrow, extent=extent, body=body, overlap=overlap)
    return (first, *settle_body(trip_of(loop, last), frozenset()))
