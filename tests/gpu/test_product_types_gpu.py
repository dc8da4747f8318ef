"""Products of element types other than 16-bit floats on a device, against float64 references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.functions import round_tf32

SHAPES = ((128, 128, 64), (300, 264, 513), (1000, 1000, 1000), (2048, 2048, 1024), (16, 4096, 4096))


def _program(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> fw.Program:
    with fw.config(float32_matmul="tf32"):
        return fw.compile(fw.trace(fn, *(fw.TensorSpec(s, "float32") for s in shapes)))


def _normal(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s, dtype=np.float32) for s in shapes]


@pytest.mark.parametrize("layout", ["TN", "TT", "NN"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_rounded_values_agree_with_float64(
    shape: tuple[int, int, int], layout: str
) -> None:
    """The result is that of operands rounded to the nearest, within what sums in float32 lose."""
    m, n, k = shape
    first, second = ((k, m) if layout == "NN" else (m, k)), ((k, n) if layout == "TT" else (n, k))

    def fn(x: Any, w: Any) -> Any:
        return (x.T if layout == "NN" else x) @ (w if layout == "TT" else w.T)

    program = _program(fn, first, second)
    for seed in range(2):
        x, w = _normal(seed, first, second)
        (found,) = program.run_cuda(x, w)
        a, b = (round_tf32(v).astype(np.float64) for v in (x, w))
        bound = 2**-21 * fn(np.abs(a), np.abs(b)) * np.sqrt(k)
        assert (np.abs(found - fn(a, b)) <= bound + 1e-30).all()
        (again,) = program.run_cuda(x, w)
        assert again.tobytes() == found.tobytes()


def test_the_copy_engine_rounds_to_the_nearest_ties_to_even() -> None:
    """Each row of the first operand holds one value, of which the product is the rounded one."""
    unit = 2.0**-10
    rng = np.random.default_rng(0)
    values = rng.standard_normal(4096, dtype=np.float32)
    values[:8] = [1 + unit / 2, 1 + 3 * unit / 2, -1 - unit / 2, -1 - 3 * unit / 2,
                  2 - unit / 2, 1 + unit / 2 + unit / 64, 3.4e38, 1e-30]  # fmt: skip
    x = np.zeros((4096, 64), np.float32)
    x[np.arange(4096), np.arange(4096) % 64] = values
    w = np.eye(64, dtype=np.float32)
    (found,) = _program(lambda a, b: fw.matmul(a, b.T), x.shape, w.shape).run_cuda(x, w)
    assert np.array_equal(found.max(axis=1) + found.min(axis=1), round_tf32(values))
