"""Traversal of frozen dataclass trees, written once and derived from the fields.

A node is a frozen, slotted dataclass; its children are the nodes found in its fields, directly or
in tuples. Unchanged in, same object out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeVar, cast


class Node:
    """Base of every IR node that takes part in generic traversal."""

    __slots__ = ()


N = TypeVar("N", bound=Node)


@cache
def fields_of(cls: type) -> tuple[str, ...]:
    """The names of a node class's fields, in order."""
    return tuple(f.name for f in dataclasses.fields(cls))


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


def children(node: Node) -> Iterator[Node]:
    """The nodes directly below, in field order."""
    for name in fields_of(type(node)):
        value: object = getattr(node, name)
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            for item in cast("tuple[object, ...]", value):
                if isinstance(item, Node):
                    yield item


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, parents first, in field order."""
    yield node
    for c in children(node):
        yield from walk(c)


def map_children(node: N, f: Callable[[Node], Node | tuple[Node, ...]]) -> N:
    """The node with each child replaced by `f(child)`; a tuple result is spliced into a tuple
    field (an empty tuple deletes the child). The same object when nothing changed."""
    changed: dict[str, object] = {}
    for name in fields_of(type(node)):
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
    return dataclasses.replace(node, **changed) if changed else node  # type: ignore[type-var]


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
