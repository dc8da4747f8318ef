"""The loop nest as text: what `print(schedule)` shows."""

from __future__ import annotations

from fusewright.errors import ScheduleError
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.inline import consumers_of
from fusewright.schedule.nest import LoopNode, build_nest, computed, reduced_loops
from fusewright.schedule.parallel import Parallel


def print_schedule(flow: Dataflow) -> str:
    """The tree of serial loops with the definitions in it, then every tensor's loop domain with
    its axes numbered (r marks a reducing loop, `|` the depth it is inlined at)."""
    lines: list[str] = []
    try:
        nest = build_nest(flow.graph, flow.stages, consumers_of(flow))
        _print_node(flow, nest.root, 0, lines)
    except ScheduleError as e:  # a reader was edited after it was inlined into
        lines.append(f"not legal: {e}")
    lines.append("")
    for s in computed(flow.stages):
        shared = f", last wave in a stream ({s.grid_mode})" if s.streams else ""
        lines.append(f"{s.name}: {s.memory.value} {s.dtype} {_loops(flow, s)}{shared}")
    return "\n".join(lines)


def _print_node(flow: Dataflow, node: LoopNode, depth: int, lines: list[str]) -> None:
    for child in node.children:
        pad = "  " * depth
        if isinstance(child, LoopNode):
            assert child.axis is not None
            kind = "unrolled " if child.parallel is Parallel.UNROLL else ""
            lines.append(f"{pad}for {kind}{child.axis} in {child.axis.extent}:")
            _print_node(flow, child, depth + 1, lines)
        else:
            lines.append(pad + _definition(flow, child))


def _definition(flow: Dataflow, s: Stage) -> str:
    name = getattr(s.op, "fn", type(s.op).__name__.lower())
    reads = ", ".join(o.name for o in s.operands)
    bound = [f"{x.parallel.value}={x.axis.extent}" for x in s.loops if not x.parallel.is_serial]
    where = f"   [{', '.join(bound)}]" if bound else ""
    kind = "reduce_" if s.is_reduction else ""
    return f"{s.name} = {kind}{name}({reads}){where}"


def _loops(flow: Dataflow, s: Stage) -> str:
    reducing = reduced_loops(flow.graph, s)
    parts: list[str] = []
    for i, x in enumerate(s.loops):
        mark = "| " if i == s.inline_depth and i else ""
        r = "r" if i in reducing else ""
        parts.append(f"{mark}{i}:{r}{x.parallel.value}{{{x.axis.extent}}}")
    end = " |" if s.inline_depth and s.inline_depth == len(s.loops) else ""
    return f"[{', '.join(parts)}{end}]"
