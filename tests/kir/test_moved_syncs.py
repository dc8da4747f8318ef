"""Every sync stands where it must: moved to the wrong side of an access that it orders, the pair is
reported, by the static check and by the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from random_sync_kernels import Shape, random_kernel

from fusewright.core.node import rewrite
from fusewright.kir.analysis.hazards import hazards, unordered
from fusewright.kir.analysis.order import (
    Hazard,
    SyncPoint,
    gap_position,
    orders,
    sync_id,
    sync_points,
)
from fusewright.kir.analysis.sites import Path, Site
from fusewright.kir.ir import Kernel
from fusewright.kir.passes.pack_shared import pack_shared
from fusewright.kir.passes.place_syncs import Placement, insert_syncs, place_syncs
from fusewright.kir.passes.prune_syncs import prune_syncs
from fusewright.sim.verify import Case, verify_kernel
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def pairs_of_its_own(k: Kernel) -> Iterator[tuple[Site, SyncPoint, Hazard]]:
    """Every sync with the pairs, certain and in one iteration, that no other sync orders."""
    points = sync_points(k)
    for h in hazards(k):
        by = [(site, point) for site, point in points if orders(point, h)]
        if len(by) == 1 and h.carried is None and h.example is not None:
            yield *by[0], h


def wrong_sides(site: Site, h: Hazard) -> Iterator[int]:
    """Gaps of the sync's own body before the first access and behind the second."""
    body = site.path[:-1]
    before, after = (p[len(body)] if p[: len(body)] == body else None for p in (h.before, h.after))
    if before is not None:
        yield before
    if after is not None:
        yield after + 1


def moved(k: Kernel, site: Site, point: SyncPoint, gap: int) -> Kernel:
    """The kernel with the sync in another gap of its body."""
    body: Path = site.path[:-1]
    at = gap_position(body, gap)
    placement = Placement(body, gap, replace(point, position=at, since=at), "moved")
    old = site.statement
    return rewrite(insert_syncs(k, [placement]), lambda n: () if n is old else n)


def carried_pairs(k: Kernel) -> Iterator[tuple[Site, SyncPoint, Hazard, Path]]:
    """Every sync with the pairs that a loop carries and no other sync orders."""
    points = sync_points(k)
    for h in hazards(k):
        by = [(site, point) for site, point in points if orders(point, h)]
        if len(by) == 1 and h.carried is not None and h.example is not None:
            yield *by[0], h, h.carried


def assert_carried_moves_are_reported(seed: int, shape: Shape) -> int:
    """Moves every sync that a loop needs in front of the loop and behind it; how many moves."""
    k = random_kernel(seed, shape)
    k = prune_syncs(pack_shared(place_syncs(k, TARGET), TARGET), TARGET)
    if unordered(k):
        return 0
    seen: set[tuple[int, Path, int]] = set()
    for site, point, h, loop in carried_pairs(k):
        for gap in (loop[-1], loop[-1] + 1):
            if (sync_id(site), loop, gap) in seen:
                continue
            seen.add((sync_id(site), loop, gap))
            at = gap_position(loop[:-1], gap)
            outside = replace(point, position=at, since=at)
            old = site.statement
            placed = insert_syncs(k, [Placement(loop[:-1], gap, outside, "moved")])
            wrong = rewrite(placed, lambda n, old=old: () if n is old else n)
            assert unordered(wrong), (seed, sync_id(site), str(h))
            x = np.arange(64, dtype=np.float32)
            arrays = dict(zip(wrong.params, (x, np.zeros(64, np.float32)), strict=True))
            report = verify_kernel(wrong, Case(arrays, outputs=(wrong.params[1],)))
            assert report.missing, (seed, sync_id(site), str(h))
    return len(seen)


def test_syncs_moved_out_of_their_loop_are_reported() -> None:
    shape = Shape(has_branches=False, statements=12)
    assert sum(assert_carried_moves_are_reported(seed, shape) for seed in range(16)) > 20


def assert_moves_are_reported(seed: int, shape: Shape) -> int:
    """Moves every sync of a random kernel to both wrong sides; how many moves were made."""
    k = random_kernel(seed, shape)
    k = prune_syncs(pack_shared(place_syncs(k, TARGET), TARGET), TARGET)
    if unordered(k):  # threads that collide within one statement, which no sync orders
        return 0
    seen: set[tuple[int, int]] = set()
    for site, point, h in pairs_of_its_own(k):
        for gap in wrong_sides(site, h):
            if (sync_id(site), gap) in seen:
                continue
            seen.add((sync_id(site), gap))
            wrong = moved(k, site, point, gap)
            assert unordered(wrong), (seed, sync_id(site), str(h))
            x = np.arange(64, dtype=np.float32)
            arrays = dict(zip(wrong.params, (x, np.zeros(64, np.float32)), strict=True))
            report = verify_kernel(wrong, Case(arrays, outputs=(wrong.params[1],)))
            assert report.missing, (seed, sync_id(site), str(h))
    return len(seen)


def test_moved_syncs_are_reported() -> None:
    assert (
        sum(assert_moves_are_reported(seed, Shape(has_branches=False)) for seed in range(12)) > 25
    )


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(0, 1000, 100))
def test_many_moved_syncs_are_reported(start: int) -> None:
    for seed in range(start, start + 100):
        assert_moves_are_reported(
            seed, Shape(buffers=2 + seed % 5, statements=6 + seed % 14, has_branches=False)
        )
