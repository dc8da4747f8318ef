"""Giving one tensor's loops to others: each takes the projection on the axes it has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.axes.paths import Refusal, domain_path
from fusewright.core.expr import Int, Var
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel


def project_loops(
    graph: AxisGraph, loops: Sequence[Loop], domain: Sequence[AxisClass]
) -> tuple[Loop, ...] | None:
    """Loops like these over another domain: axes it lacks are dropped, axes of its own that the
    loops do not determine follow as serial loops. A loop bound to the grid or the block that mixes
    in an axis it lacks is kept whole: every thread then computes the value it needs itself. None
    when the result does not cover the domain."""
    out: list[Loop] = []
    for x in loops:
        c = graph.project(x.axis, domain)
        if c.is_unit or c.extent == Int(1):
            continue
        out.append(Loop(c if x.parallel.is_serial else x.axis, x.parallel))
    for axis in domain:
        if axis.extent != Int(1) and not graph.depends(axis, [x.axis for x in out]):
            out.append(Loop(axis))
    variables = [(x.axis, Var(f"i{i}", 0, x.axis.extent - 1)) for i, x in enumerate(out)]
    path = domain_path(graph, variables, domain)
    return None if isinstance(path, Refusal) else tuple(out)


def transform_like(
    flow: Dataflow, reference: Stage, others: Iterable[Stage] | None = None
) -> list[Stage]:
    """Gives the loops of `reference` to the others (default: every stage). Returns the stages
    that could not take them and keep their own loops."""
    refused: list[Stage] = []
    chosen = list(others) if others is not None else computed(flow.stages)
    for s in chosen:
        if s is reference or s.is_input:
            continue
        loops = project_loops(flow.graph, reference.loops, s.frame.domain)
        if loops is None:
            refused.append(s)
        else:
            s.loops = tuple(
                Loop(x.axis, Parallel.SERIAL) if x.parallel is Parallel.VECTORIZE else x
                for x in loops
            )
    return refused
