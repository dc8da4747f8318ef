"""The memory layouts that torch gives results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewright.frontends.torch.calls import hint


def axis_order(tensor: Any) -> tuple[int, ...] | None:
    """The axes of a tensor from slow to fast in memory; None for C order. Axes of size 1 lie
    anywhere; of a tensor with gaps or overlaps, the order alone counts."""
    sizes, strides = [hint(n) for n in tensor.shape], [hint(s) for s in tensor.stride()]
    if 0 in sizes:
        return None
    long = [a for a, n in enumerate(sizes) if n > 1]
    order = sorted(long, key=lambda a: (-strides[a], a))
    if order == long:
        return None
    return (*(a for a in range(len(sizes)) if a not in long), *order)


def axis_orders(nodes: Sequence[Any]) -> list[tuple[int, ...] | None]:
    """The axes from slow to fast of what each node of a graph gives, as its example value has
    them: how regions that make them are to lay them."""
    return [axis_order(n.meta["val"]) for n in nodes]


def odd_strides(tensor: Any) -> tuple[int, ...] | None:
    """The strides of a dense tensor of plain sizes, if it is empty, or if those of its axes of size
    1 are not the ones that a new tensor in its axis order has. They address nothing, but torch
    passes them on."""
    sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
    if not all(isinstance(n, int) for n in (*sizes, *strides)):
        return None
    if 0 in sizes:
        return strides
    made = dense_strides(sizes, axis_order(tensor))
    pairs = list(zip(sizes, strides, made, strict=True))
    dense = all(s == m for n, s, m in pairs if n > 1)
    return strides if dense and strides != made else None


def dense_strides(sizes: Sequence[Any], order: Sequence[int] | None) -> tuple[Any, ...]:
    """The strides of a dense tensor whose axes lie in an order, slowest first; None for C order."""
    axes = range(len(sizes)) if order is None else order
    found, step = dict[int, Any](), 1
    for a in reversed(axes):
        found[a] = step
        step = step * (sizes[a] or 1)
    return tuple(found[a] for a in range(len(sizes)))
