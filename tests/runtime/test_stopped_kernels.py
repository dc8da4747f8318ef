"""What a call says of a kernel that has stopped on the device."""

from __future__ import annotations

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu

import fusewright as fw

__all__ = ["gpu"]  # a fixture

X = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
INSIDE, OUTSIDE = np.array([0, 6, -1]), np.array([0, 7, -1])


def test_a_kernel_that_looks_stops_with_an_error_of_ours(gpu: FakeDriver) -> None:
    f = fw.fuse(lambda x, i: fw.take(x, i, axis=0) * 2, device="cuda")
    with fw.config(check_indices=True):
        np.testing.assert_allclose(f(X, INSIDE), X[INSIDE] * 2)
        with pytest.raises(fw.DeviceError, match=r"a kernel stopped.*check_indices=True.*index"):
            f(X, OUTSIDE)
    with pytest.raises(RuntimeError, match=r"CUDA answers no further call: begin a new process"):
        f(X, INSIDE)


def test_without_looking_nothing_stops(gpu: FakeDriver) -> None:
    found = fw.fuse(lambda x, i: fw.take(x, i, axis=0) * 2, device="cuda")(X, OUTSIDE)
    assert np.isnan(found[1]).all() and np.isfinite(found[[0, 2]]).all()
