"""Rows that no single block holds well: which are shared by a cluster, and that they come out
right for every shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.verify import random_values

Spec = fw.TensorSpec


def softmax(x: fw.Array) -> fw.Array:
    return fw.nn.softmax(x, axis=-1)


def log_softmax(x: fw.Array) -> fw.Array:
    return fw.nn.log_softmax(x, axis=-1)


def layer_norm(x: fw.Array) -> fw.Array:
    return fw.nn.layer_norm(x, x.shape[-1:])


def rms_norm(x: fw.Array) -> fw.Array:
    return fw.nn.rms_norm(x, x.shape[-1:])


def added_layer_norm(x: fw.Array, r: fw.Array) -> fw.Array:
    return fw.nn.layer_norm(x + r, x.shape[-1:])


def program(
    fn: Callable[..., Any],
    *shape: int,
    dtype: str = "bfloat16",
    arch: str = "sm_90a",
    inputs: int = 1,
) -> fw.Program:
    return fw.compile(fw.trace(fn, *[Spec(shape, dtype)] * inputs), target=arch)


def only(p: fw.Program) -> fw.Kernel:
    (kernel,) = p.kernels
    return kernel


def choice(p: fw.Program) -> tuple[str, int]:
    k = only(p)
    assert k.heuristic is not None
    return k.heuristic.scheduler, k.launch.cluster


@pytest.mark.parametrize(
    ("fn", "shape", "dtype", "expected"),
    [
        # a block's registers, then shared memory of several blocks a multiprocessor
        (softmax, (512, 4096), "bfloat16", ("inner_persistent", 1)),
        (softmax, (512, 32768), "bfloat16", ("inner_shared", 1)),
        # 112 KB: two blocks a multiprocessor no longer fit
        (softmax, (512, 57344), "bfloat16", ("inner_cluster_shared", 8)),
        (softmax, (2048, 131072), "bfloat16", ("inner_cluster_shared", 8)),
        (softmax, (2048, 131072), "float32", ("inner_cluster_shared", 8)),
        (layer_norm, (512, 65536), "float32", ("inner_cluster_shared", 8)),
        (rms_norm, (512, 65536), "bfloat16", ("inner_cluster_shared", 8)),
        (log_softmax, (512, 128256), "bfloat16", ("inner_cluster_shared", 8)),
        # rows that begin anywhere: vectors from an aligned address before the row
        (softmax, (300, 100001), "bfloat16", ("inner_cluster_shared", 8)),
        # few rows: more blocks a row, so that more multiprocessors have one
        (softmax, (4, 57344), "bfloat16", ("inner_cluster_shared", 8)),
    ],
)  # fmt: skip
def test_what_holds_a_row(
    fn: Callable[..., Any], shape: tuple[int, ...], dtype: str, expected: tuple[str, int]
) -> None:
    assert choice(program(fn, *shape, dtype=dtype)) == expected


def test_other_targets_keep_to_blocks() -> None:
    assert choice(program(softmax, 512, 57344, arch="sm_80"))[1] == 1
    assert all(k.launch.cluster == 1 for k in program(softmax, 2048, 131072, arch="sm_89").kernels)


def test_what_is_read_once_needs_no_cluster() -> None:
    p = program(lambda x: fw.max(x, axis=1), 512, 131072)
    assert all(k.launch.cluster == 1 for k in p.kernels)


def test_two_inputs_take_twice_the_memory_and_larger_slices_more_threads() -> None:
    one = program(layer_norm, 512, 65536)
    two = program(added_layer_norm, 512, 65536, inputs=2)
    assert choice(one) == choice(two) == ("inner_cluster_shared", 8)
    assert [str(only(p).launch.block[0]) for p in (one, two)] == ["128", "256"]
    assert [int(only(p).launch.shared_nbytes) // 1024 for p in (one, two)] == [16, 32]


@pytest.mark.parametrize("fn", [softmax, layer_norm])
@pytest.mark.parametrize("shape", [(150, 65536), (150, 100001)])
def test_every_element_is_read_once(fn: Callable[..., Any], shape: tuple[int, int]) -> None:
    p = program(fn, *shape)
    k = only(p)
    x = np.ones(shape, fw.bfloat16.numpy)
    stats = k.simulate(x, blocks=[0], check_races=False).stats
    assert stats["global_bytes_written"] == 2 * shape[1]
    words = 16 * (stats["global_bytes_read"] // 16)  # with what else lies in the first and the last
    assert words == stats["global_bytes_read"] and 0 <= words - 2 * shape[1] < 32


def assert_close(got: np.ndarray, want: np.ndarray, dtype: str) -> None:
    tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * np.abs(want).max())


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [
        (57344, "bfloat16"), (60008, "float16"), (57345, "float32"), (99999, "float32"),
        (131072, "float32"), (99999, "bfloat16"), (65544, "float16"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("fn", [softmax, layer_norm])
def test_right_for_every_length(fn: Callable[..., Any], columns: int, dtype: str) -> None:
    k = only(program(fn, 150, columns, dtype=dtype))
    assert k.launch.cluster > 1
    fusion = fw.trace(fn, Spec((2, columns), dtype))
    x = np.zeros((150, columns), fusion.inputs[0].dtype.numpy)
    x[[0, -1]] = random_values(np.random.default_rng(columns), (2, columns), fusion.inputs[0].dtype)
    result = k.simulate(x, blocks=[0, 149 * k.launch.cluster])
    assert result.races == []
    assert_close(result.outputs[0][[0, -1]], fw.evaluate(fusion, x[[0, -1]])[0], dtype)


def test_group_norm_of_images() -> None:
    def fn(x: fw.Array, w: fw.Array, b: fw.Array) -> fw.Array:
        return fw.nn.silu(fw.nn.group_norm(x, 4, w, b))

    def specs(n: int) -> list[fw.TensorSpec]:
        return [Spec((n, 16, 124, 125), "bfloat16"), *[Spec((16,), "bfloat16")] * 2]

    k = only(fw.compile(fw.trace(fn, *specs(34))))  # 136 rows of 121 KB
    assert k.launch.cluster == 8
    rng = np.random.default_rng(0)
    x = random_values(rng, (34, 16, 124, 125), fw.bfloat16)
    w, b = (random_values(rng, (16,), fw.bfloat16) for _ in range(2))
    result = k.simulate(x, w, b, blocks=range(32))
    assert result.races == []
    assert_close(
        result.outputs[0][:1], fw.evaluate(fw.trace(fn, *specs(1)), x[:1], w, b)[0], "bfloat16"
    )


@pytest.mark.parametrize("fn", [softmax, layer_norm, rms_norm])
def test_no_sync_is_missing_or_redundant(fn: Callable[..., Any]) -> None:
    k = only(program(fn, 160, 57344))
    report = fw.verify(k, np.zeros((160, 57344), fw.bfloat16.numpy))
    assert report.ok, report
    assert len(report.necessary) == len(k.syncs)


@pytest.mark.parametrize(
    ("fn", "shape", "dtype"),
    [
        (softmax, (2048, 131072), "bfloat16"), (softmax, (2048, 131072), "float32"),
        (layer_norm, (2048, 65536), "bfloat16"), (softmax, (300, 100001), "float32"),
        (log_softmax, (4096, 128256), "bfloat16"),
    ],
)  # fmt: skip
def test_no_spills(fn: Callable[..., Any], shape: tuple[int, int], dtype: str) -> None:
    found = only(program(fn, *shape, dtype=dtype)).resources()
    assert (found.spill_stores, found.spill_loads, found.stack_nbytes) == (0, 0, 0)


def test_the_report_shows_it() -> None:
    x = np.zeros((150, 57344), np.float32)
    text = str(fw.fuse(softmax, device="sim").explain(x))
    assert "clusters of" in text
    k = only(program(softmax, 2048, 131072))
    assert "cluster=8" in str(k.heuristic)
    assert "ClusterX" in k.schedule
