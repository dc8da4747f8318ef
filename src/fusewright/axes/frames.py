"""Frames: what an op means, as index classes. All index semantics of the operations live here.

An op owns a frame: a class for each output axis and each reduced axis (its domain), and for each
axis of each operand where that operand is read: a class derived from the domain, `Pinned` (index
0, a broadcast axis), `Computed` (an expression of the output indices) or `Gathered` (an index
that is data). Ops never unify classes; ties between frames are made elsewhere and may be refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.core.expr import Expr, Int, Var, as_expr
from fusewright.fusion.ir import (
    Broadcast,
    Concat,
    Constant,
    IndexMap,
    Input,
    Insert,
    Iota,
    MatMul,
    Op,
    OwnKernel,
    Parts,
    Permute,
    Pointwise,
    Reduce,
    Region,
    Reshape,
    Resize,
    Scan,
    Shape,
    Size,
    Sort,
    Take,
    TakeAlong,
)


@dataclass(frozen=True, slots=True)
class Pinned:
    """The operand is read at index 0 along this axis."""


@dataclass(frozen=True, slots=True)
class Computed:
    """The operand is read at an expression of the output coordinates."""

    coordinates: tuple[Var, ...]
    index: Expr


@dataclass(frozen=True, slots=True)
class Gathered:
    """The operand is read at an index that operand `position` of the op supplies."""

    position: int
    extent: Expr


OperandAxis: TypeAlias = AxisClass | Pinned | Computed | Gathered
PINNED = Pinned()


@dataclass(frozen=True, slots=True)
class Frame:
    """`domain` = output + reduced; `operands[k][j]` says where axis j of operand k is read."""

    output: tuple[AxisClass, ...]
    reduced: tuple[AxisClass, ...]
    operands: tuple[tuple[OperandAxis, ...], ...]

    @property
    def domain(self) -> tuple[AxisClass, ...]:
        return self.output + self.reduced


def make_frame(
    graph: AxisGraph, op: Op, shape: Shape, operand_shapes: tuple[Shape, ...], name: str
) -> Frame:
    """The frame of an op that makes a tensor of `shape` from operands of `operand_shapes`."""
    out = tuple(graph.axis(e, f"{name}.{j}") for j, e in enumerate(shape))
    match op:
        case Input() | Constant() | Iota() | Size():
            return Frame(out, (), ())
        case Pointwise():
            return Frame(out, (), tuple(out for _ in operand_shapes))
        case Broadcast():
            return Frame(out, (), (_broadcast(op, out, shape, operand_shapes[0]),))
        case Permute():
            back = {a: j for j, a in enumerate(op.axes)}
            return Frame(out, (), (tuple(out[back[a]] for a in range(len(op.axes))),))
        case Reshape():
            return Frame(out, (), (_reshape(graph, out, operand_shapes[0]),))
        case Resize():
            axes = tuple(
                _resized(graph, c, low, high)
                for c, low, high in zip(out, op.low, op.high, strict=True)
            )
            return Frame(out, (), (axes,))
        case Parts():
            return Frame(out, (), (_parts(graph, op, out, operand_shapes[0]),))
        case IndexMap():
            return Frame(out, (), (_index_map(op, out),))
        case Concat():
            return Frame(out, (), _concat(graph, op, out, operand_shapes))
        case Reduce():
            return _reduce(graph, op, out, operand_shapes[0], name)
        case Scan() | Sort():
            return Frame(out, (), (out,))
        case Take():
            rank = len(operand_shapes[1])
            indices = out[op.axis : op.axis + rank]
            gathered = Gathered(1, operand_shapes[0][op.axis])
            read = (*out[: op.axis], gathered, *out[op.axis + rank :])
            return Frame(out, (), (read, indices))
        case TakeAlong():
            gathered = Gathered(1, operand_shapes[0][op.axis])
            read = (*out[: op.axis], gathered, *out[op.axis + 1 :])
            return Frame(out, (), (read, out))
        case MatMul():
            return _matmul(graph, out, operand_shapes[0], name)
        case OwnKernel() | Region() | Insert():
            apart = (tuple(graph.axis(e, f"{name}.operand") for e in s) for s in operand_shapes)
            return Frame(out, (), tuple(apart))
        case _:
            assert_never(op)


def carried_axes(op: Op, operand: tuple[AxisClass, ...]) -> tuple[AxisClass, ...] | None:
    """The axes of a result that are those of its first operand, all or some, in any order: what the
    ties of a frame of its own would come to. None for ops that add axes or move indices."""
    match op:
        case Pointwise() | Scan() | Sort():
            return operand
        case Permute():
            return tuple(operand[a] for a in op.axes)
        case Reduce():
            return tuple(c for j, c in enumerate(operand) if j not in op.axes)
        case _:
            return None


def _broadcast(
    op: Broadcast, out: tuple[AxisClass, ...], shape: Shape, operand: Shape
) -> tuple[OperandAxis, ...]:
    read: list[OperandAxis] = [PINNED] * len(operand)
    for j, a in enumerate(op.axes):
        if a is not None and operand[a] == shape[j]:
            read[a] = out[j]
    return tuple(read)


def _reshape(
    graph: AxisGraph, out: tuple[AxisClass, ...], operand: Shape
) -> tuple[OperandAxis, ...]:
    sized = [c for c in out if c.extent != Int(1)]
    if not sized:
        return (PINNED,) * len(operand)
    flat = sized[0]
    for c in sized[1:]:
        flat = graph.merge(flat, c)
    return _unmerged(graph, flat, operand)


def _unmerged(graph: AxisGraph, flat: AxisClass, operand: Shape) -> tuple[OperandAxis, ...]:
    """The axes of these extents that one class is the merge of."""
    read: list[OperandAxis] = [PINNED] * len(operand)
    wanted = [j for j, e in enumerate(operand) if e != Int(1)]
    for j in reversed(wanted[1:]):
        flat, read[j] = graph.split(flat, operand[j])
    read[wanted[0] if wanted else -1] = flat  # the one element of several places has a bound
    return tuple(read)


def _parts(
    graph: AxisGraph, op: Parts, out: tuple[AxisClass, ...], operand: Shape
) -> tuple[OperandAxis, ...]:
    """The axes of the parts as one, without the places that have no element, cut as the operand
    is."""
    first, last = op.axes[0], op.axes[-1] + 1
    behind = first + len(op.partition.shape)
    flat = out[first]
    for c in out[first + 1 : behind]:
        flat = graph.merge(flat, c)
    flat = _resized(graph, flat, Int(0), Int(op.partition.missing))
    return (*out[:first], *_unmerged(graph, flat, operand[first:last]), *out[behind:])


def _resized(graph: AxisGraph, c: AxisClass, low: Expr, high: Expr) -> AxisClass:
    if low == Int(0) and high == Int(0):
        return c
    return graph.resize(c, -low, -high)


def _index_map(op: IndexMap, out: tuple[AxisClass, ...]) -> tuple[OperandAxis, ...]:
    def one(index: Expr) -> OperandAxis:
        if isinstance(index, Var) and index in op.coordinates:
            return out[op.coordinates.index(index)]
        return PINNED if index == Int(0) else Computed(op.coordinates, index)

    return tuple(one(e) for e in op.index)


def _concat(
    graph: AxisGraph, op: Concat, out: tuple[AxisClass, ...], operands: tuple[Shape, ...]
) -> tuple[tuple[OperandAxis, ...], ...]:
    total = out[op.axis].extent
    offset: Expr = as_expr(0)
    reads: list[tuple[OperandAxis, ...]] = []
    for shape in operands:
        size = shape[op.axis]
        piece = _resized(graph, out[op.axis], offset, total - offset - size)
        reads.append((*out[: op.axis], piece, *out[op.axis + 1 :]))
        offset = offset + size
    return tuple(reads)


def _reduce(
    graph: AxisGraph, op: Reduce, out: tuple[AxisClass, ...], operand: Shape, name: str
) -> Frame:
    kept = iter(out)
    reduced = {a: graph.axis(operand[a], f"{name}.r{a}") for a in op.axes}
    read = tuple(reduced[a] if a in reduced else next(kept) for a in range(len(operand)))
    return Frame(out, tuple(reduced.values()), (read,))


def _matmul(graph: AxisGraph, out: tuple[AxisClass, ...], left: Shape, name: str) -> Frame:
    """Rows of the left operand meet columns of the right one along the axis that is summed over."""
    k = graph.axis(left[-1], f"{name}.k")
    *lead, m, n = out
    return Frame(out, (k,), ((*lead, m, k), (*lead, k, n)))
