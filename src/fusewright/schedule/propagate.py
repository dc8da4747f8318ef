"""Giving one tensor's loops to others: each takes the projection on the axes it has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.axes.paths import Refusal, domain_path
from fusewright.core.expr import ONE
from fusewright.schedule.edits import edit
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.nest import computed, mixed_loop, scan_problem
from fusewright.schedule.parallel import Loop, Parallel


def project_loops(
    graph: AxisGraph,
    loops: Sequence[Loop],
    domain: Sequence[AxisClass],
    *,
    align: bool = False,
) -> tuple[Loop, ...] | None:
    """Loops like these over another domain: axes it lacks are dropped, axes of its own that the
    loops do not determine follow as serial loops. A loop bound to the grid or the block that mixes
    in an axis it lacks is kept whole: every thread then computes the value it needs itself; so is
    one that another loop is twisted by. Loops inside of an instruction or a box become loops of the
    text, those that count accumulators unrolled. With `align` loops bound to the grid or the block
    are kept in front of others even when it lacks them wholly, so that it can be computed inside a
    reader's loops; those of one trip always are. None when the result does not cover the domain."""
    out: list[Loop] = []
    free: list[Loop] = []
    plain = {Parallel.BULK: Parallel.SERIAL, Parallel.MMA: Parallel.UNROLL}
    loops = [Loop(x.axis, plain.get(x.parallel, x.parallel)) for x in loops]
    projected = [(x, graph.project(x.axis, domain)) for x in loops]
    wanted = [c for _, c in projected if c.extent != ONE]
    for x, c in projected:
        if c.is_unit or c.extent == ONE:
            if any(graph.is_moved_by(w, [x.axis]) for w in wanted):
                out += [*free, x]
                free = []
            elif (align or x.axis.is_unit) and _is_bound(x):
                free.append(x)
            continue
        out += [*free, Loop(c if x.parallel.is_serial else x.axis, x.parallel)]
        free = []
    for axis in domain:
        if axis.extent != ONE and not graph.depends(axis, [x.axis for x in out]):
            out.append(Loop(axis))
    return next((x for x in (tuple(out), tuple(loops)) if _covers(graph, x, domain)), None)


def _covers(graph: AxisGraph, loops: Sequence[Loop], domain: Sequence[AxisClass]) -> bool:
    """Whether loops visit every point of a domain."""
    known = [(x.axis, graph.loop_variable(i, x.axis)) for i, x in enumerate(loops)]
    return not isinstance(domain_path(graph, known, domain), Refusal)


def _is_bound(x: Loop) -> bool:
    """Whether a loop runs over blocks or threads."""
    return not x.parallel.is_serial and x.parallel is not Parallel.VECTORIZE


@edit("transform_like")
def transform_like(
    flow: Dataflow,
    reference: Stage,
    others: Iterable[Stage] | None = None,
    *,
    align: bool = False,
) -> list[Stage]:
    """Gives the loops of `reference` to the others (default: every stage); `align` as in
    `project_loops`. A stage that is inlined in other loops is taken out of them, and so is what is
    inlined in loops that it loses. Returns the stages that could not take the loops and keep their
    own."""
    refused: list[Stage] = []
    chosen = list(others) if others is not None else computed(flow.stages)
    known: dict[tuple[AxisClass, ...], tuple[Loop, ...] | None] = {}
    for s in chosen:
        if s is reference or s.is_input:
            continue
        domain = tuple(map(flow.graph.normal, s.frame.domain))
        if domain not in known:
            known[domain] = project_loops(flow.graph, reference.loops, domain, align=align)
        loops = known[domain]
        if (
            loops is None
            or mixed_loop(flow.graph, s, loops) is not None
            or scan_problem(flow.graph, s, loops)
        ):
            refused.append(s)
        else:
            taken = tuple(
                Loop(x.axis, Parallel.SERIAL) if x.parallel is Parallel.VECTORIZE else x
                for x in loops
            )
            if taken[: s.inline_depth] != s.loops[: s.inline_depth]:
                s.inline_depth = 0
            for o in s.operands:
                if taken[: o.inline_depth] != s.loops[: o.inline_depth]:
                    o.inline_depth = 0
            s.loops = taken
    return refused
