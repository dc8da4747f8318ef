"""`out_layouts=`: results whose axes lie in memory in an order that the caller requires.

The traced function returns each such result with its axes permuted into that order, so that the
kernel stores it densely; the caller gets the view with the axes back in place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from fusewright.errors import UserError
from fusewright.fusion import trees
from fusewright.fusion.ops import permute_dims
from fusewright.runtime.arrays import ArrayInfo

Order: TypeAlias = "Sequence[Sequence[int] | None]"
"""Per output the axes from slow to fast in memory; None for C order."""


class OutLayouts:
    """The orders of all outputs; without any, nothing is done."""

    def __init__(self, orders: Order | None) -> None:
        self._orders = None if orders is None else [None if o is None else tuple(o) for o in orders]

    def __bool__(self) -> bool:
        return self._orders is not None

    def wrapped(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function whose results have their axes in the order of memory."""
        orders = self._orders
        if orders is None:
            return fn

        @functools.wraps(fn)
        def permuted(*args: Any, **kwargs: Any) -> Any:
            leaves, tree = trees.flatten(fn(*args, **kwargs))
            if len(leaves) != len(orders):
                raise UserError(f"out_layouts has {len(orders)} orders for {len(leaves)} outputs")
            pairs = zip(leaves, orders, strict=True)
            return trees.unflatten(tree, [_permuted(x, o) for x, o in pairs])

        return permuted

    def shown(self, made: Sequence[Any]) -> list[Any]:
        """Stored results as the caller sees them."""
        if self._orders is None:
            return list(made)
        pairs = zip(made, self._orders, strict=True)
        return [x if o is None else _transposed(x, _inverse(o)) for x, o in pairs]

    def stored(self, given: Sequence[ArrayInfo | None]) -> list[ArrayInfo | None]:
        """The arrays of `out=` as kernels see them."""
        if self._orders is None:
            return list(given)
        return [
            x if x is None or o is None else _described(x, o)
            for x, o in zip(given, self._orders, strict=True)
        ]


def _permuted(x: Any, order: tuple[int, ...] | None) -> Any:
    if order is None:
        return x
    if sorted(order) != list(range(x.ndim)):
        raise UserError(f"out_layouts: {order} is not an order of the {x.ndim} axes of an output")
    return permute_dims(x, order)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=lambda a: order[a]))


def _transposed(x: Any, order: tuple[int, ...]) -> Any:
    return x.permute(order) if hasattr(x, "permute") else x.transpose(order)


def _described(x: ArrayInfo, order: tuple[int, ...]) -> ArrayInfo:
    shape = tuple(x.shape[a] for a in order)
    strides = tuple(x.strides[a] for a in order)
    return replace(x, shape=shape, strides=strides, owner=_transposed(x.owner, order))
