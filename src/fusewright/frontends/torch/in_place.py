"""Writes to a graph's arguments: parts of them where they stand, and whole ones in one call.

torch functionalises `cache[i] = x` to a new tensor and a copy of it into the argument at the end of
the graph. Where nobody reads the argument's old content after the new tensor is made, its operator
can write to the argument itself, and nothing is copied; so do regions, as those of optimisers. What
is left of such copies, two for each batch norm of a model that trains, is one call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from fusewright.frontends.ahead import make_ahead
from fusewright.frontends.torch.calls import (
    hint,
    is_getitem,
    is_view,
    readers,
    reduces,
    tensors_of,
    whole,
    writes,
)
from fusewright.frontends.torch.layouts import axis_order, dense_strides
from fusewright.frontends.torch.library import aten, fx
from fusewright.frontends.torch.plain_writes import SCATTERS, write_parts
from fusewright.frontends.torch.region import GraphPart
from fusewright.frontends.torch.table import ELEMENTWISE

_COPY = aten.copy_.default
_WRITERS = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
}
"""Operators whose result is their first argument with some elements replaced, and their forms that
write to it."""


def write_in_place(graph: Any) -> None:
    """Has operators that replace elements of an argument write to it.

    rewrite:  n = index_copy(x, ...); copy_(x, n)  ->  index_copy_(x, ...)    (uses of n read x)
              n = select_scatter(x, y, ..); copy_(x, n)  ->  copy_(select(x, ..), y)
    checks:   x is an argument of the graph that nothing reads or writes behind n but the copy; n
              reads no view of it, and is no result of the graph
    order:    before join_copies, which takes the copies that are left
    """
    place = {n: k for k, n in enumerate(graph.nodes)}
    for copy in _copies(graph):
        target, made = copy.args[:2]
        later = [u for u in readers(target) if u is not copy]
        is_result = any(u.op == "output" for u in readers(made))
        if made.target in SCATTERS:
            if not is_result and not any(place[u] > place[made] for u in later):
                write_parts(graph, copy)
            continue
        if made.target not in _WRITERS or made.args[0] is not target or made.kwargs:
            continue
        if any(whole(p) is target for p in made.all_input_nodes if p is not target):
            continue
        if is_result or any(place[u] > place[made] for u in later):
            continue
        with graph.inserting_before(made):
            written = graph.call_function(_WRITERS[made.target], made.args)
        written.meta = dict(made.meta)
        graph.erase_node(copy)
        made.replace_all_uses_with(target)
        graph.erase_node(made)


def write_results(graph: Any) -> None:
    """Has regions write results to the arguments of the graph that these are copied into.

    rewrite:  r = region(x, ...); copy_(x, r[0])  ->  region(x, ...), which writes result 0 to x
              (uses of r[0] read x)
    checks:   the region reads x, and no view of it; nothing else reads or writes x behind it; x has
              the type and strides of the result, which is no result of the graph; it is not read by
              many threads, of which one would write; the region's kernels can write there
    order:    before join_copies, which takes the copies that are left
    """
    place = {n: k for k, n in enumerate(graph.nodes)}
    wanted: dict[Any, dict[int, Any]] = {}
    for copy in _copies(graph):
        target, made = copy.args[:2]
        if made.target is not operator.getitem:
            continue
        if any(u.op == "output" for u in readers(made)):
            continue
        call, result = made.args
        if not hasattr(call.target, "write_to") or not _lie_alike(target, made):
            continue
        read_later = any(place[u] > place[call] for u in readers(target) if u is not copy)
        shown = any(
            whole(a) is target for a in call.args if isinstance(a, fx.Node) and a is not target
        )
        if call.args.count(target) != 1 or read_later or shown:
            continue
        if not _is_read_by_many(target, call.target.part, result, call.args.index(target)):
            wanted.setdefault(call, {})[result] = copy
    asked = {
        call: {k: call.args.index(c.args[0]) for k, c in copies.items()}
        for call, copies in wanted.items()
    }
    programs = [call.target.wanted(at) for call, at in asked.items()]
    make_ahead([w for w in programs if w is not None], "compiling regions that write to arguments")
    for call, at in asked.items():
        for k in call.target.write_to(at):
            target, made = wanted[call][k].args[:2]
            graph.erase_node(wanted[call][k])
            made.replace_all_uses_with(target)
            graph.erase_node(made)


def _is_read_by_many(target: Any, part: GraphPart, result: int, at: int) -> bool:
    """Whether many threads would read an element of an argument that one of them would write: it is
    repeated over the elements of a larger value, as the count of an optimiser's steps is, or joined
    with the sum of a row, which all threads of the row have, as running statistics are. To ask the
    kernels takes a program that is not used then."""
    inside = dict.fromkeys(part.nodes)
    size = _count(target)

    def operands(n: Any) -> list[Any]:
        return [p for p in n.all_input_nodes if p in inside]

    behind = _reached(part.outputs[result], operands)
    sums = (n for n in behind if any(_count(p) > size for p in n.all_input_nodes))
    if any(not is_view(n) and not is_getitem(n) and reduces(n) for n in sums):
        return True
    ahead = _reached(part.inputs[at], lambda n: [u for u in n.users if u in inside])
    return any(n.target in ELEMENTWISE and _count(n) > size for n in ahead)


def _reached(start: Any, following: Callable[[Any], list[Any]]) -> list[Any]:
    """A node, and those that follow it."""
    found = {start: None}
    waiting = [start]
    while waiting:
        new = [n for n in following(waiting.pop()) if n not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    return list(found)


def _count(node: Any) -> int:
    """The elements of a node's tensor, of several of the largest one."""
    return max((prod(map(hint, t.shape)) for t in tensors_of(_value(node))), default=0)


def _lie_alike(a: Any, b: Any) -> bool:
    """Whether two tensors have the same type, sizes and strides, all elements one place each."""
    x, y = _value(a), _value(b)
    same = x.dtype == y.dtype and x.device == y.device and x.stride() == y.stride()
    return same and tuple(x.stride()) == dense_strides(tuple(x.shape), axis_order(x))


def join_copies(graph: Any) -> None:
    """Makes copies into arguments one call for each pair of dtypes on a device.

    rewrite:  copy_(x, a); copy_(y, b)  ->  _foreach_copy_([x, y], [a, b])
    checks:   nothing between the first and the last copy reads what a copy writes, or writes
    order:    last: copies that another rewrite removes are not joined
    """
    groups: dict[tuple[Any, ...], list[Any]] = {}
    copies = dict.fromkeys(_copies(graph))
    for n in list(graph.nodes):
        if n in copies:
            clash = n.args[0] in _written(groups) | _sources(groups) or whole(n.args[1]) in (
                _written(groups)
            )
            if clash:
                _join(graph, groups)
            groups.setdefault(_kind(n), []).append(n)
        elif writes(n) or any(whole(p) in _written(groups) for p in n.all_input_nodes):
            _join(graph, groups)
    _join(graph, groups)


def _copies(graph: Any) -> Iterator[Any]:
    """The copies of whole tensors of the same shape into arguments, whose result nobody reads."""
    for n in list(graph.nodes):
        if n.op != "call_function" or n.target is not _COPY or n.users or len(n.args) != 2:
            continue
        target, made = n.args
        shapes = [tuple(map(str, t.shape)) for v in (target, made) for t in tensors_of(_value(v))]
        if target.op == "placeholder" and len(shapes) == 2 and shapes[0] == shapes[1]:
            yield n


def _value(node: Any) -> Any:
    return node.meta.get("val")


def _kind(copy: Any) -> tuple[Any, ...]:
    """Copies of one kind can be made by one call."""
    target, made = map(_value, copy.args)
    return target.device, target.dtype, made.device, made.dtype


def _written(groups: Mapping[Any, Sequence[Any]]) -> set[Any]:
    return {c.args[0] for found in groups.values() for c in found}


def _sources(groups: Mapping[Any, Sequence[Any]]) -> set[Any]:
    return {whole(c.args[1]) for found in groups.values() for c in found}


def _join(graph: Any, groups: dict[tuple[Any, ...], list[Any]]) -> None:
    """Puts one call where the last copy of each kind stands."""
    for found in groups.values():
        if len(found) > 1:
            with graph.inserting_after(found[-1]):
                lists = [[c.args[k] for c in found] for k in (0, 1)]
                graph.call_function(aten._foreach_copy_.default, tuple(lists))
            for c in found:
                graph.erase_node(c)
    groups.clear()
