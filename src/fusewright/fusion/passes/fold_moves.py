"""Moves of moves are one move."""

from __future__ import annotations

from fusewright.fusion.ir import Fusion, IndexMap, Tensor
from fusewright.fusion.passes.fold_crops import crop_of, is_crop, padded
from fusewright.fusion.passes.index_maps import map_of, moved
from fusewright.fusion.passes.rebuild import rebuild


def fold_moves(fusion: Fusion) -> Fusion:
    """Reads what was moved before where it lies in what was moved first.

    rewrite:  flip(x[a:])  ->  x[n - 1 - i]        roll(flip(x), k)[::2]  ->  x[..i..]
              x.reshape(n, 2)[:, 0]  ->  x[2 * i]      pad(flip(x)[1:])  ->  pad(x[..i..])
              x.reshape(n * m)[k:]   ->  x[(i + k) // m, (i + k) % m]
    checks:   pads stay, which have no place in their operand to read
    order:    behind hoist_crops and fold_crops, which keep crops that are boxes; before the cut,
              where a move of a moved value would need memory between them
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if is_move(t):
            return _folded(t, operands[0])
        crop = crop_of(t)
        inside = None if crop is None else _folded(crop, operands[0])
        return None if inside is None else padded(inside, t)

    return rebuild(fusion, replace)


def is_move(t: Tensor) -> bool:
    """Whether a value is read at other places than its operand is made at, all of them in it."""
    return isinstance(t.op, IndexMap) or is_crop(t)


def _folded(t: Tensor, source: Tensor) -> Tensor | None:
    by = map_of(t)
    first = source
    while by is not None and (inner := map_of(source)) is not None:
        behind = by.through(inner)
        if behind is None:
            break
        by, source = behind, source.op.operands[0]
    return None if by is None or source is first else moved(source, by)
