"""The few greatest elements of rows, and counts by bins, of aten."""

from __future__ import annotations

from fusewright import dtypes
from fusewright.core.expr import as_expr, constant_value
from fusewright.errors import UnsupportedError
from fusewright.frontends.torch.library import aten
from fusewright.frontends.torch.promotion import Scalar, cast_to
from fusewright.frontends.torch.table import Dtypes, lowers
from fusewright.fusion import build, ops
from fusewright.fusion.array import Array
from fusewright.fusion.ops.ordering import MAX_ROUNDS
from fusewright.fusion.ops.segments import MAX_COMPARED


@lowers(aten.topk.default)
def _topk(
    out: Dtypes, x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    """Of equal elements the first one is taken, where torch promises none."""
    if not x.ndim:
        raise UnsupportedError("topk of a tensor without axes")
    if not x.dtype.is_float or x.dtype.nbytes > 4:
        raise UnsupportedError(f"topk of {x.dtype}: floats of at most 32 bits are taken")
    if not 0 < k <= MAX_ROUNDS:
        raise UnsupportedError(f"topk of {k}: a maximum each is faster up to {MAX_ROUNDS} only")
    found = ops.topk(x, k, axis=build.axis_of("dim", dim, x.ndim), largest=largest)
    return found.values, ops.astype(found.indices, out[1])


@lowers(aten.histc.default)
def _histc(out: Dtypes, x: Array, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> Array:
    """Elements in equal ranges from `min` to `max`, as each range asks every element."""
    low, high = (v if isinstance(v, int | float) else constant_value(v) for v in (min, max))
    if not isinstance(low, int | float) or not isinstance(high, int | float) or low >= high:
        raise UnsupportedError(f"histc from {min} to {max}: the limits depend on the elements")
    flat = ops.reshape(x, (-1,))
    size = constant_value(flat.tensor.shape[0])
    if size is None or size * bins > _COMPARED:
        raise UnsupportedError(f"histc of {size} elements in {bins} bins: torch counts by atomics")
    if x.dtype.is_float:
        wide = ops.astype(flat, x.dtype.compute)
        at = ops.astype((wide - low) * (bins / (high - low)), dtypes.int64)
    elif isinstance(low, int) and isinstance(high, int):
        wide = ops.astype(flat, dtypes.int64)
        at = (wide - low) * bins // (high - low)
    else:
        raise UnsupportedError(
            f"histc of {x.dtype} between {low} and {high}, which are no integers"
        )
    inside = ops.logical_and(wide >= low, wide <= high)
    at = ops.where(inside, ops.minimum(at, bins - 1), bins)
    numbers = ops.expand_dims(Array(build.iota((as_expr(bins),), 0, dtypes.int64)), axis=1)
    hits = ops.astype(ops.equal(numbers, at), dtypes.int32)
    return cast_to(ops.sum(hits, axis=1), out[0])


_COMPARED = MAX_COMPARED // 16
"""Comparisons that take no longer than the two launches of torch's histc: the bound of a sort is 30
of them."""
