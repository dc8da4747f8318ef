"""Gathers read their source before it is computed with, not after.

    take(f(x), i)      ->  f(take(x, i))      f elementwise
    take(f(x, r), i)   ->  f(take(x, i), r)   r the same along the axis of the gather

Only the gathered elements are then computed, and a source in global memory is read in place: a
logarithm of a softmax at one place of each row needs the row's sum and one element. Where f may
make something else of what an index outside reads, the result is chosen by the index:

    take(f(x), i)  ->  where(inside(i), f(take(x, i)), outside)

Every index is outside an axis of size 0, which has no element to read in its stead; a kernel that
looks at indices stops there first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright import dtypes
from fusewright.core.expr import ONE, ZERO, Expr, mul
from fusewright.fusion import build, ir
from fusewright.fusion.evaluate import carried, pointwise
from fusewright.fusion.ir import Broadcast, Fusion, Pointwise, Take, TakeAlong, Tensor, is_alone
from fusewright.fusion.passes.rebuild import rebuild

Array = npt.NDArray[Any]


def hoist_gathers(fusion: Fusion) -> Fusion:
    """Moves gathers above chains of functions (casts among them) of one operand that varies along
    the axis of the gather.

    checks:   functions of several such operands stay: these would be gathered one by one
    order:    before the fusion is cut, which never gathers from what the same kernel computes
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Take | TakeAlong):
            return None
        source, indices = operands
        if source.shape[t.op.axis] == ZERO and t.op.mode != "raise":
            return _outside(t)
        if _varying(t, source) is None:
            return None
        hoisted, outside = _hoisted(t, source, indices)
        if outside is not None and _same(outside, t.dtype.outside):
            return hoisted
        inside = _spread(t, _inside(t, indices, source.shape[t.op.axis]))
        return build.pointwise("where", inside, hoisted, _outside(t))

    return rebuild(fusion, replace)


def _varying(gather: Tensor, t: Tensor) -> int | None:
    """Which operand of a function varies along the axis of a gather, where one alone does; None for
    other values."""
    if not isinstance(t.op, Pointwise) or is_alone(t):
        return None
    found = [k for k, o in enumerate(t.op.operands) if _beside(gather, o) is None]
    return found[0] if len(found) == 1 else None


def _beside(gather: Tensor, o: Tensor) -> Tensor | None:
    """An operand that is the same along the axis of a gather, for every element of the result;
    None for one that varies."""
    assert isinstance(gather.op, Take | TakeAlong)
    if not isinstance(o.op, Broadcast):
        return None
    source, axis = o.op.operands[0], gather.op.axis
    along = o.op.axes[axis]
    if along is not None and source.shape[along] != ONE:
        return None
    if isinstance(gather.op, TakeAlong):
        pairs = enumerate(zip(o.shape, gather.shape, strict=True))
        if any(n != m for k, (n, m) in pairs if k != axis):
            return None
        return build.value(gather.shape, o.dtype, Broadcast((source,), o.op.axes))
    own = o.op.axes
    if along is not None:  # the axis of one element goes, as the gather's own take its place
        source = build.reshape("take", source, (*source.shape[:along], *source.shape[along + 1 :]))
        own = tuple(a if a is None or a < along else a - 1 for a in own)
    places = (None,) * gather.op.operands[1].ndim
    axes = (*own[:axis], *places, *own[axis + 1 :])
    return build.value(gather.shape, o.dtype, Broadcast((source,), axes))


def _hoisted(t: Tensor, source: Tensor, indices: Tensor) -> tuple[Tensor, Array | None]:
    """The gather below the functions, and what that is where the index is outside; None where it
    depends on other operands."""
    k = _varying(t, source)
    if k is not None:
        assert isinstance(source.op, Pointwise)
        below, read = _hoisted(t, source.op.operands[k], indices)
        others = [_beside(t, o) for o in source.op.operands]
        operands = tuple(below if o is None else o for o in others)
        out = build.value(t.shape, source.dtype, ir.with_operands(source.op, operands))
        if read is None or len(operands) > 1:
            return out, None
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
