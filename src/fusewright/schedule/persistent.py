"""Grids of fewer blocks than there are tiles: each block walks over several."""

from __future__ import annotations

import math

from fusewright.core.expr import constant_value
from fusewright.errors import ScheduleError, UnsupportedError
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import GRID_DIMS, Loop, Parallel


def walk_over_tiles(flow: Dataflow, blocks: int) -> None:
    """Let at most so many blocks compute the tiles of a product, each several in turn.

    rewrite:  [BIDx{tiles}, ..]  ->  [Serial{ceil(tiles / blocks)}, BIDx{blocks}, ..]  in all stages
    checks:   a matrix instruction computes a stage; one loop over tiles, or over clusters of them,
              is bound to BIDx, at the same place of all stages, and no block walks over tiles yet
    """
    asked = f"launch(max_sms={blocks})"
    stages = computed(flow.stages)
    product = next((s for s in stages if s.is_mma), None)
    if product is None:
        raise UnsupportedError(
            f"{asked}: only blocks of products on matrix instructions walk over tiles, whose rings "
            "live on from one to the next; bind a split of a serial loop to BIDx instead"
        )
    at = _bound(product, asked)
    if at and product.loops[0].parallel.is_serial:
        raise ScheduleError(
            f"{asked}: the {product.loops[at].axis.extent} blocks of {product.name} walk over "
            f"tiles already; split the loop over tiles by {blocks} instead"
        )
    apart = [s.name for s in stages if s.loops[at : at + 1] != (product.loops[at],)]
    if apart:
        raise ScheduleError(
            f"{asked}: {', '.join(apart)} lacks the loop of {product.name} over tiles; call "
            "transform_like first"
        )
    clusters = blocks // (size := _cluster_size(product))
    if not clusters:
        raise ScheduleError(
            f"{asked}: the blocks of {product.name} stand in clusters of {size}, which run "
            f"together; let at least {size} run"
        )
    tiles = product.loops[at].axis
    count = constant_value(tiles.extent)
    if count is not None and count <= clusters:
        return
    outer, inner = flow.graph.split(tiles, clusters)
    for s in stages:
        loops = (Loop(outer), Loop(inner, Parallel.BIDX))
        s.loops = (*s.loops[:at], *loops, *s.loops[at + 1 :])
        s.inline_depth += s.inline_depth > at


def _cluster_size(product: Stage) -> int:
    """The blocks of a cluster, 1 where there are none."""
    loops = (x for x in product.loops if x.parallel is Parallel.CLUSTERX)
    return math.prod(constant_value(x.axis.extent) or 1 for x in loops)


def _bound(product: Stage, asked: str) -> int:
    """The place of the one loop that is bound to the grid."""
    found = [i for i, x in enumerate(product.loops) if x.parallel in GRID_DIMS]
    if len(found) == 1 and product.loops[found[0]].parallel is Parallel.BIDX:
        return found[0]
    raise ScheduleError(
        f"{asked}: {len(found)} loops of {product.name} are bound to blocks; merge the loops over "
        "tiles and bind the merged one to BIDx first"
    )
