"""Pads whose elements are computed: against numpy's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nn_checks import normal, run1

import fusewright as fw

X = np.asarray(normal(4, 5, 3)) * 9
N = X.astype(np.int32)
WIDTHS = [0, 2, (1, 3), ((1, 2), (0, 0), (3, 0)), ((2, 1),)]
STATISTICS = ["maximum", "mean", "median", "minimum"]


@pytest.mark.parametrize("stat_length", [None, 2, 9, (1, 3), ((1, 2), (4, 2), (3, 3))], ids=str)
@pytest.mark.parametrize("mode", STATISTICS)
def test_statistics_are_numpys(mode: str, stat_length: Any) -> None:
    for x in (X, N):
        for width in WIDTHS:
            expected = np.pad(x, width, mode, stat_length=stat_length)
            found = run1(lambda x, w=width: fw.pad(x, w, mode, stat_length=stat_length), x)
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("ends", [0, 2.5, (1, -3), ((1, 2), (0, 0), (-3, 7))], ids=str)
def test_ramps_are_numpys(ends: Any) -> None:
    for width in WIDTHS:
        expected = np.pad(X, width, "linear_ramp", end_values=ends)
        found = run1(lambda x, w=width: fw.pad(x, w, "linear_ramp", end_values=ends), X)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_ramps_of_integers_are_rounded_down() -> None:
    expected = np.pad(N, 4, "linear_ramp", end_values=(7, -5))
    found = run1(lambda x: fw.pad(x, 4, "linear_ramp", end_values=(7, -5)), N)
    np.testing.assert_array_equal(found, expected)


def test_empty_is_zero() -> None:
    np.testing.assert_array_equal(run1(lambda x: fw.pad(x, 1, "empty"), X), np.pad(X, 1))


def test_a_median_of_nan_is_nan() -> None:
    x = X.copy()
    x[1, 1, 1] = np.nan
    found = run1(lambda x: fw.pad(x, 1, "median"), x)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(np.pad(x, 1, "median")))


def test_crops_come_first() -> None:
    found = run1(lambda x: fw.pad(x, ((-1, 2), (0, 0), (0, 0)), "mean"), X)
    np.testing.assert_allclose(found, np.pad(X[1:], ((0, 2), (0, 0), (0, 0)), "mean"), rtol=1e-12)


@pytest.mark.parametrize("mode", ["linear_ramp", *STATISTICS])
def test_its_kernels_compute_it(mode: str) -> None:
    x = X.astype(np.float32)
    widths = ((2, 1), (0, 3), (1, 0))
    spec = fw.TensorSpec(x.shape, "float32")
    fusion = fw.trace(lambda x: fw.pad(fw.sin(x), widths, mode), spec)
    result = fw.compile(fusion).simulate(x)
    assert result.races == []
    expected = np.pad(np.sin(x), widths, mode)
    np.testing.assert_allclose(result.outputs[0], expected, rtol=1e-5, atol=1e-6)


def test_symbolic_sizes() -> None:
    fusion = fw.trace(lambda x: fw.pad(x, (2, 1), "mean"), fw.TensorSpec(("n",), "float64"))
    x = X[:, 0, 0]
    np.testing.assert_allclose(fw.evaluate(fusion, x)[0], np.pad(x, (2, 1), "mean"), rtol=1e-12)


def test_gradients() -> None:
    """A mean shares its gradient, a ramp passes what its steps have of the edge."""
    x = np.asarray(normal(4))
    found = run1(fw.grad(lambda x: fw.sum(fw.pad(x, (2, 0), "mean"))), x)
    np.testing.assert_allclose(found, np.full(4, 1.5), rtol=1e-12)
    found = run1(fw.grad(lambda x: fw.sum(fw.pad(x, (4, 0), "linear_ramp"))), x)
    np.testing.assert_allclose(found, [1 + 0.25 + 0.5 + 0.75, 1, 1, 1], rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: fw.pad(x, 1, "mean", stat_length=0), "stat_length=0: 0 elements have no stat"),
        (lambda x: fw.pad(x[:0], 1, "mean"), "axis 0 has size 0, so mode 'mean' has nothing to"),
        (
            lambda x: fw.pad(x, 1, "mean", stat_length=(1, 2, 3, 4)),
            "stat_length=(1, 2, 3, 4) for an",
        ),
        (lambda x: fw.pad(x, 1, "linear_ramp", end_values="a"), "end_values='a' must be a finite"),
        (
            lambda x: fw.pad(x, 1, end_values=2),
            "takes no end_values: it is for linear",
        ),
        (lambda x: fw.pad(x, 1, "edge", stat_length=2), "takes no stat_length: it is for maximum"),
        (lambda x: fw.pad(x > 0, 1, "maximum"), "pad(mode='maximum') of bool: it takes numeric"),
    ],
)
def test_rejections(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(fw.UserError, match=re.escape(message)):
        fw.trace(call, fw.TensorSpec(X.shape, "float32"))
