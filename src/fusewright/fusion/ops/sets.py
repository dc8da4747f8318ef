"""Sets, and selections by condition.

How many elements they find depends on values. Known data is computed with numpy at once; in a
trace, `size=` says how many there are in the result: what is found beyond that is left out, and
`fill` stands where less is found.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fusewright import dtypes
from fusewright.core.expr import constant_value
from fusewright.errors import UnsupportedError, UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array, Known, as_operand, as_tensor, check_array, common_dtype
from fusewright.fusion.ir import Scalar
from fusewright.fusion.operands import check_flag, check_scalar
from fusewright.fusion.ops.creation import arange, full, zeros
from fusewright.fusion.ops.elementwise import astype, equal, logical_not, not_equal, where
from fusewright.fusion.ops.gather import take
from fusewright.fusion.ops.manipulation import concat, reshape
from fusewright.fusion.ops.ordering import (
    argsort,
    bisected,
    check_ordered,
    check_size,
    searchsorted,
    sort,
)

Data = npt.NDArray[Any]


def _size(op: str, x: Array, size: object) -> int | None:
    """The size that was asked for. UnsupportedError where a trace needs one."""
    if size is None and not x.is_known:
        raise UnsupportedError(
            f"{op} of the traced array {x!r}: the size of the result would depend on its values; "
            "give it as size=, or call it on known data, outside of what is traced"
        )
    if size is None:
        return None
    found = build.integer(op, "size", size)
    if found < 0:
        raise UserError(f"{op}: size={found} is negative")
    return found


def _known(data: Data) -> Array:
    return Array(Known(data))


def _known_positions(data: Data) -> Array:
    return _known(data.astype(np.int64))


def _filled(op: str, fill: object, like: Array) -> Array:
    """The value that stands where nothing was found."""
    scalar = as_operand(op, fill)
    if like.dtype is dtypes.bool_ and type(scalar) is int and scalar in (0, 1):
        scalar = bool(scalar)  # the default of a mask is False
    if not isinstance(scalar, Array):
        check_scalar(op, scalar, like.dtype)
    t = as_tensor(scalar, like.dtype)
    if t.ndim:
        raise UserError(f"{op}: fill has shape {build.shape_text(t.shape)}; it must be one number")
    return Array(t)


# --- selection ----------------------------------------------------------------------------------


def nonzero(x: Array, /, *, size: int | None = None, fill: int = 0) -> tuple[Array, ...]:
    """The positions of the elements that are not 0, one int64 array an axis, in C order; in a trace
    the first `size` of them, and `fill` where there are less. UserError for an array of rank 0."""
    x = check_array("nonzero", x)
    if not x.ndim:
        raise UserError("nonzero of an array of rank 0, which has no axis; expand_dims first")
    wanted = _size("nonzero", x, size)
    if wanted is None:
        return tuple(_known_positions(p) for p in np.nonzero(x.numpy("nonzero")))
    flat, is_found = _found(reshape(not_equal(x, 0), (-1,)), wanted)
    fill_value = build.integer("nonzero", "fill", fill)
    out: list[Array] = []
    step = Array(build.size(1, flat.dtype))
    for extent in reversed(x.tensor.shape):
        count = Array(build.size(extent, flat.dtype))
        out.append(astype(where(is_found, flat // step % count, fill_value), dtypes.int64))
        step = step * count
    return tuple(reversed(out))


def compress(
    condition: Array,
    x: Array,
    /,
    *,
    axis: int | None = None,
    size: int | None = None,
    fill: Scalar = 0,
) -> Array:
    """The slices of x along the axis for which the condition holds; without an axis the elements
    of the flat array. In a trace the first `size` of them, and `fill` where there are less.

    Raises UserError where the condition has not one element for each.
    """
    op = "compress"
    mask, x = check_array(op, condition), check_array(op, x)
    if mask.dtype is not dtypes.bool_:
        mask = not_equal(mask, 0)
    if axis is None:
        mask, x = reshape(mask, (-1,)), reshape(x, (-1,))
    along = build.axis_of(op, 0 if axis is None else axis, x.ndim)
    if mask.tensor.shape != (x.tensor.shape[along],):
        raise UserError(
            f"{op}: the condition has shape {build.shape_text(mask.tensor.shape)} and axis {along} "
            f"of x size {x.tensor.shape[along]}; it needs one element for each"
        )
    wanted = _size(op, mask if x.is_known else x, size)
    if wanted is None:
        return _known(np.compress(mask.numpy(op), x.numpy(op), axis=along))
    at, is_found = _found(mask, wanted)
    for _ in range(x.ndim - along - 1):
        is_found = is_found[..., None]
    taken = take(x, where(reshape(is_found, (-1,)), at, 0), axis=along)
    return where(is_found, taken, _filled(op, fill, x))


def _found(mask: Array, size: int) -> tuple[Array, Array]:
    """The positions of the first `size` elements that hold, as int32, and whether there is one."""
    count = check_size("nonzero", mask, 0)
    if not count:
        return zeros(size, dtype=dtypes.int32), zeros(size, dtype=dtypes.bool_)
    numbers = Array(build.scan("add", build.cast(mask.tensor, dtypes.int32), 0))
    wanted = arange(size, dtype=dtypes.int32)
    at = bisected(numbers, wanted + 1, count, is_right=False)
    return at, at < count


def isin(x1: Array | float, x2: Array | float, /, *, invert: bool = False) -> Array:
    """Whether each element of x1 is one of x2's; the opposite for `invert`. NaN is in nothing."""
    op = "isin"
    check_flag(op, "invert", invert)
    both = (as_operand(op, x1), as_operand(op, x2))
    dtype = common_dtype(op, both)
    a, b = (Array(as_tensor(x, dtype)) for x in both)
    if a.is_known and b.is_known:
        return _known(np.asarray(np.isin(a.numpy(op), b.numpy(op), invert=invert)))
    ordered = sort(reshape(check_ordered(op, b), (-1,)))
    size = check_size(op, ordered, 0)
    if not size:
        return Array(build.full(a.tensor.shape, bool(invert), dtypes.bool_))
    at = searchsorted(ordered, a)
    hit = equal(take(ordered, where(at < size, at, 0), axis=0), a)
    return logical_not(hit) if invert else hit


# --- sets ---------------------------------------------------------------------------------------


class UniqueAll(NamedTuple):
    """The distinct elements in order; where each is first, in C order; for every element of x the
    position of its value; how often each value occurs."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """The distinct elements in order, and how often each occurs."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """The distinct elements in order, and for every element of x the position of its value."""

    values: Array
    inverse_indices: Array


def unique_all(x: Array, /, *, size: int | None = None, fill: Scalar = 0) -> UniqueAll:
    """The distinct elements of the flat array with their first positions, the positions of all
    elements among them, and counts. Every NaN is distinct. In a trace the first `size` values, and
    where there are less `fill` with position and count 0."""
    op = "unique_all"
    x = check_array(op, x)
    wanted = _size(op, x, size)
    if wanted is None:
        values, first, inverse, counts = np.unique(
            x.numpy(op), return_index=True, return_inverse=True, return_counts=True, equal_nan=False
        )
        places = inverse.reshape(tuple(constant_value(n) or 0 for n in x.tensor.shape))
        return UniqueAll(_known(values), *map(_known_positions, (first, places, counts)))
    runs = _Runs(op, x, wanted)
    return UniqueAll(runs.values(fill), runs.indices(), runs.inverse(), runs.counts())


def unique_counts(x: Array, /, *, size: int | None = None, fill: Scalar = 0) -> UniqueCounts:
    """The distinct elements of the flat array and their counts. Every NaN is distinct. In a trace
    the first `size` values, and where there are less `fill` with count 0."""
    op = "unique_counts"
    x = check_array(op, x)
    wanted = _size(op, x, size)
    if wanted is None:
        values, counts = np.unique(x.numpy(op), return_counts=True, equal_nan=False)
        return UniqueCounts(_known(values), _known_positions(counts))
    runs = _Runs(op, x, wanted)
    return UniqueCounts(runs.values(fill), runs.counts())


def unique_inverse(x: Array, /, *, size: int | None = None, fill: Scalar = 0) -> UniqueInverse:
    """The distinct elements of the flat array and the position of each element among them. Every
    NaN is distinct. In a trace the first `size` values, and `fill` where there are less."""
    op = "unique_inverse"
    x = check_array(op, x)
    wanted = _size(op, x, size)
    if wanted is None:
        values, inverse = np.unique(x.numpy(op), return_inverse=True, equal_nan=False)
        shape = tuple(constant_value(n) or 0 for n in x.tensor.shape)
        return UniqueInverse(_known(values), _known_positions(inverse.reshape(shape)))
    runs = _Runs(op, x, wanted)
    return UniqueInverse(runs.values(fill), runs.inverse())


def unique_values(x: Array, /, *, size: int | None = None, fill: Scalar = 0) -> Array:
    """The distinct elements of the flat array, in order. Every NaN is distinct. In a trace the
    first `size` of them, and `fill` where there are less."""
    op = "unique_values"
    x = check_array(op, x)
    wanted = _size(op, x, size)
    if wanted is None:
        return _known(np.unique(x.numpy(op), equal_nan=False))
    return _Runs(op, x, wanted).values(fill)


class _Runs:
    """The elements of an array in order, as runs of equal ones, of which the first `size` count."""

    def __init__(self, op: str, x: Array, size: int) -> None:
        self._op = op
        self._x = x
        self._size = size
        flat = reshape(check_ordered(op, x), (-1,))
        self._count = check_size(op, flat, 0)
        self._order = argsort(flat)
        self._ordered = take(flat, self._order, axis=0)
        first = full((min(self._count, 1),), True, dtype=dtypes.bool_)
        starts = concat([first, not_equal(self._ordered[1:], self._ordered[:-1])])
        numbers = build.scan("add", build.cast(starts.tensor, dtypes.int32), 0)
        self._numbers = Array(numbers)
        wanted = arange(size + 1, dtype=dtypes.int32) + 1
        self._starts = bisected(self._numbers, wanted, self._count, is_right=False)

    def _at_starts(self, x: Array, fill: Array) -> Array:
        if not self._count:
            return Array(build.spread(fill.tensor, (build.as_expr(self._size),)))
        at = self._starts[:-1]
        is_found = at < self._count
        return where(is_found, take(x, where(is_found, at, 0), axis=0), fill)

    def values(self, fill: object) -> Array:
        return self._at_starts(self._ordered, _filled(self._op, fill, self._x))

    def indices(self) -> Array:
        return self._at_starts(self._order, Array(build.constant(0, dtypes.int64)))

    def counts(self) -> Array:
        return astype(self._starts[1:] - self._starts[:-1], dtypes.int64)

    def inverse(self) -> Array:
        places = argsort(self._order)
        return reshape(astype(take(self._numbers, places, axis=0) - 1, dtypes.int64), self._x.shape)


__all__ = [
    "compress",
    "isin",
    "nonzero",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]
