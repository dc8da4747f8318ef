"""Values without elements, and what is computed from them, become literals."""

from __future__ import annotations

from fusewright.core.expr import ZERO, constant_value
from fusewright.core.identities import reduction_identity
from fusewright.fusion import build, ir
from fusewright.fusion.ir import Broadcast, Fusion, Input, Scalar, Tensor
from fusewright.fusion.passes.rebuild import rebuild


def fold_empty(fusion: Fusion) -> Fusion:
    """No op but the spread of a literal makes or reads a value of no elements.

    rewrite:  sum(x, axes), x empty  ->  0 over the kept axes
    rewrite:  concat(x, y), x empty  ->  y
    rewrite:  pad(x, (1, -1)), x of one element  ->  the fill
    checks:   sizes that are zero are constant: a symbolic size is at least 2
    order:    first of all, so that every loop of every kernel has an iteration
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if isinstance(t.op, Input) or _is_literal(t):
            return None
        if is_empty(t):
            return _filled(t, 0)
        if isinstance(t.op, ir.Resize) and keeps_nothing(t.op, operands[0].shape):
            return _filled(t, t.op.fill)
        if not any(is_empty(o) for o in operands):
            return None
        match t.op:
            case ir.Reduce(fn=fn):
                return _filled(t, reduction_identity(fn, t.dtype))
            case ir.MatMul():
                return _filled(t, 0)
            case ir.Concat(axis=axis):
                rest = tuple(o for o in operands if not is_empty(o))
                op = ir.Concat(rest, axis) if len(rest) > 1 else ir.Pointwise(rest, "copy")
                return Tensor("", t.shape, t.dtype, op)
            case _:
                return None

    return rebuild(fusion, replace)


def is_empty(t: Tensor) -> bool:
    """Whether a value has no elements."""
    return ZERO in t.shape


def keeps_nothing(op: ir.Resize, shape: ir.Shape) -> bool:
    """Whether no element of the operand, of that shape, is in the result: it is empty, or moved out
    of it."""
    for n, low, high in zip(shape, op.low, op.high, strict=True):
        size, ends = constant_value(n), [constant_value(e) for e in (low, high)]
        if size is not None and size + sum(min(e or 0, 0) for e in ends) <= 0:
            return True
    return False


def _is_literal(t: Tensor) -> bool:
    match t.op:
        case Broadcast():
            return isinstance(t.op.operands[0].op, ir.Constant)
        case _:
            return isinstance(t.op, ir.Constant)


def _filled(t: Tensor, value: Scalar) -> Tensor:
    return build.full(t.shape, value, t.dtype)
