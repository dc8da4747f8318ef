"""Crops of crops, and of pads of arguments and of functions, are one resize."""

from __future__ import annotations

from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import ZERO, Expr, add
from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, Input, Pointwise, Resize, Tensor
from fusewright.fusion.passes.fold_empty import keeps_nothing
from fusewright.fusion.passes.rebuild import rebuild


def fold_crops(fusion: Fusion) -> Fusion:
    """Reads a part of a part where it lies in the whole.

    rewrite:  x[a:b][c:d]       ->  x[a+c : a+d]
              pad(x, 1)[:, 2:]  ->  x shifted by one, with the pad's fill at the high end
              pad(f(x)[:-1], 1) ->  f(x) shifted by one, with the pad's fill at the low end
              pad(x, 1)[:1]     ->  the pad's fill
    checks:   what one of the two pads the other one does not crop, so that no fill is lost; pads
              of results of reductions and the like stay, which are padded where they are made
    order:    before the cut, where a move of a moved value would need memory between them, and
              before hoist_moves, which may compute functions again at the places of a shift; on
              both sides of fold_moves, some of whose moves are crops
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        inner, outer = operands[0].op if operands else None, t.op
        if not isinstance(outer, Resize) or not isinstance(inner, Resize):
            return None
        source = inner.operands[0]
        if is_crop(t):
            if not (is_crop(operands[0]) or isinstance(behind_crops(source).op, Input | Pointwise)):
                return None
        elif not (
            is_crop(operands[0]) and isinstance(source.op, Pointwise) and meet_nowhere(outer, inner)
        ):
            return None
        low = tuple(add(a, b) for a, b in zip(outer.low, inner.low, strict=True))
        high = tuple(add(a, b) for a, b in zip(outer.high, inner.high, strict=True))
        if all(e == ZERO for e in (*low, *high)):
            return source
        fill = inner.fill if is_crop(t) else outer.fill
        op = Resize(inner.operands, low, high, fill)
        return (
            build.full(t.shape, fill, t.dtype) if keeps_nothing(op, source.shape) else t.with_op(op)
        )

    return rebuild(fusion, replace)


def meet_nowhere(outer: Resize, inner: Resize) -> bool:
    """Whether a pad and the crop before it change different ends of axes."""
    pairs = zip((*outer.low, *outer.high), (*inner.low, *inner.high), strict=True)
    return all(only_grows(a) and ZERO in (a, b) for a, b in pairs)


def behind_crops(t: Tensor) -> Tensor:
    """What a value is a part of, of parts of it; a value that is no part itself."""
    while is_crop(t):
        t = t.op.operands[0]
    return t


def is_crop(t: Tensor) -> bool:
    """Whether a value is a part of its operand."""
    return isinstance(t.op, Resize) and all(only_crops(e) for e in (*t.op.low, *t.op.high))


def only_crops(e: Expr) -> bool:
    """Whether an amount of a resize never pads."""
    return prove(less_equal(e, 0)) is True


def only_grows(e: Expr) -> bool:
    """Whether an amount of a resize never crops."""
    return prove(less_equal(0, e)) is True


def crop_of(t: Tensor) -> Tensor | None:
    """What is left of a value that is cropped and padded at once, before it is padded; None for
    other values."""
    if not isinstance(t.op, Resize) or is_crop(t):
        return None
    amounts = (*t.op.low, *t.op.high)
    if all(map(only_grows, amounts)) or not all(only_grows(e) or only_crops(e) for e in amounts):
        return None
    low, high = ([ZERO if only_grows(e) else e for e in ends] for ends in (t.op.low, t.op.high))
    return build.resize(t.op.operands[0], low, high, 0)


def padded(read: Tensor, t: Tensor) -> Tensor:
    """The inside of a value with the border that a resize puts around it."""
    assert isinstance(t.op, Resize)
    low, high = ([e if only_grows(e) else ZERO for e in ends] for ends in (t.op.low, t.op.high))
    return build.value(t.shape, t.dtype, Resize((read,), tuple(low), tuple(high), t.op.fill))
