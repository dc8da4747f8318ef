"""What a kernel of the program's own, or a region, reads lies in memory as it expects it."""

from __future__ import annotations

from fusewright.fusion import build
from fusewright.fusion.ir import (
    Alone,
    Fusion,
    Input,
    Insert,
    MatMul,
    OwnKernel,
    Pointwise,
    Reduce,
    Region,
    Scan,
    Sort,
    Tensor,
    contiguous_strides,
    with_operands,
)
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.target import MAX_VECTOR_NBYTES


def own_operands(fusion: Fusion) -> Fusion:
    """Stores what a kernel of the program's own, or a region, reads, where nobody else does.

    rewrite:  k(x.T)  ->  y = copy(x.T); k(y)
    checks:   operands are arguments in C order, or what other kernels compute; a block that is
              inserted has one reader, so that it lies nowhere but in its place
    order:    last, since passes before it move views, and drop copies
    """
    copies: dict[Tensor, Tensor] = {}

    def stored(o: Tensor) -> Tensor:
        if _lies_ready(o):
            return o
        if o not in copies:
            copies[o] = build.pointwise("copy", o)
        return copies[o]

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if isinstance(t.op, Insert):
            dest, block, *where = operands
            op = Insert((dest, build.pointwise("copy", block), *where), t.op.start)
            return build.value(t.shape, t.dtype, op)
        if not isinstance(t.op, Alone) or all(map(_lies_ready, operands)):
            return None
        op = with_operands(t.op, tuple(map(stored, operands)))
        return build.value(t.shape, t.dtype, op)

    return rebuild(fusion, replace)


def _lies_ready(o: Tensor) -> bool:
    """Whether a value lies in C order: the caller's, or one that another kernel stores."""
    match o.op:
        case Input(strides=strides, alignment=alignment):
            return strides == contiguous_strides(o.shape) and alignment >= MAX_VECTOR_NBYTES
        case Pointwise() | Reduce() | Scan() | Sort() | MatMul() | OwnKernel() | Region():
            return not is_rematerialisable(o)
        case _:
            return False
