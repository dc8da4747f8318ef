"""Long scans of few lines in parts, so that they fill the chip.

    scan(x)  ->  fn(exclusive scan of the parts' totals, scan of each part)

The totals are a reduction of their own, so that x is read twice and the result stored once. Where
no number of parts near the wanted one divides the line, the last part is padded, and the kernel of
the scans leaves out what that makes too many.
"""

from __future__ import annotations

from fusewright.core.expr import Int
from fusewright.core.identities import scan_identity
from fusewright.fusion import build, ir
from fusewright.fusion.ir import Fusion, Scan, Tensor
from fusewright.fusion.partition import Partition
from fusewright.fusion.partitioning import PartitionFacts, of_line
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.target import Target


def split_scans(fusion: Fusion, target: Target) -> Fusion:
    """Splits scans whose lines would run in fewer blocks than the target has multiprocessors.

    checks:   constant sizes only
    order:    after decompose, before split_reductions, which finds the totals short
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Scan) or t.op.exclusive:
            return None
        facts = PartitionFacts.of(t, (t.op.axis,))
        cut = None if facts is None else of_line(facts, target)
        return None if cut is None else _split(t, t.op, operands[0], cut)

    return rebuild(fusion, replace)


def _split(t: Tensor, op: Scan, source: Tensor, cut: Partition) -> Tensor:
    axis = op.axis
    fill = scan_identity(op.fn, source.dtype)
    runs = build.parts(source, (axis,), cut, fill)
    totals = build.reduce(op.fn, runs, (axis + 1,))
    before = build.scan(op.fn, totals, axis, exclusive=True, reverse=op.reverse)
    own = build.scan(op.fn, runs, axis + 1, reverse=op.reverse)
    spread = (*range(axis + 1), None, *range(axis + 1, t.ndim))
    wide = build.value(own.shape, own.dtype, ir.Broadcast((before,), spread))
    both = build.pointwise(op.fn, wide, own)
    shape = (*t.shape[:axis], Int(cut.count * cut.each), *t.shape[axis + 1 :])
    flat = build.value(shape, t.dtype, ir.Reshape((both,)))
    if cut.is_even:
        return flat
    missing = [-cut.missing if a == axis else 0 for a in range(t.ndim)]
    return build.resize(flat, [0] * t.ndim, missing, 0)
