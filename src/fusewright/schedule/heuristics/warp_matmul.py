"""Products on the instructions of single warps: operands by copies of threads to a ring of tiles in
shared memory, sums in registers. For every target with these copies, and every view by strides.

    for k: copy a tile of each operand; load matrices; multiply    ->   accumulators in registers
    suffix over the accumulators                                   ->   global memory

Everything is done by public calls on a schedule by hand.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import constant_value
from fusewright.core.substitution import estimate
from fusewright.fusion.strided import fastest_axis
from fusewright.schedule.copies import exchanged
from fusewright.schedule.edits import set_allocation
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.candidates import Candidate, Listed, Refused
from fusewright.schedule.heuristics.common import vectorize_accesses
from fusewright.schedule.heuristics.matmul import (
    ProductScheduler,
    by_tiles,
    in_registers,
    share_depth,
    tiles_of_operands,
)
from fusewright.schedule.heuristics.product_plans import rows_of_group
from fusewright.schedule.heuristics.product_suffix import reductions
from fusewright.schedule.heuristics.warp_plans import (
    WarpPlan,
    ranked,
    warp_plans,
    with_shared_depth,
)
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Parallel
from fusewright.schedule.products import (
    WARP_MMA_DTYPES,
    copy_width,
    rows_copy_problem,
    strided_operand,
)
from fusewright.schedule.schedule import Schedule, ScheduledTensor
from fusewright.target import MAX_VECTOR_NBYTES, Feature

WHAT = "tiles on the instructions of single warps"


class WarpMatmulScheduler(ProductScheduler):
    """Products on the instructions of single warps."""

    def candidates(self) -> Iterator[Listed[WarpPlan]]:
        """Tiles in the order of their predicted time; behind them those whose depth blocks share,
        as their hand-over in kernels with products has not been timed on a device."""
        problem = self._problem()
        if problem is not None:
            yield Refused(WHAT, problem)
            return
        sizes = self._sizes()
        plans = [self._grouped(p) for p in warp_plans(sizes, self._target, len(self._products))]
        known = plans if self._has_known_sizes() else []
        splits = [q for p in known for q in with_shared_depth(p, sizes, self._target)]
        widths = copy_widths(self._product)
        listed = (ranked(some, sizes, widths, self._target) for some in (plans, splits))
        for p in itertools.chain(*listed):
            shared = f", {p.splits} blocks for the depth of each" if p.splits > 1 else ""
            tile = f"{p.rows} x {p.columns} x {p.depth}"
            what = f"tiles of {tile} by single warps, {p.stages} stages{shared}"
            yield Candidate(what, p.params, p)

    def _problem(self) -> str | None:
        if not self._target.has(Feature.CP_ASYNC):
            return f"{self._target} has no copies by threads to shared memory"
        if reduced := reductions(self.flow):
            return f"{reduced[0].name} reduces parts of tiles that warpgroups hold"
        dtypes = {o.dtype: o for p in self._products for o in p.operands}
        for dtype, o in dtypes.items():
            if dtype.name not in WARP_MMA_DTYPES:
                return f"{o.name} is {dtype}; single warps multiply {' or '.join(WARP_MMA_DTYPES)}"
        if len(dtypes) > 1:
            return "operands of two dtypes"
        return self._operands_problem(lambda view, o, _: rows_copy_problem(view, o.dtype.nbytes))

    def _grouped(self, plan: WarpPlan) -> WarpPlan:
        rows, columns = (constant_value(e) for e in self._product.shape[-2:])
        if rows is None or columns is None:
            return plan
        down, sms = -(-rows // plan.rows), self._target.multiprocessors
        return replace(plan, group=rows_of_group(down, plan.rows, plan.columns, sms))

    def apply(self, plan: WarpPlan) -> bool:
        """Schedules by public calls."""
        schedule_warp_products(Schedule.of(self.flow), self._products, plan)
        return True


def schedule_warp_products(s: Schedule, stages: Sequence[Stage], plan: WarpPlan) -> None:
    """The kernel of products and their suffix."""
    products = [in_registers(ScheduledTensor(s, t)) for t in stages]
    operands = tiles_of_operands(s, products, "cp_async")
    apart = [t.stage for t in (*products, *operands)]
    around = 2 + (plan.splits > 1)
    suffix = [ScheduledTensor(s, t) for t in computed(s.flow.stages) if t not in apart]
    for p in products:
        by_tiles(p, (plan.rows, plan.columns, plan.depth), plan.group)
        if plan.splits > 1:
            share_depth(p, plan.splits, plan.mode)
        else:
            p.parallelize(0, Parallel.BIDX)
    s.transform_like(products[0], operands)
    for p in products:
        p.mma(warps=(plan.down, plan.across))
    for o in operands:
        places = _copy_tile(s.flow, o, plan)
        if plan.stages > 1:
            o.circular_buffer(plan.stages)
        o.inline_at(next(p for p in products if o.stage in p.stage.operands), around)
        set_allocation(s.flow, o.stage, places)
    s.transform_like(products[0], suffix)
    vectorize_accesses(s.flow, suffix[-1].stage)
    s.inline_most(suffix)
    for p in products:
        p.inline_at(ScheduledTensor(s, s.flow.consumers(p.stage)[0]), 1)


def _copy_tile(flow: Dataflow, o: ScheduledTensor, plan: WarpPlan) -> tuple[AxisClass, ...]:
    """`[BIDx, k/depth, m, depth] -> [BIDx, k/depth, trips, TIDx, Vectorize]`: along the memory of
    the operand. Returns where its elements go: into chunks of 16 bytes that are exchanged within
    lines of the banks."""
    source = strided_operand(o.stage.operands[0])
    assert source is not None, "the problems of the group were looked at"
    width = copy_width(source, o.stage.dtype.nbytes)
    slow, fast = (x.axis for x in o.stage.loops[-2:])
    along = o.stage.frame.output[fastest_axis(source) or 0]
    if not flow.graph.depends(fast, [along]):
        slow, fast = fast, slow
        o.reorder({-1: -2})
    chunk = MAX_VECTOR_NBYTES // o.stage.dtype.nbytes
    places = exchanged(flow.graph, slow, fast, chunk, MAX_VECTOR_NBYTES)
    o.split(-1, width)
    o.merge(-3, -2)
    o.split(-2, min(plan.threads, estimate(o.stage.loops[-2].axis.extent)))
    o.parallelize(-2, Parallel.TIDX).parallelize(-1, Parallel.VECTORIZE)
    if constant_value(o.stage.loops[-3].axis.extent) != 1:
        o.parallelize(-3, Parallel.UNROLL)
    return places


def copy_widths(product: Stage) -> tuple[int, int]:
    """Elements of each operand that a thread copies together."""
    views = ((strided_operand(o), o.dtype.nbytes) for o in product.operands)
    first, second = (0 if v is None else copy_width(v, nbytes) for v, nbytes in views)
    return first, second
