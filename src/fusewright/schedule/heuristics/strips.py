"""Columns that a block holds, and partial results of their rows beside them.

    c[k] = sum over r;  dw_p[r, s] = sum over the columns k of strip s

A block has the columns of a strip side by side over its threads, and other threads have other rows:
the partial results of a row are reduced over neighbouring threads and their lanes, on the way of
the pass that has the elements, wherever the columns are held. So every way to schedule columns is
one for both, as far as its blocks are as wide as a strip.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import Parts
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.common import by_stride, merge_all
from fusewright.schedule.parallel import Loop


@dataclass(frozen=True, slots=True)
class Strips:
    """Reductions over the columns of strips, and the reductions of columns beside them."""

    partials: tuple[Stage, ...]
    columns: tuple[Stage, ...]

    @property
    def width(self) -> int:
        """The columns of a strip."""
        return estimate(self.partials[0].frame.reduced[0].extent)

    def kept(self, flow: Dataflow) -> Loop:
        """One loop over the columns, those of a strip innermost."""
        partial = self.partials[0]
        rows = self.columns[0].frame.reduced
        outside = tuple(c for c in partial.frame.output if not flow.graph.depends(c, rows))
        loops = [*by_stride(flow, outside), *map(Loop, partial.frame.reduced)]
        merged = merge_all(flow, loops)
        assert merged is not None, "strips of one column"
        return merged


def strips_of(flow: Dataflow) -> Strips | None:
    """The reductions of strips of columns in a group that reduces whole columns; None for other
    groups."""
    places: list[AxisClass] = [
        s.frame.output[s.op.axes[0] + a]
        for s in flow.stages
        if isinstance(s.op, Parts) and s.op.partition.is_strip
        for a in s.op.partition.place_axes
    ]
    reductions = [s for s in flow.stages if s.is_reduction] if places else []
    partials = tuple(
        s for s in reductions if any(flow.graph.depends(c, places) for c in s.frame.reduced)
    )
    columns = tuple(s for s in reductions if s not in partials)
    return Strips(partials, columns) if partials and columns else None
