"""Copies between registers: later reads take the original."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from fusewright.core.conditions import TRUE
from fusewright.core.expr import Int, constant_value
from fusewright.kir.ir import (
    Alloc,
    Arg,
    Body,
    Buffer,
    Compute,
    For,
    If,
    Imm,
    Kernel,
    Load,
    Operand,
    Reg,
    RemoteStore,
    Role,
    Roles,
    Shuffle,
    Statement,
    Store,
    SyncStatement,
    ThreadReduce,
)
from fusewright.kir.traverse import own_registers, walk_statements

Slot: TypeAlias = tuple[Buffer, int]
Copies: TypeAlias = dict[Slot, Operand]


def propagate_copies(kernel: Kernel) -> Kernel:
    """Read the source of an unconditional `copy` where it still holds the same value.

    rewrite:  b = copy(a);  c = add(b, b)   ->   b = copy(a);  c = add(a, a)
    checks:   nothing; registers without a literal index are left alone
    order:    before dead statements are removed
    """
    body = _body(kernel.body, {})
    return kernel if body is kernel.body else dataclasses.replace(kernel, body=body)


def _body(body: Body, copies: Copies) -> Body:
    new = tuple(_statement(s, copies) for s in body)
    return body if all(a is b for a, b in zip(new, body, strict=True)) else new


def _statement(s: Statement, copies: Copies) -> Statement:
    """The statement with its reads replaced; `copies` is brought up to date behind it."""
    match s:
        case For():
            _forget_written(s, copies)
            body = _body(s.body, dict(copies))
            return s if body is s.body else dataclasses.replace(s, body=body)
        case If():
            then, otherwise = _body(s.then, dict(copies)), _body(s.otherwise, dict(copies))
            _forget_written(s, copies)
            if then is s.then and otherwise is s.otherwise:
                return s
            return dataclasses.replace(s, then=then, otherwise=otherwise)
        case Roles():
            roles = tuple(_statement(role, dict(copies)) for role in s.body)
            _forget_written(s, copies)
            same = all(a is b for a, b in zip(roles, s.body, strict=True))
            return s if same else dataclasses.replace(s, body=roles)
        case Role():
            body = _body(s.body, copies)
            return s if body is s.body else dataclasses.replace(s, body=body)
        case _:
            new = _read(s, copies)
            for r, width in written(new):
                _forget(r, width, copies)
            _remember(new, copies)
            return new


def _read(s: Statement, copies: Copies) -> Statement:
    match s:
        case Compute():
            operands = tuple(_operand(o, copies) for o in s.operands)
            same = all(a is b for a, b in zip(operands, s.operands, strict=True))
            return s if same else dataclasses.replace(s, operands=operands)
        case Store():
            src = _registers(s.src, s.width, copies)
        case Shuffle() | ThreadReduce() | RemoteStore():
            src = _registers(s.src, 1, copies)
        case _:
            return s
    return s if src is s.src else dataclasses.replace(s, src=src)


def _operand(o: Operand, copies: Copies) -> Operand:
    slot = _slot(o) if isinstance(o, Reg) else None
    return o if slot is None else copies.get(slot, o)


def _registers(r: Reg, width: int, copies: Copies) -> Reg:
    """Where `width` registers from `r` on were copied from, when those are consecutive too."""
    slot = _slot(r)
    if slot is None:
        return r
    sources = [copies.get((slot[0], slot[1] + k)) for k in range(width)]
    first = sources[0]
    start = _slot(first) if isinstance(first, Reg) else None
    if start is None:
        return r
    for k, source in enumerate(sources):
        if not isinstance(source, Reg) or _slot(source) != (start[0], start[1] + k):
            return r
    return first if isinstance(first, Reg) else r


def _slot(r: Reg) -> Slot | None:
    index = constant_value(r.index)
    return None if index is None else (r.buffer, index)


def _remember(s: Statement, copies: Copies) -> None:
    if not isinstance(s, Compute) or s.fn != "copy" or s.predicate != TRUE:
        return
    target, source = _slot(s.dst), s.operands[0]
    is_lasting = isinstance(source, Imm | Arg) or (isinstance(source, Reg) and _slot(source))
    if target is not None and is_lasting and not _is(source, target):
        copies[target] = source


def _is(o: Operand, slot: Slot) -> bool:
    return isinstance(o, Reg) and _slot(o) == slot


def _forget_written(s: Statement, copies: Copies) -> None:
    for inner in walk_statements(s):
        for r, width in written(inner):
            _forget(r, width, copies)


def _forget(r: Reg, width: int, copies: Copies) -> None:
    start = constant_value(r.index)

    def is_hit(b: Buffer, index: int) -> bool:
        return b is r.buffer and (start is None or start <= index < start + width)

    for slot, source in list(copies.items()):
        origin = _slot(source) if isinstance(source, Reg) else None
        if is_hit(*slot) or (origin is not None and is_hit(*origin)):
            del copies[slot]


def written(s: Statement) -> tuple[tuple[Reg, int], ...]:
    """The registers a statement may write, with the number of consecutive ones."""
    match s:
        case Load():
            return ((s.dst, s.width),)
        case Compute() | Shuffle() | ThreadReduce():
            return ((s.dst, 1),)
        case Store() | RemoteStore() | Alloc() | For() | If() | SyncStatement():
            return ()
        case _:
            sizes = ((r, constant_value(r.buffer.size) or 1) for r in own_registers(s))
            return tuple((Reg(r.buffer, Int(0)), size) for r, size in sizes)
