"""Random numbers as pure functions of a seed, an offset and the position in the result.

The generator is Philox4x32-10 keyed by the seed; element i of a result (in C order) takes its
words from block `offset + i // 4` on. A call that draws w words an element uses
`ceil(w * size / 4)` blocks: advance `offset` by that much for numbers of their own. `seed` and
`offset` are non-negative ints or integer arrays of rank 0.
"""

from __future__ import annotations

import math

from fusewright import dtypes
from fusewright.core.expr import constant_value
from fusewright.dtypes import DType, dtype_of
from fusewright.errors import UserError
from fusewright.fusion import build, ir
from fusewright.fusion.array import Array, as_operand
from fusewright.fusion.ir import Shape, Tensor
from fusewright.fusion.ops.creation import ShapeLike, shape_of
from fusewright.fusion.ops.elementwise import astype, cos, equal, log, sin, sqrt, where

_PRECISION = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}  # bits of a significand


def _word(op: str, x: object, what: str) -> Tensor:
    """A seed or an offset as a 0-d uint64."""
    value = as_operand(op, x)
    if isinstance(value, Array):
        if value.ndim or not value.dtype.is_integer:
            raise UserError(f"{op}: {what} is {value!r}; it must be an integer array of rank 0")
        return build.cast(value.tensor, dtypes.uint64)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**64:
        raise UserError(f"{op}: {what}={value!r} must be an int in [0, 2**64)")
    return build.constant(value, dtypes.uint64)


def _position(shape: Shape) -> Array:
    """The position of every element in C order, as uint64."""
    out: Array | None = None
    for axis, stride in enumerate(ir.contiguous_strides(shape)):
        along = Array(build.iota(shape, axis, dtypes.uint64))
        if constant_value(stride) != 1:
            along = along * Array(build.size(stride, dtypes.uint64))
        out = along if out is None else out + along
    return Array(build.constant(0, dtypes.uint64)) if out is None else out


def _words(op: str, index: Array, seed: object, offset: object) -> Array:
    shape = index.tensor.shape
    key = build.spread(_word(op, seed, "seed"), shape)
    first = build.spread(_word(op, offset, "offset"), shape)
    return Array(build.pointwise("philox", key, first, index.tensor))


def bits(shape: ShapeLike, *, seed: object, offset: object = 0) -> Array:
    """Uniform uint32 words, one a result element."""
    return _words("random.bits", _position(shape_of("random.bits", shape)), seed, offset)


def _float_dtype(op: str, dtype: object) -> DType:
    found = dtypes.float32 if dtype is None else dtype_of(dtype)
    if found.name not in _PRECISION:
        raise UserError(f"{op} in {found}: use one of {', '.join(_PRECISION)}")
    return found


def _fraction(op: str, index: Array, dtype: DType, seed: object, offset: object) -> Array:
    """Multiples of 2**-p in [0, 1), p the precision of `dtype`, in its compute dtype.

    Up to 32 bits come from the high end of one word; float64 takes 53 bits of two.
    """
    precision = _PRECISION[dtype.name]
    if precision <= 32:
        high = _words(op, index, seed, offset) >> (32 - precision)
        return astype(high, dtype.compute) * 2.0**-precision
    pair = index * 2
    high = astype(_words(op, pair, seed, offset), dtypes.uint64)
    low = astype(_words(op, pair + 1, seed, offset), dtypes.uint64)
    word = ((high << 32) | low) >> (64 - precision)
    return astype(word, dtype) * 2.0**-precision


def uniform(
    shape: ShapeLike,
    low: float = 0.0,
    high: float = 1.0,
    *,
    seed: object,
    offset: object = 0,
    dtype: object = None,
) -> Array:
    """Uniform floats in [low, high), float32 without a dtype. One word an element, two for
    float64."""
    op = "random.uniform"
    low, high = build.number(op, "low", low), build.number(op, "high", high)
    found = _float_dtype(op, dtype)
    out = _fraction(op, _position(shape_of(op, shape)), found, seed, offset)
    if (low, high) != (0.0, 1.0):
        out = out * float(high - low) + float(low)
    return astype(out, found)


def normal(
    shape: ShapeLike,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    seed: object,
    offset: object = 0,
    dtype: object = None,
) -> Array:
    """Normal floats, float32 without a dtype; one word an element, two for float64.

    Elements 2k and 2k+1 are the cosine and the sine of one pair of uniform numbers.
    Source: Box and Muller, A note on the generation of random normal deviates (1958).
    """
    op = "random.normal"
    mean, std = build.number(op, "mean", mean), build.number(op, "std", std)
    found = _float_dtype(op, dtype)
    wide = found.compute
    index = _position(shape_of(op, shape))
    even = index - index % 2
    unit = 2.0 ** -_PRECISION[wide.name]
    radius = sqrt(log(_fraction(op, even, wide, seed, offset) + unit) * -2.0)
    angle = _fraction(op, even + 1, wide, seed, offset) * (2.0 * math.pi)
    out = radius * where(equal(index % 2, 0), cos(angle), sin(angle))
    if (mean, std) != (0.0, 1.0):
        out = out * float(std) + float(mean)
    return astype(out, found)


__all__ = ["bits", "normal", "uniform"]
