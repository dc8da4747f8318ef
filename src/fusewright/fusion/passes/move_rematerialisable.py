"""Values that every kernel makes for itself have no memory that other places could be read from:
they are computed at those places."""

from __future__ import annotations

from fusewright.fusion import build
from fusewright.fusion.ir import (
    Constant,
    Fusion,
    IndexMap,
    Resize,
    Size,
    Take,
    TakeAlong,
    Tensor,
    behind_views,
    topological,
    with_operands,
)
from fusewright.fusion.passes.fold_crops import crop_of, only_grows, padded
from fusewright.fusion.passes.index_maps import map_of
from fusewright.fusion.passes.read_at import ReadAt
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.rematerialisable import is_rematerialisable


def move_rematerialisable(fusion: Fusion) -> Fusion:
    """Computes leaves at the places that moves read of them, and stores those that lie in parts, or
    of which data says which places are read.

    rewrite:  flip(arange(n))  ->  n - 1 - arange(n)
              arange(n)[index]  ->  copy(arange(n))[index]
    checks:   a literal is the same everywhere; joins and paddings read leaves where they are made
    order:    behind hoist_crops and fold_crops, which leave few; before the fusion is cut, which
              gives a kernel of its own to what others read elsewhere
    """
    copies: dict[Tensor, Tensor] = {}
    at_places = ReadAt()

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not _moves_first(t) or not is_rematerialisable(operands[0]) or _is_literal(operands[0]):
            return None
        leaf = operands[0]
        crop = crop_of(t)
        by = map_of(crop or t)
        read = None if by is None else at_places.read(leaf, by)
        if read is not None and not any(map(_moves_first, topological((read,)))):
            return read if crop is None else padded(read, t)
        if leaf not in copies:
            copies[leaf] = build.pointwise("copy", leaf)
        return build.value(t.shape, t.dtype, with_operands(t.op, (copies[leaf], *operands[1:])))

    return rebuild(fusion, replace)


def _moves_first(t: Tensor) -> bool:
    """Whether an op reads its first operand at other places than those of its result."""
    match t.op:
        case IndexMap() | Take() | TakeAlong():
            return True
        case Resize():
            return not all(only_grows(e) for e in (*t.op.low, *t.op.high))
        case _:
            return False


def _is_literal(t: Tensor) -> bool:
    return isinstance(behind_views(t).op, Constant | Size)
