"""Blocks at places that only the device knows, where the array around them is written anyway."""

from __future__ import annotations

from collections.abc import Collection

from fusewright.fusion.ir import Fusion, Input, Insert, Tensor
from fusewright.fusion.ops.blocks import chosen_by_element
from fusewright.fusion.passes.rebuild import rebuild


def spread_insertions(fusion: Fusion, kept: Collection[str] = ()) -> Fusion:
    """The fusion without insertions but those of the names `kept`.

    rewrite:  Insert(dest, block, at)  ->  where(at <= i < at + m, block[i - at], dest[i])
    checks:   one that stays has its array in memory that it may change
    order:    first: other passes and kernels see choices by element
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Insert) or t.name in kept:
            return None
        return chosen_by_element(Insert(operands, t.op.start))

    return rebuild(fusion, replace)


def insertions_into(fusion: Fusion, given: Collection[Tensor]) -> list[Tensor]:
    """The insertions into arguments that are given away, and into what these make."""
    inside: set[Tensor] = {t for t in given if isinstance(t.op, Input)}
    out: list[Tensor] = []
    for t in fusion.values:
        if isinstance(t.op, Insert) and t.op.operands[0] in inside:
            inside.add(t)
            out.append(t)
    return out
