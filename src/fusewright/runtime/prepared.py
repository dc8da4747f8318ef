"""One launch of a plan for the driver: its configuration, and its node in a graph.

A launch that begins early has the attribute of programmatic stream serialization (CUDA Driver API,
`CUlaunchAttributeID`): it may begin when the launch before it on the stream lets it, or has ended.
So it is given only where that one is of the same plan. Whatever else is before it is waited for:
nobody knows what that writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusewright.runtime.device import check, driver
from fusewright.runtime.launch import LoadedKernel, PackedLaunch


@dataclass(eq=False, slots=True)
class Prepared:
    """One launch: its number in the host program, its kernel and shape, the driver's
    configuration, and the address of the table of its parameters in the plan's buffer; whether it
    may begin before the one before it has ended, which is of the same plan then."""

    number: int
    kernel: LoadedKernel
    shape: PackedLaunch
    config: Any
    address: int
    is_early: bool = False

    def on(self, stream: int, *, overlaps: bool = True) -> None:
        """Makes a stream its own; unless it `overlaps` it begins when all before it has ended."""
        self.config.hStream = stream
        if self.is_early:
            self.config.numAttrs = int(overlaps)

    @property
    def node_params(self) -> Any:
        """What a node of a graph is made of."""
        params = driver().CUDA_KERNEL_NODE_PARAMS()
        _set_shape(params, self.shape)
        params.kern = self.kernel.library_kernel
        params.kernelParams = self.address
        return params


def prepared(
    number: int, kernel: LoadedKernel, shape: PackedLaunch, address: int, *, is_first: bool
) -> Prepared:
    """A launch on no stream yet; `is_first`: no launch of the same plan is right before it."""
    api = driver()
    config = api.CUlaunchConfig()
    _set_shape(config, shape)
    is_early = kernel.kernel.begins_early and not is_first
    if is_early:
        attribute = api.CUlaunchAttribute()
        names = api.CUlaunchAttributeID
        attribute.id = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs = [attribute]
        config.numAttrs = 1
    return Prepared(number, kernel, shape, config, address, is_early)


def _set_shape(target: Any, shape: PackedLaunch) -> None:
    target.gridDimX, target.gridDimY, target.gridDimZ = shape.grid
    target.blockDimX, target.blockDimY, target.blockDimZ = shape.block
    target.sharedMemBytes = shape.shared_nbytes


def add_early_edge(graph: Any, before: Any, node: Any) -> None:
    """Lets a node of a graph begin when the node before it, of a kernel, lets it or has ended
    (CUDA Driver API, `CUgraphEdgeData`)."""
    api = driver()
    edge = api.CUgraphEdgeData()
    edge.from_port = int(api.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)
    edge.type = int(api.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    check(api.cuGraphAddDependencies(graph, [before], [node], [edge], 1), "cuGraphAddDependencies")
