"""Every output has a value of its own to be stored in."""

from __future__ import annotations

import dataclasses

from fusewright.fusion import ir
from fusewright.fusion.ir import Fusion, Input, Pointwise, Tensor


def own_outputs(fusion: Fusion, *, before: Fusion | None = None, each: bool = False) -> Fusion:
    """Makes a copy of every input that is an output: results never share memory with arguments, nor
    with each other where they were two values in the fusion `before` other rewrites. `each`: also
    of an output for each time that it is returned again, as schedules by hand store it.

    rewrite:  return x            ->   y = copy(x); return y
              return x * 1, x / 1  ->   y = copy(x); z = copy(x); return y, z
    order:    before the fusion is cut; nothing after it sees an input among the outputs
    """
    taken = {t.name for t in fusion.values}
    copies: dict[tuple[Tensor, Tensor], Tensor] = {}
    owners: dict[Tensor, Tensor] = {}
    outputs: list[Tensor] = []
    for t, was in zip(fusion.outputs, (before or fusion).outputs, strict=True):
        is_merged = owners.setdefault(t, was) is not was
        if isinstance(t.op, Input) or is_merged or (each and t in outputs):
            if each or (t, was) not in copies:
                copies[t, was] = _copy(t, taken)
            t = copies[t, was]
        outputs.append(t)
    if not copies:
        return fusion
    return dataclasses.replace(
        fusion, outputs=tuple(outputs), values=ir.topological(tuple(outputs), fusion.inputs)
    )


def _copy(t: Tensor, taken: set[str]) -> Tensor:
    """A copy under a name that is not taken, which then is."""
    name = f"{t.name}_out"
    while name in taken:
        name += "_"
    taken.add(name)
    return Tensor(name, t.shape, t.dtype, Pointwise((t,), "copy"), t.source)
