"""Views that are strides: what lies in an argument's memory at a stride along every axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from fusewright.core.expr import ONE, ZERO, Expr, Int, add, constant_value, is_multiple, mul
from fusewright.core.substitution import substitute
from fusewright.fusion.ir import (
    Broadcast,
    IndexMap,
    Input,
    Op,
    Permute,
    Resize,
    Shape,
    ViewBase,
)
from fusewright.target import BULK_ALIGNMENT, MAX_BOX_RANK


class ShapedValue(Protocol):
    """A value of a fusion, or of a schedule's dataflow."""

    @property
    def op(self) -> Op: ...
    @property
    def shape(self) -> Shape: ...


V = TypeVar("V", bound=ShapedValue)


@dataclass(frozen=True, slots=True)
class Strided(Generic[V]):
    """Element (i, j, ..) of a view is element `offset + i strides[0] + j strides[1] + ..` of the
    memory of `source`, which begins at `alignment` bytes; a stride of 0 repeats it."""

    source: V
    shape: Shape
    strides: tuple[Expr, ...]
    offset: Expr = ZERO
    alignment: int = BULK_ALIGNMENT


def strided_view(
    t: V,
    operands: Callable[[V], tuple[V, ...]],
    strides: Callable[[V], tuple[Expr, ...] | None],
) -> Strided[V] | None:
    """The value as strides over what it is a view of: the first value behind it whose own `strides`
    are known. None where some view between them is no stride along every axis."""
    chain: list[V] = []
    while (known := strides(t)) is None:
        if not isinstance(t.op, ViewBase | Resize | IndexMap):
            return None
        chain.append(t)
        t = operands(t)[0]
    alignment = t.op.alignment if isinstance(t.op, Input) else BULK_ALIGNMENT
    found = Strided(t, t.shape, known, ZERO, alignment)
    for v in reversed(chain):
        step = _step(v.op, v.shape, found)
        if step is None:
            return None
        found = step
    return found


def _step(op: Op, shape: Shape, s: Strided[V]) -> Strided[V] | None:
    match op:
        case Permute():
            return replace(s, shape=shape, strides=tuple(s.strides[a] for a in op.axes))
        case Broadcast():
            strides = tuple(
                s.strides[a] if a is not None and s.shape[a] == e else ZERO
                for a, e in zip(op.axes, shape, strict=True)
            )
            return replace(s, shape=shape, strides=strides)
        case Resize():
            offset = s.offset
            for low, high, stride in zip(op.low, op.high, s.strides, strict=True):
                if not _crops(low) or not _crops(high):
                    return None
                offset = add(offset, mul(mul(low, -1), stride))
            return replace(s, shape=shape, offset=offset)
        case IndexMap():
            return _mapped(op, shape, s)
        case _:
            strides = _reshaped(s, shape)
            return None if strides is None else replace(s, shape=shape, strides=strides)


def _crops(amount: Expr) -> bool:
    return isinstance(amount, Int) and amount.value <= 0


def _mapped(op: IndexMap, shape: Shape, s: Strided[V]) -> Strided[V] | None:
    """An index map whose address is a sum over its coordinates."""
    address = add(*(mul(i, stride) for i, stride in zip(op.index, s.strides, strict=True)))
    origin = dict.fromkeys(op.coordinates, 0)
    first = substitute(address, origin)
    strides = tuple(
        add(substitute(address, origin | {v: 1}), mul(first, -1)) for v in op.coordinates
    )
    back = add(first, *(mul(v, stride) for v, stride in zip(op.coordinates, strides, strict=True)))
    if back != address or any((constant_value(stride) or 0) < 0 for stride in strides):
        return None
    return replace(s, shape=shape, strides=strides, offset=add(s.offset, first))


def _reshaped(s: Strided[V], shape: Shape) -> tuple[Expr, ...] | None:
    """The strides of a reshape that needs no copy: axes of the new shape split runs of old axes
    that follow each other in memory."""
    runs: list[tuple[Expr, Expr]] = []
    for extent, stride in zip(s.shape, s.strides, strict=True):
        if extent == ONE:
            continue
        if runs and runs[-1][1] == mul(extent, stride):
            runs[-1] = (mul(runs[-1][0], extent), stride)
        else:
            runs.append((extent, stride))
    out: list[Expr] = []
    left: Expr = ONE  # elements of the innermost run that axes took already
    for extent in reversed(shape):
        if extent == ONE:
            out.append(ZERO)
            continue
        if not runs:
            return None
        size, stride = runs[-1]
        out.append(mul(left, stride))
        left = mul(left, extent)
        if left == size:
            runs.pop()
            left = ONE
        elif not isinstance(left, Int) or not is_multiple(size, left.value):
            return None
    return tuple(reversed(out)) if not runs and left == ONE else None


def box_problem(s: Strided[V], itemsize: int, *, is_bound: bool = False) -> str | None:
    """Why no tensor map describes a view; None where one does. A kernel that `is_bound` to the view
    finds its first element where its argument begins.

    The fastest axis is one of the last two; addresses and all other strides are multiples of 16
    bytes (CUDA driver API, `cuTensorMapEncodeTiled`).
    """
    alignment = s.alignment
    if s.offset != ZERO and not is_bound:
        return f"it begins {s.offset} elements into its memory; a map begins at an argument"
    if is_bound and not is_multiple(mul(s.offset, itemsize), BULK_ALIGNMENT):
        return f"it begins {s.offset} elements into its memory, not at {BULK_ALIGNMENT} bytes"
    if alignment % BULK_ALIGNMENT:
        return f"its address is a multiple of {alignment} bytes, a map's of {BULK_ALIGNMENT}"
    fastest = fastest_axis(s)
    if fastest is None:
        return f"none of its last two axes is contiguous (strides {_text(s.strides)})"
    for axis, (extent, stride) in enumerate(zip(s.shape, s.strides, strict=True)):
        if axis == fastest or extent == ONE:
            continue
        if stride == ZERO and axis >= len(s.shape) - 2:
            return "its rows are one row, repeated"
        if not is_multiple(mul(stride, itemsize), BULK_ALIGNMENT):
            return (
                f"its rows lie {stride} elements apart, which is not known to be a multiple of "
                f"{BULK_ALIGNMENT} bytes"
            )
    if sum(stride != ZERO for stride in s.strides[:-2]) + 2 > MAX_BOX_RANK:
        return f"it has more than {MAX_BOX_RANK} axes"
    return None


def fastest_axis(s: Strided[V]) -> int | None:
    """The axis among the last two along which the view is contiguous."""
    rank = len(s.shape)
    for axis in (rank - 1, rank - 2):
        if s.strides[axis] == ONE:
            return axis
    return None


def _text(strides: tuple[Expr, ...]) -> str:
    return ", ".join(map(str, strides))
