"""Selection by arrays of indices."""

from __future__ import annotations

from fusewright import dtypes
from fusewright.errors import UserError
from fusewright.fusion import build, ir
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.operands import check_category
from fusewright.fusion.ops.elementwise import astype


def take(x: Array, indices: Array, /, axis: int | None = None) -> Array:
    """The slices of x at `indices` along the axis, which the axes of `indices` replace. Negative
    indices count from the end. An index outside the axis reads NaN, or 0 where the dtype has no
    NaN; of known data it is an IndexError.

    Raises UserError for indices that are not integers, and for a missing axis of a matrix.
    """
    x, indices = check_array("take", x), check_array("take", indices)
    check_category("take (indices)", indices.dtype, "integer")
    if axis is None and x.ndim != 1:
        raise UserError(f"take of an array of rank {x.ndim}: name the axis; only rank 1 needs none")
    along = build.axis_of("take", 0 if axis is None else axis, x.ndim)
    t, at = x.tensor, indices.tensor
    shape = (*t.shape[:along], *at.shape, *t.shape[along + 1 :])
    return Array(build.value(shape, x.dtype, ir.Take((t, at), along)))


def take_along_axis(x: Array, indices: Array, /, axis: int = -1) -> Array:
    """`result[.., i, ..] = x[.., indices[.., i, ..], ..]`: the other axes broadcast together.
    Negative indices and those outside the axis mean what they mean to `take`.

    Raises UserError for indices that are not integers or of another rank.
    """
    x, indices = check_array("take_along_axis", x), check_array("take_along_axis", indices)
    check_category("take_along_axis (indices)", indices.dtype, "integer")
    if x.ndim != indices.ndim:
        raise UserError(
            f"take_along_axis: x has rank {x.ndim} and the indices {indices.ndim}: they must be "
            "equal; add axes with fw.expand_dims, or use fw.take"
        )
    along = build.axis_of("take_along_axis", axis, x.ndim)
    t, at = x.tensor, indices.tensor
    lead = build.broadcast_shapes("take_along_axis", _without(t, along), _without(at, along))
    t = build.spread(t, (*lead[:along], t.shape[along], *lead[along:]))
    at = build.spread(at, (*lead[:along], at.shape[along], *lead[along:]))
    return Array(build.value(at.shape, x.dtype, ir.TakeAlong((t, at), along)))


def _without(t: ir.Tensor, axis: int) -> ir.Shape:
    return (*t.shape[:axis], *t.shape[axis + 1 :])


__all__ = ["take", "take_along_axis"]


def signed_indices(indices: Array) -> Array:
    """Indices in a signed dtype of at least 32 bits, which holds every position and -1."""
    if indices.dtype in (dtypes.int32, dtypes.int64):
        return indices
    return astype(indices, dtypes.int32 if indices.dtype.nbytes < 4 else dtypes.int64)
