"""What a launch that copies and fills does, counted as the work of other kernels is: the sectors of
a few warps (`schedule/heuristics/requests.py`), and the ends of runs that others write on.

    rows of 40 and 64 bytes side by side, each written from its start to its end:
        0        32       64       96       128
        |aaaaaaaa|aabbbbbb|bbbbbbbb|bb......|        what has some of both is written, read again
                                                     when the rest comes, merged and written again
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fusewright.core.expr import Expr, Var, constant_value, variables
from fusewright.core.instructions import CODE
from fusewright.core.sampling import Points, Sampler
from fusewright.core.substitution import estimate
from fusewright.host.moves import Move, MoveDim, MoveGrid, MoveLoop, Moves, grid_of
from fusewright.schedule.heuristics.requests import SAMPLES, distinct, spread
from fusewright.schedule.heuristics.work import MovedArray, Work
from fusewright.target import LINE_NBYTES, MAX_VECTOR_NBYTES, SECTOR_NBYTES, WARP_SIZE

REGISTERS = 32
"""Of a thread: vectors under way, their addresses, and the place in the grid."""
PAIR_NBYTES = 2 * SECTOR_NBYTES


@dataclass(frozen=True, slots=True)
class _PartSide:
    """One side of a part: the array, the accesses of its warps, and the lines they look up."""

    array: MovedArray
    warps: int
    lines: float


def move_work(moves: Moves, grid: MoveGrid | None = None) -> Work:
    """The work of the launch of some moves, in the grid that they get or another one."""
    grid = grid or grid_of(moves)
    blocks = max(1, estimate(grid.blocks))
    threads = blocks * grid.threads
    visits = list(_visits(moves, grid))
    parts = [
        (m, x, _sides(m, x, seen))
        for m, x, seen in zip(moves.moves, grid.loops, visits, strict=True)
    ]
    narrow = instructions = 0.0
    for m, x, own in parts:
        is_narrow = x.width * m.target.root.dtype.nbytes < MAX_VECTOR_NBYTES
        narrow += sum(s.warps for s in own) if is_narrow else 0
        each = len(own) * CODE.access + sum(map(_division, x.dims[1:]))
        instructions += each * own[0].warps * WARP_SIZE / threads
    sides = [s for _, _, own in parts for s in own]
    read = sum(s.array.nbytes for s in sides if not s.array.is_written)
    return Work(
        blocks,
        grid.threads,
        1,
        0,
        tuple(s.array for s in sides),
        lines=sum(s.lines for s in sides),
        narrow=narrow,
        shared_nbytes=0,
        through_shared=0.0,
        exchanges=0.0,
        loads=1.0,
        registers=REGISTERS,
        instructions=CODE.start + instructions,
        flight_nbytes=read / threads,
        addressing=instructions,
    )


def _division(d: MoveDim) -> float:
    n = constant_value(d.extent)
    if n is None:
        return CODE.run_time_division
    return 1.0 if n & (n - 1) == 0 else CODE.index_division


def _sides(m: Move, x: MoveLoop, visits: float) -> tuple[_PartSide, ...]:
    """The target of a part, of whose pairs of sectors each is moved so often, and its source."""
    itemsize, count = m.target.root.dtype.nbytes, max(1, estimate(x.vectors))
    warps = -(-count // WARP_SIZE)
    warp = spread(np.arange(SAMPLES).reshape(-1, 1, 1), 1, warps)
    number = warp * WARP_SIZE + np.arange(WARP_SIZE).reshape(1, -1, 1)
    out: list[_PartSide] = []
    sites = (m.target, m.source) if m.is_copy else (m.target,)
    for site, place in zip(sites, _places(x, np.minimum(number, count - 1)), strict=True):
        assert not isinstance(site, bool | int | float)
        first = estimate(site.offset) + place
        address = (first + np.arange(x.width)) * itemsize
        active = np.broadcast_to(number < count, address.shape)
        units = SECTOR_NBYTES, PAIR_NBYTES, LINE_NBYTES
        sectors, pairs, lines = (warps * n for n in distinct(address, active, *units))
        nbytes, asked = count * x.width * itemsize, sectors * SECTOR_NBYTES
        is_written = site is m.target
        beside = 0.0 if is_written else max(0.0, pairs * PAIR_NBYTES - asked)
        array = MovedArray(
            site.root.name,
            nbytes,
            (asked,),
            is_written,
            beside=beside,
            paired=asked + beside,
            unfilled=max(0.0, asked - nbytes) if is_written else 0.0,
            returns=(1.0, visits) if is_written else (0.0, 1.0),
        )
        out.append(_PartSide(array, warps, lines))
    return tuple(out)


def _places(x: MoveLoop, number: Points) -> Iterator[Points]:
    """Where the vectors of these numbers begin on each side, in elements from the site's first."""
    i = Var("i", 0, None)
    for e in x.places(i):
        sizes = {v: np.array(estimate(v)) for v in variables(e)}
        yield np.broadcast_to(Sampler({**sizes, i: number}).value(e), number.shape)


# --- runs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    """What a part writes without a gap: elements, where the sampled ones begin, the step of the
    part's rows, and from one run to the next of a row, where that is a few elements."""

    begins: Points
    length: int
    step: Expr
    apart: int


def _visits(moves: Moves, grid: MoveGrid) -> Iterator[float]:
    """How often the pairs of sectors of each part's target are moved, over its bytes: those that a
    run fills in part are read and merged, as the rest comes from a block that runs at another time.
    In step runs go on where the next part begins; what lies in one pair, a step apart, is one."""
    runs = [_run(m, x) for m, x in zip(moves.moves, grid.loops, strict=True)]
    for m, own in zip(moves.moves, runs, strict=True):
        begins, ends = own.begins, own.begins + own.length
        if grid.is_in_step:
            begins, ends = _joined(begins, ends, runs)
        itemsize = m.target.root.dtype.nbytes
        times = _moved(begins, ends, itemsize)
        is_step = 0 < own.apart * itemsize < PAIR_NBYTES
        yield min(times, 2.0 * own.apart) if is_step else times


def _joined(begins: Points, ends: Points, runs: list[_Run]) -> tuple[Points, Points]:
    """A run of a row with those of other parts in front of it and behind it, and where it has all
    of a row, with the rows around it."""
    row = max(1, estimate(runs[0].step))  # a row alone has no step
    for _ in runs:
        for r in runs:
            if (r.begins == ends).all():
                ends = ends + r.length
            if (r.begins + r.length == begins).all():
                begins = r.begins
    is_all = (ends - begins >= row).all()
    return (begins * 0, ends * 0 + PAIR_NBYTES * row) if is_all else (begins, ends)


def _run(m: Move, x: MoveLoop) -> _Run:
    last = x.dims[-1]
    is_dense = constant_value(last.steps[0]) == x.width
    length = estimate(last.extent) * x.width if is_dense else x.width
    count = max(1, estimate(x.vectors) // (estimate(last.extent) if is_dense else 1))
    number = spread(np.arange(SAMPLES), 1, count) * (length // x.width)
    first = next(_places(x, number))
    apart = 0 if is_dense else estimate(last.steps[0])
    return _Run(estimate(m.target.offset) + first, length, x.dims[0].steps[0], apart)


def _moved(begins: Points, ends: Points, itemsize: int) -> float:
    """Bytes of pairs of sectors that runs move, over their own."""
    low, high = begins * itemsize, ends * itemsize
    touched = (high - 1) // PAIR_NBYTES - low // PAIR_NBYTES + 1
    first, last = low // SECTOR_NBYTES, (high - 1) // SECTOR_NBYTES
    at_start, at_end = low % SECTOR_NBYTES != 0, high % SECTOR_NBYTES != 0
    merged = np.maximum(at_start, at_end) + ((first != last) & at_start & at_end)
    times: Points = (touched + merged) * PAIR_NBYTES / (high - low)
    return float(times.mean())
