"""What is computed of a product's sums before they leave the kernel: facts of it, and the time that
nothing is multiplied for it.

Warps that multiply compute with their own sums, so what stands behind the last step of a tile is
not hidden behind products. Inputs that have an element for each place of the result may come by
boxes, ahead of that; else threads wait for them there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.fusion.held_results import is_held_in_tile
from fusewright.fusion.ir import IndexMap, MatMul, Parts, Pointwise, Reduce, ViewBase
from fusewright.fusion.strided import box_problem, fastest_axis
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.common import numel
from fusewright.schedule.heuristics.product_plans import (
    MAX_ACCUMULATORS,
    STAGED_ITEMSIZE,
    ProductPlan,
)
from fusewright.schedule.heuristics.settled import settled_shares
from fusewright.schedule.heuristics.work import element_instructions
from fusewright.schedule.inline import consumers_of
from fusewright.schedule.precision import fast_forms
from fusewright.schedule.products import boxed_memory, strided_operand
from fusewright.schedule.results_in_turns import stored_sum
from fusewright.target import ISSUE_PER_CLOCK, WARP_SIZE, WORD_NBYTES, Target

WORDS_UNDER_WAY = 16
"""Of loads that a thread has under way beside its sums: ptxas 13.0 keeps 13 of 64 beside 128."""


@dataclass(frozen=True, slots=True)
class Suffix:
    """For each place of the result: instructions of a thread that computes with its sum, bytes of
    inputs that are `loaded` for it, bytes of results that threads store (`stored`), which are
    waited for, and of those that leave by boxes (`boxed`), which memory takes beside the boxes of
    operands. Of inputs that several places share, as heads do a table of rotary embedding, so many
    bytes are `shared`: caches hold them, and threads wait for them."""

    instructions: float = 0.0
    loaded: int = 0
    stored: float = 0
    boxed: int = 0
    shared: int = 0


ALONE_CLOCKS, FULL_CLOCKS = 4.1, 7.2
"""Clocks for an instruction behind a product of a warp that has a scheduler to itself, as in
ping-pong, and of one whose sums leave no registers to begin several places at once: bias and gelu
of 8192 x 8192 x 512 and gelu's backward of 12608 x 3072 x 768 take 4.1 both by 128 x 128, 7.1 and
7.2 by 128 x 192 (one H100, 2026-11-28, bench/ping-pong-2026-11-28-h100.json)."""
UNCOUNTED_CLOCKS = 1.0
"""Those of two warps of a scheduler beyond the one that is counted: 1.7 to 2.3 in all for the same
products without turns (one H100, 2026-11-28, bench/ping-pong-2026-11-28-h100.json)."""
PLAIN = Suffix(boxed=STAGED_ITEMSIZE)
"""A product that leaves by boxes."""
PARTS = Suffix()
"""A product of which whoever asks counts the bytes: of slices, with the kernel that sums them."""


def alone_clocks(accumulators: int) -> float:
    """Clocks for an instruction of a warp alone on its scheduler beside so many sums a thread."""
    return FULL_CLOCKS if accumulators > MAX_ACCUMULATORS else ALONE_CLOCKS


def uncounted_us(places: int, s: Suffix, target: Target) -> float:
    """Microseconds by which what is computed of all places of a product is predicted too fast where
    two warpgroups share each tile."""
    chip = WARP_SIZE * ISSUE_PER_CLOCK * target.clock_mhz * target.multiprocessors
    return UNCOUNTED_CLOCKS * places * s.instructions / chip


def exposed_us(
    places: int, threads: int, s: Suffix, *, ahead: bool, target: Target, clocks: float = 1.0
) -> float:
    """Microseconds of a tile of so many places, shared by so many threads, in which nothing is
    multiplied: instructions, of so many clocks each, results that threads store, and inputs that do
    not come `ahead`."""
    issue = clocks * places * s.instructions / (WARP_SIZE * ISSUE_PER_CLOCK * target.clock_mhz)
    loaded = 0 if ahead else places * s.loaded
    waited = waits_us(places * s.shared, threads, target)
    return issue + waited + moved_us(loaded, places * s.stored, threads, target)


def moved_us(loaded: float, stored: float, threads: int, target: Target) -> float:
    """Microseconds in which the threads of a block load and store so many bytes behind the last
    step of a tile: their share of memory's bandwidth, as all blocks keep step, and the latency of
    as many loads as each waits for one after the other."""
    known = target.calibration
    share = target.memory_nbytes_per_us * known.read_share / target.multiprocessors
    moved = (loaded + stored * known.write_weight) / share
    return waits_us(loaded, threads, target) + moved


def waits_us(nbytes: float, threads: int, target: Target) -> float:
    """Microseconds in which the threads of a block wait for loads of so many bytes, of which each
    has some under way."""
    waits = nbytes / (threads * WORD_NBYTES * WORDS_UNDER_WAY)
    return waits * target.calibration.memory_latency_us


def tiles_read(flow: Dataflow, product: Stage) -> Iterator[tuple[Stage, list[Stage]]]:
    """What boxes can bring for functions of the results, and those functions: inputs, or views of
    inputs by strides, with an element for each place, whose rows are the rows of the product."""
    rows = [flow.graph.normal(c) for c in product.frame.output]
    found: dict[Stage, list[Stage]] = {}
    for r in flow.stages:
        if is_computed(r) and [flow.graph.normal(c) for c in r.frame.output] == rows:
            for o in dict.fromkeys(r.operands):
                found.setdefault(o, []).append(r)
    for o, readers in found.items():
        if _comes_by_boxes(o):
            yield o, readers


def is_computed(s: Stage) -> bool:
    """Whether a stage is a function of elements, which registers hold."""
    return isinstance(s.op, Pointwise) and s.op.fn != "copy"


def _comes_by_boxes(o: Stage) -> bool:
    memory = strided_operand(o)
    if memory is None or fastest_axis(memory) != len(o.shape) - 1:
        return False
    return box_problem(memory, o.dtype.nbytes) is None


def suffix_of(flow: Dataflow, product: Stage) -> Suffix:
    """What is computed of a product's results, for each place of one."""
    forms = fast_forms(flow.stages, consumers_of(flow))
    behind = [s for s in flow.stages if is_computed(s) and numel(s.shape) == numel(product.shape)]
    boxed = [y for y in flow.outputs if can_stage(flow, product, y)]
    apart = [y for y in flow.outputs if y not in boxed]
    shares = settled_shares(flow, product)
    each = (shares.get(s, 1.0) * element_instructions(s, forms.get(s)) for s in behind)
    return Suffix(
        sum(each) + len(reductions(flow)),
        sum(x.dtype.nbytes for x, _ in tiles_read(flow, product)),
        sum(y.dtype.nbytes * numel(y.shape) / numel(product.shape) for y in apart),
        sum(y.dtype.nbytes for y in boxed),
        sum(x.dtype.nbytes for x in _shared_inputs(product, behind)),
    )


def _shared_inputs(product: Stage, behind: Sequence[Stage]) -> dict[Stage, None]:
    """The inputs that functions of a product's results read at several places, and that have more
    elements than a row or a column of them."""
    side = max(numel(product.shape[-1:]), numel(product.shape[-2:-1]))
    found: dict[Stage, None] = {}
    for o in (o for s in behind for o in s.operands):
        source = o
        while isinstance(source.op, ViewBase):
            (source,) = source.operands
        if source.is_input and side < numel(source.shape) < numel(product.shape):
            found[source] = None
    return found


def reductions(flow: Dataflow) -> list[Stage]:
    """The reductions of parts of tiles behind a product; each takes an instruction for a place."""
    return [s for s in flow.stages if isinstance(s.op, Reduce)]


def parts_fit(flow: Dataflow, product: Stage, plan: ProductPlan) -> bool:
    """Whether tiles, and those of results that leave together, hold whole parts of what is reduced,
    and all tiles, in whole clusters, as many places beyond an edge as the parts have."""
    rows, columns = (flow.graph.normal(c) for c in product.frame.output[-2:])
    for s in flow.stages:
        if not isinstance(s.op, Parts):
            continue
        cut, axis = s.op.partition, _cut_axis(s)
        if flow.graph.depends(axis, [rows]):
            extent, together = plan.rows, plan.cluster[0]
        elif flow.graph.depends(axis, [columns]):
            extent, together = plan.columns, plan.cluster[1]
            if plan.staged % cut.each:
                return False
        else:
            return False
        whole = extent * together
        if extent % cut.each or -(-cut.size // whole) * whole != cut.count * cut.each:
            return False
    return True


def maps_fit(flow: Dataflow, columns: int) -> bool:
    """Whether tiles of so many columns hold all that is read of the product for one of their
    places."""
    return all(
        is_held_in_tile(s.op, s.shape, columns)
        for s in flow.stages
        for o in s.operands
        if isinstance(s.op, IndexMap) and isinstance(o.op, MatMul)
    )


def columns_in_parts(flow: Dataflow, product: Stage) -> int:
    """The columns of a part, 0 where no columns are reduced."""
    columns = product.frame.output[-1]
    own = [s for s in flow.stages if isinstance(s.op, Parts)]
    across = (s for s in own if flow.graph.depends(_cut_axis(s), [columns]))
    return next((s.op.partition.each for s in across if isinstance(s.op, Parts)), 0)


def _cut_axis(s: Stage) -> AxisClass:
    assert isinstance(s.op, Parts)
    return s.operands[0].frame.output[s.op.axes[0]]


def leaves_whole(flow: Dataflow, product: Stage, y: Stage, plan: ProductPlan) -> bool:
    """Whether an output leaves by boxes in a plan: also one of sums to which the copy engine adds
    the parts of blocks in turns."""
    if not plan.staged:
        return False
    return can_stage(flow, product, y) or (plan.mode == "tma" and adds_in_place(flow, product, y))


def adds_in_place(flow: Dataflow, product: Stage, y: Stage) -> bool:
    """Whether the copy engine may add the parts of a product's sums to an output."""
    is_sum = stored_sum(flow, product) is y
    return is_sum and can_stage(flow, product, y, itemsize=product.dtype.compute.nbytes)


def can_stage(flow: Dataflow, product: Stage, y: Stage, itemsize: int = STAGED_ITEMSIZE) -> bool:
    """Whether boxes copy an output of elements of `itemsize` bytes: one whose rows are those of the
    product, or its columns."""
    memory = boxed_memory(y)
    if memory is None or y.dtype.nbytes != itemsize:
        return False
    own, rows = ([flow.graph.normal(c) for c in t.frame.output] for t in (y, product))
    if own not in (rows, [*rows[:-2], *reversed(rows[-2:])]):
        return False
    along_rows = fastest_axis(memory) == len(y.shape) - 1
    return along_rows and box_problem(memory, y.dtype.nbytes) is None
