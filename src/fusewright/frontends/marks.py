"""What `dynamic=` marks: axes whose sizes are symbols, and integers that are numbers of a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from fusewright.arguments import INTEGER, ArgumentRule, Unfit, several
from fusewright.errors import UserError
from fusewright.fusion import trees
from fusewright.fusion.trace import is_reserved
from fusewright.fusion.trees import Tree

Dynamic: TypeAlias = bool | Mapping[Any, Sequence[int]] | None
"""False or None: no symbolic sizes. True: all, in general kernels. A mapping: these axes of these
parameters (by name or position). Python integers of at least 0 among the arguments are numbers of
the call for True, and where a mapping names their parameter."""


def _dynamic(value: Any) -> Dynamic:
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, Mapping):
        raise Unfit
    table = cast("Mapping[Any, Any]", value)
    if not all(isinstance(k, str | int) for k in table):
        raise Unfit
    return {k: _AXES.taken(v) for k, v in table.items()}


_AXES = several(INTEGER, "axes", or_one=True)
DYNAMIC = ArgumentRule(
    "True, False, or a mapping from parameters to the axes that may change",
    _dynamic,
    lambda _: "axes are integers, such as in {'x': 0} or {'x': (0, 1)}",
)


@dataclass(frozen=True, slots=True)
class Marks:
    """Which axes are symbolic: of every array, or by parameter."""

    everything: bool
    axes: Mapping[Any, tuple[int, ...]]
    parameters: tuple[str, ...]

    def of(self, root: str | int, rank: int) -> frozenset[int]:
        """The axes of an array of the parameter `root` that a mapping marks."""
        position = self.parameters.index(root) if root in self.parameters else root
        name = self.parameters[root] if isinstance(root, int) and self._named(root) else root
        chosen = (*self.axes.get(name, ()), *self.axes.get(position, ()))
        for a in chosen:
            if not -rank <= a < rank:
                raise UserError(f"dynamic: {name!r} has rank {rank}, there is no axis {a}")
        return frozenset(a % rank for a in chosen)

    @property
    def any(self) -> bool:
        """Whether integers may be numbers of the call."""
        return self.everything or bool(self.axes)

    def has_number(self, root: str | int) -> bool:
        """Whether integers of the parameter `root` are numbers of the call."""
        return self.everything or self.has(root)

    def split(self, tree: Tree) -> tuple[Tree, list[int]]:
        """The structure of `(args, kwargs)` with the integers that are marked as numbers of the
        call, and these."""
        if self.everything:
            return trees.with_numbers(tree)
        assert isinstance(tree, trees.Branch)
        args, kwargs = tree.items
        assert isinstance(args, trees.Branch) and isinstance(kwargs, trees.Branch)
        found: list[int] = []
        split = [
            replace(part, items=tuple(self._split(r, item, found) for r, item in _rooted(part)))
            for part in (args, kwargs)
        ]
        return replace(tree, items=tuple(split)), found

    def _split(self, root: str | int, tree: Tree, found: list[int]) -> Tree:
        if not self.has(root):
            return tree
        made, more = trees.with_numbers(tree)
        found += more
        return made

    def has(self, root: str | int) -> bool:
        """Whether a mapping names the parameter."""
        position = self.parameters.index(root) if root in self.parameters else root
        name = self.parameters[root] if isinstance(root, int) and self._named(root) else root
        return name in self.axes or position in self.axes

    def _named(self, position: int) -> bool:
        return position < len(self.parameters)


def marks_of(fn: Callable[..., Any], dynamic: Dynamic) -> Marks:
    """The marks that `dynamic=` asks for. Raises UserError for parameters that `fn` lacks."""
    try:
        names = tuple(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        names = ()
    if dynamic is None or isinstance(dynamic, bool):
        return Marks(bool(dynamic), {}, names)
    for name in dynamic:
        if (name not in names) if isinstance(name, str) else not 0 <= name < len(names):
            raise UserError(
                f"dynamic: there is no parameter {name!r}; use True, or a mapping from "
                f"{', '.join(names)} to the axes whose sizes may change"
            )
    return Marks(False, {k: tuple(v) for k, v in dynamic.items()}, names)


def _rooted(part: trees.Branch) -> Iterable[tuple[str | int, Tree]]:
    """The items of the positional, or of the named, arguments with their parameters."""
    return zip(part.keys, part.items, strict=True) if part.keys else enumerate(part.items)


def number_names(tree: Tree, parameters: Sequence[str]) -> list[str]:
    """A name for each number of a call, from its parameter."""
    assert isinstance(tree, trees.Branch)
    found: list[str] = []
    for part in tree.items:
        assert isinstance(part, trees.Branch)
        for root, item in _rooted(part):
            label = str(root)
            if isinstance(root, int) and root < len(parameters):
                label = parameters[root]
            count = trees.count_numbers(item)
            found += [label] if count == 1 else [f"{label}_{k}" for k in range(count)]
    return [f"number_{n}" if is_reserved(n) else n for n in found]


def roots_of(tree: Tree) -> list[str | int]:
    """For each leaf of `(args, kwargs)` the parameter it belongs to."""
    assert isinstance(tree, trees.Branch)
    args, kwargs = tree.items
    assert isinstance(args, trees.Branch) and isinstance(kwargs, trees.Branch)
    named = [*enumerate(args.items), *zip(kwargs.keys, kwargs.items, strict=True)]
    return [root for root, item in named for _ in range(trees.count(item))]
