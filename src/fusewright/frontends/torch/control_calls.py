"""Calls of torch's control flow over tensors and sizes alone, and torch's own in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusewright.frontends.torch.library import fx, torch
from fusewright.frontends.torch.table import Result


@dataclass(frozen=True, slots=True, eq=False)
class ControlFlow:
    """A call of torch's control flow over tensors and sizes, in the place of its `operator`, which
    takes the `graphs` that it calls at some `places` among them. `lowering` records it;
    `text` is equal for calls of equal graphs."""

    operator: Any
    graphs: tuple[Any, ...]
    places: tuple[int, ...]
    text: str
    lowering: Callable[..., Result]

    def __call__(self, *args: Any) -> Any:
        """What torch computes."""
        return self.operator(*self.among(args, self.graphs))

    def among(self, args: Sequence[Any], graphs: Sequence[Any]) -> tuple[Any, ...]:
        """The operator's arguments, graphs among the others."""
        out = list(args)
        for place, graph in zip(self.places, graphs, strict=True):
            out.insert(place, graph)
        return tuple(out)

    def __str__(self) -> str:
        return str(self.operator)


def operator_text(target: Any) -> str:
    """Equal for targets of calls that compute the same."""
    return target.text if isinstance(target, ControlFlow) else str(target)


def call_graphs(graph: Any, module: Any) -> None:
    """Makes calls of control flow in a graph into torch's own, over graphs that become a
    module's."""
    for n in list(graph.nodes):
        call = n.target
        if not isinstance(call, ControlFlow):
            continue
        called: list[Any] = []
        with graph.inserting_before(n):
            for k, g in enumerate(call.graphs):
                name = f"{n.name}_graph_{k}"
                setattr(module, name, _of_torch(g))
                called.append(graph.get_attr(name))
        n.target, n.args = call.operator, call.among(n.args, called)


def _of_torch(called: Any) -> Any:
    """A graph that control flow calls, with torch's own calls in it."""
    graph, module = fx.Graph(), torch.nn.Module()
    graph.output(graph.graph_copy(called.graph, {}))
    call_graphs(graph, module)
    return fx.GraphModule(module, graph)
