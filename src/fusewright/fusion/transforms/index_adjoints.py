"""Adjoints of index maps: which places of a result read an element, and their sum.

Maps that work axis by axis go back axis by axis, by the inverse that each has:

    c -> a*c + b        steps and flips      the element at a*c + b comes from c, others are 0
    c -> (c + s) % n    rolls                rolled back
    c -> c // r         repeats              sums of r neighbours
    c -> c % n          tiles                sums of what lies n apart
    any other           over constant sizes  a table of the places along the axis that read c

Maps that mix axes go back, over constant sizes, by a table of the places that read each element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright.core.expr import (
    Expr,
    Int,
    Var,
    add,
    as_expr,
    constant_value,
    floordiv,
    mod,
    mul,
    variables,
)
from fusewright.errors import UnsupportedError
from fusewright.fusion import build
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.evaluate import values_of
from fusewright.fusion.ir import IndexMap, Tensor
from fusewright.fusion.ops import (
    arange,
    equal,
    expand_dims,
    flip,
    reshape,
    sum,
    take,
    where,
    zeros,
    zeros_like,
)

MAX_READERS = 64
"""Places that read one element, above which a table of them would be most of the program."""
MAX_TABLE = 1 << 20
"""Entries of a table: constants of a program travel with it."""


def index_map_adjoint(t: Tensor, g: Array) -> Array:
    """The cotangent of what a map reads. Raises UnsupportedError for maps over symbolic sizes
    that are none of the above, and for those whose tables would be too large."""
    assert isinstance(t.op, IndexMap)
    (x,) = t.op.operands
    own = [_only(e, t.op.coordinates) for e in t.op.index]
    if own != list(range(t.ndim)):
        return _by_table(t, t.op, g)
    axes = zip(t.op.index, t.op.coordinates, x.shape, t.shape, strict=True)
    inverses = [_along(*axis) for axis in axes]
    if None in inverses:
        return _by_table(t, t.op, g)
    for k, back in enumerate(inverses):
        assert back is not None
        g = back(g, k)
    return g


def _only(e: Expr, coordinates: Sequence[Var]) -> int | None:
    """The one coordinate that an index needs."""
    found = [k for k, c in enumerate(coordinates) if c in variables(e)]
    return found[0] if len(found) == 1 else None


def _along(e: Expr, c: Var, size: Expr, count: Expr) -> Callable[[Array, int], Array] | None:
    """How a cotangent of `count` places goes back along an axis of `size` elements; None for a map
    that is none of those with an inverse."""
    if e == as_expr(c):
        return (lambda g, k: g) if size == count else None
    if e == add(size, -1, mul(c, -1)) and size == count:
        return lambda g, k: flip(g, axis=k)
    n, m = constant_value(size), constant_value(count)
    if n is None or m is None or m < 1:
        return None
    index = _values(e, c, m)
    steps = np.diff(index)
    if m == 1 or (np.all(steps == steps[0]) and steps[0]):
        first, step = int(index[0]), int(steps[0]) if m > 1 else 1
        return lambda g, k: _spaced(g, k, first, step, n)
    if m == n and np.array_equal(index, (np.arange(m) + index[0]) % n):
        return lambda g, k: _rolled(g, k, int(index[0]), n)
    if m % n == 0 and np.array_equal(index, np.arange(m) // (m // n)):
        return lambda g, k: _folded(g, k, (n, m // n), 1)
    if m % n == 0 and np.array_equal(index, np.arange(m) % n):
        return lambda g, k: _folded(g, k, (m // n, n), 0)
    return _by_readers(index, n)


def _by_readers(index: npt.NDArray[np.int64], size: int) -> Callable[[Array, int], Array] | None:
    """How a cotangent goes back along an axis of which place c reads element `index[c]`; None where
    the table of readers would be too large."""
    readers = _numbered(index, size)
    if readers.size > MAX_TABLE or len(readers) > MAX_READERS:
        return None

    def back(g: Array, k: int) -> Array:
        shape = (*g.shape[:k], size, *g.shape[k + 1 :])
        total = zeros(shape, dtype=g.dtype)
        for places in readers:
            found = take(g, check_array("grad", np.maximum(places, 0)), axis=k)
            if (places < 0).any():
                is_read = expand_dims(check_array("grad", places >= 0), _others(k, g.ndim))
                found = where(is_read, found, zeros_like(found))
            total = total + found
        return total

    return back


def _others(k: int, rank: int) -> tuple[int, ...]:
    return tuple(a for a in range(rank) if a != k)


def _values(e: Expr, c: Var, count: int) -> npt.NDArray[np.int64]:
    return np.broadcast_to(np.asarray(values_of(e, {c: np.arange(count)})), count)


def _mapped(g: Array, k: int, size: int, at: Callable[[Expr], Expr]) -> Array:
    """Elements of a cotangent chosen along an axis, of which there become `size`."""
    shape = (*g.tensor.shape[:k], Int(size), *g.tensor.shape[k + 1 :])
    coordinates = build.coordinates(shape)
    index: list[Expr] = [as_expr(c) for c in coordinates]
    index[k] = at(index[k])
    return Array(build.index_map(g.tensor, shape, coordinates, index))


def _spaced(g: Array, k: int, first: int, step: int, size: int) -> Array:
    """Places `first`, `first + step`, .. of zeros."""
    count = constant_value(g.tensor.shape[k]) or 0
    if step < 0:
        g, first, step = flip(g, axis=k), first + step * (count - 1), -step
    last = first + step * (count - 1)
    low: list[int] = [0] * g.ndim
    high = list(low)
    if step > 1:
        spread = _mapped(g, k, step * (count - 1) + 1, lambda c: floordiv(c, step))
        places = arange(step * (count - 1) + 1)
        for _ in range(g.ndim - k - 1):
            places = expand_dims(places, places.ndim)
        g = where(equal(places % step, 0), spread, zeros_like(spread))
    low[k], high[k] = first, size - 1 - last
    return Array(build.resize(g.tensor, low, high, 0.0))


def _rolled(g: Array, k: int, by: int, size: int) -> Array:
    return _mapped(g, k, size, lambda c: mod(add(c, Int(size - by)), size))


def _folded(g: Array, k: int, sizes: tuple[int, int], summed: int) -> Array:
    parts = reshape(g, (*g.shape[:k], *sizes, *g.shape[k + 1 :]))
    return sum(parts, axis=k + summed, dtype=g.dtype)


def _by_table(t: Tensor, op: IndexMap, g: Array) -> Array:
    """For every element the places that read it, taken and added in their order."""
    (x,) = op.operands
    sizes = [constant_value(e) for e in (*t.shape, *x.shape)]
    if None in sizes:
        raise UnsupportedError(
            f"grad: {t!r} is read from {x!r} by an index map over symbolic sizes that has no "
            "inverse here; give the sizes as integers"
        )
    shape = [n or 0 for n in sizes[: t.ndim]]
    readers = _readers(op, shape, [n or 0 for n in sizes[t.ndim :]])
    if readers.size > MAX_TABLE or len(readers) > MAX_READERS:
        raise UnsupportedError(
            f"grad: the index map of {t!r} reads elements of {x!r} up to {len(readers)} times in "
            f"an irregular pattern; tables hold {MAX_READERS} readers and {MAX_TABLE} entries at "
            "most; give a rule with fw.custom_vjp"
        )
    flat = reshape(g, (int(np.prod(shape)),))
    total = zeros_like(Array(x), dtype=g.dtype)
    for places in readers:
        at = reshape(check_array("grad", np.maximum(places, 0)), total.shape)
        found = take(flat, at)
        total = total + where(
            reshape(check_array("grad", places >= 0), total.shape), found, zeros_like(found)
        )
    return total


def _readers(op: IndexMap, shape: Sequence[int], of: Sequence[int]) -> npt.NDArray[Any]:
    """Row r: for every element its reader number r, in C order of places, or -1."""
    grid = np.indices(shape).reshape(len(shape), -1)
    values = dict(zip(op.coordinates, grid, strict=True))
    index = [np.broadcast_to(np.asarray(values_of(e, values)), grid.shape[1]) for e in op.index]
    element = np.ravel_multi_index(index, tuple(of)) if of else np.zeros(grid.shape[1], np.int64)
    return _numbered(element, int(np.prod(of)))


def _numbered(element: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Row r: for every one of `size` elements its reader number r in the order of places, or -1."""
    order = np.argsort(element, kind="stable")
    counts = np.bincount(element, minlength=size)
    number = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.full((int(counts.max(initial=0)), len(counts)), -1, np.int64)
    table[number, element[order]] = order
    return table
