"""Data of the caller as a value: a leaf whose elements are at hand."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from fusewright import dtypes
from fusewright.fusion import ir
from fusewright.fusion.ir import Tensor


class Known(Tensor):
    """A leaf whose elements are at hand."""

    __slots__ = ("data",)

    def __init__(self, data: npt.NDArray[Any]) -> None:
        shape = tuple(ir.as_expr(s) for s in data.shape)
        dtype = dtypes.dtype_of_data(data)
        op = ir.Input((), -1, ir.contiguous_strides(shape), dtype.nbytes)
        super().__init__("", shape, dtype, op)
        self.data = data
