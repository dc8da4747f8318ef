"""torch's type promotion over arrays and Python scalars, and operands in a given dtype."""

from __future__ import annotations

from functools import reduce

from fusewright import dtypes
from fusewright.core.expr import Expr
from fusewright.dtypes import DType
from fusewright.errors import UnsupportedError
from fusewright.frontends.torch.library import torch
from fusewright.fusion import build
from fusewright.fusion.array import Array
from fusewright.fusion.ops import astype

Scalar = bool | int | float | Expr
Operand = Array | Scalar

_CATEGORY = {"bool": 0, "int": 1, "uint": 1, "float": 2}


def common_dtype(*operands: Operand) -> DType:
    """The dtype in which torch compares operands: that of the tensors with axes, unless one without
    axes, or failing that a scalar, is of a higher category (bool, integer, float)."""
    found: DType | None = None
    for group in _groups(operands):
        if not group:
            continue
        own = reduce(promote, group)
        if found is None or _CATEGORY[own.kind] > _CATEGORY[found.kind]:
            found = own
    assert found is not None
    return found


def _groups(operands: tuple[Operand, ...]) -> tuple[list[DType], ...]:
    arrays = [x for x in operands if isinstance(x, Array)]
    scalars = [x for x in operands if not isinstance(x, Array)]
    return (
        [x.dtype for x in arrays if x.ndim],
        [x.dtype for x in arrays if not x.ndim],
        [scalar_dtype(x) for x in scalars],
    )


def scalar_dtype(x: Scalar) -> DType:
    """The dtype that torch gives a Python scalar on its own."""
    match x:
        case bool():
            return dtypes.bool_
        case int() | Expr():
            return dtypes.int64
        case _:
            return dtypes.dtype_of(torch.get_default_dtype())


def promote(a: DType, b: DType) -> DType:
    """torch's promotion of two tensors' dtypes."""
    return dtypes.dtype_of(torch.promote_types(torch_dtype(a), torch_dtype(b)))


def torch_dtype(dtype: DType) -> object:
    """The torch dtype. Raises UnsupportedError where this torch has none."""
    name = {"float8_e4m3": "float8_e4m3fn"}.get(dtype.name, dtype.name)
    found = getattr(torch, name, None)
    if found is None:
        raise UnsupportedError(f"this torch has no dtype {dtype}")
    return found


def _whole(x: Array, dtype: DType) -> Array:
    """A float on its way to a short integer, whose low bits torch takes of a longer one."""
    if not x.dtype.is_float or not dtype.is_integer or dtype.nbytes >= 4:
        return x
    return astype(x, dtypes.int32)


def cast_to(x: object, dtype: DType) -> Array:
    """An array, or a scalar as an array without axes, in a dtype."""
    if isinstance(x, Array):
        return astype(_whole(x, dtype), dtype)
    if isinstance(x, Expr):
        return Array(build.size(x, dtype))
    if isinstance(x, bool | int | float):
        if dtype.is_integer and (x != x or x in (float("inf"), float("-inf"))):
            raise UnsupportedError(f"the scalar {x} as {dtype}, which has no such value")
        return Array(build.constant(x, dtype))
    raise UnsupportedError(f"{type(x).__name__} {x!r} as an operand: only tensors and real scalars")
