"""Values lie in memory in the order of axes that what they are made of lies in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusewright.core.expr import Expr
from fusewright.core.substitution import substitute
from fusewright.fusion import build, ir
from fusewright.fusion.ir import (
    Broadcast,
    Concat,
    Constant,
    Fusion,
    IndexMap,
    Input,
    Iota,
    Op,
    Permute,
    Pointwise,
    Reduce,
    Reshape,
    Resize,
    Scan,
    Size,
    Sort,
    TakeAlong,
    Tensor,
)
from fusewright.fusion.orders import Order, c_order, order_of, reshaped_order
from fusewright.fusion.sizes import nbytes_estimate
from fusewright.fusion.value_names import fresh_name


@dataclass(frozen=True, slots=True)
class Followed:
    """A fusion whose values follow memory, and the orders of those that then lie in no C order;
    none where reductions alone read what lies otherwise."""

    fusion: Fusion
    orders: Mapping[str, Order]


def follow_memory(fusion: Fusion, wanted: Mapping[Tensor, Order] | None = None) -> Followed:
    """Writes operations on axes in the order in which the arguments lie in memory, so that what is
    stored between kernels lies in it too, and reductions of arguments run along them. The same
    fusion where all is in C order.

    rewrite:  x of strides (1, m); sum(exp(x), axis=0)   ->
              x' = permute(x, 1, 0) is contiguous; sum(exp(x'), axis=1)
    checks:   a result of the program keeps its order, which somebody asked for, and is read in it;
              what needs C order, as a product or a reshape across axes does, gets it. Where
              operands lie in different orders, the one of the most bytes is taken, or the one that
              is `wanted` of the result
    order:    first: all passes that ask how values lie in memory come after it
    """
    return _Follower(fusion, wanted or {}).followed()


def wanted_orders(fusion: Fusion) -> dict[Tensor, Order]:
    """The orders that the results of the program, which lie in C order, would like their operands
    to have, from the results backwards; of several the one that most bytes ask for."""
    asked: dict[Tensor, dict[Order, int]] = {t: {} for t in fusion.values}
    for t in fusion.outputs:
        _ask(asked, t, c_order(t.ndim), nbytes_estimate(t))
    out: dict[Tensor, Order] = {}
    for t in reversed(fusion.values):
        if not asked[t]:
            continue
        order = max(asked[t], key=lambda o: asked[t][o])
        out[t] = order
        for o, of_operand in _operand_orders(t, order):
            _ask(asked, o, of_operand, asked[t][order])
    return out


def _ask(asked: dict[Tensor, dict[Order, int]], t: Tensor, order: Order, nbytes: int) -> None:
    asked[t][order] = asked[t].get(order, 0) + nbytes


def _operand_orders(t: Tensor, order: Order) -> Iterator[tuple[Tensor, Order]]:
    """What an order of a value asks of its operands, where it says the place of all axes."""
    match t.op:
        case Pointwise() | Concat() | Resize() | Scan() | Sort():
            yield from ((o, order) for o in t.op.operands)
        case Permute(operands=(o,), axes=axes):
            yield o, tuple(axes[a] for a in order)
        case _:
            return


@dataclass(frozen=True, slots=True)
class _Lying:
    """A value whose axes stand in an order, and the bytes that speak for it."""

    value: Tensor
    order: Order
    nbytes: int


class _Follower:
    """One rewrite. New values are called like those that they stand for, views after them."""

    def __init__(self, fusion: Fusion, wanted: Mapping[Tensor, Order]) -> None:
        self._fusion = fusion
        self._wanted = wanted
        self._taken = {t.name for t in fusion.values}
        self._lying: dict[Tensor, _Lying] = {}
        self._results: set[Tensor] = set()
        self._orders: dict[str, Order] = {}
        self._is_moved = False
        self._readers: dict[Tensor, list[Tensor]] = {t: [] for t in fusion.values}
        for t in fusion.values:
            for o in t.op.operands:
                self._readers[o].append(t)

    def followed(self) -> Followed:
        """The fusion, all of whose values follow."""
        fusion, results = self._fusion, set(self._fusion.outputs)
        for t in fusion.values:
            self._lying[t] = self._of(t)
            if t in results and not isinstance(t.op, Input):
                self._lying[t] = self._in_c_order(t, self._lying[t])
        outputs = tuple(
            t if isinstance(t.op, Input) else self._lying[t].value for t in fusion.outputs
        )
        if not (self._orders or self._is_moved):
            return Followed(fusion, {})
        values = ir.topological(outputs, fusion.inputs)
        made = dataclasses.replace(fusion, outputs=outputs, values=values)
        return Followed(made, self._orders)

    def _in_c_order(self, t: Tensor, x: _Lying) -> _Lying:
        """A result: it lies in C order, and is read where it lies. What is stored in the order
        that a result is a view in is that result, under its name."""
        order = c_order(t.ndim)
        if x.order == order:
            if self._orders.pop(x.value.name, None) is not None:
                x.value.name = t.name
            return x
        if x.value.name == t.name:
            x.value.name = fresh_name(t.name, self._taken)
            self._orders[x.value.name] = self._orders.pop(t.name)
        made = t.with_op(Permute((x.value,), tuple(x.order.index(a) for a in order)))
        self._results.add(made)
        return _Lying(made, order, x.nbytes)

    def _of(self, t: Tensor) -> _Lying:
        given = [self._lying[o] for o in t.op.operands]
        match t.op:
            case Input(strides=strides):
                return self._input(t, strides)
            case Permute(axes=axes):
                (x,) = given
                order = tuple(axes.index(a) for a in x.order)
                is_same = order == c_order(t.ndim) and x.value is t.op.operands[0]
                return dataclasses.replace(x, value=t if is_same else x.value, order=order)
            case Broadcast():
                return self._broadcast(t, t.op, given[0])
            case Reduce(axes=axes):
                (x,) = given
                kept = [a for a in range(len(x.order)) if a not in axes]
                order = tuple(kept.index(a) for a in x.order if a in kept)
                where = tuple(k for k, a in enumerate(x.order) if a in axes)
                return self._made(t, order, dataclasses.replace(t.op, axes=where), [x.value])
            case Reshape():
                return self._reshaped(t, given[0])
            case IndexMap() if len(given[0].order) == t.ndim:
                return self._mapped(t, t.op, given[0])
            case Pointwise() | Concat() | Resize() | Scan() | Sort() | TakeAlong():
                order = self._chosen(t, given)
                at = [self._as(t, x, order) for x in given]
                return self._made(t, order, _along(t.op, order), at)
            case Constant() | Size() | Iota():
                return _Lying(t, c_order(t.ndim), 0)
            case _:
                order = c_order(t.ndim)
                at = [self._as(t, x, c_order(x.value.ndim)) for x in given]
                return self._made(t, order, t.op, at)

    def _input(self, t: Tensor, strides: tuple[Expr, ...]) -> _Lying:
        order = order_of(t.shape, strides)
        is_reduced = any(isinstance(r.op, Reduce) for r in self._readers[t])
        self._is_moved |= is_reduced and order != c_order(t.ndim)
        return _Lying(self._view(t, t, order), order, nbytes_estimate(t))

    def _broadcast(self, t: Tensor, op: Broadcast, x: _Lying) -> _Lying:
        """New axes are slower than those that there are, which stay in their order; the bytes that
        speak are those of the operand."""
        own = [j for j, a in enumerate(op.axes) if a is not None]
        at = {a: j for j, a in enumerate(op.axes) if a is not None}
        moved = [at[a] for a in x.order]
        order = c_order(t.ndim) if moved == own else (*_others(t.ndim, own), *moved)
        axes = tuple(None if (a := op.axes[j]) is None else x.order.index(a) for j in order)
        made = self._made(t, order, dataclasses.replace(op, axes=axes), [x.value])
        return dataclasses.replace(made, nbytes=x.nbytes)

    def _reshaped(self, t: Tensor, x: _Lying) -> _Lying:
        """Axes that are cut in several, or that lie side by side and become one, keep their place;
        across others the reshape is of the value in C order."""
        order = reshaped_order(t.op.operands[0].shape, t.shape, x.order)
        if order is None:
            order, at = c_order(t.ndim), self._as(t, x, c_order(x.value.ndim))
        else:
            at = x.value
        return dataclasses.replace(self._made(t, order, t.op, [at]), nbytes=x.nbytes)

    def _mapped(self, t: Tensor, op: IndexMap, x: _Lying) -> _Lying:
        """A move within as many axes: those of the result stand as those of the operand do."""
        order = x.order
        at = build.coordinates(tuple(t.shape[a] for a in order))
        renamed = {op.coordinates[a]: at[k] for k, a in enumerate(order)}
        index = tuple(substitute(op.index[a], renamed) for a in order)
        moved = dataclasses.replace(op, coordinates=at, index=index)
        return self._made(t, order, moved, [x.value])

    def _chosen(self, t: Tensor, given: Sequence[_Lying]) -> Order:
        if t in self._wanted:
            return self._wanted[t]
        said: dict[Order, int] = {}
        for x in given:
            said[x.order] = said.get(x.order, 0) + x.nbytes
        return max(said, key=lambda o: said[o])

    def _made(self, t: Tensor, order: Order, op: Op, operands: Sequence[Tensor]) -> _Lying:
        """What stands for a value, made by an op on axes in the order."""
        if order == c_order(t.ndim):
            same = t.op if _is_alike(op, t.op) else op
            made = t.with_op(ir.with_operands(same, tuple(operands)))
        else:
            shape = tuple(t.shape[a] for a in order)
            new = ir.with_operands(op, tuple(operands))
            made = Tensor(t.name, shape, t.dtype, new, t.source)
            self._orders[t.name] = order
        return _Lying(made, order, nbytes_estimate(t))

    def _as(self, reader: Tensor, x: _Lying, order: Order) -> Tensor:
        """A value with its axes in another order, for one that reads it."""
        return self._view(reader, x.value, tuple(x.order.index(a) for a in order))

    def _view(self, reader: Tensor, source: Tensor, axes: Sequence[int]) -> Tensor:
        if isinstance(source.op, Permute) and source not in self._results:
            axes, source = [source.op.axes[a] for a in axes], source.op.operands[0]
        made = build.permute(source, axes)
        if made is not source:
            made.name = fresh_name(f"{reader.name}_of", self._taken)
            made.source = reader.source
        return made


def _along(op: Op, order: Order) -> Op:
    """An op whose operands' axes are its own, on axes in an order."""
    match op:
        case Concat() | Scan() | Sort() | TakeAlong():
            return dataclasses.replace(op, axis=order.index(op.axis))
        case Resize(low=low, high=high):
            ends = {"low": tuple(low[a] for a in order), "high": tuple(high[a] for a in order)}
            return dataclasses.replace(op, **ends)
        case _:
            return op


def _is_alike(a: Op, b: Op) -> bool:
    """Whether two ops are one, operands apart."""
    fields = (f.name for f in dataclasses.fields(b) if f.name != "operands")
    return a is b or all(getattr(a, n) == getattr(b, n) for n in fields)


def _others(count: int, axes: Sequence[int]) -> list[int]:
    return [a for a in range(count) if a not in axes]
