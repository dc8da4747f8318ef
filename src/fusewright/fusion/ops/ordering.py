"""Sorts, and searches in what is sorted.

The order of floats is that of numbers, with every NaN equal and above all of them. What is sorted
are unsigned integers in the same order (`order_keys`), or pairs of these and positions.
"""

from __future__ import annotations

from typing import NamedTuple

from fusewright import dtypes
from fusewright.core.expr import Int, constant_value
from fusewright.errors import UnsupportedError, UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array, as_operand, as_tensor, check_array, common_dtype
from fusewright.fusion.derivatives import GivenRule
from fusewright.fusion.ir import Tensor
from fusewright.fusion.operands import check_category, check_flag
from fusewright.fusion.ops.elementwise import astype, equal, isnan, less, less_equal, where
from fusewright.fusion.ops.gather import take, take_along_axis
from fusewright.fusion.ops.order_keys import (
    HALF,
    from_order_bits,
    low_half,
    order_bits,
    paired,
    sort_keys,
)

LONGEST_ROW = 1 << 16
"""Elements of a row that the blocks of a cluster hold from one maximum to the next. `topk` looks at
the chunks of a longer one first, which costs a launch: without, each maximum reads the row."""
CHUNK = 4096
"""Elements of a chunk: of 8 bytes 16 for each of 256 threads."""
MAX_ROUNDS = 4
"""Elements that `topk` takes by so many maxima of a row; more are taken from its sort. A maximum is
a pass over what a block holds, a sort of 1024 elements 55 exchanges."""


def _sorted(bits: Array, axis: int) -> Array:
    return Array(build.sort(bits.tensor, axis))


# --- arguments ----------------------------------------------------------------------------------


def check_ordered(op: str, x: Array) -> Array:
    """UserError for complex numbers."""
    if x.dtype.is_complex:
        raise UserError(f"{op} of {x.dtype}: complex numbers have no order; use fw.abs of it")
    return x


def _row(op: str, x: Array, axis: int) -> tuple[int, int]:
    """The axis that is sorted along, and its size."""
    along = build.axis_of(op, axis, x.ndim)
    return along, check_size(op, x, along)


def check_size(op: str, x: Array, axis: int) -> int:
    """The size of an axis that is sorted along. UnsupportedError for a symbolic one."""
    size = constant_value(x.tensor.shape[axis])
    if size is None:
        raise UnsupportedError(
            f"{op} of {x!r} along axis {axis} of symbolic size {x.tensor.shape[axis]}: the passes "
            "over it depend on the size; make it an integer in the spec"
        )
    return size


# --- sorts --------------------------------------------------------------------------------------


def sort(x: Array, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """The elements in order along the axis, -0 before 0 and NaN above all numbers: last, or first
    if `descending`. UserError for complex numbers, UnsupportedError for a symbolic size."""
    x = check_ordered("sort", check_array("sort", x))
    check_flag("sort", "descending", descending)
    check_flag("sort", "stable", stable)
    along, size = _row("sort", x, axis)
    if size < 2:
        return x
    bits = order_bits(x)
    ordered = ~_sorted(~bits, along) if descending else _sorted(bits, along)
    out = from_order_bits(ordered, x.dtype)
    if x.dtype.is_float:
        out.tensor.rule = GivenRule(
            (x.tensor,), lambda g: [_unsorted(x, g, along, descending=descending)]
        )
    return out


def _unsorted(x: Array, g: Array, axis: int, *, descending: bool) -> Array:
    """The cotangent of what was sorted: each element has that of its place."""
    order = _positions(order_bits(x) if not descending else ~order_bits(x), axis)
    places = _positions(order_bits(order), axis)
    return take_along_axis(g, places, axis=axis)


def argsort(x: Array, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """The positions along the axis that put x in order, as int64; equal elements, and NaN, which
    is above all numbers, keep their order. Raises as `sort`."""
    x = check_ordered("argsort", check_array("argsort", x))
    check_flag("argsort", "descending", descending)
    check_flag("argsort", "stable", stable)
    along, _ = _row("argsort", x, axis)
    return astype(_positions(sort_keys(x, descending=bool(descending)), along), dtypes.int64)


def _positions(keys: Array, axis: int) -> Array:
    """The positions, as uint32, that put keys in order; equal keys keep theirs."""
    own = Array(build.iota(keys.tensor.shape, axis, dtypes.uint32))
    if (constant_value(keys.tensor.shape[axis]) or 0) < 2:
        return own
    if keys.dtype is dtypes.uint32:
        return sorted_pairs(keys, axis)[1]
    by_low = low_half(_sorted(paired(low_half(keys), own), axis))
    high = take_along_axis(astype(keys >> HALF, dtypes.uint32), by_low, axis=axis)
    return take_along_axis(by_low, low_half(_sorted(paired(high, own), axis)), axis=axis)


def sorted_pairs(keys: Array, axis: int) -> tuple[Array, Array]:
    """Keys of 32 bits in order, and the positions, as uint32, that put them so."""
    own = Array(build.iota(keys.tensor.shape, axis, dtypes.uint32))
    pairs = _sorted(paired(keys, own), axis)
    return low_half(pairs >> HALF), low_half(pairs)


class TopK(NamedTuple):
    """The elements in order, and their positions as int64."""

    values: Array
    indices: Array


def topk(x: Array, k: int, /, axis: int = -1, *, largest: bool = True) -> TopK:
    """The k largest elements along the axis, or the smallest ones, in descending or ascending
    order, and their positions; of equal elements the first ones. NaN is above all numbers.

    Raises UserError for a k that is negative or above the size of the axis, and as `sort`.
    """
    x = check_ordered("topk", check_array("topk", x))
    check_flag("topk", "largest", largest)
    along, size = _row("topk", x, axis)
    k = build.integer("topk", "k", k)
    if not 0 <= k <= size:
        raise UserError(f"topk: k={k} of axis {along} of size {size}: k goes from 0 to that size")
    keys = sort_keys(x, descending=bool(largest))
    is_paired = keys.dtype is dtypes.uint32 and k < size
    if k <= MAX_ROUNDS and is_paired:
        at = _first_rounds(keys, k, along)
    elif is_paired and _is_shorter_in_chunks(size, k):
        at = _first_of_chunks(keys, k, along)
    else:
        at = _first(_positions(keys, along), k, along)
    indices = astype(at, dtypes.int64)
    return TopK(take_along_axis(x, indices, axis=along), indices)


def _first(x: Array, count: int, axis: int) -> Array:
    return x[(*(slice(None),) * axis, slice(0, count))]


def _first_rounds(keys: Array, k: int, axis: int) -> Array:
    """The positions of the k least keys, those of a long row among the k least of its chunks."""
    shape = keys.tensor.shape
    left = paired(keys, Array(build.iota(shape, axis, dtypes.uint32))).tensor
    size = constant_value(shape[axis]) or 0
    if k and size > LONGEST_ROW:
        chunks = _chunks(left, axis, size)
        least = build.concat(_rounds(chunks, k, axis + 1), axis + 1)
        count = build.element_count(least.shape[axis : axis + 2])
        left = build.reshape("topk", least, (*shape[:axis], count, *shape[axis + 1 :]))
    found = [low_half(Array(t)).tensor for t in _rounds(left, k, axis)]
    return Array(build.concat(found, axis)) if found else _first(low_half(Array(left)), 0, axis)


def _is_shorter_in_chunks(size: int, k: int) -> bool:
    """Whether a row is longer than a chunk, and the first k of its chunks at most half of it."""
    return size > CHUNK and 2 * -(-size // CHUNK) * k <= size


def _first_of_chunks(keys: Array, k: int, axis: int) -> Array:
    """The positions of the k least keys, in their order: chunks of a row are sorted, each by a
    block, then the first k of all of them, until a block sorts what is left."""
    left = paired(keys, Array(build.iota(keys.tensor.shape, axis, dtypes.uint32)))
    size = constant_value(left.tensor.shape[axis]) or 0
    while _is_shorter_in_chunks(size, k):
        chunks = _sorted(Array(_chunks(left.tensor, axis, size)), axis + 1)
        least = _first(chunks, k, axis + 1).tensor
        size = -(-size // CHUNK) * k
        shape = (*least.shape[:axis], Int(size), *least.shape[axis + 2 :])
        left = Array(build.reshape("topk", least, shape))
    return low_half(_first(_sorted(left, axis), k, axis))


def _chunks(t: Tensor, axis: int, size: int) -> Tensor:
    """A row in chunks of one length, which a block holds, the last of them filled with what is
    never among the least."""
    count = -(-size // CHUNK)
    each = -(-size // count)
    ends = [count * each - size if a == axis else 0 for a in range(t.ndim)]
    filled = build.resize(t, [0] * t.ndim, ends, t.dtype.integer_range[1])
    shape = (*t.shape[:axis], Int(count), Int(each), *t.shape[axis + 1 :])
    return build.reshape("topk", filled, shape)


def _rounds(t: Tensor, k: int, axis: int) -> list[Tensor]:
    """The k least elements, all different, each a minimum over what the last ones left."""
    found: list[Tensor] = []
    left = Array(t)
    for _ in range(k):
        least = Array(build.reduce("min", left.tensor, (axis,), keepdims=True))
        found.append(least.tensor)
        left = where(equal(left, least), dtypes.uint64.integer_range[1], left)
    return found


# --- searches -----------------------------------------------------------------------------------


def searchsorted(
    x1: Array, x2: Array | float, /, *, side: str = "left", sorter: Array | None = None
) -> Array:
    """Where each element of x2 goes into x1, of rank 1, so that x1 stays in order, as int64: before
    equal elements for side "left", after them for "right". `sorter` are the positions that put x1
    in order. UserError for another rank, side, or complex numbers."""
    op = "searchsorted"
    both = (check_array(op, x1), as_operand(op, x2))
    dtype = common_dtype(op, both)
    ordered, wanted = (check_ordered(op, Array(as_tensor(x, dtype))) for x in both)
    if ordered.ndim != 1:
        raise UserError(f"{op} in {x1!r}: the ordered array has rank 1; reshape it")
    if side not in ("left", "right"):
        raise UserError(f"{op}: side={side!r}; use 'left' or 'right'")
    if sorter is not None:
        sorter = check_array(op, sorter)
        check_category(f"{op} (sorter)", sorter.dtype, "integer")
        ordered = take(ordered, sorter, axis=0)
    size = check_size(op, ordered, 0)
    return astype(bisected(ordered, wanted, size, is_right=side == "right"), dtypes.int64)


def bisected(ordered: Array, wanted: Array, size: int, *, is_right: bool) -> Array:
    """How many of `size` ordered elements are less than the wanted ones, or not greater for the
    right side, as int32. Steps are halved from the greatest power of two on; after the first one
    both halves that are left have that power less one elements, and may overlap."""
    if ordered.dtype is dtypes.bool_:
        ordered, wanted = (astype(x, dtypes.uint8) for x in (ordered, wanted))
    found = Array(build.full(wanted.tensor.shape, -1, dtypes.int32))  # the last one before it
    if not size:
        return found + 1
    step = first = 1 << (size.bit_length() - 1)
    while step:
        at = found + step
        is_before = _is_before(take(ordered, at, axis=0, mode="fill"), wanted, is_right=is_right)
        found = where(is_before, size - first if step == first else at, found)
        step //= 2
    return found + 1


def _is_before(x: Array, wanted: Array, *, is_right: bool) -> Array:
    """Whether an element comes before the place of the wanted one. NaN is above all numbers."""
    plain = less_equal(x, wanted) if is_right else less(x, wanted)
    if not x.dtype.is_float:
        return plain
    is_last = isnan(wanted)
    return plain | is_last if is_right else plain | (is_last & equal(x, x))


__all__ = ["argsort", "searchsorted", "sort", "topk"]
