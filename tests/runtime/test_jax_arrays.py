"""Arrays of jax: they come out as themselves, and are never written to."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu
from test_device_arrays import content, filled

import fusewright as fw
from fusewright.runtime.arrays import describe
from fusewright.runtime.memory import DeviceArray

__all__ = ["gpu"]  # a fixture


class FakeArray:
    """An array of a stand-in for jax, on the host or on a device."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.shape, self.dtype = memory.shape, memory.dtype

    def __dlpack__(self, **how: Any) -> object:
        return self.memory.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.memory.__dlpack_device__()


class FakeTracer(FakeArray):
    """What stands for an array inside of a transform."""


class Key(FakeArray):
    """An array that is no array of numbers."""

    def __dlpack_device__(self) -> tuple[int, int]:
        raise AttributeError("no DLPack")


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = types.SimpleNamespace(
        Array=FakeArray,
        core=types.SimpleNamespace(Tracer=FakeTracer),
        numpy=types.SimpleNamespace(from_dlpack=FakeArray),
        devices=lambda kind: [kind],
        device_put=lambda x, device: FakeArray(np.array(x)),
    )
    monkeypatch.setitem(sys.modules, "jax", made)
    yield made


def test_on_the_host(jax: Any) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for device in ("sim", "auto"):
        y, many = fw.fuse(lambda v: (v * 2, {"t": v.T}), device=device)(FakeArray(x))
        assert isinstance(y, FakeArray) and np.array_equal(y.memory, 2 * x)
        assert isinstance(many["t"], FakeArray) and np.array_equal(many["t"].memory, x.T)


def test_on_a_device_results_are_handed_over_by_dlpack(gpu: FakeDriver, jax: Any) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = fw.fuse(lambda v: v * 2 + 1, device="cuda")(FakeArray(filled(x)))
    assert isinstance(y, FakeArray) and isinstance(y.memory, DeviceArray)
    np.testing.assert_array_equal(content(y.memory), x * 2 + 1)


def test_refusals(jax: Any) -> None:
    x = np.zeros((3, 4), np.float32)
    with pytest.raises(fw.UserError, match=r"inside of a transform of jax.*fw.grad and fw.vmap"):
        describe(FakeTracer(x))
    with pytest.raises(fw.UserError, match=r"cannot be shared: no DLPack; pass one of numbers"):
        describe(Key(x))
    f = fw.fuse(lambda v: v + 1, device="sim")
    with pytest.raises(fw.UserError, match=r"out= is an array of jax, which never changes"):
        f(FakeArray(x), out=FakeArray(x))
    with pytest.raises(fw.UserError, match=r"argument 0 is a jax array on cpu, argument 1 a numpy"):
        fw.fuse(lambda a, b: a + b, device="sim")(FakeArray(x), x)


def test_memory_of_jax_is_not_written(gpu: FakeDriver, jax: Any) -> None:
    def stored(c: Any, v: Any) -> Any:
        return fw.insert(c, v, (1, 0))

    c, v = np.zeros((3, 4), np.float32), np.ones((1, 4), np.float32)
    cache, row = FakeArray(filled(c)), FakeArray(filled(v))
    got = fw.fuse(stored, device="cuda", donate=("c",))(cache, row)
    assert content(got.memory).sum() == 4 and content(cache.memory).sum() == 0
    program = fw.compile(fw.trace(stored, "f32[3,4]", "f32[1,4]"), donate=("c",))
    with pytest.raises(fw.UserError, match=r"compiled with donate=, and arrays of jax never"):
        program(cache, row, device="cuda")
    del got, cache, row
    gc.collect()  # what the traceback held is freed where it was allocated


def test_with_jax_itself() -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.arange(12, dtype="bfloat16").reshape(3, 4)
    y, at = fw.fuse(lambda v: (v * 2, fw.argmax(v, axis=1)), device="sim")(x)
    assert isinstance(y, jax.Array) and y.dtype == x.dtype and bool((y == 2 * x).all())
    assert isinstance(at, jax.Array) and at.tolist() == [3, 3, 3]
    with pytest.raises(fw.UserError, match=r"inside of a transform of jax"):
        jax.jit(fw.fuse(lambda v: v + 1, device="sim"))(x)
