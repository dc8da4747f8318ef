"""The cost model: how long a launch takes, from counted work and facts of the target.

Each resource gives a time of its own, as if it were the only limit:

    memory    bytes between the chip and its memory; writes cost more than reads
    cache     bytes that warps ask the second-level cache for, in whole sectors
    issue     warp instructions, over what the schedulers issue
    shared    bytes through the first-level cache and the banks of shared memory, and cache lines
    access    warp accesses of less than 16 bytes a lane
    products  matrix instructions, over what a multiprocessor multiplies
    latency   what a block takes alone (waits for memory, exchanges, its own instructions), times
              the rounds of blocks that the multiprocessors hold: bytes in flight by Little's law

They overlap, but not perfectly: the time is their norm of order `OVERLAP`, plus what a launch and
its first blocks cost. The model orders candidates and says what limits them. Its constants were
chosen so that the 24 cases of the bench come out as measured on an H200 (notes/measured.md);
`python -m bench.predicted` compares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fusewright.schedule.heuristics.work import Array, Work, warps
from fusewright.target import (
    ISSUE_PER_CLOCK,
    L2_NBYTES_PER_CLOCK,
    SHARED_NBYTES_PER_CLOCK,
    WARP_SIZE,
    Target,
)

OVERLAP = 6.0
READ_SHARE = 0.95
"""Of the nominal bandwidth that reading reaches."""
WRITE_WEIGHT = 1.15
"""A byte written over a byte read: a copy reaches 0.885 of the nominal bandwidth."""
NEAR_NBYTES = 64 * 1024
"""An array that stays in the first-level cache of a multiprocessor."""
CACHED_SHARE = 0.5
"""Of the second-level cache that holds what is read again soon."""
EXCHANGE_US = 0.3
"""Shuffles, a barrier, and partial results through shared memory, until the last warp is done."""
CLUSTER_EXCHANGE_US = 1.5
"""The same between the blocks of a cluster, whose mbarriers count what they send each other."""
START_US = 0.25
"""Until a block runs after another one has left."""
LAUNCH_US = 2.0
"""Of a kernel on the device, beside its blocks."""
LINES_PER_CLOCK = 2.0
"""That a multiprocessor's cache looks up: 10 million scattered ones took no longer than 26 us on an
H200 (seed 93 of the lot, 2026-11-22)."""
NARROW_CLOCKS = 1.8
"""Of an access by a warp with less than 16 bytes a lane. In a tile that is stored before a barrier
and loaded after it, they come on top: loads of memory are not under way meanwhile. From five tiles
of a lot (seeds 9, 30, 51, 72, 114) on an H200, 2026-11-22."""
DEPENDENT_CLOCKS = 6.0
"""Between instructions of a warp that need each other, with some parallelism among them."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Predicted microseconds, in all and by resource; of a multiprocessor the blocks that it holds,
    and the bytes of loads that these have under way."""

    us: float
    parts: tuple[tuple[str, float], ...]
    resident: int
    flight_nbytes: int

    @property
    def limit(self) -> str:
        """The resource that takes longest."""
        return max(self.parts, key=lambda p: p[1])[0]


def cost(work: Work, target: Target) -> Cost:
    """The predicted time of a launch."""
    resident = resident_blocks(work, target)
    running = max(1, min(work.blocks, resident * target.multiprocessors))
    busy = min(1.0, work.blocks / target.multiprocessors)
    clock = target.clock_mhz
    memory = _memory_nbytes(work, running, target) / (target.memory_nbytes_per_us * READ_SHARE)
    chip = target.multiprocessors * busy * clock
    near, far = _asked(work)
    issued = work.blocks * warps(work.threads) * work.instructions
    alone = _alone(work, target)
    access = NARROW_CLOCKS * work.narrow / chip
    parts = (
        ("memory", memory / min(1.0, 4 * busy)),
        ("cache", far / (L2_NBYTES_PER_CLOCK * chip)),
        ("issue", issued / (ISSUE_PER_CLOCK * chip)),
        ("shared", max(near / SHARED_NBYTES_PER_CLOCK, work.lines / LINES_PER_CLOCK) / chip),
        ("access", access),
        *((("products", work.blocks * work.product_clocks / chip),) if work.product_clocks else ()),
        ("latency", alone * _rounds(work.blocks / running)),
    )
    is_tile = bool(work.shared_nbytes) and not work.exchanges
    together = [t for name, t in parts if name != "access" or not is_tile]
    norm = sum(t**OVERLAP for t in together) ** (1 / OVERLAP)
    start = LAUNCH_US + START_US + target.memory_latency_us + (access if is_tile else 0.0)
    flight = int(resident * work.threads * work.flight_nbytes)
    return Cost(start + norm, parts, resident, flight)


def _rounds(waves: float) -> float:
    """Rounds of blocks that follow each other: whole ones while they are few, since all blocks of
    a round end together; later ones overlap."""
    return waves + (math.ceil(waves) - waves) / waves


def _asked(work: Work) -> tuple[float, float]:
    """Bytes that warps ask the first-level cache and shared memory for, and the second-level cache.
    What several stages read between two exchanges, and small arrays, are found nearby."""
    near, far = work.blocks * work.through_shared, 0.0
    for a in work.arrays:
        total = sum(a.requested)
        again = total if work.exchanges or a.is_written else max(a.requested)
        small = a.nbytes <= NEAR_NBYTES and not a.is_written
        far += 0.0 if small else again
        near += total
    return near, far


def resident_blocks(work: Work, target: Target) -> int:
    """Blocks that a multiprocessor holds at a time, at least 1. Launch bounds are kept."""
    threads = warps(work.threads) * WARP_SIZE
    reserved = target.shared_nbytes_per_sm - target.shared_nbytes_per_block
    fit = min(
        target.threads_per_sm // threads,
        target.blocks_per_sm,
        target.shared_nbytes_per_sm // (work.shared_nbytes + reserved),
    )
    by_registers = target.registers_per_sm // (threads * work.registers)
    return max(1, min(fit, max(by_registers, work.min_blocks)))


def _memory_nbytes(work: Work, running: int, target: Target) -> float:
    """Bytes between the chip and its memory, a byte written counted `WRITE_WEIGHT` times. An array
    that the cache holds moves once; a larger one as often as it is asked for, but for what the
    blocks that run together ask for again while it is still there."""
    total = 0.0
    for a in work.arrays:
        moved = min(float(a.nbytes), max(a.requested))
        if not a.is_written and a.nbytes > CACHED_SHARE * target.l2_nbytes:
            moved *= _passes(a, work, running, target)
        total += moved * (WRITE_WEIGHT if a.is_written else 1.0)
    return total


def _passes(a: Array, work: Work, running: int, target: Target) -> float:
    """How often an array comes from memory: once where what the running blocks have of it stays
    in the cache until they ask for it again."""
    times = max(1.0, sum(a.requested) / a.nbytes)
    together = a.nbytes * running / work.blocks
    return 1.0 if together <= CACHED_SHARE * target.l2_nbytes else times


def _alone(work: Work, target: Target) -> float:
    """Microseconds of a block that has a multiprocessor to itself."""
    exchange = CLUSTER_EXCHANGE_US if work.cluster > 1 else EXCHANGE_US
    own = warps(work.threads) * work.instructions / ISSUE_PER_CLOCK
    dependent = work.instructions * DEPENDENT_CLOCKS / 4
    return (
        START_US
        + work.loads * target.memory_latency_us
        + work.exchanges * exchange
        + (EXCHANGE_US if work.shared_nbytes else 0.0)
        + max(own, dependent) / target.clock_mhz
    )
