"""Functions that are a few others, under their names in numpy, scipy and torch."""

from __future__ import annotations

import math
from typing import Any, cast

import ml_dtypes

from fusewright.fusion import build
from fusewright.fusion.array import Array, as_operand, check_array
from fusewright.fusion.derivatives import without_gradient
from fusewright.fusion.operands import check_category, check_flag
from fusewright.fusion.ops import reductions
from fusewright.fusion.ops.elementwise import (
    abs,
    astype,
    equal,
    exp,
    isfinite,
    isnan,
    log,
    logical_and,
    logical_or,
    where,
)


def logsumexp(
    x: Array, /, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False
) -> Array:
    """log(sum(exp(x))) over axes without overflow, computed in the compute dtype."""
    x = check_array("logsumexp", x)
    check_category("logsumexp", x.dtype, "float")
    check_flag("logsumexp", "keepdims", keepdims)
    wide = astype(x, x.dtype.compute)
    axes = build.axes_of("logsumexp", axis, x.ndim)
    largest = reductions.max(wide, axis=axes, keepdims=True)
    shift = without_gradient(where(isfinite(largest), largest, 0))
    total = reductions.sum(exp(wide - shift), axis=axes, keepdims=keepdims)
    shape = total.tensor.shape
    back = shift if keepdims else Array(build.reshape("logsumexp", shift.tensor, shape))
    return astype(log(total) + back, x.dtype)


def isclose(
    x1: Array,
    x2: Array,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> Array:
    """Whether |x1 - x2| is at most atol + rtol * |x2|, or both are the same infinity; NaN is close
    to NaN if `equal_nan`. Integers are compared as float64."""
    a, b = (check_array("isclose", x) for x in (x1, x2))
    for x in (a, b):
        check_category("isclose", x.dtype, "numeric")
    check_flag("isclose", "equal_nan", equal_nan)
    bounds = [float(build.number("isclose", n, v)) for n, v in (("rtol", rtol), ("atol", atol))]
    a, b = (astype(x, "float64") if x.dtype.is_integer else x for x in (a, b))
    near = abs(a - b) <= abs(b) * bounds[0] + bounds[1]
    found = logical_or(equal(a, b), logical_and(near, isfinite(b)))
    return logical_or(found, logical_and(isnan(a), isnan(b))) if equal_nan else found


def allclose(
    x1: Array,
    x2: Array,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> Array:
    """Whether all elements are close, as `isclose` has it: a bool of rank 0."""
    return reductions.all(isclose(x1, x2, rtol, atol, equal_nan))


def nan_to_num(
    x: Array, /, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Array:
    """x with numbers in place of NaN and of the infinities, which become the largest and the least
    number of the dtype without one given; integers unchanged."""
    x = check_array("nan_to_num", x)
    check_category("nan_to_num", x.dtype, "numeric")
    if x.dtype.is_integer:
        return x
    limit = float(cast("Any", ml_dtypes.finfo(x.dtype.numpy)).max)
    high = limit if posinf is None else float(build.number("nan_to_num", "posinf", posinf))
    low = -limit if neginf is None else float(build.number("nan_to_num", "neginf", neginf))
    number = float(build.number("nan_to_num", "nan", nan))
    found = where(equal(x, math.inf), high, where(equal(x, -math.inf), low, x))
    return where(isnan(x), number, found)


def lerp(x1: Array, x2: Array, weight: Array | float, /) -> Array:
    """x1 + weight * (x2 - x1)."""
    a, b = (check_array("lerp", x) for x in (x1, x2))
    for x in (a, b):
        check_category("lerp", x.dtype, "float")
    return a + (b - a) * as_operand("lerp", weight)


__all__ = ["allclose", "isclose", "lerp", "logsumexp", "nan_to_num"]
