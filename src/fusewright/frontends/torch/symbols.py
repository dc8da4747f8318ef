"""Integers of a graph with symbolic sizes, as expressions in the sizes of a region's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusewright.core.expr import Expr, Int, IntLike, add, as_expr, floordiv, mod, mul
from fusewright.frontends.torch.library import torch
from fusewright.fusion.array import Array

Place = tuple[int, int]


class Sizes:
    """How the integer inputs of a region follow from its tensors' sizes."""

    def __init__(self, tensors: Sequence[Any], integers: Sequence[Any]) -> None:
        """Nodes of a graph with example values. Integers that do not follow from sizes are numbers
        of each call: `numbers` lists those that calls must give, and what is to be taken off each.
        Raises ValueError where an integer follows from neither."""
        self._places: dict[str, Place] = {}
        for k, n in enumerate(tensors):
            for axis, size in enumerate(n.meta["val"].shape):
                expr = _symbolic(size)
                if expr is not None and expr.is_Symbol:
                    self._places.setdefault(expr.name, (k, axis))
        self._integers = {n: _formula(n) for n in integers}
        free = {s.name for e in self._integers.values() for s in e.free_symbols}
        self._given = {s: self._number_of(s) for s in sorted(free - set(self._places))}
        self.numbers = list(self._given.values())

    def _number_of(self, name: str) -> tuple[Any, int]:
        """An integer that is a symbol plus a constant, and the constant."""
        for n, e in self._integers.items():
            rest = [s for s in e.free_symbols if s.name != name]
            (symbol,) = [s for s in e.free_symbols if s.name == name] or [None]
            if symbol is not None and not rest and (e - symbol).is_Integer:
                return n, int(e - symbol)
        raise ValueError(f"the size {name} is no axis of a tensor, and no argument")

    def values(self, arrays: Sequence[Array], given: Sequence[IntLike]) -> dict[Any, int | Expr]:
        """The integers for traced tensors and numbers of the call: integers, where those are."""
        known = {s: as_expr(arrays[k].shape[axis]) for s, (k, axis) in self._places.items()}
        known |= {s: as_expr(n) for s, n in zip(self._given, given, strict=True)}
        found = {n: _translated(e, known) for n, e in self._integers.items()}
        return {n: e.value if isinstance(e, Int) else e for n, e in found.items()}


def symbolic_axes(tensor: Any) -> tuple[int, ...]:
    """The axes whose size is symbolic."""
    return tuple(a for a, n in enumerate(tensor.shape) if _symbolic(n) is not None)


def _symbolic(size: Any) -> Any:
    """The formula of a symbolic size; None for a number."""
    if not isinstance(size, torch.SymInt):
        return None
    expr = size.node.expr
    return None if expr.is_number else expr


def _formula(node: Any) -> Any:
    value = node.meta["val"]
    if not isinstance(value, torch.SymInt):
        raise ValueError(f"{node.name} is not an integer")
    return value.node.expr


def _translated(expr: Any, known: Mapping[str, Expr]) -> Expr:
    """A sympy formula over our sizes. Raises ValueError for functions that we do not have."""
    if expr.is_Symbol:
        return known[expr.name]
    if expr.is_Integer:
        return as_expr(int(expr))
    rule = _RULES.get(type(expr).__name__)
    if rule is None:
        raise ValueError(f"the formula {expr} of a size")
    return rule([_translated(a, known) for a in expr.args])


def _product(parts: list[Expr]) -> Expr:
    out = as_expr(1)
    for p in parts:
        out = mul(out, p)
    return out


_RULES: dict[str, Callable[[list[Expr]], Expr]] = {
    "Add": lambda parts: add(*parts),
    "Mul": _product,
    "FloorDiv": lambda parts: floordiv(*parts),
    "CleanDiv": lambda parts: floordiv(*parts),
    "PythonMod": lambda parts: mod(*parts),
    "Mod": lambda parts: mod(*parts),
}
