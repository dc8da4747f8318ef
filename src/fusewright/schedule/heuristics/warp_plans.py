"""Tiles of products on the instructions of single warps, and their predicted times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fusewright.core.instructions import CODE
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.product_plans import (
    STAGED_ITEMSIZE,
    ProductSizes,
    numbers_of_splits,
)
from fusewright.schedule.heuristics.product_times import KEPT, combine_us
from fusewright.schedule.heuristics.warp_work import fragment_registers
from fusewright.target import (
    ISSUE_PER_CLOCK,
    MATRICES_NBYTES,
    MAX_REGISTERS_PER_THREAD,
    MAX_VECTOR_NBYTES,
    SECTOR_NBYTES,
    SHARED_NBYTES_PER_CLOCK,
    WARP_SIZE,
    Target,
)

_MENU = (
    (128, 256, 2, 4),
    (256, 128, 4, 2),
    (128, 128, 2, 4),
    (128, 128, 2, 2),
    (128, 64, 2, 2),
    (64, 128, 2, 2),
    (64, 64, 2, 2),
    (64, 32, 2, 2),
    (32, 64, 2, 2),
    (32, 32, 2, 2),
    (16, 128, 1, 4),
    (16, 64, 1, 4),
)
"""Rows and columns of a block's tile, and the warps that share each."""
_DEPTHS = (32, 64)
"""Of a tile. With the larger one fewer barriers are met, and fewer tiles are under way."""
MAX_AHEAD = 96
"""Of the depth, copied ahead of what is multiplied: with more, loads wait for nothing that this
does not cover."""
STEP = 16
"""Of the depth: what an instruction multiplies."""
MAX_WARP_ACCUMULATORS = 128
"""Registers of a thread for them: half of those it has, as fragments of two steps are held beside
them."""


@dataclass(frozen=True, slots=True)
class WarpPlan:
    """A tile of the result, its depth, the warps `down` and `across` that share its rows and its
    columns, the tiles of each operand in memory together, and the rows of tiles of a group. So many
    blocks as there are `splits` sum parts of the depth, and combine them as `mode` says."""

    rows: int
    columns: int
    depth: int
    down: int
    across: int
    stages: int
    group: int = 1
    products: int = 1
    splits: int = 1
    mode: str = "slices"

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.down * self.across * WARP_SIZE

    @property
    def accumulators(self) -> int:
        """Registers of a thread for the sums of all products."""
        return self.rows * self.columns * self.products // self.threads

    @property
    def fragments(self) -> int:
        """Loads of matrices of a warp, for a step of the depth."""
        own = self.rows // self.down, self.columns // self.across
        return own[0] // STEP + self.products * (own[1] // STEP)

    @property
    def registers(self) -> int:
        """Of a thread: sums, fragments of two steps, addresses."""
        held = fragment_registers(self.fragments)
        return min(MAX_REGISTERS_PER_THREAD, self.accumulators + held + CODE.product_registers)

    def stage_nbytes(self, sizes: ProductSizes) -> int:
        """Of a tile of each operand."""
        return (self.rows + self.columns * self.products) * self.depth * sizes.itemsize

    def tiles(self, sizes: ProductSizes) -> int:
        """The tiles of a product of these sizes."""
        return sizes.batch * -(-sizes.rows // self.rows) * -(-sizes.columns // self.columns)

    @property
    def params(self) -> Params:
        """The parameters by name."""
        is_split = self.splits > 1
        return Params.of(
            "warp_matmul",
            min_blocks=1,
            tile=f"{self.rows}x{self.columns}x{self.depth}",
            warps=f"{self.down}x{self.across}",
            stages=self.stages,
            group=self.group,
            splits=self.splits if is_split else None,
            mode=self.mode if is_split else None,
        )


def warp_plans(sizes: ProductSizes, target: Target, products: int = 1) -> list[WarpPlan]:
    """The menu's tiles for a product of these sizes, with the stages that fit: at least two of what
    is not copied as a whole."""
    tiles = (WarpPlan(r, c, k, d, a, 1, 1, products) for r, c, d, a in _MENU for k in _DEPTHS)
    held = (p for p in tiles if p.accumulators <= MAX_WARP_ACCUMULATORS)
    staged = (_staged(p, sizes, target) for p in held)
    return [p for p in staged if p.stages > 1 or sizes.depth <= p.depth]


def with_shared_depth(plan: WarpPlan, sizes: ProductSizes, target: Target) -> list[WarpPlan]:
    """The plan with the depth of a tile shared by so many blocks that these fill the chip."""
    part = 4 * plan.tiles(sizes) * plan.rows * plan.columns * plan.products
    trips = -(-sizes.depth // plan.depth)
    counts = numbers_of_splits(plan.tiles(sizes), trips, part, sizes, target)
    return [replace(plan, splits=n) for n in counts]


def ranked(
    plans: Sequence[WarpPlan], sizes: ProductSizes, widths: tuple[int, int], target: Target
) -> list[WarpPlan]:
    """Plans in the order of their predicted time; of those that are as fast as the fastest, the one
    that reads the least comes first."""
    us = {p: warp_us(sizes, p, widths, target) for p in plans}
    ordered = sorted(plans, key=lambda p: us[p])
    if not ordered:
        return []
    alike = [p for p in ordered if us[p] <= target.calibration.product_margin * us[ordered[0]]]
    first = min(alike, key=lambda p: (p.tiles(sizes) * (p.rows + p.columns * p.products), p.splits))
    return [first, *(p for p in ordered if p is not first)]


def _staged(plan: WarpPlan, sizes: ProductSizes, target: Target) -> WarpPlan:
    """The plan with as many stages as leave room for a second block, where registers do too."""
    blocks = 2 if 2 * plan.threads * plan.registers <= target.registers_per_sm else 1
    room = min(target.shared_nbytes_per_block, target.shared_nbytes_per_sm // blocks - 1024)
    trips, most = -(-sizes.depth // plan.depth), 1 + -(-MAX_AHEAD // plan.depth)
    return replace(plan, stages=max(1, min(most, room // plan.stage_nbytes(sizes), trips)))


def warp_us(
    sizes: ProductSizes,
    plan: WarpPlan,
    widths: tuple[int, int],
    target: Target,
    written: int = STAGED_ITEMSIZE,
) -> float:
    """Microseconds of a product whose operands are copied by so many elements at once: rounds of
    tiles, each what its multiprocessor multiplies, issues, moves through shared memory and reads
    from the second-level cache; beside that what memory takes for both operands, and for so many
    bytes that are `written` for each place of the result."""
    known, resident = target.calibration, resident_blocks(sizes, plan, target)
    steps = -(-sizes.depth // (plan.depth * plan.splits))
    busy = _norm(_clocks_of_step(sizes, plan, widths, target), known.overlap)
    exposed = busy + known.exposed_clocks / resident
    clocks = max(exposed, _waiting(busy, plan, target) / resident) * steps
    rounds = -(-plan.tiles(sizes) * plan.splits // target.multiprocessors)
    own = rounds * clocks / target.clock_mhz
    results = sizes.batch * sizes.rows * sizes.columns * written
    memory = sizes.nbytes + known.write_weight * results
    memory /= target.memory_nbytes_per_us * known.read_share
    starts = -(-rounds // resident)
    together = known.launch_us + _norm((own, memory), known.overlap) + starts * known.thread_tile_us
    sums = plan.tiles(sizes) * plan.rows * plan.columns * plan.products
    return together + combine_us(plan.splits, sums, target)


def _waiting(busy: float, plan: WarpPlan, target: Target) -> float:
    """Clocks of a block for a tile of the depth that waits for its operands alone: a copy has so
    many tiles' time as are under way; without a ring, it comes on top of what is done with it."""
    latency = target.calibration.memory_latency_us * target.clock_mhz
    return latency / (plan.stages - 1) if plan.stages > 1 else latency + busy


def resident_blocks(sizes: ProductSizes, plan: WarpPlan, target: Target) -> int:
    """Blocks that a multiprocessor holds at a time."""
    fit = target.blocks_at_once(plan.threads, plan.stage_nbytes(sizes) * plan.stages)
    return max(1, min(fit, target.registers_per_sm // (plan.threads * plan.registers)))


def _clocks_of_step(
    sizes: ProductSizes, plan: WarpPlan, widths: tuple[int, int], target: Target
) -> tuple[float, ...]:
    """Clocks of a multiprocessor for a tile of the depth, by what it is busy with. A row of a tile
    that begins anywhere touches up to a sector more than it fills."""
    known, warps = target.calibration, plan.threads // WARP_SIZE
    lines = plan.rows, plan.columns * plan.products
    nbytes = plan.stage_nbytes(sizes)
    copies = [n * plan.depth / (w * WARP_SIZE) for n, w in zip(lines, widths, strict=True)]
    whole = MAX_VECTOR_NBYTES // sizes.itemsize
    narrow = sum(c for c, w in zip(copies, widths, strict=True) if w < whole)
    sectors = sizes.itemsize * sum(
        n * (plan.depth + (0 if w == whole else SECTOR_NBYTES // sizes.itemsize - w))
        for n, w in zip(lines, widths, strict=True)
    )
    loads = warps * plan.fragments * plan.depth // STEP
    multiplied = plan.rows * plan.columns * plan.products * plan.depth
    instructions = multiplied / (STEP * 16 * 8) + loads + CODE.copied * sum(copies)
    return (
        multiplied / target.warp_mma_per_clock,
        (loads * MATRICES_NBYTES + nbytes) / SHARED_NBYTES_PER_CLOCK + narrow * known.narrow_clocks,
        (instructions + warps * CODE.product_trip) / ISSUE_PER_CLOCK,
        sectors / known.l2_nbytes_per_clock,
    )


def _norm(parts: tuple[float, ...], order: float) -> float:
    return math.fsum(p**order for p in parts) ** (1 / order)


@lru_cache(maxsize=KEPT)
def least_warp_us(
    sizes: ProductSizes, widths: tuple[int, int], target: Target, written: int = STAGED_ITEMSIZE
) -> float:
    """Microseconds of a product with the best of the tiles."""
    return min(warp_us(sizes, p, widths, target, written) for p in warp_plans(sizes, target))
