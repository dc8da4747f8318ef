"""Exchanges between threads that take place at once: runs of them, with what can stand elsewhere.

A thread that takes several rows reduces each of them; a barrier for all costs what one for each
costs, and shuffles of different rows overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from fusewright.core.conditions import all_of, less, less_equal, prove
from fusewright.core.expr import constant_value
from fusewright.kir.ir import (
    Alloc,
    Body,
    Buffer,
    Compute,
    Exchange,
    Load,
    Reg,
    Statement,
    Store,
)
from fusewright.kir.traverse import registers_read, registers_written

E = TypeVar("E", bound=Exchange)

MANY = 1 << 62
"""Elements of a buffer of which the number is not known."""


_Place: TypeAlias = tuple[Reg, int]
"""So many registers, from this one on."""


@dataclass(slots=True)
class _Later:
    """Statements that stand behind a run, from the first on that depends on it."""

    statements: list[Statement] = field(default_factory=list[Statement])
    _read: dict[Buffer, list[_Place]] = field(default_factory=dict[Buffer, list[_Place]])
    _written: dict[Buffer, list[_Place]] = field(default_factory=dict[Buffer, list[_Place]])

    def add(self, s: Statement) -> None:
        """One more, behind the others."""
        self.statements.append(s)
        for place in _read(s):
            self._read.setdefault(place[0].buffer, []).append(place)
        for place in _written(s):
            self._written.setdefault(place[0].buffer, []).append(place)

    def lets_pass(self, s: Statement) -> bool:
        """Whether one access or computation of a thread could as well stand in front of them: it
        names nothing that they write, and writes nothing that they read."""
        written = _written(s)
        return not (
            any(_meet(self._written, place) for place in (*written, *_read(s)))
            or any(_meet(self._read, place) for place in written)
        )


def _meet(places: Mapping[Buffer, Sequence[_Place]], place: _Place) -> bool:
    """Whether one of some registers may be among those at a place."""
    reg, width = place
    return any(
        _overlaps(reg, width, other) or _overlaps(other, n, reg)
        for other, n in places.get(reg.buffer, ())
    )


def expand_runs(body: Body, kind: type[E], expand: Callable[[list[E]], list[Statement]]) -> Body:
    """The body with runs of exchanges of a kind replaced by what `expand` makes of them: those
    that do not depend on each other, as far as what lies between does not depend on them, or they
    not on it.

    a = reduce(a);  store f(a);  b = load x;  b = reduce(b);  store f(b)
        ->   b = load x;  a, b = reduce(a, b);  store f(a);  store f(b)
    """
    ahead = sum(isinstance(s, kind) for s in body)
    if not ahead:
        return body
    out: list[Statement] = []
    run: list[E] = []
    between: list[Statement] = []  # behind the last of the run, and independent of it
    behind = _Later()
    settled: list[Statement] = []  # those behind when the last of the run joined it
    since: list[Statement] = []  # all behind the last of the run, which stay in their order
    for s in body:
        ahead -= isinstance(s, kind)
        if run and not ahead and not isinstance(s, kind):  # nothing joins the run any more
            since.append(s)
            continue
        is_free = not any(_depends(s, r) for r in run)
        if isinstance(s, kind) and is_free and not any(_depends(b, s) for b in behind.statements):
            out += between
            run, between, since = [*run, s], [], []
            settled = list(behind.statements)
        elif run and is_free and _is_of_thread(s) and behind.lets_pass(s):
            between.append(s)
            since.append(s)
        elif run and _is_of_thread(s):
            behind.add(s)
            since.append(s)
        else:
            out += (*expand(run), *settled, *since)
            run, between, behind = ([s] if isinstance(s, kind) else []), [], _Later()
            settled, since = [], []
            out += () if run else (s,)
    return (*out, *expand(run), *settled, *since)


def _is_of_thread(s: Statement) -> bool:
    """Whether a statement is no more than one access or computation of a thread."""
    return isinstance(s, Alloc | Load | Store | Compute)


def _read(s: Statement) -> list[_Place]:
    """What a statement reads; of memory all that a buffer has."""
    return [*registers_read(s), *(_whole(u.buffer) for u in s.memory_uses() if not u.writes)]


def _written(s: Statement) -> list[_Place]:
    """The same of what it writes, or gives room."""
    whole = [u.buffer for u in s.memory_uses() if u.writes]
    whole += [s.buffer] if isinstance(s, Alloc) else []
    return [*((u.reg, u.width) for u in registers_written(s)), *map(_whole, whole)]


def _whole(buffer: Buffer) -> _Place:
    return Reg(buffer), max(1, constant_value(buffer.size) or MANY)


def _depends(other: Statement, exchange: Exchange) -> bool:
    """Whether a statement cannot change places with an exchange: it names its results, changes what
    it combines, allocates any of these, or is more than one access or computation of a thread."""
    if not isinstance(other, Exchange) and not _is_of_thread(other):
        return True
    uses = exchange.register_uses()
    if isinstance(other, Alloc):
        return any(u.reg.buffer is other.buffer for u in uses)
    written = [(u.reg, u.width) for u in registers_written(other)]
    named = (*written, *registers_read(other))
    return any(
        _overlaps(r, width, u.reg) for u in uses for r, width in (named if u.writes else written)
    )


def _overlaps(first: Reg, width: int, one: Reg) -> bool:
    """Whether `one` may be among the `width` registers from `first` on."""
    if first.buffer is not one.buffer:
        return False
    gap = one.index - first.index
    return prove(all_of([less_equal(0, gap), less(gap, width)])) is not False
