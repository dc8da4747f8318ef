"""Selection by arrays: `x[rows, columns]`, `x[:, order]`, `x[mask]` where the mask is known.

By numpy's rules: arrays of integers, and integers beside them, broadcast together; what they select
stands where they stood if they are neighbours, and in front of all axes otherwise. A mask that is
known stands for the positions where it holds.

    x[i]             one array: a Take
    x[i, j]          a Take on both axes merged into one, of i * columns + j
    x[arange(n), j]  row k is followed by element k: a TakeAlong. Its gradient compares the labels
                     of a row with that row only, where that of a Take compares all with all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fusewright import dtypes
from fusewright.core.expr import Expr, constant_value
from fusewright.dtypes import DType
from fusewright.errors import AxisError, UserError
from fusewright.fusion import build, indexing, ir
from fusewright.fusion.ir import Shape, Tensor
from fusewright.fusion.known import Known

Elements: TypeAlias = "npt.NDArray[Any]"


@dataclass(frozen=True, slots=True, eq=False)
class Selector:
    """An array in a key: its value, its elements where they are known, and the size of the axis of
    the mask that it comes from."""

    tensor: Tensor
    elements: Elements | None
    size: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Chosen:
    """An axis of the array that is selected from, the positions along it, and the axis of the
    program's array that it is."""

    axis: int
    by: Selector
    asked: int


def select(t: Tensor, key: Sequence[object]) -> Tensor:
    """`t[key]` for a key with selectors. An index outside its axis is a mistake, as in a Take; of
    several arrays, whose axes are counted as one, all their axes are told.

    Raises AxisError for a known index outside its axis, for too many keys and for a mask of another
    shape; UserError for selectors of floats, for masks that are not known, and for selectors that
    do not broadcast together.
    """
    items = indexing.items_of(t, _without_masks(key), also=(Selector,))
    base = indexing.index(t, tuple(slice(None) if isinstance(i, Selector) else i for i in items))
    chosen: list[_Chosen] = []
    axis = asked = 0
    for item in items:
        if isinstance(item, Selector):
            _check_inside(item, base.shape[axis], asked)
            chosen.append(_Chosen(axis, item, asked))
        axis += item is None or isinstance(item, slice | Selector)
        asked += item is not None
    shape = build.broadcast_shapes("x[...]", *(c.by.tensor.shape for c in chosen))
    followed = _followed(base, chosen, shape)
    if followed:
        return _take_along(base, chosen, followed, shape, _position(items))
    return _take(base, chosen, shape, _position(items))


# --- keys ---------------------------------------------------------------------------------------


def listed(item: list[object]) -> object:
    """A list of integers or bools as an array; other lists as they are, which no key takes."""
    try:
        found = np.asarray(item if item else np.empty(0, np.int64))
    except (ValueError, UserError):  # ragged, or with values of a program
        return item
    return found if found.dtype.kind in "iub" else item


def _without_masks(key: Sequence[object]) -> tuple[object, ...]:
    """The key with a selector for each axis of a mask."""
    out: list[object] = []
    for item in key:
        if isinstance(item, Selector) and item.tensor.dtype is dtypes.bool_:
            out.extend(_places(item))
        else:
            out.append(item)
    return tuple(out)


def _places(mask: Selector) -> tuple[Selector, ...]:
    """The positions along each axis where a mask holds."""
    if mask.elements is None:
        raise UserError(
            "x[mask]: how many elements a condition selects depends on values, so that the result "
            "has no size; choose by element with fw.where, or select with fw.compress and a size="
        )
    if not mask.elements.ndim:
        raise UserError("x[True]: a mask has the axes that it selects from; use fw.where")
    found = zip(np.nonzero(mask.elements), mask.elements.shape, strict=True)
    return tuple(Selector(Known(positions), positions, size) for positions, size in found)


def _check_inside(by: Selector, extent: Expr, axis: int) -> None:
    size = constant_value(extent)
    if not by.tensor.dtype.is_integer:
        raise UserError(
            f"x[..., {by.tensor.dtype} array, ...] on axis {axis}: an array in a key holds "
            "integers, or is a mask; cast it with fw.astype to an integer type first"
        )
    if by.size is not None and by.size != size:
        raise AxisError(
            f"x[mask]: the mask has size {by.size} where axis {axis} has size {extent}; they must "
            "be equal"
        )
    if size is None or by.elements is None or not by.elements.size:
        return
    for at in (int(by.elements.min()), int(by.elements.max())):
        if not -size <= at < size:
            raise AxisError(
                f"x[..., array, ...] on axis {axis}: index {at} is outside size {size}; use "
                "indices inside the axis"
            )


def _position(items: Sequence[object]) -> int:
    """Where the axes of the selectors stand in the result: integers beside arrays are selectors."""
    kept = [i is None or isinstance(i, slice) for i in items]
    places = [k for k, is_kept in enumerate(kept) if not is_kept]
    return places[0] if all(b == a + 1 for a, b in pairwise(places)) else 0


# --- one index over several axes ----------------------------------------------------------------


def _take(base: Tensor, chosen: Sequence[_Chosen], shape: Shape, position: int) -> Tensor:
    """The elements at the selectors, whose axes begin at `position` of the result."""
    merged = _merged(base, chosen, _others(base, chosen), position)
    at = _joined(base, chosen, shape)
    out = (*merged.shape[:position], *shape, *merged.shape[position + 1 :])
    op = ir.Take((merged, at), position, merged=_asked(chosen))
    return build.value(out, base.dtype, op)


def _asked(chosen: Sequence[_Chosen]) -> tuple[int, ...]:
    """The axes of the program's array that are counted as one, if several are."""
    return tuple(c.asked for c in chosen) if len(chosen) > 1 else ()


def _others(base: Tensor, chosen: Sequence[_Chosen]) -> list[int]:
    """The axes that no selector is for."""
    return [k for k in range(base.ndim) if all(k != c.axis for c in chosen)]


def _merged(
    base: Tensor, chosen: Sequence[_Chosen], others: Sequence[int], position: int
) -> Tensor:
    """The other axes, with one axis in front of the one at `position` for those of selectors."""
    axes = [*others[:position], *(c.axis for c in chosen), *others[position:]]
    moved = build.permute(base, axes)
    count = build.element_count(tuple(base.shape[c.axis] for c in chosen))
    after = moved.shape[position + len(chosen) :]
    return build.reshape("x[...]", moved, (*moved.shape[:position], count, *after))


def _joined(base: Tensor, chosen: Sequence[_Chosen], shape: Shape) -> Tensor:
    """The index along the merged axis, in the common shape of the selectors: their number of
    elements, which is outside, where an index is."""
    if len(chosen) == 1:
        return build.spread(chosen[0].by.tensor, shape)
    extents = [base.shape[c.axis] for c in chosen]
    dtype = _index_dtype(chosen, extents)
    at, inside = build.constant(0, dtype), build.constant(True, dtypes.bool_)
    for c, extent in zip(chosen, extents, strict=True):
        own, is_inside = _from_front(c.by, extent, dtype)
        scaled = _of("mul", at, build.size(extent, dtype))
        at, inside = _of("add", scaled, own), _of("and", inside, is_inside)
    count = build.size(build.element_count(tuple(extents)), dtype)
    return build.spread(_of("where", inside, at, count), shape)


def _index_dtype(chosen: Sequence[_Chosen], extents: Sequence[Expr]) -> DType:
    """The signed dtype that holds every index, and the number of elements behind them."""
    count = constant_value(build.element_count(tuple(extents)))
    is_narrow = all(c.by.tensor.dtype.nbytes <= 4 for c in chosen)
    fits = count is not None and count <= dtypes.int32.integer_range[1]
    return dtypes.int32 if is_narrow and fits else dtypes.int64


def _from_front(by: Selector, extent: Expr, dtype: DType) -> tuple[Tensor, Tensor]:
    """Indices counted from the front, and whether they are inside."""
    at, size = build.cast(by.tensor, dtype), build.size(extent, dtype)
    zero, yes = build.constant(0, dtype), build.constant(True, dtypes.bool_)
    least = 0 if by.tensor.dtype.kind == "uint" else -1
    if by.elements is not None and by.elements.size:
        least = int(by.elements.min())
    if least < 0:
        at = _of("where", _of("lt", at, zero), _of("add", at, size), at)
    if by.elements is not None and constant_value(extent) is not None:
        return at, yes
    return at, _of("and", _of("le", zero, at), _of("lt", at, size))


def _of(fn: str, *operands: Tensor) -> Tensor:
    return build.pointwise(fn, *build.broadcast_all("x[...]", *operands))


# --- axes that are followed ---------------------------------------------------------------------


def _followed(base: Tensor, chosen: Sequence[_Chosen], shape: Shape) -> dict[int, int]:
    """For axes of the selectors that each are the coordinate of their own axis, by position among
    the selectors: that axis. One selector is always left."""
    out: dict[int, int] = {}
    for k, c in enumerate(chosen):
        axis = _own_axis(c.by, len(shape))
        is_whole = axis is not None and shape[axis] == base.shape[c.axis]
        if axis is not None and is_whole and axis not in out.values():
            out[k] = axis
    return dict(list(out.items())[: len(chosen) - 1])


def _own_axis(by: Selector, rank: int) -> int | None:
    """The only axis along which indices vary, counted in the common shape, where they are 0, 1,
    2, ... along it."""
    if isinstance(by.tensor.op, ir.Iota) and by.tensor.ndim == 1:
        return rank - 1
    found = by.elements
    if found is None or max(found.shape, default=0) != found.size or not found.size:
        return None
    if not np.array_equal(found.reshape(-1), np.arange(found.size)):
        return None
    return rank - found.ndim + int(np.argmax(found.shape))


def _take_along(
    base: Tensor,
    chosen: Sequence[_Chosen],
    followed: dict[int, int],
    shape: Shape,
    position: int,
) -> Tensor:
    """The elements at the selectors, of which some are followed: base and index have the followed
    axes in front, then the one that is selected from, then the others."""
    rest = [c for k, c in enumerate(chosen) if k not in followed]
    front = [chosen[k].axis for k in followed]
    others = _others(base, chosen)
    table = _merged(base, rest, [*front, *others], len(front))
    free = [d for d in range(len(shape)) if d not in followed.values()]
    order = [*followed.values(), *free]
    at = build.permute(_joined(base, rest, shape), order)
    lead = at.shape[: len(front)]
    at = build.reshape("x[...]", at, (*lead, build.element_count(at.shape[len(front) :])))
    for _ in others:
        at = build.expand(at, at.ndim)
    at = build.spread(at, (*at.shape[: len(front) + 1], *table.shape[len(front) + 1 :]))
    op = ir.TakeAlong((table, at), len(front), merged=_asked(rest))
    found = build.value(at.shape, base.dtype, op)
    moved = tuple(shape[d] for d in order)
    found = build.reshape("x[...]", found, (*moved, *found.shape[len(front) + 1 :]))
    axes = [order.index(d) for d in range(len(shape))]
    behind = [len(shape) + k for k in range(len(others))]
    return build.permute(found, [*behind[:position], *axes, *behind[position:]])
