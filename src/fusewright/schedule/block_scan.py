"""block_scan: one scan becomes scans of runs and a scan of their totals, spelled in ordinary ops.

    y = scan(x)   ->   p = split(pad(x), width);  r = scan(p) along the runs
                       b = exclusive scan of the sums of p;  y = crop(flatten(fn(b, r)))

A thread scans its run in registers, the threads of a block the totals; `evaluate` of the new
dataflow is the meaning of the schedule. Source: Blelloch, "Prefix sums and their applications"
(1990), section 1.2.
"""

from __future__ import annotations

from dataclasses import replace

from fusewright.core.expr import ZERO, Expr, Int, ceildiv, mul
from fusewright.core.identities import scan_identity
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import (
    Broadcast,
    Op,
    Pointwise,
    Reduce,
    Reshape,
    Resize,
    Scalar,
    Scan,
    Shape,
)
from fusewright.schedule.edits import edit
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.parallel import Loop

MOST_LOADED = 128
"""Totals that every thread loads; of more one thread sums them up for all, behind another barrier.
With 21 totals, of eight columns a thread, that took 1.6 times as long (cumulative products of
float16[1735, 1446, 16, 6] along axis 1; one H100, 2026-11-27)."""


@edit("block_scan", of_tensor=True)
def block_scan(flow: Dataflow, s: Stage, width: int) -> Stage:
    """Makes `s` combine scans of runs of `width` elements with what comes before each run, which
    is the stage that it returns. Loops start again as the ops' own domains. Raises ScheduleError
    for a stage that is no scan, or that scans an axis whose size may be 0."""
    if not isinstance(s.op, Scan):
        raise ScheduleError(
            f"block_scan({s.name}): it is no scan; call it on a cumulative_sum or its like"
        )
    op, extent = s.op, s.shape[s.op.axis]
    if (extent.interval[0] or 0) < 1:
        raise ScheduleError(
            f"block_scan({s.name}): its axis of size {extent} may have no element, so no run "
            f"of {width}; leave it as it is"
        )
    runs = ceildiv(extent, width)
    missing = mul(runs, width) - extent
    fill = scan_identity(op.fn, s.operands[0].dtype)
    split = Split(flow, s, op.axis)
    padded = split.resized(s.operands[0], missing, fill)
    spread = split.add("runs", (runs, Int(width)), Reshape(()), padded)
    along_run = Scan((), op.fn, op.axis + 1, op.exclusive, op.reverse)
    own = split.add("own", (runs, Int(width)), along_run, spread)
    totals = split.add("totals", (runs,), Reduce((), op.fn, (op.axis + 1,)), spread)
    along_totals = Scan((), op.fn, op.axis, exclusive=True, reverse=op.reverse)
    before = split.add("before", (runs,), along_totals, totals)
    axes = (*range(op.axis + 1), None, *range(op.axis + 1, len(s.shape)))
    wide = split.add("wide", (runs, Int(width)), Broadcast((), axes), before)
    both = split.add("both", (runs, Int(width)), Pointwise((), op.fn), wide, own)
    flat = split.add("flat", (mul(runs, width),), Reshape(()), both)
    s.op, s.operands = split.crop(-missing), (flat,)
    s.inline_depth = 0
    flow.attach(s)
    flow.sort()
    flow.retie()
    s.loops = tuple(Loop(c) for c in s.frame.output)
    return before


@edit("request_serial_grid_reduction", of_tensor=True)
def gather_blocks(_: Dataflow, s: Stage, mode: str) -> None:
    """Lets the blocks along which a scan or a reduction runs hand each other the totals of their
    parts."""
    s.grid_mode = mode


class Split:
    """Inserts stages in front of one, each with the axis `axis` of it as one or two axes."""

    def __init__(self, flow: Dataflow, s: Stage, axis: int) -> None:
        self._flow = flow
        self._s = s
        self._axis = axis
        self._after = s.operands[0]

    def add(self, name: str, along: Shape, op: Op, *operands: Stage) -> Stage:
        """A new stage that has these extents instead of the axis."""
        s, k = self._s, self._axis
        shape = (*s.shape[:k], *along, *s.shape[k + 1 :])
        made = self._flow.insert(self._after, f"{s.name}_{name}", shape, s.dtype, op, operands)
        self._flow.attach(made)
        made.loops = tuple(Loop(c) for c in made.frame.domain)
        self._after = made
        return made

    def resized(self, source: Stage, more: Expr, fill: Scalar) -> Stage:
        """The source with its axis longer at the end; itself where it is long enough."""
        if more == ZERO:
            return source
        op = replace(self.crop(more), fill=fill)
        assert isinstance(op, Resize)
        made = self.add("padded", (self._s.shape[self._axis] + more,), op, source)
        made.dtype = source.dtype
        return made

    def crop(self, more: Expr) -> Op:
        """The op that makes the axis shorter, or longer, at its end."""
        if more == ZERO:
            return Pointwise((), "copy")
        high: list[Expr] = [ZERO] * len(self._s.shape)
        high[self._axis] = more
        return Resize((), (ZERO,) * len(high), tuple(high), 0)
