"""Results with gaps in memory, as torch gives them where an operand has gaps."""

from __future__ import annotations

from typing import Any

from fusewright.frontends.torch.calls import is_getitem, readers, whole
from fusewright.frontends.torch.library import aten
from fusewright.frontends.torch.plain_strides import is_dense
from fusewright.frontends.torch.region import FusedRegion

_BY_ADDRESS = (aten.as_strided.default, aten.as_strided_scatter.default)
"""Operators that find elements by where they lie, not by their coordinates."""


def lay_with_gaps(graph: Any) -> None:
    """Copies results of regions to memory with torch's gaps, where somebody can see them.

    `select_scatter(x[:, ::2], y, 0, 1)` has the strides of `x[:, ::2]`. Kernels write no gaps,
    and what reads coordinates needs none.

    rewrite:  r = region(x)[0]  ->  r = copy_(new_empty_strided(a, sizes, strides), a),
              a = region(x)[0]
    checks:   the graph returns r or a view of it, or an operator finds elements by their places
    order:    behind write_results, which has regions write to arguments where these lie
    """
    for n in list(graph.nodes):
        if not is_getitem(n) or not isinstance(n.args[0].target, FusedRegion):
            continue
        if not has_gaps(n.meta["val"]) or not any(_sees_places(u, n) for u in readers(n)):
            continue
        value = n.meta["val"]
        with graph.inserting_after(n):
            sizes, strides = list(value.shape), list(value.stride())
            new = graph.call_function(aten.new_empty_strided.default, (n, sizes, strides))
        with graph.inserting_after(new):
            filled = graph.call_function(aten.copy_.default, (new, n))
        new.meta, filled.meta = dict(n.meta), dict(n.meta)
        for u in [u for u in n.users if u not in (new, filled)]:
            u.replace_input_with(n, filled)


def _sees_places(reader: Any, node: Any) -> bool:
    if reader.op == "output":
        return True
    return reader.target in _BY_ADDRESS and whole(reader.args[0]) is node


def has_gaps(value: Any) -> bool:
    """Whether a tensor of plain sizes and strides lies in memory with places between its elements
    that are none of it."""
    sizes, strides = tuple(value.shape), tuple(value.stride())
    if not all(isinstance(n, int) for n in (*sizes, *strides)) or 0 in sizes:
        return False
    return not is_dense(sizes, strides) and all(
        s > 0 for n, s in zip(sizes, strides, strict=True) if n > 1
    )
