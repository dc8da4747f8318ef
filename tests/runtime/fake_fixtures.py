"""Fixtures: a GPU that is a simulator, and a torch that is numpy."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from fake_cuda import FakeDriver
from fake_torch import FakeTorch

from fusewright.kernel import Kernel
from fusewright.programs import calls as calls_module
from fusewright.runtime import (
    bound,
    clock,
    constants,
    control,
    device,
    executor,
    forks,
    graphs,
    launch,
    memory,
    plan,
    prepared,
    region_graphs,
    state,
    tensor_maps,
    torch_calls,
)

kernel_module = sys.modules["fusewright.kernel"]  # fw.kernel is a function

_DRIVEN = (
    bound, clock, constants, control, device, executor, forks, graphs, launch, memory, plan,
    prepared, region_graphs, state, tensor_maps,
)  # fmt: skip


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Every module sees the fake driver; kernels are known to it once their code is asked for."""
    fake = FakeDriver()
    for module in _DRIVEN:
        monkeypatch.setattr(module, "driver", lambda: fake)
    for module in (device, calls_module, kernel_module):
        monkeypatch.setattr(module, "has_gpu", lambda: True)
    monkeypatch.setattr(clock, "FLUSH_NBYTES", 1024)  # there is no cache to write over

    def cubin(self: Kernel) -> bytes:
        fake.register(self.ir)
        return b"code"

    monkeypatch.setattr(Kernel, "cubin", cubin)
    monkeypatch.setattr(Kernel, "start_compiling", lambda self, together=(): None)
    launch._library.cache_clear()
    region_graphs._setter.cache_clear()
    tensor_maps._known.clear()
    device._primary_context.cache_clear()
    device.device_name.cache_clear()
    forks.forget_streams()
    yield fake
    tensor_maps._known.clear()
    launch._library.cache_clear()
    region_graphs._setter.cache_clear()
    device._primary_context.cache_clear()
    device.device_name.cache_clear()


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTorch]:
    """A module called torch."""
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(torch_calls, "_KEYS", dict(torch_calls._KEYS))
    yield fake
