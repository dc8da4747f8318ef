"""Scatters into a constant, as choices by position.

The gradients of `gather`, `topk` and of a maximum along an axis are zeros, but for the few places
of each row that an index names. torch fills memory, then writes to it, between two regions. Where
an index has few entries in a row, each element of the result asks which of them names it.

rewrite:  scatter(full(c), d, i, src)      ->  where(arange(n) == i[k], src[k], ..) over k
          scatter_add(full(0), d, i, src)  ->  sum over k of where(arange(n) == i[k], src[k], 0)
          index_add(full(c), d, i, src)    ->  index_put(full(c), [.., i], src, accumulate)
checks:   the index has at most `MOST` entries along the axis and all of the other axes; sizes are
          numbers. Of entries that name one place the last one counts, where torch promises nothing.
          Rows are added where comparing all places takes no longer than torch's two launches
order:    before the graph is cut into regions, of which these operators become part
"""

from __future__ import annotations

from typing import Any

from fusewright.frontends.torch.library import aten, fx, torch
from fusewright.frontends.torch.permutations import call_near, is_zero
from fusewright.fusion.ops.segments import MAX_COMPARED

MOST = 8
"""Entries of a row that every element of it is compared with. An element of 4 bytes is written in
the time of 24 instructions (an H200's data sheet: 132 multiprocessors of 128 lanes at 1.7 GHz, 4.8
TB/s), and an entry takes three: a load that hits, a comparison and a selection."""

ADDED = MAX_COMPARED * 2 // 25
"""Comparisons that take no longer than torch's fill and addition, which are two launches, where
`MAX_COMPARED` take as long as 25. In a kernel the sums have an order; torch adds by atomics."""

_ROWS = aten.index_add.default
_FULLS = (aten.full.default, aten.full_like.default, aten.new_full.default)
_ADDS = aten.scatter_add.default
_PUTS = (aten.scatter.src, aten.scatter.value)


def plain_scatters(graph: Any) -> None:
    """Replaces scatters into constants in an aten graph with example values."""
    for n in list(graph.nodes):
        if n.op != "call_function" or n.target not in (*_PUTS, _ADDS, _ROWS) or n.kwargs:
            continue
        is_rows = n.target is _ROWS
        if not (_adds_few_rows(n) if is_rows else _is_taken(n)):
            continue
        with graph.inserting_before(n):
            made = _put(graph, n) if is_rows else _chosen(graph, n)
        n.replace_all_uses_with(made)
        graph.erase_node(n)


def _is_taken(n: Any) -> bool:
    x, dim, index, source = n.args
    if not is_zero(x) and (x.target not in _FULLS or n.target is _ADDS):
        return False
    shape, at = x.meta["val"].shape, index.meta["val"].shape
    if not shape or not all(type(s) is int for s in (*shape, *at)):
        return False
    along = dim % len(shape)
    others = all(a == s for k, (a, s) in enumerate(zip(at, shape, strict=True)) if k != along)
    is_node = isinstance(source, fx.Node | int | float)
    return others and is_node and 0 < at[along] <= MOST


def _adds_few_rows(n: Any) -> bool:
    """Whether rows are added to a constant, each element of which can look at all of them."""
    x, _, index, _ = n.args
    value, at = x.meta["val"], index.meta["val"]
    is_full = is_zero(x) or x.target in _FULLS
    if not is_full or not all(type(s) is int for s in (*value.shape, *at.shape)):
        return False
    is_flat = value.ndim > 0 and at.ndim == 1 and value.dtype is not torch.bool
    return is_flat and value.numel() * at.numel() <= ADDED


def _put(graph: Any, n: Any) -> Any:
    x, dim, index, source = n.args
    places = [*[None] * (dim % x.meta["val"].ndim), index]
    return call_near(graph, n, aten.index_put.default, x, places, source, True)


def _chosen(graph: Any, n: Any) -> Any:
    x, dim, index, source = n.args
    value = x.meta["val"]
    along = dim % value.ndim
    options = {"dtype": torch.int64, "device": value.device, "pin_memory": False}
    numbers = call_near(graph, n, aten.arange.default, value.shape[along], **options)
    column = [value.shape[along], *[1] * (value.ndim - along - 1)]
    numbers = call_near(graph, n, aten.view.default, numbers, column)
    if isinstance(source, int | float):
        number = {"dtype": value.dtype, "device": value.device}
        source = call_near(graph, n, aten.scalar_tensor.default, source, **number)
    made = x
    for k in range(index.meta["val"].shape[along]):
        hit = call_near(graph, n, aten.eq.Tensor, numbers, _entry(graph, n, index, along, k))
        entry = _entry(graph, n, source, along, k)
        if n.target is not _ADDS:
            made = call_near(graph, n, aten.where.self, hit, entry, made)
            continue
        added = call_near(graph, n, aten.where.self, hit, entry, x)
        made = added if k == 0 else call_near(graph, n, aten.add.Tensor, made, added)
    return made


def _entry(graph: Any, n: Any, x: Any, along: int, k: int) -> Any:
    """The entries k of a tensor along an axis, as many along the others as the index has."""
    shape, wanted = x.meta["val"].shape, n.args[2].meta["val"].shape
    if not shape:
        return x
    for axis, size in enumerate(wanted):
        start, end = (k, k + 1) if axis == along else (0, size)
        if (start, end) != (0, shape[axis]):
            x = call_near(graph, n, aten.slice.Tensor, x, axis, start, end)
    return x
