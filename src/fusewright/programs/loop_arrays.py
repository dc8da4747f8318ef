"""The arrays of a loop that is one kernel: its operands, and the results that something reads."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.dtypes import DType
from fusewright.fusion.build import element_count
from fusewright.fusion.ir import Shape
from fusewright.host.control import RegionCall
from fusewright.host.subspans import Subspan
from fusewright.kir.ir import Buffer, Memory


class LoopArrays:
    """Parameters of a kernel in the place of a loop, made when they are asked for. `taken`: names
    that other arrays of the kernel have."""

    def __init__(
        self, call: RegionCall, reads: Sequence[Subspan], writes: Sequence[Subspan], taken: set[str]
    ) -> None:
        self._call, self._taken = call, taken
        self._outer = reads, writes
        self._operands: dict[int, Buffer] = {}
        self._results: dict[int, Buffer] = {}

    @property
    def reads(self) -> tuple[int, ...]:
        """The positions of the operands that are parameters."""
        return tuple(sorted(self._operands))

    @property
    def results(self) -> tuple[Buffer, ...]:
        """The parameters of all results that something reads, in order."""
        return tuple(self._results[k] for k in range(len(self._call.used)))

    @property
    def params(self) -> tuple[Buffer, ...]:
        """All of them, in order."""
        return (*(self._operands[k] for k in self.reads), *self.results)

    @property
    def types(self) -> list[tuple[Shape, DType]]:
        """Their shapes and dtypes."""
        call = self._call
        return [*(call.operands[k] for k in self.reads), *(call.results[k] for k in call.used)]

    def operand(self, k: int, name: str) -> Buffer:
        """The parameter of operand `k` of the loop."""
        if k not in self._operands:
            shape, dtype = self._call.operands[k]
            alignment = max(self._outer[0][k].alignment, dtype.nbytes)
            size, name = element_count(shape), self._free(name)
            self._operands[k] = Buffer(name, dtype, size, Memory.GLOBAL, alignment)
        return self._operands[k]

    def result(self, k: int, name: str) -> Buffer | None:
        """The parameter of result `k` of the loop; None where nothing reads it."""
        if k not in self._call.used:
            return None
        place = self._call.used.index(k)
        if place not in self._results:
            shape, dtype = self._call.results[k]
            alignment = max(self._outer[1][place].alignment, dtype.nbytes)
            size, name = element_count(shape), self._free(name)
            self._results[place] = Buffer(name, dtype, size, Memory.GLOBAL, alignment)
        return self._results[place]

    def _free(self, name: str) -> str:
        """A name that no other array of the loop has."""
        given = {b.name for found in (self._operands, self._results) for b in found.values()}
        out, count = name, 0
        while out in given or (count and out in self._taken):
            out, count = f"{name}_{count}", count + 1
        return out
