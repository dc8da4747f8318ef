"""Inlining: how deep a value may be computed inside the loops of its readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial

from fusewright.axes.classes import AxisGraph
from fusewright.axes.paths import value_of
from fusewright.core.expr import ONE, Expr, Int
from fusewright.errors import ScheduleError
from fusewright.memory import Memory
from fusewright.schedule.edits import edit, inline_to
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.nest import build_nest, computed, is_loop, reduced_loops, waiting_loops
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.views import (
    OperandView,
    View,
    is_private,
    loop_value,
    loop_variables,
    operand,
    view,
)


def consumers_of(flow: Dataflow) -> dict[Stage, list[Stage]]:
    """The readers of every stage, in program order."""
    table: dict[Stage, list[Stage]] = {s: [] for s in flow.stages}
    for s in flow.stages:
        for o in dict.fromkeys(s.operands):
            table[o].append(s)
    return table


def placement_problem(
    graph: AxisGraph, producer: Stage, reader: View, position: int, shared: int
) -> str | None:
    """Why `reader` cannot find the element of `producer` that it needs as operand `position` when
    the first `shared` loops are common; None when it can.

    Every loop that is shared and serial, or bound to a dimension across which the producer's
    memory is not shared, must have in the reader the value that the element requires.
    """
    if producer.is_input or producer.is_virtual:
        return None
    read = operand(graph, reader, position)
    reducing = reduced_loops(graph, producer)
    by_dim = {x.parallel: v for x, v in zip(reader.stage.loops, reader.variables, strict=True)}
    for i, loop in enumerate(producer.loops):
        required = _required(producer, i, loop, reader, by_dim, shared)
        kept = (x for k, x in enumerate(producer.loops) if k not in reducing)
        moves = any(graph.is_moved_by(x.axis, [loop.axis]) for x in kept)
        if not graph.depends(loop.axis, producer.frame.domain) and not moves:
            continue
        is_apart = moves and loop.parallel.is_serial and i >= shared
        if is_apart and not _is_at_it(graph, reader, read, i, loop):
            return (
                f"{producer.name} lies elsewhere in each iteration of its loop {i}, which "
                f"{reader.stage.name} does not share"
            )
        if required is None or i in reducing:
            continue
        value = loop_value(graph, reader, read, i)
        if value is None or value != required:
            return (
                f"{reader.stage.name} needs {producer.name} at {loop.parallel.value} loop {i} = "
                f"{value}, but stands at {required}"
            )
    return None


def _is_at_it(graph: AxisGraph, reader: View, read: OperandView, i: int, loop: Loop) -> bool:
    """Whether a reader has a loop of the producer at the same place, and in each iteration reads
    what the producer computes in the same one."""
    loops = reader.stage.loops
    if i >= len(loops) or loops[i].axis is not loop.axis or not loops[i].parallel.is_serial:
        return False
    return loop_value(graph, reader, read, i) == reader.variables[i]


def _required(
    producer: Stage,
    i: int,
    loop: Loop,
    reader: View,
    by_dim: dict[Parallel, Expr],
    shared: int,
) -> Expr | None:
    if loop.axis.extent == ONE:
        return None
    if loop.parallel.is_serial:
        return reader.variables[i] if i < shared else None
    if is_private(loop.parallel, shared_memory=producer.memory is Memory.SHARED):
        return by_dim.get(loop.parallel, Int(-1))
    return None


def check_placement(flow: Dataflow) -> None:
    """Raises ScheduleError at the first reader that cannot find what it reads."""
    for p, problem in misplaced(flow):
        raise ScheduleError(
            f"{problem}; keep {p.name} in shared memory, give both the same transforms, "
            "or inline it less deep"
        )


def misplaced(flow: Dataflow) -> Iterator[tuple[Stage, str]]:
    """The values that a reader cannot find, each with the reason."""
    for s in computed(flow.stages):
        reader = _stage_view(flow, s)
        for k, p in enumerate(s.operands):
            problem = placement_problem(flow.graph, p, reader, k, p.inline_depth)
            if problem is not None:
                yield p, problem


def adopt_prefix(flow: Dataflow, producer: Stage, reader: Stage, depth: int) -> tuple[Loop, ...]:
    """The producer's loops with the reader's first `depth` loops in front: what it needs to be
    computed inside them. Loops of its own that these already determine are dropped."""
    prefix = reader.loops[:depth]
    if producer.loops[:depth] == prefix:
        return producer.loops
    graph = flow.graph
    covered = [x.axis for x in prefix]
    rest = [x for x in producer.loops if not _covered(graph, x, prefix)]
    private: list[Loop] = []
    for x in rest:
        if graph.depends(x.axis, covered):
            raise ScheduleError(
                f"loop {x.axis} of {producer.name} is only partly one of the first {depth} loops "
                f"of {reader.name}; transform {producer.name} like {reader.name} first"
            )
        private.append(x)
    return (*prefix, *private)


def _covered(graph: AxisGraph, loop: Loop, prefix: Sequence[Loop]) -> bool:
    """Whether the loops of a prefix determine where a loop of the producer stands."""
    if any(x.axis is loop.axis for x in prefix):
        return True
    known = [(x.axis, graph.variable(f"i{i}", x.axis.extent)) for i, x in enumerate(prefix)]
    found = value_of(graph, known, loop.axis)
    return found is not None and not found[1]


def _stage_view(flow: Dataflow, s: Stage) -> View:
    """The view of a stage over variables of its loops."""
    return view(flow.graph, s, loop_variables(flow.graph, s.loops))


def _max_depth(
    flow: Dataflow, producer: Stage, readers: Sequence[Stage], view_of: Callable[[Stage], View]
) -> int:
    """How deep `producer` could be inlined as far as its own loops and those of its `readers`, seen
    by `view_of`, tell; the loop tree may allow less."""
    if not readers or producer.is_input:
        return 0
    reducing = waiting_loops(flow.graph, producer, readers)
    depth = len(producer.loops) if not reducing else min(reducing)
    for r in readers:
        same = 0
        for a, b in zip(producer.loops, r.loops, strict=False):
            if a != b or a.parallel is Parallel.VECTORIZE:
                break
            same += 1
        depth = min(depth, same)
    for r in readers:
        reader = view_of(r)
        for k, p in enumerate(r.operands):
            if p is not producer:
                continue
            while depth and placement_problem(flow.graph, p, reader, k, depth) is not None:
                depth -= 1
    return depth


@edit("inline_most")
def inline_most(flow: Dataflow, selected: Iterable[Stage] | None = None) -> None:
    """Inlines every selected stage (default all) as deep as is legal, consumers first."""
    chosen = set(selected) if selected is not None else None
    consumers = consumers_of(flow)
    inlined = [
        s
        for s in reversed(computed(flow.stages))
        if (chosen is None or s in chosen) and consumers[s]
    ]
    before = [s.inline_depth for s in inlined]
    view_of = cache(partial(_stage_view, flow))
    deepest = [_max_depth(flow, s, consumers[s], view_of) for s in inlined]
    if not inlined:
        build_nest(flow.graph, flow.stages, consumers)
        return
    fitting = 0
    while not _fits(flow, consumers, inlined, deepest):
        first = _first_too_deep(flow, consumers, inlined, before, deepest, fitting)
        _set_depths(inlined, [*deepest[: first + 1], *before[first + 1 :]])
        _inline_less(flow, consumers, inlined[first])
        deepest[first], fitting = inlined[first].inline_depth, first + 1


def _set_depths(stages: Sequence[Stage], depths: Sequence[int]) -> None:
    for s, depth in zip(stages, depths, strict=True):
        s.inline_depth = depth


def _fits(
    flow: Dataflow,
    consumers: dict[Stage, list[Stage]],
    stages: Sequence[Stage],
    depths: Sequence[int],
) -> bool:
    """Whether the loops form a tree with stages inlined so deep."""
    _set_depths(stages, depths)
    return _is_tree(flow, consumers)


def _first_too_deep(
    flow: Dataflow,
    consumers: dict[Stage, list[Stage]],
    stages: Sequence[Stage],
    before: Sequence[int],
    deepest: Sequence[int],
    fitting: int,
) -> int:
    """The first stage that the loops form no tree with, when those in front of it are inlined as
    deep as they can and those behind it as before; so many at the front are known to fit."""
    low, high = fitting, len(stages)
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(flow, consumers, stages, [*deepest[:middle], *before[middle:]]):
            low = middle
        else:
            high = middle
    return high - 1


def _inline_less(flow: Dataflow, consumers: dict[Stage, list[Stage]], s: Stage) -> None:
    """Takes a stage out of loops of its readers until the loops form a tree. Raises ScheduleError
    where they form none without it either."""
    while _shares_loops(s) and not _is_tree(flow, consumers):
        s.inline_depth -= 1
        while s.inline_depth and not is_loop(s.loops[s.inline_depth - 1]):
            s.inline_depth -= 1
    if not _shares_loops(s):
        build_nest(flow.graph, flow.stages, consumers)


def load_first(flow: Dataflow, loads: Iterable[Stage], *, inside: int = 0) -> None:
    """Takes loads out of the serial loops of their readers, but for so many outermost ones, so that
    all are in flight together; without those of which registers hold another place in each
    iteration, as in rows that are counted from words."""
    serial = {s: [i for i, x in enumerate(s.loops) if x.parallel.is_serial] for s in loads}
    depths = {s: at[inside] if at[inside:] else len(s.loops) for s, at in serial.items()}
    earlier = {s: depth for s, depth in depths.items() if depth < s.inline_depth}
    inline_to(flow, {s: d for s, d in earlier.items() if _can_stand(flow, s, d)})


def _can_stand(flow: Dataflow, producer: Stage, depth: int) -> bool:
    """Whether all readers find what they need of a stage that shares so many loops with them, and
    no loop of its own moves the others, as each iteration then needs addresses of its own."""
    own = (x.axis for x in producer.loops[depth:] if x.parallel.is_serial)
    if any(flow.graph.is_moved_by(x.axis, [axis]) for axis in own for x in producer.loops):
        return False
    for r in consumers_of(flow)[producer]:
        reader = _stage_view(flow, r)
        for k, p in enumerate(r.operands):
            if p is not producer:
                continue
            if placement_problem(flow.graph, p, reader, k, depth) is not None:
                return False
    return True


def _shares_loops(s: Stage) -> bool:
    """Whether a stage shares loops of the tree with its readers."""
    return any(is_loop(x) for x in s.loops[: s.inline_depth])


def _is_tree(flow: Dataflow, consumers: dict[Stage, list[Stage]]) -> bool:
    try:
        build_nest(flow.graph, flow.stages, consumers)
    except ScheduleError:
        return False
    return True
