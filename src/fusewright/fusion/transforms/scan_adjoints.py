"""Adjoints of cumulative sums, products, maxima and minima."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

from fusewright.core.expr import Expr, Int, add
from fusewright.dtypes import int32, int64
from fusewright.fusion import build
from fusewright.fusion.array import Array
from fusewright.fusion.derivatives import GivenRule
from fusewright.fusion.ir import Scan, Tensor
from fusewright.fusion.ops import (
    arange,
    astype,
    equal,
    expand_dims,
    greater,
    greater_equal,
    isnan,
    moveaxis,
    ones_like,
    sum,
    where,
    zeros_like,
)

Cotangents: TypeAlias = Callable[
    [Sequence[Array], Sequence[Array], Sequence[Array]], list[Array | None]
]
"""From values and their cotangents those of variables; None where nothing flows."""


def scan_adjoint(t: Tensor, op: Scan, g: Array, cotangents: Cotangents) -> Array:
    """The cotangent of what is scanned."""
    x = Array(op.operands[0])
    match op.fn:
        case "add":
            return _sums_back(op, g)
        case "mul":
            found = _of_products(x, Array(t), op, g)
            found.tensor.rule = _rule_of_products(x, op, g, cotangents)
            return found
        case _:
            return _of_extremes(x, Array(t), op, g)


def sums_along(at: Array, g: Array, extent: Expr, axis: int) -> Array:
    """For every place below `extent` along the axis the sum of the elements of g whose place `at`
    names it, in a fixed order."""
    numbers = expand_dims(moveaxis(at, axis, -1), g.ndim - 1)
    places = expand_dims(arange(extent, dtype=at.dtype), 1)
    back = expand_dims(moveaxis(g, axis, -1), g.ndim - 1)
    found = sum(where(equal(places, numbers), back, zeros_like(back)), axis=-1, dtype=g.dtype)
    return moveaxis(found, -1, axis)


def _scanned(op: Scan, fn: str, x: Array) -> Array:
    """Another function, or other elements, along the axis and in the direction of a scan."""
    again = dataclasses.replace(op, operands=(x.tensor,), fn=fn)
    return Array(build.value(x.tensor.shape, x.tensor.dtype, again))


def _sums_back(op: Scan, g: Array) -> Array:
    """For each element the sum of the cotangents of all results that it is in."""
    return _scanned(dataclasses.replace(op, reverse=not op.reverse), "add", g)


def _of_products(x: Array, y: Array, op: Scan, g: Array) -> Array:
    """Element j is a factor of results from j on: sum(g * y) over these, divided by x[j].

    From the first zero of a line on that would be 0 / 0. Results behind it are 0 for every other
    element; for the zero itself they are the products of all others, which are those of the line
    with a 1 in its place.
    """
    zero = equal(x, zeros_like(x))
    before = _scanned(dataclasses.replace(op, exclusive=True), "add", astype(zero, int32))
    is_first = zero & equal(before, zeros_like(before))
    nonzero = where(zero, ones_like(x), x)
    others = _scanned(op, "mul", where(is_first, ones_like(x), x))
    plain = _sums_back(op, g * y) / nonzero
    return where(is_first, _sums_back(op, g * others), where(zero, zeros_like(plain), plain))


def _rule_of_products(x: Array, op: Scan, g: Array, cotangents: Cotangents) -> GivenRule:
    """The derivative of `_of_products`, which chooses by zeros and divides: a line with two zeros
    has gradients of 0 there that change with either zero. So it is that of the same cotangent as a
    polynomial in x and g."""

    def backward(c: Array) -> list[Array | None]:
        return cotangents([_as_polynomial(x, op, g)], [c], [x, g])

    return GivenRule((x.tensor, g.tensor), backward)


def _as_polynomial(x: Array, op: Scan, g: Array) -> Array:
    """The cotangent of a cumulative product without division, with the square of the axis:

    for every j, the product of what is before x[j] times
    the sum over i from j on of g[i] times the product of what is behind x[j] up to x[i]
    """
    before = _scanned(dataclasses.replace(op, exclusive=True), "mul", x)
    g = _one_earlier(op, g) if op.exclusive else g
    along, back = (expand_dims(moveaxis(a, op.axis, -1), a.ndim - 1) for a in (x, g))
    count = x.tensor.shape[op.axis]
    shape = (*along.tensor.shape[:-2], count, count)  # (.., j, i)
    j, i = (Array(build.iota(shape, x.ndim - 1 + k, int64)) for k in (0, 1))
    first, last = (i, j) if op.reverse else (j, i)
    spread = Array(build.spread(along.tensor, shape))
    factors = where(greater(last, first), spread, ones_like(spread))
    behind = Array(build.scan("mul", factors.tensor, x.ndim, reverse=op.reverse))
    terms = where(greater_equal(last, first), behind * back, zeros_like(behind))
    return before * moveaxis(sum(terms, axis=-1, dtype=g.dtype), -1, op.axis)


def _of_extremes(x: Array, y: Array, op: Scan, g: Array) -> Array:
    """A result is the last element up to it that was the extreme when it came: of ties the later
    one, as in PyTorch."""
    count = x.tensor.shape[op.axis]
    if op.exclusive:
        y, g = _scanned(dataclasses.replace(op, exclusive=False), op.fn, x), _one_earlier(op, g)
    places = Array(build.iota(x.tensor.shape, op.axis, int64))
    is_new = equal(x, y) | isnan(x)
    first = build.size(add(count, -1) if op.reverse else Int(0), int64)
    at = where(is_new, places, Array(first))
    newest = dataclasses.replace(op, exclusive=False)
    holder = _scanned(newest, "min" if op.reverse else "max", at)
    return sums_along(holder, g, count, op.axis)


def _one_earlier(op: Scan, g: Array) -> Array:
    """The cotangents of an exclusive scan at the elements that its results end with."""
    low: list[Expr] = [Int(0)] * g.ndim
    high = list(low)
    low[op.axis], high[op.axis] = Int(1 if op.reverse else -1), Int(-1 if op.reverse else 1)
    return Array(build.resize(g.tensor, low, high, 0.0))
