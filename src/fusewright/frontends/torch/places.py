"""Maxima of windows that train, with places of one byte.

torch keeps an index of eight bytes for each maximum, which is half of what its kernels move in
bfloat16. The number of the place inside of the window says the same in one byte.

rewrite:  y, i = max_pool2d_with_indices(x, ..)           ->  y, p = max_pool_with_places(x, ..)
          max_pool2d_with_indices_backward(g, x, .., i)   ->  max_pool_places_backward(g, p, ..)
checks:   nothing else reads the indices; sizes are numbers, and int8 has a number for each place
order:    before the joint graph is cut in forward and backward, which then keeps the places
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from fusewright.frontends.torch.calls import is_getitem
from fusewright.frontends.torch.library import aten, torch
from fusewright.frontends.torch.permutations import call_near

_MOST = 128
"""The numbers of int8 from 0 on."""
_WAYS_BACK = {
    aten.max_pool2d_with_indices.default: aten.max_pool2d_with_indices_backward.default,
    aten.max_pool3d_with_indices.default: aten.max_pool3d_with_indices_backward.default,
}
_SIZES = "int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode"


def keep_places(graph: Any) -> None:
    """Replaces maxima in a joint graph whose indices only their ways back read."""
    for n in list(graph.nodes):
        if n.op == "call_function" and n.target in _WAYS_BACK and _is_taken(n):
            _replace(graph, n)


def _is_taken(n: Any) -> bool:
    shape, lengths = n.args[0].meta["val"].shape, n.args[1]
    back = _WAYS_BACK[n.target]
    indices = [u for u in n.users if u.args[1] == 1]
    numbers = math.prod(_bases(lengths, _sizes(*n.args[1:])[1]))
    are_known = all(is_getitem(u) for u in n.users) and all(type(s) is int for s in shape)
    readers = [r for i in indices for r in i.users]
    only_back = bool(readers) and all(r.target is back and not r.kwargs for r in readers)
    return are_known and only_back and not n.kwargs and numbers <= _MOST


def _replace(graph: Any, n: Any) -> None:
    x = n.args[0]
    sizes = _sizes(*n.args[1:])
    with graph.inserting_before(n):
        made = call_near(graph, n, WITH_PLACES, x, *sizes)
        y, places = (call_near(graph, made, operator.getitem, made, k) for k in (0, 1))
    for item in list(n.users):
        if item.args[1] == 0:
            item.replace_all_uses_with(y)
            graph.erase_node(item)
            continue
        for r in list(item.users):
            with graph.inserting_before(r):
                g = call_near(
                    graph, r, BACKWARD, r.args[0], places, list(x.meta["val"].shape), *sizes
                )
            r.replace_all_uses_with(g)
            graph.erase_node(r)
        graph.erase_node(item)
    graph.erase_node(n)


def _sizes(
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    ceil_mode: bool = False,
) -> tuple[Any, ...]:
    """The sizes of a call as lists of one number for each axis."""
    several = [
        [given] * len(kernel_size) if isinstance(given, int) else list(given)
        for given in (kernel_size, stride or kernel_size, padding, dilation)
    ]
    return *several, ceil_mode


# --- what torch computes where no kernel does ---------------------------------------------------


def _with_places(
    x: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Any, Any]:
    pool = aten.max_pool2d_with_indices if len(kernel_size) == 2 else aten.max_pool3d_with_indices
    y, indices = pool(x, kernel_size, stride, padding, dilation, ceil_mode)
    axes, lengths = len(kernel_size), _bases(kernel_size, stride)
    number, rest = torch.zeros_like(indices), indices
    each = 1
    for k in reversed(range(axes)):
        size = x.shape[x.ndim - axes + k]
        place = (rest % size - _starts(y, k - axes, stride[k], padding[k])) // dilation[k]
        number, rest = number + place * each, rest // size
        each *= lengths[k]
    return y, number.to(torch.int8)


def _bases(kernel_size: Sequence[int], stride: Sequence[int]) -> list[int]:
    """How far places are counted along each axis, as kernels count them (`nn.windows.bases`)."""
    return [-(-n // s) * s for n, s in zip(kernel_size, stride, strict=True)]


def _starts(y: Any, axis: int, stride: int, padding: int) -> Any:
    """Where windows begin along an axis, counted from the end."""
    starts = torch.arange(y.shape[axis], device=y.device) * stride - padding
    return starts.view(-1, *[1] * (-axis - 1))


def _backward(
    g: Any,
    places: Any,
    size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Any:
    axes, lengths = len(kernel_size), _bases(kernel_size, stride)
    indices, rest = torch.zeros_like(places, dtype=torch.int64), places.long()
    each = 1
    for k in reversed(range(axes)):
        start = _starts(places, k - axes, stride[k], padding[k])
        indices = indices + (start + rest % lengths[k] * dilation[k]) * each
        rest, each = rest // lengths[k], each * size[len(size) - axes + k]
    back = (
        aten.max_pool2d_with_indices_backward
        if axes == 2
        else (aten.max_pool3d_with_indices_backward)
    )
    x = _like(g, size)
    return back(g, x, kernel_size, stride, padding, dilation, ceil_mode, indices)


def _like(g: Any, size: Sequence[int]) -> Any:
    """Memory of a size in the order of a gradient's."""
    order = torch._prims_common.suggest_memory_format(g)
    return torch.empty(size, dtype=g.dtype, device=g.device, memory_format=order)


def _like_first(g: Any, _places: Any, size: Sequence[int], *_sizes: Any) -> Any:
    return _like(g, size)


def _entered(name: str, arguments: str, results: str, computed: Any, shown: Any) -> Any:
    """An operator of torch, of which `shown` gives results without elements."""
    made = torch.library.custom_op(
        f"fusewright::{name}",
        computed,
        mutates_args=(),
        schema=f"({arguments}, {_SIZES}) -> {results}",
    )
    made.register_fake(shown)
    return getattr(torch.ops.fusewright, name).default


WITH_PLACES = _entered(
    "max_pool_with_places",
    "Tensor x",
    "(Tensor, Tensor)",
    _with_places,
    _with_places,
)
BACKWARD = _entered(
    "max_pool_places_backward",
    "Tensor g, Tensor places, SymInt[] size",
    "Tensor",
    _backward,
    _like_first,
)
