"""What an array is: of which library, where it lives, its shape, dtype, strides and address.

Recognises numpy, torch, cupy and jax arrays, and anything with `__cuda_array_interface__` or
DLPack. torch, cupy and jax are never imported: an array of theirs can only exist when they are.
"""

from __future__ import annotations

import ctypes
import math
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, cast

import numpy as np

from fusewright.dtypes import DType, dtype_of
from fusewright.errors import FusewrightError, UserError
from fusewright.runtime import dlpack
from fusewright.runtime.device import device_of

Kind = Literal["numpy", "torch", "cupy", "jax", "cuda_array_interface", "dlpack"]
MAX_ALIGNMENT = 1024


@dataclass(frozen=True, slots=True)
class Device:
    """Where memory is: the host, or a GPU by its index."""

    kind: Literal["cpu", "cuda"]
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"cuda:{self.index}"


CPU = Device("cpu")


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """One array. `strides` in elements; `pointer` is the address of its first element;
    `alignment` the largest power of two (at most 1024) that divides it. `owner` keeps the memory
    alive. `ready_on` is the stream its contents are ready on, None when nothing need be waited for.
    """

    kind: Kind
    device: Device
    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...]
    pointer: int
    owner: object = field(repr=False)
    ready_on: int | None = None

    @property
    def alignment(self) -> int:
        return min(self.pointer & -self.pointer, MAX_ALIGNMENT) or MAX_ALIGNMENT

    @property
    def is_read_only(self) -> bool:
        """Whether its library forbids to write to it."""
        return self.kind == "numpy" and not host_view(self).flags.writeable

    @property
    def bytes_range(self) -> tuple[int, int]:
        """The addresses of its first byte and behind its last one; equal without elements."""
        if 0 in self.shape:
            return self.pointer, self.pointer
        ends = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low, high = sum(e for e in ends if e < 0), sum(e for e in ends if e > 0) + 1
        size = self.dtype.nbytes
        return self.pointer + low * size, self.pointer + high * size

    @property
    def hull_nbytes(self) -> int:
        """The bytes from its first one to its last one, those of gaps between elements too."""
        start, end = self.bytes_range
        return end - start

    def is_same_memory(self, other: ArrayInfo) -> bool:
        """Whether the same elements lie at the same addresses."""
        same = self.shape == other.shape and self.strides == other.strides
        at = self.device == other.device and self.pointer == other.pointer
        return same and at and self.dtype is other.dtype

    def overlaps(self, other: ArrayInfo) -> bool:
        """Whether the memory from first to last byte meets that of another array."""
        if self.device != other.device:
            return False
        (a, b), (c, d) = self.bytes_range, other.bytes_range
        return a < d and c < b


def describe(array: object) -> ArrayInfo:
    """The description of an array of any known library.

    Raises UserError for anything else, for element types and byte orders that kernels do not
    have, and for memory that is neither the host's nor a CUDA device's.
    """
    if isinstance(array, np.ndarray):
        return _numpy(array)  # pyright: ignore[reportUnknownArgumentType]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _torch(array)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return _jax(array)
    if hasattr(array, "__cuda_array_interface__"):
        return _as_told(array, "__cuda_array_interface__", _cuda_array_interface)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _as_told(array, "__dlpack__", _dlpack)
    raise UserError(
        f"{type(array).__module__}.{type(array).__qualname__} is not an array; pass a numpy, "
        "torch, cupy or jax array, or anything with __cuda_array_interface__ or __dlpack__"
        + ("; bind a function ahead of fw.fuse: functools.partial" if callable(array) else "")
    )


def _as_told(array: object, protocol: str, read: Callable[[Any], ArrayInfo]) -> ArrayInfo:
    """What an array of an unknown library says of itself. UserError where that makes no array."""
    try:
        return read(array)
    except FusewrightError:
        raise
    except Exception as e:  # whatever the other library raises, or the reading of what it says
        name = f"{type(array).__module__}.{type(array).__qualname__}"
        raise UserError(
            f"the {protocol} of {name} describes no array ({type(e).__name__}: {e}); pass an array "
            "of numpy, torch, cupy or jax made of it"
        ) from e


def describe_target(array: object) -> ArrayInfo:
    """The description of an array that is written to. Raises UserError for what `describe` refuses,
    for a tensor that only stands for negated memory, and for arrays of jax."""
    found = describe(array)
    if found.kind == "jax":
        raise UserError("out= is an array of jax, which never changes; take what the call returns")
    if found.kind == "torch" and found.owner is not array:
        raise UserError(
            "an array of out= is a negated view, whose memory holds other numbers; pass a tensor "
            "of its own memory"
        )
    return found


def _elements(nbytes: Sequence[int], dtype: DType, what: str) -> tuple[int, ...]:
    if any(s % dtype.nbytes for s in nbytes):
        raise UserError(
            f"{what}: byte strides {tuple(nbytes)} are no multiples of the {dtype.nbytes} bytes "
            f"of {dtype}; pass a copy"
        )
    return tuple(s // dtype.nbytes for s in nbytes)


def c_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The element strides of C order."""
    out: list[int] = []
    step = 1
    for n in reversed(shape):
        out.append(step)
        step *= max(n, 1)
    return tuple(reversed(out))


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements of a layout lie at one place."""
    axes = sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1)
    reach = 0
    for s, n in axes:
        if s <= reach:
            break
        reach += (n - 1) * s
    else:
        return False
    if any(s == 0 for s, _ in axes):
        return True
    places = np.zeros(1, np.int64)
    for s, n in axes:
        places = np.unique(places[:, None] + s * np.arange(n)).reshape(-1)
    return places.size < math.prod(n for _, n in axes)


def _numpy(array: np.ndarray[Any, Any]) -> ArrayInfo:
    if isinstance(array, np.ma.MaskedArray):
        raise UserError("masked arrays are not supported; fill the mask first (array.filled())")
    if not array.dtype.isnative:
        raise UserError(
            f"numpy array of {array.dtype!r} is not in the machine's byte order; convert it with "
            "array.astype(array.dtype.newbyteorder('='))"
        )
    dtype = dtype_of(array.dtype)
    strides = _elements(array.strides, dtype, "numpy array")
    pointer: int = array.__array_interface__["data"][0]
    return ArrayInfo("numpy", CPU, array.shape, dtype, strides, pointer, array)


def _torch(tensor: Any) -> ArrayInfo:
    torch: Any = sys.modules["torch"]
    if tensor.layout is not torch.strided:
        raise UserError(f"torch tensor of layout {tensor.layout} has no strides; use .to_dense()")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise UserError(
            "the torch tensor is inside of a transform (torch.func.vmap, grad, jvp, ...), which "
            "cannot look into a fused call; call it outside, or write it with torch's operators "
            "under torch.compile(backend='fusewright')"
        )
    tensor = tensor.resolve_neg()
    device, dtype = _torch_device(tensor.device), _torch_dtype(tensor.dtype)
    shape, strides = tuple(tensor.shape), tensor.stride()
    return ArrayInfo("torch", device, shape, dtype, strides, tensor.data_ptr(), tensor)


@cache
def _torch_device(device: Any) -> Device:
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"torch tensor on {device}; only cpu and cuda tensors are supported")
    return CPU if device.type == "cpu" else Device("cuda", device.index or 0)


@cache
def _torch_dtype(dtype: Any) -> DType:
    return dtype_of(dtype)


def _cuda_array_interface(array: Any) -> ArrayInfo:
    view: dict[str, Any] = array.__cuda_array_interface__
    if view.get("mask") is not None:
        raise UserError("masked device arrays are not supported; fill the mask first")
    dtype = dtype_of(getattr(array, "dtype", None) or view["typestr"])
    shape = tuple(map(operator.index, view["shape"]))
    nbytes = view.get("strides")
    if min(shape, default=0) < 0 or (nbytes is not None and len(nbytes) != len(shape)):
        raise ValueError(f"shape {shape} with byte strides {nbytes}")
    strides = c_strides(shape) if nbytes is None else _elements(nbytes, dtype, "device array")
    pointer: int = view["data"][0]
    index = getattr(getattr(array, "device", None), "id", None)
    if index is None:
        index = device_of(pointer) if pointer else 0
    is_cupy = type(array).__module__.partition(".")[0] == "cupy"
    kind: Kind = "cupy" if is_cupy else "cuda_array_interface"
    return ArrayInfo(
        kind, Device("cuda", index), shape, dtype, strides, pointer, array, view.get("stream")
    )


def _jax(array: Any) -> ArrayInfo:
    """Arrays of jax through DLPack, whose contents are ready on the legacy default stream."""
    jax: Any = sys.modules["jax"]
    if isinstance(array, jax.core.Tracer):
        raise UserError(
            "the array is inside of a transform of jax (jit, grad, vmap, ...), which cannot look "
            "into a fused call; call it outside, or take fw.grad and fw.vmap"
        )
    if array.is_deleted():
        raise UserError(
            f"the array of jax, {array.dtype}{tuple(array.shape)}, was deleted, as donate_argnums "
            "of jax.jit does; pass an array that still has its elements"
        )
    try:
        found = _dlpack(array)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as e:
        raise UserError(
            f"the array of jax, {array.dtype}{tuple(array.shape)}, cannot be shared: {e}; pass one "
            "of numbers that lies on one device"
        ) from None
    return replace(found, kind="jax")


# --- DLPack -------------------------------------------------------------------------------------

_LEGACY_STREAM = 1


def _dlpack(array: Any) -> ArrayInfo:
    where, index = (int(v) for v in array.__dlpack_device__())
    if where in (dlpack.CPU, dlpack.CUDA_HOST):
        device, capsule = CPU, array.__dlpack__()
    elif where in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        device, capsule = Device("cuda", index), array.__dlpack__(stream=_LEGACY_STREAM)
    else:
        raise UserError(f"DLPack device type {where} is not supported; use host or CUDA memory")
    t = _dl_tensor(capsule)
    dtype = _dl_dtype(t)
    shape = tuple(t.shape[k] for k in range(t.ndim))
    strides = tuple(t.strides[k] for k in range(t.ndim)) if t.strides else c_strides(shape)
    pointer = (t.data or 0) + t.byte_offset
    return ArrayInfo("dlpack", device, shape, dtype, strides, pointer, (array, capsule))


def _dl_tensor(capsule: object) -> dlpack.DLTensor:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return dlpack.DLTensor.from_address(get(capsule, b"dltensor"))


def _dl_dtype(t: dlpack.DLTensor) -> DType:
    name = (
        dlpack.NAMES.get((t.code, t.bits))
        or f"{dlpack.KINDS.get(t.code, f'code{t.code}_')}{t.bits}"
    )
    if t.lanes != 1:
        raise UserError(f"DLPack element type of {t.lanes} lanes is not supported")
    return dtype_of(name)


def host_view(info: ArrayInfo) -> np.ndarray[Any, Any]:
    """Host memory as a numpy array, without a copy, whatever library it comes from."""
    if info.kind == "numpy":
        return cast("np.ndarray[Any, Any]", info.owner)
    if 0 in info.shape:
        return np.empty(info.shape, info.dtype.numpy)
    first, last = info.bytes_range
    raw = (ctypes.c_char * (last - first)).from_address(first)
    strides = tuple(s * info.dtype.nbytes for s in info.strides)
    at = info.pointer - first
    return np.ndarray(info.shape, info.dtype.numpy, memoryview(raw), at, strides)
