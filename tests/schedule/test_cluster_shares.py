"""Reductions that the blocks of a cluster share out: schedules, sums, syncs, machine code,
rejections."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fusewright as fw
from fusewright.dtypes import dtype_of
from fusewright.kir.ir import If, RemoteStore
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.heuristics.matmul import MatmulScheduler, schedule_products
from fusewright.schedule.heuristics.product_plans import ProductPlan
from fusewright.target import target_of

ROWS, COLUMNS = 99, 512


def total(x):
    return fw.sum(x, axis=0)


def total_and_more(x):
    return fw.exp(fw.sum(x, axis=0) * 0.1) - 1


def largest(x):
    return fw.max(x, axis=0)


def columns_in_clusters(
    fn: Callable[..., object],
    nblocks: int,
    *,
    shape: tuple[int, int] = (ROWS, COLUMNS),
    width: int = 4,
    dtype: str = "float32",
    mode: str | None = "slices",
    bound: object = fw.ClusterX,
    clusters: int = 1,
) -> fw.Schedule:
    """Columns over threads and vectors, rows over the blocks of a cluster, or over `bound`, or over
    several clusters and the blocks of each."""
    if clusters > 1:
        return _columns_in_several(fn, nblocks, clusters, shape, width)
    s = fw.Schedule(fw.trace(fn, fw.TensorSpec(shape, dtype)))
    kept = fw.BIDy if bound is fw.BIDx else fw.BIDx
    for t in s.tensors:
        if t.stage.is_input or t.stage.is_virtual:
            continue
        if t.stage.is_reduction:
            t.split(1, -(-shape[0] // nblocks))
        t.split(0, width).split(0, 32)
        t.parallelize(0, kept).parallelize(1, fw.TIDx).parallelize(2, fw.Vectorize)
        if t.stage.is_reduction:
            t.parallelize(3, bound).reorder({3: 1, 4: 2})
            if mode is not None:
                t.request_serial_grid_reduction(mode)
    return s


def _columns_in_several(
    fn: Callable[..., object], nblocks: int, clusters: int, shape: tuple[int, int], width: int
) -> fw.Schedule:
    s = fw.Schedule(fw.trace(fn, fw.TensorSpec(shape, "float32")))
    for t in s.tensors:
        if t.stage.is_input or t.stage.is_virtual:
            continue
        if t.stage.is_reduction:
            t.split(1, clusters, inner=False).split(2, nblocks, inner=False)
        t.split(0, width).split(0, 32)
        t.parallelize(0, fw.BIDy).parallelize(1, fw.TIDx).parallelize(2, fw.Vectorize)
        if t.stage.is_reduction:
            t.parallelize(3, fw.BIDx).parallelize(4, fw.ClusterX).reorder({3: 1, 4: 2, 5: 3})
            t.request_serial_grid_reduction("slices")
    return s


def full_sum(nblocks: int) -> fw.Schedule:
    """All elements: by a block of threads each, then by the blocks of a cluster."""
    s = fw.Schedule(fw.trace(lambda x: fw.sum(x), fw.TensorSpec((nblocks * 640,), "float32")))
    t = s.outputs[0]
    t.split(0, 640).split(1, 64)
    t.parallelize(0, fw.ClusterX)
    part = t.rfactor([1, 2])
    part.parallelize(2, fw.TIDx)
    s.transform_like(part).inline_most()
    t.request_serial_grid_reduction("slices")
    return s


def several_sums() -> fw.Schedule:
    """A block has two tiles of columns, one after the other."""
    s = fw.Schedule(fw.trace(total, fw.TensorSpec((12, 256), "float32")))
    t = s.outputs[0]
    t.split(1, 4).split(0, 4).split(0, 32).reorder([0, 3, 4, 1, 2])
    t.parallelize(1, fw.ClusterX).parallelize(3, fw.TIDx).parallelize(4, fw.Vectorize)
    t.request_serial_grid_reduction("slices")
    return s


def checked(s: fw.Schedule, *, tolerance: float = 2e-5) -> fw.Kernel:
    """The kernel, after oracle and simulator agree, each seed on the same bits; every sync is
    needed, and none is missing."""
    kernel = s.lower("sm_90a")
    rng = np.random.default_rng(len(str(kernel.ir)))
    (x,) = s.original.inputs
    array = rng.integers(-40, 40, [int(str(e)) for e in x.shape]) / 8
    array = array.astype(x.dtype.numpy)
    (wanted,) = fw.evaluate(s, array)
    results = [kernel.simulate(array, seed=seed) for seed in range(2)]
    for r in results:
        assert r.races == []
        np.testing.assert_allclose(
            r.outputs[0].astype(np.float64),
            wanted.astype(np.float64),
            rtol=tolerance,
            atol=tolerance,
        )
        assert r.outputs[0].tobytes() == results[0].outputs[0].tobytes()
    report = fw.verify(kernel, array)
    assert report.ok, str(report)
    assert len(report.necessary) == len(kernel.syncs) > 0
    return kernel


@pytest.mark.parametrize("nblocks", [2, 3, 5, 8])
@pytest.mark.parametrize("fn", [total, total_and_more, largest])
def test_columns(fn: Callable[..., object], nblocks: int) -> None:
    kernel = checked(columns_in_clusters(fn, nblocks))
    assert kernel.launch.cluster == nblocks
    assert kernel.ir.semaphores == kernel.ir.scratch == ()


@pytest.mark.parametrize(("columns", "width"), [(70, 1), (72, 2), (260, 4), (1024, 8)])
def test_tiles_that_no_column_fills(columns: int, width: int) -> None:
    checked(columns_in_clusters(total, 4, shape=(13, columns), width=width))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "float64", "int8"])
def test_types(dtype: str) -> None:
    fn = largest if dtype.startswith("int") else total  # a sum of integers widens them first
    s = columns_in_clusters(fn, 3, shape=(20, 128), dtype=dtype)
    kernel = checked(s, tolerance=0.05 if dtype_of(dtype).nbytes == 2 else 1e-6)
    (sent,) = {b.dst.dtype for b in walk_statements(kernel.ir) if isinstance(b, RemoteStore)}
    assert sent is dtype_of(dtype).compute


@pytest.mark.parametrize("make", [several_sums, lambda: full_sum(2), lambda: full_sum(5)])
def test_other_shapes(make: Callable[[], fw.Schedule]) -> None:
    checked(make())


def test_a_part_goes_to_one_block_only() -> None:
    """As a whole vector; where all blocks have the result, each element is stored in all."""

    def widths(mode: str | None) -> list[int]:
        kernel = columns_in_clusters(total, 4, mode=mode).lower("sm_90a")
        return [s.width for s in walk_statements(kernel.ir) if isinstance(s, RemoteStore)]

    assert widths("slices") == [4]
    assert widths(None) == [1] * 16


def test_each_block_runs_what_follows_on_its_share() -> None:
    kernel = columns_in_clusters(total_and_more, 4).lower("sm_90a")
    (branch,) = (s for s in walk_statements(kernel.ir) if isinstance(s, If))
    assert str(branch.condition) == "8*cx < tx + 1 && tx < 8*cx + 8"
    assert "if (8*cx < tx + 1 && tx < 8*cx + 8)\n}" in str(kernel.ir)


def test_the_bits_of_slices_over_the_grid() -> None:
    x = np.random.default_rng(7).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    schedules = (columns_in_clusters(total, 5, bound=b) for b in (fw.ClusterX, fw.BIDx))
    results = [s.lower("sm_90a").simulate(x).outputs[0] for s in schedules]
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize(("clusters", "nblocks"), [(3, 2), (2, 4), (3, 3)])
def test_clusters_first_and_slices_behind(clusters: int, nblocks: int) -> None:
    """A block hands on the share that it has finished, to the blocks of its rank."""
    kernel = checked(columns_in_clusters(total_and_more, nblocks, clusters=clusters))
    (work,), (turns,) = kernel.ir.scratch, kernel.ir.semaphores
    assert kernel.launch.cluster == nblocks
    share = -(-32 // nblocks)
    assert str(work.size) == str(4 * nblocks * clusters * share * 4)
    assert str(turns.size) == str(4 * nblocks)


def test_what_clusters_leave_in_fewer_bits() -> None:
    s = columns_in_clusters(total, 2, clusters=3)
    s.outputs[0].request_serial_grid_reduction("slices", work_dtype="float16")
    kernel = s.lower("sm_90a")
    assert [b.dtype.name for b in kernel.ir.scratch] == ["float16"]
    x = np.random.default_rng(3).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    (found,), (wanted,) = kernel.simulate(x).outputs, fw.evaluate(s, x)
    bound = 3 * 2.0**-11 * np.abs(x).sum(axis=0)
    assert (np.abs(found - wanted) <= bound).all() and (found != wanted).any()


def test_machine_code() -> None:
    kernel = columns_in_clusters(total_and_more, 4).lower("sm_90a")
    assert kernel.resources().spill_stores == 0
    assert kernel.ptx().count("st.async") == kernel.ptx().count("complete_tx::bytes.v4.u32") == 1


# --- rejections ----------------------------------------------------------------------------------


def test_more_clusters_than_surely_run_at_once() -> None:
    s = columns_in_clusters(total, 8, shape=(8 * 33, 64), clusters=33)
    message = "33 clusters of 8 blocks wait for each other, and the target runs 14 at once for sure"
    with pytest.raises(fw.ScheduleError, match=message):
        s.lower("sm_90a")


def test_turns_behind_a_cluster_that_reduces() -> None:
    s = columns_in_clusters(total, 2, clusters=3)
    s.outputs[0].request_serial_grid_reduction("vector")
    with pytest.raises(fw.ScheduleError, match=r"over ClusterX as well; rfactor\(\[2\]\) first"):
        s.lower("sm_90a")


def test_parts_in_fewer_bits() -> None:
    s = columns_in_clusters(total, 4)
    s.outputs[0].request_serial_grid_reduction("slices", work_dtype="float16")
    with pytest.raises(fw.ScheduleError, match="leave work_dtype=float16 out, or bind the loop"):
        s.lower("sm_90a")


def test_a_product_on_tensor_cores_that_nobody_shares_out() -> None:
    specs = [fw.TensorSpec((64, 256), "bfloat16"), fw.TensorSpec((256, 64), "bfloat16")]
    s = fw.Schedule(fw.trace(fw.matmul, *specs))
    products = MatmulScheduler(s.flow, target_of("sm_90a"))._products
    schedule_products(s, products, ProductPlan(64, 64, 64, 1, 2, 0, splits=2, mode="cluster"))
    for t in s.tensors:
        t.stage.grid_mode = None
    message = r"in mode 'slices' only; call request_serial_grid_reduction\('slices'\)"
    with pytest.raises(fw.ScheduleError, match=message):
        s.lower("sm_90a")


def test_threads_left_to_reduce() -> None:
    s = fw.Schedule(fw.trace(total, fw.TensorSpec((96, 64), "float32")))
    t = s.outputs[0]
    t.split(1, 24).parallelize(1, fw.ClusterX).parallelize(2, fw.TIDx)
    t.request_serial_grid_reduction("slices")
    with pytest.raises(fw.ScheduleError, match=r"loop 2 reduces over TIDx as well; rfactor\(\[2\]"):
        s.lower("sm_90a")


def test_turns_in_a_cluster() -> None:
    s = columns_in_clusters(total, 4, mode="vector")
    with pytest.raises(fw.ScheduleError, match="none of its reducing loops is bound to BIDx"):
        s.lower("sm_90a")


def test_a_reader_in_all_blocks_of_the_cluster() -> None:
    s = fw.Schedule(fw.trace(lambda x: x - fw.sum(x, axis=0), fw.TensorSpec((96, 64), "float32")))
    for t in s.tensors:
        if t.stage.is_reduction:
            t.split(1, 32).parallelize(1, fw.ClusterX)
            t.request_serial_grid_reduction("slices")
    y = s.outputs[0]
    y.split(0, 32).parallelize(0, fw.ClusterX)
    with pytest.raises(fw.ScheduleError, match="leave the request out, so that all blocks of the"):
        s.lower("sm_90a")


def test_a_target_without_clusters() -> None:
    with pytest.raises(fw.ScheduleError, match="cluster"):
        columns_in_clusters(total, 4).lower("sm_80")
