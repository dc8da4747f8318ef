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
    """The result is that of operands rounded to the nearest, within what sums in float32 lose, or
    nearer to the exact one, as of small operands that would have to be copied first."""
    m, n, k = shape
    first, second = ((k, m) if layout == "NN" else (m, k)), ((k, n) if layout == "TT" else (n, k))

    def fn(x: Any, w: Any) -> Any:
        return (x.T if layout == "NN" else x) @ (w if layout == "TT" else w.T)

    program = _program(fn, first, second)
    for seed in range(2):
        x, w = _normal(seed, first, second)
        (found,) = program.run_cuda(x, w)
        rounded = (round_tf32(v).astype(np.float64) for v in (x, w))
        bound = 2**-21 * fn(np.abs(x, dtype=np.float64), np.abs(w, dtype=np.float64)) * np.sqrt(k)
        exact = fn(x.astype(np.float64), w.astype(np.float64))
        assert any((np.abs(found - v) <= bound + 1e-30).all() for v in (fn(*rounded), exact))
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


# --- 8 bits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtypes", [("float8_e4m3", "float8_e4m3"), ("float8_e5m2", "float8_e4m3")])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [*SHAPES, (64, 64, 65536)], ids=str)
def test_products_of_8_bits_agree_with_float64(
    shape: tuple[int, int, int], transposed: bool, dtypes: tuple[str, str]
) -> None:
    """Within four times a bit of 14 in each batch of 128 pairs; the same bits in every run."""
    m, n, k = shape
    second = (k, n) if transposed else (n, k)

    def fn(x: Any, w: Any, a: Any, b: Any) -> Any:
        x, w = fw.astype(x, "float32"), fw.astype(w, "float32")
        return fw.matmul(x, w if transposed else w.T) * a * b

    specs = [fw.TensorSpec(s, d) for s, d in zip(((m, k), second), dtypes, strict=True)]
    specs += [fw.TensorSpec(s, "float32") for s in ((m, 1), (n,))]
    program = fw.compile(fw.trace(fn, *specs))
    kinds = [t.dtype.numpy for t in program.fusion.inputs]
    normal = _normal(0, (m, k), second, (m, 1), (n,))
    arrays = [v.astype(d) for v, d in zip(normal, kinds, strict=True)]
    x, w, a, b = (v.astype(np.float64) for v in arrays)
    w = w if transposed else w.T
    (found,) = program.run_cuda(*arrays)
    bound = 4 * 2**-13 * (np.abs(x) @ np.abs(w)) * np.abs(a) * np.abs(b)
    assert (np.abs(found - x @ w * a * b) <= bound + 1e-30).all()
    (again,) = program.run_cuda(*arrays)
    assert again.tobytes() == found.tobytes()


def test_long_sums_of_one_sign_keep_their_bits() -> None:
    """Without the second set of registers they would be off by more than 2**-8."""
    shape = (256, 32768)
    x, w = (np.abs(v).astype(fw.float8_e4m3.numpy) for v in _normal(0, shape, shape))
    specs = (fw.TensorSpec(shape, "float8_e4m3"),) * 2
    program = fw.compile(
        fw.trace(lambda a, b: fw.astype(a, "float32") @ fw.astype(b, "float32").T, *specs)
    )
    expected = x.astype(np.float64) @ w.astype(np.float64).T
    (found,) = program.run_cuda(x, w)
    assert (np.abs(found - expected) / expected).max() < 2**-10
