"""The one way to rewrite a fusion: replace values, keep everything that did not change."""

from __future__ import annotations

import dataclasses
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
    known = set(fusion.values)
    for t in fusion.values:
        operands = tuple([new[o] for o in t.op.operands])
        replacement = replace(t, operands)
        if replacement is None:
            op = ir.with_operands(t.op, operands)
            new[t] = t.with_op(op)
        else:
            new[t] = replacement
            _name_parts(t, _new_below(replacement, known), taken)
    if all(new[t] is t for t in fusion.values):
        return fusion
    outputs = tuple(new[t] for t in fusion.outputs)
    values = ir.topological(outputs, fusion.inputs)
    return dataclasses.replace(fusion, outputs=outputs, values=values)


def _new_below(root: Tensor, known: set[Tensor]) -> list[Tensor]:
    """What a value needs that is not known yet, operands first, the value itself last; it is known
    from then on. What known values need is known, so nothing is walked twice."""
    found: list[Tensor] = []
    stack = [(root, False)]
    while stack:
        t, done = stack.pop()
        if done:
            found.append(t)
        elif t not in known:
            known.add(t)
            stack.append((t, True))
            stack.extend((o, False) for o in reversed(t.op.operands))
    return found


def _name_parts(replaced: Tensor, made: list[Tensor], taken: set[str]) -> None:
    """Names the unnamed values of a replacement `name_0`, `name_1`, ..., operands first, the last
    one like what they replace; they come from its line."""
    name = replaced.name
    number = 0
    for t in made:
        if t.name:
            continue
        t.source = t.source or replaced.source
        if t is made[-1]:
            t.name = name
            continue
        while f"{name}_{number}" in taken:
            number += 1
        t.name = f"{name}_{number}"
        taken.add(t.name)
