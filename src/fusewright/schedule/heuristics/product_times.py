"""Predicted times of products on the instructions of warpgroups, by plan, and the least of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import TypeAlias

from fusewright.schedule.heuristics.product_plans import (
    IN_TURNS,
    MAX_ACCUMULATORS,
    STAGED_ITEMSIZE,
    ProductPlan,
    ProductSizes,
    in_arrival,
    in_slices_of_clusters,
    in_split_clusters,
    in_streams,
    in_turns,
    menu_plans,
    with_splits,
)
from fusewright.schedule.heuristics.product_steps import (
    DepthStep,
    outside_us,
    passed_nbytes,
    step_clocks,
)
from fusewright.schedule.heuristics.product_suffix import (
    PLAIN,
    Suffix,
    alone_clocks,
    exposed_us,
    uncounted_us,
)
from fusewright.target import (
    LINE_NBYTES,
    SHARED_NBYTES_PER_CLOCK,
    WARPGROUP_SIZE,
    Target,
    mma_per_clock,
)

SplitForm: TypeAlias = "Callable[[ProductPlan, ProductSizes, Target], Iterator[ProductPlan]]"
KEPT = 512
"""Sizes whose predicted times are kept: formation asks for those of a product several times."""
PING_PONG_MARGIN = 1.18
"""By how much plans in ping-pong have to be predicted faster than others: of eight products the
measured times of tiles of 128 x 128 over those without turns differ from the predicted ratios by
0.084 in the root mean square of the logarithm, most for deep ones; twice that (one H100,
2026-11-28, bench/ping-pong-2026-11-28-h100.json)."""


def predicted_us(
    sizes: ProductSizes, plan: ProductPlan, target: Target, suffix: Suffix = PLAIN
) -> float:
    """Microseconds of a launch: rounds of tiles, each so many steps and what stands around them,
    the `suffix` among that; beside it what boxes of operands and inputs take from memory, which
    they overlap less than loads do, and boxes of results to it. Blocks of a cluster begin and leave
    together; those that share a depth get the parts of a tile there as they get boxes."""
    known, (own, inside, rounds) = target.calibration, _steps_us(sizes, plan, target)
    if plan.in_result and plan.staged:  # what threads would store leaves by boxes, in the turns
        suffix = replace(suffix, stored=0)
    if plan.stream and not plan.staged:
        suffix = replace(suffix, stored=suffix.stored + suffix.boxed, boxed=0)
    memory = _memory_us(sizes, plan, target, suffix)
    together = (own**known.box_overlap + memory**known.box_overlap) ** (1 / known.box_overlap)
    threads = plan.groups_of_tile * WARPGROUP_SIZE
    exposed = exposed_us(
        plan.rows * plan.columns, threads, suffix, ahead=plan.ahead > 0, target=target,
        clocks=alone_clocks(plan.accumulators) if plan.ping_pong else 1.0,
    )  # fmt: skip
    tile = known.tile_us + exposed
    outside = outside_us(rounds, inside, tile) if plan.ping_pong else rounds * tile
    around = known.launch_us + outside
    if plan.blocks_together > 1:
        around += known.box_cluster_us * (1 if plan.blocks else rounds)
    sums = plan.rows * plan.columns * plan.products
    combined = 0.0
    if plan.mode == "cluster" or plan.first > 1:
        lines = 4 * sums / LINE_NBYTES
        combined += rounds * known.box_line_clocks * lines / target.clock_mhz
    if plan.mode in IN_TURNS:
        combined += turns_us(plan, plan.combined_tiles(sizes) * sums, target)
    elif plan.mode != "cluster":
        combined += combine_us(plan.splits // plan.first, plan.combined_tiles(sizes) * sums, target)
        # All wait for each tile of a stream's rest; turns of one tile pass beside the next one.
        combined += 2 * known.hop_us * (plan.rounds_of_rest(sizes) - 1 if plan.stream else 0)
    if plan.mode == "arrival":  # an addition reads and writes, and the sum is read once more
        combined += 4 * plan.tiles(sizes) * sums / target.memory_nbytes_per_us
    return around + together + combined


def _steps_us(sizes: ProductSizes, plan: ProductPlan, target: Target) -> tuple[float, float, int]:
    """Microseconds of all steps of a block, and of those of a tile, and the rounds of tiles."""
    at_once = target.clusters_at_once(plan.blocks_together) * plan.blocks_together
    shared = 1 if plan.stream else plan.splits
    blocks = plan.tiles(sizes) * shared
    rounds = -(-blocks // at_once)
    steps = -(-sizes.depth // (plan.depth * plan.splits))
    busy = min(1.0, blocks / at_once)
    clocks = step_clocks(step_of(sizes, plan), busy, target).most
    late = max(
        (
            -(-count // at_once) * (step_clocks(s, busy, target).most - clocks)
            for tiles, s in ragged_steps(sizes, plan)
            if (count := tiles * shared) > rounds * at_once - blocks
        ),
        default=0.0,
    )
    if plan.stream:
        steps = -(-sizes.depth // plan.depth)
        own = (plan.steps(sizes) * clocks + steps * max(0.0, late)) / target.clock_mhz
        rounds = plan.waves(sizes)[0] + plan.rounds_of_rest(sizes)
    else:
        own = steps * (rounds * clocks + max(0.0, late)) / target.clock_mhz
    return own, steps * clocks / target.clock_mhz, rounds


def _memory_us(sizes: ProductSizes, plan: ProductPlan, target: Target, suffix: Suffix) -> float:
    """Microseconds in which memory brings and takes what overlaps with steps: boxes, and in
    ping-pong what threads load behind the last one."""
    known = target.calibration
    places = sizes.batch * sizes.rows * sizes.columns
    beside = plan.ahead or (suffix.loaded if plan.ping_pong else 0)
    memory = memory_nbytes(sizes, plan, target) + places * beside
    memory /= target.memory_nbytes_per_us * known.box_read_share
    written = known.write_weight * places * suffix.boxed
    return memory + written / (target.memory_nbytes_per_us * known.read_share)


def memory_nbytes(sizes: ProductSizes, plan: ProductPlan, target: Target) -> float:
    """Bytes of both operands that come from memory: once where the second-level cache holds them,
    else what each round of tiles reads, which is a group's rows, and as many columns as then stand
    beside each other."""
    if plan.blocks == 0 or sizes.nbytes <= target.calibration.cached_share * target.l2_nbytes:
        return sizes.nbytes
    rows, columns = plan.rows * plan.cluster[0], plan.columns * plan.cluster[1]
    down, across = -(-sizes.rows // rows), -(-sizes.columns // columns)
    at_once = plan.blocks // plan.cluster_size
    beside = min(across, -(-at_once // plan.group))
    below = min(down, -(-at_once // beside))
    rounds = sizes.batch * down * across / at_once
    read = rounds * (below * rows + beside * columns * plan.products)
    return max(sizes.nbytes, read * sizes.depth * sizes.itemsize)


def ragged_steps(sizes: ProductSizes, plan: ProductPlan) -> Iterator[tuple[int, DepthStep]]:
    """The tiles that reach beyond an edge of an operand which has several, and their steps: those
    of the last row of tiles, and those of the last column. Blocks take turns at tiles, so that one
    block has at least its share of them, unless they are no more than the blocks that have a round
    less to do."""
    tiles = [-(-n // e) for n, e in ((sizes.rows, plan.rows), (sizes.columns, plan.columns))]
    left = (sizes.rows % plan.rows, sizes.columns % plan.columns)
    for i, inside in enumerate(left):
        if inside and tiles[i] > 1:
            whole = (inside, sizes.columns) if i == 0 else (sizes.rows, inside)
            yield sizes.batch * tiles[1 - i], step_of(sizes, plan, whole)


def step_of(
    sizes: ProductSizes, plan: ProductPlan, whole: tuple[int, int] | None = None
) -> DepthStep:
    """A tile of the depth, of so many rows and columns as the `whole` operands have: rows beyond
    an edge count where these are smaller than a tile."""
    sums = plan.rows * plan.columns * plan.products
    extents, whole = (plan.rows, plan.columns), whole or (sizes.rows, sizes.columns)
    times, sharing = (1, plan.products), (plan.cluster[1], plan.cluster[0])
    row = plan.depth * sizes.itemsize / LINE_NBYTES
    received = requested = beyond = crossing = 0.0
    for i in (0, 1):
        inside = min(extents[i], whole[i])
        lines = inside * times[i] * row * sizes.lines[i]
        received += lines
        requested += lines / sharing[i]
        crossing += 2 * inside * times[i] * row * (sizes.lines[i] - 1) / sharing[i]
        beyond += (extents[i] - inside) * times[i] * row / sharing[i]
    added = sums / (WARPGROUP_SIZE * plan.groups_of_tile) if plan.promoted else 0.0
    return DepthStep(
        sums * plan.depth / mma_per_clock(sizes.itemsize),
        added, received, requested, beyond, plan.stages, plan.groups_of_tile, crossing,
        passed_nbytes(plan.rows, plan.columns, plan.products, plan.depth * sizes.itemsize),
    )  # fmt: skip


def ranked_us(
    sizes: ProductSizes, plan: ProductPlan, target: Target, suffix: Suffix = PLAIN
) -> float:
    """The microseconds by which plans are ranked: with a margin for clusters, where rows begin
    inside of lines for all others, and with one for ping-pong, against what the others take with
    all that is computed of their sums. Ping-pong hides what stands around tiles
    behind steps: where memory takes longer than steps, which waits for neither, two blocks of a
    multiprocessor, which hide as much, gained nothing (64 of 1024 x 1024 x 128, one H100,
    2026-11-27), so that it ranks last. So do tiles of more sums than `MAX_ACCUMULATORS` a thread,
    which take 13 million calls of Python to compile (bias and gelu of 8192 x 16384 x 4096, where
    they were a tenth faster by hand): they are taken by hand only."""
    known, is_together = target.calibration, plan.blocks_together > 1
    if max(sizes.lines) > 1.0:
        margin = 1.0 if is_together else known.alone_margin
    else:
        margin = known.cluster_margin if is_together else 1.0
    if plan.ping_pong:
        own, _, _ = _steps_us(sizes, plan, target)
        is_hidden = own >= _memory_us(sizes, plan, target, suffix)
        is_quick = plan.accumulators <= MAX_ACCUMULATORS
        margin *= PING_PONG_MARGIN if is_hidden and is_quick else math.inf
        places = sizes.batch * sizes.rows * sizes.columns
        others = uncounted_us(places, suffix, target)
        return predicted_us(sizes, plan, target, suffix) * margin - others
    return predicted_us(sizes, plan, target, suffix) * margin


def combine_us(splits: int, sums: int, target: Target) -> float:
    """Microseconds in which blocks leave each other so many parts of the sums of all tiles in
    memory, and read them; none where no blocks share a depth."""
    if splits == 1:
        return 0.0
    # All parts of a tile are there behind one hop, and read behind another.
    return 2 * target.calibration.hop_us + 2 * 4 * splits * sums / target.memory_nbytes_per_us


def turns_us(plan: ProductPlan, sums: int, target: Target) -> float:
    """Microseconds in which blocks come one after the other to `sums` elements, those of all tiles:
    the first turn is as a gathering, each further one a hop, and where the copy engine brings the
    sum back, it passes shared memory once more; where it adds to the result, nothing is read back.
    """
    known = target.calibration
    nbytes = 4 * plan.rows * plan.columns * plan.products if plan.mode == "tma+bulk" else 0
    back = nbytes / (SHARED_NBYTES_PER_CLOCK * target.clock_mhz)
    further = max(0, plan.splits - 2) * known.hop_us
    if plan.in_result and plan.mode == "tma":
        further -= 4 * sums / target.memory_nbytes_per_us
    return combine_us(plan.splits, sums, target) + further + back


@lru_cache(maxsize=KEPT)
def least_us(sizes: ProductSizes, target: Target, suffix: Suffix = PLAIN) -> float:
    """Microseconds of a product and what is computed of it with the tile that ranks first, alone or
    in clusters."""
    outputs = suffix.boxed // STAGED_ITEMSIZE
    plans = menu_plans(sizes, target, outputs=outputs, loaded=suffix.loaded)
    first = min(plans, key=lambda p: ranked_us(sizes, p, target, suffix))
    return predicted_us(sizes, first, target, suffix)


SPLIT_FORMS: Mapping[str, SplitForm] = {
    "slices": with_splits, "clusters": in_split_clusters,
    "clusters, then slices": in_slices_of_clusters, "turns by vectors": partial(in_turns, "vector"),
    "turns by the copy engine": partial(in_turns, "tma"),
    "turns by the copy engine, back too": partial(in_turns, "tma+bulk"), "sums in the order of "
    "arrival (fw.config(deterministic=False))": in_arrival,
    "Stream-K, turns by vectors": partial(in_streams, "vector"),
    "Stream-K, slices": partial(in_streams, "slices"),
}  # fmt: skip
"""How blocks of one kernel that share a depth combine their parts."""


@lru_cache(maxsize=KEPT)
def least_split_us(sizes: ProductSizes, form: str, target: Target) -> float:
    """Microseconds of a product whose depth blocks of one kernel share in one of `SPLIT_FORMS`;
    infinite where none do."""
    menu = menu_plans(sizes, target)
    alone = (p for p in menu if p.cluster_size == 1 and not p.ping_pong)
    plans = (q for p in alone for q in SPLIT_FORMS[form](p, sizes, target))
    return min((predicted_us(sizes, p, target) for p in plans), default=math.inf)
