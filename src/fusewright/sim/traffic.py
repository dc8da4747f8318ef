"""What a kernel moves, from a few blocks of a launch at full size, against the least possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fusewright.core.expr import Var
from fusewright.kir import ir
from fusewright.sim.compute import Array
from fusewright.sim.machine import Machine
from fusewright.sim.memory import elements

CACHED_SHARE = 1 / 16
"""An array this much smaller than a kernel's largest is read from a cache after the first time."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counts of some blocks: 32-byte sectors and shared-memory wavefronts, each with the fewest
    that the same requests need; and, for the whole launch, the bytes of the large arrays that are
    moved, with what moving each once takes."""

    sectors: int
    sectors_least: int
    wavefronts: int
    wavefronts_least: int
    nbytes: int
    nbytes_least: int

    @property
    def sector_ratio(self) -> float:
        """Sectors over the fewest possible: 1 for requests whose bytes lie side by side."""
        return self.sectors / max(self.sectors_least, 1)

    @property
    def wavefront_ratio(self) -> float:
        """Passes through the banks over the fewest possible: 1 without conflicts."""
        return self.wavefronts / max(self.wavefronts_least, 1)

    @property
    def byte_ratio(self) -> float:
        """Bytes over those of moving each array once."""
        return self.nbytes / max(self.nbytes_least, 1)


def traffic(
    kernel: ir.Kernel,
    arguments: Mapping[ir.Argument, object],
    symbols: Mapping[Var, int] | None = None,
) -> Traffic:
    """The traffic of a kernel whose inputs are zeros, from its first block (or cluster) and those
    one and two thirds into the grid. Gathered positions are zero: gathers look better than they
    are."""
    symbols = symbols or {}
    arrays: dict[ir.Buffer, Array] = {
        b: np.zeros(elements(b, symbols), b.dtype.numpy) for b in kernel.params
    }
    machine = Machine(kernel, arrays, arguments, symbols, (), 0)
    n = machine.nrows
    blocks = np.array(sorted({0, n // 3, 2 * n // 3}), np.int64)
    for batch in machine.batches(blocks):
        machine.batch(batch)
    counters = machine.execution.counters
    totals = counters.totals
    moved = {b: m * n // len(blocks) for b, m in counters.moved.items()}
    sizes = {b: arrays[b].nbytes for b in moved}
    large = [b for b in moved if sizes[b] > CACHED_SHARE * max(sizes.values())]
    return Traffic(
        int(totals["sectors_read"] + totals["sectors_written"]),
        int(totals["sectors_least"]),
        int(totals["shared_wavefronts"]),
        int(totals["shared_wavefronts_least"]),
        sum(moved[b] for b in large),
        sum(min(sizes[b], moved[b]) for b in large),
    )
