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
class Term:
    """An axis of the tensor called `tensor` (those that it reduces follow its own), or one of the
    results of an edge of the graph."""

    kind: str
    operands: tuple[Term, ...] = ()
    numbers: tuple[Expr, ...] = ()
    result: int = 0
    tensor: str = ""

    def split(self, factor: IntLike, inner: bool = True) -> tuple[Term, Term]:
        """`(outer, inner)`: the inner one has `factor` values, without `inner` the outer one."""
        kind, numbers = "split" if inner else "split_outer", (as_expr(factor),)
        return Term(kind, (self,), numbers, 0), Term(kind, (self,), numbers, 1)

    def merge(self, other: Term) -> Term:
        """This one outside of the other."""
        return Term("merge", (self, other))

    def resize(self, low: IntLike, high: IntLike) -> Term:
        """With so many values more in front and behind; fewer for negative numbers."""
        return Term("resize", (self,), (as_expr(low), as_expr(high)))

    def skew(self, rows: Term, stride: IntLike, width: int) -> Term:
        """Counted from the last multiple of `width` in memory, where `rows` follow each other every
        `stride` elements."""
        return Term("skew", (self, rows), (as_expr(stride), as_expr(width)))

    def swizzle(self, by: Term) -> Term:
        """`self ^ by`."""
        return Term("swizzle", (by, self), (), 1)

    def project(self, *onto: Term) -> Term:
        """Without what does not depend on these."""
        return Term("project", (self, *onto))

    def __str__(self) -> str:
        if self.kind == "axis":
            return f"s[{self.tensor!r}].axis({self.numbers[0]})"
        first, *rest = self.operands[::-1] if self.kind == "swizzle" else self.operands
        given = [str(x) for x in (*rest, *self.numbers)]
        if self.kind == "split_outer":
            given.append("inner=False")
        name, _, _ = self.kind.partition("_")
        end = f"[{self.result}]" if name == "split" else ""
        return f"{first}.{name}({', '.join(given)}){end}"


def axis_term(stage: Stage, position: int) -> Term:
    """An axis of a tensor. Raises ScheduleError where it has none at that position."""
    n = len(stage.frame.domain)
    if not 0 <= position < n:
        raise ScheduleError(f"axis({stage.name}, {position}): it has {n} axes, reduced ones too")
    return Term("axis", (), (Int(position),), 0, stage.name)


def class_of(flow: Dataflow, term: Term) -> AxisClass:
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
        case "swizzle":
            return graph.swizzle(first, rest[0])[term.result]
        case _:
            return graph.project(first, rest)


class Terms:
    """The terms of the classes of a graph."""

    def __init__(self, graph: AxisGraph, stages: Sequence[Stage]) -> None:
        self._graph = graph
        self._found: dict[AxisClass, Term | None] = {}
        for s in stages:
            for k, c in enumerate(s.frame.domain):
                self._found.setdefault(graph.normal(c), axis_term(s, k))
        self._made = makings_of(graph)

    def of(self, cls: AxisClass) -> Term | None:
        """The term of a class; None where neither an axis nor an edge has it."""
        here = self._graph.normal(cls)
        if here in self._found:
            return self._found[here]
        self._found[here] = None  # a class that only itself leads to has no term
        found = self._made.get(here)
        if found is not None:
            _, making, result = found
            operands = [self.of(c) for c in making.operands]
            known = tuple(t for t in operands if t is not None)
            if len(known) == len(operands):
                self._found[here] = Term(making.kind, known, making.numbers, result)
        return self._found[here]


def makings_of(graph: AxisGraph) -> dict[AxisClass, tuple[int, Making, int]]:
    """For every class the first edge that made it: its number, and which of its results it is."""
    out: dict[AxisClass, tuple[int, Making, int]] = {}
    for number, m in enumerate(graph.makings):
        for k, c in enumerate(m.made):
            here = graph.normal(c)
            if all(graph.normal(o) is not here for o in m.operands):
                out.setdefault(here, (number, m, k))
    return out
