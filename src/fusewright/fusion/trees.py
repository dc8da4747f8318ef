"""Nested structures of arguments and results: tuples, lists, dicts, dataclasses and registered
classes, None, Python scalars, and what is named rather than computed: dtypes, classes, members of
enums, ranges.

`flatten` takes a structure apart into its leaves and a `Tree`, which compares by value and puts
leaves together again. Whatever is not a container or static is a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeAlias, cast

import numpy as np

from fusewright.dtypes import DType, scalar_text
from fusewright.errors import UserError
from fusewright.fusion import objects


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array."""


@dataclass(frozen=True, slots=True)
class Static:
    """None, a Python scalar or string, a dtype, a class, a member of an enum or a range: part of
    the structure; `kind` tells 1 from True."""

    value: Any
    kind: type


@dataclass(frozen=True, slots=True)
class Branch:
    """A tuple, list, dict, named tuple, or an object that is taken apart; `keys` are a dict's keys
    in its order, or what tells objects of the kind apart."""

    kind: type
    keys: tuple[Any, ...]
    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Number:
    """An integer that each call gives: no part of the structure, and no array."""


Tree: TypeAlias = Leaf | Static | Branch | Number
LEAF = Leaf()
_CONTAINERS = (tuple, list, dict)
MAX_DEPTH = 100
"""Levels of a structure: every function on trees takes a few frames of Python's stack for each."""
_SCALARS = (bool, int, float, str)
_NAMED = (Enum, type, DType, np.dtype, range)


@lru_cache(maxsize=256)
def _is_static(kind: type) -> bool:
    """Whether values of a type are part of the structure: they compare by what they are, and no
    program computes with them. Dtypes of torch are known by their names."""
    is_torch = (kind.__module__, kind.__name__) == ("torch", "dtype")
    return is_torch or issubclass(kind, (*_SCALARS, *_NAMED))


def flatten(structure: object) -> tuple[list[Any], Tree]:
    """The leaves from left to right, and the structure without them. Raises UserError for one that
    contains itself or has more than `MAX_DEPTH` levels."""
    leaves: list[Any] = []
    return leaves, _flatten(structure, leaves, [])


def _flatten(x: object, leaves: list[Any], around: list[int]) -> Tree:
    """`around` are the containers that hold x, outermost first."""
    if x is None or _is_static(type(x)):
        return Static(x, type(x))
    kind, keys, items = _opened(x)
    if kind is None:
        leaves.append(x)
        return LEAF
    _enter(x, around)
    made = Branch(kind, keys, tuple([_flatten(item, leaves, around) for item in items]))
    around.pop()
    return made


def _opened(x: object) -> tuple[type | None, tuple[Any, ...], Iterable[object]]:
    """A container's kind, keys and items; no kind for a leaf."""
    if isinstance(x, (tuple, list)):
        parts = cast("tuple[object, ...] | list[object]", x)
        return type(parts), (), parts
    if isinstance(x, Mapping):
        table = cast("Mapping[object, object]", x)
        return dict, tuple(table), table.values()
    if objects.is_structure(x):
        return objects.opened(x, _leaves_of_attribute)
    return None, (), ()


def _leaves_of_attribute(x: object) -> list[Any] | None:
    """The leaves of a structure; None for one that has no end."""
    try:
        return flatten(x)[0]
    except UserError:
        return None


def _enter(x: object, around: list[int]) -> None:
    """Adds a container to those around. Raises UserError for one that must not be there."""
    if id(x) in around:
        raise UserError(f"a {type(x).__name__} contains itself: its structure has no end")
    if len(around) == MAX_DEPTH:
        raise UserError(
            f"a structure of more than {MAX_DEPTH} levels of tuples, lists and dicts; nest arrays "
            "less deeply, or pass a flat list of them"
        )
    around.append(id(x))


def map_static(fn: Callable[[Any], Any], structure: Any) -> Any:
    """The structure with `fn` of each None, Python scalar and string in the place of it."""
    found, tree = flatten(structure)
    return unflatten(_with_static(fn, tree), found)


def _with_static(fn: Callable[[Any], Any], tree: Tree) -> Tree:
    match tree:
        case Leaf():
            return tree
        case Number():
            return tree
        case Static():
            return Static(fn(tree.value), tree.kind)
        case Branch():
            return Branch(tree.kind, tree.keys, tuple(_with_static(fn, t) for t in tree.items))


def leaves(structure: object) -> list[Any]:
    """What `flatten` gives first, for structures of plain tuples, lists and dicts."""
    found: list[Any] = []
    _collect(structure, found)
    return found


def _collect(x: Any, found: list[Any]) -> None:
    kind = cast("type[object]", type(x))
    if kind is tuple or kind is list:
        for item in x:
            _collect(item, found)
    elif kind is dict:
        for item in x.values():
            _collect(item, found)
    elif x is not None and not _is_static(kind):
        found.append(x)


def unflatten(tree: Tree, leaves: list[Any], numbers: Iterable[Any] = ()) -> Any:
    """The structure with leaves in place, exactly `count(tree)` of them, and likewise numbers."""
    return _unflatten(tree, iter(leaves), iter(numbers))


def _unflatten(tree: Tree, leaves: Iterator[Any], numbers: Iterator[Any]) -> Any:
    match tree:
        case Leaf():
            return next(leaves)
        case Number():
            return next(numbers)
        case Static():
            return tree.value
        case Branch():
            items = [_unflatten(item, leaves, numbers) for item in tree.items]
            if tree.kind is dict:
                return dict(zip(tree.keys, items, strict=True))
            if not _is_plain(tree):
                return objects.closed(tree.kind, tree.keys, items)
            if hasattr(tree.kind, "_fields"):  # a named tuple takes its items one by one
                return cast("Callable[..., Any]", tree.kind)(*items)
            return cast("Callable[..., Any]", tree.kind)(items)


def _is_plain(tree: Branch) -> bool:
    """Whether a structure is a tuple, list or dict, or a named tuple."""
    return issubclass(tree.kind, _CONTAINERS)


def count(tree: Tree) -> int:
    """The number of leaves."""
    match tree:
        case Leaf():
            return 1
        case Static() | Number():
            return 0
        case Branch():
            return sum(count(item) for item in tree.items)


def paths(tree: Tree, root: str) -> list[str]:
    """A name for every leaf: `root`, then the keys and positions that lead to it."""
    match tree:
        case Leaf():
            return [root]
        case Static() | Number():
            return []
        case Branch():
            keys = tree.keys if _is_plain(tree) else objects.steps(tree.kind, tree.keys)
            steps = keys or tuple(range(len(tree.items)))
            named = zip(steps, tree.items, strict=True)
            return [path for step, item in named for path in paths(item, f"{root}_{step}")]


def key(tree: Tree) -> Hashable:
    """What is equal for equal trees only, and quickly found: 1 is not True, nor 0.0 -0.0, as a
    value and as a key of a dict."""
    if isinstance(tree, Leaf):
        return "leaf"
    if isinstance(tree, Number):
        return "number"
    if isinstance(tree, Static):
        is_text = tree.value is None or issubclass(tree.kind, _SCALARS)
        return tree.kind, scalar_text(tree.value) if is_text else tree.value
    named = tree.keys and (tree.keys, repr(tree.keys))
    return tree.kind, named, *[key(item) for item in tree.items]


def leaves_like(tree: Tree, structure: object) -> list[Any] | None:
    """The leaves of `structure` at the leaves of `tree`, None where one is missing; None when the
    structures differ elsewhere."""
    out: list[Any] = []
    return out if _leaves_like(tree, structure, out) else None


def _leaves_like(tree: Tree, x: object, out: list[Any]) -> bool:
    match tree:
        case Number():
            return type(x) is int
        case Leaf():
            out.append(x)
            return not isinstance(x, _CONTAINERS)
        case Static():
            return True
        case Branch():
            if isinstance(x, dict):
                table = cast("dict[object, object]", x)
                items = list(table.values()) if tuple(table) == tree.keys else []
            elif not isinstance(x, _CONTAINERS) and objects.is_structure(x):
                kind, keys, parts = objects.opened(x, _leaves_of_attribute)
                items = list(parts) if (kind, keys) == (tree.kind, tree.keys) else []
            else:
                items = list(cast("tuple[object, ...]", x)) if isinstance(x, _CONTAINERS) else []
            return len(items) == len(tree.items) and all(
                _leaves_like(t, item, out) for t, item in zip(tree.items, items, strict=True)
            )


def with_numbers(tree: Tree) -> tuple[Tree, list[int]]:
    """The tree with its integers of at least 0 as numbers of a call, and these from left to
    right."""
    found: list[int] = []
    return _with_numbers(tree, found), found


def count_numbers(tree: Tree) -> int:
    """How many numbers of a call the tree has."""
    if isinstance(tree, Branch):
        return sum(map(count_numbers, tree.items))
    return int(isinstance(tree, Number))


def _with_numbers(tree: Tree, found: list[int]) -> Tree:
    match tree:
        case Static(value=int(value), kind=kind) if kind is int and value >= 0:
            found.append(value)
            return Number()
        case Branch():
            items = tuple([_with_numbers(item, found) for item in tree.items])
            return Branch(tree.kind, tree.keys, items)
        case _:
            return tree


# --- for compilers of Python --------------------------------------------------------------------


def encoded(tree: Tree, kinds: list[type]) -> tuple[Any, ...]:
    """The tree as nested plain tuples, its leaves numbered from left to right. Classes of named
    tuples are numbered by their place in `kinds`, which grows by those that it lacks."""
    return _encoded(tree, iter(range(count(tree))), kinds)


def _encoded(tree: Tree, numbers: Iterator[int], kinds: list[type]) -> tuple[Any, ...]:
    match tree:
        case Leaf() | Number():
            return ("leaf", next(numbers))
        case Static():
            return ("static", tree.value)
        case Branch():
            items = tuple(_encoded(item, numbers, kinds) for item in tree.items)
            if tree.kind is dict:
                return ("dict", tree.keys, items)
            is_plain = _is_plain(tree)
            if not is_plain and not objects.has_constructor(tree.kind):
                raise UserError(
                    f"a {tree.kind.__name__} as a result of a call that torch records: torch "
                    "cannot follow how it is put together; return a tuple, a list, a dict, or a "
                    "dataclass whose fields its constructor takes"
                )
            if not is_plain or hasattr(tree.kind, "_fields"):
                if tree.kind not in kinds:
                    kinds.append(tree.kind)
                word = "named" if is_plain else "record"
                return (word, kinds.index(tree.kind), items, tree.keys)
            return ("list" if tree.kind is list else "tuple", None, items)


def decoded(code: tuple[Any, ...], leaves: Any, kinds: list[Any]) -> Any:
    """The structure that `encoded` describes, with leaves in place. Made of calls and branches that
    torch.compile can follow."""
    kind = code[0]
    if kind == "leaf":
        return leaves[code[1]]
    if kind == "static":
        return code[1]
    items = [decoded(item, leaves, kinds) for item in code[2]]
    if kind == "dict":
        return dict(zip(code[1], items, strict=True))
    if kind == "named":
        return kinds[code[1]](*items)
    if kind == "record":
        return kinds[code[1]](**dict(zip(code[3], items, strict=True)))
    return items if kind == "list" else tuple(items)
