"""Joins of many values become joins of joins, of which no kernel reads more than it may."""

from __future__ import annotations

from fusewright.fusion import build
from fusewright.fusion.ir import Concat, Fusion, Tensor
from fusewright.fusion.passes.rebuild import rebuild


def cut_joins(fusion: Fusion, most: int) -> Fusion:
    """Cuts concatenations of more than `most` values into runs of that many neighbours: runs of one
    length and equal values are one kernel.

    rewrite:  concat(x0, ..., x59)  ->  concat(concat(x0, ..., x23), ..., concat(x48, ..., x59))
    checks:   no concatenation has more than `most` operands, at any depth; equal runs are one value
    order:    behind the passes that look into joins, before the fusion is cut into kernels, which
              write the inner joins where they lie in the outer one
    """

    made: dict[tuple[int, tuple[Tensor, ...]], Tensor] = {}

    def join(run: tuple[Tensor, ...], axis: int) -> Tensor:
        if len(run) == 1:
            return run[0]
        if (axis, run) not in made:
            made[axis, run] = build.concat(list(run), axis)
        return made[axis, run]

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Concat) or len(operands) <= most:
            return None
        while len(operands) > most:
            firsts = range(0, len(operands), most)
            operands = tuple(join(operands[k : k + most], t.op.axis) for k in firsts)
        return build.concat(list(operands), t.op.axis)

    return rebuild(fusion, replace)
