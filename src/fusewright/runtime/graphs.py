"""Programs as CUDA graphs: one node per launch, exactly the edges of the host program.

An executable graph remembers the addresses it was made or last updated for. A call whose
addresses are known replays; one with new addresses updates the graph that was used the longest
ago, which does not disturb replays of it that are still running (CUDA Driver API,
cuGraphExecKernelNodeSetParams: changes affect future launches only).
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fusewright.runtime.device import check, driver
from fusewright.runtime.launch import LoadedKernel

MAX_EXECUTABLES = 4


@dataclass(frozen=True, slots=True)
class Node:
    """One launch: its kernel, its parameters for the driver, the nodes it waits for."""

    kernel: LoadedKernel
    params: Any
    after: tuple[int, ...]


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Executable:
    """An instantiated graph, its nodes, and the definition they belong to."""

    graph: Any
    nodes: tuple[Any, ...]
    handle: Any
    addresses: tuple[int, ...] = field(default=())


class GraphCache:
    """The executable graphs of one plan on one device. Its caller holds the plan's lock."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = tuple(nodes)
        self._known: OrderedDict[tuple[int, ...], _Executable] = OrderedDict()
        self.updates = 0

    def find(self, addresses: tuple[int, ...]) -> Any | None:
        """The executable graph for these addresses, None when there is none."""
        found = self._known.get(addresses)
        if found is None:
            return None
        self._known.move_to_end(addresses)
        return found.handle

    def prepare(self, addresses: tuple[int, ...]) -> Any:
        """An executable graph for these addresses, which the nodes' parameters already hold."""
        if len(self._known) < MAX_EXECUTABLES:
            made = _instantiate(self._nodes)
        else:
            _, made = self._known.popitem(last=False)
            self._update(made)
        self._known[addresses] = made
        return made.handle

    def _update(self, x: _Executable) -> None:
        self.updates += 1
        update = driver().cuGraphExecKernelNodeSetParams
        for node, launched in zip(x.nodes, self._nodes, strict=True):
            status = update(x.handle, node, launched.params)
            if status[0]:
                check(status, "cuGraphExecKernelNodeSetParams")


def _instantiate(nodes: Sequence[Node]) -> _Executable:
    api = driver()
    graph = check(api.cuGraphCreate(0), "cuGraphCreate")
    made: list[Any] = []
    for x in nodes:
        after = [made[k] for k in x.after]
        status = api.cuGraphAddKernelNode(graph, after, len(after), x.params)
        made.append(check(status, "cuGraphAddKernelNode"))
    handle = check(api.cuGraphInstantiate(graph, 0), "cuGraphInstantiate")
    found = _Executable(graph, tuple(made), handle)
    weakref.finalize(found, _destroy, api, graph, handle).atexit = False
    return found


def _destroy(api: Any, graph: Any, handle: Any) -> None:
    check(api.cuGraphExecDestroy(handle), "cuGraphExecDestroy")
    check(api.cuGraphDestroy(graph), "cuGraphDestroy")
