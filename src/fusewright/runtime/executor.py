"""Runs a host program on arrays: binds sizes, allocates results, enqueues on their stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fusewright.core.expr import Expr, Var, evaluate
from fusewright.dtypes import DType, uint8
from fusewright.host.assemble import HostProgram
from fusewright.runtime.arrays import ArrayInfo
from fusewright.runtime.device import check, current, driver
from fusewright.runtime.launch import LoadedKernel
from fusewright.runtime.libraries import Library
from fusewright.runtime.memory import allocate, free
from fusewright.runtime.plan import Plan

HostArray = npt.NDArray[Any]


class ArraySpec(Protocol):
    """The type of an array that a program takes or returns; strides in elements."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[Expr, ...]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def strides(self) -> tuple[Expr, ...]: ...


class Executor:
    """One host program, runnable on any device from any thread. Kernels are loaded on first use."""

    def __init__(
        self,
        host: HostProgram,
        inputs: Sequence[ArraySpec],
        results: Sequence[ArraySpec],
        load: Callable[[], Sequence[LoadedKernel]],
    ) -> None:
        """`results` stand in the order of the host program's output roots; `load` gives the
        loaded kernel of each launch."""
        self.host = host
        self.inputs = tuple(inputs)
        self.results = tuple(results)
        self._load = load
        self._kernels: Sequence[LoadedKernel] | None = None
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._lock = threading.Lock()

    def plan(self, sizes: Mapping[Var, int]) -> Plan:
        """The plan for these sizes, made once."""
        key = tuple(sizes.values())
        found = self._plans.get(key)
        if found is None:
            with self._lock:
                if self._kernels is None:
                    self._kernels = self._load()
                found = self._plans.setdefault(key, Plan(self.host, self._kernels, sizes))
        return found

    def result_types(
        self, sizes: Mapping[Var, int]
    ) -> list[tuple[tuple[int, ...], tuple[int, ...], DType]]:
        """Shape, element strides and dtype of each result."""
        return [
            (
                tuple(evaluate(e, sizes) for e in r.shape),
                tuple(evaluate(e, sizes) for e in r.strides),
                r.dtype,
            )
            for r in self.results
        ]

    def on_device(
        self, infos: Sequence[ArrayInfo], library: Library, sizes: Mapping[Var, int]
    ) -> list[Any]:
        """Runs on device arrays that meet the inputs' specs; new arrays of the same library."""
        device = infos[0].device
        plan = self.plan(sizes)
        results = [library.empty(*t, device) for t in self.result_types(sizes)]
        roots = [x.pointer for x in infos] + [library.address(r) for r in results]
        scratch = None
        if plan.arena_nbytes:
            scratch = library.empty((plan.arena_nbytes,), (1,), uint8, device)
            roots.append(library.address(scratch))
        stream = library.stream(device)
        with current(device.index):
            for s in dict.fromkeys(x.ready_on for x in infos):
                wait_for(s, stream)
            plan.enqueue(roots, stream, device.index)
        return results

    def on_host(
        self, arrays: Sequence[HostArray], sizes: Mapping[Var, int], device: int = 0
    ) -> list[HostArray]:
        """Copies flat host arrays in, runs, copies the results out (flat, in their layouts)."""
        plan = self.plan(sizes)
        spans = [
            0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            for shape, strides, _ in self.result_types(sizes)
        ]
        outputs = [np.empty(n, r.dtype.numpy) for n, r in zip(spans, self.results, strict=True)]
        sizes_of = [a.nbytes for a in (*arrays, *outputs)]
        if plan.arena_nbytes:
            sizes_of.append(plan.arena_nbytes)
        memory: list[int] = []
        api = driver()
        with current(device):
            try:
                memory += [allocate(n, device) if n else 0 for n in sizes_of]
                for a, p in zip(arrays, memory, strict=False):
                    if a.nbytes:
                        check(api.cuMemcpyHtoD(p, a.ctypes.data, a.nbytes), "copy to the device")
                plan.enqueue(memory, 0, device)
                for a, p in zip(outputs, memory[len(arrays) :], strict=False):
                    if a.nbytes:
                        check(api.cuMemcpyDtoH(a.ctypes.data, p, a.nbytes), "copy from the device")
            finally:
                for p in memory:
                    free(p, device)
        return outputs


def wait_for(stream: int | None, ours: int) -> None:
    """Makes our stream wait for what another one has been given so far."""
    legacy = (0, 1)
    if stream is None or stream == ours or (stream in legacy and ours in legacy):
        return
    api = driver()
    event = check(api.cuEventCreate(api.CUevent_flags.CU_EVENT_DISABLE_TIMING), "cuEventCreate")
    try:
        check(api.cuEventRecord(event, stream), "cuEventRecord")
        check(api.cuStreamWaitEvent(ours, event, 0), "cuStreamWaitEvent")
    finally:
        check(api.cuEventDestroy(event), "cuEventDestroy")
