"""Reductions of joins of many values are made of reductions of runs of them."""

from __future__ import annotations

from functools import reduce

from fusewright.fusion import build, ir
from fusewright.fusion.ir import Concat, Fusion, Pointwise, Reduce, Tensor
from fusewright.fusion.passes.rebuild import rebuild

COMBINES = ("add", "mul", "max", "min")
"""Reductions whose results of runs are combined by the function of the same name."""


def reduce_runs(fusion: Fusion, most: int) -> Fusion:
    """Reduces runs of at most `most` operands of a longer join, so that no kernel stores the join
    to have another one read it.

    rewrite:  sum(exp(concat(x0, ..., x29)), axis=0), joined along axis 0   ->
              sum(exp(concat(x0, ..., x23))) + sum(exp(concat(x24, ..., x29)))
              sum(exp(concat(x0, ..., x29)), axis=1)   ->
              concat(sum(exp(concat(x0, ..., x23))), sum(exp(concat(x24, ..., x29))))
    checks:   nothing else reads the join, or a function of it on the way; results of runs have the
              type in which is computed, so that nothing is rounded between
    order:    before `cut_joins`, which makes joins of joins of what is left
    """
    uses, outputs = fusion.uses(), set(fusion.outputs)

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Reduce) or t.op.fn not in COMBINES:
            return None
        on_the_way, joined = _joined(t.op.operands[0])
        is_apart = all(len(uses[v]) == 1 and v not in outputs for v in (*on_the_way, joined))
        is_wide = isinstance(joined.op, Concat) and len(joined.op.operands) > most
        if not is_wide or not is_apart or t.dtype is not t.dtype.compute:
            return None
        functions, join = _joined(operands[0])
        assert isinstance(join.op, Concat)
        pieces, axis, axes = join.op.operands, join.op.axis, t.op.axes
        parts: list[Tensor] = []
        for first in range(0, len(pieces), most):
            x = build.concat(list(pieces[first : first + most]), axis)
            for v in reversed(functions):
                x = build.value(x.shape, v.dtype, ir.with_operands(v.op, (x,)))
            parts.append(build.reduce(t.op.fn, x, axes))
        if axis not in axes:
            return build.concat(parts, axis - sum(a < axis for a in axes))
        fn = t.op.fn
        return reduce(lambda a, b: build.pointwise(fn, a, b), parts)

    return rebuild(fusion, replace)


def _joined(t: Tensor) -> tuple[list[Tensor], Tensor]:
    """The join that a value is functions of, these functions before it, the last one first; of
    others what no function of one operand makes."""
    functions: list[Tensor] = []
    while isinstance(t.op, Pointwise) and len(t.op.operands) == 1:
        functions.append(t)
        (t,) = t.op.operands
    return functions, t
