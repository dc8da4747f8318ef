"""A compiled program: launches over tensors, run by the oracle, the simulator or a GPU."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright.core.expr import Expr, Var
from fusewright.dtypes import dtype_of
from fusewright.errors import UserError
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Fusion, Tensor
from fusewright.host.assemble import Call, HostProgram, assemble
from fusewright.host.groups import Reason
from fusewright.kernel import Kernel, TensorInfo, bind_symbols, flatten, shaped_view, size_of
from fusewright.runtime.arrays import ArrayInfo, describe, host_view
from fusewright.runtime.device import has_gpu
from fusewright.runtime.executor import Executor
from fusewright.runtime.launch import LoadedKernel
from fusewright.runtime.libraries import Library, common, library_of
from fusewright.sim.machine import SimResult
from fusewright.target import Target

Array = npt.NDArray[Any]

_said = threading.Event()


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel over tensors of the program, inputs and outputs in the kernel's order."""

    kernel: Kernel
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The element strides of a tensor: what the user required, what a pass would prefer, and what
    the program makes; None where nobody asked. `why` names who decided."""

    required: tuple[Expr, ...] | None
    preferred: tuple[Expr, ...] | None
    actual: tuple[Expr, ...]
    why: str


@dataclass(eq=False)
class Program:
    """Kernels in order, and the tensors between them."""

    fusion: Fusion
    launches: tuple[Launch, ...]
    reasons: tuple[Reason, ...]
    target: Target
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def kernels(self) -> list[Kernel]:
        """The different kernels, in order of first launch."""
        return list(dict.fromkeys(x.kernel for x in self.launches))

    # --- the host program -----------------------------------------------------------------------

    @cached_property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The arrays of a call."""
        return tuple(TensorInfo.of(t) for t in self.fusion.inputs)

    @cached_property
    def results(self) -> tuple[TensorInfo, ...]:
        """The different arrays that a call makes, in order of first output."""
        made = self._made
        return tuple(made.get(t) or TensorInfo.of(t) for t in dict.fromkeys(self.fusion.outputs))

    @cached_property
    def _made(self) -> dict[Tensor, TensorInfo]:
        return {
            t: info
            for x in self.launches
            for t, info in zip(x.outputs, x.kernel.outputs, strict=True)
        }

    @cached_property
    def host(self) -> HostProgram:
        """Launches with exact bindings, the packed arena, edges, and `stats`."""
        calls = [
            Call(x.kernel.ir, x.kernel.argument_values, x.inputs, x.outputs) for x in self.launches
        ]
        return assemble(self.fusion, calls, {t: i.strides for t, i in self._made.items()})

    @cached_property
    def _executor(self) -> Executor:
        return Executor(self.host, self.inputs, self.results, self._load)

    def _load(self) -> list[LoadedKernel]:
        loaded = {k: LoadedKernel(k.cubin(), k.ir) for k in self.kernels}
        return [loaded[x.kernel] for x in self.launches]

    def symbol_values(self, arrays: Sequence[Any]) -> dict[Var, int]:
        """The sizes that these arrays give the symbols. Raises UserError where they do not fit."""
        return bind_symbols(self.inputs, [tuple(a.shape) for a in arrays], "the program")

    # --- running --------------------------------------------------------------------------------

    def simulate(self, *arrays: Array, check_races: bool = True, seed: int = 0) -> SimResult:
        """Runs every kernel in the simulator."""
        symbols = self.symbol_values([np.asarray(a) for a in arrays])
        values: dict[Tensor, Array] = dict(zip(self.fusion.inputs, arrays, strict=True))
        races: list[Any] = []
        stats: dict[str, int | float] = {}
        for x in self.launches:
            shapes = [tuple(size_of(e, symbols) for e in t.shape) for t in x.outputs]
            if all(0 in s for s in shapes):
                for t, s in zip(x.outputs, shapes, strict=True):
                    values[t] = np.empty(s, t.dtype.numpy)
                continue
            result = x.kernel.simulate(
                *(values[t] for t in x.inputs),
                check_races=check_races,
                seed=seed,
                symbols=symbols,
            )
            races.extend(result.races)
            for k, v in result.stats.items():
                stats[k] = stats.get(k, 0) + v
            values.update(zip(x.outputs, result.outputs, strict=True))
        return SimResult([values[t] for t in self.fusion.outputs], races, stats)

    def run_cuda(self, *arrays: Any) -> list[Any]:
        """Runs on the GPU: device arrays without a copy on the caller's stream, host arrays
        through copies. Results are of the caller's library, in the order of the outputs."""
        infos = [describe(a) for a in arrays]
        if not infos:
            return self._on_host_arrays((), "cuda")
        kind, device = common(infos)
        if device.kind == "cpu":
            views = [host_view(x) for x in infos]
            return _given_back(
                self._on_host_arrays(views, "cuda"), infos[0], library_of(kind, device)
            )
        return self._on_device(infos, library_of(kind, device))

    def _on_device(self, infos: list[ArrayInfo], library: Library) -> list[Any]:
        sizes = self.symbol_values(infos)
        results = self._executor.on_device(infos, library, sizes)
        return [results[p - len(self.inputs)] for p in self.host.outputs]

    def _on_host_arrays(self, arrays: Sequence[Array], device: str) -> list[Array]:
        if device == "sim":
            return self.simulate(*arrays, check_races=False).outputs
        if device == "oracle":
            return evaluate(self.fusion, *arrays)
        sizes = self.symbol_values(arrays)
        flat = [flatten(a, i, sizes) for a, i in zip(arrays, self.inputs, strict=True)]
        results = self._executor.on_host(flat, sizes)
        shaped = [shaped_view(a, i, sizes) for a, i in zip(results, self.results, strict=True)]
        return [shaped[p - len(self.inputs)] for p in self.host.outputs]

    def __call__(self, *arrays: Any, device: str = "auto") -> list[Any]:
        """Runs the program; results are arrays of the caller's library, in order of the outputs.

        `device`: "cuda", "sim" (the simulator), or "auto": where device arrays are, else a GPU if
        there is one, else the numpy oracle, which is said once.
        """
        if device not in ("auto", "cuda", "sim"):
            raise UserError(f"device={device!r}: use 'auto', 'cuda' or 'sim'")
        infos = [describe(a) for a in arrays]
        on_gpu = any(x.device.kind == "cuda" for x in infos)
        if device == "cuda" or (device == "auto" and (on_gpu or has_gpu())):
            return self.run_cuda(*arrays)
        if on_gpu:
            raise UserError("device='sim' takes host arrays; copy these to the host first")
        if device == "auto":
            device = "oracle"
            say_once()
        results = self._on_host_arrays([host_view(x) for x in infos], device)
        if not infos:
            return results
        return _given_back(results, infos[0], library_of(*common(infos)))


def _given_back(results: list[Array], like: ArrayInfo, library: Library) -> list[Any]:
    """Host results as arrays of the caller's library."""
    if like.kind in ("numpy", "dlpack"):
        return results
    out: list[Any] = []
    for r in results:
        strides = [s // r.itemsize for s in r.strides]
        info = describe(library.empty(r.shape, strides, dtype_of(r.dtype), like.device))
        host_view(info)[...] = r
        out.append(info.owner)
    return out


def say_once() -> None:
    """Says, once per process, that the oracle computes."""
    if not _said.is_set():
        _said.set()
        warnings.warn(
            "no GPU: fusewright computes with its numpy oracle; device='sim' simulates the kernels",
            stacklevel=3,
        )
