"""Sums of rows at the places of a permutation, as gathers.

Experts get their tokens sorted: `order = choice.argsort()`, `x[order]`, and behind the experts the
inverse of the order. The gradient of such a gather adds rows at the places that the index names.
torch sorts the places for that, in ten launches, as any place may be named twice. Those of a
permutation are named once, and its inverse says which row comes to each: a gather, which becomes
part of the kernels around it.

With p the inverse of the permutation q of n places, and a number c of rows for each place:

rewrite:  index_put(x, [q], v, accumulate)       ->  x + v[p]
          index_put(x, [q // c], v, accumulate)  ->  x + sum(view(v[p], (n / c, c, ..)), 1)
          index_put(x, [q], v)                   ->  v[p], where the graph has p
          sort(q)                                ->  arange(n), p
checks:   q comes out of a sort or of `randperm`, or is the inverse of what does
order:    before the joint graph is cut in forward and backward, which may keep p then, and in
          graphs without a backward; an inverse that the graph does not compute is made by one write
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from fusewright.frontends.torch.library import aten, fx, torch

_SORTS = (aten.sort.default, aten.sort.stable)
_SAME = (aten.detach.default, aten.alias.default, aten.clone.default)
_SHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_ADD_ROWS = aten.index_add.default
_PUT = aten.index_put.default


def tell_permutations(graph: Any) -> None:
    """Replaces sums at, and sorts of, permutations in an aten graph with example values."""
    if not any(n.target in _SORTS or n.target is aten.randperm.default for n in graph.nodes):
        return
    known = _Permutations(graph)
    for n in list(graph.nodes):
        if n.op != "call_function":
            continue
        known.note(n)
        with graph.inserting_before(n):
            made = known.replaced(n)
        if made is not None:
            sorts = [x for x in n.all_input_nodes if x.target in _SORTS]
            n.replace_all_uses_with(made)
            graph.erase_node(n)
            for x in sorts:
                if not x.users:
                    graph.erase_node(x)


@dataclass(slots=True)
class _Permutations:
    """The permutations that a graph computes, and the node of the inverse of each that has one."""

    graph: Any
    inverse: dict[Any, Any | None] = field(default_factory=dict[Any, Any])

    def note(self, n: Any) -> None:
        """Enters a node that computes a permutation, or the inverse of one."""
        if n.target is aten.randperm.default or _is_order(n):
            self.inverse.setdefault(n, None)
        elif n.target is _PUT and (q := self._inverted(n)) is not None and self.inverse[q] is None:
            self.inverse[q], self.inverse[n] = n, q

    def _inverted(self, n: Any) -> Any | None:
        """The permutation at whose places a node writes their numbers."""
        x, indices, values, *rest = n.args
        q = self._permutation(indices[0]) if len(indices) == 1 else None
        if q is None or any(rest) or not _is_range(values):
            return None
        shapes = (m.meta["val"].shape for m in (x, q, values))
        first, *others = (s[0] if len(s) == 1 else None for s in shapes)
        return q if first is not None and all(_same(first, s) for s in others) else None

    def _permutation(self, n: Any) -> Any | None:
        """The permutation that a node's value is."""
        while isinstance(n, fx.Node) and n not in self.inverse:
            if not _keeps_elements(n):
                return None
            n = n.args[0]
        return n if isinstance(n, fx.Node) else None

    def replaced(self, n: Any) -> Any | None:
        """What stands for a node; None for itself."""
        if n.target is operator.getitem and n.args[0].target in _SORTS:
            return self._sorted(n)
        if n.target is _PUT and n not in self.inverse:
            x, indices, v, *rest = n.args
            if len(indices) == 1:
                return self._written(n, x, indices[0], v, adds=bool(rest and rest[0]))
        if n.target is _ADD_ROWS and n.args[1] == 0 and not n.kwargs:
            x, _, index, v = n.args
            return self._written(n, x, index, v, adds=True)
        return None

    def _sorted(self, n: Any) -> Any | None:
        """The numbers in order, or the inverse, for a result of the sort of a permutation."""
        source, which = n.args
        q = self._permutation(source.args[0])
        if q is None or _descends(source):
            return None
        if which == 1:
            return self._inverse_of(q, n)
        return self._range(q, n)

    def _written(self, n: Any, x: Any, index: Any, v: Any, *, adds: bool) -> Any | None:
        """Rows put, or added, at the places of an index."""
        whole, count = self._divided(index)
        if whole is None or not (adds or (count == 1 and self.inverse[whole] is not None)):
            return None
        value, rows = x.meta["val"], whole.meta["val"].shape[0]
        if not value.ndim or not _same(value.shape[0] * count, rows):
            return None
        row = [self._size(x, k, n) for k in range(1, value.ndim)]
        shape = v.meta["val"].shape
        if len(shape) != value.ndim or not all(map(_same, shape, (rows, *value.shape[1:]))):
            v = call_near(self.graph, n, aten.expand.default, v, [self._size(whole, 0, n), *row])
        taken = call_near(self.graph, n, aten.index.Tensor, v, [self._inverse_of(whole, n)])
        if count != 1:
            sizes = [self._size(x, 0, n), count, *row]
            wide = call_near(self.graph, n, aten.view.default, taken, sizes)
            options = {"dtype": value.dtype}
            taken = call_near(self.graph, n, aten.sum.dim_IntList, wide, [1], **options)
        if not adds or is_zero(x):
            return taken
        return call_near(self.graph, n, aten.add.Tensor, x, taken)

    def _divided(self, index: Any) -> tuple[Any | None, int]:
        """The permutation and the number by which an index is its quotient, 1 for itself."""
        while isinstance(index, fx.Node) and index not in self.inverse and _keeps_elements(index):
            index = index.args[0]
        count = _divisor(index) if isinstance(index, fx.Node) else None
        return self._permutation(index if count is None else index.args[0]), count or 1

    def _size(self, x: Any, axis: int, n: Any) -> Any:
        """A size as a number, or as the node that asks for it."""
        size = x.meta["val"].shape[axis]
        return size if type(size) is int else call_near(self.graph, n, aten.sym_size.int, x, axis)

    def _inverse_of(self, q: Any, n: Any) -> Any:
        """The inverse of a permutation, which is written here where the graph has none."""
        if self.inverse[q] is None:
            value = q.meta["val"]
            options = {"dtype": value.dtype, "device": value.device}
            memory = call_near(
                self.graph, n, aten.empty.memory_format, [self._size(q, 0, n)], **options
            )
            numbers = self._range(q, n)
            made = call_near(self.graph, n, _PUT, memory, [q], numbers)
            self.inverse[q], self.inverse[made] = made, q
        return self.inverse[q]

    def _range(self, q: Any, n: Any) -> Any:
        value = q.meta["val"]
        options = {"dtype": value.dtype, "device": value.device}
        return call_near(self.graph, n, aten.arange.default, self._size(q, 0, n), **options)


# --- facts of nodes -----------------------------------------------------------------------------


def _is_order(n: Any) -> bool:
    """Whether a node is the order of a vector's elements, as a sort finds it."""
    is_second = n.target is operator.getitem and n.args[1] == 1
    return is_second and n.args[0].target in _SORTS and n.meta["val"].ndim == 1


def _keeps_elements(n: Any) -> bool:
    """Whether a node has its operand's integers, in a vector as they are."""
    if n.op != "call_function" or not n.args or "val" not in n.meta:
        return False
    if n.target is aten._to_copy.default:
        dtype = n.meta["val"].dtype
        return dtype in (torch.int32, torch.int64) and n.meta["val"].ndim == 1
    return n.target in _SAME or (n.target in _SHAPES and n.meta["val"].ndim == 1)


def _descends(sort: Any) -> bool:
    """Whether a sort puts the greatest element first."""
    place = 2 if sort.target is aten.sort.default else 3
    given = sort.args[place] if len(sort.args) > place else False
    return bool(sort.kwargs.get("descending", given))


def _divisor(n: Any) -> int | None:
    """By what a node divides its operand, rounding down: what is divided is not negative."""
    rounds = n.kwargs.get("rounding_mode") in ("floor", "trunc")
    if not rounds and n.target is not aten.floor_divide.default:
        return None
    by = n.args[1]
    return by if type(by) is int and by > 0 else None


def _is_range(n: Any) -> bool:
    """Whether a node is the numbers from 0 on."""
    if not isinstance(n, fx.Node):
        return False
    limits: Mapping[Any, Callable[[Any], bool]] = {
        aten.arange.default: lambda _: True,
        aten.arange.start: lambda args: args[0] == 0,
        aten.arange.start_step: lambda args: args[0] == 0 and (len(args) < 3 or args[2] == 1),
    }
    known = limits.get(n.target)
    return known is not None and known(n.args) and not n.meta["val"].is_floating_point()


def is_zero(n: Any) -> bool:
    """Whether every element of a node's value is 0, made from that number."""
    if n.target in (aten.full.default, aten.full_like.default, aten.new_full.default):
        return n.args[2 if n.target is aten.new_full.default else 1] == 0
    return n.target in (aten.zeros.default, aten.zeros_like.default)


def _same(a: Any, b: Any) -> bool:
    """Whether two sizes are one number, or one formula; asks nothing of a symbol."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return str(a) == str(b)


def call_near(graph: Any, near: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """A call with its example value, in the place of another one in the model."""
    made = graph.call_function(target, args, kwargs)

    def value(n: Any) -> Any:
        return n.meta["val"]

    args, kwargs = fx.node.map_arg((args, kwargs), value)
    made.meta = {k: v for k, v in near.meta.items() if k not in ("val", "tensor_meta")}
    with getattr(near.meta["val"], "fake_mode", None) or nullcontext():
        made.meta["val"] = target(*args, **kwargs)
    return made
