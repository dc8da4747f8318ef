"""Loops that end where the iterations that are left would do nothing."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from fusewright.core.atoms import minimum
from fusewright.core.conditions import TRUE, And, Cond, Less, negate
from fusewright.core.expr import Expr, Int, Var, constant_value, floordiv, parts_of, sum_of
from fusewright.core.identities import reduction_identity
from fusewright.core.terms import Term
from fusewright.kir.ir import (
    Alloc,
    Body,
    Buffer,
    Compute,
    For,
    Guarded,
    If,
    Imm,
    Kernel,
    Load,
    Memory,
    Operand,
    Reg,
    Statement,
    ThreadReduce,
)
from fusewright.kir.passes.simplify import settle_body
from fusewright.kir.traverse import all_variables, registers_written, walk_statements

_Known: TypeAlias = dict[tuple[Buffer, Expr], Imm]
"""Registers of which the value is known."""
REDUCTIONS = frozenset({"add", "mul", "max", "min", "or", "and"})


def trim_loops(kernel: Kernel) -> Kernel:
    """End loops whose iterations meet at a barrier where a condition that guards all they do fails
    for good. In others the compiler starts the loads of several iterations at once, which it does
    best where their number is known.

    rewrite:  for (i < 5) { a = add(a, c ? x : 0);  store y[i] = b if (c) },  c = 5*bx + i < 12
                 ->   for (i < min(5, 12 - 5*bx)) { a = add(a, x);  store y[i] = b }
    checks:   all threads of the block agree on the condition, and it stays false once it is; an
              iteration without it changes nothing outside of itself: it stores nothing, and what
              it adds to sums is 0; nothing in shared memory, whose lifetimes count iterations
    order:    behind unroll, where every condition is explicit; before prefetch, whose loads for
              the next iteration then have no condition but that there is one
    """
    if kernel.cluster:  # blocks of a cluster may have to meet inside
        return kernel
    uniform = frozenset((*(d.var for d in kernel.grid), *kernel.symbols))
    body = _body(kernel.body, uniform)
    return kernel if body is kernel.body else dataclasses.replace(kernel, body=body)


def _body(body: Body, uniform: frozenset[Var]) -> Body:
    out = tuple(_loop(s, uniform) if isinstance(s, For) else s for s in body)
    return body if all(a is b for a, b in zip(out, body, strict=True)) else out


def _loop(loop: For, uniform: frozenset[Var]) -> For:
    inner = _body(loop.body, uniform | {loop.var})
    if inner is not loop.body:
        loop = dataclasses.replace(loop, body=inner)
    if not any(isinstance(s, ThreadReduce) for s in loop.body):
        return loop
    for c in _conditions(loop):
        trips = _trips(c, loop.var, uniform)
        if trips is not None and is_idle(loop, c):
            body = settle_body(loop.body, frozenset({c}))
            loop = dataclasses.replace(loop, extent=minimum(loop.extent, trips), body=body)
    return loop


def _conditions(loop: For) -> tuple[Cond, ...]:
    """Those that statements of the loop have."""
    found: dict[Cond, None] = {}
    for s in loop.body:
        if isinstance(s, Guarded):
            c = s.predicate
            found |= dict.fromkeys(c.parts if isinstance(c, And) else (c,))
    return tuple(found)


def _trips(c: Cond, v: Var, uniform: frozenset[Var]) -> Expr | None:
    """The iterations in which `a*v + rest < 0` holds, the first ones; None for other conditions
    and where threads may differ."""
    if not isinstance(c, Less):
        return None
    constant, terms = parts_of(c.left - c.right)
    own = [t for t in terms if v in t.atoms]
    rest = sum_of(constant, (t for t in terms if v not in t.atoms))
    if len(own) != 1 or own[0] != Term((v,), own[0].coefficient) or own[0].coefficient < 1:
        return None
    if any(x not in uniform for x in all_variables(rest)):
        return None
    step = own[0].coefficient
    return floordiv(step - 1 - rest, Int(step))


def is_idle(loop: For, c: Cond) -> bool:
    """Whether an iteration in which a condition is false does nothing."""
    uses = (u for s in walk_statements(loop) for u in s.memory_uses())
    if any(u.buffer.memory is Memory.SHARED for u in uses):
        return False
    return _does_nothing(settle_body(loop.body, frozenset({negate(c)})), _allocated(loop), {})


def _allocated(loop: For) -> frozenset[Buffer]:
    return frozenset(s.buffer for s in walk_statements(loop) if isinstance(s, Alloc))


def _does_nothing(body: Body, own: frozenset[Buffer], known: _Known) -> bool:
    """Whether a body changes no more than its own registers; `known` becomes what is known of those
    behind it."""
    for s in body:
        match s:
            case Alloc():
                continue
            case Load() | ThreadReduce():
                if s.dst.buffer not in own:
                    return False
                _forget(s, known)
            case Compute():
                if not _computes_nothing(s, own, known):
                    return False
            case For():
                _forget(s, known)
                if not _does_nothing(s.body, own, known):
                    return False
                _forget(s, known)
            case If():
                if not all(_does_nothing(b, own, dict(known)) for b in (s.then, s.otherwise)):
                    return False
                _forget(s, known)
            case _:
                return False
    return True


def _computes_nothing(s: Compute, own: frozenset[Buffer], known: _Known) -> bool:
    """Whether a computation changes no register that others may see: it has one of its own, or it
    adds nothing to one."""
    if s.dst.buffer in own:
        value = _value(s.operands[0], known) if s.fn == "copy" else None
        if value is None or not _is_fixed(s):
            _forget(s, known)
        else:
            known[s.dst.buffer, s.dst.index] = value
        return True
    if s.fn not in REDUCTIONS or len(s.operands) != 2:
        return False
    before, added = s.operands
    same = isinstance(before, Reg) and (before.buffer, before.index) == (s.dst.buffer, s.dst.index)
    value = _value(added, known)
    identity = reduction_identity(s.fn, s.dst.buffer.dtype)
    return same and value is not None and value.value == identity


def _is_fixed(s: Compute) -> bool:
    """Whether a computation always takes place, and in one register."""
    return constant_value(s.dst.index) is not None and s.predicate == TRUE


def _value(o: Operand, known: _Known) -> Imm | None:
    if isinstance(o, Reg):
        return known.get((o.buffer, o.index))
    return o if isinstance(o, Imm) else None


def _forget(s: Statement, known: _Known) -> None:
    """Drops what is known of the buffers that a statement writes."""
    inside = (s, *walk_statements(s))
    written = {u.reg.buffer for x in inside for u in registers_written(x)}
    for key in [k for k in known if k[0] in written]:
        del known[key]
