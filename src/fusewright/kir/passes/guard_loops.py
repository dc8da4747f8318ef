"""Loops that threads without work do not enter."""

from __future__ import annotations

import dataclasses

from fusewright.core.conditions import TRUE, And, Cond, all_of
from fusewright.core.expr import Var
from fusewright.kir.ir import Body, For, If, Kernel, Load, Statement
from fusewright.kir.passes.peel_loops import is_private
from fusewright.kir.passes.simplify import settle_body
from fusewright.kir.passes.trim_loops import is_idle
from fusewright.kir.traverse import all_variables, map_body, walk_statements, with_bodies


def guard_loops(kernel: Kernel) -> Kernel:
    """Ask once, in front of a loop, what every trip asks for again: the compiler starts the loads
    of several trips at once where nothing guards them.

    rewrite:  for (i < 96) { r = load x[96*tx + i] if (c) else 0;  a = min(a, r) if (c) }
                 ->   if (c) { for (i < 96) { r = load x[96*tx + i];  a = min(a, r) } }
    checks:   the condition is of no variable of the loop or below; where it fails the loop changes
              nothing but its own registers, those of a condition among them; nothing in it meets
              other threads
    order:    behind trim_loops, which ends loops that all threads leave; before peel_loops, which
              takes the conditions of the last trip out of what is left
    """
    return with_bodies(kernel, _body)


def _body(body: Body) -> Body:
    return map_body(body, _statement)


def _statement(s: Statement) -> Statement | Body:
    if isinstance(s, For) and is_private(s):
        found = all_of(c for c in _asked_again(s) if is_idle(s, c))
        if found is not TRUE:
            body = settle_body(s.body, frozenset(_parts(found)))
            return If(found, (dataclasses.replace(s, body=body),))
    return with_bodies(s, _body)


def _asked_again(loop: For) -> tuple[Cond, ...]:
    """The conditions of loads that are the same in all trips."""
    inside = {loop.var, *(s.var for s in walk_statements(loop) if isinstance(s, For))}
    found: dict[Cond, None] = {}
    for s in walk_statements(loop):
        if isinstance(s, Load):
            found |= {c: None for c in _parts(s.predicate) if not _is_of(c, inside)}
    return tuple(found)


def _is_of(c: Cond, inside: set[Var]) -> bool:
    return c is TRUE or any(v in inside for v in all_variables(c))


def _parts(c: Cond) -> tuple[Cond, ...]:
    return c.parts if isinstance(c, And) else (c,)
