"""Sets and selections of a given size: the oracle against numpy, simulated kernels against the
oracle, on ties, NaN, zeros of both signs, with more and less found than there is room for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

S = fw.TensorSpec
RNG = np.random.default_rng(31)


def run(fn: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """What the oracle and simulated kernels find alike."""
    fusion = fw.trace(fn, *(S(a.shape, a.dtype) for a in arrays))
    found = fw.evaluate(fusion, *arrays)
    result = fw.compile(fusion).simulate(*arrays)
    assert result.races == []
    for a, b in zip(result.outputs, found, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    return found


def filled(x: np.ndarray, size: int, fill: Any = 0) -> np.ndarray:
    """The first elements, or all and the fill."""
    return np.concatenate([x, np.full(max(size - len(x), 0), fill, x.dtype)])[:size]


def draw(dtype: str, *shape: int) -> np.ndarray:
    x = RNG.integers(-2, 3, shape).astype(dtype)
    if x.dtype.kind == "f" and x.size:
        x[RNG.random(shape) < 0.2] = np.nan
        x[RNG.random(shape) < 0.2] = -0.0
    return x


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool"])
def test_distinct_elements(dtype: str) -> None:
    x = draw(dtype, 3, 4)
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    more = len(values) + 3
    sizes = (len(values) - 1, len(values), more) if dtype == "float32" else (more,)
    for size in sizes:  # positions and counts are found without the dtype
        got = run(lambda x, n=size: tuple(fw.unique_all(x, size=n, fill=1)), x)
        np.testing.assert_array_equal(got[0], filled(values, size, 1))
        np.testing.assert_array_equal(got[1], filled(first, size))
        np.testing.assert_array_equal(got[2], inverse.reshape(x.shape))
        np.testing.assert_array_equal(got[3], filled(counts, size))
        assert got[0].dtype == x.dtype and {a.dtype for a in got[1:]} == {np.dtype("int64")}


def test_parts_of_what_is_known_of_sets() -> None:
    x = draw("int32", 11)
    values, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    got = run(lambda x: (fw.unique_values(x, size=7), *fw.unique_counts(x, size=7)), x)
    for a, b in zip(got, (values, values, counts), strict=True):
        np.testing.assert_array_equal(a, filled(b, 7))
    got = run(lambda x: tuple(fw.unique_inverse(x, size=7, fill=-9)), x)
    np.testing.assert_array_equal(got[0], filled(values, 7, -9))
    np.testing.assert_array_equal(got[1], inverse)


@pytest.mark.parametrize("shape", [(0,), (1,), (2, 0)])
def test_sets_of_few(shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    values, indices, inverse, counts = run(lambda x: tuple(fw.unique_all(x, size=2, fill=7)), x)
    np.testing.assert_array_equal(values, filled(np.unique(x), 2, 7))
    np.testing.assert_array_equal(counts, filled(np.array([1][: x.size]), 2))
    assert indices.tolist() == [0, 0] and inverse.shape == shape


@pytest.mark.parametrize("shape", [(13,), (3, 5), (2, 3, 4), (0,), (3, 0), (1, 1)])
def test_positions_of_what_is_not_zero(shape: tuple[int, ...]) -> None:
    x = np.where(RNG.random(shape) < 0.5, 0, RNG.standard_normal(shape)).astype(np.float32)
    for size in (0, 3, x.size + 2):
        got = run(lambda x, n=size: fw.nonzero(x, size=n, fill=-1), x)
        for a, b in zip(got, np.nonzero(x), strict=True):
            np.testing.assert_array_equal(a, filled(b, size, -1))
            assert a.dtype == np.int64


def test_slices_by_condition() -> None:
    x = draw("int32", 4, 7)
    for axis, mask in ((1, x[0] > 0), (0, x[:, 0] < 1), (None, x > 0)):
        want = np.compress(mask.reshape(-1), x, axis)
        for size in (2, 9):
            (got,) = run(
                lambda m, x, k=axis, n=size: fw.compress(m, x, axis=k, size=n, fill=5), mask, x
            )
            full = np.moveaxis(want, axis or 0, 0)
            rest = np.full((max(size - len(full), 0), *full.shape[1:]), 5, x.dtype)
            full = np.concatenate([full, rest])[:size]
            np.testing.assert_array_equal(got, np.moveaxis(full, 0, axis or 0))


def test_gradients_go_to_what_was_selected() -> None:
    x, m = RNG.standard_normal(8).astype(np.float32), RNG.random(8) < 0.5
    m[2] = True
    (got,) = run(lambda x, m: fw.grad(lambda x: fw.sum(fw.compress(m, x, size=5) ** 2))(x), x, m)
    chosen = np.isin(np.arange(8), np.nonzero(m)[0][:5])
    np.testing.assert_allclose(got, np.where(chosen, 2 * x, 0), rtol=1e-6)


def test_conditions_of_known_data_need_no_size() -> None:
    x = fw.asarray([[1, 2], [3, 4]])
    assert np.asarray(fw.compress(fw.asarray([True, False]), x, axis=1)).tolist() == [[1], [3]]
    assert np.asarray(fw.compress(x > 2, x)).tolist() == [3, 4]


@pytest.mark.parametrize("invert", [False, True])
def test_members(invert: bool) -> None:
    for dtype in ("float32", "int8"):
        x, of = draw(dtype, 4, 5), draw(dtype, 3)
        (got,) = run(lambda x, y: fw.isin(x, y, invert=invert), x, of)
        np.testing.assert_array_equal(got, np.isin(x, of, invert=invert))
    (got,) = run(lambda x, y: fw.isin(x, y, invert=invert), x, of[:0])
    np.testing.assert_array_equal(got, np.isin(x, of[:0], invert=invert))


X = S((4, 5), "float32")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: fw.unique_all(x, size=-1), r"unique_all: size=-1 is negative"),
        (lambda x: fw.unique_counts(x, size=2.5), r"unique_counts: size=2.5 is float"),
        (lambda x: fw.unique_values(x, size=2, fill=x), r"fill has shape \(4, 5\); it must be one"),
        (lambda x: fw.unique_values(x > 0, size=2, fill=0.5), r"unique_values: .*0.5"),
        (lambda x: fw.nonzero(x[0, 0], size=1), r"nonzero of an array of rank 0"),
        (lambda x: fw.nonzero(x, size=1, fill=0.5), r"nonzero: fill=0.5 is float"),
        (lambda x: fw.compress(x > 0, x, axis=0, size=1), r"the condition has shape \(4, 5\) and"),
        (lambda x: fw.compress(x[0] > 0, x, size=1), r"the condition has shape \(5,\) and axis 0"),
        (lambda x: fw.isin(x, x, invert=1), r"isin\(invert=1\): use True or False"),
    ],
)
def test_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(fw.UserError, match=message):
        fw.trace(call, X)


@pytest.mark.parametrize(
    "name", ["unique_all", "unique_counts", "unique_inverse", "unique_values", "nonzero"]
)
def test_what_would_have_a_size_of_its_own_asks_for_it(name: str) -> None:
    with pytest.raises(fw.UnsupportedError, match=rf"{name} of the traced .* give it as size="):
        fw.trace(getattr(fw, name), X)
    with pytest.raises(fw.UnsupportedError, match=r"compress of the traced .* give it as size="):
        fw.trace(lambda x: fw.compress(x > 0, x), X)
