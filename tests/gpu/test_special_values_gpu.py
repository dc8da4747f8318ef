"""Values at the edges on a GPU, beside the oracle: indices outside an axis, quotients at
infinities, the signs of NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

pytestmark = pytest.mark.gpu

EDGES = {
    "int8": [0, 4, 5, -1, -5, -6, 127, -128],
    "int32": [0, 4, 5, -1, -5, -6, 2**31 - 1, -(2**31)],
    "int64": [0, 4, 5, -1, -5, -6, 2**32, 2**32 + 1, -(2**32), 2**63 - 1, -(2**63)],
    "uint8": [0, 4, 5, 255],
    "uint32": [0, 4, 5, 2**32 - 1, 2**31],
    "uint64": [0, 4, 5, 2**64 - 1, 2**64 - 5, 2**63],
}
GATHERS: dict[str, Callable[[Any, Any], Any]] = {
    "take": lambda x, i: fw.take(x, i, axis=0, mode="fill"),
    "along": lambda x, i: fw.take_along_axis(x, i, axis=0, mode="fill"),
    "cast before": lambda x, i: fw.take(fw.astype(x, fw.float32), i, axis=0, mode="fill"),
}
FLOATS = [0.0, -0.0, 1, -1, 2.5, -2.5, np.inf, -np.inf, np.nan]


def assert_as_oracle(f: Callable[..., Any], *arrays: np.ndarray) -> None:
    fusion = fw.trace(f, *(fw.TensorSpec(a.shape, a.dtype) for a in arrays))
    made = fw.compile(fusion, target=None)(*arrays, device="cuda")
    for a, b in zip(made, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_array_equal(a, b)
        zero = np.asarray(b == 0)
        assert (np.signbit(a.astype("f8")) == np.signbit(b.astype("f8")))[zero].all()


@pytest.mark.parametrize("kind", list(EDGES))
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "bool"])
@pytest.mark.parametrize("name", list(GATHERS))
def test_indices_outside_an_axis_read_nan_or_zero(name: str, dtype: str, kind: str) -> None:
    assert_as_oracle(GATHERS[name], np.arange(1, 6).astype(dtype), np.array(EDGES[kind], kind))


def test_quotients_and_roots_are_the_nearest_for_every_size_and_sign() -> None:
    """Zeros of either sign over and under numbers, infinities, NaN, and what is subnormal."""
    rng = np.random.default_rng(1)
    sizes = [0.0, 1e-45, 3e-39, 1.2e-38, 1e-30, 2.0**-24, 1, 3, 2.5, 1e30, 3.4e38, np.inf, np.nan]
    edges = np.array([v * sign for v in sizes for sign in (1, -1)], np.float32)
    x, y = (np.concatenate([np.tile(edges, len(edges)), rng.normal(size=5000)]) for _ in range(2))
    y[: len(edges) ** 2] = np.repeat(edges, len(edges))
    x, y = x.astype(np.float32), y.astype(np.float32)
    assert_as_oracle(lambda x, y: x / y, x, y)
    assert_as_oracle(lambda x: fw.sqrt(x), x)
    assert_as_oracle(lambda x: x / 3.0, x)


def test_an_axis_of_size_0_has_no_index() -> None:
    assert_as_oracle(GATHERS["take"], np.ones(0, np.float32), np.array([0, 3, -1]))


def test_a_target_that_is_no_class_has_a_loss_of_nan() -> None:
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    target = np.array([1, 5, -1, -100, 4, -6])

    def loss(x: Any, target: Any) -> Any:
        return fw.isnan(fw.nn.cross_entropy(x, target, reduction="none"))

    assert_as_oracle(loss, x, target)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_quotients_at_infinities(dtype: str) -> None:
    a, b = (x.ravel().astype(dtype) for x in np.meshgrid(FLOATS, FLOATS))
    assert_as_oracle(lambda a, b: a // b, a, b)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_sign_of_a_nan(dtype: str) -> None:
    def signs(x: Any) -> Any:
        found = [fw.where(x > 0, float(np.copysign(np.nan, s)), x) for s in (-1.0, 1.0)]
        return tuple(fw.signbit(v) for v in found)

    assert_as_oracle(signs, np.ones(4, dtype))


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2"])
def test_every_float_of_8_bits_is_widened(dtype: str) -> None:
    x = np.tile(np.arange(256, dtype=np.uint8), 64).view(fw.TensorSpec((1,), dtype).dtype.numpy)
    assert_as_oracle(lambda x: fw.astype(x, "float32"), x)
    assert_as_oracle(lambda x: fw.astype(x, "float32") + 0.25, x[:4093])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_extremes_of_short_integers(dtype: str) -> None:
    x = np.random.default_rng(3).integers(0, 1 << 16, (37, 64, 129)).astype(dtype)
    assert_as_oracle(lambda x: (fw.max(x, axis=1), fw.min(x, axis=1)), x)
