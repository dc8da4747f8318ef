"""Loops bound to ClusterX: what they mean, what they need, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.dtypes import dtype_of
from fusewright.kir.ir import Load
from fusewright.kir.traverse import walk_statements


def row_sum(n: int = 1000, *, rows: int = 3, dtype: str = "float32") -> fw.Schedule:
    return fw.Schedule(fw.trace(lambda x: fw.sum(x, axis=1), fw.TensorSpec((rows, n), dtype)))


def bound(s: fw.Schedule, size: int, threads: int = 64) -> fw.Schedule:
    """The row shared by the blocks of a cluster, their slices by threads."""
    t = s.outputs[0]
    s.inputs[0].cache_after()
    t.split(1, size, inner=False).split(2, threads)
    t.parallelize(0, fw.BIDx).parallelize(1, fw.ClusterX).parallelize(3, fw.TIDx)
    return s.transform_like(t).inline_most()


def assert_agrees(
    kernel: fw.Kernel, fusion: fw.Fusion, *arrays: np.ndarray, tolerance: float
) -> None:
    result = kernel.simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        assert np.allclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance)
    report = fw.verify(kernel)
    assert report.ok, report
    assert len(report.necessary) == len(kernel.syncs)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("n", [1000, 7, 2048, 1])
def test_a_row_sum(size: int, n: int) -> None:
    if n < size:
        n = size
    s = bound(row_sum(n), size)
    kernel = s.lower()
    assert kernel.launch.cluster == size
    assert str(kernel.launch.grid[0]) == str(3 * size)
    x = np.random.default_rng(0).standard_normal((3, n)).astype(np.float32)
    assert_agrees(kernel, s.original, x, tolerance=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "float64", "int64", "int8"])
def test_types(dtype: str) -> None:
    s = bound(row_sum(320, dtype=dtype), 4)
    x = np.random.default_rng(0).integers(-3, 4, (3, 320))
    kernel = s.lower()
    assert_agrees(kernel, s.original, x.astype(dtype_of(dtype).numpy), tolerance=1e-9)
    assert kernel.resources().spill_stores == 0


@pytest.mark.parametrize("fn", [fw.max, fw.min, fw.prod, fw.any, fw.all])
def test_functions(fn: Callable[..., Any]) -> None:
    fusion = fw.trace(lambda x: fn(x, axis=1), fw.TensorSpec((3, 96), "float32"))
    s = bound(fw.Schedule(fusion), 2, 32)
    x = np.random.default_rng(1).integers(0, 2, (3, 96)).astype(np.float32)
    assert_agrees(s.lower(), fusion, x, tolerance=1e-6)


def test_a_softmax_holds_its_row_in_a_cluster() -> None:
    def softmax(x: fw.Array) -> fw.Array:
        e = fw.exp(x - fw.max(x, axis=1, keepdims=True))
        return e / fw.sum(e, axis=1, keepdims=True)

    fusion = fw.trace(softmax, fw.TensorSpec((3, 1001), "float32"))
    s = fw.Schedule(fusion)
    s.inputs[0].cache_after()
    t = next(t for t in s.tensors if t.stage.is_reduction)
    t.split(1, 4, inner=False).split(2, 64)
    t.parallelize(0, fw.BIDx).parallelize(1, fw.ClusterX).parallelize(3, fw.TIDx)
    s.transform_like(t).inline_most()
    kernel = s.lower()
    x = np.random.default_rng(0).standard_normal((3, 1001)).astype(np.float32)
    assert_agrees(kernel, fusion, x, tolerance=1e-5)
    kinds = [x.kind for x in kernel.syncs]
    assert (kinds.count("ClusterArrive"), kinds.count("MbarWait")) == (1, 2)
    loads = [x for x in walk_statements(kernel.ir) if isinstance(x, Load) and x.src.name == "x"]
    assert len(loads) == 4  # a slice of 251 by 64 threads: each element is read once


def test_a_tensor_without_reduction_is_only_spread() -> None:
    fusion = fw.trace(lambda x: x + 1.0, fw.TensorSpec((8, 128), "float32"))
    s = fw.Schedule(fusion)
    t = s.outputs[0].merge(0).split(0, 64).split(0, 4)
    t.parallelize(0, fw.BIDx).parallelize(1, fw.ClusterX).parallelize(2, fw.TIDx)
    kernel = s.lower()
    assert (kernel.launch.cluster, kernel.syncs) == (4, [])
    x = np.random.default_rng(0).standard_normal((8, 128)).astype(np.float32)
    assert_agrees(kernel, fusion, x, tolerance=1e-6)


def test_rows_side_by_side_in_a_block() -> None:
    s = row_sum(300, rows=10)
    s.inputs[0].cache_after()
    t = s.outputs[0]
    t.split(1, 2, inner=False).split(2, 16).split(0, 4)
    t.parallelize(0, fw.BIDx).parallelize(1, fw.TIDy).parallelize(2, fw.ClusterX)
    t.parallelize(4, fw.TIDx)
    s.transform_like(t).inline_most()
    x = np.random.default_rng(0).standard_normal((10, 300)).astype(np.float32)
    assert_agrees(s.lower(), s.original, x, tolerance=1e-5)


def test_a_loop_over_rows_reuses_the_memory() -> None:
    s = row_sum(300, rows=12)
    s.inputs[0].cache_after()
    t = s.outputs[0]
    t.split(1, 2, inner=False).split(2, 32).split(0, 3)
    t.parallelize(0, fw.BIDx).parallelize(2, fw.ClusterX).parallelize(4, fw.TIDx)
    s.transform_like(t).inline_most()
    x = np.random.default_rng(0).standard_normal((12, 300)).astype(np.float32)
    assert_agrees(s.lower(), s.original, x, tolerance=1e-5)


def test_a_value_in_shared_memory_is_read_by_its_block() -> None:
    def scaled(x: fw.Array) -> fw.Array:
        return x / fw.sum(x, axis=1, keepdims=True)

    fusion = fw.trace(scaled, fw.TensorSpec((3, 512), "float32"))
    s = fw.Schedule(fusion)
    c = s.inputs[0].cache_after()
    c.set_memory(fw.SHARED)
    t = next(t for t in s.tensors if t.stage.is_reduction)
    t.split(1, 2, inner=False).split(2, 64)
    t.parallelize(0, fw.BIDx).parallelize(1, fw.ClusterX).parallelize(3, fw.TIDx)
    s.transform_like(t)
    kernel = s.lower()
    x = 1 + np.random.default_rng(0).random((3, 512)).astype(np.float32)
    assert_agrees(kernel, fusion, x, tolerance=1e-5)


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [9, 16, 1])
def test_clusters_have_two_to_eight_blocks(factor: int) -> None:
    t = row_sum().outputs[0].split(1, factor)
    with pytest.raises(fw.ScheduleError, match=f"extent {factor} is not a constant from 2 to 8"):
        t.parallelize(2, fw.ClusterX)


def test_symbolic_extents_are_refused() -> None:
    fusion = fw.trace(lambda x: fw.sum(x, axis=1), fw.TensorSpec(("n", 64), "float32"))
    with pytest.raises(fw.ScheduleError, match="extent n is not a constant from 2 to 8"):
        fw.Schedule(fusion).outputs[0].parallelize(0, fw.ClusterX)


def test_one_loop_a_tensor() -> None:
    t = row_sum().outputs[0].split(1, 4).split(1, 4)
    t.parallelize(3, fw.ClusterX)
    with pytest.raises(fw.ScheduleError, match="bound to ClusterX already"):
        t.parallelize(2, fw.ClusterX)


@pytest.mark.parametrize("cluster", [0, 9, -1])
def test_launch_takes_one_to_eight(cluster: int) -> None:
    with pytest.raises(fw.ScheduleError, match="a cluster has 1 to 8 blocks"):
        row_sum().launch(cluster=cluster)


def test_launch_and_loops_agree() -> None:
    assert bound(row_sum(), 4).launch(cluster=4).lower().launch.cluster == 4
    with pytest.raises(fw.ScheduleError, match="make clusters of 4; bind loops of 2"):
        bound(row_sum(), 4).launch(cluster=2).lower()
    with pytest.raises(fw.ScheduleError, match="make clusters of 1; bind loops of 2 to ClusterX"):
        row_sum().launch(cluster=2).lower()
    with pytest.raises(fw.ScheduleError, match=r"launch\(cluster=1\)"):
        fw.compile(bound(row_sum(), 4).launch(cluster=1))


def test_old_targets_have_none() -> None:
    with pytest.raises(fw.ScheduleError, match="clusters of 4 blocks, sm_86 has 1"):
        bound(row_sum(), 4).lower("sm_86")


def test_blocks_of_a_cluster_have_whole_warps() -> None:
    with pytest.raises(fw.ScheduleError, match="48 threads a block; the blocks of a cluster have"):
        bound(row_sum(), 4, 48).lower()


def test_the_grid_still_cannot_combine() -> None:
    s = row_sum()
    t = s.outputs[0].split(1, 100)
    t.parallelize(1, fw.BIDx)
    with pytest.raises(fw.ScheduleError, match="or bind at most 8 of them to ClusterX"):
        s.lower()


def test_shared_memory_of_another_block_is_not_read() -> None:
    """A value that one block holds in shared memory cannot be read where another block runs."""
    fusion = fw.trace(lambda x: fw.exp(x) + 1.0, fw.TensorSpec((2, 64), "float32"))
    s = fw.Schedule(fusion)
    c = s.inputs[0].cache_after()
    c.set_memory(fw.SHARED)
    c.parallelize(0, fw.ClusterX).parallelize(1, fw.TIDx)
    out = s.outputs[0]
    out.parallelize(1, fw.TIDx)
    with pytest.raises(fw.ScheduleError):
        s.lower()
