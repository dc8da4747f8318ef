"""How often threads of a block reduce or scan together, and what that costs a thread."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fusewright.axes.classes import AxisClass
from fusewright.core.instructions import CODE
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import Scan
from fusewright.schedule.block_reduction import ExchangeWork, cluster_meeting, meeting
from fusewright.schedule.block_scan import MOST_LOADED
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.parallel import GRID_DIMS, THREAD_DIMS, Loop, Parallel, trips_of
from fusewright.target import WARP_SIZE

Place: TypeAlias = Literal["across warps", "between lanes", "in a thread"]


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Of a thread: the exchanges that follow each other, as those of one depth take place together,
    across the warps of its block (their barriers) and between the lanes of its warp, and the
    instructions of all. Of a block: the bytes that threads along several dimensions hand each other
    in shared memory. Of those across warps, the ones `between_blocks` of a cluster. `gatherings`:
    the times that a block waits for totals of others of the grid, and what it reads of them."""

    across: float
    between_lanes: float
    instructions: float
    through_shared: float = 0.0
    between_blocks: float = 0.0
    gatherings: float = 0.0
    gathered_nbytes: float = 0.0


@dataclass(frozen=True, slots=True)
class _Meeting:
    """What the threads of a block do once to reduce or scan a stage together: instructions of each,
    where they exchange, barriers, bytes through shared memory, and those that are read of other
    blocks, where these are waited for (else None)."""

    instructions: float
    place: Place
    barriers: int = 1
    through_shared: float = 0.0
    gathered: float | None = None


def exchanges_of(flow: Dataflow) -> Exchanges:
    """The reductions and scans among threads that a thread takes part in."""
    depths: dict[Stage, int] = {}
    instructions = through_shared = 0.0
    levels: dict[Place, dict[int, float]] = {"across warps": {}, "between lanes": {}}
    between_blocks: dict[int, float] = {}
    gatherings = gathered = 0.0
    for s in flow.stages:
        depth = max((depths[o] for o in s.operands), default=0)
        among = exchange_threads(flow, s)
        if among:
            depth += 1
            times, met = _trips(flow, s), _meeting(flow, s, among)
            instructions += times * met.instructions
            through_shared += times * met.through_shared
            if met.gathered is not None:
                gatherings += times
                gathered += times * met.gathered
            if met.place in levels:
                level, follow = levels[met.place], times * met.barriers
                level[depth] = max(level.get(depth, 0.0), follow)
            if met.place == "across warps" and _blocks_of(flow, s):
                between_blocks[depth] = max(between_blocks.get(depth, 0.0), times)
        depths[s] = depth
    across, lanes = levels["across warps"], levels["between lanes"]
    alone = sum(times for depth, times in lanes.items() if depth not in across)
    crossing = sum(between_blocks.values())
    return Exchanges(
        sum(across.values()),
        alone,
        instructions,
        through_shared,
        crossing,
        gatherings,
        gathered,
    )


def _meeting(flow: Dataflow, s: Stage, among: list[Loop]) -> _Meeting:
    if isinstance(s.op, Scan):
        return _scanning(flow, s, among)
    if count := _blocks_along(flow, s):
        return _gathering(flow, s, among, count)
    if any(x.parallel is not Parallel.TIDX for x in among):
        met = _met_across(flow, s, among)
        place: Place = "across warps" if met.barriers else "between lanes"
        moved = trips_of(_threads(s)) * met.through_shared * s.dtype.compute.nbytes
        return _Meeting(met.instructions, place, max(1, met.barriers), moved)
    own, place = _of_row(flow, s, among)
    return _Meeting(own, "across warps" if _blocks_of(flow, s) else place)


def _scanning(flow: Dataflow, s: Stage, among: list[Loop]) -> _Meeting:
    own, place, totals = _of_scan(s, among)
    barriers, gathered = 1 + (totals > MOST_LOADED), None
    if count := _blocks_along(flow, s):
        met = _met_across(flow, s, among)
        lanes = trips_of(x for x in s.loops if x.parallel is Parallel.VECTORIZE)
        own = lanes * (own + _gathered_instructions(count, among) + 2 * met.instructions)
        barriers += 1 + met.barriers
        threads = trips_of(_threads(s)) // trips_of(among)
        gathered = float(count * lanes * threads * s.dtype.compute.nbytes)
    loaded = totals if totals <= MOST_LOADED else 2
    moved = loaded * trips_of(_threads(s)) * s.dtype.compute.nbytes
    return _Meeting(own, place, barriers, _results(flow, s) * moved, gathered)


def _gathering(flow: Dataflow, s: Stage, among: list[Loop], count: int) -> _Meeting:
    """Threads reduce what is theirs, then the parts of `count` blocks, of which each loads some."""
    met, lanes, results = _met_across(flow, s, among), _lanes(flow, s), _results(flow, s)
    own = lanes * (results * _gathered_instructions(count, among) + 2 * met.instructions)
    threads, size = trips_of(_threads(s)), lanes * s.dtype.compute.nbytes
    moved = 2 * threads * met.through_shared * size
    gathered = float(count * results * (threads // trips_of(among)) * size)
    return _Meeting(own, "across warps", 1 + 2 * met.barriers, moved, gathered)


def exchange_threads(flow: Dataflow, s: Stage) -> list[Loop]:
    """The loops over threads that reduce or scan together; those of one thread are none."""
    axes = _along(s) if s.is_reduction or isinstance(s.op, Scan) else ()
    return [x for x in s.loops if x.parallel.is_thread and flow.graph.depends(x.axis, axes)]


def _along(s: Stage) -> tuple[AxisClass, ...]:
    """The axes that a stage reduces, or the one that it scans."""
    return (s.frame.output[s.op.axis],) if isinstance(s.op, Scan) else s.frame.reduced


def _trips(flow: Dataflow, s: Stage) -> float:
    """Trips of the serial loops that do not reduce: a scan hands on what is before each of them."""
    axes = () if isinstance(s.op, Scan) else s.frame.reduced
    serial = (x for x in s.loops if x.parallel is Parallel.SERIAL)
    return trips_of(x for x in serial if not flow.graph.depends(x.axis, axes))


def _threads(s: Stage) -> list[Loop]:
    """The loops over threads of a block."""
    return [x for x in s.loops if x.parallel.is_thread]


def _results(flow: Dataflow, s: Stage) -> int:
    """The results of a reduction that a thread has part of."""
    own = (x for x in s.loops if x.parallel is Parallel.UNROLL)
    return trips_of(x for x in own if not flow.graph.depends(x.axis, s.frame.reduced))


def _lanes(flow: Dataflow, s: Stage) -> int:
    """The results of a reduction among the lanes of a thread that go at once."""
    own = (x for x in s.loops if x.parallel is Parallel.VECTORIZE)
    return trips_of(x for x in own if not flow.graph.depends(x.axis, s.frame.reduced))


def _met_across(flow: Dataflow, s: Stage, among: list[Loop]) -> ExchangeWork:
    """What threads do that reduce along other dimensions of the block than the first one alone:
    those that differ in a warp exchange between its lanes."""
    lanes, room = 1, WARP_SIZE
    for x in sorted(_threads(s), key=lambda x: THREAD_DIMS[x.parallel]):
        extent = estimate(x.axis.extent)
        inside = min(extent & -extent, room)
        lanes *= inside if x in among else 1
        room = room // inside if inside == extent else 1
    partials, nblocks = trips_of(among) // lanes, trips_of(_blocks_of(flow, s))
    if nblocks > 1:
        return cluster_meeting(_results(flow, s), lanes, partials, nblocks)
    return meeting(_results(flow, s), lanes, partials)


def _blocks_of(flow: Dataflow, s: Stage) -> list[Loop]:
    """The loops over blocks of a cluster that reduce together."""
    blocks = (x for x in s.loops if x.parallel is Parallel.CLUSTERX)
    return [x for x in blocks if flow.graph.depends(x.axis, _along(s))]


def _blocks_along(flow: Dataflow, s: Stage) -> int:
    """The blocks of the grid that scan or reduce the same lines and wait for each other, 0 where
    none do."""
    bound = (x for x in s.loops if x.parallel in GRID_DIMS)
    along = [x for x in bound if flow.graph.depends(x.axis, _along(s))]
    return trips_of(along) if along and s.grid_mode is not None else 0


def _gathered_instructions(count: int, among: list[Loop]) -> float:
    """Of a thread that loads its share of the totals of so many blocks: an access and what goes to
    the result and to the carry."""
    return -(-count // trips_of(among)) * (CODE.access + 2)


def _of_row(flow: Dataflow, s: Stage, among: list[Loop]) -> tuple[float, Place]:
    """Instructions of one reduction along the first dimension, and where its threads exchange. Of
    the results that a thread has beside the first one, lanes of a warp take only the steps."""
    lanes = max(2, trips_of(among))
    steps = 2 * math.log2(lanes)
    beside = (_results(flow, s) - 1) * steps
    if lanes > WARP_SIZE:
        return CODE.block_exchange + beside, "across warps"
    return steps + CODE.lanes_exchange + beside, "between lanes"


def _of_scan(s: Stage, among: list[Loop]) -> tuple[float, Place, int]:
    """The same of one scan: steps between the lanes of a warp, then a pass over the totals of all
    warps along it, which every thread loads from shared memory; and how many these are."""
    beside = [x for x in s.loops if x.parallel.is_thread and x not in among]
    is_fast = any(x.parallel is Parallel.TIDX for x in among)
    apart = 1 if is_fast else trips_of(beside)
    along = trips_of(among)
    lanes = min(along, max(1, WARP_SIZE // apart))
    warps = -(-along // lanes)
    steps = math.log2(lanes) + 1 if lanes > 1 else 0.0
    words = -(-s.dtype.compute.nbytes // 4)
    within = steps * CODE.scan_step * words
    if warps == 1:
        return within, "between lanes" if lanes > 1 else "in a thread", 0
    loaded = warps if warps <= MOST_LOADED else 2
    return within + loaded * CODE.scan_step * words + CODE.scan_block, "across warps", warps
