"""Gathers read their source before it is computed with, not after.

    take(f(x), i)  ->  f(take(x, i))      f of one operand, elementwise

Only the gathered elements are then computed, and a source in global memory is read in place. Where
f makes something else of what an index outside reads, the result is chosen by the index:

    take(f(x), i)  ->  where(inside(i), f(take(x, i)), outside)

Every index is outside an axis of size 0, which has no element to read in its stead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright import dtypes
from fusewright.core.expr import ZERO, Expr, mul
from fusewright.fusion import build, ir
from fusewright.fusion.evaluate import carried, pointwise
from fusewright.fusion.ir import Broadcast, Fusion, Pointwise, Take, TakeAlong, Tensor, is_alone
from fusewright.fusion.passes.rebuild import rebuild

Array = npt.NDArray[Any]


def hoist_gathers(fusion: Fusion) -> Fusion:
    """Moves gathers above chains of functions of one operand (casts among them).

    checks:   functions of several operands stay: their operands would be gathered one by one
    order:    before the fusion is cut, which never gathers from what the same kernel computes
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Take | TakeAlong):
            return None
        source, indices = operands
        if source.shape[t.op.axis] == ZERO:
            return _outside(t)
        if not _is_function(source):
            return None
        hoisted, outside = _hoisted(t, source, indices)
        if _same(outside, t.dtype.outside):
            return hoisted
        inside = _spread(t, _inside(t, indices, source.shape[t.op.axis]))
        return build.pointwise("where", inside, hoisted, _outside(t))

    return rebuild(fusion, replace)


def _is_function(t: Tensor) -> bool:
    """Whether a value is computed from one other, element by element, where it is read."""
    return isinstance(t.op, Pointwise) and len(t.op.operands) == 1 and not is_alone(t)


def _hoisted(t: Tensor, source: Tensor, indices: Tensor) -> tuple[Tensor, Array]:
    """The gather below the functions, and what that is where the index is outside."""
    if _is_function(source):
        assert isinstance(source.op, Pointwise)
        below, read = _hoisted(t, source.op.operands[0], indices)
        out = build.value(t.shape, source.dtype, Pointwise((below,), source.op.fn))
        with np.errstate(all="ignore"):
            return out, pointwise(source.dtype, source.op.fn, [read])
    op = ir.with_operands(t.op, (source, indices))
    outside = np.asarray(source.dtype.outside, source.dtype.compute.numpy)
    return build.value(t.shape, source.dtype, op), carried(outside, source.dtype)


def _same(read: Array, outside: float) -> bool:
    return bool(read == outside) or bool(read != read and outside != outside)


def _inside(t: Tensor, indices: Tensor, extent: Expr) -> Tensor:
    """Whether an index is one of the axis, by its own sign."""
    signed = indices.dtype.kind == "int"
    low = build.size(mul(extent, -1) if signed else 0, dtypes.int64)
    at = build.cast(indices, dtypes.int64)
    above = build.pointwise("ge", at, build.spread(low, at.shape))
    below = build.pointwise("lt", at, build.spread(build.size(extent, dtypes.int64), at.shape))
    return build.pointwise("and", above, below)


def _spread(t: Tensor, inside: Tensor) -> Tensor:
    """What is known of the indices, for every element of the result."""
    if isinstance(t.op, TakeAlong):
        return inside
    assert isinstance(t.op, Take)
    first, rank = t.op.axis, inside.ndim
    axes = tuple(k - first if first <= k < first + rank else None for k in range(t.ndim))
    return build.value(t.shape, inside.dtype, Broadcast((inside,), axes))


def _outside(t: Tensor) -> Tensor:
    return build.full(t.shape, t.dtype.outside, t.dtype)
