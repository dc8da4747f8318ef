"""Arrays that a program holds itself: constants of the function that it was traced from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from fusewright.dtypes import dtype_of_data
from fusewright.runtime.arrays import ArrayInfo, Device, c_strides, describe
from fusewright.runtime.device import check, current, driver
from fusewright.runtime.locks import fork_safe_lock
from fusewright.runtime.memory import DeviceArray


class Constants:
    """C-contiguous arrays on the host, copied to each device that asks for them once."""

    def __init__(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        self._on_host = [describe(a) for a in arrays]
        self._arrays = tuple(arrays)
        self._on_device: dict[int, list[ArrayInfo]] = {}
        self._lock = fork_safe_lock()

    def __len__(self) -> int:
        return len(self._arrays)

    def on(self, where: Device) -> list[ArrayInfo]:
        """The arrays where a call wants them."""
        if where.kind == "cpu" or not self._arrays:
            return self._on_host
        with self._lock:
            if where.index not in self._on_device:
                self._on_device[where.index] = [_copied(a, where) for a in self._arrays]
            return self._on_device[where.index]


def _copied(a: npt.NDArray[Any], where: Device) -> ArrayInfo:
    """An array on a device, complete for every stream."""
    dtype, strides = dtype_of_data(a), c_strides(a.shape)
    made = DeviceArray(a.shape, strides, dtype, where.index)
    if made.nbytes:
        api = driver()
        with current(where.index):
            check(api.cuMemcpyHtoD(made.pointer, a.ctypes.data, made.nbytes), "copy of a constant")
            check(api.cuCtxSynchronize(), "cuCtxSynchronize")
    kind = "cuda_array_interface"
    return ArrayInfo(kind, where, a.shape, dtype, strides, made.pointer, made)
