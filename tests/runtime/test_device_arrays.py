"""Arrays of our own: DLPack and the CUDA array interface, lifetimes, and what they refuse."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu

import fusewright as fw
from fusewright.dtypes import ALL, dtype_of
from fusewright.runtime import dlpack
from fusewright.runtime.arrays import describe
from fusewright.runtime.memory import DeviceArray

__all__ = ["gpu"]  # a fixture


class Only:
    """A device array that knows DLPack and nothing else."""

    def __init__(self, array: DeviceArray) -> None:
        self._array = array

    def __dlpack__(self, **how: Any) -> object:
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def filled(values: np.ndarray) -> DeviceArray:
    strides = tuple(s // values.itemsize for s in values.strides)
    made = DeviceArray(values.shape, strides, dtype_of(values.dtype), 0)
    ctypes.memmove(made.pointer, values.ctypes.data, values.nbytes)
    return made


def content(a: DeviceArray) -> np.ndarray:
    raw = (ctypes.c_char * a.nbytes).from_address(a.pointer)
    return np.frombuffer(raw, a.dtype.numpy).reshape(a.shape).copy()


def test_arrays_of_dlpack_alone_come_back_as_device_arrays(gpu: FakeDriver) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = fw.fuse(lambda v: v * 2 + 1, device="cuda")(Only(filled(x)))
    assert isinstance(y, DeviceArray)
    assert y.__cuda_array_interface__["shape"] == (3, 4) and y.__dlpack_device__() == (2, 0)
    np.testing.assert_array_equal(content(y), x * 2 + 1)


@pytest.mark.parametrize("dtype", [d.name for d in ALL])
def test_a_capsule_describes_the_array(gpu: FakeDriver, dtype: str) -> None:
    made = DeviceArray((2, 3, 0 + 5), (15, 5, 1), dtype_of(dtype), 0)
    info = describe(Only(made))
    assert (info.shape, info.strides, info.dtype.name) == ((2, 3, 5), (15, 5, 1), dtype)
    assert (info.pointer, info.device.index) == (made.pointer, 0)


def test_a_capsule_keeps_its_memory_until_it_is_dropped(gpu: FakeDriver) -> None:
    made = DeviceArray((4,), (1,), dtype_of("float32"), 0)
    alive = weakref.ref(made)
    capsule = made.__dlpack__()
    del made
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None and not dlpack._lent


def test_a_consumer_gives_the_memory_back(gpu: FakeDriver) -> None:
    """What a library does: renames the capsule, and calls the deleter when it is done."""
    made = DeviceArray((4,), (1,), dtype_of("float32"), 0)
    alive = weakref.ref(made)
    capsule = made.__dlpack__()
    address = next(iter(dlpack._lent))
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
    rename(capsule, b"used_dltensor")
    del made, capsule
    gc.collect()
    assert alive() is not None, "the consumer has it"
    dlpack._DLManagedTensor.from_address(address).deleter(address)
    gc.collect()
    assert alive() is None and not dlpack._lent


@pytest.mark.parametrize("stream", [None, -1, 1, 77])
def test_the_consumers_stream_waits(gpu: FakeDriver, stream: int | None) -> None:
    made = DeviceArray((4,), (1,), dtype_of("float32"), 0)
    gpu.calls.clear()
    made.__dlpack__(stream=stream)
    assert gpu.calls["cuStreamWaitEvent"] == (stream == 77)


@pytest.mark.parametrize("how", [{"copy": True}, {"dl_device": (1, 0)}, {"dl_device": (2, 1)}])
def test_rejects_copies_and_other_devices(gpu: FakeDriver, how: dict[str, Any]) -> None:
    made = DeviceArray((4,), (1,), dtype_of("float32"), 0)
    with pytest.raises(BufferError, match="its own memory on CUDA device 0 only"):
        made.__dlpack__(**how)
