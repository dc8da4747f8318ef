"""Biases of convolutions, as additions behind them.

torch has the library compute a convolution on a device, and adds the bias in a kernel of its own,
element by element where channels come last. An addition is part of the region that follows.

rewrite:  convolution(x, w, b, ..)   ->   add(convolution(x, w, None, ..), b as a channel's number)
checks:   it computes on a device; the host's libraries add the bias themselves
order:    before the graph is cut into regions
"""

from __future__ import annotations

from typing import Any

from fusewright.frontends.torch.library import aten, fx, torch
from fusewright.frontends.torch.permutations import call_near


def plain_biases(graph: Any) -> None:
    """Takes the biases out of the convolutions of an aten graph with example values."""
    for n in list(graph.nodes):
        if n.op != "call_function" or n.target is not aten.convolution.default or n.kwargs:
            continue
        x, weight, bias, *rest = n.args
        made = n.meta.get("val")
        if not isinstance(bias, fx.Node) or not isinstance(made, torch.Tensor):
            continue
        if made.device.type == "cpu":
            continue
        shape = [bias.meta["val"].shape[0], *(1 for _ in range(made.ndim - 2))]
        with graph.inserting_before(n):
            alone = call_near(graph, n, n.target, x, weight, None, *rest)
            of_channels = call_near(graph, n, aten.view.default, bias, shape)
            added = call_near(graph, n, aten.add.Tensor, alone, of_channels)
        n.replace_all_uses_with(added)
        graph.erase_node(n)
