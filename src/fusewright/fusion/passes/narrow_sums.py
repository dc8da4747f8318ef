"""Sums of short integers are computed in 32 bits where these hold them."""

from __future__ import annotations

import math

from fusewright.dtypes import DType, int32
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Fusion,
    Pointwise,
    Reduce,
    Scan,
    Tensor,
    constant_shape,
    with_operands,
)
from fusewright.fusion.passes.rebuild import rebuild

LARGEST = (1 << 31) - 1


def narrow_sums(fusion: Fusion) -> Fusion:
    """Sums in 32 bits what the sums of 64 bits hold in half of them: counts of conditions, sums of
    bytes and of short integers. An addition of 64 bits is two instructions, and so is what is
    exchanged of partial results.

    rewrite:  sum(int64(x), R)             ->  int64(sum(int32(x), R))     x a condition, or short
              cumulative_sum(int64(x), a)  ->  int64(cumulative_sum(int32(x), a))
    checks:   constant sizes; no sum can be larger than 2**31 - 1, whatever the elements are
    order:    behind decompose, before anything is split: parts are then of 32 bits, too
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        match t.op:
            case Reduce(operands=(wide,), fn="add", axes=axes):
                pass
            case Scan(operands=(wide,), fn="add", axis=axis):
                axes = (axis,)
            case _:
                return None
        if not _is_wide(t.dtype) or not _is_short(wide, axes):
            return None
        narrow = build.cast(operands[0].op.operands[0], int32)
        total = build.value(t.shape, int32, with_operands(t.op, (narrow,)))
        return build.cast(total, t.dtype)

    return rebuild(fusion, replace)


def _is_wide(dtype: DType) -> bool:
    return dtype.is_integer and dtype.nbytes > int32.nbytes


def _is_short(wide: Tensor, axes: tuple[int, ...]) -> bool:
    """Whether sums of a value over axes fit 32 bits, as it is cast from a shorter type."""
    sizes = constant_shape(wide)
    if sizes is None or not isinstance(wide.op, Pointwise) or wide.op.fn != "cast":
        return False
    most = _largest(wide.op.operands[0].dtype)
    return most is not None and most * math.prod(sizes[a] for a in axes) <= LARGEST


def _largest(dtype: DType) -> int | None:
    """The largest magnitude of a value of a type; None for floats."""
    if dtype.kind == "bool":
        return 1
    return 1 << 8 * dtype.nbytes if dtype.is_integer else None
