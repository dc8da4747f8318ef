"""Between which numbers the elements of integer values lie, whatever the arguments hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from fusewright.core.expr import constant_value
from fusewright.dtypes import DType
from fusewright.fusion.ir import (
    Concat,
    Constant,
    IndexMap,
    Input,
    Iota,
    Parts,
    Pointwise,
    Resize,
    Tensor,
    ViewBase,
)

Range: TypeAlias = tuple[int, int]
"""The least and the largest number that a value may hold."""


def ranges_of(values: tuple[Tensor, ...]) -> dict[Tensor, Range]:
    """The ranges of those of some values, operands before users, that are known: of coordinates,
    literals, short integers and conditions, and of what functions make of these. A value is not in
    the result where its range is not known, or its dtype does not hold it."""
    found: dict[Tensor, Range] = {}
    for t in values:
        known = _range_of(t, found)
        if known is not None and _is_held(known, t.dtype):
            found[t] = known
    return found


def _is_held(known: Range, dtype: DType) -> bool:
    low, high = _all_of(dtype) or (0, 0)
    return low <= known[0] and known[1] <= high


def _all_of(dtype: DType) -> Range | None:
    """All numbers of an integer type, and conditions as 0 and 1; None for floats."""
    if dtype.kind == "bool":
        return 0, 1
    return dtype.integer_range if dtype.is_integer else None


def _range_of(t: Tensor, known: Mapping[Tensor, Range]) -> Range | None:
    match t.op:
        case Iota(axis=axis):
            extent = constant_value(t.shape[axis])
            return None if not extent else (0, extent - 1)
        case Constant(value=int(value)):
            return int(value), int(value)
        case Input():
            return _all_of(t.dtype)
        case ViewBase() | IndexMap() | Concat():
            return _hull([known.get(o) for o in t.op.operands])
        case Resize(fill=fill) | Parts(fill=fill) if isinstance(fill, int):
            return _hull([*(known.get(o) for o in t.op.operands), (int(fill), int(fill))])
        case Pointwise(fn=fn) if t.dtype.is_integer:
            own = _computed(fn, [known.get(o) for o in t.op.operands])
            return own or (_all_of(t.dtype) if t.dtype.nbytes < 8 else None)
        case _:
            return _all_of(t.dtype) if t.dtype.nbytes < 8 else None


def _hull(ranges: list[Range | None]) -> Range | None:
    """What lies in one of several ranges."""
    known = [r for r in ranges if r is not None]
    if not known or len(known) < len(ranges):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _computed(fn: str, operands: list[Range | None]) -> Range | None:
    """What a function makes of numbers of these ranges, before its dtype wraps it around."""
    if fn == "where":
        return _hull(operands[1:])
    own = [r for r in operands if r is not None]
    if len(own) < len(operands):
        return None
    match fn, own:
        case (("cast" | "copy"), [a]):
            return a
        case "neg", [(low, high)]:
            return -high, -low
        case "abs", [(low, high)]:
            return max(0, low, -high), max(-low, high)
        case "add", [a, b]:
            return a[0] + b[0], a[1] + b[1]
        case "sub", [a, b]:
            return a[0] - b[1], a[1] - b[0]
        case "mul", [a, b]:
            products = [x * y for x in a for y in b]
            return min(products), max(products)
        case "min", [a, b]:
            return min(a[0], b[0]), min(a[1], b[1])
        case "max", [a, b]:
            return max(a[0], b[0]), max(a[1], b[1])
        case "floordiv", [a, (low, high)] if low > 0:
            quotients = [x // y for x in a for y in (low, high)]
            return min(quotients), max(quotients)
        case "rem", [a, (low, high)] if low > 0:
            return a if a[0] >= 0 and a[1] < low else (0, high - 1)
        case _:
            return None
