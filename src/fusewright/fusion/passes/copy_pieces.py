"""Arguments beside what is reduced of them in a join are copied by the kernel that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Set

from fusewright.core.expr import ONE
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Broadcast,
    Concat,
    Fusion,
    Input,
    Pointwise,
    Reduce,
    Reshape,
    Tensor,
    with_operands,
)
from fusewright.fusion.passes.rebuild import rebuild


def copy_pieces(fusion: Fusion) -> Fusion:
    """Makes a copy of an argument that is joined with what reductions over it are computed to: an
    operation like others, that stands in the kernel which reads the argument anyway.

    rewrite:  concat([x, softmax(x)])  ->  concat([copy(x), softmax(x)])
    checks:   the argument is a piece as it is, and another piece is made of a reduction of values
              of its shape
    order:    behind the folds of moves, as another form of the fusion, whose predicted time decides
    """
    reduced = _reduced(fusion)

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Concat):
            return None
        known = {x for o in t.op.operands for x in reduced.get(o, ())}
        pieces = tuple(_copied(o, known) for o in operands)
        if all(a is b for a, b in zip(pieces, operands, strict=True)):
            return None
        return build.value(t.shape, t.dtype, with_operands(t.op, pieces))

    return rebuild(fusion, replace)


def _reduced(fusion: Fusion) -> Mapping[Tensor, Set[Tensor]]:
    """For each value the arguments of which it has reductions, over values of their shape."""
    behind: dict[Tensor, set[Tensor]] = {}
    found: dict[Tensor, set[Tensor]] = {}
    for t in fusion.values:
        behind[t] = {t} if isinstance(t.op, Input) else set[Tensor]()
        behind[t].update(x for o in t.op.operands for x in behind[o])
        found[t] = {x for o in t.op.operands for x in found[o]}
        if isinstance(t.op, Reduce):
            found[t] |= {x for x in behind[t] if x.shape == t.op.operands[0].shape}
    return found


def _copied(t: Tensor, known: Set[Tensor]) -> Tensor:
    """A piece with a copy in place of an argument, behind views that only add axes of size one."""
    if t in known:
        return build.value(t.shape, t.dtype, Pointwise((t,), "copy"))
    if not isinstance(t.op, Reshape | Broadcast):
        return t
    (source,) = t.op.operands
    sized = [[n for n in v.shape if n != ONE] for v in (source, t)]
    copy = _copied(source, known) if sized[0] == sized[1] else source
    return t if copy is source else build.value(t.shape, t.dtype, with_operands(t.op, (copy,)))
