"""Results lie in memory in the orders of axes that their caller requires."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from fusewright.errors import UserError
from fusewright.fusion import ir
from fusewright.fusion.ir import Fusion, Permute, Tensor
from fusewright.fusion.orders import Order, c_order
from fusewright.fusion.value_names import fresh_name


def store_in_orders(fusion: Fusion, orders: Sequence[Order | None] | None) -> Fusion:
    """Returns every result with its axes in the order that is required of it, so that it is stored
    densely; None, and the order of the program, leave it as it is. What is stored is called like
    the result.

    rewrite:  y = f(x); return y, in the order (1, 0)   ->
              y_0 = f(x); y = permute(y_0, 1, 0); return y
    checks:   there is an order for each result, of all of its axes, else UserError
    order:    first: all passes that ask in which order a result lies come after it
    """
    if orders is None:
        return fusion
    check_orders(fusion, orders)
    asked = [
        (t, None if o == c_order(t.ndim) else o)
        for t, o in zip(fusion.outputs, orders, strict=True)
    ]
    moved = dict.fromkeys((t, o) for t, o in asked if o is not None)
    if not moved:
        return fusion
    kept = {t for t, o in asked if o is None} | set(fusion.inputs)
    taken = {t.name for t in fusion.values}
    free = {
        t: fresh_name(t.name, taken) for t in dict.fromkeys(t for t, _ in moved) if t not in kept
    }
    made = _renamed(fusion, free)
    stored: dict[tuple[Tensor, Order | None], Tensor] = {}
    for t, order in moved:
        name = t.name if t in free else fresh_name(t.name, taken)
        free.pop(t, None)  # the next order of the same result has another name
        shape = tuple(t.shape[a] for a in order)
        stored[t, order] = Tensor(name, shape, t.dtype, Permute((made[t],), order), t.source)
    outputs = tuple(stored.get(found, made[found[0]]) for found in asked)
    values = ir.topological(outputs, fusion.inputs)
    return dataclasses.replace(fusion, outputs=outputs, values=values)


def _renamed(fusion: Fusion, names: Mapping[Tensor, str]) -> dict[Tensor, Tensor]:
    """The values of a fusion, some under other names."""
    new: dict[Tensor, Tensor] = {}
    for t in fusion.values:
        op = ir.with_operands(t.op, tuple(new[o] for o in t.op.operands))
        new[t] = Tensor(names[t], t.shape, t.dtype, op, t.source) if t in names else t.with_op(op)
    return new


def check_orders(fusion: Fusion, orders: Sequence[Order | None]) -> None:
    """Raises UserError unless there is an order of all axes, or None, for each result."""
    if len(orders) != len(fusion.outputs):
        raise UserError(f"out_layouts has {len(orders)} orders for {len(fusion.outputs)} outputs")
    for k, (t, order) in enumerate(zip(fusion.outputs, orders, strict=True)):
        if order is not None and sorted(order) != list(c_order(t.ndim)):
            raise UserError(
                f"out_layouts: {order} is not an order of the {t.ndim} axes of output {k}, {t}; "
                f"list each of {c_order(t.ndim)} once, the slowest in memory first"
            )
