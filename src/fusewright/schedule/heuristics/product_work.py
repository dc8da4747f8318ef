"""What a product on the instructions of warpgroups asks of a multiprocessor, read off its
schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.core.substitution import estimate
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.common import numel
from fusewright.schedule.heuristics.product_steps import DepthStep, passed_nbytes
from fusewright.schedule.parallel import trips_of
from fusewright.schedule.products import (
    blocks_that_share,
    boxed_memory,
    is_promoted,
    lines_of_row,
)
from fusewright.schedule.streams import stream_of
from fusewright.target import LINE_NBYTES, WARPGROUP_SIZE, mma_per_clock


@dataclass(frozen=True, slots=True)
class ProductWork:
    """Of a block: the tiles of the result that it makes, the steps of all of them, each a tile of
    the depth, and what a step takes; bytes that threads load and store for the places of a tile
    behind its last step, and those of tables that places share; whether two warpgroups take the
    tiles in turn (`ping_pong`), each thread of which has so many `accumulators`."""

    tiles: int
    steps: int
    step: DepthStep
    loaded_nbytes: float = 0.0
    stored_nbytes: float = 0.0
    shared_nbytes: float = 0.0
    ping_pong: bool = False
    accumulators: int = 0


def product_work(flow: Dataflow, stages: Sequence[Stage]) -> ProductWork | None:
    """The work of warpgroups that multiply; None where there are none."""
    products = [s for s in stages if s.is_mma and not s.warps]
    if not products:
        return None
    first = products[0]
    itemsize = first.operands[0].dtype.nbytes
    inside = [x for x in first.loops if not x.parallel.is_block and not x.parallel.is_serial]
    serial = [x for x in first.loops if x.parallel.is_serial]
    threads = trips_of(x for x in inside if x.parallel.is_thread)
    reduced = first.frame.reduced
    sums = trips_of(x for x in inside if not flow.graph.depends(x.axis, reduced))
    received = requested = beyond = crossing = 0.0
    boxes = dict.fromkeys(o for p in products for o in p.operands)
    for s in boxes:
        if len(s.boxed) != 2 or s.memory is not Memory.SHARED:
            continue
        box_rows, filled = _box_rows(flow, s, first if s in first.operands else products[-1])
        lines = box_rows * lines_of_row(boxed_memory(s), s.dtype.nbytes)
        sharing = blocks_that_share(flow.graph, s)
        received += lines
        requested += lines / sharing
        beyond += filled / sharing
        crossing += 2 * (lines - box_rows) / sharing
    step = DepthStep(
        clocks=len(products) * trips_of(inside) / mma_per_clock(itemsize),
        added=len(products) * sums / threads if is_promoted(itemsize) else 0.0,
        received=received,
        requested=requested,
        beyond=beyond,
        stages=max((s.stages for s in boxes), default=1),
        warpgroups=threads // WARPGROUP_SIZE,
        crossing=crossing,
        shared_nbytes=_shared_nbytes(flow, first, len(products)),
    )
    tiles = trips_of(x for x in serial if not flow.graph.depends(x.axis, reduced))
    steps = trips_of(serial)
    if (stream := stream_of(flow)) is not None:
        of_tile = steps // tiles
        tiles, steps = stream.whole + stream.rest, stream.whole * of_tile
        steps += stream.rest * -(-of_tile // stream.blocks)
    moved = [s for s in stages if not s.is_mma and not s.boxed]
    whole = numel(first.shape)
    read = {o.stored: o for s in moved for o in s.operands if o.stored.memory is Memory.GLOBAL}
    loaded = sum(o.dtype.nbytes for o in read.values() if numel(o.shape) == whole)
    side = max(numel(first.shape[-1:]), numel(first.shape[-2:-1]))
    shared = sum(x.dtype.nbytes for x in read if side < numel(x.shape) < whole)
    left = [s for s in moved if s.memory is Memory.GLOBAL]
    stored = sum(s.dtype.nbytes * numel(s.shape) / whole for s in left)
    in_turn = any(s.ping_pong for s in boxes)
    held = len(products) * sums // threads
    moved_nbytes = sums * loaded, sums * stored, sums * shared
    return ProductWork(tiles, steps, step, *moved_nbytes, in_turn, held)


def _shared_nbytes(flow: Dataflow, product: Stage, count: int) -> float:
    """Bytes that pass shared memory for a step of so many products that share an operand."""
    reduced = product.frame.reduced
    boxed = [[o.loops[i] for i in o.boxed] for o in product.operands]
    rows, columns = (
        trips_of(x for x in own if not flow.graph.depends(x.axis, reduced)) for own in boxed
    )
    depth = trips_of(x for x in boxed[0] if flow.graph.depends(x.axis, reduced))
    return passed_nbytes(rows, columns, count, depth * product.operands[0].dtype.nbytes)


def _box_rows(flow: Dataflow, s: Stage, product: Stage) -> tuple[float, float]:
    """The rows of a box of an operand, and those beyond an edge, where the whole operand is smaller
    than the box."""
    reduced: tuple[AxisClass, ...] = product.frame.reduced
    itemsize = s.dtype.nbytes
    boxed = [s.loops[i] for i in s.boxed]
    extent = trips_of(x for x in boxed if not flow.graph.depends(x.axis, reduced))
    rows = trips_of(boxed) * itemsize / LINE_NBYTES
    whole = estimate(s.shape[-2 if s is product.operands[0] else -1])
    within = min(1.0, whole / extent)
    return rows * within, rows * (1 - within)
