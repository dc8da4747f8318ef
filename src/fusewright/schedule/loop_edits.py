"""From the loops of a tensor to others: the splits, merges and orders that a hand would write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fusewright.axes.classes import AxisClass, AxisGraph, Making
from fusewright.core.expr import Int, constant_value
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.terms import derivations

Step = tuple[str, tuple[object, ...]]
"""A method of a scheduled tensor, and its arguments."""


def loop_edits(
    graph: AxisGraph, before: Sequence[Loop], after: Sequence[Loop]
) -> list[Step] | None:
    """The edits that lead from some loops to others, by the edges of the graph that made these;
    None where an axis of the others is not made of the first ones alone."""
    start = [graph.normal(x.axis) for x in before]
    wanted = [graph.normal(x.axis) for x in after]
    left = _needed(graph, start, wanted)
    loops = _Loops(start, [x.parallel for x in before])
    while left:
        ready = next((m for m in left if all(c in loops.axes for c in m.operands)), None)
        if ready is None:
            return None
        loops.do(ready)
        left.remove(ready)
    if left is None or not loops.drop_units(wanted) or not loops.arrange(wanted):
        return None
    loops.bind([x.parallel for x in after])
    return loops.steps


def _needed(
    graph: AxisGraph, start: Sequence[AxisClass], wanted: Sequence[AxisClass]
) -> list[Making] | None:
    """The edges behind the wanted classes, in the order in which they were asked for; None where
    other loops are behind them."""
    made = derivations(graph, start, without=("project", "swizzle"))
    found: dict[int, Making] = {}
    todo = [c for c in wanted if c.digits or c.atom is not None]
    seen = set(start)
    while todo:
        c = todo.pop()
        if c in seen:
            continue
        seen.add(c)
        if c not in made:
            return None
        found[made[c].number] = made[c].making
        todo += made[c].making.operands
    return [m for _, m in sorted(found.items())]


@dataclass(slots=True)
class _Loops:
    """Loops on their way, and the steps taken."""

    axes: list[AxisClass]
    kinds: list[Parallel]
    steps: list[Step] = field(default_factory=list[Step])

    def do(self, m: Making) -> None:
        """Takes one edge."""
        places = [self.axes.index(c) for c in m.operands]
        i = places[0]
        match m.kind:
            case "split" | "split_outer":
                inner = () if m.kind == "split" else (False,)
                self.steps.append(("split", (i, _number(m, 0), *inner)))
                self.axes[i : i + 1] = m.made
                self.kinds.insert(i + 1, Parallel.SERIAL)
            case "merge":
                self._merge(i, places[1], m.made[0])
            case "skew":
                numbers = (_number(m, 0), _number(m, 1))
                self.steps.append(("skew", (i, places[1], *numbers)))
                self.axes[i] = m.made[0]
            case "serpentine":
                self.steps.append(("serpentine", (i, places[1])))
                self.axes[i] = m.made[0]
            case _:
                self.steps.append(("resize", (i, _number(m, 0), _number(m, 1))))
                self.axes[i] = m.made[0]

    def _merge(self, i: int, j: int, made: AxisClass) -> None:
        self.steps.append(("merge", (i,) if j == i + 1 else (i, j)))
        self.axes[i] = made
        del self.axes[j], self.kinds[j]

    def drop_units(self, wanted: Sequence[AxisClass]) -> bool:
        """Merges loops with one value into others, where they are not wanted, and splits off those
        that are."""
        for c in [c for c in self.axes if c not in wanted]:
            if c.extent != Int(1):
                return False
            k = self.axes.index(c)
            if len(self.axes) > 1:
                other = k - 1 if k else 1
                self._merge(other, k, self.axes[other])
        while len(self.axes) < len(wanted):
            missing = next(c for c in wanted if wanted.count(c) > self.axes.count(c))
            if missing.extent != Int(1) or not self.axes:
                return False
            self.steps.append(("split", (0, 1)))
            self.axes.insert(1, missing)
            self.kinds.insert(1, Parallel.SERIAL)
        return True

    def arrange(self, wanted: Sequence[AxisClass]) -> bool:
        """Puts the loops in order."""
        left: list[int | None] = list(range(len(self.axes)))
        order: list[int] = []
        for c in wanted:
            k = next((k for k in left if k is not None and self.axes[k] is c), None)
            if k is None:
                return False
            left[k] = None
            order.append(k)
        order = [*(k for k in left if k is not None), *order]
        if order != sorted(order):
            self.steps.append(("reorder", (tuple(order),)))
        self.kinds = [self.kinds[k] for k in order]
        return True

    def bind(self, kinds: Sequence[Parallel]) -> None:
        """Binds the loops."""
        first = len(self.kinds) - len(kinds)
        for i, kind in enumerate(kinds, first):
            if self.kinds[i] is not kind:
                self.steps.append(("parallelize", (i, kind)))


def _number(m: Making, k: int) -> object:
    found = constant_value(m.numbers[k])
    return m.numbers[k] if found is None else found
