"""A compiled program: launches over tensors, run by the oracle, the simulator or a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright.core.expr import Var
from fusewright.errors import UserError
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Fusion, Tensor
from fusewright.host.groups import Reason
from fusewright.kernel import Kernel, TensorInfo, bind_symbols, size_of
from fusewright.sim.machine import SimResult
from fusewright.target import Target

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel over tensors of the program, inputs and outputs in the kernel's order."""

    kernel: Kernel
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(eq=False)
class Program:
    """Kernels in order, and the tensors between them."""

    fusion: Fusion
    launches: tuple[Launch, ...]
    reasons: tuple[Reason, ...]
    target: Target

    @property
    def kernels(self) -> list[Kernel]:
        """The different kernels, in order of first launch."""
        return list(dict.fromkeys(x.kernel for x in self.launches))

    def symbol_values(self, arrays: tuple[Array, ...]) -> dict[Var, int]:
        infos = [TensorInfo.of(t) for t in self.fusion.inputs]
        return bind_symbols(infos, [np.shape(a) for a in arrays], "the program")

    def simulate(self, *arrays: Array, check_races: bool = True, seed: int = 0) -> SimResult:
        """Runs every kernel in the simulator."""
        self.symbol_values(arrays)
        values: dict[Tensor, Array] = dict(zip(self.fusion.inputs, arrays, strict=True))
        races: list[Any] = []
        stats: dict[str, int | float] = {}
        for x in self.launches:
            if all(0 in self._shape(t, arrays) for t in x.outputs):
                for t in x.outputs:
                    values[t] = np.empty(self._shape(t, arrays), t.dtype.numpy)
                continue
            result = x.kernel.simulate(
                *(values[t] for t in x.inputs), check_races=check_races, seed=seed
            )
            races.extend(result.races)
            for k, v in result.stats.items():
                stats[k] = stats.get(k, 0) + v
            values.update(zip(x.outputs, result.outputs, strict=True))
        return SimResult([values[t] for t in self.fusion.outputs], races, stats)

    def _shape(self, t: Tensor, arrays: tuple[Array, ...]) -> tuple[int, ...]:
        symbols: Mapping[Var, int] = self.symbol_values(arrays)
        return tuple(size_of(e, symbols) for e in t.shape)

    def __call__(self, *arrays: Array, device: str = "auto") -> list[Array]:
        """Runs the program on numpy arrays."""
        if device == "sim":
            return self.simulate(*arrays, check_races=False).outputs
        if device == "auto":
            return evaluate(self.fusion, *arrays)
        raise UserError(f"device={device!r}: use 'auto', 'cuda' or 'sim'")
