"""What a scheduled kernel does, counted on its schedule: threads, traffic, instructions, exchanges.

The counts are estimates in closed form but for what memory is asked for (`requests`), which a few
warps show; nothing is lowered. Loops over symbolic sizes count a typical number of trips.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fusewright.core.instructions import CODE, INSTRUCTIONS, WIDE_INSTRUCTIONS
from fusewright.core.substitution import estimate
from fusewright.dtypes import DType
from fusewright.fusion.ir import (
    Concat,
    Constant,
    IndexMap,
    Parts,
    Pointwise,
    Reduce,
    Resize,
    Scan,
    Sort,
    ViewBase,
)
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.heuristics.common import Params, numel
from fusewright.schedule.heuristics.exchanges import exchanges_of
from fusewright.schedule.heuristics.masks import computed_shares
from fusewright.schedule.heuristics.picks import Picks
from fusewright.schedule.heuristics.product_work import ProductWork, product_work
from fusewright.schedule.heuristics.registers import registers_of, walk_of
from fusewright.schedule.heuristics.requests import (
    Request,
    found_near,
    read_together,
    requests,
    share_between,
)
from fusewright.schedule.heuristics.settled import settled_shares
from fusewright.schedule.heuristics.thread_loops import (
    is_own,
    lanes,
    outer_trips,
    reads,
    trips,
    warps,
)
from fusewright.schedule.heuristics.warp_work import warp_work
from fusewright.schedule.inline import consumers_of
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Parallel, trips_of
from fusewright.schedule.precision import fast_forms
from fusewright.schedule.products import blocks_that_share, boxed_memory
from fusewright.target import (
    MAX_VECTOR_NBYTES,
    SECTOR_NBYTES,
    WORD_NBYTES,
)

OVERLAPPED_TRIPS = 4
"""Trips of a serial loop whose loads a compiler has under way together."""


@dataclass(frozen=True, slots=True)
class MovedArray:
    """One array in global memory: its bytes, those between its elements that memory moves along
    among them, those that each stage that accesses it asks for, counted in whole sectors, and
    whether it is written. Of operands of products the tiles of the
    result, of which those that are made together share what they read; 0 for other arrays. What is
    read `by_boxes` is counted in the steps of a product.
    `between`: of accesses that ask for the same bytes one after the other, as a window's do, the
    share of the launch's blocks that lie between each and the next. `beside`: bytes in sectors that
    the second-level cache moves along, and `paired` the most that one access moves with them.
    `unfilled`: of the bytes that writes ask for those that they
    leave as they were, as they fill no whole sectors. `borders`: bytes that several blocks read, as
    they lie in pairs of sectors at the borders of their strips. `together`: the bytes that all of
    several accesses read, each counted once; 0 of a single one. `picks`: what data picks.
    `returns`: the share of the blocks between those that need parts of the same pairs of sectors,
    and how many they are. `again`: of what several stages read that which blocks have not read
    already."""

    name: str
    nbytes: int
    requested: tuple[float, ...]
    is_written: bool
    tiles: int = 0
    by_boxes: bool = False
    between: tuple[float, ...] = ()
    beside: float = 0.0
    paired: float = 0.0
    unfilled: float = 0.0
    borders: float = 0.0
    together: float = 0.0
    picks: Picks | None = None
    returns: tuple[float, float] = (0.0, 1.0)
    again: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """A launch. Of a block: threads, bytes of shared memory, bytes through shared memory,
    `exchanges` across warps that follow each other, each ending at a barrier, `cluster_exchanges`,
    those of them at which the blocks of a cluster meet, `gatherings` at which it waits for others
    of the grid, with the bytes `gathered_nbytes` that it reads of them, `lane_exchanges` between
    the lanes of a warp, which meet at none, `loads`, the times that it waits for memory,
    `walked`, the trips that load for the next one while they exchange and compute,
    and the `product` of its warpgroups. Of a thread: registers, instructions, among
    them those for `addressing` memory, bytes of loads under way together. Of the launch: `lines`,
    the look-ups in first-level caches, and `narrow`, the accesses of warps to any memory with less
    than 16 bytes a lane; `busy`, the share of what its threads go through that has an element."""

    blocks: int
    threads: int
    cluster: int
    min_blocks: int
    arrays: tuple[MovedArray, ...]
    lines: float
    narrow: float
    shared_nbytes: int
    through_shared: float
    exchanges: float
    loads: float
    registers: int
    instructions: float
    flight_nbytes: float
    product: ProductWork | None = None
    warp_pairs: float = 0.0
    addressing: float = 0.0
    cluster_exchanges: float = 0.0
    lane_exchanges: float = 0.0
    gatherings: float = 0.0
    gathered_nbytes: float = 0.0
    walked: float = 0.0
    busy: float = 1.0


def work_of(flow: Dataflow, params: Params) -> Work:
    """The work of a scheduled dataflow."""
    stages = computed(flow.stages)
    extents = _extents(stages)
    threads = math.prod(n for p, n in extents.items() if p.is_thread)
    launched = math.prod(n for p, n in extents.items() if p.is_block)
    exchanges = exchanges_of(flow)
    shared = [s for s in stages if s.memory is Memory.SHARED]
    own = [s for s in stages if not _is_by_engine(s)]
    by_warps = [warp_work(s) for s in stages if s.is_mma and s.warps]
    asked = requests(flow, [s for s in own if _is_global(s)], launched)
    computing, addressing = _instructions(flow, own, asked)
    walk = walk_of(flow, own, threads, params.min_blocks)
    return Work(
        blocks=launched,
        threads=threads,
        cluster=extents.get(Parallel.CLUSTERX, 1),
        min_blocks=params.min_blocks,
        arrays=(
            *_arrays(asked, _tiles_of_arrays(flow, stages, launched)),
            *_boxed_arrays(flow, stages, launched),
        ),
        lines=sum(r.lines for own in asked.values() for r in own),
        narrow=launched * sum(_narrow(flow, s) for s in own),
        shared_nbytes=sum(_own_elements(s) * s.stages * s.dtype.nbytes for s in shared),
        through_shared=sum(_through_shared(flow, s) for s in own)
        + sum(w.through_shared for w in by_warps)
        + exchanges.through_shared,
        exchanges=exchanges.across,
        cluster_exchanges=exchanges.between_blocks,
        lane_exchanges=exchanges.between_lanes,
        gatherings=exchanges.gatherings,
        gathered_nbytes=exchanges.gathered_nbytes,
        loads=(walk.waits or _loads(own)) + any(s.boxed or _is_ring(s) for s in stages),
        walked=walk.ahead,
        registers=registers_of(flow, stages, walk) + sum(w.registers for w in by_warps),
        instructions=CODE.start
        + exchanges.instructions
        + computing
        + addressing
        + sum(w.instructions for w in by_warps),
        flight_nbytes=_flight(own) + sum(map(_ring_nbytes, stages)) / max(threads, 1),
        product=product_work(flow, stages),
        warp_pairs=sum(w.pairs for w in by_warps),
        addressing=addressing,
        busy=_busy(own),
    )


def side_by_side(works: Sequence[Work]) -> Work:
    """The work of a launch whose blocks do what those of several launches do; of a block and of a
    thread the mean."""
    blocks = sum(w.blocks for w in works)

    def mean(one: Callable[[Work], float]) -> float:
        return sum(w.blocks * one(w) for w in works) / blocks

    return Work(
        blocks=blocks,
        threads=max(w.threads for w in works),
        cluster=1,
        min_blocks=0,
        arrays=tuple(a for w in works for a in w.arrays),
        lines=sum(w.lines for w in works),
        narrow=sum(w.narrow for w in works),
        shared_nbytes=max(w.shared_nbytes for w in works),
        through_shared=mean(lambda w: w.through_shared),
        exchanges=max(w.exchanges for w in works),
        cluster_exchanges=max(w.cluster_exchanges for w in works),
        lane_exchanges=max(w.lane_exchanges for w in works),
        gatherings=max(w.gatherings for w in works),
        gathered_nbytes=mean(lambda w: w.gathered_nbytes),
        loads=mean(lambda w: w.loads),
        registers=max(w.registers for w in works),
        instructions=mean(lambda w: w.instructions),
        flight_nbytes=mean(lambda w: w.flight_nbytes),
        addressing=mean(lambda w: w.addressing),
        walked=max(w.walked for w in works),
        busy=mean(lambda w: w.busy),
    )


# --- loops --------------------------------------------------------------------------------------


def _extents(stages: Sequence[Stage]) -> dict[Parallel, int]:
    """The extent of every dimension of the grid and the block."""
    out: dict[Parallel, int] = {}
    for s in stages:
        for x in s.loops:
            if x.parallel.is_block or x.parallel.is_thread:
                out[x.parallel] = max(out.get(x.parallel, 1), estimate(x.axis.extent))
    return out


def _busy(stages: Sequence[Stage]) -> float:
    """The share of the loops' trips of the largest stage, by all threads, that have an element: of
    rows of 20 vectors that 32 lanes share 12 lanes idle."""
    sized = ((max(numel(t.shape) for t in (s, *s.operands)), s) for s in stages)
    elements, largest = max(sized, key=lambda x: x[0], default=(1, None))
    return 1.0 if largest is None else min(1.0, elements / trips_of(largest.loops))


def _own_threads(s: Stage) -> int:
    """Threads of a block among which a stage is shared out."""
    return trips_of(x for x in s.loops if x.parallel.is_thread)


def _own_elements(s: Stage) -> int:
    """Elements that a block holds of a stage in shared memory."""
    inside = [x for x in s.loops[s.inline_depth :] if not x.parallel.is_block]
    threads = [x for x in s.loops[: s.inline_depth] if x.parallel.is_thread]
    return trips_of((*threads, *inside))


# --- boxes and products ------------------------------------------------------------------------


def _is_by_engine(s: Stage) -> bool:
    """Whether the copy engine or the matrix unit makes a stage: its elements cost no thread
    anything."""
    return s.is_mma or _is_box(s)


def _is_box(s: Stage) -> bool:
    return len(s.boxed) == 2


def _is_ring(s: Stage) -> bool:
    """Whether threads copy tiles of a stage ahead of their use."""
    return s.copied is not None and s.stages > 1 and not _is_box(s)


def _box_nbytes(s: Stage) -> int:
    return trips_of(s.loops[i] for i in s.boxed) * s.dtype.nbytes


def _ring_nbytes(s: Stage) -> int:
    """Bytes of the boxes of a block that are on their way to shared memory together."""
    return _box_nbytes(s) * s.stages if _is_box(s) and s.memory is Memory.SHARED else 0


def _boxed_arrays(flow: Dataflow, stages: Sequence[Stage], blocks: int) -> Iterator[MovedArray]:
    """The arrays that boxes are copied from and to, in whole boxes."""
    tiles = max((blocks * _tiles_of_block(flow, s) for s in stages if s.is_mma), default=0)
    for s in filter(_is_box, stages):
        memory = boxed_memory(s)
        if memory is not None:
            trips = trips_of(x for x in s.loops if x.parallel.is_serial)
            asked = blocks * trips * _box_nbytes(s) / blocks_that_share(flow.graph, s)
            nbytes = numel(memory.source.shape) * s.dtype.nbytes
            is_written = s.memory is Memory.GLOBAL
            yield MovedArray(
                memory.source.name, nbytes, (asked,), is_written, tiles, not is_written
            )


def _tiles_of_block(flow: Dataflow, product: Stage) -> int:
    """Tiles of the result that a block makes one after the other."""
    reduced = product.frame.reduced
    serial = (x for x in product.loops if x.parallel is Parallel.SERIAL)
    return trips_of(x for x in serial if not flow.graph.depends(x.axis, reduced))


# --- global memory ------------------------------------------------------------------------------


def _is_global(s: Stage) -> bool:
    return s.memory is Memory.GLOBAL or bool(reads(s))


def _tiles_of_arrays(
    flow: Dataflow, stages: Sequence[Stage], blocks: int
) -> dict[tuple[Stage, bool], int]:
    """The tiles of the results of single warps' products, by what these read."""
    found: dict[tuple[Stage, bool], int] = {}
    for s in stages:
        if s.is_mma and s.warps:
            tiles = blocks * _tiles_of_block(flow, s)
            found |= {(o.stored, False): tiles for c in s.operands for o in c.operands}
    return found


def _arrays(
    asked: Mapping[Stage, Sequence[Request]], tiles: Mapping[tuple[Stage, bool], int]
) -> tuple[MovedArray, ...]:
    """The arrays with what each stage asks of them."""
    found: dict[tuple[Stage, bool], list[Request]] = {}
    for s, own in asked.items():
        for r in own:
            found.setdefault((r.tensor, r.tensor is s), []).append(r)
    return tuple(
        MovedArray(
            t.name,
            _moved_nbytes(t),
            tuple(r.nbytes for r in own),
            is_written,
            tiles.get((t, is_written), 0),
            between=() if is_written else _between(own),
            beside=sum(r.beside for r in own),
            paired=max(r.nbytes + r.beside for r in own),
            unfilled=sum(r.unfilled for r in own),
            borders=max(r.borders for r in own),
            together=0.0 if is_written else read_together(t, own),
            picks=_picks_alone(own),
            returns=max(r.returns for r in own),
            again=sum(r.nbytes * (1 - n) for r, n in zip(own, found_near(own), strict=True)),
        )
        for (t, is_written), own in found.items()
    )


def _picks_alone(accesses: Sequence[Request]) -> Picks | None:
    """What data picks of an array that nothing else reads; None where some stage reads it by its
    loops, too, as a cross entropy reads all of a row that its label picks from."""
    picks = [r.picks for r in accesses if r.picks is not None]
    return picks[0] if len(picks) == len(accesses) else None


def _moved_nbytes(t: Stage) -> int:
    """The bytes that memory moves for all elements of a tensor, which it does in pairs of sectors:
    gaps between rows that are shorter move along, and rows that begin inside of a pair reach into
    one more, the more often the longer they are."""
    pair = 2 * SECTOR_NBYTES
    sized = zip(strides_of(t), t.shape, strict=True)
    steps = sorted((estimate(s) * t.dtype.nbytes, estimate(n)) for s, n in sized)
    run, count, apart = t.dtype.nbytes, 1, pair
    for step, n in steps:
        if n > 1 and 0 < step <= run + pair:
            run += (n - 1) * step
        elif n > 1 and step > 0:
            count, apart = count * n, math.gcd(apart, step)
    if count == 1:
        return run
    starts = range(0, pair, apart)
    return count * pair * sum(-(-(start + run) // pair) for start in starts) // len(starts)


def _between(accesses: Sequence[Request]) -> tuple[float, ...]:
    """The shares of a launch between accesses to the same bytes, in the order of time."""
    first = accesses[0]
    places = sorted((0.0, *(share_between(first, r) for r in accesses[1:])))
    return tuple(b - a for a, b in pairwise(places) if b > a)


def _shares(flow: Dataflow) -> dict[Stage, float]:
    """The share of its loops' trips in which a stage is computed at all: the pieces of a
    concatenation and the inside of a pad stand under conditions."""
    out: dict[Stage, float] = dict.fromkeys(flow.stages, 0.0)
    for s in reversed(flow.stages):
        own = out[s] = min(1.0, out[s]) if flow.consumers(s) else 1.0
        for o in s.operands:
            piece = isinstance(s.op, Concat | Resize | Parts)
            out[o] += own * min(1.0, numel(o.shape) / max(numel(s.shape), 1)) if piece else own
    return out


def _shares_of_warps(
    flow: Dataflow, asked: Mapping[Stage, Sequence[Request]]
) -> dict[Stage, float]:
    """The same of what warps issue: all of it where some lane takes part, as in a join of pieces
    that are shorter than what a warp has of them together."""
    out = _shares(flow)
    for s in flow.stages:
        own = asked.get(s, ())
        pieces = [out[o] for o in s.operands if not o.is_input]
        met = [r.visited for r in own if r.tensor is not s] or pieces
        if out[s] < 1.0 and met and s.memory is Memory.LOCAL:
            out[s] = max(out[s], min(1.0, max(met)))
    return out


def _flight(stages: Sequence[Stage]) -> float:
    """Bytes of loads that a thread has under way together, of those that stand first."""
    total = 0.0
    for s in stages:
        for o in reads(s):
            if _own_threads(s) > 1 or len(s.loops) == 1:
                ahead = trips(s) / outer_trips(s) * min(outer_trips(s), OVERLAPPED_TRIPS)
                total += ahead * o.dtype.nbytes
    return total


def _loads(stages: Sequence[Stage]) -> float:
    """How often a thread waits for loads: once for the unrolled ones, and in loops as often as the
    compiler's overlap leaves."""
    waits = [
        outer_trips(s) / min(outer_trips(s), OVERLAPPED_TRIPS)
        for s in stages
        if reads(s) and not _is_ring(s)
    ]
    return max(waits, default=0.0)


# --- a thread -----------------------------------------------------------------------------------


def _through_shared(flow: Dataflow, s: Stage) -> float:
    """Bytes of a block that a stage writes to, or reads from, shared memory."""
    nbytes = sum(
        a.elements * a.tensor.dtype.nbytes
        for a in _accesses_of(flow, s)
        if a.tensor.memory is Memory.SHARED
    )
    return nbytes * _own_threads(s)


def _instructions(
    flow: Dataflow, stages: Sequence[Stage], asked: Mapping[Stage, Sequence[Request]]
) -> tuple[float, float]:
    """Instructions of a thread that compute elements, and those that bring and store them."""
    forms = fast_forms(flow.stages, consumers_of(flow))
    shares = _shares_of_warps(flow, asked)
    masked = {s: max(r.visited for r in own) for s, own in asked.items() if _is_masked(own)}
    left = computed_shares(flow, masked)
    product = next((s for s in flow.stages if s.is_mma and not s.warps), None)
    settled = {} if product is None else settled_shares(flow, product)
    computing = addressing = 0.0
    for s in stages:
        own = asked.get(s, ())
        addresses = sum(r.instructions for r in own)
        share = shares[s] * left.get(s, 1.0) * settled.get(s, 1.0)
        computing += share * trips(s) * element_instructions(s, forms.get(s))
        addressing += shares[s] * (_accesses(flow, s) + addresses) + sum(r.conditions for r in own)
    return computing, addressing


def _is_masked(own: Sequence[Request]) -> bool:
    """Whether masks by position decide all that a stage reads."""
    return bool(own) and all(r.is_masked for r in own)


def _accesses(flow: Dataflow, s: Stage) -> float:
    """Instructions of the accesses to memory of a stage."""
    return sum(CODE.access * a.count for a in _accesses_of(flow, s))


@dataclass(frozen=True, slots=True)
class _Access:
    """What a thread accesses of a tensor in memory for a stage: how many elements, and how many of
    them at a time."""

    tensor: Stage
    elements: int
    width: int

    @property
    def count(self) -> float:
        return self.elements / self.width


def _accesses_of(flow: Dataflow, s: Stage) -> list[_Access]:
    """The tensors in memory that a stage accesses: an operand for each element that is computed,
    and what the stage stores; a reduction stores once what it has reduced."""
    read = [_access(o.stored, trips(s), lanes(s)) for o in s.operands]
    kept = [x for x in s.loops if not flow.graph.depends(x.axis, s.frame.reduced)]
    wide = lanes(s) if kept[-1:] == [*s.loops[-1:]] else 1
    own = _access(s, trips_of(filter(is_own, kept)), wide)
    return [a for a in (*read, own) if a.tensor.memory is not Memory.LOCAL]


def _access(t: Stage, elements: int, wide: int) -> _Access:
    return _Access(t, elements, max(1, min(wide, MAX_VECTOR_NBYTES // t.dtype.nbytes)))


def _narrow(flow: Dataflow, s: Stage) -> float:
    """Accesses of the warps of a block to memory with less than 16 bytes a lane."""
    own = _accesses_of(flow, s)
    narrow = [a for a in own if a.width * a.tensor.dtype.nbytes < MAX_VECTOR_NBYTES]
    return sum(a.count for a in narrow) * warps(_own_threads(s))


def element_instructions(s: Stage, form: str | None) -> float:
    """Instructions to compute one element, by a faster form of its function if there is one."""
    match s.op:
        case Pointwise(fn="cast") if _is_free(s.operands[0].dtype, s.dtype):
            return 0.0
        case Pointwise(fn="floordiv" | "rem") if _is_by_literal(s):
            return CODE.literal_division[s.dtype.nbytes]
        case Pointwise(fn=fn):
            exact, approximate = INSTRUCTIONS.get(fn, (1.0, 1.0))
            words = -(-s.dtype.compute.nbytes // 4)
            if form is None:
                return WIDE_INSTRUCTIONS.get(fn, exact * words) if words == 2 else exact * words
            return INSTRUCTIONS[form][0] if form in INSTRUCTIONS else approximate
        case Reduce() | Scan():
            return 1.0
        case Sort():
            steps = estimate(s.shape[s.op.axis]).bit_length()
            return steps * (steps + 1) / 2 * -(-s.dtype.nbytes // 4)
        case Parts() if s.op.partition.is_even:
            return 0.0
        case IndexMap() if s.is_held_by_thread:
            return 0.0
        case Concat() | Resize() | Parts() | IndexMap():
            return CODE.moved
        case _:
            return 0.0


def _is_by_literal(s: Stage) -> bool:
    """Whether integers are divided by a number that stands in the text of the kernel."""
    divisor = s.operands[1]
    while isinstance(divisor.op, ViewBase):
        divisor = divisor.operands[0]
    return isinstance(divisor.op, Constant) and s.dtype.is_integer


def _is_free(source: DType, to: DType) -> bool:
    """Whether a cast changes nothing in a register."""
    if source.is_integer and to.is_integer and source.nbytes == to.nbytes >= WORD_NBYTES:
        return True  # only what reads it tells a sign
    return source.compute is to.compute and to.nbytes >= source.compute.nbytes == to.nbytes
