"""Parts of rows that a program made itself: its pads and reshapes become the op that says so.

sum(reshape(x, (P, Q, c..)), 1)             ->   sum(parts(x), 1)    runs of Q rows
sum(reshape(x, (Q, P, c..)), 0)             ->   sum(parts(x), 0)    interleaved
sum(reshape(pad(x, k), (P, Q, c..)), 1)     ->   the same, filled with what x is padded with
"""

from __future__ import annotations

import math

from fusewright.core.expr import ZERO, constant_value
from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, Reduce, Reshape, Resize, Scalar, Tensor, constant_shape
from fusewright.fusion.partition import Partition
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.rebuild import rebuild


def name_parts(fusion: Fusion) -> Fusion:
    """Lets reductions read parts of what a reshape cuts in two, where nothing but reductions of one
    of the two axes reads it.

    checks:   constant sizes; the reshape keeps all other axes; a padding is at the end of the rows
    order:    last, so that the passes before it see the program's own moves
    """
    uses = fusion.uses()

    def reduced(u: Tensor) -> bool:
        return isinstance(u.op, Reduce) and u.op.axes in ((0,), (1,))

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Reduce) or not all(map(reduced, uses[t.op.operands[0]])):
            return None
        parts = _parts(operands[0], is_interleaved=t.op.axes == (0,))
        return None if parts is None else t.with_op(Reduce((parts,), t.op.fn, t.op.axes))

    return cse(rebuild(fusion, replace))


def _parts(t: Tensor, *, is_interleaved: bool) -> Tensor | None:
    """The parts of rows that a reshape makes; None for other values."""
    if not isinstance(t.op, Reshape):
        return None
    source, fill = _unpadded(t.op.operands[0])
    sizes, shape = constant_shape(source), constant_shape(t)
    if sizes is None or shape is None or 1 in (*sizes, *shape) or len(shape) < 2:
        return None
    count = len(sizes) - (len(shape) - 2)
    if count < 1 or sizes[count:] != shape[2:]:
        return None
    each, parts = shape[:2] if is_interleaved else shape[1::-1]
    partition = Partition(math.prod(sizes[:count]), parts, each, is_interleaved)
    return build.parts(source, range(count), partition, fill)


def _unpadded(t: Tensor) -> tuple[Tensor, Scalar]:
    """What is padded at the end of its first axis, and the fill; the value itself for others."""
    if not isinstance(t.op, Resize) or any(e != ZERO for e in (*t.op.low, *t.op.high[1:])):
        return t, 0
    grows = (constant_value(t.op.high[0]) or 0) > 0
    return (t.op.operands[0], t.op.fill) if grows else (t, 0)
