"""Reductions of rows that are shorter than a line of memory, with several rows side by side first.

    max(x, 1)  ->  y = parts(x, 1);  max(max(y, 1), 1)     x of (2403, 25848, 5)
                                                           y of (2403, 359, 72, 5)

The rows follow each other in memory, so that 72 of them are one run of 360 elements: lanes take
whole vectors of it, whatever lies in them, where threads side by side would take vectors of five
elements that lie far apart. Results are few, and a second kernel reduces them.
"""

from __future__ import annotations

from fusewright.core.identities import reduction_identity
from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, Reduce, Tensor
from fusewright.fusion.partitioning import PartitionFacts, fill_rows, is_read_again
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.passes.split_reductions import is_of_parts, leaves_little, reduce_in_parts


def fill_lines(fusion: Fusion) -> Fusion:
    """Reduces rows that are shorter than a line in two steps, the first of which keeps as many
    rows as fill lines.

    rewrite:  sum(x, R)  ->  sum(sum(parts(x, R), Q), P)        parts are interleaved rows
    checks:   constant sizes; neighbours in R are neighbours in memory, but for the short row that
              is kept between them; nothing needs the operand again, and few results are stored
    order:    before split_reductions, which leaves what is in parts alone; as another form of the
              fusion, whose predicted time decides
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Reduce) or is_of_parts(t.op.operands[0]):
            return None
        axes = t.op.axes
        is_run = axes == tuple(range(axes[0], axes[-1] + 1))
        facts = PartitionFacts.of(t.op.operands[0], axes) if is_run else None
        partition = None if facts is None else fill_rows(facts)
        if facts is None or partition is None or is_read_again(t, facts.total, fusion):
            return None
        if not leaves_little(t, axes, partition.count):
            return None
        wide = build.cast(operands[0], t.dtype.compute)
        fill = reduction_identity(t.op.fn, wide.dtype)
        parts = build.parts(wide, axes, partition, fill)
        return build.cast(reduce_in_parts(t.op.fn, parts), t.dtype)

    filled = rebuild(fusion, replace)
    return fusion if filled is fusion else cse(filled)
