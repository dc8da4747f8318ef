"""`out_layouts=`: results whose axes lie in memory in an order that the caller requires.

The traced function returns each such result with its axes permuted into that order, so that the
kernel stores it densely; the caller gets the view with the axes back in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from fusewright.arguments import INTEGER, optional, several
from fusewright.errors import UserError
from fusewright.fusion import trees
from fusewright.fusion.ops import permute_dims

Order: TypeAlias = "Sequence[Sequence[int] | None]"
"""Per output the axes from slow to fast in memory; None for C order."""


ORDERS = several(
    optional(several(INTEGER, "axes")),
    "a list of an order of axes, such as (1, 0), or None for every output",
)


class OutLayouts:
    """The orders of all outputs; where all are C order, nothing is done."""

    def __init__(self, orders: Order) -> None:
        given = [None if o is None else tuple(o) for o in orders]
        self.count = len(given)
        self._orders = given if any(o is not None for o in given) else None

    def __bool__(self) -> bool:
        return self._orders is not None

    def order(self, k: int) -> tuple[int, ...] | None:
        """The axes of an output from slow to fast in memory; None for C order."""
        return None if self._orders is None else self._orders[k]

    def stored_as(self, result: Any) -> Any:
        """The traced result of a function with the axes of each array in the order of memory.
        Raises UserError for another number of arrays, and for what is no order of their axes."""
        leaves, tree = trees.flatten(result)
        if len(leaves) != self.count:
            raise UserError(f"out_layouts has {self.count} orders for {len(leaves)} outputs")
        pairs = ((x, self.order(k)) for k, x in enumerate(leaves))
        return trees.unflatten(tree, [_permuted(x, o) for x, o in pairs])

    def shown(self, made: Sequence[Any], given: Sequence[Any] = ()) -> list[Any]:
        """Stored results as the caller sees them; `given`: the arrays of `out=`, each itself."""
        if self._orders is None:
            return list(made)
        pairs = zip(made, self._orders, given or [None] * self.count, strict=True)
        return [
            (x if o is None else _transposed(x, _inverse(o))) if there is None else there
            for x, o, there in pairs
        ]

    def shown_as(
        self, k: int, shape: Sequence[int], strides: Sequence[int], dtype: Any
    ) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
        """The type of a stored result as the caller sees it."""
        order = self.order(k)
        back = range(len(shape)) if order is None else _inverse(order)
        return tuple([shape[a] for a in back]), tuple([strides[a] for a in back]), dtype

    def stored(self, given: Sequence[Any]) -> list[Any]:
        """The arrays of `out=` as kernels see them. Raises UserError for another number of axes."""
        if self._orders is None:
            return list(given)
        for k, (x, o) in enumerate(zip(given, self._orders, strict=True)):
            if x is not None and o is not None and len(x.shape) != len(o):
                raise UserError(f"out= {k} has {len(x.shape)} axes, the result has {len(o)}")
        return [
            x if x is None or o is None else _transposed(x, o)
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
