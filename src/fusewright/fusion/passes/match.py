"""Recognising a value through the moves and casts around it."""

from __future__ import annotations

from fusewright.core.expr import Int
from fusewright.fusion.ir import Broadcast, Constant, Pointwise, Reduce, Reshape, Size, Tensor


def through_spread(t: Tensor) -> Tensor:
    """The value behind broadcasts and behind reshapes that add or drop axes of size one."""
    while True:
        match t.op:
            case Broadcast():
                t = t.op.operands[0]
            case Reshape() if _sizes(t) == _sizes(t.op.operands[0]):
                t = t.op.operands[0]
            case _:
                return t


def _sizes(t: Tensor) -> list[object]:
    return [e for e in t.shape if e != Int(1)]


def is_call(t: Tensor, fn: str) -> bool:
    """Whether a value is `fn` of something, elementwise."""
    return isinstance(t.op, Pointwise) and t.op.fn == fn


def is_reduction(t: Tensor, fn: str, axes: tuple[int, ...], source: Tensor) -> bool:
    """Whether a value is the reduction `fn` of `source` over `axes`."""
    return (
        isinstance(t.op, Reduce)
        and t.op.fn == fn
        and t.op.axes == axes
        and t.op.operands[0] is source
    )


def is_count(t: Tensor, count: int) -> bool:
    """Whether a value is a spread of the constant `count`."""
    t = through_spread(t)
    match t.op:
        case Constant():
            return t.op.value == count
        case Size():
            return t.op.expr == Int(count)
        case Pointwise(fn="cast"):
            return is_count(t.op.operands[0], count)
        case _:
            return False


def reduced_axes(t: Tensor) -> tuple[int, ...]:
    """The axes of its operand over which a reduction runs."""
    assert isinstance(t.op, Reduce)
    return t.op.axes
