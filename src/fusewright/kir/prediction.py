"""What a kernel will take of a multiprocessor, known before any compiler runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusewright.errors import ScheduleError
from fusewright.kir.analysis.accesses import shared_allocs
from fusewright.kir.analysis.occupancy import (
    blocks_by_memory,
    blocks_by_registers,
    estimate_registers,
    register_cap,
)
from fusewright.kir.analysis.ownership import packed_offsets, shared_nbytes
from fusewright.kir.ir import Buffer, Kernel
from fusewright.kir.passes.pack_shared import offsets_apart
from fusewright.target import WARP_SIZE, Target


@dataclass(frozen=True, slots=True)
class Prediction:
    """`shared_nbytes` a block takes, alignment included, and what it would take if no two buffers
    shared memory; `registers` a thread, an estimate within `register_cap`, which the launch bounds
    impose; `blocks_per_sm`, the occupancy that follows, and what limits it."""

    nthreads: int
    shared_nbytes: int
    shared_nbytes_without_reuse: int
    registers: int
    register_cap: int
    blocks_per_sm: int
    warps_per_sm: int
    limited_by: str


def predict(kernel: Kernel, target: Target, *, requested: int = 0) -> Prediction:
    """The prediction for a final kernel of which `requested` blocks (0: as many as fit) are to
    share a multiprocessor.

    Raises ScheduleError when a request cannot be met, or no block fits.
    """
    n = kernel.nthreads
    nbytes = _nbytes(kernel, packed_offsets(kernel))
    by_memory = blocks_by_memory(target, n, nbytes)
    wanted = estimate_registers(kernel, target)
    by_registers = blocks_by_registers(target, n, wanted)
    blocks = requested or max(1, min(by_memory, by_registers))
    cap = register_cap(target, n, blocks)
    if blocks > by_memory or not cap:
        raise ScheduleError(
            f"{kernel.name}: {blocks} blocks of {n} threads and {nbytes} bytes of shared memory do "
            f"not fit a multiprocessor of {target}, which holds {by_memory}; ask for fewer "
            "with launch(min_blocks=), or use smaller tiles"
        )
    return Prediction(
        nthreads=n,
        shared_nbytes=nbytes,
        shared_nbytes_without_reuse=_nbytes(kernel, offsets_apart(kernel)),
        registers=min(wanted, cap),
        register_cap=cap,
        blocks_per_sm=blocks,
        warps_per_sm=blocks * -(-n // WARP_SIZE),
        limited_by="request" if requested else _limit(n, target, nbytes, by_registers),
    )


def with_launch_bounds(kernel: Kernel, target: Target) -> Kernel:
    """The kernel with the predicted blocks a multiprocessor as its launch bounds, which cap the
    registers so that the prediction comes true; those it has are a request. Raises ScheduleError
    as `predict`."""
    blocks = predict(kernel, target, requested=kernel.min_blocks).blocks_per_sm
    return kernel if blocks == kernel.min_blocks else replace(kernel, min_blocks=blocks)


def _nbytes(kernel: Kernel, offsets: dict[Buffer, int]) -> int:
    buffers = [a.buffer for _, a in shared_allocs(kernel)]
    return max((offsets[b] + shared_nbytes(b) for b in buffers), default=0)


def _limit(nthreads: int, target: Target, nbytes: int, by_registers: int) -> str:
    by_threads = blocks_by_memory(target, nthreads, 0)
    by_memory = blocks_by_memory(target, nthreads, nbytes)
    if by_registers < by_memory:
        return "registers"
    if by_memory < by_threads:
        return "shared memory"
    return "blocks" if by_threads == target.blocks_per_sm else "threads"
