"""Products on matrix instructions: a tile of the result a block, operands through shared memory.

    for k: copy a box of each operand; multiply        ->   accumulators in registers
    suffix over the accumulators                       ->   global memory

Everything is done by public calls on a schedule by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from fusewright.core.expr import constant_value
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import MatMul, Permute, Pointwise, Reduce, ViewBase
from fusewright.fusion.strided import Strided, box_problem
from fusewright.memory import Memory
from fusewright.schedule.copies import put_first
from fusewright.schedule.edits import edit
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.candidates import Candidate, Listed, Refused
from fusewright.schedule.heuristics.common import vectorize_accesses
from fusewright.schedule.heuristics.product_plans import (
    DEPTH_NBYTES,
    IN_TURNS,
    MAX_ACCUMULATORS,
    STAGED_UNIT,
    ProductPlan,
    ProductSizes,
    menu_plans,
)
from fusewright.schedule.heuristics.product_suffix import (
    Suffix,
    adds_in_place,
    can_stage,
    columns_in_parts,
    is_computed,
    leaves_whole,
    maps_fit,
    parts_fit,
    reductions,
    suffix_of,
    tiles_read,
)
from fusewright.schedule.heuristics.product_times import (
    SPLIT_FORMS,
    memory_nbytes,
    ranked_us,
)
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Parallel
from fusewright.schedule.products import (
    axis_problem,
    is_promoted,
    lies_across,
    lines_of_row,
    strided_operand,
)
from fusewright.schedule.results_in_turns import stored_sum
from fusewright.schedule.schedule import Schedule, ScheduledTensor
from fusewright.target import MMA_COLUMNS_UNIT, Feature, Target

LEAST_EXCHANGE_NBYTES = 32
MAX_COMPUTING = 2
"""Warpgroups that do more with their sums than convert them and leave them to boxes: the registers
of three hold little beside sums of 192 x 192 (NVRTC 13.0 spills 28 bytes for guarded stores of TT
4100 cubed, 32 for bias and gelu of NN 4097 x 4104 x 4104)."""


def sizes_of_product(p: Stage) -> ProductSizes:
    """The sizes of a product; symbolic ones are estimated."""
    rows, columns, depth = (estimate(e) for e in (*p.shape[-2:], p.operands[0].shape[-1]))
    batch, itemsize = math.prod(map(estimate, p.shape[:-2])), p.operands[0].dtype.nbytes
    views = [strided_operand(o) for o in p.operands]
    first, second = (lines_of_row(view, itemsize) for view in views)
    down, along = (view is not None and lies_across(view, i) for i, view in enumerate(views))
    return ProductSizes(batch, rows, columns, depth, itemsize, (first, second), (down, along))


class ProductScheduler:
    """What schedulers of one product, or of several that share an operand, and of what is computed
    of the results ask of them."""

    def __init__(self, flow: Dataflow, target: Target) -> None:
        self.flow, self._target = flow, target
        self._products = [s for s in flow.stages if isinstance(s.op, MatMul)]
        self._product = self._products[0]
        for p in self._products:
            separate_operands(flow, p)

    def _sizes(self) -> ProductSizes:
        return sizes_of_product(self._product)

    def _has_known_sizes(self) -> bool:
        extents = (*self._product.shape, self._product.operands[0].shape[-1])
        return all(constant_value(e) is not None for e in extents)

    def _operands_problem(
        self, wrong: Callable[[Strided[Stage], Stage, int], str | None]
    ) -> str | None:
        """Why a kernel does not hold these products, or cannot read an operand, of which `wrong`
        says what is wrong with its place in memory, or in a product."""
        operands = {o: i for p in self._products for i, o in enumerate(p.operands)}
        if len(operands) > len(self._products) + 1:
            return f"{len(self._products)} products that share no operand; a kernel holds one"
        for o, position in operands.items():
            source = strided_operand(o)
            if source is None:
                return f"{o.name} is no view by strides of what lies in memory"
            if (problem := wrong(source, o, position)) is not None:
                return f"{o.name}: {problem}"
        return None


class MatmulScheduler(ProductScheduler):
    """Products on the instructions of warpgroups."""

    def candidates(self) -> Iterator[Listed[ProductPlan]]:
        """Tiles in the order of their predicted time; behind them those whose depth blocks share:
        of seven products on a device one was the fastest so, by a twentieth."""
        problem = self._problem()
        if problem is not None:
            yield Refused("tiles on matrix instructions", problem)
            return
        plans = [p for p in self._plans() if self._fits(p) and self._has_room(p)]
        alone = [p for p in plans if p.cluster_size == 1 and not (p.ahead or p.ping_pong)]
        suffix = suffix_of(self.flow, self._product)
        yield from map(self._listed, self._ranked(plans, suffix))
        yield from map(self._listed, self._ranked(self._with_splits(alone), suffix))

    def _plans(self) -> list[ProductPlan]:
        """Those of the menu; of results of unknown sizes in no order, and in no clusters."""
        outputs = sum(can_stage(self.flow, self._product, y) for y in self.flow.outputs)
        loaded = sum(x.dtype.nbytes for x, _ in tiles_read(self.flow, self._product))
        first, second = (len({p.operands[i] for p in self._products}) for i in (0, 1))
        plans = menu_plans(self._sizes(), self._target, (first, second), outputs, loaded)
        if None not in map(constant_value, self._product.shape):
            return list(plans)
        depth = self._sizes().depth
        return [
            replace(
                p, stages=min(p.stages, -(-depth // p.depth)), group=1, blocks=0, serpentine=False
            )
            for p in plans
            if p.cluster_size == 1 and not p.ping_pong
        ]

    def _has_room(self, plan: ProductPlan) -> bool:
        """Whether the registers of warps that multiply hold what is computed of the sums. In
        ping-pong they do, but threads of a tile that reduce are numbered by lanes and rows; beside
        many sums they hold floats that leave by boxes, not the words of random numbers and of
        positions (NVRTC 13.0 spills 2,080 bytes for dropout behind 128 x 192)."""
        if plan.ping_pong:
            is_narrow = plan.accumulators > MAX_ACCUMULATORS
            return not (reductions(self.flow) or (is_narrow and self._needs_registers()))
        is_shared = plan.warpgroups > MAX_COMPUTING
        if not is_shared and plan.accumulators <= MAX_ACCUMULATORS:
            return True
        moved = [
            isinstance(s.op, ViewBase)
            or (isinstance(s.op, Pointwise) and s.op.fn in ("cast", "copy"))
            for s in computed(self.flow.stages)
            if s not in self._products
        ]
        return (plan.staged > 0 or not is_shared) and all(moved)

    def _needs_registers(self) -> bool:
        """Whether integers are computed behind a product, or results do not leave by boxes."""
        apart = [s for s in computed(self.flow.stages) if s not in self._products]
        by_threads = [y for y in self.flow.outputs if not can_stage(self.flow, self._product, y)]
        return bool(by_threads) or any(s.dtype.is_integer for s in apart)

    def _with_splits(self, plans: Sequence[ProductPlan]) -> list[ProductPlan]:
        """The plans with shared depths, where all sizes are known."""
        if not self._has_known_sizes():
            return []
        sizes, forms = self._sizes(), SPLIT_FORMS.values()
        found = (q for p in plans for form in forms for q in form(p, sizes, self._target))
        return self._in_result(dict.fromkeys(found))

    def _in_result(self, plans: Iterable[ProductPlan]) -> list[ProductPlan]:
        """The plans, of which those in turns add up a result that shows sums as they are where it
        lies: where the copy engine does, its tile is in shared memory instead of parts in another
        order."""
        result = stored_sum(self.flow, self._product)
        if isinstance(result, str) or len(self._products) > 1:
            return list(plans)
        by_boxes = adds_in_place(self.flow, self._product, result)
        out: list[ProductPlan] = []
        for p in plans:
            if p.stream:  # its whole tiles are stored in no turn
                out.append(p)
                continue
            if p.mode == "tma" and by_boxes and p.columns % STAGED_UNIT == 0:
                p = replace(p, staged=p.columns, in_result=True)
            out.append(replace(p, in_result=True) if p.mode == "vector" else p)
        return out

    def _ranked(self, plans: list[ProductPlan], suffix: Suffix) -> list[ProductPlan]:
        """Plans in the order of their predicted time, in clusters by a margin later. Of those
        that are as fast as the fastest, the one outside of clusters that reads the least memory
        comes first, unless the fastest is in one: its time is that of boxes. Of several, one whose
        tiles all run at once comes by its time, others by the lines of their boxes, then the one
        with the fewest warpgroups, which wait for each other, and the fewest blocks to a tile.
        Times of plans in one round were measured side by side (`bench.product_sweep`): there they
        order plans better than lines do; so they do where rings have less room because inputs come
        ahead."""
        sizes, target = self._sizes(), self._target
        us = {p: ranked_us(sizes, p, target, suffix) for p in plans}
        ordered = sorted(plans, key=lambda p: us[p])
        if not ordered:
            return []
        known, promoted = target.calibration, is_promoted(sizes.itemsize)
        alone = known.promoted_margin if promoted else known.repeated_margin
        near = alone if ordered[0].cluster_size == 1 else 1.0
        alike = [p for p in ordered if us[p] <= near * us[ordered[0]]]
        lines = {p: p.tiles(sizes) * (p.rows + p.columns * p.products) for p in alike}
        memory = {p: memory_nbytes(sizes, p, target) for p in alike}

        def order(p: ProductPlan) -> tuple[float, ...]:
            is_in_turn = p.tiles(sizes) > target.multiprocessors and not suffix.loaded
            read = lines[p] if is_in_turn else round(us[p], 2)
            return p.cluster_size, memory[p], is_in_turn, read, p.warpgroups, p.splits

        first = min(alike, key=order)
        return [first, *(p for p in ordered if p is not first)]

    def _problem(self) -> str | None:
        if not self._target.has(Feature.WGMMA):
            return f"{self._target} has no products by warpgroups"
        return self._operands_problem(
            lambda source, o, position: (
                box_problem(source, o.dtype.nbytes) or axis_problem(source, o.dtype, position)
            )
        )

    def _fits(self, plan: ProductPlan) -> bool:
        """Whether rows of the operands' tiles are wide enough for an exchange of chunks, or are
        whole panels of the widest one, and tiles hold the parts of what is reduced."""
        rows, columns = plan.rows, plan.columns
        if not parts_fit(self.flow, self._product, plan) or not maps_fit(self.flow, columns):
            return False
        pairs = [(o, x) for p in self._products for o, x in zip(p.operands, (0, 1), strict=True)]
        for o, position in pairs:
            nbytes, source = (rows, columns)[position] * o.dtype.nbytes, strided_operand(o)
            whole = LEAST_EXCHANGE_NBYTES if nbytes < DEPTH_NBYTES else DEPTH_NBYTES
            if source is not None and lies_across(source, position) and nbytes % whole:
                return False
        return True

    def _listed(self, p: ProductPlan) -> Candidate[ProductPlan]:
        """A plan with what `explain` says of it."""
        together = _together(p)
        if p.mode in IN_TURNS and p.splits > 1:
            why = stored_sum(self.flow, self._product)
            scratch = f", through scratch: {why}" if isinstance(why, str) else ", through scratch"
            together += " in the result" if p.in_result else "" if p.stream else scratch
        each = "of those of the last wave alone" if p.stream else "of each"
        apart = f", {p.splits} blocks{together} for the depth {each}" if p.splits > 1 else ""
        apart += f", clusters of {p.cluster[0]} x {p.cluster[1]}" if p.cluster_size > 1 else ""
        apart += ", inputs of what follows ahead of it" if p.ahead else ""
        apart += ", two warpgroups in turn" if p.ping_pong else ""
        return Candidate(f"tiles of {p.rows} x {p.columns}, {p.stages} stages{apart}", p.params, p)

    def apply(self, plan: ProductPlan) -> bool:
        """Schedules by public calls."""
        schedule_products(Schedule.of(self.flow), self._products, plan)
        return True


def _together(p: ProductPlan) -> str:
    """How the blocks that share a depth combine their parts."""
    if p.mode in IN_TURNS:
        return f" in turns ({p.mode})"
    if p.mode == "cluster":
        return " in a cluster"
    in_clusters = f" in clusters of {p.first}" if p.first > 1 else ""
    return " in the order of arrival" if p.mode == "arrival" else in_clusters


def schedule_products(s: Schedule, stages: Sequence[Stage], plan: ProductPlan) -> None:
    """The kernel of products and their suffix."""
    products = [in_registers(ScheduledTensor(s, t)) for t in stages]
    product = products[0]
    operands = tiles_of_operands(s, products, "bulk")
    ahead = _ahead(s, product) if plan.ahead else []
    _read_once(s)
    outputs = [ScheduledTensor(s, t) for t in s.flow.outputs]
    whole = [y for y in outputs if leaves_whole(s.flow, product.stage, y.stage, plan)]
    staged = [(y, _staged(y)) for y in whole]
    boxed = [y.stage for y, _ in staged]
    apart = [*(t.stage for t in (*products, *operands, *ahead)), *boxed]
    suffix = [ScheduledTensor(s, t) for t in computed(s.flow.stages) if t not in apart]
    for p in products:
        _tile(p, plan)
    around = (2 if plan.blocks else 1) + (plan.cluster_size > 1) + plan.stream
    inside = around + (plan.splits > 1 and not plan.stream) + (plan.first > 1)
    s.transform_like(product, [*operands, *ahead, *(y for y, _ in staged)])
    for p in products:
        p.mma(plan.groups_of_tile, by_lanes=bool(reductions(s.flow)))
    for o in operands:
        o.parallelize(-1, Parallel.BULK)
        o.parallelize(-2, Parallel.BULK)
        if plan.stages > 1:
            o.circular_buffer(
                plan.stages,
                warp_specialized=True,
                registers=plan.registers,
                ping_pong=plan.ping_pong,
            )
        o.inline_at(next(p for p in products if o.stage in p.stage.operands), inside + 1)
    for o in ahead:
        o.parallelize(-1, Parallel.BULK)
        o.parallelize(-2, Parallel.BULK)
    s.transform_like(product, suffix)
    each = columns_in_parts(s.flow, product.stage)
    if each and not staged:
        _by_parts(s, suffix, each)
    for y, c in staged:
        if plan.staged < plan.columns:
            y.split(-1, plan.staged)
            y.reorder({-2: around})
            y.parallelize(around, Parallel.UNROLL)
        y.parallelize(-1, Parallel.BULK)
        y.parallelize(-2, Parallel.BULK)
        _in_matrices(c, around, plan, each)
        s.transform_like(c, [t for t in suffix if not t.stage.is_staged])
        for i in (-3, -2, -1):
            c.parallelize(i, Parallel.MMA)
    vectorize_accesses(s.flow, suffix[-1].stage, [o.stage for o in ahead])
    s.inline_most(suffix)
    if staged and plan.staged < plan.columns:
        _hold_by_parts(s, suffix, product, around)
    for p in products:
        reader = s.flow.consumers(p.stage)[0]
        p.inline_at(ScheduledTensor(s, reader), around)
    for o in ahead:
        o.inline_at(ScheduledTensor(s, s.flow.consumers(o.stage)[0]), around)
    if ahead:
        put_first(s.flow, [o.stage for o in ahead])


def _ahead(s: Schedule, product: ScheduledTensor) -> list[ScheduledTensor]:
    """Tiles in shared memory of what is read for each place of a product, and registers that each
    thread reads its part into, once for all functions.

    rewrite:  t = x * 2;  y = p * t   ->   c = copy(x) by boxes;  r = copy(c);
                                           t = r * 2;  y = p * t
    """
    found: list[ScheduledTensor] = []
    for x, readers in list(tiles_read(s.flow, product.stage)):
        own = [ScheduledTensor(s, r) for r in readers]
        found.append(ScheduledTensor(s, x).cache_after(by="bulk", readers=own))
        found[-1].cache_after()
    return found


def in_registers(product: ScheduledTensor) -> ScheduledTensor:
    """A product whose accumulators something else stores."""
    return product if product.memory is Memory.LOCAL else product.cache_before()


def _staged(y: ScheduledTensor) -> ScheduledTensor:
    """The tile in shared memory that an output leaves from."""
    if not (isinstance(y.stage.op, Pointwise) and y.stage.op.fn == "copy"):
        y.cache_before()
    return y.cache_before(by="stmatrix")


def _hold_by_parts(
    s: Schedule, suffix: Sequence[ScheduledTensor], product: ScheduledTensor, around: int
) -> None:
    """Makes what lies along columns, but is the same for all parts of results that leave together,
    as tables of positions are for all heads, again for each of them: beside the sums of 128 x 256
    NVRTC 13.0 spills 128 to 408 bytes where 48 or 64 words of it stand across parts, and nothing
    where each part has 96 of its own."""
    columns = product.stage.frame.output[-1]
    for t in reversed(suffix):
        along = [c for c in t.stage.frame.output if s.flow.graph.depends(c, [columns])]
        if along and t.stage.inline_depth == around:
            reader = s.flow.consumers(t.stage)[0]
            t.inline_at(ScheduledTensor(s, reader), around + 1)


def _by_parts(s: Schedule, suffix: Sequence[ScheduledTensor], each: int) -> None:
    """`[.., TIDx, j, h, e] -> [.., TIDx, j/n, n, h, e]` for all that is computed of a product's
    results, where `n` words are the `each` columns of a part of what is reduced."""
    whole = next(t for t in suffix if not isinstance(t.stage.op, Reduce))
    whole.split(-3, each // MMA_COLUMNS_UNIT)
    s.transform_like(whole, suffix)


def _in_matrices(c: ScheduledTensor, around: int, plan: ProductPlan, each: int) -> None:
    """`[.., TIDx, j, h, e] -> [.., part, TIDx, j/2, 2, h, e]` with parts of some columns; where
    `each` columns are reduced together, with a loop over those."""
    if plan.staged < plan.columns:
        c.split(-3, plan.staged // MMA_COLUMNS_UNIT)
        c.reorder({-4: around})
    c.split(-3, 2)
    if each:
        c.split(-4, each // (2 * MMA_COLUMNS_UNIT))


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


def tiles_of_operands(
    s: Schedule, products: Sequence[ScheduledTensor], by: str
) -> list[ScheduledTensor]:
    """Copies of the operands in shared memory, one for all products that share an operand."""
    found: list[ScheduledTensor] = []
    for stage in dict.fromkeys(o for p in products for o in p.stage.operands):
        readers = [p for p in products if stage in p.stage.operands]
        found.append(ScheduledTensor(s, stage).cache_after(by=by, readers=readers))
    return found


def _read_once(s: Schedule) -> None:
    """Holds in registers what several functions behind a product read of memory.

    rewrite:  t = x * 2;  y = x * t   ->   c = copy(x);  t = c * 2;  y = c * t
    """
    for x in s.flow.inputs:
        readers = [r for r in s.flow.consumers(x) if is_computed(r)]
        if len(readers) > 1:
            ScheduledTensor(s, x).cache_after(readers=[ScheduledTensor(s, r) for r in readers])


def _tile(product: ScheduledTensor, plan: ProductPlan) -> None:
    """`[.., m, n, k] -> [tiles of a block, BIDx, ClusterX, k/depth, rows, columns, depth]`."""
    tile, cluster = (plan.rows, plan.columns, plan.depth), plan.cluster
    by_tiles(product, tile, plan.group, plan.serpentine, cluster=cluster)
    if plan.cluster_size > 1:
        product.parallelize(1, Parallel.CLUSTERX)
    if plan.stream:
        product.split(0, plan.blocks // plan.splits).split(0, plan.splits)
        product.parallelize(1, Parallel.BIDX).parallelize(2, Parallel.BIDY)
        mode, _, back = plan.mode.partition("+")
        product.request_serial_grid_reduction(mode, read_back=back or "vector", stream=True)
        return
    if plan.blocks:
        product.split(0, plan.blocks // plan.cluster_size)
    if plan.splits > 1:
        tiles = 1 if plan.blocks else 0
        share_depth(product, plan.splits, plan.mode, tiles=tiles, first=plan.first)
        return
    product.parallelize(1 if plan.blocks else 0, Parallel.BIDX)


def share_depth(
    product: ScheduledTensor, splits: int, mode: str, *, tiles: int = 0, first: int = 1
) -> None:
    """`[tiles, k/depth, ..] -> [BIDy, BIDx{splits}, k/depth/splits, ..]`: blocks sum parts of the
    depth of one tile, and combine them as `mode` says; in mode "cluster" `[BIDx, ClusterX, ..]`,
    and `[BIDy, BIDx, ClusterX, ..]` where `first` of them make a cluster that reduces first.
    `tiles` is the loop over tiles of which each has blocks of its own."""
    product.split(tiles + 1, splits, inner=False)
    if first > 1:
        product.split(tiles + 1, first).parallelize(tiles + 2, Parallel.CLUSTERX)
    across, along = Parallel.BIDY, Parallel.BIDX
    if mode == "cluster":
        across, along, mode = Parallel.BIDX, Parallel.CLUSTERX, "slices"
    product.parallelize(tiles, across).parallelize(tiles + 1, along)
    mode, _, back = mode.partition("+")
    product.request_serial_grid_reduction(mode, read_back=back or "vector")


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
