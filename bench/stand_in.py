"""A device that is not there: host tensors of torch stand for its memory.

Regions of torch graphs bind, allocate and launch as on a GPU; the allocator is torch's own for the
host, and what is launched is up to the driver that is given. With one that does nothing, what is
left of a call is the time of the host.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from typing import Any
from unittest import mock

import torch

from fusewright.frontends.torch import graph_call, region, written
from fusewright.kernel import Kernel
from fusewright.runtime import (
    arrays,
    constants,
    control,
    device,
    forks,
    graphs,
    launch,
    libraries,
    memory,
    plan,
    prepared,
    region_graphs,
    state,
    tensor_maps,
    torch_calls,
)
from fusewright.runtime.arrays import Device

_DRIVEN = (
    constants, control, device, forks, graphs, launch, memory, plan, prepared, region_graphs,
    state,
    tensor_maps,
)  # fmt: skip
_DEVICE = Device("cuda", 0)


class Structure:
    """A structure of the driver's binding."""

    hStream = 0


class IdleDriver:
    """Says yes to every call."""

    CUlaunchConfig = CUDA_KERNEL_NODE_PARAMS = Structure

    def cubin(self, _: Kernel) -> bytes:
        """What it would load of a kernel."""
        return b""

    def __getattr__(self, name: str) -> Any:
        if name == "cuStreamIsCapturing":
            return _no
        if name.startswith("cu"):
            return _yes
        return _Words()


class _Words:
    """An enumeration whose members are their names."""

    def __getattr__(self, name: str) -> str:
        return name


def _no(*_: Any) -> tuple[int, int]:
    return 0, 0


def _yes(*_: Any) -> tuple[int, int]:
    return 0, 1


class HostApi(torch_calls.TorchApi):
    """The functions of torch that a call needs, with host memory; `index` is the current device and
    `number` its stream."""

    def __init__(self) -> None:
        super().__init__(torch)
        self.index, self.number, self.is_captured = 0, 77, False
        self.current_device = lambda: self.index
        self.stream = lambda index: self.number + index
        self.capturing = lambda: self.is_captured
        self.empty_on_current = torch._C._dynamo.guards._empty_strided_cpu


@contextlib.contextmanager
def stand_in(driver: Any) -> Generator[HostApi]:
    """Has regions of host tensors computed by a driver; the stand-in of torch's functions, whose
    fields may be changed. Compile for a named target inside. `driver.cubin` makes machine code."""
    api = HostApi()
    with contextlib.ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        for module in _DRIVEN:
            put(module, "driver", lambda: driver)
        put(arrays, "_torch_device", lambda _: _DEVICE)
        put(region, "is_on_host", lambda _: False)
        put(region, "CPU", _DEVICE)
        for module in (torch_calls, graph_call, written):
            put(module, "torch_api", lambda _: api)
        put(libraries.Torch, "device", lambda *_: torch.device("cpu"))
        put(libraries.Torch, "stream", lambda *_: api.number)
        put(Kernel, "start_compiling", lambda *_, **__: None)
        put(sys.modules["fusewright.kernel"], "has_gpu", lambda: True)
        put(Kernel, "cubin", lambda kernel: driver.cubin(kernel))
        _forget()
        try:
            yield api
        finally:
            _forget()


def _forget() -> None:
    """What one driver has loaded is not another one's."""
    launch._library.cache_clear()
    device._primary_context.cache_clear()
    region_graphs._setter.cache_clear()
