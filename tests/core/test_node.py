"""Generic traversal: order, splicing, and "unchanged in, same object out"."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from tests.work import calls

from fusewright.choice import Choice
from fusewright.core.node import (
    Node,
    children,
    defaults_of,
    fields_of,
    map_children,
    rewrite,
    walk,
)


@dataclass(frozen=True, slots=True, eq=False)
class Leaf(Node):
    value: int


@dataclass(frozen=True, slots=True, eq=False)
class Pair(Node):
    left: Node
    name: str
    items: tuple[Node | str, ...] = ()
    extra: tuple[str, ...] = field(default_factory=lambda: ("x",))


TREE = Pair(Leaf(1), "a", (Leaf(2), "text", Pair(Leaf(3), "b")))


class Colour(Choice):
    RED = "red"
    BLUE = "blue"


def test_choices_hash_without_a_function_in_python() -> None:
    assert Colour.__hash__ is object.__hash__
    assert {Colour.RED: 1, Colour.BLUE: 2}[Colour("blue")] == 2


def test_walks_take_a_call_or_two_a_node() -> None:
    deep: Node = Leaf(0)
    for _ in range(200):
        deep = Pair(deep, "p")
    walk_once = calls(lambda: list(walk(deep)))
    assert walk_once < 25 * 201  # nested generators would take as many calls a node as it is deep


def test_children_and_walk_follow_the_fields() -> None:
    assert [type(c).__name__ for c in children(TREE)] == ["Leaf", "Leaf", "Pair"]
    assert [n.value for n in walk(TREE) if isinstance(n, Leaf)] == [1, 2, 3]
    assert fields_of(Pair) == ("left", "name", "items", "extra")
    assert defaults_of(Pair) == {"items": (), "extra": ("x",)}


def test_unchanged_is_the_same_object() -> None:
    assert map_children(TREE, lambda c: c) is TREE
    assert rewrite(TREE, lambda c: c) is TREE


def test_rewrite_goes_bottom_up_and_shares_what_it_can() -> None:
    new = rewrite(TREE, lambda n: Leaf(n.value * 10) if isinstance(n, Leaf) and n.value > 1 else n)
    assert [n.value for n in walk(new) if isinstance(n, Leaf)] == [1, 20, 30]
    assert new.left is TREE.left


def test_tuples_splice_and_delete() -> None:
    doubled = rewrite(TREE, lambda n: (n, n) if isinstance(n, Leaf) and n.value == 2 else n)
    assert [n.value for n in walk(doubled) if isinstance(n, Leaf)] == [1, 2, 2, 3]
    without = rewrite(TREE, lambda n: () if isinstance(n, Pair) else n)
    assert [n.value for n in walk(without) if isinstance(n, Leaf)] == [1, 2]
    assert "text" in without.items


def test_a_single_field_takes_exactly_one_node() -> None:
    with pytest.raises(TypeError, match=r"Pair\.left takes exactly one node"):
        rewrite(TREE, lambda n: () if isinstance(n, Leaf) else n)
