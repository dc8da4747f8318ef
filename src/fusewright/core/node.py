"""Traversal of frozen dataclass trees, written once and derived from the fields.

A node is a frozen, slotted dataclass; its children are the nodes found in its fields, directly or
in tuples. Unchanged in, same object out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import TypeVar, cast, get_args, get_type_hints


class Node:
    """Base of every IR node that takes part in generic traversal."""

    __slots__ = ()


N = TypeVar("N", bound=Node)


@cache
def fields_of(cls: type) -> tuple[str, ...]:
    """The names of a node class's fields, in order."""
    return tuple(f.name for f in dataclasses.fields(cls))


@cache
def _positions(cls: type) -> dict[str, int]:
    """By the name of a field its position."""
    return {name: k for k, name in enumerate(fields_of(cls))}


def values_of(node: object, names: tuple[str, ...]) -> tuple[object, ...]:
    """The values of some fields, in order."""
    return _getter(names)(node)


@cache
def _getter(names: tuple[str, ...]) -> Callable[[object], tuple[object, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda x: (getattr(x, names[0]),)) if names else (lambda _: ())


_PLAIN = (int, float, str, Enum, type(None))


@cache
def symbolic_fields(cls: type) -> tuple[str, ...]:
    """The names of the fields that may hold more than numbers, names and choices."""
    return _fields_where(cls, lambda t: not issubclass(t, _PLAIN))


@cache
def node_fields(cls: type) -> tuple[str, ...]:
    """The names of the fields that may hold nodes, directly or in tuples."""
    return fields_holding(cls, Node)


@cache
def fields_holding(cls: type, kind: type) -> tuple[str, ...]:
    """The names of the fields that may hold what is of a class, directly or in tuples."""
    return _fields_where(cls, lambda t: issubclass(t, kind) or issubclass(kind, t))


def _fields_where(cls: type, may_hold: Callable[[type], bool]) -> tuple[str, ...]:
    hints = get_type_hints(cls)
    return tuple(name for name in fields_of(cls) if _holds(hints[name], may_hold))


def _holds(hint: object, may_hold: Callable[[type], bool]) -> bool:
    """Whether a value of some type may be, or be a tuple of, what is looked for."""
    if hint is Ellipsis:
        return False
    parts = get_args(hint)
    if parts:
        return any(_holds(part, may_hold) for part in parts)
    return not isinstance(hint, type) or hint is tuple or may_hold(hint)


@cache
def defaults_of(cls: type) -> dict[str, object]:
    """The default values of those fields of a node class that have one."""
    out: dict[str, object] = {}
    for f in dataclasses.fields(cls):
        if f.default is not dataclasses.MISSING:
            out[f.name] = f.default
        elif f.default_factory is not dataclasses.MISSING:
            out[f.name] = f.default_factory()
    return out


def children(node: Node) -> Sequence[Node]:
    """The nodes directly below, in field order."""
    names = node_fields(type(node))
    if not names:
        return ()
    found: list[Node] = []
    for name in names:
        value: object = getattr(node, name)
        if isinstance(value, Node):
            found.append(value)
        elif isinstance(value, tuple):
            items = cast("tuple[object, ...]", value)
            found += [item for item in items if isinstance(item, Node)]
    return found


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, parents first, in field order."""
    ahead = [node]
    while ahead:
        node = ahead.pop()
        yield node
        ahead.extend(reversed(children(node)))


def map_children(node: N, f: Callable[[Node], Node | tuple[Node, ...]]) -> N:
    """The node with each child replaced by `f(child)`; a tuple result is spliced into a tuple
    field (an empty tuple deletes the child). The same object when nothing changed."""
    changed: dict[str, object] = {}
    for name in node_fields(type(node)):
        value: object = getattr(node, name)
        if isinstance(value, Node):
            new = f(value)
            if new is not value:
                if isinstance(new, tuple):
                    raise TypeError(f"{type(node).__name__}.{name} takes exactly one node")
                changed[name] = new
        elif isinstance(value, tuple):
            items = cast("tuple[object, ...]", value)
            spliced = _map_tuple(items, f)
            if spliced is not items:
                changed[name] = spliced
    return with_fields(node, changed) if changed else node


def with_fields(node: N, changed: Mapping[str, object]) -> N:
    """The node with other values in some fields. As `dataclasses.replace`, which looks at every
    field's definition each time, for classes whose fields are all arguments."""
    cls = type(node)
    values, at = list(values_of(node, fields_of(cls))), _positions(cls)
    for name, value in changed.items():
        values[at[name]] = value
    return with_values(node, values)


def with_values(node: N, values: Sequence[object]) -> N:
    """A node of the same class, whose fields have these values, in order."""
    return type(node)(*values)


def _map_tuple(
    items: tuple[object, ...], f: Callable[[Node], Node | tuple[Node, ...]]
) -> tuple[object, ...]:
    out: list[object] = []
    same = True
    for item in items:
        if not isinstance(item, Node):
            out.append(item)
            continue
        new = f(item)
        same = same and new is item
        if isinstance(new, tuple):
            out.extend(new)
        else:
            out.append(new)
    return items if same else tuple(out)


def rewrite(node: N, f: Callable[[Node], Node | tuple[Node, ...]]) -> N:
    """Bottom-up rewriting: children first, then `f` on the rebuilt node (not on the root)."""

    def visit(n: Node) -> Node | tuple[Node, ...]:
        return f(map_children(n, visit))

    return map_children(node, visit)
