"""Inputs whose memory runs across the axes of the program are stored in its order first, and
results that lie across are put there last."""

from __future__ import annotations

from collections.abc import Set
from itertools import pairwise

from fusewright.core.expr import ONE, Expr, constant_value
from fusewright.fusion.ir import Fusion, Input, MatMul, Permute, Pointwise, Reduce, Scan, Tensor
from fusewright.fusion.passes.rebuild import rebuild


def store_across(fusion: Fusion, chosen: Set[Tensor]) -> Fusion:
    """Stores the chosen inputs in C order, and the operands of the chosen results, each in a kernel
    that does nothing else.

    rewrite:  f(x), x of strides (1, m)   ->   x_stored = segment_set(x); f(x_stored)
              y = permute(f(x)), a result ->   z = f(x); y = segment_set(permute(z))
    checks:   `values_across` tells which values may be chosen; whether it pays, the cost model
    order:    first: all passes that ask how inputs lie in memory come after it
    """
    taken = {t.name for t in fusion.values}

    def free(name: str) -> str:
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if t not in chosen:
            return None
        is_input = isinstance(t.op, Input)
        read = t if is_input else t.with_op(Permute(operands, _axes(t)))
        name = free(f"{t.name}_stored")
        if t in fusion.outputs and not is_input:
            read, name = Tensor(name, t.shape, t.dtype, read.op, t.source), t.name
        return Tensor(name, t.shape, t.dtype, Pointwise((read,), "segment_set"), t.source)

    return rebuild(fusion, replace)


def values_across(fusion: Fusion) -> list[Tensor]:
    """The inputs, and the permutations of inputs, whose fast axis in memory is not their last; not
    those that only products read, which do so along any axis. And the results that are
    permutations with another last axis than what reductions or scans made: a kernel that walks
    along rows would write them across."""
    uses, walked = fusion.uses(), _along_rows(fusion)
    out: list[Tensor] = []
    for t in fusion.values:
        match t.op:
            case Input(strides=strides):
                read = any(not isinstance(u.op, Permute | MatMul) for u in uses[t])
            case Permute(operands=(Tensor(op=Input(strides=own)),), axes=axes):
                read = any(not isinstance(u.op, MatMul) for u in uses[t])
                strides = tuple(own[a] for a in axes)
            case Permute(operands=(made,), axes=axes):
                if t in fusion.outputs and made in walked and axes[-1] != len(axes) - 1:
                    out.append(t)
                continue
            case _:
                continue
        if read and _lies_across(t.shape, strides):
            out.append(t)
    return out


def _along_rows(fusion: Fusion) -> set[Tensor]:
    """The values that need a reduction or a scan."""
    found: set[Tensor] = set()
    for t in fusion.values:
        if isinstance(t.op, Reduce | Scan) or any(o in found for o in t.op.operands):
            found.add(t)
    return found


def _lies_across(shape: tuple[Expr, ...], strides: tuple[Expr, ...]) -> bool:
    found = [constant_value(s) for s, e in zip(strides, shape, strict=True) if e != ONE]
    sizes = [s for s in found if s != 0]
    known = [s for s in sizes if s is not None]
    return len(known) == len(sizes) and any(a < b for a, b in pairwise(known))


def _axes(t: Tensor) -> tuple[int, ...]:
    assert isinstance(t.op, Permute)
    return t.op.axes
