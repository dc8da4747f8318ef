"""Reductions of a few elements: whole rows in the registers of a thread."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.schedule.heuristics.rating import Rated

T = fw.TensorSpec


def softmax(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)


def pooled(x: Any) -> Any:
    a, b, c = x.shape
    return fw.max(fw.reshape(x, (a, b // 2, 2, c // 2, 2)), axis=(2, 4))


def first_axes_in_windows(x: Any) -> Any:
    a, b, c = x.shape
    return fw.mean(fw.reshape(x, (a // 2, 2, b // 4, 4, c)), axis=(1, 3))


def windows_of_three(x: Any) -> Any:
    a, b = x.shape
    return fw.sum(fw.reshape(x, (a, b // 3, 3)), axis=2)


def quantised(x: Any) -> Any:
    scale = fw.max(fw.abs(x), axis=-1, keepdims=True) * (1 / 127) + 1e-6
    return fw.astype(fw.round(x / scale), fw.int8), scale


def norm_backward(dy: Any, x: Any, w: Any) -> Any:
    r = fw.rsqrt(fw.mean(x * x, axis=-1, keepdims=True) + 1e-5)
    g = dy * w
    return (g - x * r * r * fw.mean(g * x, axis=-1, keepdims=True)) * r


def rolled(x: Any) -> Any:
    return fw.sum(fw.roll(x, 1, axis=3), axis=(0, 2))


CASES: list[tuple[str, Callable[..., Any], tuple[fw.TensorSpec, ...], int]] = [
    ("softmax of 5", softmax, (T((33920, 5), "bfloat16"),), 2),
    ("softmax of 3", softmax, (T((17, 1013, 3), "float16"),), 1),
    ("softmax, last thread short", softmax, (T((33923, 5), "float32"),), 2),
    ("maximum of 7", lambda x: fw.max(x, axis=-1), (T((67584, 7), "float32"),), 4),
    (
        "position in rows apart",
        lambda x: fw.argmax(x, axis=1),
        (T((33792, 6), "int32", strides=(7, 1)),),
        1,
    ),
    ("two by two", pooled, (T((64, 64, 128), "bfloat16"),), 8),
    ("odd windows", pooled, (T((18, 62, 126), "float32"),), 2),
    ("windows of odd rows", windows_of_three, (T((176, 2313), "bfloat16"),), 8),
    ("windows of rows", first_axes_in_windows, (T((64, 64, 1024), "float32"),), 4),
    ("rows in 8 bits", quantised, (T((33792, 13), "float16"),), 2),
    (
        "backward",
        norm_backward,
        (T((33792, 5), "float16"), T((33792, 5), "float16"), T((5,), "float16")),
        2,
    ),
    ("rolled", rolled, (T((2, 67, 4, 512), "float32"),), 1),
    ("middle axis", lambda x: fw.nn.softmax(x, axis=1), (T((90, 9, 200), "float32"),), 1),
]


@pytest.mark.parametrize(("f", "specs", "width"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_short_rows_run(
    f: Callable[..., Any], specs: tuple[fw.TensorSpec, ...], width: int
) -> None:
    fusion = fw.trace(f, *specs)
    program = fw.compile(fusion)
    (kernel,) = program.kernels
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == "short_rows"
    assert dict(kernel.heuristic.values)["vector"] == width
    assert not kernel.syncs and not kernel.smem
    rng = np.random.default_rng(0)
    arrays = [_array(rng, t) for t in fusion.inputs]
    found = program.simulate(*arrays)
    assert not found.races
    for got, want in zip(found.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_allclose(
            np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=1e-2, atol=1e-2
        )


def _array(rng: np.random.Generator, t: Any) -> Any:
    shape = tuple(int(str(e)) for e in t.shape)
    if t.dtype.name == "int32":
        return np.lib.stride_tricks.as_strided(
            rng.integers(0, 9, shape[0] * 7).astype(np.int32), shape, (28, 4)
        )
    return rng.standard_normal(shape).astype(t.dtype.numpy)


def test_memory_is_accessed_in_vectors_that_reach_over_ends_of_rows() -> None:
    (kernel,) = fw.compile(fw.trace(softmax, T((1 << 20, 5), "bfloat16"))).kernels
    text = str(kernel.ir)
    (load,) = re.findall(r"x_far\[(\d+)\.\.(\d+)\] = load x\[", text)
    (store,) = re.findall(r"store t10\[.* = t10_v0\[(\d+)\.\.(\d+)\]", text)
    assert load == store == ("0", "8")


def test_rows_of_whole_vectors_are_shared_by_threads() -> None:
    program = fw.compile(fw.trace(softmax, T((1 << 20, 32), "bfloat16")))
    refused = [str(c) for c in program.kernels[0].candidates]
    assert any("rows of 64 bytes, which are whole vectors" in c for c in refused)


def test_rows_of_many_narrow_accesses_go_through_shared_memory() -> None:
    def way(n: int) -> str:
        (kernel,) = fw.compile(fw.trace(softmax, T((1 << 20, n), "float16"))).kernels
        return str(kernel.heuristic)

    assert "short_rows(" in way(3)
    assert "short_rows_staged" in way(9)
    assert "short_rows_staged" in way(17)


@pytest.mark.parametrize(
    ("windows", "scheduler", "rows"),
    [
        (5, "short_rows_staged", 5),
        (7, "short_rows_staged", 7),
        (4, "short_rows", 4),
    ],
)
def test_a_thread_takes_neighbours_whose_results_lie_far_apart(
    windows: int, scheduler: str, rows: int
) -> None:
    """Neighbouring threads then store side by side; not where they would meet in banks of shared
    memory, or a thread had too many elements."""

    def maxima(x: Any) -> Any:
        parts = fw.reshape(x, (x.shape[0], windows, 3))
        return fw.permute_dims(fw.max(parts, axis=2), (1, 0))

    fusion = fw.trace(maxima, T((34567, 3 * windows), "float32"))
    program = fw.compile(fusion)
    (kernel,) = program.kernels
    assert kernel.heuristic is not None
    assert kernel.heuristic.scheduler == scheduler
    assert dict(kernel.heuristic.values)["rows"] == rows
    x = np.random.default_rng(windows).standard_normal((34567, 3 * windows)).astype(np.float32)
    found = program.simulate(x)
    assert not found.races
    want = x.reshape(-1, windows, 3).max(2).T
    np.testing.assert_array_equal(found.outputs[0], want)


@pytest.mark.parametrize(
    ("shape", "size", "beside", "dtype"),
    [
        ((3, 11300, 8), 2, 4, "bfloat16"),
        ((2, 17001, 9), 3, 3, "float32"),
        ((1, 67601, 6), 3, 2, "float16"),
    ],
)
def test_a_thread_takes_rows_whose_results_lie_side_by_side(
    shape: tuple[int, ...], size: int, beside: int, dtype: str
) -> None:
    """Windows along an axis that is outermost in memory, in the order of axes in the result: each
    thread stores those of a place together, and neighbours read neighbours."""
    a, b, c = shape
    strides = (b, 1, a * b)

    def means(x: Any) -> Any:
        return fw.mean(fw.reshape(x, (a, b, c // size, size)), axis=3)

    fusion = fw.trace(means, T(shape, dtype, strides=strides))
    program = fw.compile(fusion)
    (kernel,) = program.kernels
    assert kernel.heuristic is not None
    assert dict(kernel.heuristic.values)["beside"] == beside
    stores = re.findall(r"store t\d+\[.*\] = \w+\[\d+\.\.(\d+)\]", str(kernel.ir))
    assert beside % 2 or (stores and all(int(n) % beside == 0 for n in stores))
    rng = np.random.default_rng(c)
    x = rng.standard_normal((c, a, b)).astype(fusion.inputs[0].dtype.numpy).transpose(1, 2, 0)
    found = program.simulate(x)
    assert not found.races
    want = np.asarray(fw.evaluate(fusion, x)[0], np.float64)
    np.testing.assert_allclose(np.asarray(found.outputs[0], np.float64), want, rtol=1e-2, atol=1e-2)


def test_a_row_that_is_one_vector_is_all_that_a_thread_takes() -> None:
    """Threads side by side then read vectors side by side."""
    fusion = fw.trace(softmax, T((270000, 8), "float16"))
    (kernel,) = fw.compile(fusion).kernels
    assert kernel.heuristic is not None
    assert dict(kernel.heuristic.values) == {"vector": 8, "rows": 1, "threads": 128}
    x = np.random.default_rng(0).standard_normal((270000, 8)).astype(np.float16)
    result = kernel.simulate(x, blocks=[0, 1, 2109])
    want = fw.evaluate(fusion, x)[0]
    for rows in (slice(0, 256), slice(2109 * 128, 270000)):
        np.testing.assert_allclose(result.outputs[0][rows], want[rows], atol=1e-3)


def test_fewer_rows_of_a_thread_are_candidates_too() -> None:
    """Eight rows of three float16 are whole vectors, but each store of two of their int64 fills
    half of a sector."""
    specs = T((8000001, 3), "float16")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.argmax(x, axis=1), specs)).kernels
    rated = {str(c.params): c.cost.us for c in kernel.candidates if isinstance(c, Rated)}
    us = [rated[f"short_rows(vector={n}, rows={n}, threads=128)"] for n in (1, 2, 4, 8)]
    assert us[1] < us[2] < us[3] and us[1] < us[0]
