"""Programs with regions as CUDA graphs: loops of known trips written out, conditions on the device.

A `while_loop` is a conditional node that runs its body graph as long as a value on the device is
not 0, a `cond` one that runs one of two. A kernel of one thread sets that value from the bool that
a body computed (CUDA programming guide, "Conditional Graph Nodes"). Nodes stand in a row: each
waits for the one before it.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from fusewright.cuda.compile import compile_cubin
from fusewright.runtime.device import check, driver
from fusewright.runtime.graphs import MAX_EXECUTABLES, destroy_graph
from fusewright.runtime.locks import after_fork, fork_safe_lock
from fusewright.target import Target

MAX_NODES = 4096
"""Nodes of a program that is recorded: the interpreter adds one in a few microseconds, and the
call that records waits for all of them."""
SETTER = "fw_set_condition"
_SOURCE = f"""
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);
extern "C" __global__ void {SETTER}(unsigned long long handle, const bool* condition) {{
  cudaGraphSetConditional(handle, *condition ? 1u : 0u);
}}
"""
"""The driver knows the function that it calls: the cubin that NVRTC 13.0 makes of it leaves that
symbol undefined, and so does no module of the device runtime define it (libcudadevrt.a, 13.0)."""


@cache
def _setter(target: Target) -> Any:
    """The kernel that sets a condition, on the device."""
    api = driver()
    cubin = compile_cubin(_SOURCE, target, name=SETTER).cubin
    library = check(api.cuLibraryLoadData(cubin, [], [], 0, [], [], 0), "cuLibraryLoadData")
    return check(api.cuLibraryGetKernel(library, SETTER.encode()), "cuLibraryGetKernel")


after_fork(_setter.cache_clear)


class Recorder:
    """Adds nodes to a graph, one behind the other. The caller has made the context current."""

    def __init__(self, graph: Any, whole: Any, target: Target) -> None:
        """`whole` is the graph that is launched, of which `graph` is a part."""
        self._graph, self._whole, self._target = graph, whole, target
        self._last: list[Any] = []
        self._api = driver()

    def kernel(self, params: Any) -> None:
        """A launch, with the parameters that its table points to now."""
        before = self._last
        status = self._api.cuGraphAddKernelNode(self._graph, before, len(before), params)
        self._last = [check(status, "cuGraphAddKernelNode")]

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """A copy of bytes of the device."""
        api = self._api
        p = api.CUDA_MEMCPY3D()
        on_device = api.CUmemorytype.CU_MEMORYTYPE_DEVICE
        p.srcMemoryType = p.dstMemoryType = on_device
        p.srcDevice, p.dstDevice = source, target
        p.WidthInBytes, p.Height, p.Depth = nbytes, 1, 1
        context = check(api.cuCtxGetCurrent(), "cuCtxGetCurrent")
        before = self._last
        status = api.cuGraphAddMemcpyNode(self._graph, before, len(before), p, context)
        self._last = [check(status, "cuGraphAddMemcpyNode")]

    def repeat(self, condition: int, body: Callable[[Recorder], None]) -> None:
        """Runs a body as long as the bool at an address is true, which the body computes again."""
        kinds = self._api.CUgraphConditionalNodeType
        handle = self._condition(condition)
        (inside,) = self._conditional(handle, kinds.CU_GRAPH_COND_TYPE_WHILE, 1)
        body(inside)
        inside._set(handle, condition)

    def choose(self, condition: int, branches: Sequence[Callable[[Recorder], None]]) -> None:
        """Runs the first branch where the bool at an address is true, else the second one."""
        kinds = self._api.CUgraphConditionalNodeType
        handle = self._condition(condition)
        made = self._conditional(handle, kinds.CU_GRAPH_COND_TYPE_IF, 2)
        for recorder, branch in zip(made, branches, strict=True):
            branch(recorder)

    def _condition(self, address: int) -> Any:
        """A value that conditional nodes look at, set from the bool at an address."""
        api = self._api
        context = check(api.cuCtxGetCurrent(), "cuCtxGetCurrent")
        made = api.cuGraphConditionalHandleCreate(self._whole, context, 0, 0)
        handle = check(made, "cuGraphConditionalHandleCreate")
        self._set(handle, address)
        return handle

    def _set(self, handle: Any, address: int) -> None:
        values = (ctypes.c_uint64 * 2)(int(handle), address)
        first = ctypes.addressof(values)
        table = (ctypes.c_void_p * 2)(first, first + 8)
        params = self._api.CUDA_KERNEL_NODE_PARAMS()
        params.gridDimX = params.gridDimY = params.gridDimZ = 1
        params.blockDimX = params.blockDimY = params.blockDimZ = 1
        params.sharedMemBytes = 0
        params.kern = _setter(self._target)
        params.kernelParams = ctypes.addressof(table)
        self.kernel(params)

    def _conditional(self, handle: Any, kind: Any, size: int) -> list[Recorder]:
        """A conditional node, and what adds to each of its graphs."""
        api = self._api
        params = api.CUgraphNodeParams()
        params.type = api.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle = handle
        params.conditional.type = kind
        params.conditional.size = size
        params.conditional.ctx = check(api.cuCtxGetCurrent(), "cuCtxGetCurrent")
        before = self._last
        status = api.cuGraphAddNode(self._graph, before, None, len(before), params)
        self._last = [check(status, "cuGraphAddNode")]
        graphs = params.conditional.phGraph_out
        return [Recorder(graphs[k], self._whole, self._target) for k in range(size)]


class _RegionExecutable:
    """An instantiated graph."""

    def __init__(self, record: Callable[[Recorder], None], target: Target) -> None:
        api = driver()
        graph = check(api.cuGraphCreate(0), "cuGraphCreate")
        record(Recorder(graph, graph, target))
        self.handle = check(api.cuGraphInstantiate(graph, 0), "cuGraphInstantiate")
        weakref.finalize(self, destroy_graph, api, graph, self.handle).atexit = False


class RegionGraphs:
    """The graphs of a program with regions, by the addresses that they were recorded for. Recording
    costs what some ten calls cost, so that addresses are recorded once they come again."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = fork_safe_lock()
        self._known: OrderedDict[tuple[int, ...], _RegionExecutable | None] = OrderedDict()
        """None for addresses that came once."""

    def launch(
        self, addresses: tuple[int, ...], record: Callable[[Recorder], None], stream: int
    ) -> bool:
        """Launches the graph for these addresses. False, and nothing is launched, where they have
        not come before."""
        with self._lock:
            came = addresses in self._known
            found = self._known.get(addresses)
            if came and found is None:
                found = _RegionExecutable(record, self._target)
            self._known[addresses] = found
            self._known.move_to_end(addresses)
            if len(self._known) > MAX_EXECUTABLES:
                self._known.popitem(last=False)
        if found is None:
            return False
        check(driver().cuGraphLaunch(found.handle, stream), "cuGraphLaunch")
        return True
