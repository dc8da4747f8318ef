"""Products whose depth blocks share: the ways to combine their parts, sums, syncs, rejections."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import fusewright as fw
from fusewright.kir.ir import (
    BoxStore,
    BulkLoad,
    BulkReduce,
    If,
    MbarWait,
    NamedSync,
    RemoteStore,
    SemaphoreAcquire,
    SemaphoreArrive,
    SemaphoreRelease,
)
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.heuristics.matmul import MatmulScheduler, schedule_products
from fusewright.schedule.heuristics.product_plans import ProductPlan
from fusewright.schedule.schedule import ScheduledTensor
from fusewright.target import target_of

M, N = 100, 72
ONE_TILE = (60, 40, 600)
MODES = ("slices", "vector", "tma")


def product(x, w):
    return fw.matmul(x, w)


def wide_product(x, w):
    """The sums of a product, without a rounding."""
    return fw.astype(fw.matmul(x, w), "float32")


def with_bias(x, w, b):
    return fw.nn.relu(fw.matmul(x, w) + b)


def gated(x, w, v):
    return fw.nn.silu(fw.matmul(x, w)) * fw.matmul(x, v)


def split_schedule(
    fn: Callable[..., object],
    splits: int,
    mode: str,
    *,
    shape: tuple[int, int, int] = (M, N, 600),
    batch: int = 0,
    staged: int = 0,
    blocks: int = 0,
    first: int = 1,
    stream: bool = False,
    stages: int = 2,
) -> fw.Schedule:
    """Tiles of 64 x 64, two `stages`, the depth over `splits` blocks; `blocks` such groups walk
    over the tiles, or each tile has one. In mode "clusters" `first` of the blocks make one. In a
    `stream` the blocks of all groups take whole tiles first."""
    m, n, k = shape
    lead = (batch,) if batch else ()
    specs = [fw.TensorSpec((*lead, m, k), "bfloat16"), fw.TensorSpec((*lead, k, n), "bfloat16")]
    if fn is with_bias:
        specs.append(fw.TensorSpec((n,), "bfloat16"))
    if fn is gated:
        specs.append(specs[1])
    s = fw.Schedule(fw.trace(fn, *specs))
    products = MatmulScheduler(s.flow, target_of("sm_90a"))._products
    plan = ProductPlan(
        64, 64, 64, 1, stages, staged, products=len(products), splits=splits, first=first,
        mode="slices" if mode == "clusters" else mode,
        blocks=blocks * splits if stream else blocks, stream=stream,
    )  # fmt: skip
    schedule_products(s, products, plan)
    return s


def checked(s: fw.Schedule, *, seeds: int = 2) -> fw.Kernel:
    """The kernel, after oracle and simulator agree, each time on the same bits."""
    kernel = s.lower()
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal([int(str(e)) for e in t.shape]).astype(fw.bfloat16.numpy)
        for t in s.original.inputs
    ]
    (wanted,) = fw.evaluate(s, *arrays)
    wanted = wanted.astype(np.float64)
    results = [kernel.simulate(*arrays, seed=seed) for seed in range(seeds)]
    for r in results:
        assert r.races == []
        error = np.abs(r.outputs[0].astype(np.float64) - wanted).max()
        assert error <= 2**-7 * np.abs(wanted).max()
        assert r.outputs[0].tobytes() == results[0].outputs[0].tobytes()
    return kernel


@pytest.mark.parametrize("splits", [2, 3, 5])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fn", [product, with_bias])
def test_products_in_every_mode(fn: Callable[..., object], mode: str, splits: int) -> None:
    """Four tiles of the plain product: which of them a group has is another question than what its
    last block does with the sum."""
    shape = (M, N, 600) if fn is product else ONE_TILE
    kernel = checked(split_schedule(fn, splits, mode, shape=shape))
    waits = [s for s in walk_statements(kernel.ir) if isinstance(s, SemaphoreAcquire)]
    assert len(waits) == 1
    assert str(kernel.launch.grid[0]) == str(splits)


@pytest.mark.parametrize("splits", [2, 4, 8])
@pytest.mark.parametrize("fn", [product, with_bias, gated])
def test_blocks_of_a_cluster(fn: Callable[..., object], splits: int) -> None:
    """Parts go to the block that finishes them, and an mbarrier there counts their bytes: the
    warps that multiply meet no others. The last of eight begins behind the end of the depth."""
    rows, columns, _ = shape = (M, N, 600) if fn is product else ONE_TILE
    shape = (rows, columns, 64 * 7 - 40) if splits == 8 else shape
    kernel = checked(split_schedule(fn, splits, "cluster", shape=shape))
    assert kernel.launch.cluster == splits
    assert kernel.ir.semaphores == kernel.ir.scratch == ()
    stores = [s for s in walk_statements(kernel.ir) if isinstance(s, RemoteStore)]
    assert stores and all(s.barrier is not None for s in stores)


@pytest.mark.parametrize("mode", MODES)
def test_more_splits_than_tiles_of_the_depth(mode: str) -> None:
    """The last of 33 parts begins behind the end of the depth, and adds zeros."""
    checked(split_schedule(product, 33, mode, shape=(60, 40, 33 * 64 - 104)), seeds=1)


@pytest.mark.parametrize("mode", MODES)
def test_a_part_behind_the_end_in_blocks_that_walk_over_tiles(mode: str) -> None:
    """Four steps in parts of two, two and none: the third block comes to its turn, too."""
    checked(split_schedule(product, 3, mode, shape=(100, 72, 4 * 64), blocks=2), seeds=1)


@pytest.mark.parametrize("mode", [*MODES, "cluster"])
def test_batches(mode: str) -> None:
    checked(split_schedule(product, 2, mode, batch=3), seeds=1)


@pytest.mark.parametrize("mode", ["vector", "slices"])
def test_gated_pairs_hand_over_both_sums(mode: str) -> None:
    kernel = checked(split_schedule(gated, 2, mode, shape=(64, 64, 256)), seeds=1)
    assert len(kernel.ir.semaphores) == len(kernel.ir.scratch) == 2


@pytest.mark.parametrize("fn", [with_bias, gated])
def test_the_copy_engine_brings_the_sum_back(fn: Callable[..., object]) -> None:
    """Only the last block gets it, once a tile, on an mbarrier that is made when it begins."""
    n, shape = (2, (64, 64, 256)) if fn is gated else (3, (100, 72, 600))
    kernel = checked(split_schedule(fn, n, "tma+bulk", shape=shape, blocks=0 if fn is gated else 2))
    loads = [s for s in walk_statements(kernel.ir) if isinstance(s, BulkLoad)]
    sums = len(kernel.ir.scratch)
    assert len(loads) == sums == (2 if fn is gated else 1)
    assert [s.src for s in loads] == list(kernel.ir.scratch)
    waits = {s.parity for s in walk_statements(kernel.ir) if isinstance(s, MbarWait)
             and s.barrier in {x.barrier for x in loads}}  # fmt: skip
    assert {str(p) for p in waits} == ({"0"} if fn is gated else {"i0"})


@pytest.mark.parametrize("mode", ["vector", "tma"])
def test_the_last_block_alone_stores_boxes(mode: str) -> None:
    kernel = checked(split_schedule(with_bias, 3, mode, staged=64), seeds=1)
    branches = [s for s in walk_statements(kernel.ir) if isinstance(s, If)]
    stores = [b for b in branches if any(isinstance(s, BoxStore) for s in b.then)]
    assert [str(b.condition) for b in stores] == ["bx == 2"]


@pytest.mark.parametrize("mode", MODES)
def test_no_sync_is_missing_or_redundant(mode: str) -> None:
    """Two tiles of three splits."""
    report = fw.verify(split_schedule(product, 3, mode, shape=(64, 128, 1000)).lower())
    assert report.ok, str(report)
    kinds = {s.kind for s in report.necessary}
    wanted = {"SemaphoreAcquire"}
    wanted |= {"SemaphoreArrive", "SemaphoreLeave"} if mode == "slices" else {"SemaphoreRelease"}
    assert kinds >= wanted


def test_no_sync_of_a_cluster_is_missing_or_redundant() -> None:
    report = fw.verify(split_schedule(with_bias, 2, "cluster", shape=(64, 128, 600)).lower())
    assert report.ok, str(report)
    kinds = {s.kind for s in report.necessary}
    assert {"ClusterArrive", "ClusterWait", "MbarExpect", "MbarWait"} <= kinds


def test_warps_that_multiply_meet_at_named_barriers() -> None:
    """The warps that copy do not wait for other blocks."""
    kernel = split_schedule(product, 3, "slices").lower()
    arrives = [s for s in walk_statements(kernel.ir) if isinstance(s, SemaphoreArrive)]
    assert [a.issuer for a in arrives] == [0]
    named = [s for s in walk_statements(kernel.ir) if isinstance(s, NamedSync)]
    assert {s.nthreads for s in named} == {128}


def test_parts_are_whole_vectors_side_by_side() -> None:
    kernel = split_schedule(product, 3, "slices").lower()
    assert re.search(r"_work\[4096\*bx \+ 12288\*by \+ 512\*\w+ \+ 4\*tx\] = ", str(kernel.ir))


def test_the_copy_engine_adds_parts_of_products() -> None:
    kernel = split_schedule(product, 3, "tma").lower()
    adds = [s for s in walk_statements(kernel.ir) if isinstance(s, BulkReduce)]
    assert [s.fn for s in adds] == ["add"]
    releases = [s for s in walk_statements(kernel.ir) if isinstance(s, SemaphoreRelease)]
    assert [str(r.value) for r in releases] == ["(bx + 1)%3"]


def test_machine_code_of_every_mode() -> None:
    for mode in (*MODES, "cluster"):
        found = split_schedule(with_bias, 4, mode).lower().resources()
        assert found.spill_stores == found.stack_nbytes == 0


def test_public_calls_ask_for_a_split() -> None:
    s = fw.Schedule(
        fw.trace(product, *(fw.TensorSpec(x, "bfloat16") for x in ((M, 512), (512, N))))
    )
    y = s.outputs[0].cache_before()
    y.split(0, 64).split(2, 64).split(4, 64).reorder([0, 2, 4, 1, 3, 5])
    y.split(2, 2, inner=False).parallelize(2, fw.BIDx).request_serial_grid_reduction("slices")
    assert y.stage.grid_mode == "slices"


def test_a_product_over_blocks_wants_a_request() -> None:
    s = split_schedule(product, 3, "slices")
    asked = next(t.stage for t in s.tensors if t.stage.grid_mode is not None)
    asked.grid_mode = None
    with pytest.raises(fw.ScheduleError, match=r"reduces over BIDx; blocks combine their sums"):
        s.lower()


def test_slices_leave_no_whole_tile_in_shared_memory() -> None:
    with pytest.raises(fw.ScheduleError, match="leaves each its own share of it"):
        split_schedule(product, 3, "slices", staged=64).lower()


def test_a_request_on_a_product_that_blocks_do_not_share() -> None:
    s = split_schedule(product, 1, "slices")
    asked = ScheduledTensor(s, next(t.stage for t in s.tensors if t.stage.is_mma))
    asked.request_serial_grid_reduction("slices")
    with pytest.raises(fw.ScheduleError, match="none of its reducing loops is bound to BIDx"):
        s.lower()


def test_blocks_of_a_cluster_that_do_not_share_equally() -> None:
    with pytest.raises(fw.ScheduleError, match="3 blocks of a cluster do not finish equal shares"):
        split_schedule(product, 3, "cluster").lower()


def test_blocks_of_a_cluster_with_several_tiles() -> None:
    s = split_schedule(product, 2, "cluster")
    for t in s.tensors:
        loops = t.stage.loops
        if loops and loops[0].parallel is fw.BIDx and not t.stage.is_input:
            t.parallelize(0, fw.Serial)
    with pytest.raises(fw.ScheduleError, match=r"loop 0 runs over 4 tiles of a block"):
        s.lower()


@pytest.mark.parametrize(("trips", "barriers"), [(2, 2), (3, 1)])
def test_a_loop_of_more_trips_than_its_ring_has_stages_is_a_barrier(
    trips: int, barriers: int
) -> None:
    """Two tiles one after the other: a warp that fills the part of the second waited for operands
    that were copied behind arrivals of all warps, if the ring wrapped, so that the thread which
    waited for the copy engine is done. With two trips for two stages nobody waited for others."""
    kernel = checked(split_schedule(product, 3, "tma", shape=(M, 64, 192 * trips), blocks=1))
    assert sum(s.kind == "NamedSync" for s in kernel.syncs) == barriers
    report = fw.verify(kernel)
    assert (report.missing, report.redundant) == ([], [])
