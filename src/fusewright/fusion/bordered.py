"""A fusion in regions between the values that kernels hand on, each a fusion of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from fusewright.fusion import ir
from fusewright.fusion.ir import (
    Concat,
    Fusion,
    Input,
    Pointwise,
    Resize,
    Scan,
    Sort,
    TakeAlong,
    Tensor,
)
from fusewright.fusion.least_orders import Bordered
from fusewright.fusion.orders import Order, c_order, strides_in
from fusewright.fusion.passes.follow_memory import follow_memory
from fusewright.fusion.passes.store_in_orders import store_in_orders
from fusewright.target import MAX_VECTOR_NBYTES

CHOOSES = (Pointwise, Concat, Resize, Scan, Sort, TakeAlong)
"""Operations whose result may lie in any order; others have that of their operand."""


def may_lie(t: Tensor) -> bool:
    """Whether the order of a value is chosen, whatever its operands lie in."""
    return isinstance(t.op, CHOOSES) and t.ndim > 1


def bordered_groups(
    fusion: Fusion,
    homes: Mapping[str, object],
    borders: Collection[str],
    us: Callable[[Fusion], float],
) -> list[Bordered]:
    """The regions of a fusion between values, by name, that kernels hand on (`borders`): those that
    one kernel makes (`homes`) are results of one region. `us` is what a fusion takes."""
    made: dict[object, list[Tensor]] = {}
    results = set(fusion.outputs)
    for t in fusion.values:
        if not isinstance(t.op, Input) and (t in results or t.name in borders):
            made.setdefault(homes.get(t.name, t), []).append(t)
    return [_Region(fusion, tuple(ends), borders, us).group() for ends in made.values()]


class _Region:
    """What is computed of borders and arguments up to some values."""

    def __init__(
        self,
        fusion: Fusion,
        ends: tuple[Tensor, ...],
        borders: Collection[str],
        us: Callable[[Fusion], float],
    ) -> None:
        self._fusion, self._ends, self._us = fusion, ends, us
        self._asked: dict[tuple[Order, ...], float] = {}
        self._read: dict[Tensor, None] = {}
        self._inside: dict[Tensor, None] = {}
        stack = list(ends)
        while stack:
            t = stack.pop()
            if t in self._inside or t in self._read:
                continue
            if isinstance(t.op, Input) or (t.name in borders and t not in ends):
                self._read[t] = None
                continue
            self._inside[t] = None
            stack += t.op.operands
        known = {t for t in (*self._read, *ends) if t.name in borders}
        self._borders = tuple(t for t in fusion.values if t in known)

    def group(self) -> Bordered:
        """The region as one that says what it takes."""
        return Bordered(tuple(t.name for t in self._borders), self._time)

    def _time(self, orders: tuple[Order, ...]) -> float:
        if orders not in self._asked:
            chosen = {t.name: o for t, o in zip(self._borders, orders, strict=True)}
            self._asked[orders] = self._us(self._with(chosen))
        return self._asked[orders]

    def _with(self, chosen: Mapping[str, Order]) -> Fusion:
        """The region as a fusion whose borders lie in given orders."""
        new: dict[Tensor, Tensor] = {}
        inputs: list[Tensor] = []
        for t in self._fusion.values:
            if t in self._read:
                strides = t.op.strides if isinstance(t.op, Input) else None
                strides = strides or strides_in(t.shape, chosen[t.name])
                alignment = t.op.alignment if isinstance(t.op, Input) else MAX_VECTOR_NBYTES
                op = Input((), len(inputs), strides, alignment)
                new[t] = Tensor(t.name, t.shape, t.dtype, op, t.source)
                inputs.append(new[t])
            elif t in self._inside:
                op = ir.with_operands(t.op, tuple(new[o] for o in t.op.operands))
                new[t] = t.with_op(op)
        outputs = tuple(new[t] for t in self._ends)
        values = ir.topological(outputs, tuple(inputs))
        own = Fusion(tuple(inputs), outputs, values)
        asked = [chosen.get(t.name) for t in self._ends]
        stored = store_in_orders(own, asked)
        wanted = dict[Tensor, Order]()
        for t, order in zip(stored.outputs, asked, strict=True):
            if order is not None:
                wanted[t.op.operands[0] if order != c_order(t.ndim) else t] = order
        return follow_memory(stored, wanted).fusion
