"""Gradients of random functions: against differences in float64, of maps and in kernels."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fuzz_gradients import Drawn

import fusewright as fw

START = int(os.environ.get("FUZZ_START", "0"))
COUNT = int(os.environ.get("FUZZ_COUNT", "600"))
CHUNK = 50
STEP = 1e-6


def traced(fn: Callable[..., Any], arrays: Sequence[np.ndarray]) -> fw.Fusion:
    return fw.trace(fn, *(fw.TensorSpec(a.shape, a.dtype.name) for a in arrays))


def values(fn: Callable[..., Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return fw.evaluate(traced(fn, arrays), *arrays)


def gradient(f: Drawn, count: int) -> Callable[..., Any]:
    return lambda *arrays: fw.grad(f, tuple(range(count)))(*arrays)


def assert_slopes_agree(seed: int) -> None:
    """Along three random directions of all arguments together."""
    f = Drawn(seed)
    arrays = f.arguments()
    found = values(gradient(f, len(arrays)), arrays)
    fusion = traced(f, arrays)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        ways = [rng.normal(size=a.shape) for a in arrays]
        pairs = list(zip(arrays, ways, strict=True))
        high, low = (
            float(fw.evaluate(fusion, *(a + s * STEP * w for a, w in pairs))[0]) for s in (1, -1)
        )
        slope = sum(float((g * w).sum()) for g, w in zip(found, ways, strict=True))
        lines = "\n".join(f.lines)
        np.testing.assert_allclose(
            slope, (high - low) / (2 * STEP), rtol=1e-4, atol=1e-4, err_msg=f"seed {seed}\n{lines}"
        )


def assert_maps_agree(seed: int) -> None:
    """The function and its gradient mapped, and the gradient of the map, slice by slice."""
    f = Drawn(seed)
    arrays = f.arguments()
    rows = [np.stack([a, a[..., ::-1] * 0.9, np.sin(a)]) for a in arrays]
    count = len(arrays)

    def of_all(*xs: Any) -> Any:
        return fw.grad(lambda *xs: fw.sum(fw.vmap(f)(*xs)), tuple(range(count)))(*xs)

    (mapped,) = values(fw.vmap(f), rows)
    each = values(fw.vmap(gradient(f, count)), rows)
    together = values(of_all, rows)
    for k in range(3):
        single = [r[k] for r in rows]
        want = [*values(f, single), *values(gradient(f, count), single)]
        for got, w in zip([mapped, *each], want, strict=True):
            np.testing.assert_allclose(got[k], w, 1e-8, 1e-9, err_msg=f"seed {seed}")
        for got, w in zip(together, want[1:], strict=True):
            np.testing.assert_allclose(got[k], w, 1e-8, 1e-9, err_msg=f"seed {seed}")


def assert_kernels_agree(seed: int) -> None:
    """Float32 kernels, with the search for races, against the oracle."""
    f = Drawn(seed)
    arrays = [a.astype(np.float32) for a in f.arguments()]
    fusion = traced(gradient(f, len(arrays)), arrays)
    result = fw.compile(fusion).simulate(*arrays)
    assert result.races == [], f"seed {seed}"
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        room = 3e-4 * (1 + np.abs(want).max(initial=0))
        np.testing.assert_allclose(got, want, 3e-4, room, err_msg=f"seed {seed}\n{f.lines}")


@pytest.mark.parametrize("seed", range(7000, 7024))
def test_few_gradients(seed: int) -> None:
    assert_slopes_agree(seed)
    if seed % 4 == 0:
        assert_maps_agree(seed)
    if seed % 8 == 0:
        assert_kernels_agree(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_random_gradients(start: int) -> None:
    print(f"seeds {start} to {start + CHUNK - 1}")
    for seed in range(start, start + CHUNK):
        assert_slopes_agree(seed)
        assert_maps_agree(seed)
        if seed % 10 == 0:
            assert_kernels_agree(seed)
