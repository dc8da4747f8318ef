"""Products whose blocks stand in clusters: they copy for each other what they all multiply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.expr import variables
from fusewright.fusion.ir import MatMul
from fusewright.kir.ir import BoxLoad, MbarArrive, MbarExpect, MbarInit
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.cost import cost
from fusewright.schedule.heuristics.matmul import (
    MatmulScheduler,
    by_tiles,
    schedule_products,
    sizes_of_product,
)
from fusewright.schedule.heuristics.product_plans import ProductPlan, ProductSizes
from fusewright.schedule.heuristics.product_steps import step_clocks
from fusewright.schedule.heuristics.product_times import step_of
from fusewright.schedule.heuristics.work import work_of
from fusewright.target import target_of

TARGET = target_of("sm_90a")
BELOW, BESIDE = (2, 1), (1, 2)


def plain(x: Any, w: Any) -> Any:
    return fw.matmul(x, w.T)


def gelu(x: Any, w: Any) -> Any:
    return fw.nn.gelu(fw.matmul(x, w))


def product_of(
    fn: Callable[..., Any], m: Any, n: int, k: int, dtype: str = "bfloat16"
) -> fw.Fusion:
    second = (n, k) if fn is plain else (k, n)
    return fw.trace(fn, fw.TensorSpec((m, k), dtype), fw.TensorSpec(second, dtype))


def scheduled(fusion: fw.Fusion, plan: ProductPlan) -> fw.Schedule:
    s = fw.Schedule(fusion)
    schedule_products(s, [t for t in s.flow.stages if isinstance(t.op, MatMul)], plan)
    return s


def arrays_of(fusion: fw.Fusion, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = [tuple(int(str(e)) for e in t.shape) for t in fusion.inputs]
    return [
        rng.normal(size=s).astype(t.dtype.numpy) for s, t in zip(shapes, fusion.inputs, strict=True)
    ]


def assert_right(fusion: fw.Fusion, kernel: fw.Kernel) -> None:
    arrays = arrays_of(fusion)
    result = kernel.simulate(*arrays)
    assert result.races == []
    (wanted,) = (y.astype(np.float64) for y in fw.evaluate(fusion, *arrays))
    error = np.abs(result.outputs[0].astype(np.float64) - wanted).max()
    assert error <= 2**-7 * np.abs(wanted).max()


def _boxes(kernel: fw.Kernel) -> dict[str, BoxLoad]:
    loads = (s for s in walk_statements(kernel.ir) if isinstance(s, BoxLoad))
    return {s.map.buffer.name: s for s in loads}


# --- kernels --------------------------------------------------------------------------------------

CASES = (
    (plain, (256, 128, 320), ProductPlan(64, 64, 64, 1, 2, 64, blocks=2, cluster=BELOW)),
    (plain, (128, 256, 320), ProductPlan(64, 64, 64, 1, 3, 0, blocks=2, cluster=BESIDE)),
    (plain, (300, 136, 200), ProductPlan(64, 64, 64, 1, 2, 64, blocks=4, cluster=BELOW)),
    (plain, (129, 168, 200), ProductPlan(64, 64, 64, 1, 2, group=2, cluster=BESIDE)),
    (plain, (500, 264, 136), ProductPlan(128, 128, 64, 2, 2, 64, blocks=2, cluster=BELOW)),
    (plain, (256, 64, 320), ProductPlan(64, 64, 64, 1, 3, 64, cluster=(4, 1))),
    (plain, (384, 128, 64), ProductPlan(64, 64, 64, 1, 2, 64, cluster=BELOW)),
    (plain, (130, 280, 200), ProductPlan(64, 272, 64, 1, 2, 0, cluster=BELOW)),
    (gelu, (200, 200, 328), ProductPlan(64, 64, 64, 1, 2, 64, blocks=2, cluster=BELOW)),
    (gelu, (200, 200, 328), ProductPlan(64, 64, 64, 1, 2, 64, group=2, cluster=BESIDE)),
)  # fmt: skip


def named(x: Any) -> str:
    return x.__name__ if callable(x) else str(x)


@pytest.mark.parametrize(("fn", "sizes", "plan"), CASES, ids=named)
def test_values(fn: Callable[..., Any], sizes: tuple[int, int, int], plan: ProductPlan) -> None:
    fusion = product_of(fn, *sizes)
    kernel = scheduled(fusion, plan).lower("sm_90a")
    assert kernel.launch.cluster == plan.cluster_size
    assert any(b.blocks == plan.cluster_size for b in _boxes(kernel).values())
    assert_right(fusion, kernel)


@pytest.mark.parametrize(
    ("sizes", "plan"),
    [
        ((128, 128, 192), ProductPlan(64, 64, 64, 1, 2, 0, blocks=2, cluster=BELOW)),
        ((128, 136, 136), ProductPlan(64, 64, 64, 1, 2, 64, blocks=2, cluster=BESIDE)),
    ],
    ids=str,
)
def test_every_sync_is_needed(sizes: tuple[int, int, int], plan: ProductPlan) -> None:
    """Two tiles a block or more, more trips than stages, and a ragged edge."""
    fusion = product_of(plain, *sizes)
    kernel = scheduled(fusion, plan).lower("sm_90a")
    report = fw.verify(kernel, *arrays_of(fusion))
    assert report.ok, str(report)
    kinds = [s.kind for s in kernel.syncs]
    assert (kinds.count("ClusterArrive"), kinds.count("ClusterWait")) == (2, 2)
    assert kinds[-1] == "ClusterWait"


@pytest.mark.parametrize("depth", [128, 192])
def test_blocks_meet_at_the_end_where_they_hand_back_what_others_fill(depth: int) -> None:
    """Of two steps in a ring of two nothing is handed back: a block has waited for all that others
    send it. Of three one slot is, and who hands it back writes to a block that has to be there."""
    plan = ProductPlan(64, 64, 64, 1, 2, 64, cluster=BELOW)
    fusion = product_of(plain, 128, 64, depth)
    kernel = scheduled(fusion, plan).lower("sm_90a")
    report = fw.verify(kernel, *arrays_of(fusion))
    assert report.ok and not report.redundant, str(report)
    assert [s.kind for s in kernel.syncs].count("ClusterWait") == (1 if depth == 128 else 2)


def test_what_blocks_copy_and_count() -> None:
    plan = ProductPlan(128, 128, 64, 2, 3, 64, blocks=2, cluster=BELOW)
    kernel = scheduled(product_of(plain, 512, 128, 512), plan).lower("sm_90a")
    x, w = (_boxes(kernel)[name] for name in ("x", "w"))
    (cx,) = (d.var for d in kernel.ir.cluster)
    assert (x.blocks, w.blocks) == (1, 2)
    assert (x.map.box, w.map.box) == ((64, 128), (64, 64))
    assert [cx in variables(b.index) for b in (x, w)] == [False, True]
    found = list(walk_statements(kernel.ir))
    counts = {s.barrier.name: s.count for s in found if isinstance(s, MbarInit)}
    assert counts == {"ring_full": 1, "ring_empty": 16}
    assert {s.nbytes for s in found if isinstance(s, MbarExpect)} == {2 * 64 * (128 + 128)}
    ranks = [str(s.rank) for s in found if isinstance(s, MbarArrive)]
    assert sorted(ranks) == ["0", "0", "1", "1"]


def test_traffic_of_the_operand_that_blocks_share_falls() -> None:
    """Of a tile of 64 x 64, 64 deep, a block copies 64 rows and 32 columns, and not 64 columns."""
    fusion = product_of(plain, 256, 64, 256)
    read = {}
    for cluster in ((1, 1), BELOW, (4, 1)):
        plan = ProductPlan(64, 64, 64, 1, 2, 64, cluster=cluster)
        stats = scheduled(fusion, plan).lower("sm_90a").simulate(*arrays_of(fusion)).stats
        read[cluster] = stats["global_bytes_read"]
    whole = 2 * 256 * 256
    assert read == {(1, 1): 2 * whole, BELOW: whole + whole // 2, (4, 1): whole + whole // 4}


def test_symbolic_rows_make_whole_clusters() -> None:
    plan = ProductPlan(64, 64, 64, 1, 2, 64, cluster=BELOW)
    fusion = product_of(plain, "m", 64, 128)
    kernel = scheduled(fusion, plan).lower("sm_90a")
    assert str(kernel.launch.grid[0]) == "2*((m + 127)//128)"


def test_machine_code_has_no_spills_and_no_serialised_products() -> None:
    plan = ProductPlan(128, 256, 64, 2, 4, 128, group=8, blocks=132, cluster=BELOW)
    kernel = scheduled(product_of(plain, 4096, 4096, 4096), plan).lower("sm_90a")
    found = kernel.resources()
    assert (found.registers, found.spill_stores, found.stack_nbytes) == (168, 0, 0)
    assert found.warnings == ()
    assert ".multicast::cluster" in kernel.cuda


# --- what cannot be -------------------------------------------------------------------------------


def test_launch_names_the_cluster_that_loops_make() -> None:
    plan = ProductPlan(64, 64, 64, 1, 2, 64, cluster=BELOW)
    fusion = product_of(plain, 256, 64, 128)
    assert scheduled(fusion, plan).launch(cluster=2).lower("sm_90a").launch.cluster == 2
    with pytest.raises(fw.ScheduleError, match=r"launch\(cluster=4\), but .* clusters of 2"):
        scheduled(fusion, plan).launch(cluster=4).lower("sm_90a")


def test_grids_of_fewer_blocks_are_whole_clusters() -> None:
    plan = ProductPlan(64, 64, 64, 1, 2, 64, cluster=BELOW)
    fusion = product_of(plain, 512, 128, 128)
    kernel = scheduled(fusion, plan).launch(max_sms=7).lower("sm_90a")
    assert (str(kernel.launch.grid[0]), kernel.launch.cluster) == ("6", 2)
    assert_right(fusion, kernel)
    with pytest.raises(fw.ScheduleError, match="stand in clusters of 2, which run together; let"):
        scheduled(fusion, plan).launch(max_sms=1)


def test_operands_without_a_ring_are_copied_by_each_block() -> None:
    plan = ProductPlan(64, 64, 64, 1, 1, 64, cluster=BELOW)
    fusion = product_of(plain, 128, 64, 64)
    kernel = scheduled(fusion, plan).lower("sm_90a")
    assert {b.blocks for b in _boxes(kernel).values()} == {1}
    assert_right(fusion, kernel)


@pytest.mark.parametrize("mode", ["slices", "vector", "tma"])
def test_blocks_of_clusters_of_tiles_hand_over(mode: str) -> None:
    """Each to those of its rank in other clusters, which have parts of the same tile."""
    s = fw.Schedule(product_of(fw.matmul, 256, 128, 256))
    product = s.outputs[0].cache_before()
    x, w, y = (s.inputs[0].cache_after(by="bulk"), s.inputs[1].cache_after(by="bulk"), s.outputs[0])
    by_tiles(product, (64, 64, 64), 1, cluster=BELOW)
    product.split(2, 2, inner=False).parallelize(0, fw.BIDy).parallelize(1, fw.ClusterX)
    product.parallelize(2, fw.BIDx).request_serial_grid_reduction(mode)
    s.transform_like(product, [x, w]).transform_like(product.mma(1), [y])
    for t in (x, w):
        t.parallelize(-1, fw.Bulk).parallelize(-2, fw.Bulk)
        t.circular_buffer(2, warp_specialized=True).inline_at(product, 4)
    s.inline_most([y])
    product.inline_at(y, 2)
    kernel = s.lower("sm_90a")
    assert kernel.launch.cluster == 2 and len(kernel.ir.semaphores) == 1
    assert {b.blocks for b in _boxes(kernel).values()} == {1, 2}
    assert_right(s.original, kernel)
    report = fw.verify(kernel)
    assert report.ok, str(report)


# --- plans ----------------------------------------------------------------------------------------


def _listed(fusion: fw.Fusion) -> list[ProductPlan]:
    scheduler = MatmulScheduler(fw.Schedule(fusion).flow, TARGET)
    return [c.plan for c in scheduler.candidates() if isinstance(c, Candidate)]


def test_clusters_come_first_only_where_they_clearly_gain() -> None:
    """Rows of 8,208 bytes begin inside of lines, so that each row of a box is asked for twice."""
    for shape in ((4096, 4096, 4096), (8192, 8192, 8192), (256, 4096, 4096), (4096, 16, 4096)):
        assert _listed(product_of(plain, *shape))[0].cluster == (1, 1)
    first = _listed(product_of(plain, 4097, 4104, 4104))[0]
    assert first.cluster in (BELOW, BESIDE) and first.blocks == 132
    assert ("cluster", "x".join(map(str, first.cluster))) in first.params.values


def test_every_tile_is_a_candidate_in_clusters() -> None:
    plans = _listed(product_of(plain, 4096, 4096, 4096))
    assert {p.cluster for p in plans} == {(1, 1), BELOW, BESIDE}
    wide = [p for p in plans if (p.rows, p.columns) == (128, 256)]
    assert [(p.cluster, p.blocks, p.group) for p in wide] == [
        ((1, 1), 132, 16),
        (BELOW, 132, 8),
        (BESIDE, 132, 16),
    ]


def test_clusters_share_depths_where_all_run_at_once() -> None:
    plans = _listed(product_of(plain, 64, 4096, 28672))
    shared = [p for p in plans if p.mode == "cluster"]
    assert {(p.rows, p.columns, p.splits) for p in shared} >= {(64, 64, 2), (64, 256, 4)}
    assert all(
        p.tiles(ProductSizes(1, 64, 4096, 28672)) <= TARGET.clusters_at_once(p.splits)
        for p in shared
    )
    assert all(p.blocks_together == p.splits and not p.staged for p in shared)


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (4096, 4096, 4104)])
def test_blocks_of_a_cluster_ask_for_fewer_lines(shape: tuple[int, int, int]) -> None:
    """What both models see of it: less time for boxes, more until the blocks have met."""
    fusion = product_of(plain, *shape)
    plans = [p for p in _listed(fusion) if (p.rows, p.columns) == (128, 256)]
    alone, together = (next(p for p in plans if p.cluster == c) for c in ((1, 1), BELOW))
    product = next(t for t in fw.Schedule(fusion).flow.stages if isinstance(t.op, MatMul))
    steps = [step_of(sizes_of_product(product), p) for p in (alone, together)]
    assert steps[0].received == steps[1].received == steps[0].requested
    assert steps[1].requested == pytest.approx(2 / 3 * steps[0].requested)
    for p, step in zip((alone, together), steps, strict=True):
        work = work_of(scheduled(fusion, p).flow, Params("matmul", (), 1))
        assert work.product is not None and work.product.step == step
        boxes = dict(cost(work, TARGET).parts)["boxes"]
        clocks = step_clocks(step, 1.0, TARGET).boxes
        assert boxes == pytest.approx(work.product.steps * clocks / TARGET.clock_mhz)


def test_grids_are_whole_clusters_that_run_at_once() -> None:
    assert [TARGET.clusters_at_once(n) for n in (1, 2, 4, 8)] == [132, 66, 28, 14]
    plan = ProductPlan(128, 256, 64, 2, 4, 128, group=8, blocks=132, cluster=BELOW)
    kernel = scheduled(product_of(plain, 4096, 4096, 512), plan).lower("sm_90a")
    assert (str(kernel.launch.grid[0]), kernel.launch.cluster) == ("132", 2)


def test_tiles_of_odd_numbers_are_filled_up() -> None:
    plan = ProductPlan(128, 128, 64, 2, 2, cluster=BELOW)
    product = next(
        t
        for t in fw.Schedule(product_of(plain, 300, 200, 64)).flow.stages
        if isinstance(t.op, MatMul)
    )
    assert plan.tiles(sizes_of_product(product)) == 4 * 2
