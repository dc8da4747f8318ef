"""Views by strides as views by axes, which can be fused.

Functionalisation writes `x.contiguous()` in a backward pass, and channels-last memory, as
`as_strided`. Where the strided view shows each element of a dense tensor once, it is a permutation
of the axes, a reshape and a permutation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from fusewright.frontends.torch.calls import readers, writes
from fusewright.frontends.torch.library import aten

Sizes = tuple[int, ...]


def plain_strides(graph: Any) -> None:
    """Replaces strided views, and scatters through them, that show a whole dense tensor.

    rewrite:  as_strided(x, sizes, strides)  ->  permute(view(permute(x, a), b), c)
    checks:   x and the result are dense, of as many elements, and begin at the same place; torch
              can make the views of what is scattered, which is copied for who may write to it
    order:    before the graph is cut into regions, in which views cost nothing
    """
    rules = {
        aten.as_strided.default: _strided,
        aten.as_strided_scatter.default: _scattered,
    }
    for n in list(graph.nodes):
        rule = rules.get(n.target) if n.op == "call_function" else None
        if rule is None or not _is_plain(n.args[0]):
            continue
        with graph.inserting_before(n):
            made = rule(graph, n)
        if made is not None:
            n.replace_all_uses_with(made)
            graph.erase_node(n)


def _strided(graph: Any, node: Any) -> Any:
    x, sizes, strides, *offset = node.args
    base = x.meta["val"]
    if not _shows_all(base, sizes, strides, offset):
        return None
    return _in_memory_order(graph, x, base.shape, base.stride(), sizes, strides)


def _scattered(graph: Any, node: Any) -> Any:
    x, source, sizes, strides, *offset = node.args
    base = x.meta["val"]
    given = source.meta["val"]
    same = given.dtype == base.dtype
    if not same or not _shows_all(base, sizes, strides, offset):
        return None
    if any(u.op == "output" or writes(u) for u in readers(node)):  # a new tensor, as a scatter's is
        source = graph.call_function(aten.clone.default, (source,))
        source.meta["val"] = given.clone()
    return _in_memory_order(graph, source, sizes, strides, base.shape, base.stride())


def _is_plain(node: Any) -> bool:
    """Whether a tensor has numbers for sizes and strides."""
    value = node.meta.get("val")
    return value is not None and all(isinstance(n, int) for n in (*value.shape, *value.stride()))


def _shows_all(base: Any, sizes: Sequence[Any], strides: Sequence[Any], offset: list[Any]) -> bool:
    """Whether sizes and strides show each element of a dense tensor once."""
    if not all(isinstance(n, int) for n in (*sizes, *strides)) or 0 in sizes:
        return False
    start = offset[0] if offset and offset[0] is not None else base.storage_offset()
    whole = prod(sizes) == base.numel() and start == base.storage_offset()
    return whole and all(map(is_dense, (base.shape, sizes), (base.stride(), strides)))


def is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the strides of the axes that are longer than 1 are those of memory without gaps."""
    wanted = 1
    for n, s in sorted(zip(sizes, strides, strict=True), key=lambda pair: pair[1]):
        if n > 1 and s != wanted:
            return False
        wanted *= n
    return True


def _in_memory_order(
    graph: Any, x: Any, sizes: Sizes, strides: Sizes, new: Sizes, new_strides: Sizes
) -> Any:
    """The tensor with some sizes, whose elements lie by some strides, as one with others."""
    first, last = _order(sizes, strides), _order(new, new_strides)
    back = tuple(last.index(a) for a in range(len(new)))
    ordered = tuple(new[a] for a in last)
    if not _can_be_viewed(x.meta["val"].permute(first), ordered):
        return None
    x = _call(graph, aten.permute.default, x, first)
    x = _call(graph, aten.view.default, x, ordered)
    return _call(graph, aten.permute.default, x, back)


def _can_be_viewed(value: Any, sizes: Sizes) -> bool:
    """Whether torch can show an example value in other sizes without a copy."""
    try:
        value.view(sizes)
    except (RuntimeError, ValueError):
        return False
    return True


def _order(sizes: Sizes, strides: Sizes) -> Sizes:
    """The axes from slow to fast in memory."""
    return tuple(sorted(range(len(sizes)), key=lambda a: (sizes[a] > 1, -strides[a], a)))


def _call(graph: Any, target: Callable[..., Any], x: Any, argument: Sizes) -> Any:
    """A view of x, or x where it has the same axes."""
    value = x.meta["val"]
    if argument == tuple(range(len(argument)) if target is aten.permute.default else value.shape):
        return x
    made = graph.call_function(target, (x, list(argument)))
    made.meta["val"] = target(value, argument)
    return made
