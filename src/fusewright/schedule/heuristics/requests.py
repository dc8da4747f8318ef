"""What the accesses of a stage ask memory for: sectors and cache lines of sampled warps, and the
instructions that their addresses and conditions take.

A few warps are drawn from all over the grid, in a fixed order, and the addresses of their lanes
are computed. So strides, shared elements, rows that end inside of a warp, pieces of a move and
permuted digits need no rule each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fusewright.core.conditions import TRUE, Cond
from fusewright.core.expr import (
    Expr,
    FloorDiv,
    Mod,
    Sum,
    Var,
    constant_value,
    variables,
)
from fusewright.core.sampling import Sampler
from fusewright.core.substitution import estimate
from fusewright.core.symbolic import Symbolic
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.heuristics.address_work import Parts, cut_instructions, instructions_of
from fusewright.schedule.heuristics.common import GlobalAccess, global_accesses, numel
from fusewright.schedule.heuristics.masks import looked_at
from fusewright.schedule.heuristics.picks import Picks, lie_apart, picked_instructions, picks_of
from fusewright.schedule.parallel import Loop, Parallel, trips_of
from fusewright.target import LINE_NBYTES, MAX_VECTOR_NBYTES, SECTOR_NBYTES, WARP_SIZE

SAMPLES = 64
"""Warps that are looked at."""
GOLDEN = 0.6180339887498949
"""Multiples of it modulo 1 fill the interval evenly, however many there are."""

STEADY = 0.9
"""Of the steps from one sampled block to the next, those of one speed where blocks walk through an
array from its start to its end. Where they go along an outer axis first, up to 0.76 have one."""

HALF_FILLED = {False: 2.8, True: 1.8}
"""What a byte of a line takes that vectors of 16 bytes fill by halves of sectors, over one that the
second-level cache gives, by whether a sector is alone in its pair: vectors every 32, 48, 64 and 128
bytes took 2.4, 3.7, 3.0 and 6.4 times as long as side by side, 4.6 TB/s, where the cache gives
10.6: 2.8, 2.8, 1.7 and 1.8 (one H200, 2026-11-26, `fw.tune` of stores). Columns of 4-byte integers
whose sums have 8 bytes, four a thread, are scanned in 124 us, two a thread in 81, for 74 of a copy;
scans of four neighbours, every 64 bytes, take 37 us for 70 MB (one H100)."""

MOSTLY_USED = 1.5
"""Bytes of pairs of sectors over those that a warp needs of them, up to which it has nearly all."""

MOST_TRIPS = 16
"""Trips of a thread that are looked at one by one."""

Points = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Runs:
    """What sampled blocks read of an array: for each of them and each trip of a thread where it
    begins, and how many bytes it takes, in the order of the `loops`."""

    begins: Points
    nbytes: float
    loops: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """The accesses of a stage to one array. Of a launch: `nbytes` in whole sectors that warps ask
    for, `beside` those in sectors that the second-level cache reads along with them, as it reads
    them by twos, `lines` that the first-level cache looks up, `unfilled` bytes of sectors that a
    write asks for and leaves as they were. Of a thread: instructions for addresses, and those for
    `conditions`, which it needs to know them. `visited`: the share of the accesses of warps of
    which some lane takes place.
    `visits`: where in the array the sampled warps are, in bytes, and when: which share of the
    blocks come before. `borders`: bytes of a launch that lie in the same pairs of sectors as what
    is read, beside the strips of rows that a block reads: those of other blocks, which read them
    again. `places`: where in the array sampled lanes read, in bytes. `picks`: what data picks of
    the array. `returns`: where warps ask for pairs of sectors of which others need the rest, the
    share of the launch's blocks that lies between these, and how many they are. `runs`: of what
    several stages read, what a block reads each time."""

    tensor: Stage
    nbytes: float
    beside: float
    lines: float
    unfilled: float
    instructions: float
    conditions: float
    visited: float
    is_masked: bool
    visits: tuple[Points, Points]
    borders: float
    places: Points
    picks: Picks | None
    returns: tuple[float, float]
    runs: Runs | None


def requests(flow: Dataflow, stages: Sequence[Stage], blocks: int) -> dict[Stage, list[Request]]:
    """What each stage asks memory for, in a launch of so many blocks. What addresses have in common
    is computed for the first of them."""
    parts: Parts = {}
    out: dict[Stage, list[Request]] = {}
    accesses = {s: global_accesses(flow, None, Var("no lane"), [s], by_data=True) for s in stages}
    reads = Counter(a.tensor for own in accesses.values() for a in own if a.tensor is not a.stage)
    for s, found in accesses.items():
        met = looked_at(flow, s, found[0].variables) if found else TRUE
        out[s] = [
            _request(s, a, met, blocks, parts, is_read_again=reads[a.tensor] > 1) for a in found
        ]
    return out


def _request(
    s: Stage, a: GlobalAccess, met: Cond, blocks: int, parts: Parts, *, is_read_again: bool
) -> Request:
    """Of an access of whose elements those that meet a condition are looked at."""
    moving = {*variables(a.address), *(v for _, place in a.data for v in variables(place))}
    loops = list(zip(s.loops, a.variables, strict=True))
    inner = _inner(loops, moving)
    around = loops[: len(loops) - (inner is not None)]
    trips = trips_of(x for x, v in around if x.parallel.is_serial and v in moving)
    threads = trips_of(x for x, _ in loops if x.parallel.is_thread)
    warps = -(-threads // WARP_SIZE)
    points = _points(a, loops, inner)
    address, active = _sampled(a, met, loops, inner, points)
    is_wide = inner is not None and inner.parallel is Parallel.VECTORIZE
    if a.data and lie_apart(address, a.tensor.dtype.nbytes):
        is_wide = False
    single = list(_single(a, address, active, is_wide=is_wide))
    alone = [tuple(distinct(x, on, *UNITS)) for x, on in single]
    sectors, pairs, lines = _counted(a, address, active, alone)
    times = blocks * trips * warps
    serial = _serial(loops, is_wide=is_wide)
    conditions = instructions_of(a.conditions, serial, parts)
    places = (a.address, *(place for _, place in a.data))
    return Request(
        a.tensor,
        times * sectors * SECTOR_NBYTES,
        0.0 if a.tensor is a.stage else times * max(0.0, 2 * pairs - sectors) * SECTOR_NBYTES,
        times * lines,
        times * _unfilled(a, single, alone),
        instructions_of(places, serial, parts)
        + picked_instructions(a, serial, parts)
        + cut_instructions(a, loops, parts),
        conditions,
        float(active.any(axis=(1, 2) if is_wide else 1).mean()),
        met != TRUE,
        (address[:, 0, 0], _times_of_blocks(loops, points)),
        times * _borders(a, loops, inner, (address, active), pairs),
        address[:, :, 0][active[:, :, 0]],
        picks_of(a),
        _returns(a, loops, points, (address, active), pairs),
        _runs(a, loops, inner, points, warps * sectors * SECTOR_NBYTES) if is_read_again else None,
    )


def _serial(loops: Sequence[tuple[Loop, Expr]], *, is_wide: bool) -> dict[Var, int]:
    """The trips of the loops of a thread by their variable, lanes of a vector apart."""
    kinds = (Parallel.VECTORIZE,) if is_wide else ()
    return {
        v: estimate(x.axis.extent)
        for x, v in loops
        if isinstance(v, Var)
        and not (x.parallel.is_thread or x.parallel.is_block)
        and x.parallel not in kinds
    }


def _inner(loops: Sequence[tuple[Loop, Expr]], moving: Set[Expr]) -> Loop | None:
    """The loop whose elements a thread accesses together, one after the other at most; none where
    the address stays the same, as for what a reduction along it writes."""
    last, variable = loops[-1] if loops else (None, None)
    kinds = (Parallel.VECTORIZE, Parallel.UNROLL)
    return last if last is not None and last.parallel in kinds and variable in moving else None


# --- sectors ------------------------------------------------------------------------------------


Sampled: TypeAlias = tuple[dict[Var, Points], Points]
"""The values of loops and sizes for the sampled warps, by lane and inner element; and which of the
threads exist."""


def _points(
    a: GlobalAccess,
    loops: Sequence[tuple[Loop, Expr]],
    inner: Loop | None,
    lanes: range = range(WARP_SIZE),
) -> Sampled:
    """Where the sampled warps are, or threads at some places behind their first."""
    samples = np.arange(SAMPLES).reshape(-1, 1, 1)
    places = np.array(lanes).reshape(1, -1, 1)
    count = trips_of(x for x, _ in loops if x.parallel.is_thread)
    first = spread(samples, 1, -(-count // WARP_SIZE)) * WARP_SIZE
    thread = first + places
    exists = thread < count
    points: dict[Var, Points] = {}
    for kind in (Parallel.TIDX, Parallel.TIDY, Parallel.TIDZ):
        for v, extent in ((v, estimate(x.axis.extent)) for x, v in loops if x.parallel is kind):
            if isinstance(v, Var):
                points[v] = thread % extent
            thread = thread // extent
    for k, (x, v) in enumerate(loops):
        if isinstance(v, Var) and v not in points:
            extent = estimate(x.axis.extent)
            is_inner = x is inner
            points[v] = np.arange(extent) if is_inner else spread(samples, k + 2, extent)
    for c in (a.address, *(place for _, place in a.data)):
        for v in variables(c):
            points.setdefault(v, np.array(estimate(v)))
    for v, place in a.data:
        points[v] = _scattered(Sampler(points).value(place), v)
    return points, exists


def _sampled(
    a: GlobalAccess,
    met: Cond,
    loops: Sequence[tuple[Loop, Expr]],
    inner: Loop | None,
    at: Sampled,
) -> tuple[Points, Points]:
    """Addresses in bytes, and where the elements exist and are looked at: by warp, lane, and inner
    element."""
    points, active = at
    if a.tensor is a.stage:  # of the threads that have the same result one writes it
        moving = set(variables(a.address))
        for x, v in loops:
            if x.parallel.is_thread and isinstance(v, Var) and v not in moving:
                active = active & (points[v] == 0)
    sampler = Sampler(points)
    shape = (SAMPLES, WARP_SIZE, 1 if inner is None else estimate(inner.axis.extent))
    for c in (*a.conditions, met):
        try:
            active = active & sampler.holds(c)
        except KeyError:
            continue  # a size that only conditions mention
    address = sampler.value(a.address) * a.tensor.dtype.nbytes
    return np.broadcast_to(address, shape), np.broadcast_to(active, shape)


def _times_of_blocks(loops: Sequence[tuple[Loop, Expr]], at: Sampled) -> Points:
    """Which share of the blocks start before those of the sampled warps."""
    share, total = np.zeros(SAMPLES), 1
    for kind in (Parallel.BIDZ, Parallel.BIDY, Parallel.BIDX):
        for x, v in loops:
            if x.parallel is kind:
                extent = estimate(x.axis.extent)
                own = at[0][v].reshape(-1) if isinstance(v, Var) else np.zeros(1)
                share, total = share * extent + own, total * extent
    return share / total


def share_between(a: Request, b: Request) -> float:
    """Which share of a launch's blocks lie between two accesses to the same bytes of one array, by
    different stages; negative where `b` comes to them last. 0 where the blocks do not walk through
    the array from its start to its end, or the accesses are no fixed distance apart: nothing is
    known then."""
    address, when = a.visits
    apart = b.visits[0] - address
    distance = float(np.median(apart))
    order = np.argsort(when, kind="stable")
    steps, times = np.diff(address[order]), np.diff(when[order])
    speed = steps[times > 0] / times[times > 0]
    if not len(speed) or np.mean(np.abs(apart - distance) <= LINE_NBYTES) < 0.5:
        return 0.0
    usual = float(np.median(speed))
    is_walk = usual > 0 and np.mean(np.abs(speed - usual) <= usual / 4) >= STEADY
    return max(-1.0, min(1.0, distance / usual)) if is_walk else 0.0


def read_together(t: Stage, own: Sequence[Request]) -> float:
    """Bytes of an array that several accesses ask for together: those of the box around the places
    of all of them, at most what they ask for one by one; 0 of a single access."""
    if len(own) < 2:
        return 0.0
    rest = np.concatenate([r.places for r in own])
    strides = sorted(zip(strides_of(t), t.shape, strict=True), key=lambda x: -estimate(x[0]))
    share = 1.0
    for stride, extent in ((estimate(s) * t.dtype.nbytes, estimate(n)) for s, n in strides):
        if stride > 0 and extent > 1 and len(rest):
            seen = np.unique(rest // stride)
            beyond = np.diff(seen).max(initial=1)  # samples do not see the first and the last
            span = float(seen[-1] - seen[0] + beyond)
            share, rest = share * min(1.0, span / extent), rest % stride
    return min(sum(r.nbytes for r in own), share * numel(t.shape) * t.dtype.nbytes)


def spread(samples: Points, number: int, extent: int) -> Points:
    """Places in a range, another order for each number."""
    share = (samples + 0.5) * GOLDEN * (2 * number + 1)
    return ((share % 1.0) * extent).astype(np.int64)


def _scattered(place: Points, v: Var) -> Points:
    """What data at these places says, if it says anything in its range with equal chance."""
    extent = 1 if v.upper is None else estimate(v.upper) + 1
    mixed = (place.astype(np.int64) * 0x9E3779B1) % (1 << 32)
    return (mixed * extent) >> 32


def _single(
    a: GlobalAccess, address: Points, active: Points, *, is_wide: bool
) -> Iterator[tuple[Points, Points]]:
    """The accesses of a warp one after the other: addresses, and which elements exist."""
    own = address.shape[2]
    per = max(1, MAX_VECTOR_NBYTES // a.tensor.dtype.nbytes) if is_wide else 1
    for k in range(0, own, per):
        x, on = address[:, :, k : k + per], active[:, :, k : k + per]
        if a.tensor is a.stage:
            yield from _by_halves(x, on, a.tensor.dtype.nbytes)
        else:
            yield x, on


def _by_halves(address: Points, active: Points, itemsize: int) -> Iterator[tuple[Points, Points]]:
    """The stores of vectors. Of those that are not whole, halves of many lanes are stored,
    and of those that are not whole either each element (`kir/choose_lanes.py`)."""
    whole = active.all(axis=2, keepdims=True)
    if whole.any():
        yield address, active & whole
    rest, width = active & ~whole, address.shape[2]
    if rest.any():
        part = width // 2 if width > 4 and width * itemsize == MAX_VECTOR_NBYTES else 1
        for k in range(0, width, part):
            yield from _by_halves(address[:, :, k : k + part], rest[:, :, k : k + part], itemsize)


def _counted(
    a: GlobalAccess, address: Points, active: Points, alone: Sequence[tuple[float, ...]]
) -> tuple[float, float, float]:
    """Sectors, pairs of sectors and lines of a warp in the mean, of accesses that have so many
    `alone`. A read finds in the first-level cache what the thread's accesses before it have
    brought; writes go on one by one."""
    sectors, pairs, lines = (sum(found[k] for found in alone) for k in range(len(UNITS)))
    if a.tensor is not a.stage and len(alone) > 1:
        sectors, pairs = distinct(address, active, *UNITS[:2])
    return sectors, pairs, lines


def _borders(
    a: GlobalAccess,
    loops: Sequence[tuple[Loop, Expr]],
    inner: Loop | None,
    sampled: tuple[Points, Points],
    pairs: float,
) -> float:
    """Bytes that a warp of a block reads beside its strips of rows, in the same pairs of sectors,
    in the mean; none where the next threads of the block, or later trips of these, read them, nor
    beside what fills a line of each thread's, or less than a third of its pairs."""
    if a.tensor is a.stage or a.data:
        return 0.0
    address, active = sampled
    own = a.tensor.dtype.nbytes * float(active.sum()) / len(active)
    beside = 2 * SECTOR_NBYTES * pairs - own
    if not own / 8 < beside < 2 * own or _goes_on(a, loops, inner):
        return 0.0
    points, exists = _points(a, loops, inner, range(WARP_SIZE, WARP_SIZE + 1))
    following = Sampler(points).value(a.address) * a.tensor.dtype.nbytes
    following = np.broadcast_to(following, (SAMPLES, 1, address.shape[2]))
    apart = np.abs(following[:, :, 0] - address[:, :, 0]).min(axis=1)  # to the nearest lane
    meets = (apart <= LINE_NBYTES) & np.broadcast_to(exists, (SAMPLES, 1, 1))[:, 0, 0]
    return beside * float(1 - meets.mean())


def _returns(
    a: GlobalAccess,
    loops: Sequence[tuple[Loop, Expr]],
    at: Sampled,
    sampled: tuple[Points, Points],
    pairs: float,
) -> tuple[float, float]:
    """The share of the blocks between those that access the same pair of sectors, as neighbours
    along a digit of the blocks' number are less than a pair apart, and how many these are; of
    several digits the slowest. Nothing where a warp has nearly all of its pairs."""
    (points, _), (address, active) = at, sampled
    own = a.tensor.dtype.nbytes * float(active.sum()) / len(active)
    if a.data or 2 * SECTOR_NBYTES * pairs < MOSTLY_USED * own:
        return 0.0, 1.0
    found = (0.0, 1.0)
    for x, v in loops:
        if x.parallel is not Parallel.BIDX or not isinstance(v, Var):
            continue
        extent = estimate(x.axis.extent)
        for step in sorted(_digit_steps(a.address, v)):
            if 1 <= step < extent and step / extent > found[0]:
                visits = _visits(a, {**points}, v, extent, step, address)
                found = (step / extent, visits) if visits > 1 else found
    return found


def _visits(
    a: GlobalAccess, points: dict[Var, Points], v: Var, extent: int, step: float, address: Points
) -> float:
    """How many blocks, so many apart, access the same pair of sectors, in the mean."""
    visits, pair = 1.0, 2 * SECTOR_NBYTES
    for k in range(1, pair // a.tensor.dtype.nbytes):
        moved = points[v] + k * step
        there = Sampler({**points, v: moved}).value(a.address) * a.tensor.dtype.nbytes
        meets = (np.abs(there - address) < pair) & (moved < extent)
        if not meets.any():
            break
        visits += 2 * float(meets.mean())
    return visits


def _digit_steps(e: Expr, v: Var) -> set[float]:
    """By how much a variable grows from one step of a digit that an expression cuts out of it to
    the next."""
    found: set[float] = set()
    todo: list[Symbolic] = [e]
    while todo:
        part = todo.pop()
        if isinstance(part, FloorDiv | Mod):
            size = constant_value(part.denominator)
            scale = _coefficient(part.numerator, v)
            if size and scale:
                found.add(size / scale)
        todo += part.children if isinstance(part, Expr) else ()
    return found


def _coefficient(e: Expr, v: Var) -> int:
    """What a variable is multiplied with in a sum; 0 where it is no term of its own."""
    if e is v:
        return 1
    terms = e.terms if isinstance(e, Sum) else ()
    return next((t.coefficient for t in terms if t.atoms == (v,)), 0)


def _runs(
    a: GlobalAccess,
    loops: Sequence[tuple[Loop, Expr]],
    inner: Loop | None,
    at: Sampled,
    nbytes: float,
) -> Runs:
    """What sampled blocks read, for each trip of the loops that are written out."""
    points = dict(at[0])
    axes = tuple(x.axis for x, _ in loops)
    trips: list[dict[Var, Points]] = [{}]
    for x, v in loops:
        if x.parallel is Parallel.UNROLL and x is not inner and isinstance(v, Var):
            trips = [{**t, v: np.array(k)} for t in trips for k in range(estimate(x.axis.extent))]
        if len(trips) > MOST_TRIPS:
            trips = [{}]
            break
    nbytes_each = a.tensor.dtype.nbytes
    begins = [_first(Sampler({**points, **t}).value(a.address), nbytes_each) for t in trips]
    return Runs(np.stack(begins, axis=1), nbytes, axes)


def _first(places: Points, nbytes: int) -> Points:
    """The bytes at which the first lanes of sampled warps begin."""
    shape = np.broadcast_shapes(places.shape, (SAMPLES, 1, 1))
    return np.broadcast_to(places, shape)[:, 0, 0] * nbytes


def found_near(requests: Sequence[Request]) -> tuple[float, ...]:
    """Of what each of several accesses reads of one array, the share that an earlier one of the
    same block has brought; all where blocks do not read by the same loops."""
    out: list[float] = []
    for k, r in enumerate(requests):
        own = r.runs
        before = [x.runs for x in requests[:k]]
        if own is None or any(x is None or x.loops != own.loops for x in before):
            out.append(1.0 if k else 0.0)
            continue
        known = [x.begins for x in before if x is not None]
        if not known:
            out.append(0.0)
            continue
        others = np.concatenate(known, axis=1)
        apart = np.abs(own.begins[:, :, None] - others[:, None, :]).min(axis=2)
        out.append(float(np.clip(1 - apart / max(own.nbytes, 1.0), 0, 1).mean()))
    return tuple(out)


def _goes_on(a: GlobalAccess, loops: Sequence[tuple[Loop, Expr]], inner: Loop | None) -> bool:
    """Whether a thread's own trips walk along a row, as most of the sampled ones show."""
    points, _ = _points(a, loops, inner, range(1))
    here = Sampler(points).value(a.address)
    for x, v in loops:
        if isinstance(v, Var) and x.parallel.is_serial and x is not inner:
            there = Sampler({**points, v: points[v] + 1}).value(a.address)
            step = float(np.median(np.abs(there - here))) * a.tensor.dtype.nbytes
            if step <= WARP_SIZE * MAX_VECTOR_NBYTES:
                return True
    return False


def _unfilled(
    a: GlobalAccess,
    single: Sequence[tuple[Points, Points]],
    alone: Sequence[tuple[float, ...]],
) -> float:
    """Bytes of the sectors of a warp's writes that it does not write, in the mean; of a write that
    fills no more than half of its sectors those of the whole lines, which take as long as if they
    were written: rows of 36 bytes, four a thread, 3.1 times what their sectors would (one H100); of
    whole vectors `HALF_FILLED` times as long."""
    if a.tensor is not a.stage:
        return 0.0
    total = 0.0
    for (address, active), (sectors, pairs, in_lines) in zip(single, alone, strict=True):
        asked, lines = sectors * SECTOR_NBYTES, in_lines * LINE_NBYTES
        own = a.tensor.dtype.nbytes * float(active.sum()) / len(active)
        if 2 * own <= asked:
            is_alone = pairs == sectors
            is_vector = a.tensor.dtype.nbytes * address.shape[-1] == MAX_VECTOR_NBYTES
            total += (HALF_FILLED[is_alone] if is_vector else 1.0) * lines - asked
        else:
            total += max(0.0, asked - own)
    return total


UNITS = SECTOR_NBYTES, 2 * SECTOR_NBYTES, LINE_NBYTES


def distinct(address: Points, active: Points, *units: int) -> Iterator[float]:
    """How many units of memory of each size a warp's lanes are in, in the mean over warps."""
    places = np.where(active, address, -1).reshape(address.shape[0], -1)
    places = np.sort(places, axis=1)
    for unit in units:
        at = places // unit
        found = (at[:, 1:] != at[:, :-1]).sum() + (at[:, 0] >= 0).sum()
        yield float(found) / len(at)
