"""How often threads of a block reduce or scan together, and what that costs a thread."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import Scan
from fusewright.schedule.block_reduction import Meeting, meeting
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.parallel import THREAD_DIMS, Loop, Parallel
from fusewright.target import WARP_SIZE

BLOCK_INSTRUCTIONS = 24
"""Of a warp that takes part in a reduction: five shuffles and sums, partials through memory."""
LANES_INSTRUCTIONS = 4
"""Of one between lanes of a warp beside its steps, each a shuffle and an operation: what it starts
from, and who keeps the result."""
LANES_SHARE = 0.25
"""Of the time of an exchange, one between lanes of a warp, without a barrier. Fitted to four draws
that it limited, measured on an H200 (2020, 9365, 9202, 9571 of `bench/lot-*`): their times are
1.00 of the predicted ones in the geometric mean, 0.90 where it counted as any other."""
SCAN_STEP_INSTRUCTIONS = 3
"""Of a step of a scan between the lanes of a warp, a shuffle, an operation and who takes part; and
as many for the total of each warp: a load, and what goes to the result and to the carry. (NVRTC
13.0, sm_90a: 114 instructions a trip of 512 threads with 2 floats each, 60 of 32 threads.)"""
SCAN_BLOCK_INSTRUCTIONS = 8
"""Of a scan across warps beside that: the total of a warp through memory, between two barriers."""


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Of a thread: `count`, the exchanges that follow each other, as those of one depth take place
    together, and the instructions of all. One between the lanes of a warp counts for its share.
    Of a block: the bytes that threads along several dimensions hand each other in shared memory."""

    count: float
    instructions: float
    through_shared: float = 0.0


def exchanges_of(flow: Dataflow) -> Exchanges:
    """The reductions and scans among threads that a thread takes part in."""
    depths: dict[Stage, int] = {}
    instructions = through_shared = 0.0
    levels: dict[int, float] = {}
    for s in flow.stages:
        depth = max((depths[o] for o in s.operands), default=0)
        among = _threads_of(flow, s)
        if among:
            depth += 1
            times = _trips(flow, s)
            if isinstance(s.op, Scan):
                own, share = _of_scan(s, among)
            elif any(x.parallel is not Parallel.TIDX for x in among):
                met = _met_across(flow, s, among)
                own, share = met.instructions, float(met.barriers) or LANES_SHARE
                threads = _size(_threads(s))
                through_shared += times * threads * met.through_shared * s.dtype.compute.nbytes
            else:
                own, share = _of_row(flow, s, among)
            instructions += times * own
            levels[depth] = max(levels.get(depth, 0.0), times * share)
        depths[s] = depth
    return Exchanges(sum(levels.values()), instructions, through_shared)


def _along(s: Stage) -> tuple[AxisClass, ...]:
    """The axes that a stage reduces, or the one that it scans."""
    return (s.frame.output[s.op.axis],) if isinstance(s.op, Scan) else s.frame.reduced


def _threads_of(flow: Dataflow, s: Stage) -> list[Loop]:
    """The loops over threads that reduce or scan together."""
    axes = _along(s) if s.is_reduction or isinstance(s.op, Scan) else ()
    return [x for x in s.loops if x.parallel.is_thread and flow.graph.depends(x.axis, axes)]


def _trips(flow: Dataflow, s: Stage) -> float:
    """Trips of the serial loops that do not reduce: a scan hands on what is before each of them."""
    axes = () if isinstance(s.op, Scan) else s.frame.reduced
    return math.prod(
        estimate(x.axis.extent)
        for x in s.loops
        if x.parallel is Parallel.SERIAL and not flow.graph.depends(x.axis, axes)
    )


def _threads(s: Stage) -> list[Loop]:
    """The loops over threads of a block."""
    return [x for x in s.loops if x.parallel.is_thread]


def _size(loops: list[Loop]) -> int:
    return math.prod(estimate(x.axis.extent) for x in loops)


def _results(flow: Dataflow, s: Stage) -> int:
    """The results of a reduction that a thread has part of."""
    return math.prod(
        estimate(x.axis.extent)
        for x in s.loops
        if x.parallel is Parallel.UNROLL and not flow.graph.depends(x.axis, s.frame.reduced)
    )


def _met_across(flow: Dataflow, s: Stage, among: list[Loop]) -> Meeting:
    """What threads do that reduce along other dimensions of the block than the first one alone:
    those that differ in a warp exchange between its lanes."""
    lanes, room = 1, WARP_SIZE
    for x in sorted(_threads(s), key=lambda x: THREAD_DIMS[x.parallel]):
        extent = estimate(x.axis.extent)
        inside = min(extent & -extent, room)
        lanes *= inside if x in among else 1
        room = room // inside if inside == extent else 1
    return meeting(_results(flow, s), lanes, _size(among) // lanes)


def _of_row(flow: Dataflow, s: Stage, among: list[Loop]) -> tuple[float, float]:
    """Instructions of one reduction along the first dimension, and the share of an exchange of a
    block that it takes. Of the results that a thread has beside the first one, lanes of a warp take
    only the steps."""
    lanes = max(2, _size(among))
    steps = 2 * math.log2(lanes)
    beside = (_results(flow, s) - 1) * steps
    if lanes > WARP_SIZE:
        return BLOCK_INSTRUCTIONS + beside, 1.0
    return steps + LANES_INSTRUCTIONS + beside, LANES_SHARE


def _of_scan(s: Stage, among: list[Loop]) -> tuple[float, float]:
    """The same of one scan: steps between the lanes of a warp, then a pass over the totals of all
    warps along it."""
    beside = [x for x in s.loops if x.parallel.is_thread and x not in among]
    is_fast = any(x.parallel is Parallel.TIDX for x in among)
    apart = 1 if is_fast else _size(beside)
    along = _size(among)
    lanes = min(along, max(1, WARP_SIZE // apart))
    warps = -(-along // lanes)
    steps = math.log2(lanes) + 1 if lanes > 1 else 0.0
    words = -(-s.dtype.compute.nbytes // 4)
    within = steps * SCAN_STEP_INSTRUCTIONS * words
    if warps == 1:
        return within, LANES_SHARE if lanes > 1 else 0.0
    return within + warps * SCAN_STEP_INSTRUCTIONS * words + SCAN_BLOCK_INSTRUCTIONS, 1.0
