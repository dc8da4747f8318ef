"""Values that every kernel makes for itself have no memory that other places could be read from."""

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
    with_operands,
)
from fusewright.fusion.passes.fold_crops import only_grows
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.rematerialisable import is_rematerialisable


def copy_moved_rematerialisable(fusion: Fusion) -> Fusion:
    """Stores the leaves that are read at other places than the ones they are made at.

    rewrite:  flip(arange(n))  ->  flip(copy(arange(n)))
    checks:   a literal is the same everywhere; joins and paddings read leaves where they are made
    order:    behind hoist_crops and fold_crops, which leave few; before the fusion is cut, which
              gives a kernel of its own to what others read elsewhere
    """
    copies: dict[Tensor, Tensor] = {}

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not _moves_first(t) or not is_rematerialisable(operands[0]) or _is_literal(operands[0]):
            return None
        leaf = operands[0]
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
