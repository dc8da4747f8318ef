"""Sorts, searches, sums by segment and sets on a device: the bits that the oracle finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

RNG = np.random.default_rng(3)


def draw(dtype: str, *shape: int) -> np.ndarray:
    """Numbers with ties; of floats also NaN, infinities and zeros of both signs."""
    if np.dtype(dtype).kind != "f":
        return RNG.integers(0, 1 << 20, shape).astype(dtype)
    x = np.round(RNG.standard_normal(shape) * 1000) / 8
    for value in (np.nan, -np.nan, np.inf, -np.inf, -0.0):
        x[RNG.random(shape) < 0.01] = value
    return x.astype(dtype)


def check(fn: Callable[..., Any], *arrays: np.ndarray) -> None:
    fusion = fw.trace(fn, *(fw.TensorSpec(a.shape, a.dtype) for a in arrays))
    program = fw.compile(fusion)
    want = fw.evaluate(fusion, *arrays)
    first, again = (program.run_cuda(*arrays) for _ in range(2))
    for a, b, w in zip(first, again, want, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        if w.dtype.kind == "f":
            np.testing.assert_allclose(a, w, rtol=1e-5, atol=1e-4)
        else:
            np.testing.assert_array_equal(a, w)


@pytest.mark.parametrize("size", [2, 5, 16, 33, 100, 257, 1000, 1024, 4095, 4096])
@pytest.mark.parametrize("dtype", ["float32", "int32", "float64", "float16"])
def test_rows_that_a_block_holds(dtype: str, size: int) -> None:
    check(lambda x: (fw.sort(x), fw.argsort(x, descending=True)), draw(dtype, 70, size))


@pytest.mark.parametrize("size", [4097, 10_000, 100_000])
def test_long_rows(size: int) -> None:
    check(lambda x: (fw.sort(x), fw.argsort(x)), draw("float32", 3, size))


def test_selections_and_searches() -> None:
    x = draw("float32", 40, 3000)
    check(lambda x: (*fw.topk(x, 3), *fw.topk(x, 50, largest=False)), x)
    check(fw.searchsorted, np.sort(draw("int32", 100_000)), draw("int32", 5000))


@pytest.mark.parametrize("segments", [7, 1000, 60_000])
def test_sums_by_segment(segments: int) -> None:
    values, ids = draw("int32", 50_000, 4).astype(np.float32), RNG.integers(-1, segments, 50_000)
    check(lambda v, i: fw.segment_sum(v, i, segments), values, ids)
    check(lambda i: fw.bincount(i, length=segments), ids)
    dest = np.zeros((segments, 4), np.float32)
    check(fw.scatter_add, dest, ids % segments, values)


def test_sets() -> None:
    x = RNG.integers(0, 500, 6000)
    check(lambda x: (*fw.unique_all(x, size=600), *fw.nonzero(x, size=6000)), x)
    check(lambda x: fw.compress(x > 250, x, size=4000), x)
    check(lambda x: fw.histogram(fw.astype(x, "float32"), 20).hist, x)
