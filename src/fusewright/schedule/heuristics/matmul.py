"""Products on matrix instructions: a tile of the result a block, operands through shared memory.

    for k: copy a box of each operand; multiply        ->   accumulators in registers
    suffix over the accumulators                       ->   global memory

Everything is done by public calls on a schedule by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fusewright.core.expr import constant_value
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import MatMul, Permute, Pointwise
from fusewright.fusion.strided import box_problem, fastest_axis
from fusewright.memory import Memory
from fusewright.schedule.edits import edit
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.candidates import Candidate, Listed, Refused
from fusewright.schedule.heuristics.common import Params, vectorize_accesses
from fusewright.schedule.heuristics.work import product_clocks
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Parallel
from fusewright.schedule.products import axis_problem, boxed_memory, is_promoted, strided_operand
from fusewright.schedule.schedule import Schedule, ScheduledTensor
from fusewright.target import MMA_COLUMNS_UNIT, WARPGROUP_SIZE, Feature, Target

DEPTH_NBYTES = 128
"""Of a row of an operand's tile: what the widest exchange of chunks spans."""
_MENU = (
    (128, 256, 2),
    (128, 192, 2),
    (128, 128, 2),
    (256, 128, 2),
    (128, 64, 2),
    (128, 32, 2),
    (128, 16, 2),
    (128, 8, 2),
    (64, 256, 1),
    (64, 128, 1),
    (64, 64, 1),
    (64, 32, 1),
    (64, 16, 1),
    (64, 8, 1),
)
"""Rows, columns and warpgroups of a tile: those of the smallest traffic first."""
LEAST_EXCHANGE_NBYTES = 32
LARGE_TILE = 128 * 192
"""Of two warpgroups: accumulators that an equal share of the registers does not hold well."""
LARGE_REGISTERS = (40, 232)
MAX_ACCUMULATORS = 128
"""Registers of a thread for them; no more than two warpgroups share a multiprocessor's."""
MAX_PROMOTED = 192
"""Registers of a thread for accumulators and the float32 sums that these are added to, where
warps that multiply have `LARGE_REGISTERS`."""
MAX_STAGES = 20
"""Tiles of each operand under way: 16 x 4096 x 4096 takes 13.3, 12.8 and 12.0 us with 8, 12 and 20
(one H200, 2026-11-23, bench/product-plans-2026-11-23-h200.json); larger tiles fill the memory."""
STAGED_COLUMNS = 128
STAGED_UNIT = 16
"""Columns that a store of matrices takes."""
MAX_GROUP = 32
CLUSTERS = (2,)
"""Blocks of a cluster that copy the operands that they share for each other; of those of four, 112
of 132 multiprocessors surely hold some."""
KEPT = 64
"""Sizes whose predicted times are kept: formation asks for those of a product several times."""
BEYOND = 3
"""The time of a row of a box beyond an edge, which the copy engine fills with zeros, over that of
one within: 1.5 to 3.75 in plans whose tiles have 48 such rows of 64 (16 x 14336 x 4096, one H200,
2026-11-23, bench/product-plans-2026-11-23-h200.json)."""
ALIKE = 1.05
"""Predicted times within this factor count as equal: the model is no better."""
LEAST_TRIPS = 8
"""Tiles of the depth that a block sums where several share it: fewer do not fill its ring."""
MOST_WORKSPACE = 0.1
"""The parts that blocks leave each other, over the operands: more is a product of a short depth."""
HOP_US = 0.9
"""From a block that hands over to one that waits (one H200, 2026-11-23, `bench.turns`). All parts
of a tile are there behind one, and read behind another."""
BLOCK_US = 2.0
"""Of a tile beside its products: the first operands on their way, the results on theirs."""


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """A tile of the result, its depth, the warpgroups that share its rows, and the tiles of each
    operand that are in memory together; `staged` columns of results leave through shared memory
    together, 0 where threads store them. Tiles run in groups of `group` rows of tiles, every other
    one backwards if `serpentine`, on so many `blocks` in turn, 0 where each has a block of its own.
    Several `products` share an operand, and each has a tile of these columns. So many blocks as
    there are `splits` sum parts of the depth of one tile, and combine them as `mode` says.
    Sums that are `promoted` are added to a second set of registers on the way. Of the tiles of a
    `cluster` of blocks so many lie below each other, which copy the columns of the second operand
    together, or so many side by side, which copy the rows of the first; groups then have as many
    rows of clusters."""

    rows: int
    columns: int
    depth: int
    warpgroups: int
    stages: int
    staged: int = 0
    group: int = 1
    blocks: int = 0
    products: int = 1
    serpentine: bool = False
    splits: int = 1
    mode: str = "slices"
    promoted: bool = False
    cluster: tuple[int, int] = (1, 1)

    def tiles(self, sizes: Sizes) -> int:
        """The tiles of a product of these sizes, in whole clusters."""
        rows, columns = self.rows * self.cluster[0], self.columns * self.cluster[1]
        clusters = sizes.batch * -(-sizes.rows // rows) * -(-sizes.columns // columns)
        return clusters * self.cluster_size

    @property
    def cluster_size(self) -> int:
        """The blocks of a cluster, 1 where there are none."""
        return math.prod(self.cluster)

    @property
    def registers(self) -> tuple[int, int] | None:
        """Those that a thread which loads keeps, and one that multiplies gets, where many
        accumulators need more than an equal share."""
        held = self.rows * self.columns * self.products * (2 if self.promoted else 1)
        return LARGE_REGISTERS if held >= LARGE_TILE else None

    @property
    def params(self) -> Params:
        """The parameters by name."""
        tile = f"{self.rows}x{self.columns}x{self.depth}"
        values = (
            ("tile", tile),
            ("warpgroups", self.warpgroups),
            ("stages", self.stages),
            ("staged", self.staged),
            ("group", self.group),
            ("serpentine", int(self.serpentine)),
            ("blocks", self.blocks),
        )
        if self.splits > 1:
            values += (("splits", self.splits), ("mode", self.mode))
        if self.cluster_size > 1:
            values += (("cluster", "x".join(map(str, self.cluster))),)
        return Params("matmul", values, min_blocks=1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a product: matrices, rows, columns, pairs that an element sums, and bytes of a value."""

    batch: int
    rows: int
    columns: int
    depth: int
    itemsize: int = 2

    @property
    def pairs(self) -> int:
        """Of numbers that are multiplied."""
        return self.batch * self.rows * self.columns * self.depth

    @property
    def nbytes(self) -> int:
        """Of both operands."""
        return self.batch * (self.rows + self.columns) * self.depth * self.itemsize


def predicted_us(sizes: Sizes, plan: ProductPlan, target: Target) -> float:
    """Microseconds: rounds of tiles, each its products or its boxes, whichever takes longer, at the
    speed at which a multiprocessor reads the second-level cache; beside that what both operands
    take from memory, which overlaps as everywhere in the cost model."""
    at_once = target.clusters_at_once(plan.cluster_size) * plan.cluster_size
    rounds = -(-plan.tiles(sizes) * plan.splits // at_once)
    steps = -(-sizes.depth // (plan.depth * plan.splits))
    tile = product_clocks(plan.rows, plan.columns, plan.depth, sizes.itemsize)
    clocks = steps * tile * plan.products
    if plan.promoted and plan.warpgroups == 1:  # nobody multiplies while it adds
        clocks += steps * plan.rows * plan.columns * plan.products / WARPGROUP_SIZE
    nbytes = _box_lines(sizes, plan) * plan.depth * sizes.itemsize * steps
    clocks = max(clocks, nbytes / target.calibration.l2_nbytes_per_clock)
    own, memory = rounds * clocks / target.clock_mhz, sizes.nbytes / target.memory_nbytes_per_us
    order = target.calibration.overlap
    together = (own**order + memory**order) ** (1 / order) + rounds * BLOCK_US
    sums = plan.tiles(sizes) * plan.rows * plan.columns * plan.products
    return together + combine_us(plan.splits, sums, target)


def combine_us(splits: int, sums: int, target: Target) -> float:
    """Microseconds in which blocks leave each other so many parts of the sums of all tiles, and
    read them; none where no blocks share a depth."""
    if splits == 1:
        return 0.0
    return 2 * HOP_US + 2 * 4 * splits * sums / target.memory_nbytes_per_us


@lru_cache(maxsize=KEPT)
def least_us(sizes: Sizes, target: Target) -> float:
    """Microseconds of a product with the best of the tiles, a block each."""
    return min(predicted_us(sizes, p, target) for p in _menu_plans(sizes.itemsize))


@lru_cache(maxsize=KEPT)
def least_split_us(sizes: Sizes, target: Target) -> float:
    """Microseconds of a product whose depth blocks of one kernel share; infinite where none do."""
    plans = (q for p in _menu_plans(sizes.itemsize) for q in with_splits(p, sizes, target))
    return min((predicted_us(sizes, p, target) for p in plans), default=math.inf)


def _menu_plans(itemsize: int) -> Iterator[ProductPlan]:
    for rows, columns, warpgroups in _MENU:
        promoted = is_promoted(itemsize)
        depth = DEPTH_NBYTES // itemsize
        plan = ProductPlan(rows, columns, depth, warpgroups, 1, promoted=promoted)
        if _holds(plan):
            yield plan


def _holds(plan: ProductPlan) -> bool:
    """Whether the accumulators of all products fit the registers of a thread."""
    held = plan.rows * plan.columns * plan.products // (plan.warpgroups * WARPGROUP_SIZE)
    return 2 * held <= MAX_PROMOTED if plan.promoted else held <= MAX_ACCUMULATORS


def with_splits(plan: ProductPlan, sizes: Sizes, target: Target) -> Iterator[ProductPlan]:
    """The plan with the depth of a tile shared by so many blocks that all of them make half a wave,
    a whole one or two. The numbers follow from shapes and the target alone."""
    part = 4 * plan.tiles(sizes) * plan.rows * plan.columns * plan.products
    trips = -(-sizes.depth // plan.depth)
    for splits in numbers_of_splits(plan.tiles(sizes), trips, part, sizes, target):
        yield replace(plan, splits=splits, blocks=0, staged=0, serpentine=False)


def numbers_of_splits(
    tiles: int, trips: int, part_nbytes: int, sizes: Sizes, target: Target
) -> list[int]:
    """How many blocks may share the depth of each of so many tiles of so many trips, where each
    block leaves a part of all sums."""
    sms = target.multiprocessors
    most, room = min(sms, trips // LEAST_TRIPS), MOST_WORKSPACE * sizes.nbytes
    counts = {min(blocks // tiles, most) for blocks in (sms // 2, sms, 2 * sms)}
    return [n for n in sorted(counts) if n > 1 and n * part_nbytes <= room]


def _box_lines(sizes: Sizes, plan: ProductPlan) -> int:
    """The rows and columns of the boxes that a block copies for a tile, those beyond an edge by
    what they cost."""
    inside = min(plan.rows, sizes.rows), min(plan.columns, sizes.columns)
    beyond = plan.rows - inside[0], plan.columns - inside[1]
    rows, columns = (i + BEYOND * b for i, b in zip(inside, beyond, strict=True))
    down, across = plan.cluster
    return -(-rows // across) + -(-columns * plan.products // down)


def sizes_of_product(p: Stage) -> Sizes:
    """The sizes of a product; symbolic ones are estimated."""
    rows, columns, depth = (estimate(e) for e in (*p.shape[-2:], p.operands[0].shape[-1]))
    batch, itemsize = math.prod(map(estimate, p.shape[:-2])), p.operands[0].dtype.nbytes
    return Sizes(batch, rows, columns, depth, itemsize)


class MatmulScheduler:
    """One product, or several that share an operand, and what is computed of the results."""

    def __init__(self, flow: Dataflow, target: Target) -> None:
        self._flow, self._target = flow, target
        self._products = [s for s in flow.stages if isinstance(s.op, MatMul)]
        self._product = self._products[0]
        for p in self._products:
            separate_operands(flow, p)

    def candidates(self) -> Iterator[Listed[ProductPlan]]:
        """Tiles in the order of their predicted time; behind them those whose depth blocks share,
        and those of clusters, as neither has been timed in kernels with products on a device."""
        problem = self._problem()
        if problem is not None:
            yield Refused("tiles on matrix instructions", problem)
            return
        plans = [self._plan(*tile) for tile in _MENU if self._fits(*tile[:2])]
        for p in self._listed([p for p in plans if _holds(p)]):
            shared = f", {p.splits} blocks for the depth of each" if p.splits > 1 else ""
            shared += f", clusters of {p.cluster[0]} x {p.cluster[1]}" if p.cluster_size > 1 else ""
            what = f"tiles of {p.rows} x {p.columns}, {p.stages} stages{shared}"
            yield Candidate(what, p.params, p)

    def _listed(self, plans: list[ProductPlan]) -> Iterator[ProductPlan]:
        """The plans, then those with shared depths, then those with clusters that are predicted
        faster than the first."""
        alone = self._ranked(plans)
        yield from alone
        yield from self._ranked(list(dict.fromkeys(q for p in plans for q in self._with_splits(p))))
        sizes, target = self._sizes(), self._target
        most = predicted_us(sizes, alone[0], target) if alone else 0.0
        clusters = (q for p in plans for q in self._with_clusters(p))
        yield from self._ranked([q for q in clusters if predicted_us(sizes, q, target) < most])

    def _with_splits(self, plan: ProductPlan) -> Iterator[ProductPlan]:
        """The plan with shared depths, where all sizes are known."""
        p = self._product
        extents = (*p.shape, p.operands[0].shape[-1])
        if all(constant_value(e) is not None for e in extents):
            yield from with_splits(plan, self._sizes(), self._target)

    def _with_clusters(self, plan: ProductPlan) -> Iterator[ProductPlan]:
        """The plan with tiles in clusters, where all sizes are known, below each other and side by
        side."""
        if plan.stages == 1 or None in map(constant_value, self._product.shape):
            return
        for n in CLUSTERS:
            for cluster, shared in (((n, 1), plan.columns), ((1, n), plan.rows)):
                if n <= self._target.max_cluster and shared % (n * MMA_COLUMNS_UNIT) == 0:
                    rows, columns = plan.rows * cluster[0], plan.columns * cluster[1]
                    group, blocks, turned = self._raster(rows, columns, n)
                    yield replace(
                        plan, cluster=cluster, group=group, blocks=blocks, serpentine=turned
                    )  # fmt: skip

    def _ranked(self, plans: list[ProductPlan]) -> list[ProductPlan]:
        """Plans in the order of their predicted time; of those that are as fast as the fastest, the
        one that reads the least, with the fewest blocks to a tile, comes first."""
        sizes = self._sizes()
        us = {p: predicted_us(sizes, p, self._target) for p in plans}
        ordered = sorted(plans, key=lambda p: us[p])
        if not ordered:
            return []
        alike = [p for p in ordered if us[p] <= ALIKE * us[ordered[0]]]
        lines = {p: p.tiles(sizes) * (p.rows + p.columns * p.products) for p in alike}
        first = min(alike, key=lambda p: (lines[p], p.splits))
        return [first, *(p for p in ordered if p is not first)]

    def _problem(self) -> str | None:
        if not self._target.has(Feature.WGMMA):
            return f"{self._target} has no products by warpgroups"
        operands = {o: i for p in self._products for i, o in enumerate(p.operands)}
        if len(operands) > len(self._products) + 1:
            return f"{len(self._products)} products that share no operand; a kernel holds one"
        for o, position in operands.items():
            source = strided_operand(o)
            if source is None:
                return f"{o.name} is no view by strides of what lies in memory"
            wrong = box_problem(source, o.dtype.nbytes)
            wrong = wrong or axis_problem(source, o.dtype, position)
            if wrong is not None:
                return f"{o.name}: {wrong}"
        return None

    def _sizes(self) -> Sizes:
        return sizes_of_product(self._product)

    def _fits(self, rows: int, columns: int) -> bool:
        """Whether rows of the operands' tiles are wide enough for an exchange of chunks."""
        pairs = [(o, x) for p in self._products for o, x in zip(p.operands, (0, 1), strict=True)]
        for o, position in pairs:
            extent, axis = (rows, columns)[position], position - 2
            source = strided_operand(o)
            along = source is not None and fastest_axis(source) == len(o.shape) + axis
            if along and extent * o.dtype.nbytes % LEAST_EXCHANGE_NBYTES:
                return False
        return True

    def _plan(self, rows: int, columns: int, warpgroups: int) -> ProductPlan:
        itemsize = self._product.operands[0].dtype.nbytes
        depth = DEPTH_NBYTES // itemsize
        extents = {
            o: e for p in self._products for o, e in zip(p.operands, (rows, columns), strict=True)
        }
        stage = sum(extents.values()) * depth * itemsize
        trips = -(-self._sizes().depth // depth)
        staged = STAGED_COLUMNS if columns % STAGED_COLUMNS == 0 else columns
        outputs = sum(_can_stage(self._flow, self._product, y) for y in self._flow.outputs)
        if columns % STAGED_UNIT or not outputs:
            staged = 0
        room = self._target.shared_nbytes_per_block - 1024 - outputs * rows * staged * 2
        stages = max(1, min(room // stage, trips, MAX_STAGES))
        group, blocks, serpentine = self._raster(rows, columns)
        return ProductPlan(
            rows, columns, depth, warpgroups, stages, staged, group, blocks, len(self._products),
            serpentine, promoted=is_promoted(itemsize),
        )  # fmt: skip

    def _raster(self, rows: int, columns: int, blocks: int = 1) -> tuple[int, int, bool]:
        """Rows of tiles of a group, of one or several blocks each, which divide all, so that the
        tiles that run together read the fewest rows and columns; the blocks, where each takes
        several tiles; and whether every other group runs backwards: where tiles follow each other
        and operands do not all stay in the second-level cache, a group then begins with the columns
        that the last one read."""
        shape = [constant_value(e) for e in self._product.shape]
        if None in shape:
            return 1, 0, False
        *lead, m, n = (e or 1 for e in shape)
        down, across = -(-m // rows), -(-n // columns)
        at_once = self._target.clusters_at_once(blocks)
        group = rows_of_group(down, rows, columns, at_once)
        tiles = math.prod(lead) * down * across
        sizes = self._sizes()
        nbytes = (
            sizes.nbytes
            + (len(self._products) - 1) * sizes.batch * n * sizes.depth * sizes.itemsize
        )
        is_turned = down > group and across > 1
        serpentine = tiles > at_once and is_turned and nbytes > self._target.l2_nbytes
        return group, at_once * blocks if tiles > at_once else 0, serpentine

    def apply(self, plan: ProductPlan) -> bool:
        """Schedules by public calls."""
        schedule_products(Schedule.of(self._flow), self._products, plan)
        return True


def schedule_products(s: Schedule, stages: Sequence[Stage], plan: ProductPlan) -> None:
    """The kernel of products and their suffix."""
    products = [in_registers(ScheduledTensor(s, t)) for t in stages]
    product = products[0]
    operands = _operands(s, products)
    outputs = [ScheduledTensor(s, t) for t in s.flow.outputs]
    whole = [y for y in outputs if plan.staged and _can_stage(s.flow, product.stage, y.stage)]
    staged = [(y, _staged(y)) for y in whole]
    boxed = [y.stage for y, _ in staged]
    apart = [*(t.stage for t in (*products, *operands)), *boxed]
    suffix = [ScheduledTensor(s, t) for t in computed(s.flow.stages) if t not in apart]
    for p in products:
        _tile(p, plan)
    around = (2 if plan.blocks else 1) + (plan.cluster_size > 1)
    inside = around + (plan.splits > 1)
    s.transform_like(product, [*operands, *(y for y, _ in staged)])
    for p in products:
        p.mma(plan.warpgroups)
    for o in operands:
        o.parallelize(-1, Parallel.BULK)
        o.parallelize(-2, Parallel.BULK)
        if plan.stages > 1:
            o.circular_buffer(plan.stages, warp_specialized=True, registers=plan.registers)
        o.inline_at(next(p for p in products if o.stage in p.stage.operands), inside + 1)
    s.transform_like(product, suffix)
    for y, c in staged:
        if plan.staged < plan.columns:
            y.split(-1, plan.staged)
            y.reorder({-2: around})
            y.parallelize(around, Parallel.UNROLL)
        y.parallelize(-1, Parallel.BULK)
        y.parallelize(-2, Parallel.BULK)
        _in_matrices(c, around, plan)
        s.transform_like(c, [t for t in suffix if not t.stage.is_staged])
        for i in (-3, -2, -1):
            c.parallelize(i, Parallel.MMA)
    vectorize_accesses(s.flow, suffix[-1].stage)
    s.inline_most(suffix)
    for p in products:
        reader = s.flow.consumers(p.stage)[0]
        p.inline_at(ScheduledTensor(s, reader), around)


def in_registers(product: ScheduledTensor) -> ScheduledTensor:
    """A product whose accumulators something else stores."""
    return product if product.memory is Memory.LOCAL else product.cache_before()


def _can_stage(flow: Dataflow, product: Stage, y: Stage) -> bool:
    """Whether boxes copy an output that lies by rows of the product."""
    memory = boxed_memory(y)
    if memory is None or y.dtype.nbytes != 2 or isinstance(y.op, Permute):
        return False
    own, rows = ([flow.graph.normal(c) for c in t.frame.output] for t in (y, product))
    if own != rows:  # it was transposed on the way
        return False
    along_rows = fastest_axis(memory) == len(y.shape) - 1
    return along_rows and box_problem(memory, y.dtype.nbytes) is None


def _staged(y: ScheduledTensor) -> ScheduledTensor:
    """The tile in shared memory that an output leaves from."""
    if not (isinstance(y.stage.op, Pointwise) and y.stage.op.fn == "copy"):
        y.cache_before()
    return y.cache_before(by="stmatrix")


def _in_matrices(c: ScheduledTensor, around: int, plan: ProductPlan) -> None:
    """`[.., TIDx, j, h, e] -> [.., part, TIDx, j/2, 2, h, e]` with parts of some columns."""
    if plan.staged < plan.columns:
        c.split(-3, plan.staged // MMA_COLUMNS_UNIT)
        c.reorder({-4: around})
    c.split(-3, 2)


@edit("separate_operands")
def separate_operands(flow: Dataflow, product: Stage) -> None:
    """Gives `x @ x` a view of its own for the second operand, which has other tiles."""
    first, second = product.operands
    if first is second:
        axes = tuple(range(len(first.shape)))
        own = flow.insert(first, first.name, first.shape, first.dtype, Permute((), axes), [first])
        flow.attach(own)
        product.operands = (first, own)
        flow.retie()


def _operands(s: Schedule, products: Sequence[ScheduledTensor]) -> list[ScheduledTensor]:
    """Copies of the operands by the copy engine, one for all products that share an operand."""
    found: list[ScheduledTensor] = []
    for stage in dict.fromkeys(o for p in products for o in p.stage.operands):
        readers = [p for p in products if stage in p.stage.operands]
        found.append(ScheduledTensor(s, stage).cache_after(by="bulk", readers=readers))
    return found


def _tile(product: ScheduledTensor, plan: ProductPlan) -> None:
    """`[.., m, n, k] -> [tiles of a block, BIDx, ClusterX, k/depth, rows, columns, depth]`."""
    tile, cluster = (plan.rows, plan.columns, plan.depth), plan.cluster
    by_tiles(product, tile, plan.group, plan.serpentine, cluster=cluster)
    if plan.cluster_size > 1:
        product.parallelize(1, Parallel.CLUSTERX)
    if plan.blocks:
        product.split(0, plan.blocks // plan.cluster_size)
    if plan.splits > 1:
        share_depth(product, plan.splits, plan.mode)
        return
    product.parallelize(1 if plan.blocks else 0, Parallel.BIDX)


def share_depth(product: ScheduledTensor, splits: int, mode: str) -> None:
    """`[tiles, k/depth, ..] -> [BIDy, BIDx{splits}, k/depth/splits, ..]`: blocks sum parts of the
    depth of one tile, and combine them as `mode` says."""
    product.split(1, splits, inner=False)
    product.parallelize(0, Parallel.BIDY).parallelize(1, Parallel.BIDX)
    product.request_serial_grid_reduction(mode)


def by_tiles(
    product: ScheduledTensor,
    tile: tuple[int, int, int],
    group: int,
    serpentine: bool = False,
    *,
    cluster: tuple[int, int] = (1, 1),
) -> None:
    """`[.., m, n, k] -> [tiles, k/depth, rows, columns, depth]`: groups of tiles that run together
    share rows of the first operand and columns of the second. With a cluster of tiles below each
    other, or side by side, `[clusters, tiles of a cluster, k/depth, rows, columns, depth]`."""
    rows, columns, depth = tile
    lead = len(product.stage.shape) - 2
    product.split(lead, rows * cluster[0])
    product.split(lead + 2, columns * cluster[1])
    product.split(lead + 4, depth)
    first = [*range(lead), lead, lead + 2]
    product.reorder([*first, lead + 4, lead + 1, lead + 3, lead + 5])
    product.split(lead, group)
    product.reorder({lead + 1: lead + 2})
    if serpentine:
        product.serpentine(lead + 1, by=lead)
    for _ in range(lead + 2):
        product.merge(0)
    if cluster != (1, 1):
        apart = 2 if cluster[0] > 1 else 3
        product.split(apart, tile[apart - 2])
        product.reorder({apart: 1})


def rows_of_group(down: int, rows: int, columns: int, sms: int) -> int:
    """How many of `down` rows of tiles make a group: they divide all, and the tiles that run
    together read the fewest rows and columns."""
    fits = [g for g in range(1, MAX_GROUP + 1) if down % g == 0]
    return min(fits, key=lambda g: g * rows + -(-sms // g) * columns)
