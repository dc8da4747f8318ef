"""Scans: a thread walks along the (short) scanned axis, threads share the other axes."""

from __future__ import annotations

from fusewright.errors import InternalError
from fusewright.fusion.ir import Scan
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics.common import Params, merge_all, split
from fusewright.schedule.inline import inline_most
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import Target

THREADS = 128


def schedule_scan(flow: Dataflow, target: Target) -> Params:
    """One thread a line; the scanned axis is a serial loop."""
    del target
    for s in flow.stages:
        if isinstance(s.op, Scan):
            line = s.frame.output[s.op.axis]
            rest = merge_all(flow, [x for x in s.loops if x.axis is not line])
            loops: list[Loop] = []
            if rest is not None:
                blocks, threads = split(flow, rest, THREADS)
                loops = [Loop(blocks.axis, Parallel.BIDX), Loop(threads.axis, Parallel.TIDX)]
            s.loops = (*loops, Loop(line))
            transform_like(flow, s)
            inline_most(flow)
            return Params("scan", (("threads", THREADS),))
    raise InternalError("a scan schedule for a group without scans")
