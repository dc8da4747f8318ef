"""Values that reductions go into are cast to fewer bytes before they are moved or joined."""

from __future__ import annotations

from fusewright.dtypes import DType
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Concat,
    Fusion,
    IndexMap,
    MatMul,
    Pointwise,
    Reduce,
    Resize,
    Scan,
    Sort,
    Tensor,
    is_alone,
    with_operands,
)
from fusewright.fusion.passes.rebuild import rebuild


def narrow_moves(fusion: Fusion) -> Fusion:
    """Casts what is moved or joined where it is made, if nothing else reads the move or the join.

    rewrite:  float16(roll(scan(x), 1))  ->  roll(float16(scan(x)), 1)
              float16(concat([-a, b]))   ->  concat([float16(-a), float16(b)])
    checks:   the cast leaves fewer bytes; a reduction, a scan or a product goes into what is moved,
              which is then stored, or made where it ends up: no kernel moves it where it is made;
              what a pad adds is 0 in both types
    order:    before fold_moves, which then meets the moves without a cast between them
    """
    uses, outputs = fusion.uses(), set(fusion.outputs)
    reduced: set[Tensor] = set()
    for t in fusion.values:
        if isinstance(t.op, _REDUCING) or not reduced.isdisjoint(t.op.operands):
            reduced.add(t)

    def is_moved(t: Tensor) -> bool:
        if isinstance(t.op, Resize) and t.op.fill != 0:
            return False
        is_own = len(uses[t]) == 1 and t not in outputs and t in reduced
        return isinstance(t.op, IndexMap | Resize | Concat) and is_own

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Pointwise) or t.op.fn != "cast" or is_alone(t):
            return None
        (seen,) = t.op.operands
        if t.dtype.nbytes >= seen.dtype.nbytes or not is_moved(seen):
            return None
        return cast(seen, operands[0], t.dtype)

    def cast(seen: Tensor, new: Tensor, dtype: DType) -> Tensor:
        """The value `new`, which was `seen` in the program, in another dtype."""
        if not is_moved(seen):
            return build.cast(new, dtype)
        pairs = zip(seen.op.operands, new.op.operands, strict=True)
        parts = tuple(cast(o, n, dtype) for o, n in pairs)
        return build.value(new.shape, dtype, with_operands(new.op, parts))

    return rebuild(fusion, replace)


_REDUCING = (Reduce, Scan, Sort, MatMul)
