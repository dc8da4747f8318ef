"""Device memory of the runtime's own: results for libraries that cannot be asked, and copies."""

from __future__ import annotations

import weakref
from typing import Any

from fusewright.dtypes import DType
from fusewright.runtime import dlpack
from fusewright.runtime.device import LEGACY_STREAMS, check, current, driver, wait_for

_TYPESTR_OF_BITS = {1: "|u1", 2: "<u2"}


class DeviceArray:
    """An array in device memory that describes itself by `__cuda_array_interface__` (version 3)
    and by DLPack.

    Contents are ready on the legacy default stream. Short floats are shown as unsigned integers
    of their size: the interface has no name for them; `dtype` has it.
    """

    def __init__(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, device: int
    ) -> None:
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.device = device
        span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        self.nbytes = 0 if 0 in shape else span * dtype.nbytes
        self.pointer = allocate(self.nbytes, device) if self.nbytes else 0
        weakref.finalize(self, free, self.pointer, device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        custom = self.dtype.numpy.kind == "V"
        return {
            "shape": self.shape,
            "strides": tuple(s * self.dtype.nbytes for s in self.strides),
            "typestr": _TYPESTR_OF_BITS[self.dtype.nbytes] if custom else self.dtype.numpy.str,
            "data": (self.pointer, False),
            "version": 3,
            "stream": 1,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule of this memory; `stream` (-1: nobody waits) waits for its contents.

        Raises BufferError for a copy or another device, which the array does not make.
        """
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(
                f"copy={copy}, dl_device={dl_device}: this array gives its own memory on CUDA "
                f"device {self.device} only"
            )
        if stream not in (None, -1):
            with current(self.device):
                wait_for(LEGACY_STREAMS[0], stream)
        return dlpack.capsule_of(
            self, self.pointer, self.shape, self.strides, self.dtype, self.device
        )

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"


def allocate(nbytes: int, device: int) -> int:
    """Device memory, ordered on the legacy default stream."""
    with current(device):
        return int(check(driver().cuMemAllocAsync(nbytes, 0), f"allocation of {nbytes} bytes"))


def free(pointer: int, device: int) -> None:
    """Gives memory of `allocate` back once the default stream has passed."""
    if pointer:
        with current(device):
            check(driver().cuMemFreeAsync(pointer, 0), "cuMemFreeAsync")
