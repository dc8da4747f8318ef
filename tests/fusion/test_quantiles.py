"""Medians, quantiles and splits against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw


@pytest.mark.parametrize("shape", [(7,), (4, 9), (3, 1), (2, 5, 6)])
@pytest.mark.parametrize("q", [0, 0.3, 0.5, 1, (0.1, 0.9)])
def test_quantiles(shape: tuple[int, ...], q: Any) -> None:
    rng = np.random.default_rng(len(shape))
    x = rng.normal(size=shape).astype(np.float32)
    for axis in (None, -1, 0):
        for keepdims in (False, True):
            f = fw.fuse(
                lambda x, axis=axis, k=keepdims: fw.quantile(x, q, axis=axis, keepdims=k),
                device="sim",
            )
            want = np.quantile(x, q, axis=axis, keepdims=keepdims)
            got = f(x)
            assert got.shape == want.shape and got.dtype == np.float32
            assert np.allclose(got, want, rtol=1e-6, atol=1e-6)


def test_shares_may_be_data() -> None:
    x = np.random.default_rng(3).normal(size=(4, 9)).astype(np.float32)
    for q in (np.array([0.25, 0.75]), fw.asarray([0.25, 0.75])):
        (got,) = fw.evaluate(fw.trace(lambda x, q=q: fw.quantile(x, q, axis=1), "f32[4,9]"), x)
        assert np.allclose(got, np.quantile(x, [0.25, 0.75], axis=1), rtol=1e-6)
    with pytest.raises(fw.UserError, match="quantile \\(q\\) of the traced array"):
        fw.trace(lambda x, q: fw.quantile(x, q), "f32[9]", "f32[2]")


def test_medians() -> None:
    rng = np.random.default_rng(0)
    n = rng.integers(0, 99, (5, 6))
    got = fw.fuse(lambda n: fw.median(n, axis=1), device="sim")(n)
    assert got.dtype == np.float64 and np.array_equal(got, np.median(n, axis=1))
    x = np.array([[1, np.nan, 3], [4, 5, 6]], np.float32)
    got = fw.fuse(lambda x: fw.median(x, axis=1), device="sim")(x)
    assert np.isnan(got[0]) and got[1] == 5


def test_splits() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 12)
    for parts, axis in ((3, 1), (2, 0), ([2, 2, 7], -1), ([1], 0), ([], 1)):
        got = fw.fuse(lambda x, p=parts, a=axis: fw.split(x, p, axis=a), device="sim")(x)
        want = np.split(x, parts, axis=axis)
        assert len(got) == len(want)
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda x: fw.quantile(x, 1.5), r"quantile: q=1.5 is a share .*from 0 to 1"),
        (lambda x: fw.quantile(x, ()), r"q=\(\) has no shares"),
        (lambda x: fw.median(x[:0], axis=0), r"median: axis 0 has size 0"),
        (lambda x: fw.median(x, axis=2), r"median: axis 2 of an array of rank 2"),
        (lambda x: fw.split(x, 5, axis=1), r"split: 5 equal parts of axis 1 of size 4"),
        (lambda x: fw.split(x, 0), r"split: 0 equal parts"),
        (lambda x: fw.split(x, "a"), r"split: parts='a' is str"),
    ],
)
def test_refusals(attempt: Any, message: str) -> None:
    with pytest.raises(fw.UserError, match=message):
        fw.trace(attempt, "f32[3,4]")
