"""Long scans of few lines in parts, so that they fill the chip.

    scan(x)  ->  fn(exclusive scan of the parts' totals, scan of each part)

The totals are a reduction of their own, so that x is read twice and the result stored once. Where
no number of parts near the wanted one divides the line, the scans of the padded parts are stored,
and what comes before each of them is added where the padding is cut off.
"""

from __future__ import annotations

import math

from fusewright.core.expr import Int, constant_value
from fusewright.core.identities import scan_identity
from fusewright.fusion import build, ir
from fusewright.fusion.ir import Fusion, Scan, Tensor
from fusewright.fusion.partition import Partition
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.passes.split_reductions import parts_near
from fusewright.target import Target

LEAST_PART = 8192
"""Elements of a part at least: below, the launches for the totals cost more than they gain."""
LINES_OF_A_BLOCK = 8
"""Neighbouring lines that a block takes where they lie side by side in memory: a sector."""


def split_scans(fusion: Fusion, target: Target) -> Fusion:
    """Splits scans whose lines would run in fewer blocks than the target has multiprocessors.

    checks:   constant sizes only
    order:    after decompose, before split_reductions, which finds the totals short
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Scan) or t.op.exclusive:
            return None
        parts = _parts_of_scan(t, t.op.axis, target)
        return None if parts == 1 else _split(t, t.op, operands[0], parts)

    return rebuild(fusion, replace)


def _parts_of_scan(t: Tensor, axis: int, target: Target) -> int:
    """How many parts each line is split into; 1 for none."""
    sizes = [constant_value(e) for e in t.shape]
    length, total = sizes[axis], math.prod(n or 0 for n in sizes)
    if not length or not total:
        return 1
    lines, behind = total // length, math.prod(n or 0 for n in sizes[axis + 1 :])
    blocks = lines // min(behind, LINES_OF_A_BLOCK)
    wanted = min(2 * target.multiprocessors // max(blocks, 1), length // LEAST_PART)
    return parts_near([length], wanted) if wanted > 1 else 1


def _split(t: Tensor, op: Scan, source: Tensor, parts: int) -> Tensor:
    axis, length = op.axis, constant_value(t.shape[op.axis]) or 0
    cut = Partition.by_count(length, parts)
    fill = scan_identity(op.fn, source.dtype)
    runs = build.parts(source, (axis,), cut, fill)
    totals = build.reduce(op.fn, runs, (axis + 1,))
    before = build.scan(op.fn, totals, axis, exclusive=True)
    own = build.scan(op.fn, runs, axis + 1)
    spread = (*range(axis + 1), None, *range(axis + 1, t.ndim))
    wide = build.value(own.shape, own.dtype, ir.Broadcast((before,), spread))
    both = build.pointwise(op.fn, wide, own)
    shape = (*t.shape[:axis], Int(parts * cut.each), *t.shape[axis + 1 :])
    flat = build.value(shape, t.dtype, ir.Reshape((both,)))
    if cut.is_even:
        return flat
    missing = [length - parts * cut.each if a == axis else 0 for a in range(t.ndim)]
    return build.resize(flat, [0] * t.ndim, missing, 0)
