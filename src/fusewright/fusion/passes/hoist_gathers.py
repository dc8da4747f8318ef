"""Gathers read their source before it is computed with, not after.

    take(f(x), i)  ->  f(take(x, i))      f of one operand, elementwise

Only the gathered elements are then computed, and a source in global memory is read in place.
"""

from __future__ import annotations

from fusewright.fusion import build, ir
from fusewright.fusion.ir import Fusion, Pointwise, Take, TakeAlong, Tensor
from fusewright.fusion.passes.rebuild import rebuild


def hoist_gathers(fusion: Fusion) -> Fusion:
    """Moves gathers above chains of functions of one operand (casts among them).

    checks:   functions of several operands stay: their operands would be gathered one by one
    order:    before the fusion is cut, which never gathers from what the same kernel computes
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Take | TakeAlong):
            return None
        source, indices = operands
        if not isinstance(source.op, Pointwise) or len(source.op.operands) != 1:
            return None
        return _hoisted(t, source, indices)

    return rebuild(fusion, replace)


def _hoisted(t: Tensor, source: Tensor, indices: Tensor) -> Tensor:
    if isinstance(source.op, Pointwise) and len(source.op.operands) == 1:
        below = _hoisted(t, source.op.operands[0], indices)
        return build.value(t.shape, source.dtype, Pointwise((below,), source.op.fn))
    op = ir.with_operands(t.op, (source, indices))
    return build.value(t.shape, source.dtype, op)
