"""Programs as CUDA graphs: one node per launch, exactly the edges of the host program.

An executable graph remembers the addresses, and the values of symbols, that it was made or last
updated for. A call whose addresses and values are known replays; one with new ones updates the
graph that was used the longest ago, which does not disturb replays of it that are still running
(CUDA Driver API, cuGraphExecKernelNodeSetParams: changes affect future launches only).
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from fusewright.runtime.device import check, driver
from fusewright.runtime.launch import LoadedKernel
from fusewright.runtime.prepared import add_early_edge

MAX_EXECUTABLES = 4


@dataclass(frozen=True, slots=True)
class LaunchNode:
    """One launch: its kernel, its parameters for the driver, the nodes it waits for; whether it may
    begin before these have ended."""

    kernel: LoadedKernel
    params: Any
    after: tuple[int, ...]
    is_early: bool = False


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Executable:
    """An instantiated graph, its nodes, and the definition they belong to."""

    graph: Any
    nodes: tuple[Any, ...]
    handle: Any


class GraphCache:
    """The executable graphs of nodes with one set of edges on one device. Its caller holds the lock
    of the plans that they belong to."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, _Executable] = OrderedDict()
        self.updates = 0

    def find(self, key: Hashable) -> Any | None:
        """The executable graph for these addresses and values, None when there is none."""
        found = self._known.get(key)
        if found is None:
            return None
        self._known.move_to_end(key)
        return found.handle

    def prepare(self, key: Hashable, nodes: Sequence[LaunchNode]) -> Any:
        """An executable graph for these addresses and values, which the nodes' parameters already
        hold."""
        if len(self._known) < MAX_EXECUTABLES:
            made = _instantiate(nodes)
        else:
            _, made = self._known.popitem(last=False)
            self._update(made, nodes)
        self._known[key] = made
        return made.handle

    def _update(self, x: _Executable, nodes: Sequence[LaunchNode]) -> None:
        self.updates += 1
        update = driver().cuGraphExecKernelNodeSetParams
        for node, launched in zip(x.nodes, nodes, strict=True):
            status = update(x.handle, node, launched.params)
            if status[0]:
                check(status, "cuGraphExecKernelNodeSetParams")


def _instantiate(nodes: Sequence[LaunchNode]) -> _Executable:
    api = driver()
    graph = check(api.cuGraphCreate(0), "cuGraphCreate")
    made: list[Any] = []
    for x in nodes:
        before = [made[k] for k in x.after]
        overlaps = x.is_early and len(before) == 1
        after = [] if overlaps else before
        status = api.cuGraphAddKernelNode(graph, after, len(after), x.params)
        made.append(check(status, "cuGraphAddKernelNode"))
        if overlaps:
            add_early_edge(graph, before[0], made[-1])
    handle = check(api.cuGraphInstantiate(graph, 0), "cuGraphInstantiate")
    found = _Executable(graph, tuple(made), handle)
    weakref.finalize(found, destroy_graph, api, graph, handle).atexit = False
    return found


def destroy_graph(api: Any, graph: Any, handle: Any) -> None:
    """Gives a graph and what it was made into back to the driver."""
    check(api.cuGraphExecDestroy(handle), "cuGraphExecDestroy")
    check(api.cuGraphDestroy(graph), "cuGraphDestroy")
