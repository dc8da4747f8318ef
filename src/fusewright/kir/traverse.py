"""Walks over KIR: bodies, the values a statement itself holds, the registers it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache, lru_cache
from itertools import chain
from typing import Any, TypeAlias, TypeVar, cast, get_type_hints

from fusewright.core.conditions import Truth
from fusewright.core.expr import Expr, Int, Var, variables
from fusewright.core.node import Node, symbolic_fields, values_of, with_fields
from fusewright.core.symbolic import Symbolic
from fusewright.kir.ir import Body, Buffer, Reg, RegVar, Statement
from fusewright.kir.traits import RegisterUse

N = TypeVar("N", bound=Node)

KEPT = 1 << 15
"""Nodes whose values are remembered: most pass through all passes, and are asked in each."""

KEPT_ROOTS = 4
"""Kernels whose statements are kept by their class: those that one pass or check asks about."""


class _HaveBodies(dict[type[Node], bool]):
    """Whether nodes of a class have bodies, asked once a class: no call for each statement."""

    def __missing__(self, cls: type[Node]) -> bool:
        self[cls] = bool(body_fields(cls))
        return self[cls]


HAVE_BODIES = _HaveBodies()


@cache
def body_fields(cls: type[Node]) -> tuple[str, ...]:
    """The names of a node class's fields that are bodies."""
    return tuple(name for name, hint in get_type_hints(cls).items() if hint == Body)


def bodies_of(node: Node) -> tuple[Body, ...]:
    """The bodies that are fields of a node, in order."""
    return tuple(getattr(node, name) for name in body_fields(type(node)))


def with_bodies(node: N, f: Callable[[Body], Body]) -> N:
    """The node with each body that is a field of it replaced by `f(body)`."""
    changed: dict[str, object] = {}
    for name in body_fields(type(node)):
        old: Body = getattr(node, name)
        new = f(old)
        if new is not old:
            changed[name] = new
    return with_fields(node, changed) if changed else node


class OfClasses(dict[type[Statement], bool]):
    """Whether statements of a class are of some kinds, or have bodies: those that a pass looks at.
    Asked once a class: no call for each statement."""

    def __init__(self, *kinds: type[Statement]) -> None:
        super().__init__()
        self._kinds = kinds

    def __missing__(self, cls: type[Statement]) -> bool:
        self[cls] = issubclass(cls, self._kinds) or HAVE_BODIES[cls]
        return self[cls]


def map_body(
    body: Body,
    f: Callable[[Statement], Statement | Iterable[Statement]],
    wanted: OfClasses | None = None,
) -> Body:
    """The body with each statement replaced by `f(statement)`, one or several, in order; those that
    are not `wanted` stay."""
    out: list[Statement] | None = None
    for at, s in enumerate(body):
        new = f(s) if wanted is None or wanted[type(s)] else s
        if out is None:
            if new is s:
                continue
            out = list(body[:at])
        if isinstance(new, Statement):
            out.append(new)
        else:
            out += new
    return body if out is None or tuple(out) == body else tuple(out)


_WITH_BODIES = OfClasses()


def map_bodies(node: N, f: Callable[[Body], Body]) -> N:
    """The node with every body below it replaced by `f(body)`, inner bodies first."""

    def inner(s: Statement) -> Statement:
        return map_bodies(s, f)

    return with_bodies(node, lambda body: f(map_body(body, inner, _WITH_BODIES)))


def map_statements(
    node: N, f: Callable[[Statement], Statement], wanted: OfClasses | None = None
) -> N:
    """The node with every statement below it replaced by `f(statement)`, inner ones first; those
    that are not `wanted` stay."""

    def mapped(s: Statement) -> Statement:
        return f(map_statements(s, f, wanted) if HAVE_BODIES[type(s)] else s)

    return with_bodies(node, lambda body: map_body(body, mapped, wanted))


def walk_statements(node: Node) -> Iterator[Statement]:
    """All statements below a node, outer ones first, in textual order."""
    open_ = [chain.from_iterable(bodies_of(node))]
    while open_:
        for s in open_[-1]:
            yield s
            if HAVE_BODIES[type(s)]:
                open_.append(chain.from_iterable(bodies_of(s)))
                break
        else:
            open_.pop()


def _list_statements(node: Node, out: list[Statement]) -> None:
    """As `walk_statements`, where all are wanted."""
    for body in bodies_of(node):
        for s in body:
            out += (s,)
            if HAVE_BODIES[type(s)]:
                _list_statements(s, out)


S = TypeVar("S", bound=Statement)


@lru_cache(maxsize=KEPT_ROOTS)
def _by_class(node: Node) -> tuple[tuple[Statement, ...], dict[type[Statement], list[int]]]:
    """All statements below a node, and the positions of those of each class."""
    listed: list[Statement] = []
    _list_statements(node, listed)
    places: dict[type[Statement], list[int]] = {}
    for at, s in enumerate(listed):
        if type(s) not in places:
            places[type(s)] = []
        places[type(s)] += (at,)
    return tuple(listed), places


def all_statements(node: Node) -> tuple[Statement, ...]:
    """As `walk_statements`, found once for what several passes and checks ask about."""
    return _by_class(node)[0]


def with_inner(statement: Statement) -> Iterable[Statement]:
    """A statement and all those below it, in textual order."""
    if not body_fields(type(statement)):
        return (statement,)
    return chain((statement,), walk_statements(statement))


def statements_of(node: Node, *wanted: type[S]) -> tuple[S, ...]:
    """The statements of some classes below a node, in textual order."""
    return cast("tuple[S, ...]", _chosen(node, lambda cls: issubclass(cls, wanted)))


def acting_statements(node: Node) -> tuple[Statement, ...]:
    """The statements below a node that are not private, in textual order."""
    return _chosen(node, lambda cls: not cls.is_private)


def _chosen(node: Node, is_wanted: Callable[[type[Statement]], bool]) -> tuple[Statement, ...]:
    listed, places = _by_class(node)
    found = [at for cls, mine in places.items() if is_wanted(cls) for at in mine]
    return tuple([listed[at] for at in sorted(found)])


def all_variables(e: Symbolic) -> tuple[Var, ...]:
    """The variables of `e`, and those in the register positions it gathers through."""
    found: dict[Var, None] = {}
    for v in variables(e):
        found[v] = None
        if isinstance(v, RegVar):
            found.update(dict.fromkeys(all_variables(v.reg.index)))
    return tuple(found)


def own_values(node: Node) -> tuple[object, ...]:
    """The expressions, conditions and symbols in a node's fields and in the operands below it;
    nested statements are left out."""
    return _mentions(node)[0]


def own_registers(node: Node) -> tuple[Reg, ...]:
    """The registers a node names in its fields, operands and gathered positions; nested
    statements are left out."""
    return _mentions(node)[1]


def own_expressions(node: Node) -> tuple[Symbolic, ...]:
    """The expressions and conditions with variables in a node's fields and in the operands below
    it; nested statements are left out."""
    return _mentions(node)[4]


def own_buffers(node: Node) -> tuple[Buffer, ...]:
    """The buffers a node names in its fields, operands and gathered positions; nested statements
    are left out."""
    return _mentions(node)[2]


_Mentions: TypeAlias = tuple[
    tuple[object, ...], tuple[Reg, ...], tuple[Buffer, ...], tuple[RegVar, ...],
    tuple[Symbolic, ...],
]  # fmt: skip


@dataclass(slots=True)
class _Gathering:
    """What is found in a node: values, of those the buffers and the expressions with variables,
    registers, and the gathered positions of both."""

    values: list[object] = field(default_factory=list[object])
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    expressions: list[Symbolic] = field(default_factory=list[Symbolic])
    registers: list[Reg] = field(default_factory=list[Reg])
    positions: dict[RegVar, None] = field(default_factory=dict[RegVar, None])

    def node(self, node: Node) -> None:
        """Gathers from the fields of a node."""
        if type(node) is Reg:
            self.registers += (node,)
        self._fields(values_of(node, symbolic_fields(type(node))))

    def _fields(self, found: tuple[Any, ...]) -> None:
        for value in found:
            kind = _KINDS[value.__class__]
            if kind is _PLAIN:
                self.values += (value,)
            elif kind is _SYMBOLIC:
                self.values += (value,)
                if value.leaves:
                    self.expressions += (value,)
                    self._positions(value)
            elif kind is _NODE:
                self.node(value)
            elif kind is _BUFFER:
                self.values += (value,)
                self.buffers += (value,)
            elif kind is _TUPLE:
                self._fields(value)

    def _positions(self, e: Symbolic) -> None:
        """Gathers the registers through which an expression is read, and those in their places."""
        for v in dict.fromkeys(e.leaves):
            if isinstance(v, RegVar):
                self.positions[v] = None
                self.registers.append(v.reg)
                self._positions(v.reg.index)


class _Kind(Enum):
    """What is found in fields: `SYMBOLIC` may mention variables, `PLAIN` does not."""

    STATEMENT = auto()
    NODE = auto()
    TUPLE = auto()
    SYMBOLIC = auto()
    BUFFER = auto()
    PLAIN = auto()


_PLAIN, _SYMBOLIC, _NODE = _Kind.PLAIN, _Kind.SYMBOLIC, _Kind.NODE
_BUFFER, _TUPLE = _Kind.BUFFER, _Kind.TUPLE


class _Kinds(dict[type, _Kind]):
    """By class the kind of its values."""

    def __missing__(self, cls: type) -> _Kind:
        kinds = (
            (Int, _Kind.PLAIN), (Truth, _Kind.PLAIN), (Statement, _Kind.STATEMENT),
            (Node, _Kind.NODE), (tuple, _Kind.TUPLE), (Symbolic, _Kind.SYMBOLIC),
            (Buffer, _Kind.BUFFER),
        )  # fmt: skip
        self[cls] = next((kind for base, kind in kinds if issubclass(cls, base)), _Kind.PLAIN)
        return self[cls]


_KINDS = _Kinds()


@lru_cache(maxsize=KEPT)
def _mentions(node: Node) -> _Mentions:
    """The values, the registers, the buffers and the gathered positions that a node names."""
    found = _Gathering()
    found.node(node)
    buffers = (*found.buffers, *[r.buffer for r in found.registers])
    values, registers = tuple(found.values), tuple(found.registers)
    return values, registers, buffers, tuple(found.positions), tuple(found.expressions)


@lru_cache(maxsize=KEPT)
def register_uses(statement: Statement) -> tuple[RegisterUse, ...]:
    """The operands in registers that a statement itself reads or writes."""
    return tuple(statement.register_uses())


@lru_cache(maxsize=KEPT)
def registers_written(statement: Statement) -> tuple[RegisterUse, ...]:
    """The operands in registers that a statement itself may write."""
    return tuple(u for u in register_uses(statement) if u.writes)


@lru_cache(maxsize=KEPT)
def registers_read(statement: Statement) -> tuple[tuple[Reg, int], ...]:
    """The registers that a statement itself reads, with the number of consecutive ones: operands,
    and those in its expressions."""
    named = list(own_registers(statement))
    widths: dict[Reg, int] = {}
    for use in register_uses(statement):
        if use.reads:
            widths[use.reg] = use.width
        else:
            named.remove(use.reg)  # its first mention; it may be an operand too
    return tuple((r, widths.get(r, 1)) for r in named)


def positions(statement: Statement) -> tuple[RegVar, ...]:
    """The gathered positions in a statement's own expressions, in order of occurrence."""
    return _mentions(statement)[3]


def gathered(statement: Statement) -> tuple[RegVar, ...]:
    """The gathered positions of a statement, the first one of each register."""
    found: dict[tuple[Buffer, Expr], RegVar] = {}
    for v in positions(statement):
        found.setdefault((v.reg.buffer, v.reg.index), v)
    return tuple(found.values())
