"""Brute-force references for the axis graph: enumeration of small index spaces."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.axes.paths import Path
from fusewright.core.conditions import Cond, Truth, substitute_condition
from fusewright.core.expr import Expr, Var, constant_value
from fusewright.core.substitution import evaluate
from fusewright.errors import ScheduleError


def size(cls: AxisClass) -> int:
    """The constant extent of a class."""
    value = constant_value(cls.extent)
    assert value is not None
    return value


def loop_vars(classes: Sequence[AxisClass], prefix: str = "v") -> list[tuple[AxisClass, Var]]:
    """Each class with a variable that runs over it."""
    return [(c, Var(f"{prefix}{k}", 0, c.extent - 1)) for k, c in enumerate(classes)]


def holds(conditions: Sequence[Cond], point: dict[Var, int]) -> bool:
    """Whether all conditions are true at a point."""
    for c in conditions:
        value = substitute_condition(c, point)
        assert isinstance(value, Truth), value
        if not value.value:
            return False
    return True


def visits(path: Path, loops: Sequence[tuple[AxisClass, Var]]) -> dict[tuple[int, ...], int]:
    """How often each domain point is visited, by executing all iterations."""
    count: dict[tuple[int, ...], int] = {}
    guards = (*path.predicates, *path.free_conditions)
    for point in points(loops):
        if holds(guards, point):
            where = tuple(evaluate(e, point) for e in path.values)
            count[where] = count.get(where, 0) + 1
    return count


def points(loops: Sequence[tuple[AxisClass, Var]]):
    """All assignments of the loop variables."""
    for values in itertools.product(*(range(size(c)) for c, _ in loops)):
        yield {v: x for (_, v), x in zip(loops, values, strict=True)}


def everything(domain: Sequence[AxisClass]) -> dict[tuple[int, ...], int]:
    """Each point of a domain once."""
    return dict.fromkeys(itertools.product(*(range(size(c)) for c in domain)), 1)


def numbers(e: Expr, variables: Sequence[Var], point: Sequence[int]) -> int:
    """The value of an expression at a point."""
    return evaluate(e, dict(zip(variables, point, strict=True)))


class Stack:
    """A random stack of loop transforms over a domain, with the meaning of each loop kept as a
    table: domain point -> index of the loop, independent of the axis graph."""

    def __init__(
        self, rng: random.Random, graph: AxisGraph, domain: Sequence[AxisClass], *, crops: bool
    ) -> None:
        self.rng = rng
        self.graph = graph
        self.loops = list(domain)
        self.crops = crops
        self.was_cropped = False
        self.points = list(itertools.product(*(range(size(c)) for c in domain)))
        self.index = [[p[k] for p in self.points] for k in range(len(domain))]

    def total(self) -> int:
        out = 1
        for c in self.loops:
            out *= max(size(c), 1)
        return out

    def step(self) -> None:
        """Apply one random transform."""
        kinds = ["split", "split", "split", "merge", "merge", "resize", "swizzle", "skew"]
        kinds += ["serpentine", "permute"]
        kind = self.rng.choice(kinds)
        k = self.rng.randrange(len(self.loops))
        getattr(self, "_" + kind)(k)

    def _split(self, k: int) -> None:
        factor, inner = self.rng.randint(1, 6), self.rng.random() < 0.6
        old = self.loops[k]
        outer_class, inner_class = self.graph.split(old, factor, inner)
        parts = factor if inner else -(-size(old) // factor)
        assert size(inner_class) == parts
        assert size(outer_class) == (-(-size(old) // parts) if inner else factor)
        values = self.index[k]
        self.loops[k : k + 1] = [outer_class, inner_class]
        self.index[k : k + 1] = [[x // parts for x in values], [x % parts for x in values]]

    def _merge(self, k: int) -> None:
        if len(self.loops) < 2:
            return
        j = self.rng.choice([j for j in range(len(self.loops)) if j != k])
        n = size(self.loops[j])
        merged = self.graph.merge(self.loops[k], self.loops[j])
        values = [x * n + y for x, y in zip(self.index[k], self.index[j], strict=True)]
        self.loops[k], self.index[k] = merged, values
        del self.loops[j], self.index[j]

    def _resize(self, k: int) -> None:
        low, high = self.rng.randint(0, 2), self.rng.randint(0, 2)
        if self.crops and self.rng.random() < 0.5:
            low, high = -low, -high
            if size(self.loops[k]) + low + high < 1:
                return
            values = [x + low for x in self.index[k]]
            extent = size(self.loops[k]) + low + high
            self.was_cropped = True
            inside = [0 <= x < extent for x in values]
            if not all(inside):
                keep = [n for n, ok in enumerate(inside) if ok]
                self.points = [self.points[n] for n in keep]
                self.index = [[row[n] for n in keep] for row in self.index]
        self.loops[k] = self.graph.resize(self.loops[k], low, high)
        self.index[k] = [x + low for x in self.index[k]]

    def _swizzle(self, k: int) -> None:
        for j, other in enumerate(self.loops):
            n = size(self.loops[k])
            if j != k and n & (n - 1) == 0 and n > 1 and size(other) % n == 0:
                try:
                    _, swizzled = self.graph.swizzle(self.loops[k], other)
                except ScheduleError:
                    return
                self.loops[j] = swizzled
                pairs = zip(self.index[k], self.index[j], strict=True)
                self.index[j] = [y ^ x for x, y in pairs]
                return

    def _skew(self, k: int) -> None:
        if len(self.loops) < 2:
            return
        j = self.rng.choice([j for j in range(len(self.loops)) if j != k])
        scale, modulus = self.rng.randint(0, 9), self.rng.choice([2, 3, 4, 8])
        try:
            skewed = self.graph.skew(self.loops[k], self.loops[j], scale, modulus)
        except ScheduleError:
            return
        if size(skewed) == size(self.loops[k]):
            return  # a unit, or nothing to move by
        self.loops[k] = skewed
        pairs = zip(self.index[k], self.index[j], strict=True)
        self.index[k] = [x + y * scale % modulus for x, y in pairs]

    def _serpentine(self, k: int) -> None:
        if len(self.loops) < 2:
            return
        j = self.rng.choice([j for j in range(len(self.loops)) if j != k])
        n = size(self.loops[k])
        try:
            self.loops[k] = self.graph.serpentine(self.loops[k], self.loops[j])
        except ScheduleError:
            return
        pairs = zip(self.index[k], self.index[j], strict=True)
        self.index[k] = [n - 1 - x if y % 2 else x for x, y in pairs]

    def _permute(self, k: int) -> None:
        self.loops.insert(0, self.loops.pop(k))
        self.index.insert(0, self.index.pop(k))
