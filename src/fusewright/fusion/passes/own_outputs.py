"""Every output has a value of its own to be stored in."""

from __future__ import annotations

from fusewright.fusion import ir
from fusewright.fusion.ir import Fusion, Input, Pointwise, Tensor


def own_outputs(fusion: Fusion) -> Fusion:
    """Makes a copy of every input that is an output: results never share memory with arguments.

    rewrite:  return x   ->   y = copy(x); return y
    order:    before the fusion is cut; nothing after it sees an input among the outputs
    """
    if not any(isinstance(t.op, Input) for t in fusion.outputs):
        return fusion
    taken = {t.name for t in fusion.values}
    copies: dict[Tensor, Tensor] = {}
    for t in fusion.outputs:
        if isinstance(t.op, Input) and t not in copies:
            name = f"{t.name}_out"
            while name in taken:
                name += "_"
            taken.add(name)
            copies[t] = Tensor(name, t.shape, t.dtype, Pointwise((t,), "copy"), t.source)
    outputs = tuple(copies.get(t, t) for t in fusion.outputs)
    return Fusion(fusion.inputs, outputs, ir.topological(outputs, fusion.inputs))
