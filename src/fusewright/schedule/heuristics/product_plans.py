"""Tiles of products on the instructions of warpgroups, as plain data: which there are, and what
follows from a tile for its ring, its order and its clusters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fusewright.core.instructions import CODE
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.products import is_promoted
from fusewright.target import (
    CLUSTER_SIZES,
    MATRICES_COLUMNS,
    MMA_COLUMNS_UNIT,
    MMA_ROWS,
    REGISTER_UNIT,
    WARPGROUP_SIZE,
    Feature,
    Target,
    equal_registers,
)

DEPTH_NBYTES = 128
"""Of a row of an operand's tile: what the widest exchange of chunks spans."""
_MENU = (
    (128, 256, 2),
    (192, 192, 3),
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
_IN_TURN = ((128, 128, 2), (128, 192, 2), (64, 256, 2))
"""Tiles of which each of two warpgroups computes one."""
LEAST_LARGE = 128 * 128
"""Sums of a tile that its boxes do not hold up: others are chosen for what they copy."""
LARGE_TILE = 128 * 192
"""Of two warpgroups or three: accumulators that an equal share of the registers does not hold
well."""
LEAST_REGISTERS = 32
"""Of a thread that copies, beside those that multiply."""
MAX_ACCUMULATORS = 128
"""Registers of a thread for them where all threads of a block have an equal share."""
FEW_COLUMNS = 128
"""Of a result: with no more a tile has all of them. `WIDTHS` begin behind."""
WIDTHS = ((128, 144, 288), (256, 144, 160))
"""Of tiles of two warpgroups that the menu lacks: rows, the fewest and the most columns. Beside the
widest `ENOUGH_STAGES` and a part of the results have room."""
MAX_STAGES = 20
"""Tiles of each operand under way: 16 x 4096 x 4096 takes 13.3, 12.8 and 12.0 us with 8, 12 and 20
(one H200, 2026-11-23, bench/product-plans-2026-11-23-h200.json); larger tiles fill the memory."""
ENOUGH_STAGES = 4
"""Tiles under way for which results leave in parts: more are not worth it. 8192 cubed in 8 bits
took 873 us with whole results and four of them, 915 with thirds and five (one H200, 2026-11-24,
`bench.products`)."""
STAGED_COLUMNS = 128
"""Of a result that leave through shared memory together, at most where several parts divide a
tile's."""
NARROW_COLUMNS = 32
"""Of all results together that leave at once where sums leave a thread `product_registers`: with
these none of nine suffixes of one result spills, in 48 columns two do, in 96 all that compute
anything; of two results 32 columns each spill, 16 do not (NVRTC 13.0, 128 x 192 in ping-pong)."""
STAGED_UNIT = MATRICES_COLUMNS
"""Columns that a store of matrices takes."""
AHEAD_UNIT = 32
"""Columns of an input that comes ahead: the rows of boxes are multiples of 32 bytes."""
STAGED_ITEMSIZE = 2
"""Bytes of a value that leaves through shared memory."""
BARRIERS_NBYTES = 1024
"""Of shared memory beside tiles."""
MAX_GROUP = 32
CLUSTERS = (2,)
"""Blocks of a cluster that copy the operands that they share for each other; of those of four, 112
of 132 multiprocessors surely hold some."""
IN_TURNS = ("vector", "tma", "tma+bulk")
"""Modes in which blocks come one after the other: by their threads, by the copy engine, and by the
copy engine both ways."""
FEW_TURNS = (2, 4, 8)
"""Blocks that take turns at a tile: all modes were slower the more of them there were (one H100,
2026-11-26, `bench.split_products`)."""
LEAST_TRIPS = 8
"""Tiles of the depth that a block sums where several share it: fewer do not fill its ring."""
MOST_WORKSPACE = 0.1
"""The parts that blocks leave each other, over the operands: more is a product of a short depth."""


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """A tile of the result, its depth, the warpgroups that share its rows, and the tiles of each
    operand that are in memory together; `staged` columns of results leave through shared memory
    together, 0 where threads store them. Tiles run in groups of `group` rows of tiles, every other
    one backwards if `serpentine`, on so many `blocks` in turn, 0 where each has a block of its own.
    Several `products` share an operand, and each has a tile of these columns. So many blocks as
    there are `splits` sum parts of the depth of one tile, and combine them as `mode` says: as
    "cluster" through the shared memory of one, else through scratch in global memory, in "tma+bulk"
    with the copy engine both ways, in "arrival" in no fixed order; of slices `first` blocks make a
    cluster, which reduces first.
    Sums that are `promoted` are added to a second set of registers on the way. Of the tiles of a
    `cluster` of blocks so many lie below each other, which copy the columns of the second operand
    together, or so many side by side, which copy the rows of the first; groups then have as many
    rows of clusters. Inputs of `ahead` bytes for each place of the result come by boxes before what
    is computed with them. In `ping_pong` two warpgroups compute a tile each, in turn. Blocks in
    turns add up their parts `in_result`, where no scratch is needed. In a `stream` blocks take
    whole tiles, and only those of the last wave are shared, each by so many as `splits`."""

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
    ahead: int = 0
    first: int = 1
    ping_pong: bool = False
    in_result: bool = False
    stream: bool = False

    @property
    def groups_of_tile(self) -> int:
        """The warpgroups that compute a tile together."""
        return 1 if self.ping_pong else self.warpgroups

    def tiles(self, sizes: ProductSizes) -> int:
        """The tiles of a product of these sizes, in whole clusters."""
        rows, columns = self.rows * self.cluster[0], self.columns * self.cluster[1]
        clusters = sizes.batch * -(-sizes.rows // rows) * -(-sizes.columns // columns)
        return clusters * self.cluster_size

    def waves(self, sizes: ProductSizes) -> tuple[int, int]:
        """Of a stream the waves of whole tiles, and the tiles behind them."""
        whole = (self.tiles(sizes) - 1) // self.blocks
        return whole, self.tiles(sizes) - whole * self.blocks

    def rounds_of_rest(self, sizes: ProductSizes) -> int:
        """The tiles of a stream that a block has a part of."""
        return -(-self.waves(sizes)[1] // (self.blocks // self.splits))

    def combined_tiles(self, sizes: ProductSizes) -> int:
        """Those of which blocks hand on parts."""
        return self.waves(sizes)[1] if self.stream else self.tiles(sizes)

    def steps(self, sizes: ProductSizes) -> int:
        """The tiles of the depth that a block goes through in a stream."""
        whole, _ = self.waves(sizes)
        rest = self.rounds_of_rest(sizes) * -(-sizes.depth // (self.depth * self.splits))
        return whole * -(-sizes.depth // self.depth) + rest

    @property
    def cluster_size(self) -> int:
        """The blocks of a cluster with tiles of their own, 1 where there are none."""
        return math.prod(self.cluster)

    @property
    def blocks_together(self) -> int:
        """The blocks that start together, as a cluster: 1 where there are none."""
        return self.splits if self.mode == "cluster" else self.cluster_size * self.first

    @property
    def accumulators(self) -> int:
        """Registers of a thread for the sums of all products."""
        return self.rows * self.columns * self.products // (self.groups_of_tile * WARPGROUP_SIZE)

    @property
    def registers(self) -> tuple[int, int] | None:
        """Those that a thread which loads keeps, and one that multiplies gets, where many
        accumulators need more than an equal share: of the warpgroups that the launch gives an equal
        share, one leaves the others all but `LEAST_REGISTERS`."""
        held = self.accumulators * self.warpgroups * WARPGROUP_SIZE * (2 if self.promoted else 1)
        if held < LARGE_TILE:
            return None
        groups = self.warpgroups + 1
        room = groups * equal_registers(WARPGROUP_SIZE * groups)
        unit = self.warpgroups * REGISTER_UNIT
        multiplying = (room - LEAST_REGISTERS) // unit * REGISTER_UNIT
        return room - self.warpgroups * multiplying, multiplying

    @property
    def params(self) -> Params:
        """The parameters by name."""
        tile = f"{self.rows}x{self.columns}x{self.depth}"
        is_split = self.splits > 1
        return Params.of(
            "matmul",
            min_blocks=1,
            tile=tile,
            warpgroups=self.warpgroups,
            stages=self.stages,
            staged=self.staged,
            group=self.group,
            serpentine=int(self.serpentine),
            blocks=self.blocks,
            ahead=self.ahead or None,
            ping_pong=int(self.ping_pong) or None,
            splits=self.splits if is_split else None,
            mode=self.mode if is_split else None,
            first=self.first if self.first > 1 else None,
            in_result=int(self.in_result) or None,
            stream=int(self.stream) or None,
            cluster="x".join(map(str, self.cluster)) if self.cluster_size > 1 else None,
        )


@dataclass(frozen=True, slots=True)
class ProductSizes:
    """Of a product: matrices, rows, columns, pairs that an element sums, and bytes of a value. Of
    each operand the lines that a row of a box touches, 1 where rows begin at lines, and whether it
    lies across: contiguous along the rows or columns of the result, not along the depth."""

    batch: int
    rows: int
    columns: int
    depth: int
    itemsize: int = 2
    lines: tuple[float, float] = (1.0, 1.0)
    across: tuple[bool, bool] = (False, False)

    @property
    def pairs(self) -> int:
        """Of numbers that are multiplied."""
        return self.batch * self.rows * self.columns * self.depth

    @property
    def nbytes(self) -> int:
        """Of both operands."""
        return self.batch * (self.rows + self.columns) * self.depth * self.itemsize


def menu_plans(
    sizes: ProductSizes,
    target: Target,
    operands: tuple[int, int] = (1, 1),
    outputs: int = 1,
    loaded: int = 0,
) -> Iterator[ProductPlan]:
    """Every tile of the menu whose sums fit the registers, one between its widths where that saves
    a part of a round, or has few columns whole, and the same in clusters, for products of so many
    first and second operands, of which they share one, and so many results that leave by boxes; and
    tiles that two warpgroups compute in turn, where blocks take several. Inputs of `loaded` bytes
    for each place of the result come ahead, or when they are needed; not beside a depth of one
    step, which has no loop of its own: its ring stands in the loop over tiles, where they have
    none."""
    is_deep = sizes.depth > DEPTH_NBYTES // sizes.itemsize
    for tile in (*_MENU, *_covering(sizes), *_between(sizes, target)):
        may_come = loaded and is_deep and tile[1] % AHEAD_UNIT == 0
        for ahead in (loaded, 0) if may_come else (0,):
            plan = _with_ring(tile, sizes, operands, outputs, target, ahead)
            if _holds(plan) and (not ahead or _has_memory(plan, operands, outputs, target)):
                yield in_order(plan, sizes, target)
                yield from _in_clusters(plan, sizes, target)
    for tile in _IN_TURN:
        for ahead in (loaded, 0) if loaded and is_deep else (0,):
            plan = _with_ring(tile, sizes, operands, outputs, target, ahead, ping_pong=True)
            if _holds(plan) and plan.stages >= (ENOUGH_STAGES if ahead else 2):
                ordered = in_order(plan, sizes, target), *_in_clusters(plan, sizes, target)
                yield from (p for p in ordered if p.blocks)


def _covering(sizes: ProductSizes) -> list[tuple[int, int, int]]:
    """The tiles that have all columns of a result of few, and the fewest others, where the menu has
    none: of 65 columns tiles of 80 copy and multiply 15 that do not exist, those of 128 have 63."""
    columns = -(-sizes.columns // STAGED_UNIT) * STAGED_UNIT
    if sizes.across[1] or columns >= FEW_COLUMNS:
        return []
    found = [(rows, columns, rows // MMA_ROWS) for rows in (MMA_ROWS, 2 * MMA_ROWS)]
    return [t for t in found if t not in _MENU]


def _between(sizes: ProductSizes, target: Target) -> list[tuple[int, int, int]]:
    """The widths of each row of `WIDTHS` with which all rounds of tiles together have the fewest
    sums, where those are fewer than with any of the menu, by a margin: of 4100 x 4100 tiles of
    128 x 256 take five rounds for 4.25, those of 128 x 208 five for 5; of 1024 x 1025 those of
    128 x 272 leave no column of tiles for the last of all columns. Where the second operand lies
    across a tile's columns are whole panels of `DEPTH_NBYTES`, as those of the menu are. Where rows
    begin inside of lines those of the menu count that may stand in clusters, and whose boxes have
    the fewest lines."""

    def sums(tile: tuple[int, int, int]) -> int:
        rows, columns, _ = tile
        tiles = sizes.batch * -(-sizes.rows // rows) * -(-sizes.columns // columns)
        return rows * columns * -(-tiles // target.multiprocessors)

    most = target.calibration.cluster_warpgroups
    large = [t for t in _MENU if t[0] * t[1] >= LEAST_LARGE]
    if max(sizes.lines) > 1.0:
        large = [t for t in large if t[0] * t[1] > LARGE_TILE and t[2] <= most]
    least = min(map(sums, large))
    if sizes.across[1] or least == LEAST_LARGE:
        return []
    found: list[tuple[int, int, int]] = []
    for rows, fewest, widest in WIDTHS:
        widths = range(widest, fewest - 1, -STAGED_UNIT)
        found.append(min(((rows, c, 2) for c in widths), key=sums))
    return [
        t for t in found if t not in _MENU and sums(t) <= target.calibration.widths_share * least
    ]


def _with_ring(
    tile: tuple[int, int, int],
    sizes: ProductSizes,
    operands: tuple[int, int],
    outputs: int,
    target: Target,
    ahead: int = 0,
    *,
    ping_pong: bool = False,
) -> ProductPlan:
    """A tile with as many stages as memory has room for, and a block has steps, beside as many
    columns of results as then have room, too, and inputs of so many bytes for each place that come
    `ahead`. Where blocks take several tiles, the ring goes on
    from one to the next, so that the boxes of short depths are under way while others are
    multiplied. Of results in `ping_pong` each warpgroup leaves its own, in narrow parts where its
    sums leave few registers."""
    rows, columns, warpgroups = tile
    depth = DEPTH_NBYTES // sizes.itemsize
    stage = (rows * operands[0] + columns * operands[1]) * DEPTH_NBYTES
    tiles = sizes.batch * -(-sizes.rows // rows) * -(-sizes.columns // columns)
    steps = -(-sizes.depth // depth) * -(-tiles // target.multiprocessors)

    def stages(staged: int) -> int:
        used = rows * (columns * ahead + outputs * staged * STAGED_ITEMSIZE)
        used = BARRIERS_NBYTES + used * (warpgroups if ping_pong else 1)
        return max(1, min((target.shared_nbytes_per_block - used) // stage, steps, MAX_STAGES))

    options = _staged_columns(columns) if outputs else [0]
    if ping_pong and rows * columns * max(operands) > MAX_ACCUMULATORS * WARPGROUP_SIZE:
        options = [c for c in options if c * outputs <= NARROW_COLUMNS] or [min(options)]
    staged = max(options, key=lambda c: (min(stages(c), ENOUGH_STAGES), c))
    promoted = is_promoted(sizes.itemsize)
    return ProductPlan(
        rows, columns, depth, warpgroups, stages(staged), staged, products=max(operands),
        promoted=promoted, ahead=ahead, ping_pong=ping_pong,
    )  # fmt: skip


def _has_memory(plan: ProductPlan, operands: tuple[int, int], outputs: int, target: Target) -> bool:
    """Whether a ring stands beside results and what comes ahead in shared memory."""
    ring = plan.stages * DEPTH_NBYTES * (plan.rows * operands[0] + plan.columns * operands[1])
    staged = outputs * plan.staged * STAGED_ITEMSIZE
    used = BARRIERS_NBYTES + ring + plan.rows * (plan.columns * plan.ahead + staged)
    return used <= target.shared_nbytes_per_block


def _staged_columns(columns: int) -> list[int]:
    """How many columns of a tile may leave through shared memory together; 0 where threads store
    them."""
    if columns % STAGED_UNIT:
        return [0]
    most = STAGED_COLUMNS
    whole = [columns] if columns % most else []
    halves = [columns // 2] if columns > most and columns % (2 * STAGED_UNIT) == 0 else []
    parts = [c for c in range(most, 0, -STAGED_UNIT) if columns % c == 0]
    return list(dict.fromkeys([*whole, *halves, *parts]))


def _in_clusters(plan: ProductPlan, sizes: ProductSizes, target: Target) -> Iterator[ProductPlan]:
    """The plan with tiles in clusters below each other and side by side."""
    if plan.stages == 1 or plan.warpgroups > target.calibration.cluster_warpgroups:
        return
    for n in CLUSTERS:
        for cluster, shared in (((n, 1), plan.columns), ((1, n), plan.rows)):
            if n <= target.max_cluster and shared % (n * MMA_COLUMNS_UNIT) == 0:
                yield in_order(replace(plan, cluster=cluster), sizes, target)


def in_order(plan: ProductPlan, sizes: ProductSizes, target: Target) -> ProductPlan:
    """The plan with rows of tiles in groups, which divide all, so that the tiles that run together
    read the fewest rows and columns; with blocks that each take several tiles, where there are more
    than run at once; and with every other group backwards where tiles follow each other and
    operands do not all stay in the second-level cache: a group then begins with the columns that
    the last one read."""
    rows, columns = plan.rows * plan.cluster[0], plan.columns * plan.cluster[1]
    down, across = -(-sizes.rows // rows), -(-sizes.columns // columns)
    at_once = target.clusters_at_once(plan.cluster_size)
    group = rows_of_group(down, rows, columns, at_once)
    is_in_turn = sizes.batch * down * across > at_once
    second = sizes.batch * sizes.columns * sizes.depth * sizes.itemsize
    nbytes = sizes.nbytes + (plan.products - 1) * second
    is_turned = down > group and across > 1 and is_in_turn and nbytes > target.l2_nbytes
    blocks = at_once * plan.cluster_size if is_in_turn else 0
    return replace(plan, group=group, blocks=blocks, serpentine=is_turned)


def _holds(plan: ProductPlan) -> bool:
    """Whether the accumulators of all products, and the sums that they are added to, fit the
    registers of a thread."""
    if plan.registers is None:
        return plan.accumulators <= MAX_ACCUMULATORS
    room = plan.registers[1] - CODE.product_registers
    return plan.accumulators * (2 if plan.promoted else 1) <= room


def with_splits(plan: ProductPlan, sizes: ProductSizes, target: Target) -> Iterator[ProductPlan]:
    """The plan with the depth of a tile shared by so many blocks that all of them make half a wave,
    a whole one or two. The numbers follow from shapes and the target alone."""
    part = 4 * plan.tiles(sizes) * plan.rows * plan.columns * plan.products
    trips = -(-sizes.depth // plan.depth)
    for splits in numbers_of_splits(plan.tiles(sizes), trips, part, sizes, target):
        yield replace(plan, splits=splits, blocks=0, staged=0, serpentine=False)


def in_split_clusters(
    plan: ProductPlan, sizes: ProductSizes, target: Target
) -> Iterator[ProductPlan]:
    """The plan with the depth of a tile shared by the blocks of a cluster, beside whose rings the
    parts of all of them have room: of so many blocks as share the threads' sums equally, and have
    enough of the depth each, where all clusters run at once: of 36 measured plans in several rounds
    32 took longer than whole tiles (one H100, 2026-11-25, `bench.product_sweep`)."""
    trips = -(-sizes.depth // plan.depth)
    for n in CLUSTER_SIZES:  # they divide the threads of a warpgroup
        stages = _stages_beside_parts(plan, -(-trips // n), target)
        fits = n <= min(target.max_cluster, trips // LEAST_TRIPS) and stages > 1
        if fits and plan.tiles(sizes) <= target.clusters_at_once(n):
            yield replace(
                plan, splits=n, mode="cluster", stages=stages, blocks=0, staged=0, serpentine=False
            )


def in_slices_of_clusters(
    plan: ProductPlan, sizes: ProductSizes, target: Target
) -> Iterator[ProductPlan]:
    """The plan with the depth of a tile shared by several clusters, each of which reduces what its
    blocks have before it leaves a slice: of as many clusters as run at once, for more blocks than a
    cluster has."""
    trips = -(-sizes.depth // plan.depth)
    part = 4 * plan.tiles(sizes) * plan.rows * plan.columns * plan.products
    for first in CLUSTER_SIZES if target.has_cluster else ():
        most = trips // (LEAST_TRIPS * first)
        clusters = min(target.clusters_at_once(first) // plan.tiles(sizes), most)
        splits = clusters * first
        if splits <= target.max_cluster or clusters * part > MOST_WORKSPACE * sizes.nbytes:
            continue
        stages = _stages_beside_parts(plan, -(-trips // splits), target)
        if clusters > 1 and stages > 1:
            yield replace(
                plan, splits=splits, first=first, stages=stages, blocks=0, staged=0,
                serpentine=False,
            )  # fmt: skip


def in_turns(
    mode: str, plan: ProductPlan, sizes: ProductSizes, target: Target
) -> Iterator[ProductPlan]:
    """The plan with the depth of a tile shared by blocks that come one after the other, a few of
    them, as each turn is a hop."""
    if mode != "vector" and not target.has(Feature.BULK):
        return
    trips = -(-sizes.depth // plan.depth)
    part = 4 * plan.tiles(sizes) * plan.rows * plan.columns * plan.products
    for splits in FEW_TURNS:
        stages = min(plan.stages, -(-trips // splits))
        if mode != "vector":
            stages = min(stages, _stages_beside_parts(plan, stages, target))
        is_long = trips // splits >= LEAST_TRIPS and part <= MOST_WORKSPACE * sizes.nbytes
        if is_long and stages > 1 and splits * plan.tiles(sizes) <= target.multiprocessors:
            yield replace(
                plan, splits=splits, mode=mode, stages=stages, blocks=0, staged=0, serpentine=False
            )


def in_streams(
    mode: str, plan: ProductPlan, sizes: ProductSizes, target: Target
) -> Iterator[ProductPlan]:
    """The plan whose blocks take whole tiles while there is one for each of them, and share the
    depths of the rest: by each number of blocks to a tile that leaves a block fewer steps than all
    smaller ones do."""
    sms, trips = target.multiprocessors, -(-sizes.depth // plan.depth)
    fewest = -(-plan.tiles(sizes) // sms) * trips
    for splits in range(2, min(sms, trips // LEAST_TRIPS) + 1) if plan.blocks else ():
        p = replace(plan, splits=splits, mode=mode, blocks=sms // splits * splits, stream=True)
        part = 4 * p.combined_tiles(sizes) * plan.rows * plan.columns * plan.products
        part *= splits if mode == "slices" else 1
        is_few = part <= MOST_WORKSPACE * sizes.nbytes
        if is_few and p.waves(sizes)[0] and p.steps(sizes) < fewest:
            fewest = p.steps(sizes)
            yield replace(p, staged=0) if mode == "slices" else p


def in_arrival(plan: ProductPlan, sizes: ProductSizes, target: Target) -> Iterator[ProductPlan]:
    """The plan with the depth of a tile shared as in slices, by blocks that add their parts to one
    sum in the order in which they come."""
    for p in with_splits(plan, sizes, target) if target.has(Feature.BULK) else ():
        stages = _stages_beside_parts(p, p.stages, target)
        if stages > 1:
            yield replace(p, mode="arrival", stages=stages)


def _stages_beside_parts(plan: ProductPlan, trips: int, target: Target) -> int:
    """Tiles under way of a block with so many of them, beside the parts of the sums that blocks of
    a cluster leave each other."""
    parts = 4 * plan.rows * plan.columns * plan.products
    room = target.shared_nbytes_per_block - BARRIERS_NBYTES - parts
    stage = (plan.rows + plan.columns * plan.products) * DEPTH_NBYTES
    return min(room // stage, trips, MAX_STAGES)


def numbers_of_splits(
    tiles: int, trips: int, part_nbytes: int, sizes: ProductSizes, target: Target
) -> list[int]:
    """How many blocks may share the depth of each of so many tiles of so many trips, where each
    block leaves a part of all sums."""
    sms = target.multiprocessors
    most, room = min(sms, trips // LEAST_TRIPS), MOST_WORKSPACE * sizes.nbytes
    counts = {min(blocks // tiles, most) for blocks in (sms // 2, sms, 2 * sms)}
    return [n for n in sorted(counts) if n > 1 and n * part_nbytes <= room]


def rows_of_group(down: int, rows: int, columns: int, sms: int) -> int:
    """How many of `down` rows of tiles make a group: they divide all, and the tiles that run
    together read the fewest rows and columns."""
    fits = [g for g in range(1, MAX_GROUP + 1) if down % g == 0]
    return min(fits, key=lambda g: g * rows + -(-sms // g) * columns)
