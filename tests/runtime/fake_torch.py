"""As much of torch as the runtime asks: tensors with strides in "device" memory of this process."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np


class DType:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


NAMES = ("float32", "float64", "float16", "int32", "int64", "uint8", "bool")
DTYPES = {n: DType(n) for n in NAMES}


_devices: dict[tuple[str, int | None], TorchDevice] = {}


class TorchDevice:
    def __new__(cls, type: str, index: int | None = None) -> TorchDevice:
        made = _devices.setdefault((type, index), super().__new__(cls))
        made.type, made.index = type, index
        return made

    def __repr__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


CUDA = TorchDevice("cuda", 0)
STRIDED = "torch.strided"


class Tensor:
    """A numpy array that says it is on a device. The allocator aligns to 512 bytes."""

    __module__ = "torch"
    __torch_dispatch__ = None

    def is_neg(self) -> bool:
        return False

    def resolve_neg(self) -> Tensor:
        return self

    def __init__(self, array: Any, device: TorchDevice = CUDA) -> None:
        self.array = array
        self.device = device
        self.dtype = DTYPES[array.dtype.name]
        self.shape = tuple(array.shape)
        self.layout = STRIDED
        self.requires_grad = False
        self.tangent: Any = None
        self._base: Tensor | None = None

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def data_ptr(self) -> int:
        return self.array.__array_interface__["data"][0]

    def copy_(self, other: Tensor) -> None:
        self.array[...] = other.array

    def clone(self) -> Tensor:
        return tensor(self.array.copy(), self.stride(), self.device)

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize

    def permute(self, order: tuple[int, ...]) -> Tensor:
        view = Tensor(self.array.transpose(order), self.device)
        view._base = self
        return view


class Parameter(Tensor):
    pass


class FakeTorch(SimpleNamespace):
    """The module. `allocations` are the shapes asked for, `stream` the current stream."""

    __hash__ = object.__hash__

    def __init__(self) -> None:
        super().__init__(**DTYPES)
        self.Tensor = Tensor
        self.strided = STRIDED
        self.nn = SimpleNamespace(Parameter=Parameter)
        self.device = TorchDevice
        self.allocations: list[tuple[int, ...]] = []
        self.stream = 77
        self.grad = False
        self.captured = False
        self.current = 0
        self.is_grad_enabled = lambda: self.grad
        self.changed: list[Tensor] = []
        self.autograd = SimpleNamespace(
            graph=SimpleNamespace(increment_version=self._increment),
            forward_ad=SimpleNamespace(
                _current_level=-1, unpack_dual=lambda x: SimpleNamespace(tangent=x.tangent)
            ),
        )
        self._C = SimpleNamespace(
            _len_torch_dispatch_stack=lambda: 0,
            _functorch=SimpleNamespace(is_functorch_wrapped_tensor=lambda x: False),
        )
        self.compiler = SimpleNamespace(is_compiling=lambda: False)
        self._is_functional_tensor = lambda x: False
        self.cuda = SimpleNamespace(
            current_device=lambda: self.current,
            current_stream=lambda index: SimpleNamespace(cuda_stream=self.stream + index),
            is_current_stream_capturing=lambda: self.captured,
        )

    def _increment(self, changed: Any) -> None:
        """As torch's takes a tensor or several."""
        self.changed += [changed] if isinstance(changed, Tensor) else changed

    def empty_strided(self, shape: Any, strides: Any, *, dtype: Any, device: Any) -> Tensor:
        self.allocations.append(tuple(shape))
        return tensor(np.empty(shape, dtype.name), strides, device)


def tensor(array: Any, strides: Any = None, device: TorchDevice = CUDA) -> Tensor:
    """A tensor at an address that is a multiple of 512, in C order or with element strides."""
    array = np.asarray(array)
    if strides is None:
        strides = [math.prod(array.shape[k + 1 :]) for k in range(array.ndim)]
    span = 1 + sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True))
    nbytes = 0 if 0 in array.shape else span * array.itemsize
    raw = np.zeros(nbytes + 1024, np.uint8)
    start = -raw.__array_interface__["data"][0] % 512
    view = np.ndarray(
        array.shape, array.dtype, raw.data, start, [s * array.itemsize for s in strides]
    )
    if array.size:
        view[...] = array
    return Tensor(view, device)
