"""Which threads touch which bytes in which iteration.

Memory is cut into cells, where any access begins or ends. A footprint lists, for one
access, every (iteration, cell) with the smallest and the largest thread that touches it: two
footprints conflict in a cell across threads unless all four are one thread, across warps unless
all four lie in one warp.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

import numpy as np

from fusewright.core.expr import constant_value
from fusewright.core.memo import Memo
from fusewright.errors import InternalError
from fusewright.kir.analysis.accesses import (
    MAX_ENTRIES,
    Access,
    Ended,
    Enumerated,
    accesses,
    shared_allocs,
)
from fusewright.kir.analysis.lanes import Array, Unknown, different
from fusewright.kir.analysis.sites import KEPT
from fusewright.kir.clusters import exported_buffers
from fusewright.kir.ir import Buffer, Kernel, Memory

_MAX_KEY = 1 << 62
_MAX_DENSE = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class Footprint:
    """Rows (iteration, cell, first thread, last thread) of one access, sorted.

    `loops` are positions in `access.site.loops` on which the rows depend, `coords` one array of
    iteration numbers for each. `is_exact` is False where the rows may be too many. `cells` is
    None when the access may touch anything in its space.
    """

    access: Access
    loops: tuple[int, ...]
    coords: tuple[Array, ...]
    cells: Array | None
    first: Array
    last: Array
    unknown: Unknown
    is_exact: bool


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Footprints in one address range: a buffer, or all of packed shared memory.

    `edges` are the bytes at which cells begin, and the last one ends; `cell_nbytes` divides all;
    `origin` is the byte address of each buffer in it.
    """

    name: str
    memory: Memory
    edges: Array
    cell_nbytes: int
    origin: dict[Buffer, int]
    footprints: tuple[Footprint, ...]


@lru_cache(maxsize=KEPT)
def spaces(kernel: Kernel) -> tuple[Space, ...]:
    """All memory that hazards can pass through, with what every access touches in it."""
    return spaces_of(accesses(kernel), common_offsets(kernel))


def common_offsets(kernel: Kernel) -> dict[Buffer, int]:
    """The offsets of packed buffers that may share bytes; one that other blocks write does not."""
    exported = exported_buffers(kernel)
    return {b: offset for b, offset in packed_offsets(kernel).items() if b not in exported}


def packed_offsets(kernel: Kernel) -> dict[Buffer, int]:
    """Byte offsets of the shared buffers that have been packed."""
    return {a.buffer: a.offset for _, a in shared_allocs(kernel) if a.offset is not None}


def spaces_of(found: Sequence[Access], offsets: dict[Buffer, int]) -> tuple[Space, ...]:
    """`spaces`, for given accesses and given byte offsets of shared buffers."""
    return tuple(_space(group, offsets) for group in by_space(found, offsets))


def by_space(found: Sequence[Access], offsets: dict[Buffer, int]) -> list[list[Access]]:
    """Accesses that may touch the same bytes."""
    groups: dict[object, list[Access]] = {}
    for a in found:
        key = Memory.SHARED if a.buffer in offsets else a.buffer
        groups.setdefault(key, []).append(a)
    return list(groups.values())


def cell_nbytes(group: Sequence[Access], offsets: dict[Buffer, int]) -> int:
    """What divides the first byte and the size of every access of a space."""
    cell = math.gcd(*(offsets.get(a.buffer, 0) for a in group), *(a.nbytes for a in group))
    for a in group:
        if a.ranges is None or a.ranges.unknown:
            cell = math.gcd(cell, a.buffer.dtype.nbytes)
        if a.ranges is not None:
            cell = math.gcd(cell, int(np.gcd.reduce(a.ranges.starts)))
    return cell


def _space(group: list[Access], offsets: dict[Buffer, int]) -> Space:
    origin = {a.buffer: offsets.get(a.buffer, 0) for a in group}
    first = group[0].buffer
    name = "shared memory" if first in offsets else first.name
    edges = different(np.concatenate([_edges(a, origin[a.buffer]) for a in group]))
    prints = tuple(footprint(a, origin[a.buffer], edges) for a in group)
    return Space(name, first.memory, edges, cell_nbytes(group, offsets), origin, prints)


def _edges(a: Access, origin: int) -> Array:
    """The bytes at which an access begins and ends."""
    ranges = a.ranges
    if _is_anywhere(a):
        if a.buffer.memory is not Memory.SHARED:
            return np.zeros(0, dtype=np.int64)
        return np.array([origin, origin + shared_nbytes(a.buffer) * a.ncopies])
    assert ranges is not None
    low = ranges.starts + origin
    return np.concatenate((low, low + a.nbytes))


def _is_anywhere(a: Access) -> bool:
    """Whether an access may touch anything in its space, or its buffer in shared memory."""
    is_shared = a.buffer.memory is Memory.SHARED
    return a.ranges is None or bool(a.ranges.unknown and is_shared)


def even_edges(nbytes: int, cell_nbytes: int) -> Array:
    """Cells of one size, as edges."""
    return np.arange(0, nbytes + cell_nbytes, cell_nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """What a footprint lists, whichever statement makes the access."""

    loops: tuple[int, ...]
    coords: tuple[Array, ...]
    cells: Array
    first: Array
    last: Array

    @property
    def arrays(self) -> tuple[Array, ...]:
        return (*self.coords, self.cells, self.first, self.last)


_KEPT_NBYTES = 1 << 25
"""Of rows that are kept: those of some twenty kernels with products, or of one large one."""


def _kept_nbytes(key: Hashable, rows: _Rows | None) -> int:
    assert isinstance(key, tuple)
    parts = cast("tuple[object, ...]", key)
    mine = () if rows is None else rows.arrays
    own = sum(x.nbytes for x in mine) + sum(len(x) for x in parts if isinstance(x, bytes))
    return own + (1 << 10)


_ROWS: Memo[_Rows | None] = Memo(_KEPT_NBYTES, _kept_nbytes)


def footprint(access: Access, origin: int, edges: Array) -> Footprint:
    """What one access touches, in cells that begin at `edges`, counted from `origin` bytes before
    its buffer; an access to shared memory at unknown addresses touches its whole buffer."""
    ranges = access.ranges
    if _is_anywhere(access):
        return _anything(access, origin, edges)
    assert ranges is not None
    issue = access if access.ended is None else access.ended.issue
    rows = _rows_of(issue, ranges, origin, edges)
    if rows is not None and access.ended is not None:
        rows = _at_waits(rows, access, access.ended)
    if rows is None:
        return _anything(access, origin, edges)
    exact = ranges.mask.is_exact
    return Footprint(
        access, rows.loops, rows.coords, rows.cells, rows.first, rows.last, ranges.unknown, exact
    )


def _rows_of(access: Access, ranges: Enumerated, origin: int, edges: Array) -> _Rows | None:
    """The rows of an access that is no completion. Passes look at accesses again that the last
    one left as they were; they are told by the bytes they touch, not by their statement."""
    key = (ranges, len(access.site.loops), access.nbytes, access.nthreads, origin, edges.tobytes())
    return _ROWS.get(key, lambda: _enumerated_rows(access, ranges, origin, edges))


def _enumerated_rows(access: Access, ranges: Enumerated, origin: int, edges: Array) -> _Rows | None:
    depth, nthreads = len(access.site.loops), access.nthreads
    shape = np.broadcast_shapes(ranges.lo.shape, np.shape(ranges.mask.may), (1,) * (depth + 1))
    if shape[-1] == 1:
        shape = (*shape[:-1], nthreads)
    loops = tuple(i for i in range(depth) if shape[i] > 1)
    nlanes = shape[-1]
    where = np.broadcast_to(ranges.mask.may, shape).reshape(-1)
    entries = np.arange(where.size) if where.all() else np.flatnonzero(where)
    places = ranges.starts
    at = np.broadcast_to(np.searchsorted(places, ranges.lo), shape).reshape(-1)[entries]
    code, thread = entries // nlanes, entries % nlanes % nthreads
    found = _reduce_rows(code, at, thread, nthreads)
    if found is None:
        return None
    code, which, first, last = found
    start = np.searchsorted(edges, places + origin)
    counts = np.searchsorted(edges, places + origin + access.nbytes) - start
    cells = start[which]
    if int(counts.max(initial=1)) > 1:
        n = counts[which]
        within = np.arange(int(n.sum())) - np.repeat(np.cumsum(n) - n, n)
        cells = np.repeat(cells, n) + within
        code, first, last = (np.repeat(x, n) for x in (code, first, last))
        if int(np.diff(places).min(initial=access.nbytes)) < access.nbytes:
            code, cells, first, last = _merged(code, cells, first, last)
    coords = np.unravel_index(code, [shape[i] for i in loops]) if loops else ()
    return _Rows(loops, tuple(coords), cells, first, last)


def _at_waits(rows: _Rows, access: Access, ended: Ended) -> _Rows | None:
    """The rows of operations by the iterations of the wait that ends them."""
    sizes = ended.issue.trips
    mine, wanted = np.zeros(rows.cells.size, np.int64), np.zeros(len(ended.issued), np.int64)
    for i, values in zip(rows.loops, rows.coords, strict=True):
        mine, wanted = mine * sizes[i] + values, wanted * sizes[i] + ended.issued[:, i]
    start, stop = np.searchsorted(mine, wanted, "left"), np.searchsorted(mine, wanted, "right")
    counts = stop - start
    total = int(counts.sum())
    if total > MAX_ENTRIES:
        return None
    at = np.repeat(start - np.cumsum(counts) + counts, counts) + np.arange(total)
    loops = tuple(i for i, n in enumerate(access.trips) if n > 1)
    sizes = [access.trips[i] for i in loops]
    code = np.zeros(len(ended.waited), np.int64)
    for i in loops:
        code = code * access.trips[i] + ended.waited[:, i]
    code, cells, first, last = np.repeat(code, counts), rows.cells, rows.first, rows.last
    if total:
        code, cells, first, last = _merged(code, cells[at], first[at], last[at])
    else:
        cells, first, last = cells[at], first[at], last[at]
    coords = np.unravel_index(code, sizes) if loops else ()
    return _Rows(loops, tuple(coords), cells, first, last)


def _reduce_rows(
    code: Array, cells: Array, thread: Array, nthreads: int
) -> tuple[Array, Array, Array, Array] | None:
    """Sort by (code, place) and keep the smallest and largest thread of each."""
    if not cells.size:
        return code, cells, thread, thread
    low = int(cells.min())
    span = int(cells.max()) - low + 1
    if (int(code.max()) + 1) * span * nthreads >= _MAX_KEY:
        return None
    key = (code * span + (cells - low)) * nthreads + thread
    key.sort()
    pair, thread = np.divmod(key, nthreads)
    starts = np.flatnonzero(np.concatenate(([True], pair[1:] != pair[:-1])))
    ends = np.concatenate((starts[1:], [pair.size])) - 1
    code, cells = np.divmod(pair[starts], span)
    return code, cells + low, thread[starts], thread[ends]


def _merged(
    code: Array, cells: Array, first: Array, last: Array
) -> tuple[Array, Array, Array, Array]:
    """Rows of ranges that overlap, each cell of an iteration once."""
    order = np.lexsort((cells, code))
    code, cells, first, last = code[order], cells[order], first[order], last[order]
    is_new = (code[1:] != code[:-1]) | (cells[1:] != cells[:-1])
    starts = np.flatnonzero(np.concatenate(([True], is_new)))
    low, high = np.minimum.reduceat(first, starts), np.maximum.reduceat(last, starts)
    return code[starts], cells[starts], low, high


def _anything(access: Access, origin: int, edges: Array) -> Footprint:
    empty = np.zeros(0, dtype=np.int64)
    if access.buffer.memory is not Memory.SHARED:
        return Footprint(access, (), (), None, empty, empty, (), False)
    nbytes = shared_nbytes(access.buffer) * access.ncopies
    start, stop = np.searchsorted(edges, np.array([origin, origin + nbytes])).tolist()
    cells: Array = np.arange(int(start), int(stop))
    first, last = np.zeros_like(cells), np.full_like(cells, access.nthreads - 1)
    return Footprint(access, (), (), cells, first, last, (), False)


def shared_nbytes(buffer: Buffer) -> int:
    """Bytes of a shared buffer, whose size is constant."""
    size = constant_value(buffer.size)
    if size is None:
        raise InternalError(
            f"shared buffer {buffer} has {buffer.size} elements, which is not constant; shared "
            "memory is packed at compile time"
        )
    return size * buffer.dtype.nbytes


def contested(prints: Sequence[Footprint]) -> tuple[Footprint, ...]:
    """The footprints cut down to cells that are written and not private to one thread.

    All must have known cells. A thread that alone touches a cell is ordered with itself.
    """
    arrays = [f.cells for f in prints if f.cells is not None]
    occupied = [c for c in arrays if c.size]
    if not occupied or not any(f.access.writes for f in prints):
        return ()
    low = min(int(c.min()) for c in occupied)
    span = max(int(c.max()) for c in occupied) - low + 1
    if span > _MAX_DENSE:
        return tuple(prints)
    owner = np.full(span, -1, dtype=np.int64)
    many, written = np.zeros(span, dtype=bool), np.zeros(span, dtype=bool)
    for f, cells in zip(prints, arrays, strict=True):
        at = cells - low
        before = owner[at]
        owner[at] = f.first
        different = (
            (f.first != f.last) | (owner[at] != f.first) | ((before >= 0) & (before != f.first))
        )
        many[at[different]] = True
        if f.access.writes:
            written[at] = True
    many &= written
    if not many.any():
        return ()
    return tuple(_select(f, many[c - low]) for f, c in zip(prints, arrays, strict=True))


def _select(f: Footprint, keep: Array) -> Footprint:
    if keep.all() or f.cells is None:
        return f
    coords = tuple(c[keep] for c in f.coords)
    return replace(f, coords=coords, cells=f.cells[keep], first=f.first[keep], last=f.last[keep])
