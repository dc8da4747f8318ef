"""Data of the caller as a value: a leaf whose elements are at hand."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright import dtypes
from fusewright.errors import UserError
from fusewright.fusion import ir
from fusewright.fusion.ir import Tensor
from fusewright.target import MAX_VECTOR_NBYTES


class Known(Tensor):
    """A leaf whose elements are at hand."""

    __slots__ = ("data",)

    def __init__(self, data: npt.NDArray[Any], position: int = -1, name: str = "") -> None:
        """`position` among the inputs of a fusion, which then holds the data."""
        shape = tuple(ir.as_expr(s) for s in data.shape)
        dtype = dtypes.dtype_of_data(data)
        alignment = dtype.nbytes if position < 0 else MAX_VECTOR_NBYTES
        op = ir.Input((), position, ir.contiguous_strides(shape), alignment)
        super().__init__(name, shape, dtype, op)
        self.data = data

    def at(self, position: int) -> Known:
        """The same data, held by a fusion, in C order."""
        return Known(np.ascontiguousarray(self.data), position, self.name)


def held(op: str, data: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy of a numpy array of the caller. UserError for elements that no array holds, and for
    masked arrays."""
    if isinstance(data, np.ma.MaskedArray):
        raise UserError(f"{op} of a masked array; fill the mask first (array.filled())")
    try:
        dtype = dtypes.data_dtype_of(data.dtype.newbyteorder("="))
    except UserError as e:
        raise UserError(f"{op}: a numpy array of shape {data.shape}: {e}") from None
    return np.array(data, dtype.numpy, order="C")


def is_of_jax(x: object) -> bool:
    """Whether it is an array of jax, which is never imported: there is none where jax is not."""
    jax: Any = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.Array)


def without_jax(op: str, x: object) -> object:
    """The elements of an array of jax, which never change, as a numpy array; anything else as it
    is. UserError for an array inside of a transform of jax, and for one that numpy cannot read."""
    if not is_of_jax(x):
        return x
    found: Any = x
    if isinstance(found, sys.modules["jax"].core.Tracer):
        raise UserError(
            f"{op}: an operand is inside of a transform of jax (jit, grad, vmap, ...), which "
            "cannot look into a program; trace outside of it, or take fw.grad and fw.vmap"
        )
    try:
        return np.asarray(found)
    except (RuntimeError, TypeError, ValueError) as e:
        raise UserError(
            f"{op}: the array of jax, {found.dtype}{found.shape}, is none: {e}"
        ) from None


def is_known(t: Tensor) -> bool:
    """Whether a value depends on literals and known data only. Each value is asked once, as
    programs index one value after the other."""
    stack = [t]
    while stack:
        v = stack[-1]
        unknown = [o for o in v.op.operands if o.is_known is None]
        if unknown and v.is_known is None:
            stack += unknown
            continue
        stack.pop()
        if v.is_known is None:
            is_free = not isinstance(v.op, ir.Input) and not ir.tensor_variables(v)
            behind = all(o.is_known for o in v.op.operands)
            v.is_known = isinstance(v, Known) or (is_free and behind)
    return bool(t.is_known)
