"""Scans: a thread walks along the (short) scanned axis, threads share the other axes."""

from __future__ import annotations

from collections.abc import Iterator

from fusewright.errors import InternalError
from fusewright.fusion.ir import Scan
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics.candidates import Candidate, Listed
from fusewright.schedule.heuristics.common import Params, merge_all, split
from fusewright.schedule.inline import inline_most
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like

THREADS = (128, 64, 256)
"""Threads of a block, what is taken first first."""


class ScanScheduler:
    """One thread a line; the scanned axis is a serial loop."""

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow

    def candidates(self) -> Iterator[Listed[int]]:
        """Blocks of more or fewer threads."""
        for n in THREADS:
            params = Params("scan", (("threads", n),))
            yield Candidate(f"a line a thread, blocks of {n}", params, n)

    def apply(self, plan: int) -> bool:
        """Binds the other axes to blocks and threads."""
        flow = self._flow
        for s in flow.stages:
            if isinstance(s.op, Scan):
                line = s.frame.output[s.op.axis]
                rest = merge_all(flow, [x for x in s.loops if x.axis is not line])
                loops: list[Loop] = []
                if rest is not None:
                    blocks, threads = split(flow, rest, plan)
                    loops = [Loop(blocks.axis, Parallel.BIDX), Loop(threads.axis, Parallel.TIDX)]
                s.loops = (*loops, Loop(line))
                transform_like(flow, s)
                inline_most(flow)
                return True
        raise InternalError("a scan schedule for a group without scans")
