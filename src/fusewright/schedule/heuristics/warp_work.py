"""What a product on the instructions of single warps asks of a multiprocessor."""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.core.instructions import CODE
from fusewright.core.substitution import estimate
from fusewright.schedule.graph import Stage
from fusewright.schedule.parallel import Parallel, trips_of
from fusewright.target import (
    MATRICES_NBYTES,
    WARP_SIZE,
)


@dataclass(frozen=True, slots=True)
class WarpWork:
    """Of a block: `pairs` that are multiplied, and bytes of fragments. Of a thread: matrix
    instructions with loads of matrices, and registers beside those of other values."""

    pairs: float
    through_shared: float
    instructions: float
    registers: int


def fragment_registers(loads: int) -> int:
    """Registers of a thread for what a warp loads at once so often, for two steps of the depth."""
    return 2 * loads * MATRICES_NBYTES // (4 * WARP_SIZE)


def warp_work(s: Stage) -> WarpWork:
    """Of a product in the loops `[.., TIDx, k/16, 16, m/16, n/8, 2, 2]` of its warps."""
    step, _, rows, columns, *_ = (estimate(x.axis.extent) for x in s.loops[-6:])
    inside = [x for x in s.loops if not x.parallel.is_block]
    around = [x for x in s.loops[:-6] if x.parallel is Parallel.SERIAL]
    steps = step * trips_of(around)
    threads = trips_of(x for x in s.loops if x.parallel.is_thread)
    loads = rows + columns // 2
    return WarpWork(
        pairs=trips_of(inside),
        through_shared=steps * loads * MATRICES_NBYTES * threads / WARP_SIZE,
        instructions=steps * (rows * columns + loads),
        registers=4 * rows * columns + fragment_registers(loads) + CODE.product_registers,
    )
