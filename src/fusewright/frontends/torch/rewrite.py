"""A graph with its regions replaced by single calls."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fusewright.frontends.torch.calls import is_view, tensors_of
from fusewright.frontends.torch.effects import is_wait, predecessors
from fusewright.frontends.torch.gaps import lay_with_gaps
from fusewright.frontends.torch.in_place import join_copies, write_in_place, write_results
from fusewright.frontends.torch.library import fx
from fusewright.frontends.torch.partition import GraphPartition, nbytes
from fusewright.frontends.torch.region import GraphPart
from fusewright.frontends.torch.tidy import tidy


def parts_of(graph: Any, partition: GraphPartition) -> list[GraphPart]:
    """What each region computes, reads and gives away.

    Views are never given away: torch makes them again, in no time, from what is. Constants that a
    region reads are made in it. A region that reads no tensor is given the smallest argument of the
    graph on its device, which says where to compute; without one it is left to torch.
    """
    parts: list[GraphPart] = []
    for region in partition.regions:
        part = _part(f"fused_{len(parts)}", region, partition.constants)
        if not part.tensors:
            part = replace(part, inputs=(*part.inputs, *_anchor(graph, region)))
        if part.tensors:
            parts.append(part)
    return parts


def _anchor(graph: Any, region: Sequence[Any]) -> list[Any]:
    """The smallest tensor argument on the region's device, if there is one."""
    device = next(tensors_of(region[0].meta["val"])).device
    found = [
        n
        for n in graph.nodes
        if n.op == "placeholder" and any(t.device == device for t in tensors_of(n.meta.get("val")))
    ]
    return sorted(found, key=lambda n: nbytes(n.meta["val"]))[:1]


def _part(name: str, region: Sequence[Any], constants: Mapping[Any, None]) -> GraphPart:
    inside = dict.fromkeys(region)
    outputs: dict[Any, None] = {}
    for n in region:
        if any(u not in inside for u in n.users):
            _give_away(n, inside, outputs)
    made = _needed(region, constants)
    used = _used(outputs, dict.fromkeys((*made, *region)))
    read = dict.fromkeys(p for n in used for p in n.all_input_nodes)
    inputs = tuple(p for p in read if p not in inside and p not in made)
    ordered = tuple(n for n in region if n in outputs)
    return GraphPart(name, tuple(used), tuple(region), inputs, ordered)


def _used(outputs: Iterable[Any], members: Mapping[Any, None]) -> list[Any]:
    """The members that the outputs are made of, in order. Views of results that others read are
    not: so regions are equal that differ in how they are looked at."""
    found: set[Any] = set()
    waiting = list(outputs)
    while waiting:
        n = waiting.pop()
        if n in members and n not in found:
            found.add(n)
            waiting += n.all_input_nodes
    return [n for n in members if n in found]


def _needed(region: Sequence[Any], constants: Mapping[Any, None]) -> list[Any]:
    """The constants that a region reads, and those that they are made of, in order."""
    found: set[Any] = set()
    waiting = list(region)
    while waiting:
        for p in waiting.pop().all_input_nodes:
            if p in constants and p not in found:
                found.add(p)
                waiting.append(p)
    return [n for n in constants if n in found]


def _give_away(node: Any, inside: Mapping[Any, None], outputs: dict[Any, None]) -> None:
    if not is_view(node):
        outputs[node] = None
        return
    for p in node.all_input_nodes:
        if p in inside:
            _give_away(p, inside, outputs)


# --- the new graph ------------------------------------------------------------------------------


class BoxedCode(fx.graph.CodeGen):  # type: ignore[name-defined, misc]
    """Code that takes its arguments in one list and empties it, so that each is freed after its
    last use."""

    def gen_fn_def(self, free_vars: list[str], returns: str, **_options: Any) -> str:
        names = [v.split(":")[0].split("=")[0].strip() for v in free_vars if v != "self"]
        head = f"def {self._func_name}(self, boxed){returns}:"
        if not names:
            return head
        return f"{head}\n    {', '.join(names)}, = boxed\n    boxed.clear()"


def rewrite(module: Any, parts: Sequence[GraphPart], call: Callable[[GraphPart], Any]) -> Any:
    """The graph module with `call(part)` in place of each part's nodes; takes a boxed list."""
    writer = _Writer()
    for unit in in_order(module.graph, parts):
        if isinstance(unit, GraphPart):
            writer.call(unit, call(unit))
        else:
            writer.copy(unit)
    tidy(writer.graph)
    write_in_place(writer.graph)
    write_results(writer.graph)
    lay_with_gaps(writer.graph)
    join_copies(writer.graph)
    writer.graph.eliminate_dead_code(_has_effects)
    writer.graph.set_codegen(BoxedCode())
    return fx.GraphModule(module, writer.graph)


def _has_effects(node: Any) -> bool:
    """Whether a node is needed although nobody reads its result: regions that write to arguments,
    and what torch says."""
    return bool(getattr(node.target, "targets", None)) or node.is_impure()


class _Writer:
    def __init__(self) -> None:
        self.graph = fx.Graph()
        self._known: dict[Any, Any] = {}

    def copy(self, node: Any) -> Any:
        """The node over the new graph's values."""
        self._known[node] = self.graph.node_copy(node, self.value)
        return self._known[node]

    def value(self, node: Any) -> Any:
        """The node's value outside of regions; a view that a region made for itself is repeated."""
        found = self._known.get(node)
        return self.copy(node) if found is None else found

    def call(self, part: GraphPart, target: Any) -> None:
        """A call of the part, and its results."""
        args = tuple(self.value(n) for n in part.inputs)
        made = self.graph.create_node("call_function", target, args, name=part.name)
        for k, n in enumerate(part.outputs):
            self._known[n] = self.graph.call_function(operator.getitem, (made, k))
            self._known[n].meta = dict(n.meta)


def in_order(graph: Any, parts: Sequence[GraphPart]) -> list[Any]:
    """Parts, and the nodes outside of them, each after all that it reads, otherwise in the order of
    their last nodes; but waits for collectives, and views, stand right before who reads them
    first, so that what does not need the result runs while it is on its way."""
    owner = {n: p for p in parts for n in p.owned}
    units: dict[Any, int] = {}
    for k, n in enumerate(graph.nodes):
        units[owner.get(n, n)] = k
    waiting = dict.fromkeys(units, 0)
    readers: dict[Any, list[Any]] = {u: [] for u in units}
    for n, before in predecessors(graph).items():
        unit = owner.get(n, n)
        for p in before:
            source = owner.get(p, p)
            if source is not unit:
                readers[source].append(unit)
                waiting[unit] += 1
    place = _places(units, readers)
    by_place = {place[u]: u for u in units}
    ready = [place[u] for u in units if not waiting[u]]
    heapq.heapify(ready)
    out: list[Any] = []
    while ready:
        unit = by_place[heapq.heappop(ready)]
        out.append(unit)
        for r in readers[unit]:
            waiting[r] -= 1
            if not waiting[r]:
                heapq.heappush(ready, place[r])
    assert len(out) == len(units), "a way leads out of a region and back into it"
    return out


def _places(
    units: Mapping[Any, int], readers: Mapping[Any, Sequence[Any]]
) -> dict[Any, tuple[int, int]]:
    """Where each unit should stand: by the index of its last node; what runs nothing by that of its
    first reader, in front of it."""
    place: dict[Any, tuple[int, int]] = {}
    for u, k in sorted(units.items(), key=lambda item: item[1], reverse=True):
        runs = isinstance(u, GraphPart) or not (is_wait(u) or is_view(u))
        first = k if runs else min((place[r][0] for r in readers[u]), default=k)
        place[u] = (first, k)
    return place
