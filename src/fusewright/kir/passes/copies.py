"""Copies between registers: later reads take the original."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Copies:
    """What registers hold a copy of, and by register those that hold a copy of it."""

    sources: dict[Slot, Operand] = field(default_factory=dict[Slot, Operand])
    users: dict[Slot, tuple[Slot, ...]] = field(default_factory=dict[Slot, tuple[Slot, ...]])

    def fork(self) -> _Copies:
        """The same, to be changed by itself."""
        return _Copies(dict(self.sources), dict(self.users))

    def add(self, slot: Slot, source: Operand) -> None:
        """Note that a register, which holds no known copy, was copied from a source."""
        self.sources[slot] = source
        origin = _slot(source) if isinstance(source, Reg) else None
        if origin is not None:
            self.users[origin] = (*self.users.get(origin, ()), slot)

    def forget(self, r: Reg, width: int) -> None:
        """Note that `width` registers from `r` on are written; all of the buffer where `r` has no
        literal index."""
        start = constant_value(r.index)
        if start is None:
            known = (*self.sources, *self.users)
            gone = [slot for slot in known if slot[0] is r.buffer]
        else:
            gone = [(r.buffer, start + k) for k in range(width)]
        for slot in gone:
            self._drop(slot)
            for user in self.users.get(slot, ()):
                self._drop(user)

    def _drop(self, slot: Slot) -> None:
        source = self.sources.pop(slot, None)
        origin = _slot(source) if isinstance(source, Reg) else None
        if origin is not None:
            self.users[origin] = tuple(u for u in self.users[origin] if u != slot)


def propagate_copies(kernel: Kernel) -> Kernel:
    """Read the source of an unconditional `copy` where it still holds the same value.

    rewrite:  b = copy(a);  c = add(b, b)   ->   b = copy(a);  c = add(a, a)
    checks:   nothing; registers without a literal index are left alone
    order:    before dead statements are removed
    """
    body = _body(kernel.body, _Copies())
    return kernel if body is kernel.body else dataclasses.replace(kernel, body=body)


def _body(body: Body, copies: _Copies) -> Body:
    new = tuple(_statement(s, copies) for s in body)
    return body if all(a is b for a, b in zip(new, body, strict=True)) else new


def _statement(s: Statement, copies: _Copies) -> Statement:
    """The statement with its reads replaced; `copies` is brought up to date behind it."""
    match s:
        case For():
            _forget_written(s, copies)
            body = _body(s.body, copies.fork())
            return s if body is s.body else dataclasses.replace(s, body=body)
        case If():
            then, otherwise = _body(s.then, copies.fork()), _body(s.otherwise, copies.fork())
            _forget_written(s, copies)
            if then is s.then and otherwise is s.otherwise:
                return s
            return dataclasses.replace(s, then=then, otherwise=otherwise)
        case Roles():
            roles = tuple(_statement(role, copies.fork()) for role in s.body)
            _forget_written(s, copies)
            same = all(a is b for a, b in zip(roles, s.body, strict=True))
            return s if same else dataclasses.replace(s, body=roles)
        case Role():
            body = _body(s.body, copies)
            return s if body is s.body else dataclasses.replace(s, body=body)
        case _:
            new = _read(s, copies)
            for r, width in written(new):
                copies.forget(r, width)
            _remember(new, copies)
            return new


def _read(s: Statement, copies: _Copies) -> Statement:
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


def _operand(o: Operand, copies: _Copies) -> Operand:
    slot = _slot(o) if isinstance(o, Reg) else None
    return o if slot is None else copies.sources.get(slot, o)


def _registers(r: Reg, width: int, copies: _Copies) -> Reg:
    """Where `width` registers from `r` on were copied from, when those are consecutive too."""
    slot = _slot(r)
    if slot is None:
        return r
    sources = [copies.sources.get((slot[0], slot[1] + k)) for k in range(width)]
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


def _remember(s: Statement, copies: _Copies) -> None:
    if not isinstance(s, Compute) or s.fn != "copy" or s.predicate != TRUE:
        return
    target, source = _slot(s.dst), s.operands[0]
    is_lasting = isinstance(source, Imm | Arg) or (isinstance(source, Reg) and _slot(source))
    if target is not None and is_lasting and not _is(source, target):
        copies.add(target, source)


def _is(o: Operand, slot: Slot) -> bool:
    return isinstance(o, Reg) and _slot(o) == slot


def _forget_written(s: Statement, copies: _Copies) -> None:
    for inner in walk_statements(s):
        for r, width in written(inner):
            copies.forget(r, width)


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
