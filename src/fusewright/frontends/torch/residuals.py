"""What a backward program is handed by its forward program: the cut of least bytes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from fusewright.core.substitution import evaluate
from fusewright.fusion import ir
from fusewright.fusion.ir import MatMul, Reduce, Scan, Tensor

networkx: Any = importlib.import_module("networkx")  # torch depends on it

_SOURCE, _SINK = "source", "sink"


def residuals(
    arguments: Sequence[Tensor],
    results: Sequence[Tensor],
    gradients: Sequence[Tensor],
    seeds: Sequence[Tensor],
) -> list[Tensor]:
    """The values to keep so that `gradients` follow from them and from `seeds`, moving the fewest
    bytes; whatever else they need of the function is computed again.

    An argument or a result that is kept is read by the backward program; another value is also
    written for it. Products, reductions and scans are not computed again, everything else costs
    nothing beside its bytes. It is the minimum cut of a graph in which each value is an edge, as
    in PyTorch's min-cut partitioner (torch/_functorch/partitioners.py).
    """
    behind = _behind(gradients, seeds)
    at_hand = {*arguments, *results}
    graph: Any = networkx.DiGraph()
    graph.add_nodes_from((_SOURCE, _SINK))
    values = [t for t in ir.topological(tuple(gradients)) if t not in behind]
    arguments_met = set(arguments)
    for t in values:
        weight = _nbytes(t) * (1 if t in at_hand else 2)
        graph.add_edge((t, "in"), (t, "out"), capacity=weight)
        if t in arguments_met or isinstance(t.op, Reduce | Scan | MatMul):
            graph.add_edge(_SOURCE, (t, "in"))  # without a capacity: never cut
        else:
            for o in t.op.operands:
                graph.add_edge((o, "out"), (t, "in"))
    for t in [*behind, *(g for g in gradients if g not in behind)]:
        for o in t.op.operands if t in behind else (t,):
            if o not in behind:
                graph.add_edge((o, "out"), _SINK)
    _, (reached, _) = networkx.minimum_cut(graph, _SOURCE, _SINK)
    return [t for t in values if (t, "in") in reached and (t, "out") not in reached]


def _behind(gradients: Sequence[Tensor], seeds: Sequence[Tensor]) -> dict[Tensor, None]:
    """The values that depend on a seed."""
    found: dict[Tensor, None] = dict.fromkeys(seeds)
    for t in ir.topological(tuple(gradients)):
        if any(o in found for o in t.op.operands):
            found[t] = None
    return found


def _nbytes(t: Tensor) -> int:
    count = 1
    for s in t.shape:
        count *= evaluate(s, {})
    return count * t.dtype.nbytes
