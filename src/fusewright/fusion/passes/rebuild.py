"""The one way to rewrite a fusion: replace values, keep everything that did not change."""

from __future__ import annotations

from collections.abc import Callable

from fusewright.fusion import ir
from fusewright.fusion.ir import Fusion, Tensor

Replacement = Callable[[Tensor, tuple[Tensor, ...]], Tensor | None]


def rebuild(fusion: Fusion, replace: Replacement) -> Fusion:
    """The fusion with every value `t` replaced by `replace(t, operands)`, where the operands are
    already replaced; None keeps its op. The same object when nothing changed.

    A replacement takes the name of what it replaces; the values it is made of are named after it.
    Values that nothing needs any more vanish, inputs stay.
    """
    new: dict[Tensor, Tensor] = {}
    taken = {t.name for t in fusion.values}
    for t in fusion.values:
        operands = tuple(new[o] for o in t.op.operands)
        replacement = replace(t, operands)
        if replacement is None:
            op = ir.with_operands(t.op, operands)
            new[t] = t.with_op(op)
        else:
            new[t] = replacement
            _name_parts(t, replacement, taken)
    if all(new[t] is t for t in fusion.values):
        return fusion
    outputs = tuple(new[t] for t in fusion.outputs)
    return Fusion(fusion.inputs, outputs, ir.topological(outputs, fusion.inputs))


def _name_parts(replaced: Tensor, root: Tensor, taken: set[str]) -> None:
    """Names the unnamed values below a replacement `name_0`, `name_1`, ..., operands first; they
    come from the line of what they replace."""
    name = replaced.name
    number = 0
    unnamed = [t for t in ir.topological((root,)) if not t.name]
    for t in unnamed:
        t.source = t.source or replaced.source
        if t is root:
            t.name = name
            continue
        while f"{name}_{number}" in taken:
            number += 1
        t.name = f"{name}_{number}"
        taken.add(t.name)
