"""Arrays that a program holds itself: on a device they are copied there once."""

from __future__ import annotations

import numpy as np
from fake_cuda import FakeDriver
from fake_fixtures import gpu, torch
from fake_torch import FakeTorch, tensor

import fusewright as fw

__all__ = ["gpu", "torch"]  # fixtures

MEAN = np.array([0.5, 0.25, 2.0], np.float32)
X = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)


def test_tensors_meet_constants_on_their_device(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x: (x - MEAN) * fw.asarray(MEAN * 2))
    want = (X - MEAN) * (MEAN * 2)
    np.testing.assert_allclose(f(tensor(X)).array, want, rtol=1e-6)
    gpu.calls.clear()
    for _ in range(3):
        np.testing.assert_allclose(f(tensor(X)).array, want, rtol=1e-6)
    assert dict(gpu.calls)["cuLaunchKernelEx"] == 3
    assert "cuMemcpyHtoD" not in gpu.calls and "cuMemAllocAsync" not in gpu.calls


def test_host_arrays_meet_constants_on_the_gpu(gpu: FakeDriver, torch: FakeTorch) -> None:
    f = fw.fuse(lambda x: x - MEAN)
    np.testing.assert_allclose(f(X), X - MEAN, rtol=1e-6)


def test_owners_of_methods_are_read_at_every_call(gpu: FakeDriver, torch: FakeTorch) -> None:
    class Model:
        def __init__(self) -> None:
            self.weight = tensor(MEAN)

        @fw.fuse
        def forward(self, x):
            return x * self.weight

    m = Model()
    np.testing.assert_allclose(m.forward(tensor(X)).array, X * MEAN, rtol=1e-6)
    m.weight = tensor(MEAN + 1)
    np.testing.assert_allclose(m.forward(tensor(X)).array, X * (MEAN + 1), rtol=1e-6)
