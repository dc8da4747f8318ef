"""A CUDA driver in host memory: addresses are real, kernels run in the simulator.

Counts its calls. Launches read their parameters through the pointers that the real driver would
read, at the moment of the call, and graph nodes keep what they were given.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections import Counter
from typing import Any

import numpy as np

from fusewright.core.substitution import evaluate
from fusewright.cuda.emit import parameters
from fusewright.cuda.names import identifier
from fusewright.kir.ir import Argument, Buffer, Kernel, TensorMap
from fusewright.runtime.launch import slot_format
from fusewright.sim.machine import simulate

OK = 0
SETTER = 7777
"""The kernel that sets the condition of a graph's node."""


class Struct:
    """A bag of fields, as the binding's structures are."""

    hStream = 0
    numAttrs = 0


class _Named(type):
    def __getattr__(cls, name: str) -> str:
        return name


class _Words(metaclass=_Named):
    """An enumeration of the binding whose members are their names."""


class FakeDriver:
    """The functions that the runtime calls, for kernels that were registered."""

    CUlaunchConfig = Struct
    CUDA_KERNEL_NODE_PARAMS = CUDA_MEMCPY3D = Struct

    class CUgraphNodeParams(Struct):
        def __init__(self) -> None:
            self.conditional = Struct()

    class CUlaunchAttribute(Struct):
        def __init__(self) -> None:
            self.value = Struct()

    class CUlaunchAttributeID(_Words): ...

    class CUgraphEdgeData(Struct): ...

    class CUgraphDependencyType:
        CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC = 1

    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = 1

    class CUgraphNodeType(_Words): ...

    class CUgraphConditionalNodeType(_Words): ...

    class CUmemorytype(_Words): ...

    class CUstream_flags(_Words): ...

    class CUstreamCaptureMode(_Words): ...

    class CUevent_flags:
        CU_EVENT_DISABLE_TIMING = 2

    class CUfunction_attribute:
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.launched: list[tuple[str, int]] = []
        self.early: list[bool] = []
        self.early_edges: list[tuple[int, int, int]] = []
        self.kernels: dict[int, Kernel] = {}
        self.names: dict[bytes, int] = {}
        self.memory: dict[int, Any] = {}
        self.context = 1
        self.capturing: set[int] = set()
        self.capture_mode = "CU_STREAM_CAPTURE_MODE_GLOBAL"
        self.graphs: list[list[tuple[Any, ...]]] = []
        self.conditions: list[int] = []
        self.refuse: str = ""
        self.stopped = False
        self.streams = 500
        self.after: list[frozenset[int]] = []
        self._given: dict[int, frozenset[int]] = {}
        self._events: dict[int, frozenset[int]] = {}
        self._marks = 4

    def register(self, kernel: Kernel) -> None:
        """Makes a kernel loadable."""
        handle = 1000 + len(self.kernels)
        self.kernels[handle] = kernel
        self.names[identifier(kernel.name).encode()] = handle

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        body = getattr(self, f"_{name}")

        def call(*args: Any) -> tuple[Any, ...]:
            self.calls[name] += 1
            if self.stopped:
                return (719,)
            if self.refuse == name:
                return (700,)
            result = body(*args)
            return (OK,) if result is None else (OK, result)

        return call

    # --- contexts, memory, streams --------------------------------------------------------------

    def _cuInit(self, flags: int) -> None: ...

    def _cuDeviceGet(self, index: int) -> int:
        return index

    def _cuDevicePrimaryCtxRetain(self, device: int) -> int:
        return device + 1

    def _cuCtxGetCurrent(self) -> int:
        return self.context

    def _cuCtxSetCurrent(self, context: int) -> None:
        self.context = int(context)

    def _cuCtxPushCurrent(self, context: int) -> None:
        self.pushed = self.context
        self.context = int(context)

    def _cuCtxPopCurrent(self) -> int:
        self.context = self.pushed
        return self.context

    def _cuCtxSynchronize(self) -> None: ...

    def _cuMemAllocAsync(self, nbytes: int, stream: int) -> int:
        raw = ctypes.create_string_buffer(b"\xff" * (nbytes + 256), nbytes + 256)
        address = -(-ctypes.addressof(raw) // 256) * 256
        self.memory[address] = raw
        return address

    def _cuMemFreeAsync(self, address: int, stream: int) -> None:
        del self.memory[address]

    def _cuMemAlloc(self, nbytes: int) -> int:
        assert self.capture_mode == "CU_STREAM_CAPTURE_MODE_RELAXED" or not self.capturing
        return self._cuMemAllocAsync(nbytes, 0)

    def _cuMemFree(self, address: int) -> None:
        del self.memory[address]

    def _cuStreamCreate(self, flags: str) -> int:
        assert flags == "CU_STREAM_NON_BLOCKING"
        assert self.capture_mode == "CU_STREAM_CAPTURE_MODE_RELAXED" or not self.capturing
        self.streams += 1
        return self.streams

    def _cuStreamSynchronize(self, stream: int) -> None: ...

    def _cuStreamDestroy(self, stream: int) -> None: ...

    def _cuThreadExchangeStreamCaptureMode(self, mode: str) -> str:
        before, self.capture_mode = self.capture_mode, mode
        return before

    def _cuMemcpyHtoD(self, target: int, source: int, nbytes: int) -> None:
        ctypes.memmove(target, source, nbytes)

    _cuMemcpyDtoH = _cuMemcpyHtoD

    def _cuMemcpyDtoDAsync(self, target: int, source: int, nbytes: int, stream: int) -> None:
        ctypes.memmove(target, source, nbytes)
        self.launched.append(("copy", stream))

    _cuMemcpyDtoHAsync = _cuMemcpyDtoDAsync

    def _cuStreamIsCapturing(self, stream: int) -> int:
        return int(stream in self.capturing)

    def _cuEventCreate(self, flags: int) -> int:
        self._marks += 1
        return self._marks

    def _cuEventRecord(self, event: int, stream: int) -> None:
        self._events[event] = self.behind(stream)

    def _cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        self._given[stream] = self.behind(stream) | self._events[event]

    def _cuEventDestroy(self, event: int) -> None:
        del self._events[event]

    def behind(self, stream: int) -> frozenset[int]:
        """The launches, by number, that what a stream is given next waits for."""
        return self._given.get(stream, frozenset())

    @property
    def open_events(self) -> int:
        """Events that were recorded and not given back."""
        return len(self._events)

    def _cuEventSynchronize(self, event: int) -> None: ...

    def _cuEventElapsedTime(self, start: int, end: int) -> float:
        """Milliseconds: one more for every launch so far."""
        return float(len(self.launched))

    def _cuMemsetD8Async(self, address: int, value: int, nbytes: int, stream: int) -> None:
        assert address in self.memory
        ctypes.memset(address, value, nbytes)
        self.launched.append(("memset", stream))

    def _cuDeviceGetName(self, length: int, device: int) -> bytes:
        return b"Simulated GPU".ljust(length, b"\0")

    # --- kernels --------------------------------------------------------------------------------

    def CUfunction(self, handle: int) -> int:
        return handle

    def _cuLibraryLoadData(self, cubin: bytes, *rest: Any) -> int:
        return 9

    def _cuLibraryGetKernel(self, library: int, name: bytes) -> int:
        return SETTER if name == b"fw_set_condition" else self.names[name]

    def _cuKernelSetAttribute(self, *args: Any) -> None: ...

    def _cuLaunchKernelEx(self, config: Any, handle: int, table: int, extra: int) -> None:
        self._run(self.kernels[handle], self._read(handle, table))
        self.launched.append((self.kernels[handle].name, config.hStream))
        self.early.append(self._is_early(config))
        self.after.append(self.behind(config.hStream))
        self._given[config.hStream] = self.after[-1] | {len(self.after) - 1}

    def _is_early(self, config: Any) -> bool:
        """Whether a launch has the attribute by which it may begin early."""
        if not config.numAttrs:
            return False
        (attribute,) = config.attrs[: config.numAttrs]
        assert attribute.id == "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
        return bool(attribute.value.programmaticStreamSerializationAllowed)

    def _read(self, handle: int, table: int) -> list[Any]:
        kernel = self.kernels[handle]
        formats = ["Q"] * len(kernel.params) + slot_format(kernel) + ["128s"] * len(kernel.maps)
        slots = (ctypes.c_void_p * len(formats)).from_address(table)
        return [
            struct.unpack(form, ctypes.string_at(slot, struct.calcsize(form)))[0]
            for form, slot in zip(formats, slots, strict=True)
        ]

    def _run(self, kernel: Kernel, values: list[Any]) -> None:
        params = parameters(kernel)
        table = dict(zip((p.symbol for p in params), values, strict=True))
        sizes = {s: table[s] for s in kernel.symbols}
        arrays: dict[Buffer, Any] = {}
        for b in kernel.params:
            count = evaluate(b.size, sizes)
            raw = (ctypes.c_char * (count * b.dtype.nbytes)).from_address(table[b])
            arrays[b] = np.frombuffer(raw, b.dtype.numpy)
        for m in kernel.maps:
            assert table[m] == self._map_of(m, table[m.buffer], sizes)
        arguments = {a: _scalar(a, table[a]) for a in kernel.arguments}
        try:
            simulate(kernel, arrays, arguments=arguments, symbols=sizes, check_races=False)
        except IndexError:  # where a kernel traps: the calls behind this one fail
            self.stopped = True

    # --- tensor maps ----------------------------------------------------------------------------

    cuuint64_t = cuuint32_t = int

    class CUtensorMapDataType(_Words): ...

    class CUtensorMapInterleave(_Words): ...

    class CUtensorMapSwizzle(_Words): ...

    class CUtensorMapL2promotion(_Words): ...

    class CUtensorMapFloatOOBfill(_Words): ...

    def _cuTensorMapEncodeTiled(
        self, dtype: str, rank: int, address: int, sizes: Any, strides: Any, box: Any,
        steps: Any, interleave: str, swizzle: str, promotion: str, fill: str,
    ) -> Any:  # fmt: skip
        assert steps == [1] * rank and interleave.endswith("NONE") and fill.endswith("NONE")
        return _Map(_map_bytes(dtype, address, sizes, strides, box, swizzle))

    def _map_of(self, m: TensorMap, address: int, sizes: Any) -> bytes:
        """What a map of an array at an address must hold."""
        itemsize = m.buffer.dtype.nbytes
        return _map_bytes(
            f"CU_TENSOR_MAP_DATA_TYPE_{m.buffer.dtype.name.upper()}",
            address,
            [evaluate(e, sizes) for e in m.sizes],
            [evaluate(e, sizes) * itemsize for e in m.strides[1:]],
            list(m.box),
            f"CU_TENSOR_MAP_SWIZZLE_{f'{m.swizzle}B' if m.swizzle else 'NONE'}",
        )

    # --- graphs ---------------------------------------------------------------------------------

    def _cuGraphCreate(self, flags: int) -> int:
        self.graphs.append([])
        return len(self.graphs) - 1

    def _cuGraphAddMemcpyNode(
        self, graph: int, after: list[int], count: int, p: Any, context: int
    ) -> int:
        assert count == len(after) and (p.Height, p.Depth) == (1, 1)
        assert p.srcMemoryType == p.dstMemoryType == "CU_MEMORYTYPE_DEVICE"
        copied = (p.dstDevice, p.srcDevice, p.WidthInBytes)
        self.graphs[graph].append(("copy", copied, tuple(after)))
        return len(self.graphs[graph]) - 1

    def _cuGraphConditionalHandleCreate(
        self, graph: int, context: int, default: int, flags: int
    ) -> int:
        self.conditions.append(0)
        return len(self.conditions) - 1

    def _cuGraphAddNode(self, graph: int, after: list[int], data: None, n: int, p: Any) -> int:
        assert n == len(after) and p.type == "CU_GRAPH_NODE_TYPE_CONDITIONAL"
        c = p.conditional
        c.phGraph_out = [self._cuGraphCreate(0) for _ in range(c.size)]
        self.graphs[graph].append((c.type, (c.handle, c.phGraph_out), tuple(after)))
        return len(self.graphs[graph]) - 1

    def _cuGraphAddKernelNode(self, graph: int, after: list[int], count: int, p: Any) -> int:
        assert count == len(after)
        if p.kern == SETTER:
            slots = (ctypes.c_void_p * 2).from_address(p.kernelParams)
            values = [ctypes.c_uint64.from_address(s).value for s in slots]
            self.graphs[graph].append((SETTER, values, tuple(after)))
            return len(self.graphs[graph]) - 1
        self.graphs[graph].append((p.kern, self._read(p.kern, p.kernelParams), tuple(after)))
        return len(self.graphs[graph]) - 1

    def _cuGraphAddDependencies(
        self, graph: int, before: list[int], after: list[int], data: list[Any], count: int
    ) -> None:
        assert count == len(before) == len(after) == len(data)
        for p, c, edge in zip(before, after, data, strict=True):
            nodes = self.graphs[graph]
            assert p < c and (edge.from_port, edge.type) == (1, 1)
            nodes[c] = (*nodes[c][:2], (*nodes[c][2], p))
            self.early_edges.append((graph, p, c))

    def _cuGraphInstantiate(self, graph: int, flags: int) -> int:
        return graph

    def _cuGraphExecKernelNodeSetParams(self, graph: int, node: int, p: Any) -> None:
        kern, _, after = self.graphs[graph][node]
        assert kern == p.kern
        self.graphs[graph][node] = (kern, self._read(p.kern, p.kernelParams), after)

    def _cuGraphLaunch(self, graph: int, stream: int) -> None:
        for kern, values, _ in self.graphs[graph]:
            if kern == "copy":
                ctypes.memmove(*values)
                self.launched.append(("copy", stream))
            elif kern == SETTER:
                handle, address = values
                self.conditions[handle] = ctypes.c_uint8.from_address(address).value
            elif kern == "CU_GRAPH_COND_TYPE_WHILE":
                while self.conditions[values[0]]:
                    self._cuGraphLaunch(values[1][0], stream)
            elif kern == "CU_GRAPH_COND_TYPE_IF":
                handle, graphs = values
                self._cuGraphLaunch(graphs[0 if self.conditions[handle] else 1], stream)
            else:
                self._run(self.kernels[kern], values)
                self.launched.append((self.kernels[kern].name, stream))

    def _cuGraphExecDestroy(self, graph: int) -> None: ...

    def _cuGraphDestroy(self, graph: int) -> None: ...


def _map_bytes(*parts: Any) -> bytes:
    return hashlib.sha512(repr(parts).encode()).digest() * 2


class _Map:
    """An encoded tensor map, as the binding holds it."""

    def __init__(self, content: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(content, len(content))

    def getPtr(self) -> int:
        return ctypes.addressof(self._buffer)


def _scalar(argument: Argument, bits: Any) -> Any:
    if argument.dtype.is_float and argument.dtype.nbytes < 4:
        raw = np.array(bits, f"u{argument.dtype.nbytes}")
        return raw.view(argument.dtype.numpy).item()
    return bits
