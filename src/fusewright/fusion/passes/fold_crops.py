"""Crops of crops, and of pads of arguments and of functions, are one resize."""

from __future__ import annotations

from fusewright.core.expr import ZERO, Expr, add
from fusewright.fusion.ir import Fusion, Input, Pointwise, Resize, Tensor
from fusewright.fusion.passes.rebuild import rebuild


def fold_crops(fusion: Fusion) -> Fusion:
    """Reads a part of a part where it lies in the whole.

    rewrite:  x[a:b][c:d]       ->  x[a+c : a+d]
              pad(x, 1)[:, 2:]  ->  x shifted by one, with the pad's fill at the high end
    checks:   the outer resize only crops, so that no fill of its own comes in; pads of results of
              reductions and the like stay, which are padded where they are made
    order:    before the cut, where a move of a moved value would need memory between them, and
              before hoist_moves, which may compute functions again at the places of a shift
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        inner = operands[0].op if operands else None
        if not is_crop(t) or not isinstance(inner, Resize):
            return None
        source = inner.operands[0]
        if not (is_crop(operands[0]) or isinstance(source.op, Input | Pointwise)):
            return None
        outer = t.op
        assert isinstance(outer, Resize)
        low = tuple(add(a, b) for a, b in zip(outer.low, inner.low, strict=True))
        high = tuple(add(a, b) for a, b in zip(outer.high, inner.high, strict=True))
        if all(e == ZERO for e in (*low, *high)):
            return source
        return t.with_op(Resize(inner.operands, low, high, inner.fill))

    return rebuild(fusion, replace)


def is_crop(t: Tensor) -> bool:
    """Whether a value is a part of its operand."""
    return isinstance(t.op, Resize) and all(only_crops(e) for e in (*t.op.low, *t.op.high))


def only_crops(e: Expr) -> bool:
    """Whether an amount of a resize never pads."""
    high = e.interval[1]
    return high is not None and high <= 0


def only_grows(e: Expr) -> bool:
    """Whether an amount of a resize never crops."""
    low = e.interval[0]
    return low is not None and low >= 0
