"""Reductions along different axes of a small tile, which a warp or a block holds in registers.

    x of (.., 32, 16):   m = max(x, 3);  y = x / m;  s = sum(y, 2);  z = y / s

    thread (ty, tx) of 16 by 2 holds 2 rows of 8 neighbours
        max along 3: over its 8 lanes, then the 2 threads along x
        sum along 2: over its 2 rows, then the 16 threads along y

Every element is read and written once, whatever reduces it. Where a tile is a warp's, lanes
exchange by shuffles, and a block has several tiles side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fusewright.core.expr import Int
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import Reduce
from fusewright.fusion.sizes import power_of_two
from fusewright.fusion.small_tiles import MOST_THREADS, is_held
from fusewright.schedule.edits import set_loops
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.candidates import Candidate, Listed, Refused
from fusewright.schedule.heuristics.common import (
    Params,
    by_stride,
    cache_inputs,
    merge_all,
    numel,
    relate,
    split,
    vectorize_accesses,
)
from fusewright.schedule.heuristics.reduction_facts import widest_vectors
from fusewright.schedule.inline import inline_most
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import SMALL_BLOCK

DIMENSIONS = (Parallel.TIDX, Parallel.TIDY, Parallel.TIDZ)


@dataclass(frozen=True, slots=True)
class SmallTiles:
    """Lanes of a vector along the fast side of a tile, threads along each side, the fast one first,
    and tiles of a block side by side."""

    vector: int
    threads: tuple[int, ...]
    tiles: int

    @property
    def candidate(self) -> Candidate[SmallTiles]:
        """The plan with its parameters by name."""
        shape = "x".join(map(str, reversed(self.threads)))
        what = f"{self.tiles} tiles of {shape} threads, vectors of {self.vector}"
        params = Params.of("small_tiles", vector=self.vector, threads=shape, tiles=self.tiles)
        return Candidate(what, params, self)


def may_reduce_different_axes(flow: Dataflow) -> bool:
    """Whether some of a group's reductions run along axes that others keep; those that read inputs
    themselves have axes of their own until these are copied, so that only their sizes tell."""
    first, *others = [s for s in flow.stages if s.is_reduction]
    return any(_may_differ(flow, first, s) for s in others)


def _may_differ(flow: Dataflow, a: Stage, b: Stage) -> bool:
    (x, y), depends = (a.frame, b.frame), flow.graph.depends
    if any(depends(c, y.domain) for c in x.domain):
        pairs = ((x.reduced, y.reduced), (y.reduced, x.reduced))
        return not all(depends(c, q) for p, q in pairs for c in p if c.extent != Int(1))
    assert isinstance(a.op, Reduce)
    assert isinstance(b.op, Reduce)
    return (a.op.axes, a.operands[0].shape) != (b.op.axes, b.operands[0].shape)


class SmallTilesScheduler:
    """Groups whose reductions run along different axes of one tile."""

    def __init__(self, flow: Dataflow) -> None:
        self.flow = flow
        cache_inputs(flow)
        reductions = [s for s in flow.stages if s.is_reduction]
        self._reference = max(reductions, key=lambda s: numel(s.operands[0].shape))
        relate(flow, self._reference)
        order = [x.axis for x in by_stride(flow, self._reference.frame.domain)]
        by: dict[tuple[bool, ...], list[Loop]] = {}
        for x in map(Loop, order):
            if x.axis.extent != Int(1):
                reduces = [flow.graph.depends(x.axis, s.frame.reduced) for s in reductions]
                by.setdefault(tuple(reduces), []).append(x)
        kept = by.pop((False,) * len(reductions), [])
        fast_last = sorted(by.values(), key=lambda own: order.index(own[-1].axis))
        self._kept = merge_all(flow, kept)
        self._sides = [x for own in reversed(fast_last) if (x := merge_all(flow, own)) is not None]

    @property
    def has_sides(self) -> bool:
        """Whether the reductions do run along different axes."""
        return len(self._sides) > 1

    def candidates(self) -> Iterator[Listed[SmallTiles]]:
        """A tile in a warp, if its threads hold it."""
        sizes = [estimate(x.axis.extent) for x in self._sides]
        if not is_held(sizes):
            yield Refused("tiles in registers", f"a tile of {sizes} is more than a warp holds")
            return
        fast, *slow = self._sides
        other = slow[0] if slow else self._kept
        vector = widest_vectors(self.flow, self._reference, other, fast, inner=True).whole
        threads: list[int] = []
        for size, width in zip(sizes, (vector, *(1 for _ in slow)), strict=True):
            along = power_of_two(-(-size // width))
            threads.append(min(along, MOST_THREADS // math.prod(threads)))
        is_open = threads[DIMENSIONS.index(Parallel.TIDZ) :] in ([], [1])
        tiles = SMALL_BLOCK // math.prod(threads) if is_open else 1
        yield SmallTiles(vector, tuple(threads), tiles).candidate

    def apply(self, plan: SmallTiles) -> bool:
        """Binds the loops of a tile to threads, what is left of them to registers."""
        flow = self.flow
        fast, lanes = split(flow, self._sides[0], plan.vector)
        trips: list[Loop] = [Loop(lanes.axis, Parallel.UNROLL)]
        along: list[Loop] = []
        for x, n, kind in zip((fast, *self._sides[1:]), plan.threads, DIMENSIONS, strict=False):
            own, threads = split(flow, x, n)
            trips.insert(0, Loop(own.axis, Parallel.UNROLL))
            if n > 1 or kind is not Parallel.TIDZ:
                along.insert(0, Loop(threads.axis, kind))
        outer: list[Loop] = []
        if self._kept is not None:
            blocks, beside = split(flow, self._kept, plan.tiles)
            outer = [Loop(blocks.axis, Parallel.BIDX)]
            outer += [Loop(beside.axis, Parallel.TIDZ)] if plan.tiles > 1 else []
        set_loops(flow, self._reference, (*outer, *along, *trips))
        transform_like(flow, self._reference, align=True)
        if plan.vector > 1:
            vectorize_accesses(flow, self._reference, [])
        inline_most(flow)
        return True
