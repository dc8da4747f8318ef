"""What the runtime asks of an array library: new arrays, the current stream, and copies.

Libraries are found through their arrays and never imported: an array of theirs can only exist
when they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from fusewright.dtypes import DType
from fusewright.errors import InternalError, UserError
from fusewright.runtime.arrays import ArrayInfo, Device, Kind
from fusewright.runtime.memory import DeviceArray


class Library(Protocol):
    """One array library, as far as calls of programs need it."""

    def empty(
        self, shape: Sequence[int], strides: Sequence[int], dtype: DType, device: Device
    ) -> Any:
        """A new array; element strides. Its memory is ordered on the current stream."""
        ...

    def stream(self, device: Device) -> int:
        """The CUstream that the caller works on."""
        ...

    def copy(self, target: Any, source: Any) -> None:
        """`target[...] = source` on the current stream; equal shapes and dtypes."""
        ...

    def contiguous(self, array: Any) -> Any:
        """A copy in C order at a fresh, aligned address."""
        ...

    def changed(self, array: Any) -> None:
        """Tells the library that an array was written in place."""
        ...

    def address(self, array: Any) -> int:
        """The address of the first element."""
        ...

    def shown(self, array: Any) -> Any:
        """A result, which `empty` made, as the caller gets it."""
        ...

    def view(
        self, array: Any, start: Sequence[int], shape: Sequence[int], strides: Sequence[int]
    ) -> Any:
        """An array in the memory of another one, from its element at `start` on; element strides.
        Raises UserError where the library has no such arrays."""
        ...


class Torch:
    """torch tensors, on the host and on GPUs."""

    def __init__(self) -> None:
        self._torch: Any = sys.modules["torch"]
        self._dtypes: dict[DType, Any] = {}

    def empty(
        self, shape: Sequence[int], strides: Sequence[int], dtype: DType, device: Device
    ) -> Any:
        return self._torch.empty_strided(
            tuple(shape), tuple(strides), dtype=self.dtype(dtype), device=self.device(device)
        )

    def dtype(self, dtype: DType) -> Any:
        """The torch dtype."""
        name = {"float8_e4m3": "float8_e4m3fn"}.get(dtype.name, dtype.name)
        found = getattr(self._torch, name, None)
        if found is None:
            raise UserError(f"this torch has no dtype {dtype}; cast the result")
        return found

    def device(self, device: Device) -> Any:
        """The torch device."""
        return self._torch.device(*(("cpu",) if device.kind == "cpu" else ("cuda", device.index)))

    def stream(self, device: Device) -> int:
        return int(self._torch.cuda.current_stream(device.index).cuda_stream)

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def contiguous(self, array: Any) -> Any:
        return array.clone(memory_format=self._torch.contiguous_format)

    def changed(self, array: Any) -> None:
        self._torch.autograd.graph.increment_version(array)

    def address(self, array: Any) -> int:
        return array.data_ptr()

    def shown(self, array: Any) -> Any:
        return array

    def view(
        self, array: Any, start: Sequence[int], shape: Sequence[int], strides: Sequence[int]
    ) -> Any:
        first = array.storage_offset()
        if 0 not in shape:
            first += sum(n * s for n, s in zip(start, array.stride(), strict=True))
        return array.as_strided(tuple(shape), tuple(strides), first)


class Cupy:
    """cupy arrays."""

    def __init__(self) -> None:
        self._cupy: Any = sys.modules["cupy"]

    def empty(
        self, shape: Sequence[int], strides: Sequence[int], dtype: DType, device: Device
    ) -> Any:
        cp = self._cupy
        with cp.cuda.Device(device.index):
            span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            flat = cp.empty(0 if 0 in shape else span, dtype.numpy)
            nbytes = [s * dtype.nbytes for s in strides]
            return cp.ndarray(tuple(shape), dtype.numpy, flat.data, tuple(nbytes))

    def stream(self, device: Device) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)

    def copy(self, target: Any, source: Any) -> None:
        target[...] = source

    def contiguous(self, array: Any) -> Any:
        return array.copy(order="C")

    def changed(self, array: Any) -> None:
        pass

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def shown(self, array: Any) -> Any:
        return array

    def view(
        self, array: Any, start: Sequence[int], shape: Sequence[int], strides: Sequence[int]
    ) -> Any:
        nbytes = [s * array.dtype.itemsize for s in strides]
        as_strided = self._cupy.lib.stride_tricks.as_strided
        return as_strided(_from(array, start, shape), tuple(shape), nbytes)


class Numpy:
    """numpy arrays, and host memory of libraries without a name."""

    def empty(
        self, shape: Sequence[int], strides: Sequence[int], dtype: DType, device: Device
    ) -> Any:
        order = sorted(range(len(shape)), key=lambda a: -strides[a])
        dense = np.empty([shape[a] for a in order], dtype.numpy)
        return dense.transpose(np.argsort(order)) if order else dense

    def stream(self, device: Device) -> int:
        return 0

    def copy(self, target: Any, source: Any) -> None:
        target[...] = source

    def contiguous(self, array: Any) -> Any:
        return np.array(array, order="C")

    def changed(self, array: Any) -> None:
        pass

    def address(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0])

    def shown(self, array: Any) -> Any:
        return array

    def view(
        self, array: Any, start: Sequence[int], shape: Sequence[int], strides: Sequence[int]
    ) -> Any:
        """Not to be written to where elements share memory."""
        seen = np.asarray(array)
        nbytes = [s * seen.dtype.itemsize for s in strides]
        apart = all(s or n == 1 for s, n in zip(strides, shape, strict=True))
        return np.lib.stride_tricks.as_strided(
            _from(seen, start, shape),
            tuple(shape),
            nbytes,
            writeable=apart and seen.flags.writeable,
        )


class Interface:
    """Device arrays that only describe themselves: results are `DeviceArray`s on the legacy
    default stream, which every blocking stream waits for."""

    def empty(
        self, shape: Sequence[int], strides: Sequence[int], dtype: DType, device: Device
    ) -> Any:
        return DeviceArray(tuple(shape), tuple(strides), dtype, device.index)

    def stream(self, device: Device) -> int:
        return 0

    def copy(self, target: Any, source: Any) -> None:
        raise UserError(
            f"out= of {type(target).__name__} cannot take this result: its strides, alignment or "
            "memory do not allow the kernel to write it directly; pass a C-contiguous array that "
            "overlaps no argument"
        )

    def contiguous(self, array: Any) -> Any:
        raise UserError(
            f"{type(array).__name__} has negative strides or a misaligned address and no library "
            "to copy it with; pass a contiguous copy"
        )

    def changed(self, array: Any) -> None:
        pass

    def address(self, array: Any) -> int:
        return int(array.__cuda_array_interface__["data"][0])

    def shown(self, array: Any) -> Any:
        return array

    def view(
        self, array: Any, start: Sequence[int], shape: Sequence[int], strides: Sequence[int]
    ) -> Any:
        raise UserError(
            f"alias_results=True: no library is known that makes views of {type(array).__name__}; "
            "pass arrays of numpy, torch or cupy, or compile without alias_results"
        )


class Jax:
    """jax arrays, which never change: results are made in other memory, and given to jax."""

    def __init__(self, device: Device) -> None:
        self._jax: Any = sys.modules["jax"]
        self._is_host = device.kind == "cpu"
        self._memory: Library = Numpy() if self._is_host else Interface()

    def empty(
        self, shape: Sequence[int], strides: Sequence[int], dtype: DType, device: Device
    ) -> Any:
        return self._memory.empty(shape, strides, dtype, device)

    def stream(self, device: Device) -> int:
        return self._memory.stream(device)

    def copy(self, target: Any, source: Any) -> None:
        self._memory.copy(target, source)

    def contiguous(self, array: Any) -> Any:
        raise UserError(
            "the array of jax has strides or an address that no kernel reads, and must be copied; "
            "pass jax.numpy.copy of it"
        )

    def changed(self, array: Any) -> None:
        raise InternalError("arrays of jax are not written to")

    def address(self, array: Any) -> int:
        return self._memory.address(array)

    def shown(self, array: Any) -> Any:
        """An array of jax in the same memory, or, on the host, a copy with jax's dtype: without
        64 bits, which jax has where it was told so, integers and floats have 32."""
        if self._is_host:
            return self._jax.device_put(array, self._jax.devices("cpu")[0])
        return self._jax.numpy.from_dlpack(array)

    def view(
        self, array: Any, start: Sequence[int], shape: Sequence[int], strides: Sequence[int]
    ) -> Any:
        raise UserError(
            "alias_results=True: arrays of jax never share memory; compile without alias_results"
        )


def _from(array: Any, start: Sequence[int], shape: Sequence[int]) -> Any:
    """The part of an array from a place on; all of it for a view without elements."""
    return array[(..., *(slice(n, None) for n in start))] if 0 not in shape else array


def library_of(kind: Kind, device: Device) -> Library:
    """The library of arrays of a kind."""
    match kind:
        case "numpy":
            return Numpy()
        case "torch":
            return Torch()
        case "cupy":
            return Cupy()
        case "jax":
            return Jax(device)
        case "cuda_array_interface" | "dlpack":
            return Numpy() if device.kind == "cpu" else Interface()


def common(infos: Sequence[ArrayInfo]) -> tuple[Kind, Device]:
    """The one kind and device of a call. Raises UserError that names the ones that differ."""
    first = infos[0]
    for k, x in enumerate(infos):
        if x.kind != first.kind or x.device != first.device:
            raise UserError(
                f"argument 0 is a {first.kind} array on {first.device}, argument {k} a {x.kind} "
                f"array on {x.device}; a call takes arrays of one library on one device (Python "
                "scalars anywhere)"
            )
    return first.kind, first.device
