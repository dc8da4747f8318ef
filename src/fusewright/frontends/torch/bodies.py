"""Bodies of torch's control flow, which are graphs inside of a graph: each is fused as one.

`torch.cond`, `while_loop` and `scan` stay torch's, which decides what runs and how often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fusewright.frontends.torch.calls import is_control_flow
from fusewright.frontends.torch.library import fx, torch
from fusewright.frontends.torch.report import GraphReport

FuseGraph = Callable[[Any, str], "tuple[Any, GraphReport]"]
"""A graph and its name to the graph with its regions fused, which takes a list, and a report."""


class FusedBody(torch.nn.Module):
    """A graph with its regions fused, called as the graph is."""

    def __init__(self, fused: Any) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.fused = fused

    def forward(self, *args: Any) -> Any:
        """What the graph computes."""
        return self.fused.forward(list(args))


def fuse_bodies(module: Any, name: str, fuse: FuseGraph) -> tuple[GraphReport, ...]:
    """Puts fused graphs in the place of those that control flow in a module calls; what was fused
    in each. A graph without example values stays as it is."""
    reports: list[GraphReport] = []
    for target in dict.fromkeys(_bodies(module)):
        body = getattr(module, target)
        fused, report = fuse(body, f"{name}, {target}")
        if report.regions or report.bodies:
            setattr(module, target, FusedBody(fused))
        reports.append(report)
    return tuple(reports)


def _bodies(module: Any) -> Iterator[str]:
    """The names of the graphs that control flow calls."""
    for node in module.graph.nodes:
        if not is_control_flow(node):
            continue
        for read in node.all_input_nodes:
            if read.op == "get_attr" and _is_graph(getattr(module, read.target, None)):
                yield read.target


def _is_graph(x: Any) -> bool:
    """Whether something is a graph whose nodes carry example values."""
    if not isinstance(x, fx.GraphModule):
        return False
    return all("val" in n.meta for n in x.graph.nodes if n.op in ("placeholder", "call_function"))
