"""Crops of crops are one crop."""

from __future__ import annotations

from fusewright.core.expr import Expr, add
from fusewright.fusion.ir import Fusion, Resize, Tensor
from fusewright.fusion.passes.rebuild import rebuild


def fold_crops(fusion: Fusion) -> Fusion:
    """Reads a part of a part where it lies in the whole.

    rewrite:  x[a:b][c:d]  ->  x[a+c : a+d]
    checks:   both resizes only crop, so that neither brings a fill value in
    order:    before the cut, where a move of a moved value would need memory between them
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not (is_crop(t) and is_crop(operands[0])):
            return None
        outer, inner = t.op, operands[0].op
        assert isinstance(outer, Resize) and isinstance(inner, Resize)
        low = tuple(add(a, b) for a, b in zip(outer.low, inner.low, strict=True))
        high = tuple(add(a, b) for a, b in zip(outer.high, inner.high, strict=True))
        return t.with_op(Resize(inner.operands, low, high, outer.fill))

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
