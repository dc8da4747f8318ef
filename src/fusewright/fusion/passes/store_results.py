"""Results of products whose rows no box holds are stored in rows that one holds."""

from __future__ import annotations

from collections.abc import Set

from fusewright.core.expr import constant_value
from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, Pointwise, Tensor, with_operands
from fusewright.fusion.passes.rebuild import rebuild


def store_results(fusion: Fusion, wanted: Set[Tensor], unit: int) -> Fusion:
    """Store the `wanted` values in rows of a multiple of `unit` elements, of which readers read the
    first ones; what is a result is copied from there.

    rewrite:  y = relu(a @ b)  ->  y = copy(pad(relu(a @ b), rows of 8 n)[:, :1707])
    checks:   the length of rows is known, and no multiple of `unit`
    order:    behind the folding of crops and moves, which would take the crop and the pad together
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        size = constant_value(t.shape[-1]) if t.ndim else None
        if size is None or not size % unit or t not in wanted:
            return None
        own = build.value(t.shape, t.dtype, with_operands(t.op, operands))
        none = [0] * t.ndim
        more = -size % unit
        wide = build.resize(own, none, [*none[:-1], more], 0)
        crop = build.resize(wide, none, [*none[:-1], -more], 0)
        if t in fusion.outputs:
            return build.value(t.shape, t.dtype, Pointwise((crop,), "copy"))
        return crop

    return rebuild(fusion, replace)
