"""Numbers as unsigned integers in the same order, alone and paired with positions.

What sorts, and what looks for the position of an extreme, compares these:

    order     float bits: 1 s.. -> ~bits, 0 s.. -> 1 bits; NaN, whatever its bits, above all
    pairs     order << 32 | position in 64 bits, or in 32 where an element leaves bits for it
"""

from __future__ import annotations

from fusewright import dtypes
from fusewright.core.expr import constant_value
from fusewright.dtypes import DType
from fusewright.fusion import build
from fusewright.fusion.array import Array
from fusewright.fusion.ops.elementwise import astype, equal, isnan, where

HALF = 32
_MANTISSA_BITS = {"float32": 23, "bfloat16": 7, "float16": 10, "float8_e4m3": 3, "float8_e5m2": 2}


def order_bits(x: Array) -> Array:
    """Unsigned integers of 32 or 64 bits in the order of the elements. -0 comes before 0."""
    compute = x.dtype.compute
    if compute.kind == "bool" or compute.kind == "uint":
        return astype(x, dtypes.uint64 if compute.nbytes == 8 else dtypes.uint32)
    if compute.kind == "int":
        wide = dtypes.uint64 if compute.nbytes == 8 else dtypes.uint32
        return astype(x, wide) ^ _top(wide)
    ordered = _ordered_floats(x)
    return where(isnan(x), ordered.dtype.integer_range[1], ordered)


def _ordered_floats(x: Array) -> Array:
    """The order of numbers; NaN is somewhere."""
    wide = dtypes.uint64 if x.dtype.compute.nbytes == 8 else dtypes.uint32
    signed = dtypes.int64 if wide.nbytes == 8 else dtypes.int32
    bits = Array(build.bitcast(astype(x, x.dtype.compute).tensor, wide))
    spread = astype(
        astype(bits, signed) >> (8 * wide.nbytes - 1), wide
    )  # all bits of negative ones
    return bits ^ (spread | _top(wide))


def _top(dtype: DType) -> int:
    """The highest bit."""
    return 1 << (8 * dtype.nbytes - 1)


def from_order_bits(bits: Array, dtype: DType) -> Array:
    """The elements that have these bits."""
    compute = dtype.compute
    top = _top(bits.dtype)
    if compute.kind == "bool" or compute.kind == "uint":
        return astype(bits, dtype)
    if compute.kind == "int":
        return astype(bits ^ top, dtype)
    floats = where(equal(bits & top, 0), ~bits, bits ^ top)
    return astype(Array(build.bitcast(floats.tensor, compute)), dtype)


def sort_keys(x: Array, *, descending: bool) -> Array:
    """What elements are compared by: equal numbers have equal keys."""
    ordered = order_bits(_without_negative_zero(x))
    return ~ordered if descending else ordered


def paired(high: Array, low: Array) -> Array:
    """Two numbers of 32 bits in one of 64."""
    return (astype(high, dtypes.uint64) << HALF) | astype(low, dtypes.uint64)


def low_half(x: Array) -> Array:
    """The lower 32 bits."""
    return astype(x, dtypes.uint32)


def first_extremes(x: Array, axis: int, *, is_largest: bool, keepdims: bool) -> Array | None:
    """The first positions along an axis of the largest or the smallest elements, as int64; of the
    first NaN if there is one. None where a pair of an element and a position is too wide, or the
    axis may be: for elements of 64 bits, and for symbolic sizes."""
    size = constant_value(x.tensor.shape[axis])
    if size is None or size > 1 << HALF or x.dtype.compute.nbytes > 4:
        return None
    spare = _spare_bits(x.dtype)
    own = Array(build.iota(x.tensor.shape, axis, dtypes.uint32))
    ranks = _ranks(x, is_largest=is_largest)
    if size <= 1 << spare:
        mask = (1 << spare) - 1
        pairs = (ranks & (mask ^ dtypes.uint32.integer_range[1])) | own
    else:
        mask, pairs = dtypes.uint32.integer_range[1], paired(ranks, own)
    least = Array(build.reduce("min", pairs.tensor, (axis,), keepdims=keepdims))
    return astype(least & mask, dtypes.int64)


def _ranks(x: Array, *, is_largest: bool) -> Array:
    """Numbers of 32 bits whose order is that in which elements are looked for, NaN first. They
    differ in the bits that `_spare_bits` leaves."""
    if not x.dtype.is_float:
        spare, (least, greatest) = _spare_bits(x.dtype), x.dtype.integer_range
        if not spare:
            return ~order_bits(x) if is_largest else order_bits(x)
        wide = astype(x, dtypes.int32)
        return astype(greatest - wide if is_largest else wide - least, dtypes.uint32) << spare
    ordered = _ordered_floats(_without_negative_zero(x))
    return where(isnan(x), 0, ~ordered if is_largest else ordered)


def _spare_bits(dtype: DType) -> int:
    """The lower bits in which the ranks of no two elements differ."""
    if dtype.is_float:
        return _MANTISSA_BITS["float32"] - _MANTISSA_BITS[dtype.name]
    return HALF - 8 * dtype.nbytes


def _without_negative_zero(x: Array) -> Array:
    return x + 0 if x.dtype.is_float else x  # -0 + 0 is 0
