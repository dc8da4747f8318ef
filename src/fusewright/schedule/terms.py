"""Terms: axes of loops spelled from axes of tensors, as values that need no graph.

    s["y"].axis(0).merge(s["y"].axis(1)).split(4)[1]      the lanes of a vector over all of y

The graph of axes has one class for what equal terms mean, whoever spells them. `Terms` finds the
term of a class by the edges of the graph that have made it, and the class of a term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass, AxisGraph, Making
from fusewright.core.expr import Expr, Int, IntLike, as_expr, constant_value
from fusewright.errors import ScheduleError
from fusewright.schedule.graph import Dataflow, Stage


@dataclass(frozen=True, slots=True)
class AxisTerm:
    """An axis of the tensor called `tensor` (those that it reduces follow its own), or one of the
    results of an edge of the graph."""

    kind: str
    operands: tuple[AxisTerm, ...] = ()
    numbers: tuple[Expr, ...] = ()
    result: int = 0
    tensor: str = ""

    def split(self, factor: IntLike, inner: bool = True) -> tuple[AxisTerm, AxisTerm]:
        """`(outer, inner)`: the inner one has `factor` values, without `inner` the outer one."""
        kind, numbers = "split" if inner else "split_outer", (as_expr(factor),)
        return AxisTerm(kind, (self,), numbers, 0), AxisTerm(kind, (self,), numbers, 1)

    def merge(self, other: AxisTerm) -> AxisTerm:
        """This one outside of the other."""
        return AxisTerm("merge", (self, other))

    def resize(self, low: IntLike, high: IntLike) -> AxisTerm:
        """With so many values more in front and behind; fewer for negative numbers."""
        return AxisTerm("resize", (self,), (as_expr(low), as_expr(high)))

    def skew(self, rows: AxisTerm, stride: IntLike, width: int) -> AxisTerm:
        """Counted from the last multiple of `width` in memory, where `rows` follow each other every
        `stride` elements."""
        return AxisTerm("skew", (self, rows), (as_expr(stride), as_expr(width)))

    def serpentine(self, by: AxisTerm) -> AxisTerm:
        """Backwards where `by` is odd."""
        return AxisTerm("serpentine", (self, by))

    def swizzle(self, by: AxisTerm) -> AxisTerm:
        """`self ^ by`."""
        return AxisTerm("swizzle", (by, self), (), 1)

    def project(self, *onto: AxisTerm) -> AxisTerm:
        """Without what does not depend on these."""
        return AxisTerm("project", (self, *onto))

    def __str__(self) -> str:
        if self.kind == "axis":
            return f's["{self.tensor}"].axis({self.numbers[0]})'
        first, *rest = self.operands[::-1] if self.kind == "swizzle" else self.operands
        given = [str(x) for x in (*rest, *self.numbers)]
        if self.kind == "split_outer":
            given.append("inner=False")
        name, _, _ = self.kind.partition("_")
        end = f"[{self.result}]" if name == "split" else ""
        return f"{first}.{name}({', '.join(given)}){end}"


def axis_term(stage: Stage, position: int) -> AxisTerm:
    """An axis of a tensor. Raises ScheduleError where it has none at that position."""
    n = len(stage.frame.domain)
    if not 0 <= position < n:
        raise ScheduleError(f"axis({stage.name}, {position}): it has {n} axes, reduced ones too")
    return AxisTerm("axis", (), (Int(position),), 0, stage.name)


def class_of(flow: Dataflow, term: AxisTerm) -> AxisClass:
    """The class that a term means. Raises ScheduleError for a tensor that there is none of, and
    for edges that the graph refuses."""
    graph = flow.graph
    if term.kind == "axis":
        stage = next((s for s in flow.stages if s.name == term.tensor), None)
        if stage is None:
            raise ScheduleError(f"{term}: there is no tensor {term.tensor!r} in this schedule")
        return stage.frame.domain[constant_value(term.numbers[0]) or 0]
    first, *rest = (class_of(flow, t) for t in term.operands)
    match term.kind:
        case "split" | "split_outer":
            return graph.split(first, term.numbers[0], term.kind == "split")[term.result]
        case "merge":
            return graph.merge(first, rest[0])
        case "resize":
            return graph.resize(first, *term.numbers)
        case "skew":
            return graph.skew(first, rest[0], term.numbers[0], constant_value(term.numbers[1]) or 1)
        case "serpentine":
            return graph.serpentine(first, rest[0])
        case "swizzle":
            return graph.swizzle(first, rest[0])[term.result]
        case _:
            return graph.project(first, rest)


class Terms:
    """The terms of the classes of a graph, over the axes of some stages."""

    def __init__(self, graph: AxisGraph, stages: Sequence[Stage]) -> None:
        self._graph = graph
        self._found: dict[AxisClass, AxisTerm] = {}
        for s in stages:
            for k, c in enumerate(s.frame.domain):
                self._found.setdefault(graph.normal(c), axis_term(s, k))
        self._made = derivations(graph, tuple(self._found))

    def of(self, cls: AxisClass) -> AxisTerm | None:
        """The term of a class; None where no edges lead to it."""
        here = self._graph.normal(cls)
        if here not in self._found:
            if here not in self._made:
                return None
            making, result = self._made[here].making, self._made[here].result
            operands = tuple(t for t in map(self.of, making.operands) if t is not None)
            self._found[here] = AxisTerm(making.kind, operands, making.numbers, result)
        return self._found[here]


@dataclass(frozen=True, slots=True)
class Derivation:
    """The last edge on the shortest way to a class: which edge it is, its number in the order in
    which they were asked for, and of which result of it the class is."""

    making: Making
    number: int
    result: int


def derivations(
    graph: AxisGraph, start: Sequence[AxisClass], without: Sequence[str] = ()
) -> dict[AxisClass, Derivation]:
    """The shortest ways from some classes to others, by the edges that were asked for."""
    normal = graph.normal
    edges = [
        Making(m.kind, tuple(map(normal, m.operands)), m.numbers, tuple(map(normal, m.made)))
        for m in graph.makings
        if m.kind not in without
    ]
    length = dict.fromkeys(start, 0)
    out: dict[AxisClass, Derivation] = {}
    is_shorter = True
    while is_shorter:
        is_shorter = False
        for number, m in enumerate(edges):
            if any(c not in length for c in m.operands):
                continue
            own = 1 + sum(length[c] for c in m.operands)
            for k, c in enumerate(m.made):
                if own < length.get(c, own + 1):
                    length[c], out[c] = own, Derivation(m, number, k)
                    is_shorter = True
    return out
