"""Copies between registers: later reads take the original."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from fusewright.core.conditions import TRUE
from fusewright.core.expr import Expr, add, constant_value, variables
from fusewright.core.node import Node, map_children
from fusewright.kir.ir import (
    Arg,
    Body,
    Buffer,
    Compute,
    For,
    Imm,
    Kernel,
    Operand,
    Reg,
    RegVar,
    Statement,
)
from fusewright.kir.traits import RegisterUse
from fusewright.kir.traverse import (
    HAVE_BODIES,
    KEPT,
    bodies_of,
    map_body,
    own_buffers,
    register_uses,
    registers_written,
    with_bodies,
)

Slot: TypeAlias = "tuple[Buffer, int | Expr]"
"""A register by its place, which is an expression where loops around say it."""


@dataclass(slots=True)
class _Copies:
    """What registers hold a copy of, and by register those that hold a copy of it; the `buffers`
    that any of either are in, or were, and those of which one has no literal place, `open`."""

    sources: dict[Slot, Operand] = field(default_factory=dict[Slot, Operand])
    users: dict[Slot, tuple[Slot, ...]] = field(default_factory=dict[Slot, tuple[Slot, ...]])
    buffers: set[Buffer] = field(default_factory=set[Buffer])
    open: set[Buffer] = field(default_factory=set[Buffer])

    def fork(self) -> _Copies:
        """The same, to be changed by itself."""
        return _Copies(dict(self.sources), dict(self.users), set(self.buffers), set(self.open))

    def add(self, slot: Slot, source: Operand) -> None:
        """Note that a register, which holds no known copy, was copied from a source."""
        self.sources[slot] = source
        self._name(slot)
        origin = _slot(source) if isinstance(source, Reg) else None
        if origin is not None:
            self._name(origin)
            self.users[origin] = (*self.users.get(origin, ()), slot)

    def _name(self, slot: Slot) -> None:
        self.buffers.add(slot[0])
        if not isinstance(slot[1], int):
            self.open.add(slot[0])

    def forget(self, r: Reg, width: int) -> None:
        """Note that `width` registers from `r` on are written; all of the buffer where `r` has no
        literal index, and all without one otherwise."""
        start = constant_value(r.index)
        gone: list[Slot] = []
        if start is not None:
            gone += [(r.buffer, start + k) for k in range(width)]
        if start is None or r.buffer in self.open:
            known = (*self.sources, *self.users)
            some = [slot for slot in known if slot[0] is r.buffer]
            gone += [slot for slot in some if start is None or not isinstance(slot[1], int)]
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
    checks:   nothing; a register whose place a loop says is known as long as no register of its
              buffer is written
    order:    before dead statements are removed
    """
    return with_bodies(kernel, lambda body: _body(body, _Copies()))


def _body(body: Body, copies: _Copies) -> Body:
    return map_body(body, lambda s: _statement(s, copies))


def _statement(s: Statement, copies: _Copies) -> Statement:
    """The statement with its reads replaced; `copies` is brought up to date behind it."""
    if HAVE_BODIES[type(s)]:
        if isinstance(s, For):  # an earlier iteration may have written
            _forget_written(s, copies)
        new = with_bodies(s, lambda body: _body(body, copies.fork()))
        _forget_written(s, copies)
        return new
    new = s
    if copies.sources and not copies.buffers.isdisjoint(own_buffers(s)):
        new = _read(s, copies)
        for use in registers_written(new):
            copies.forget(use.reg, use.width)
    if isinstance(new, Compute) and new.fn == "copy":
        _remember(new, copies)
    return new


def _read(s: Statement, copies: _Copies) -> Statement:
    """The statement with the operands that it reads at once taken from where they were copied."""
    instead: dict[Node, Operand] = {}
    targets: set[Node] = set()
    for use in register_uses(s):
        if use.writes:
            targets.add(use.reg)
        elif use.completes.at_once:
            instead[use.reg] = (_operand if use.takes_any else _registers)(use, copies)

    def replaced(n: Node) -> Node:
        if n in targets:
            targets.remove(n)  # its first mention; it may be an operand too
            return n
        return instead.get(n, n)

    is_other = any(new is not old for old, new in instead.items())
    return map_children(s, replaced) if is_other else s


def _operand(use: RegisterUse, copies: _Copies) -> Operand:
    return copies.sources.get(_slot(use.reg), use.reg)


def _registers(use: RegisterUse, copies: _Copies) -> Reg:
    """Where consecutive registers were copied from, when those are consecutive too."""
    r = use.reg
    first = copies.sources.get(_slot(r))
    if not isinstance(first, Reg):
        return r
    for k in range(1, use.width):
        source = copies.sources.get(_slot(r, k))
        if not isinstance(source, Reg) or _slot(source) != _slot(first, k):
            return r
    return first


def _slot(r: Reg, offset: int = 0) -> Slot:
    index = constant_value(r.index)
    return (r.buffer, add(r.index, offset) if index is None else index + offset)


def _remember(s: Compute, copies: _Copies) -> None:
    if s.predicate != TRUE:
        return
    target, source = _slot(s.dst), s.operands[0]
    is_lasting = isinstance(source, Imm | Arg) or (isinstance(source, Reg) and _is_steady(source))
    if is_lasting and _is_steady(s.dst) and not _is(source, target):
        copies.add(target, source)


def _is_steady(r: Reg) -> bool:
    """Whether a register's place follows from loops alone, not from what registers hold."""
    return not any(isinstance(v, RegVar) for v in variables(r.index))


def _is(o: Operand, slot: Slot) -> bool:
    return isinstance(o, Reg) and _slot(o) == slot


def _forget_written(s: Statement, copies: _Copies) -> None:
    for use in _written_below(s) if copies.sources else ():
        if use.reg.buffer in copies.buffers:
            copies.forget(use.reg, use.width)


@lru_cache(maxsize=KEPT)
def _written_below(s: Statement) -> tuple[RegisterUse, ...]:
    """What the statements below one write, each of the same registers once."""
    found: dict[object, RegisterUse] = {}
    for body in bodies_of(s):
        for inner in body:
            below = _written_below(inner) if HAVE_BODIES[type(inner)] else ()
            for use in below or registers_written(inner):
                found[use.reg.buffer, use.reg.index, use.width] = use
    return tuple(found.values())
