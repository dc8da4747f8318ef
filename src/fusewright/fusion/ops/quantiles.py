"""Medians and quantiles: elements of what is sorted, and means of two neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright import dtypes
from fusewright.core.expr import constant_value
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.operands import check_flag
from fusewright.fusion.ops import reductions
from fusewright.fusion.ops.elementwise import astype, isnan, where
from fusewright.fusion.ops.manipulation import reshape, squeeze, stack
from fusewright.fusion.ops.ordering import sort


def median(x: Array, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The middle of the elements in order along the axis, or of all elements; the mean of both
    where there are two. NaN where an element is; float64 of integers.

    Raises UserError for an axis of size 0, and as `sort`.
    """
    return _quantile("median", check_array("median", x), 0.5, axis, keepdims=keepdims)


def quantile(
    x: Array,
    q: float | Sequence[float] | Array | npt.NDArray[Any],
    /,
    axis: int | None = None,
    *,
    keepdims: bool = False,
) -> Array:
    """The element that the share q of the others is below, along the axis or of all elements:
    between two neighbours in proportion (numpy's `method="linear"`). Several q, a sequence or known
    data of rank 1, make a new first axis. NaN where an element is; float64 of integers.

    Raises UserError for a q outside 0 to 1, or that depends on an argument, for an axis of size 0,
    and as `sort`.
    """
    x = check_array("quantile", x)
    if isinstance(q, Array | np.ndarray):
        known = q.numpy("quantile (q)") if isinstance(q, Array) else q
        q = known.tolist()
    if isinstance(q, list | tuple):
        if not q:
            raise UserError("quantile: q=() has no shares; give at least one, from 0 to 1")
        parts = [_quantile("quantile", x, share, axis, keepdims=keepdims) for share in q]
        return stack(parts)
    return _quantile("quantile", x, q, axis, keepdims=keepdims)


def _quantile(op: str, x: Array, q: object, axis: int | None, *, keepdims: bool) -> Array:
    check_flag(op, "keepdims", keepdims)
    share = build.number(op, "q", q)
    if not 0 <= share <= 1:
        raise UserError(f"{op}: q={share} is a share of the elements; it goes from 0 to 1")
    if axis is None:
        flat = _quantile(op, reshape(x, (-1,)), share, 0, keepdims=False)
        return reshape(flat, (1,) * x.ndim) if keepdims else flat
    along = build.axis_of(op, axis, x.ndim)
    size = constant_value(x.tensor.shape[along])
    if size == 0:
        raise UserError(f"{op}: axis {along} has size 0, and no element is in its middle")
    found = _between(x, along, share * ((size or 1) - 1))
    return found if keepdims else squeeze(found, along)


def _between(x: Array, axis: int, place: float) -> Array:
    """What stands at a place that may lie between two elements in order; NaN if any element is."""
    ordered = sort(x, axis=axis)
    wide = dtypes.float64 if x.dtype.is_integer else x.dtype.compute
    low, high = math.floor(place), math.ceil(place)
    lead = (slice(None),) * axis
    below, above = (astype(ordered[(*lead, slice(k, k + 1))], wide) for k in (low, high))
    found = below if low == high else below + (above - below) * (place - low)
    if x.dtype.is_integer:
        return found
    is_bad = reductions.any(isnan(x), axis=axis, keepdims=True)
    return astype(where(is_bad, float("nan"), found), x.dtype)


__all__ = ["median", "quantile"]
