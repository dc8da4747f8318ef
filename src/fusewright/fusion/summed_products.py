"""Sums of products of repeated values, computed as products of matrices, so that the oracle holds
no product of every row with every column.

    p[i, j, k] = a[i, k] * b[j, k];  y[i, j] = sum(p, k)   ->   y = matmul(a, b.T)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright.fusion import ir
from fusewright.fusion.ir import Fusion, Tensor

Array = npt.NDArray[Any]


def summed_products(fusion: Fusion) -> dict[Tensor, Tensor]:
    """Products of floats that nothing but a sum reads, each with that sum."""
    readers: dict[Tensor, list[Tensor | None]] = {t: [None] for t in fusion.outputs}
    for t in fusion.values:
        for o in dict.fromkeys(t.op.operands):
            readers.setdefault(o, []).append(t)
    found: dict[Tensor, Tensor] = {}
    for t in fusion.values:
        match readers.get(t, []):
            case [Tensor(op=ir.Reduce(fn="add")) as s] if t.dtype.is_float and _is_product(t):
                found[t] = s
            case _:
                pass
    return found


def _is_product(t: Tensor) -> bool:
    return isinstance(t.op, ir.Pointwise) and t.op.fn == "mul"


def is_of_matrices(a: Array, b: Array) -> bool:
    """Whether both operands of a product repeat their elements, along different axes."""
    first, second = repeated_axes([a]), repeated_axes([b])
    return bool(first) and bool(second) and not set(first) & set(second)


def repeated_axes(args: Sequence[Array]) -> list[int]:
    """The axes along which none of some arrays of one shape varies."""
    first = args[0]
    if any(a.shape != first.shape for a in args):
        return []
    return [k for k, n in enumerate(first.shape) if n > 1 and all(a.strides[k] == 0 for a in args)]


def sum_of_products(a: Array, b: Array, axes: Sequence[int]) -> Array:
    """`sum(a * b)` over some axes of two arrays of one shape for which `is_of_matrices` holds."""
    own = [[k for k in range(a.ndim) if k not in repeated_axes([x])] for x in (a, b)]
    both = [k for k in own[0] if k in own[1]]
    depth, batch = [k for k in both if k in axes], [k for k in both if k not in axes]
    down, across = ([k for k in o if k not in both and k not in axes] for o in own)
    first = _laid_out(a, [*batch, *down, *depth], axes)
    second = _laid_out(b, [*batch, *across, *depth], axes)
    sizes = [[a.shape[k] for k in group] for group in (batch, down, across, depth)]
    rows, columns, pairs = (int(np.prod(s)) for s in sizes[1:])
    made = np.matmul(
        first.reshape(*sizes[0], rows, pairs),
        np.swapaxes(second.reshape(*sizes[0], columns, pairs), -1, -2),
    )
    order = [*batch, *down, *across]
    made = made.reshape([a.shape[k] for k in order])
    return made.transpose([order.index(k) for k in sorted(order)])


def _laid_out(x: Array, order: Sequence[int], axes: Sequence[int]) -> Array:
    """The axes of an operand in an order, one element of each along which it is repeated, and sums
    over those of the `axes` that are not among them."""
    repeated = repeated_axes([x])
    one = x[tuple(slice(0, 1) if k in repeated else slice(None) for k in range(x.ndim))]
    one = one.sum(axis=tuple(k for k in axes if k not in order), keepdims=True)
    rest = [k for k in range(x.ndim) if k not in order]
    return one.transpose([*order, *rest]).reshape([x.shape[k] for k in order])
