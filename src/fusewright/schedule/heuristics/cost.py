"""The cost model: how long a launch takes, from counted work and facts of the target.

Each resource gives a time of its own, as if it were the only limit:

    memory    bytes between the chip and its memory; writes cost more than reads
    cache     bytes that warps ask the second-level cache for, in whole sectors
    issue     warp instructions, over what the schedulers issue
    shared    bytes through the first-level cache and the banks of shared memory, and cache lines
    access    warp accesses of less than 16 bytes a lane
    products  matrix instructions, over what a multiprocessor multiplies; what warpgroups compute
              of their sums comes on top, as all of them do so at the same time, and so does what
              they wait for then (`product_suffix`)
    boxes     the boxes that bring a product's operands, by lines (`product_steps`)
    ring      the same with too few of them under way
    latency   what a block takes alone (waits for memory, exchanges, its own instructions), times
              the rounds of blocks that the multiprocessors hold: bytes in flight by Little's law;
              until all that a block reads is there it has its multiprocessor's share of the
              bandwidth, which others use in the meantime if there are any; waits for other blocks
              of the grid among it, or, where all blocks run at once and so wait at the same time,
              on top of everything

They overlap, but not perfectly: the time is their norm of order `overlap`, plus what a launch and
its first blocks cost; with narrow accesses to tiles in shared memory, before and behind which
blocks wait, one of order `tile_overlap`. The model orders candidates and says what limits them.
What was measured is in `Target.calibration`; `python -m bench.predicted` compares times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fusewright.core.instructions import CODE
from fusewright.schedule.heuristics.product_steps import outside_us, step_clocks
from fusewright.schedule.heuristics.product_suffix import alone_clocks, moved_us, waits_us
from fusewright.schedule.heuristics.product_work import ProductWork
from fusewright.schedule.heuristics.thread_loops import warps
from fusewright.schedule.heuristics.work import MovedArray, Work
from fusewright.target import (
    ISSUE_PER_CLOCK,
    PARTITIONS,
    SHARED_NBYTES_PER_CLOCK,
    WARP_SIZE,
    Target,
)

NEAR_NBYTES = 64 * 1024
"""An array that stays in the first-level cache of a multiprocessor."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Predicted microseconds, in all and by resource; of a multiprocessor the blocks that it holds,
    and the bytes of loads that these have under way; the blocks of a cluster, and whether blocks of
    the grid wait for each other while others move data."""

    us: float
    parts: tuple[tuple[str, float], ...]
    resident: int
    flight_nbytes: int
    cluster: int = 1
    gathers: bool = False

    @property
    def limit(self) -> str:
        """The resource that takes longest."""
        return max(self.parts, key=lambda p: p[1])[0]


def cost(work: Work, target: Target) -> Cost:
    """The predicted time of a launch."""
    known = target.calibration
    resident = resident_blocks(work, target)
    running = running_blocks(work, target)
    busy = min(1.0, work.blocks / target.multiprocessors)
    clock = target.clock_mhz
    memory = _memory_nbytes(work, running, target) / (
        target.memory_nbytes_per_us * known.read_share
    )
    chip = target.multiprocessors * busy * clock
    near, far = _asked(work)
    issued = work.blocks * warps(work.threads) * work.instructions
    alone = _alone(work, target)
    met = work.gatherings * known.gather_us
    is_one_round = work.blocks <= running
    access = known.narrow_clocks * work.narrow / chip
    by_warps = work.warp_pairs / target.warp_mma_per_clock
    issue = issued / (ISSUE_PER_CLOCK * chip) * _unevenness(work.blocks, resident, target)
    rounds = _rounds(max(1.0, work.blocks / target.multiprocessors))
    steps = () if work.product is None else _steps(work.product, rounds, busy, target)
    parts = (
        ("memory", memory / min(1.0, 4 * busy)),
        ("cache", far / (known.l2_nbytes_per_clock * chip)),
        ("issue", issue),
        ("shared", max(near / SHARED_NBYTES_PER_CLOCK, work.lines / known.lines_per_clock) / chip),
        ("access", access),
        *((("products", work.blocks * by_warps / chip),) if by_warps else ()),
        (
            "latency",
            (alone + (0.0 if is_one_round else met)) * _rounds(work.blocks / running)
            + _arrival(work, target) / min(1.0, 4 * busy) / resident,
        ),
    )
    is_tile = bool(work.shared_nbytes) and not work.exchanges + work.lane_exchanges
    if work.product is not None:
        us = _product_us(work, work.product, dict(parts), dict(steps), rounds, target)
    else:
        together = [t for name, t in parts if name != "access" or not is_tile]
        us = _norm(together, known.overlap)
        us = _norm((us, access), known.tile_overlap) if is_tile else us
        us += known.start_us + known.memory_latency_us
        us += met if is_one_round else 0.0  # all of them wait at the same time
    flight = int(resident * work.threads * work.flight_nbytes)
    gathers = bool(met) and not is_one_round
    return Cost(known.launch_us + us, (*parts, *steps), resident, flight, work.cluster, gathers)


def _arrival(work: Work, target: Target) -> float:
    """Microseconds in which memory brings all that a launch reads, each array once, where the warps
    of a block wait for each other's loads: none where they exchange nothing, or load for their next
    trip while they do. A block exchanges when what it reads is there: one alone on its
    multiprocessor moves nothing from then on until the next one begins, so that both times add up,
    of several each is at another point; of what comes in several trips the last one counts. Of 260
    draws (one H100, 2026-11-26 to 28) the root mean square of the logarithm of predicted over
    measured times is 0.109 with it and 0.118 without; of the 88 whose warps exchange 0.161 and
    0.180."""
    if work.walked or not work.exchanges:
        return 0.0
    read = (a for a in work.arrays if not (a.is_written or a.by_boxes))
    nbytes = sum(min(float(a.nbytes), max(*a.requested, a.together)) for a in read)
    arrived = nbytes / (target.memory_nbytes_per_us * target.calibration.read_share)
    return arrived / max(1, work.loads)


def held_in_shared_memory(alone: Cost, whole: Cost, target: Target) -> Cost:
    """What a launch costs on one multiprocessor with its arrays in shared memory: nothing is
    launched, and nothing waits for memory or the second-level cache. Its blocks are rounds of one,
    which wait for each other as those of the `whole` launch do, once."""
    known = target.calibration
    found = dict(alone.parts) | {"memory": 0.0, "cache": 0.0}
    found["latency"] = dict(whole.parts)["latency"]
    waited = max(0.0, found["latency"] - known.start_us - known.memory_latency_us)
    us = _norm((found | {"latency": waited}).values(), known.overlap)
    return replace(alone, us=us, parts=tuple(found.items()))


def together(costs: Sequence[Cost], target: Target) -> Cost:
    """The predicted time of kernels whose work one launch does one after the other."""
    found: dict[str, float] = {}
    for c in costs:
        for name, t in c.parts:
            found[name] = found.get(name, 0.0) + t
    known = target.calibration
    waits = (len(costs) - 1) * (known.start_us + known.memory_latency_us)
    found["latency"] = max(0.0, found["latency"] - waits)
    us = sum(c.us for c in costs)
    return replace(costs[0], us=us, parts=tuple(found.items()))


def repeated(one: Cost, times: int, nbytes: int, target: Target) -> Cost:
    """The predicted time of a launch that does so often what another one does once, and moves
    `nbytes` in all: nothing is launched between two times, and what one hands to the next is not
    waited for."""
    known = target.calibration
    waits = known.start_us + known.memory_latency_us
    found = {name: times * t for name, t in one.parts}
    found["memory"] = nbytes / (target.memory_nbytes_per_us * known.read_share)
    found["latency"] = times * max(0.0, dict(one.parts)["latency"] - waits)
    us = known.launch_us + waits + _norm(found.values(), known.overlap)
    return replace(one, us=us, parts=tuple(found.items()))


def _norm(times: Iterable[float], order: float) -> float:
    return sum(t**order for t in times) ** (1 / order)


def _product_us(
    work: Work,
    p: ProductWork,
    parts: Mapping[str, float],
    steps: Mapping[str, float],
    rounds: float,
    target: Target,
) -> float:
    """Microseconds of the steps of all tiles with what overlaps with them, and of what stands
    around them: all that threads compute, and the traffic that they cause. Where warpgroups take
    tiles in turn, those overlap, too."""
    known = target.calibration
    apart = work.blocks * p.tiles * (p.loaded_nbytes + known.write_weight * p.stored_nbytes)
    apart /= target.memory_nbytes_per_us * known.read_share
    if p.ping_pong:
        apart = 0.0
    beside = max(0.0, parts["memory"] - apart), parts["cache"], parts["shared"]
    overlapped = _norm((*beside, max(steps.values())), known.box_overlap)
    met = rounds * (known.box_cluster_us if work.cluster > 1 else 0.0)
    clocks = alone_clocks(p.accumulators) if p.ping_pong else 1.0
    around = rounds * _around_steps(work, p, target) + clocks * parts["issue"]
    if p.ping_pong:
        tiles = rounds * p.tiles
        around = outside_us(tiles, max(steps.values()) / tiles, around / tiles)
    return overlapped + met + around


def _steps(
    p: ProductWork, rounds: float, busy: float, target: Target
) -> tuple[tuple[str, float], ...]:
    """The times of a product's steps by what they may be limited by, in rounds of blocks."""
    clocks = step_clocks(p.step, busy, target)
    times = rounds * p.steps / target.clock_mhz
    parts = ("products", clocks.products), ("boxes", clocks.boxes), ("ring", clocks.ring)
    return tuple((name, times * own) for name, own in parts)


def _around_steps(work: Work, p: ProductWork, target: Target) -> float:
    """Microseconds around the steps of a block's tiles, what threads load and store there among
    them."""
    moved = moved_us(p.loaded_nbytes, p.stored_nbytes, work.threads, target)
    waited = waits_us(p.shared_nbytes, work.threads, target)
    return p.tiles * (target.calibration.tile_us + moved + waited)


def bound_us(work: Work, target: Target) -> float:
    """A time that other schedules of the same group hardly beat: of a launch that moves every array
    once, and computes the same; what every thread has, what it takes to address memory, and lanes
    of warps without a thread, or without an element, others may spare."""
    known = target.calibration
    once = [(min(float(a.nbytes), max(a.requested)), a.is_written) for a in work.arrays]
    moved = sum(n * (known.write_weight if is_written else 1.0) for n, is_written in once)
    spared = CODE.start + work.addressing
    issued = work.busy * work.blocks * work.threads / WARP_SIZE * (work.instructions - spared)
    return (
        known.launch_us
        + known.start_us
        + known.memory_latency_us
        + max(
            moved / (target.memory_nbytes_per_us * known.read_share),
            issued / (ISSUE_PER_CLOCK * target.multiprocessors * target.clock_mhz),
        )
    )


def _unevenness(blocks: int, resident: int, target: Target) -> float:
    """How many blocks the fullest multiprocessor has, over their mean, where all of them run at
    once, `resident` on each: it issues for as much longer. Blocks that wait for others to leave go
    wherever one left."""
    mean = blocks / target.multiprocessors
    return math.ceil(mean) / mean if 1 < mean <= resident else 1.0


def _rounds(waves: float) -> float:
    """Rounds of blocks that follow each other: whole ones while they are few, since all blocks of
    a round end together; later ones overlap."""
    return waves + (math.ceil(waves) - waves) / waves


def _asked(work: Work) -> tuple[float, float]:
    """Bytes that warps ask the first-level cache and shared memory for, and the second-level cache,
    which reads sectors by twos, and reads, merges and writes those that are not filled. What
    several stages read between two exchanges, and small arrays, are found nearby."""
    near, far = work.blocks * work.through_shared, work.blocks * work.gathered_nbytes
    exchanges = work.exchanges + work.lane_exchanges
    for a in work.arrays:
        total = sum(a.requested)
        again = total if exchanges or a.is_written else max(a.again, *a.requested)
        small = a.nbytes <= NEAR_NBYTES and not a.is_written
        far += 0.0 if small or a.by_boxes else again + a.beside + a.unfilled
        near += total
    return near, far


def resident_blocks(work: Work, target: Target) -> int:
    """Blocks that a multiprocessor holds at a time, at least 1. Launch bounds are kept."""
    threads = warps(work.threads) * WARP_SIZE
    fit = target.blocks_at_once(threads, work.shared_nbytes)
    by_registers = target.registers_per_sm // (threads * work.registers)
    return max(1, min(fit, max(by_registers, work.min_blocks)))


def running_blocks(work: Work, target: Target) -> int:
    """The blocks of a launch that run at one time."""
    return max(1, min(work.blocks, resident_blocks(work, target) * target.multiprocessors))


def _memory_nbytes(work: Work, running: int, target: Target) -> float:
    """Bytes between the chip and its memory, a byte written counted `write_weight` times as far as
    others are read beside it (a kernel that only writes reaches 3190 GB/s on an H100, a copy 2943,
    2026-11-27)."""
    known, read, written = target.calibration, 0.0, 0.0
    for a in work.arrays:
        moved = moved_nbytes(a, work, running, target)
        by_rings = known.read_share / known.box_read_share if a.by_boxes else 1.0
        written += moved if a.is_written else 0.0
        read += 0.0 if a.is_written else moved * by_rings
    return read + written + (known.write_weight - 1.0) * min(read, written)


def moved_nbytes(a: MovedArray, work: Work, running: int, target: Target) -> float:
    """Bytes of an array between the chip and its memory, in whole sectors, those that are read by
    twos, while so many blocks are `running`. An array that the cache holds moves once; a larger one
    as often as it is asked for, but for what is asked for again while it is still there."""
    cached = target.calibration.cached_share * target.l2_nbytes
    asked = max(*a.requested, a.paired, a.together)
    moved = min(float(a.nbytes), asked)
    if a.picks is not None:
        return a.picks.moved(a.nbytes, asked, cached) * a.picks.isolation
    if a.is_written:
        return moved * _returns(a, work, target)
    if a.nbytes > cached:
        return _with_rereads(a, moved + a.borders, work, running, target)
    return moved


def _with_rereads(a: MovedArray, moved: float, work: Work, running: int, target: Target) -> float:
    """The bytes that come from memory of an array of which `moved` do at least once: no more where
    what the running blocks have of it stays in the cache until they ask for it again. Operands of
    products come as often as groups of tiles that run together lie side by side."""
    times = max(1.0, sum(a.requested) / a.nbytes)
    if a.tiles:  # those of a round are about a square of the result, and share what they read
        times = max(1.0, min(times, math.sqrt(a.tiles / running)))
    cached = target.calibration.cached_share * target.l2_nbytes
    together = a.nbytes * running / work.blocks
    times_again = min(times, _returns(a, work, target))
    lost = sum(_touched(work, share) > cached for share in a.between)
    again = min(moved * (1.0 + lost), max(moved, sum(a.requested) + a.beside))
    return max(moved * (times_again if together <= cached else times), again)


def _returns(a: MovedArray, work: Work, target: Target) -> float:
    """How often a pair of sectors is moved of which blocks need parts: once for each of them where
    the cache does not keep it from one to the next."""
    share, visits = a.returns
    cached = target.calibration.cached_share * target.l2_nbytes
    return visits if share and _touched(work, share) > cached else 1.0


def _touched(work: Work, share: float) -> float:
    """Bytes that a launch touches while this share of its blocks run, each counted once: what the
    cache has to hold for an access to find what another one brought so long before. The accesses to
    one array are that many runs through it side by side, which may overlap."""
    return sum(
        a.nbytes * min(1.0, share + sum(min(share, x) for x in a.between)) for a in work.arrays
    )


def _alone(work: Work, target: Target) -> float:
    """Microseconds of a block that has a multiprocessor to itself."""
    known = target.calibration
    own_exchanges = (
        work.exchanges - work.cluster_exchanges + work.lane_exchanges * known.lanes_share
    )
    own = warps(work.threads) * work.instructions / ISSUE_PER_CLOCK
    dependent = work.instructions * known.dependent_clocks / PARTITIONS
    busy = (
        own_exchanges * known.exchange_us
        + work.cluster_exchanges * known.cluster_exchange_us
        + (known.exchange_us if work.shared_nbytes else 0.0)
        + max(own, dependent) / target.clock_mhz
    )
    ahead = work.walked * known.idle_latency_us
    return known.start_us + work.loads * known.memory_latency_us + max(busy, ahead)
