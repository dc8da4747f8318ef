"""Selection by arrays of indices.

What an index outside of its axis means is the caller's choice, `mode`, by numpy's and JAX's words:

    "raise"  a mistake (the default). The oracle, data that are known, and kernels that are compiled
             under `fw.config(check_indices=True)` raise an IndexError; other kernels do not look,
             and read NaN, or 0 where the dtype has no NaN, never memory of others
    "fill"   it reads `fill_value`, by default NaN, or 0 where the dtype has no NaN
    "clip"   it reads the nearest element: a negative index the first
    "wrap"   it counts around the axis

Negative indices count from the end, but for "clip".
"""

from __future__ import annotations

from fusewright import dtypes
from fusewright.core.expr import Expr, IntLike, add, constant_value
from fusewright.dtypes import DType
from fusewright.errors import UserError
from fusewright.fusion import build, ir
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.ir import Scalar
from fusewright.fusion.operands import check_category
from fusewright.fusion.ops.elementwise import astype, maximum, minimum, remainder, where
from fusewright.fusion.ops.manipulation import expand_dims

MODES = ("raise", "fill", "clip", "wrap")


def take(
    x: Array,
    indices: Array,
    /,
    axis: int | None = None,
    *,
    mode: str = "raise",
    fill_value: Scalar | None = None,
) -> Array:
    """The slices of x at `indices` along the axis, which the axes of `indices` replace. Negative
    indices count from the end. An index outside the axis is a mistake in mode "raise": an
    IndexError of known data, of the oracle and under `fw.config(check_indices=True)`, while other
    kernels read NaN, or 0 where the dtype has no NaN. With "fill" it reads `fill_value`, by default
    the same, with "clip" the nearest element (a negative one the first), with "wrap" it counts
    around the axis.

    Raises UserError for indices that are not integers, for a missing axis of a matrix, for another
    mode, and for a fill_value without mode="fill".
    """
    op = "take"
    x, indices = check_array(op, x), check_array(op, indices)
    check_category("take (indices)", indices.dtype, "integer")
    if axis is None and x.ndim != 1:
        raise UserError(f"take of an array of rank {x.ndim}: name the axis; only rank 1 needs none")
    along = build.axis_of(op, 0 if axis is None else axis, x.ndim)
    t, extent = x.tensor, x.tensor.shape[along]
    at, kept = _by_mode(op, indices, extent, mode, fill_value)
    shape = (*t.shape[:along], *at.tensor.shape, *t.shape[along + 1 :])
    out = Array(build.value(shape, x.dtype, ir.Take((t, at.tensor), along, kept)))
    if fill_value is None:
        return out
    inside = _is_inside(at, extent)
    for _ in range(x.ndim - along - 1):
        inside = expand_dims(inside, inside.ndim)
    return where(inside, out, fill_value)


def take_along_axis(
    x: Array,
    indices: Array,
    /,
    axis: int = -1,
    *,
    mode: str = "raise",
    fill_value: Scalar | None = None,
) -> Array:
    """`result[.., i, ..] = x[.., indices[.., i, ..], ..]`: the other axes broadcast together.
    Negative indices and those outside the axis, `mode` and `fill_value` mean what they mean to
    `take`.

    Raises UserError for indices that are not integers or of another rank, and as `take`.
    """
    op = "take_along_axis"
    x, indices = check_array(op, x), check_array(op, indices)
    check_category("take_along_axis (indices)", indices.dtype, "integer")
    if x.ndim != indices.ndim:
        raise UserError(
            f"take_along_axis: x has rank {x.ndim} and the indices {indices.ndim}: they must be "
            "equal; add axes with fw.expand_dims, or use fw.take"
        )
    along = build.axis_of(op, axis, x.ndim)
    t, extent = x.tensor, x.tensor.shape[along]
    moved, kept = _by_mode(op, indices, extent, mode, fill_value)
    at = moved.tensor
    lead = build.broadcast_shapes(op, _without(t, along), _without(at, along))
    t = build.spread(t, (*lead[:along], t.shape[along], *lead[along:]))
    at = build.spread(at, (*lead[:along], at.shape[along], *lead[along:]))
    out = Array(build.value(at.shape, x.dtype, ir.TakeAlong((t, at), along, kept)))
    return out if fill_value is None else where(_is_inside(Array(at), extent), out, fill_value)


def _without(t: ir.Tensor, axis: int) -> ir.Shape:
    return (*t.shape[:axis], *t.shape[axis + 1 :])


__all__ = ["take", "take_along_axis"]


def signed_indices(indices: Array) -> Array:
    """Indices in a signed dtype of at least 32 bits, which holds every position and -1."""
    if indices.dtype in (dtypes.int32, dtypes.int64):
        return indices
    return astype(indices, dtypes.int32 if indices.dtype.nbytes < 4 else dtypes.int64)


# --- indices outside of the axis ----------------------------------------------------------------


def check_mode(op: str, mode: object, fill_value: object, modes: tuple[str, ...] = MODES) -> None:
    """UserError for a mode that does not exist, and for a fill that it does not read."""
    if not isinstance(mode, str) or mode not in modes:
        listed = ", ".join(map(repr, modes))
        raise UserError(f"{op}: mode={mode!r}; use one of {listed}")
    if fill_value is not None and mode != "fill":
        raise UserError(f"{op}: fill_value= belongs to mode='fill', and mode is {mode!r}")


def _by_mode(
    op: str, indices: Array, extent: Expr, mode: str, fill_value: Scalar | None
) -> tuple[Array, str]:
    """The indices that are looked up, and what the look-up says of those outside.

    rewrite:  clip  ->  promise of min(max(i, 0), n - 1)
              wrap  ->  promise of i mod n
    """
    check_mode(op, mode, fill_value)
    if mode in ("raise", "fill"):
        return indices, "fill" if mode == "fill" else "promise"
    return brought_inside(indices, extent, mode), "promise"


def brought_inside(indices: Array, extent: Expr, mode: str) -> Array:
    """Indices of the axis for all indices, by "clip" or "wrap"."""
    dtype = _counted_in(indices.dtype, extent)
    at = indices if dtype is indices.dtype else astype(indices, dtype)
    if mode == "wrap":
        return remainder(at, _size(extent, dtype))
    first = at if dtype is dtypes.uint64 else maximum(at, 0)
    return minimum(first, _size(add(extent, -1), dtype))


def _counted_in(dtype: DType, extent: Expr) -> DType:
    """The dtype that holds both indices of a dtype and the size of the axis."""
    size = constant_value(extent)
    if dtype is dtypes.uint64:
        return dtype
    is_narrow = dtype.nbytes < 4 or dtype is dtypes.int32
    fits = size is not None and size <= dtypes.int32.integer_range[1]
    return dtypes.int32 if is_narrow and fits else dtypes.int64


def _size(extent: IntLike, dtype: DType) -> Array:
    return Array(build.size(extent, dtype))


def _is_inside(indices: Array, extent: Expr) -> Array:
    """Where indices are some of the axis, those from its end included."""
    dtype = _counted_in(indices.dtype, extent)
    at = indices if dtype is indices.dtype else astype(indices, dtype)
    below = at < _size(extent, dtype)
    return below if dtype.kind == "uint" else below & (at >= -_size(extent, dtype))
