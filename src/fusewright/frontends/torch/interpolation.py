"""Linear interpolation along axes: each element of the result lies between two of the operand.

Where they are follows from sizes alone, as a quotient of integers, so that both are read as moves
of the operand, and no table of places is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewright import dtypes
from fusewright.core.atoms import maximum, minimum
from fusewright.core.expr import add, as_expr, floordiv, mul
from fusewright.errors import UnsupportedError
from fusewright.frontends.torch.library import aten
from fusewright.frontends.torch.promotion import cast_to
from fusewright.frontends.torch.table import Dtypes, lowers
from fusewright.fusion import build, ops
from fusewright.fusion.array import Array


@lowers(
    aten.upsample_linear1d.default,
    aten.upsample_bilinear2d.default,
    aten.upsample_trilinear3d.default,
)
def interpolated(
    out: Dtypes,
    x: Array,
    output_size: Sequence[Any],
    align_corners: bool,
    *scales: float | None,
) -> Array:
    """The lowering of linear interpolation along all axes but two; `scales` as torch has them,
    nothing or None where sizes say it. Raises UnsupportedError for integers, and for sizes or
    scales that do not tell the places."""
    if not out[0].is_float:
        raise UnsupportedError(
            f"interpolation of {out[0]}, which is rounded otherwise between its elements"
        )
    made = cast_to(x, out[0].compute)
    given = scales or [None] * len(output_size)
    for axis in reversed(range(2, x.ndim)):
        size, scale = output_size[axis - 2], given[axis - 2]
        made = _along(made, axis, size, scale, align_corners=align_corners)
    return cast_to(made, out[0])


def _along(x: Array, axis: int, size: Any, scale: float | None, *, align_corners: bool) -> Array:
    """The elements along an axis at `size` places, of which the first and the last one are those
    of x, or which are the middles of `size` parts of equal length."""
    length = x.shape[axis]
    if not isinstance(length, int) or not isinstance(size, int):
        raise UnsupportedError(f"interpolation of {length} elements at {size} places")
    if scale is not None and not align_corners and scale * length != size:
        raise UnsupportedError(f"interpolation by {scale} of {length} elements at {size} places")
    step, first, parts = 2 * length, length - size, 2 * size
    if align_corners:
        step, first, parts = length - 1, 0, max(size - 1, 1)
        step = step if size > 1 else 0
    shape = tuple(as_expr(size) if k == axis else n for k, n in enumerate(x.tensor.shape))
    at = build.coordinates(shape)
    place = maximum(add(mul(at[axis], step), first), 0)
    low = floordiv(place, parts)
    before, after = (
        Array(
            build.index_map(x.tensor, shape, at, [e if k == axis else c for k, c in enumerate(at)])
        )
        for e in (low, minimum(add(low, 1), length - 1))
    )
    along = Array(build.iota(shape, axis, dtypes.int32)) * step + first
    share = cast_to(ops.maximum(along, 0) % parts, x.dtype) * (1 / parts)
    return before + (after - before) * share
