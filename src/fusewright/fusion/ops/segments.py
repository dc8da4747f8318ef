"""Sums of the elements that belong together, by the number of what they belong to.

Every sum has a fixed order, so that results are the same bits in every run: where few segments, or
few elements, make it the shorter way, each segment compares all elements; else the elements are
sorted by segment, sums over blocks of them are nested, and each segment adds the few blocks and
elements that make up its range.
"""

from __future__ import annotations

import builtins
from typing import NamedTuple, cast

import numpy as np

from fusewright import dtypes
from fusewright.core.expr import IntLike, as_expr, constant_value
from fusewright.errors import UnsupportedError, UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array, check_array, common_dtype
from fusewright.fusion.derivatives import GivenRule
from fusewright.fusion.operands import check_category, check_flag
from fusewright.fusion.ops.creation import arange, zeros
from fusewright.fusion.ops.elementwise import (
    astype,
    divide,
    equal,
    logical_and,
    maximum,
    minimum,
    where,
)
from fusewright.fusion.ops.gather import brought_inside, check_mode, signed_indices, take
from fusewright.fusion.ops.manipulation import expand_dims, reshape
from fusewright.fusion.ops.ordering import bisected, check_size, searchsorted, sorted_pairs
from fusewright.fusion.ops.reductions import max, min, sum

MAX_COMPARED = 1 << 27
"""Comparisons of segments with elements that are made rather than a sort. Each reads an element,
mostly from the second-level cache: at 5 TB/s so many take 100 us, as the 20 to 30 launches of a
sort and its sums do at 4 us each. An estimate from an H100's data sheet, not yet timed."""
BLOCK = 16
"""Neighbours that are summed on each level: a range is made up of less than twice as many on every
level, of which there are few."""


MODES = ("drop", "clip", "wrap")
"""What becomes of rows whose number is outside: JAX's words."""


def segment_sum(values: Array, ids: Array, num_segments: IntLike, *, mode: str = "drop") -> Array:
    """For each number below `num_segments` the sum of the rows of `values` that have it in `ids`,
    in values' dtype; 0 for none. A number outside, negative or too large, is left out in mode
    "drop", counts as the nearest in mode "clip", and counts around in mode "wrap". The same bits in
    every run.

    Raises UserError where ids are not integers or do not have the leading axes of values, and for
    another mode.
    """
    op = "segment_sum"
    values = check_array(op, values)
    check_category(op, values.dtype, "numeric")
    count = build.extent(op, "num_segments", num_segments)
    return _summed(op, values, _by_mode(op, _ids(op, values, ids), count, mode), count)


def scatter_add(dest: Array, index: Array, values: Array, *, mode: str = "drop") -> Array:
    """dest with the rows of `values` added at the rows that `index` names, each as often as it is
    named. Negative indices count from the end, but for mode "clip"; those outside add nothing in
    mode "drop", add to the nearest row in mode "clip", and count around in mode "wrap". dest's
    dtype, rounded once; the same bits in every run. Raises as `segment_sum`, and where the rows
    differ."""
    op = "scatter_add"
    dest, values = check_array(op, dest), check_array(op, values)
    if not dest.ndim:
        raise UserError(f"{op}: dest has rank 0, so no rows to add to; reshape it to (1,)")
    dtype = common_dtype(op, (dest, values))
    if dtype is not dest.dtype:
        raise UserError(f"{op}: {values.dtype} values would make dest {dtype}; cast them first")
    at = _ids(op, values, index)
    row = dest.tensor.shape[1:]
    if values.tensor.shape[at.ndim :] != row:
        raise UserError(
            f"{op}: values have shape {build.shape_text(values.tensor.shape)}; behind the index's "
            f"{at.ndim} axes they must have those of a row of dest, {build.shape_text(row)}"
        )
    rows = dest.tensor.shape[0]
    at = _by_mode(op, at, rows, mode)
    if mode == "drop":
        at = where(at < 0, at + Array(build.size(rows, at.dtype)), at)
    added = _summed(op, astype(values, dest.dtype.compute), at, rows)
    return astype(astype(dest, dest.dtype.compute) + added, dest.dtype)


def _ids(op: str, values: Array, ids: Array) -> Array:
    at = check_array(op, ids)
    check_category(f"{op} (indices)", at.dtype, "integer")
    if values.tensor.shape[: at.ndim] != at.tensor.shape or not at.ndim:
        raise UserError(
            f"{op}: the indices have shape {build.shape_text(at.tensor.shape)}, the values "
            f"{build.shape_text(values.tensor.shape)}: every row of values needs one"
        )
    return at


def _by_mode(op: str, at: Array, count: IntLike, mode: str) -> Array:
    """The numbers that are counted, signed; where no number is inside, "clip" and "wrap" leave out
    all."""
    check_mode(op, mode, None, MODES)
    extent = as_expr(count)
    is_dropped = mode == "drop" or constant_value(extent) == 0
    return signed_indices(at if is_dropped else brought_inside(at, extent, mode))


# --- sums ---------------------------------------------------------------------------------------


def _summed(op: str, values: Array, at: Array, count: IntLike) -> Array:
    """The sums; every element has the cotangent of the sum that it belongs to."""
    out = _sums(op, values, at, count)

    def backward(g: Array) -> list[Array]:
        inside = logical_and(at >= 0, at < Array(build.size(count, at.dtype)))
        taken = take(g, where(inside, at, 0), axis=0)
        for _ in range(values.ndim - at.ndim):
            inside = expand_dims(inside, axis=inside.ndim)
        return [where(inside, taken, 0)]

    if values.dtype.is_float:
        out.tensor.rule = GivenRule((values.tensor,), backward)
    return out


def _sums(op: str, values: Array, at: Array, count: IntLike) -> Array:
    rows = build.element_count(at.tensor.shape)
    row = values.tensor.shape[at.ndim :]
    flat = Array(build.reshape(op, values.tensor, (rows, *row)))
    places = Array(build.reshape(op, at.tensor, (rows,)))
    total = as_expr(count)
    compared = constant_value(rows * total * build.element_count(row))  # None: sizes are symbolic
    if compared is None or compared <= MAX_COMPARED:
        return _compared(flat, places, count)
    segments = constant_value(total)
    assert segments is not None, "the product of all sizes is known"
    return _by_ranges(flat, _Sorted.of(op, places, segments))


def _compared(values: Array, at: Array, count: IntLike) -> Array:
    """Every segment compares all elements."""
    numbers = expand_dims(arange(count, dtype=at.dtype), axis=1)
    hit = equal(numbers, at)
    for _ in range(values.ndim - 1):
        hit = expand_dims(hit, axis=hit.ndim)
    picked = where(hit, astype(values, values.dtype.compute), 0)
    return astype(sum(picked, axis=1, dtype=picked.dtype), values.dtype)


class _Sorted(NamedTuple):
    """Elements in the order of their segments: `order` are their positions, and segment s has
    those from `first[s]` to before `first[s + 1]`."""

    order: Array
    first: Array

    @classmethod
    def of(cls, op: str, at: Array, count: int) -> _Sorted:
        inside = logical_and(at >= 0, at < count)
        size = check_size(op, at, 0)
        keys, order = sorted_pairs(astype(where(inside, at, count), dtypes.uint32), 0)
        numbers = arange(count + 1, dtype=dtypes.uint32)
        return cls(order, bisected(keys, numbers, size, is_right=False))


def _by_ranges(values: Array, of: _Sorted) -> Array:
    """The sums of ranges: on each level of less than a block of elements at both ends, of which
    whole blocks are left for the next level, where they are elements."""
    level = astype(take(values, of.order, axis=0), values.dtype.compute)
    low, high = of.first[:-1], of.first[1:]
    total = zeros((low.shape[0], *level.shape[1:]), dtype=level.dtype)
    while (size := check_size("segment_sum", level, 0)) > BLOCK:
        inner_low = (low + (BLOCK - 1)) // BLOCK
        inner_high = maximum(high // BLOCK, inner_low)
        total = total + _up_to_a_block(level, low, minimum(high, inner_low * BLOCK))
        total = total + _up_to_a_block(level, inner_high * BLOCK, high)
        low, high, level = inner_low, inner_high, _blocks(level, size)
    return astype(total + _up_to_a_block(level, low, high), values.dtype)


def _up_to_a_block(level: Array, low: Array, high: Array) -> Array:
    """The sums from `low` to before `high`, at most a block further."""
    steps = arange(BLOCK, dtype=low.dtype)
    at = expand_dims(low, axis=1) + steps
    inside = at < expand_dims(high, axis=1)
    taken = take(level, where(inside, at, 0), axis=0)
    for _ in range(level.ndim - 1):
        inside = expand_dims(inside, axis=inside.ndim)
    return sum(where(inside, taken, 0), axis=1, dtype=level.dtype)


def _blocks(level: Array, size: int) -> Array:
    """The sums of blocks of neighbours."""
    count = -(-size // BLOCK)
    none = [0] * level.ndim
    full = build.resize(level.tensor, none, [count * BLOCK - size, *none[1:]], 0)
    blocks = reshape(Array(full), (count, BLOCK, *level.shape[1:]))
    return sum(blocks, axis=1, dtype=level.dtype)


# --- counts -------------------------------------------------------------------------------------


def bincount(
    x: Array,
    /,
    weights: Array | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
    mode: str = "drop",
) -> Array:
    """How often each number below `length` is in x, as int64, or the sum of the `weights` of its
    elements; `mode` says of negative numbers and of those from `length` on what it says in
    `segment_sum`. Without a length it is one above the largest number, at least `minlength`: of
    known data only. Raises UserError unless x has rank 1, for a length below `minlength`, and for
    another mode."""
    op = "bincount"
    x = check_array(op, x)
    check_category(op, x.dtype, "integer")
    least = build.integer(op, "minlength", minlength)
    if x.ndim != 1:
        raise UserError(f"{op} of an array of rank {x.ndim}: it counts in rank 1; reshape it")
    if length is None:
        length = builtins.max(least, _known_length(op, x))
    elif build.integer(op, "length", length) < builtins.max(least, 0):
        raise UserError(f"{op}: length={length} is below minlength={least} or 0")
    at = _by_mode(op, x, length, mode)
    if weights is not None:
        return _summed(op, _weights(op, x, weights), at, length)
    return _counted(op, at, length)


def _counted(op: str, at: Array, count: int) -> Array:
    elements = constant_value(at.tensor.shape[0])
    if elements is None or elements * count <= MAX_COMPARED:
        ones = astype(equal(expand_dims(arange(count, dtype=at.dtype), axis=1), at), dtypes.int64)
        return sum(ones, axis=1)
    first = _Sorted.of(op, at, count).first
    return astype(first[1:] - first[:-1], dtypes.int64)


def _known_length(op: str, x: Array) -> int:
    if not x.is_known:
        raise UnsupportedError(
            f"{op} of the traced array {x!r}: the size of the result would depend on its values; "
            "give it as length="
        )
    return int(np.max(x.numpy(op), initial=-1)) + 1


def _weights(op: str, x: Array, weights: Array) -> Array:
    found = check_array(op, weights)
    check_category(f"{op} (weights)", found.dtype, "numeric")
    if found.tensor.shape != x.tensor.shape:
        raise UserError(
            f"{op}: the weights have shape {build.shape_text(found.tensor.shape)}, x "
            f"{build.shape_text(x.tensor.shape)}; every element needs one"
        )
    return found


class Histogram(NamedTuple):
    """How many elements, or what weight, each bin has; and the edges of the bins."""

    hist: Array
    bin_edges: Array


def histogram(
    x: Array,
    /,
    bins: int | Array = 10,
    range: tuple[float, float] | None = None,
    *,
    weights: Array | None = None,
    density: bool = False,
) -> Histogram:
    """How many elements of the flat array are in each bin, as int64, or the sum of their weights;
    with `density` divided by the total and the bin's width, as floats. `bins` are the edges in
    order, of rank 1, or how many equal bins divide the `range`, which without one is that of x. A
    bin has its lower edge, the last one the upper edge too.

    Raises UserError for edges of another rank, a range that is empty, and weights of another shape.
    """
    op = "histogram"
    x = check_array(op, x)
    check_category(op, x.dtype, "numeric")
    check_flag(op, "density", density)
    edges = _edges(op, x, bins, range)
    count = check_size(op, edges, 0) - 1
    flat = reshape(x, (-1,))
    place = searchsorted(edges, flat, side="right") - 1
    last = equal(astype(flat, edges.dtype), edges[-1:])
    place = where(last, count - 1, place)
    if weights is None:
        hist = _counted(op, place, count)
    else:
        hist = _summed(op, reshape(_weights(op, x, weights), (-1,)), place, count)
    if density:
        widths = edges[1:] - edges[:-1]
        share = astype(hist, edges.dtype)
        hist = divide(share, widths * sum(share, keepdims=True))
    return Histogram(hist, edges)


def _edges(op: str, x: Array, bins: object, limits: object) -> Array:
    dtype = x.dtype if x.dtype.is_float else dtypes.float32
    if not isinstance(bins, int):
        edges = check_array(op, bins)
        check_category(f"{op} (bins)", edges.dtype, "numeric")
        if edges.ndim != 1 or check_size(op, edges, 0) < 2:
            raise UserError(
                f"{op}: the edges have shape {build.shape_text(edges.tensor.shape)}; give at least "
                "two along one axis"
            )
        return astype(edges, dtype) if edges.dtype.is_integer else edges
    if bins < 1:
        raise UserError(f"{op}: bins={bins}: there must be at least one")
    low, high = _limits(op, x, limits, dtype)
    steps = arange(bins + 1, dtype=dtype.compute)
    inner = low + (high - low) * (steps / bins)
    return astype(where(equal(steps, bins), high, inner), dtype)


def _limits(op: str, x: Array, limits: object, dtype: dtypes.DType) -> tuple[Array, Array]:
    """The first and the last edge, of rank 0; around the only value where there is only one."""
    if limits is None:
        wide = astype(x, dtype.compute)
        low, high = min(wide), max(wide)
    else:
        ends = cast("tuple[object, ...]", limits) if isinstance(limits, tuple | list) else ()
        if len(ends) != 2:
            raise UserError(f"{op}: range={limits!r}: give the first and the last edge")
        first, last = (build.number(op, "range", n) for n in ends)
        if first > last:
            raise UserError(f"{op}: range=({first}, {last}) is empty; give the lower end first")
        low, high = (Array(build.constant(n, dtype.compute)) for n in (first, last))
    is_one = equal(low, high)
    return where(is_one, low - 0.5, low), where(is_one, high + 0.5, high)


__all__ = ["bincount", "histogram", "scatter_add", "segment_sum"]
