"""A host program for given sizes: prepacked arguments, ready to enqueue on any stream.

Every distinct address of the program has one slot in one buffer, which all launches' tables of
parameters point into; a call writes the slots with one `struct` operation and launches.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusewright.core.expr import Var, evaluate
from fusewright.host.assemble import HostProgram
from fusewright.host.graph import by_consumer
from fusewright.host.ir import HostLaunch
from fusewright.runtime.device import check, driver
from fusewright.runtime.graphs import GraphCache, Node
from fusewright.runtime.launch import Launch, LoadedKernel, argument_bits, slot_format
from fusewright.runtime.locks import fork_safe_lock
from fusewright.runtime.nvtx import ranges

_SLOT_NBYTES = 8
GRAPH_LAUNCHES = 3
"""Launches from which a graph costs less than launching one by one (3.1 us each)."""


@dataclass(eq=False, slots=True)
class Prepared:
    """One launch: its number in the host program, its kernel and shape, the driver's
    configuration, and the table of its parameters, which must live as long."""

    number: int
    kernel: LoadedKernel
    shape: Launch
    config: Any
    table: Any
    address: int


class Plan:
    """What a call of these sizes needs: bytes of arena, and packed launches."""

    def __init__(
        self, host: HostProgram, kernels: Sequence[LoadedKernel], sizes: Mapping[Var, int]
    ) -> None:
        """`kernels` stand in the order of the host program's launches."""
        self.arena_nbytes = evaluate(host.arena.nbytes, sizes) if host.arena.offsets else 0
        self._host = host
        self._api = driver()
        self._ranges = ranges()
        self._lock = fork_safe_lock()
        self._stream = 0
        self._graphs: dict[int, GraphCache] = {}
        self._prepared_for: set[int] = set()
        root = {r: k for k, r in enumerate(host.roots)}
        places = [
            [(root[b.root], evaluate(b.offset, sizes)) for b in x.bindings] for x in host.launches
        ]
        slots = {place: k for k, place in enumerate(dict.fromkeys(p for x in places for p in x))}
        self._places = tuple(slots)
        self._pack = struct.Struct(f"{len(slots)}Q").pack_into
        scalars = [_scalars(x, sizes) for x in host.launches]
        count = len(slots) + sum(map(len, scalars))
        self._buffer = ctypes.create_string_buffer(max(1, count) * _SLOT_NBYTES)
        self.launches: tuple[Prepared, ...] = ()
        end = len(slots)
        for i, kernel in enumerate(kernels):
            own = [slots[p] for p in places[i]]
            for form, value in scalars[i]:
                struct.pack_into(form, self._buffer, end * _SLOT_NBYTES, value)
                own.append(end)
                end += 1
            shape = kernel.shape(sizes)
            if 0 not in shape.grid:
                self.launches += (self._prepare(i, kernel, shape, own),)

    def _prepare(
        self, number: int, kernel: LoadedKernel, shape: Launch, slots: Sequence[int]
    ) -> Prepared:
        base = ctypes.addressof(self._buffer)
        table = (ctypes.c_void_p * max(1, len(slots)))(*(base + k * _SLOT_NBYTES for k in slots))
        config = driver().CUlaunchConfig()
        _set_shape(config, shape)
        return Prepared(number, kernel, shape, config, table, ctypes.addressof(table))

    @property
    def _label(self) -> str:
        """What profilers show: the kernels' names."""
        return ", ".join(x.kernel.kernel.name for x in self.launches)

    # --- running --------------------------------------------------------------------------------

    def enqueue(self, roots: Sequence[int], stream: int, device: int, *, graph: bool) -> None:
        """Launches everything on a stream, as a graph or one by one. `roots` are the addresses of
        the host program's roots. The caller has made the device's context current."""
        with self._lock:
            if device not in self._prepared_for:
                self._allow_shared(device)
            if self._ranges is not None:
                self._ranges.push(self._label)
            if graph:
                self._replay(tuple(roots), stream, device)
            else:
                self._pack(self._buffer, 0, *[roots[r] + offset for r, offset in self._places])
                self._launch(stream)
            if self._ranges is not None:
                self._ranges.pop()

    def _launch(self, stream: int) -> None:
        if stream != self._stream:
            for x in self.launches:
                x.config.hStream = stream
            self._stream = stream
        launch = self._api.cuLaunchKernelEx
        for x in self.launches:
            status = launch(x.config, x.kernel.handle, x.address, 0)
            if status[0]:
                check(status, f"launch of {x.kernel.kernel.name} with {x.shape}")

    def _replay(self, roots: tuple[int, ...], stream: int, device: int) -> None:
        graphs = self._graphs.get(device)
        if graphs is None:
            graphs = self._graphs[device] = GraphCache(self._nodes())
        handle = graphs.find(roots)
        if handle is None:
            self._pack(self._buffer, 0, *[roots[r] + offset for r, offset in self._places])
            handle = graphs.prepare(roots)
        status = self._api.cuGraphLaunch(handle, stream)
        if status[0]:
            check(status, "cuGraphLaunch")

    def _nodes(self) -> list[Node]:
        """The launches as nodes of a graph. A launch without blocks computes nothing and makes
        nobody wait, but what waits for it waits for what it waits for."""
        place = {x.number: k for k, x in enumerate(self.launches)}
        after: list[tuple[int, ...]] = []
        for edges in by_consumer(self._host.edges, len(self._host.launches)):
            waits: dict[int, None] = {}
            for e in edges:
                p = e.producer
                waits |= dict.fromkeys((place[p],) if p in place else after[p])
            after.append(tuple(waits))
        return [Node(x.kernel, _node_params(x), after[x.number]) for x in self.launches]

    def _allow_shared(self, device: int) -> None:
        for x in self.launches:
            x.kernel.allow_shared(x.shape.shared_nbytes, device)
        self._prepared_for.add(device)


def uses_graph(launches: int, execution: str) -> bool:
    """Whether a program of so many launches replays as a graph."""
    match execution:
        case "stream":
            return False
        case "graph":
            return launches > 1
        case _:
            return launches >= GRAPH_LAUNCHES


def _set_shape(target: Any, shape: Launch) -> None:
    target.gridDimX, target.gridDimY, target.gridDimZ = shape.grid
    target.blockDimX, target.blockDimY, target.blockDimZ = shape.block
    target.sharedMemBytes = shape.shared_nbytes


def _node_params(x: Prepared) -> Any:
    params = driver().CUDA_KERNEL_NODE_PARAMS()
    _set_shape(params, x.shape)
    params.kern = x.kernel.library_kernel
    params.kernelParams = x.address
    return params


def _scalars(x: HostLaunch, sizes: Mapping[Var, int]) -> list[tuple[str, bool | int | float]]:
    """The formats and values of a launch's scalar parameters: arguments, then sizes."""
    values: list[bool | int | float] = [
        argument_bits(v, a) for v, a in zip(x.values, x.kernel.arguments, strict=True)
    ]
    values += [sizes[s] for s in x.kernel.symbols]
    return list(zip(slot_format(x.kernel), values, strict=True))
