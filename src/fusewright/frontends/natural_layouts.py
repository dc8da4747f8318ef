"""Layouts of results that nobody asked for: those that array libraries give.

A function of elements keeps the order of axes in memory that its operands have, a view moves the
axes along, a reduction drops some, and what is assembled anew lies in C order. So a channels-last
image stays one. The rule for operands that disagree is torch's: the first operand that tells two
axes apart decides (TensorIterator, `reorder_dimensions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import gt
from typing import TypeAlias, assert_never

from fusewright.core.expr import Var
from fusewright.core.substitution import estimate, evaluate
from fusewright.fusion import ir
from fusewright.fusion.ir import Fusion, Tensor
from fusewright.fusion.orders import Order

Strides: TypeAlias = tuple[int, ...]


def natural_layouts(
    fusion: Fusion, patterns: Sequence[Strides], shapes: Sequence[Sequence[int]]
) -> list[Order | None]:
    """The orders of axes that the arrays' library would give the results of a traced call on
    arrays of these patterns of strides and example shapes."""
    given = fusion.inputs[: len(patterns)]  # constants of the function follow
    sizes = {n.symbol: estimate(n.symbol) for n in fusion.numbers}
    for t, shape in zip(given, shapes, strict=True):
        sizes |= {e: n for e, n in zip(t.shape, shape, strict=True) if isinstance(e, Var)}
    return natural_orders(fusion.outputs, dict(zip(given, patterns, strict=True)), sizes)


def pattern_of(strides: Sequence[int]) -> Strides:
    """What of strides tells layouts apart: per axis its rank, the fastest 1; 0 for a repeated axis.
    Independent of sizes, so that it can be part of a key."""
    if all(map(gt, strides, strides[1:])) and (not strides or strides[-1] > 0):
        return tuple(range(len(strides), 0, -1))
    ranks = sorted({abs(s) for s in strides if s})
    return tuple([ranks.index(abs(s)) + 1 if s else 0 for s in strides])


def natural_orders(
    outputs: Sequence[Tensor], inputs: Mapping[Tensor, Strides], sizes: Mapping[Var, int]
) -> list[Order | None]:
    """For each output the order of its axes, None for C order, given the inputs' patterns."""
    values = ir.topological(tuple(outputs), tuple(inputs))
    shapes = {t: tuple(evaluate(e, sizes) for e in t.shape) for t in values}
    found = dict(inputs)
    for t in values:
        if t not in found:
            found[t] = _pattern(t, [found[o] for o in t.op.operands], shapes)
    return [_order(elementwise([found[t]], shapes[t]), shapes[t]) for t in outputs]


def _order(strides: Strides, shape: Sequence[int]) -> Order | None:
    order = sorted(range(len(shape)), key=lambda a: -strides[a])
    long = [a for a in order if shape[a] > 1]
    return None if long == sorted(long) or 0 in shape else tuple(order)


def _pattern(
    t: Tensor, given: Sequence[Strides], shapes: Mapping[Tensor, tuple[int, ...]]
) -> Strides:
    op, shape = t.op, shapes[t]
    match op:
        case ir.Constant() | ir.Size() | ir.Iota():
            return (0,) * len(shape)
        case ir.Pointwise():
            return elementwise(given, shape)
        case ir.Concat():
            orders = [elementwise([g], shapes[o]) for g, o in zip(given, op.operands, strict=True)]
            return orders[0] if len(set(orders)) == 1 else c_pattern(len(shape))
        case ir.Resize() | ir.Scan():
            return elementwise(given[:1], shape)
        case ir.Broadcast():
            own = shapes[op.operands[0]]
            pairs = zip(op.axes, shape, strict=True)
            return tuple(0 if k is None or own[k] != n else given[0][k] for k, n in pairs)
        case ir.Permute():
            return tuple(given[0][a] for a in op.axes)
        case ir.Reduce():
            return tuple(s for a, s in enumerate(given[0]) if a not in op.axes)
        case ir.Input() | ir.Reshape() | ir.Parts() | ir.IndexMap() | ir.Sort():
            return c_pattern(len(shape))
        case ir.Take() | ir.TakeAlong() | ir.MatMul() | ir.OwnKernel() | ir.Region() | ir.Insert():
            return c_pattern(len(shape))
        case _:
            assert_never(op)


def c_pattern(rank: int) -> Strides:
    """The pattern of C order."""
    return tuple(range(rank, 0, -1))


def elementwise(operands: Sequence[Strides], shape: Sequence[int]) -> Strides:
    """The pattern of a new array that is computed from operands of its shape, element by element:
    axes are sorted by insertion, from C order, each moved past those it is found to be slower
    than."""
    fast = list(reversed(range(len(shape))))
    for k in range(1, len(fast)):
        at = k
        for before in reversed(range(k)):
            verdict = _slower(fast[before], fast[at], operands, shape)
            if verdict < 0:
                break
            if verdict > 0:
                fast[before], fast[at] = fast[at], fast[before]
                at = before
    ranks = {a: rank for rank, a in enumerate(fast, 1)}
    return tuple(ranks[a] for a in range(len(shape)))


def _slower(a: int, b: int, operands: Sequence[Strides], shape: Sequence[int]) -> int:
    """1 if axis a is slower than axis b, -1 if b is, 0 if no operand tells."""
    for s in operands:
        if not s[a] or not s[b]:
            continue
        if s[a] != s[b]:
            return 1 if s[a] > s[b] else -1
        if shape[a] > shape[b]:
            return 1
    return 0
