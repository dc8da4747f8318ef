"""Arrays of every kind are described without importing their library."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

from fusewright.dtypes import bfloat16, float16, float32, int64
from fusewright.errors import UserError
from fusewright.runtime import arrays
from fusewright.runtime.arrays import CPU, Device, describe


def test_numpy() -> None:
    base = np.zeros((4, 6), np.float32)
    a = describe(base[:, 1::2])
    assert (a.kind, a.device, a.shape, a.dtype, a.strides) == (
        "numpy",
        CPU,
        (4, 3),
        float32,
        (6, 2),
    )
    assert a.pointer == base.ctypes.data + 4


def test_numpy_of_ml_dtypes_scalars_negative_and_zero_strides() -> None:
    assert describe(np.zeros(3, ml_dtypes.bfloat16)).dtype is bfloat16
    assert describe(np.zeros((), np.int64)).shape == ()
    assert describe(np.arange(5)[::-1]).strides == (-1,)
    assert describe(np.broadcast_to(np.float32(1), (3, 4))).strides == (0, 0)


def test_alignment_is_that_of_the_first_element() -> None:
    raw = np.zeros(4096, np.uint8)
    start = -raw.ctypes.data % 1024
    for offset, alignment in ((0, 1024), (4, 4), (16, 16), (1, 1), (512, 512)):
        assert describe(raw[start + offset :]).alignment == alignment


LAYOUTS = {name: f"torch.{name}" for name in ("strided", "sparse_coo")}


class FakeDevice(NamedTuple):
    type: str
    index: int | None


class FakeTensor:
    """What `describe` may ask of a torch tensor."""

    def resolve_neg(self) -> FakeTensor:
        return self

    def __init__(self, device: str = "cuda", index: int | None = 1, layout: str = "strided"):
        self.device = FakeDevice(device, index)
        self.layout = LAYOUTS[layout]
        self.dtype = "torch.bfloat16"
        self.shape = (2, 3)

    def stride(self) -> tuple[int, int]:
        return (3, 1)

    def data_ptr(self) -> int:
        return 0x7F0000000000


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    functorch = types.SimpleNamespace(is_functorch_wrapped_tensor=lambda x: False)
    module = types.SimpleNamespace(
        Tensor=FakeTensor,
        _C=types.SimpleNamespace(_functorch=functorch),
        strided=LAYOUTS["strided"],
    )
    monkeypatch.setitem(sys.modules, "torch", module)


@pytest.mark.usefixtures("torch")
def test_torch_tensors() -> None:
    a = describe(FakeTensor())
    assert (a.kind, a.device, a.dtype, a.strides) == ("torch", Device("cuda", 1), bfloat16, (3, 1))
    assert a.pointer == 0x7F0000000000 and str(a.device) == "cuda:1"
    assert describe(FakeTensor("cpu", None)).device == CPU


@pytest.mark.usefixtures("torch")
def test_torch_tensors_that_are_refused() -> None:
    with pytest.raises(UserError, match=r"torch\.sparse_coo has no strides; use \.to_dense"):
        describe(FakeTensor(layout="sparse_coo"))
    with pytest.raises(UserError, match="only cpu and cuda tensors are supported"):
        describe(FakeTensor(device="mps"))


class DeviceArray:
    """An array that speaks the CUDA array interface."""

    def __init__(self, **view: object) -> None:
        self.__cuda_array_interface__ = {
            "shape": (4, 8),
            "typestr": "<f2",
            "data": (4096, False),
            "version": 3,
            **view,
        }


def test_cuda_array_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "device_of", lambda pointer: 2 if pointer == 4096 else 0)
    a = describe(DeviceArray())
    assert (a.kind, a.device, a.dtype) == ("cuda_array_interface", Device("cuda", 2), float16)
    assert (a.strides, a.ready_on) == ((8, 1), None)
    b = describe(DeviceArray(strides=(2, 8), stream=7))
    assert (b.strides, b.ready_on) == ((1, 4), 7)


def test_cupy_arrays_know_their_device() -> None:
    cupy_array = type("ndarray", (DeviceArray,), {"__module__": "cupy._core.core"})()
    cupy_array.device = types.SimpleNamespace(id=3)
    a = describe(cupy_array)
    assert (a.kind, a.device) == ("cupy", Device("cuda", 3))


def test_dlpack_of_the_host() -> None:
    class Producer:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **kwargs: object) -> object:
            return self.array.__dlpack__(**kwargs)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    base = np.arange(24, dtype=np.int64).reshape(4, 6)
    a = describe(Producer(base[:, ::2]))
    assert (a.kind, a.device, a.shape, a.dtype) == ("dlpack", CPU, (4, 3), int64)
    assert (a.strides, a.pointer) == ((6, 2), base.ctypes.data)
    with pytest.raises(UserError, match="dtype 'code5_64' is not supported"):
        describe(Producer(np.zeros(2, np.complex64)))


def test_dlpack_devices_that_are_refused() -> None:
    other = types.SimpleNamespace(__dlpack__=None, __dlpack_device__=lambda: (8, 0))
    with pytest.raises(UserError, match="DLPack device type 8 is not supported"):
        describe(other)


@pytest.mark.parametrize("thing", [1, [1.0, 2.0], "x", None])
def test_things_that_are_no_arrays(thing: object) -> None:
    with pytest.raises(UserError, match="is not an array; pass a numpy"):
        describe(thing)


def test_numpy_arrays_that_are_refused() -> None:
    with pytest.raises(UserError, match="not in the machine's byte order"):
        describe(np.zeros(3, ">f4"))
    with pytest.raises(UserError, match="masked arrays are not supported"):
        describe(np.ma.array([1.0], mask=[True]))
    with pytest.raises(UserError, match=r"dtype .*complex128.* is not supported"):
        describe(np.zeros(3, np.complex128))
    record = np.zeros(4, [("a", np.int8), ("b", np.float32)])
    with pytest.raises(UserError, match=r"byte strides \(5,\) are no multiples of the 4 bytes"):
        describe(record["b"])
    with pytest.raises(UserError, match="masked device arrays"):
        describe(DeviceArray(mask=object()))


def test_nothing_is_imported_to_describe_an_array() -> None:
    script = (
        "import sys, numpy\n"
        "from fusewright.runtime.arrays import describe\n"
        "describe(numpy.zeros(3))\n"
        "print(*[m for m in ('cupy', 'jax', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("shape", "strides", "overlaps"),
    [
        ((3, 4), (4, 1), False), ((3, 4), (1, 3), False), ((2, 3), (3, 2), False),
        ((4, 3), (3, 2), False),
        ((1, 4), (0, 1), False), ((3, 4), (8, 2), False), ((3, 4), (0, 1), True),
        ((3, 4), (2, 1), True), ((4, 4), (3, 2), True), ((2, 2, 2), (3, 2, 1), True),
    ],
)  # fmt: skip
def test_layouts_whose_elements_share_memory(shape, strides, overlaps: bool) -> None:
    places = {tuple(p): sum(np.multiply(p, strides)) for p in np.ndindex(shape)}
    assert (len(set(places.values())) < len(places)) == overlaps
    assert arrays.overlaps_itself(shape, strides) == overlaps
