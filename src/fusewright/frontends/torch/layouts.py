"""The memory layouts that torch gives results."""

from __future__ import annotations

from typing import Any

from fusewright.frontends.torch.calls import hint


def axis_order(tensor: Any) -> tuple[int, ...] | None:
    """The axes of a dense tensor from slow to fast in memory; None for C order. Axes of size 1 lie
    anywhere. Raises ValueError for a tensor with gaps or overlaps."""
    sizes, strides = [hint(n) for n in tensor.shape], [hint(s) for s in tensor.stride()]
    if 0 in sizes:
        return None
    long = [a for a, n in enumerate(sizes) if n > 1]
    order = sorted(long, key=lambda a: (-strides[a], a))
    step = 1
    for a in reversed(order):
        if strides[a] != step:
            raise ValueError(f"strides {strides} of sizes {sizes} are not dense")
        step *= sizes[a]
    if order == long:
        return None
    return (*(a for a in range(len(sizes)) if a not in long), *order)
