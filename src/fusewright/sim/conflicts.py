"""The pairs of accesses that some order must separate; a pure function of the trace.

Memory is cut into cells of equal size. The touches of one cell, in trace order, form runs: reads
in a row are one run, each write is one. Every touch of a run conflicts with every touch of the
run before. Testing neighbouring runs is enough because order is transitive; only what the async
proxy sees is not, so that an asynchronous write also conflicts with the write before the reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from fusewright.kir import ir
from fusewright.sim.compute import Array
from fusewright.sim.model import Model
from fusewright.sim.report import AccessSite, Findings, statement_text
from fusewright.sim.trace import GENERIC, REGISTERS, Trace, TracedAccess, Undefine, rows_of


@dataclass(slots=True)
class Touches:
    """Who touched which cell: one packed int64 (row, cell, event, thread) per touch, sorted.

    Cells begin `cuts` bytes behind byte `base[r]` of the space, in row r; the last cut is an end.
    """

    space: int
    keys: Array
    cuts: Array
    event_bits: int
    thread_bits: int
    base: Array

    @property
    def cells(self) -> int:
        """Cells of a row."""
        return len(self.cuts) - 1

    def place(self) -> Array:
        """Row and cell, as one number."""
        return self.keys >> (self.event_bits + self.thread_bits)

    def event(self) -> Array:
        return (self.keys >> self.thread_bits) & ((1 << self.event_bits) - 1)

    def thread(self) -> Array:
        return self.keys & ((1 << self.thread_bits) - 1)


@dataclass(slots=True)
class Edges:
    """Touches `first[i]` and `second[i]` conflict; `key` packs (event, strand, event, strand, 1 for
    one thread)."""

    touches: Touches
    first: Array
    second: Array
    key: Array


@dataclass(slots=True)
class Conflicts:
    """The conflicts of some blocks of one batch. `edges` holds, without repetitions, columns
    (event, strand, event, strand, 1 for one thread); `blocks` are the numbers of the blocks of
    each row."""

    blocks: Array
    edges: Array
    parts: list[Edges] = field(default_factory=list[Edges])

    def example(self, edge: Array, nevents: int, nstrands: int) -> tuple[Touches, int, int]:
        """One pair of touches behind an edge."""
        a, sa, b, sb, same = (np.asarray(edge[i]) for i in range(5))
        wanted = _pack(a, sa, b, sb, nevents, nstrands) * 2 + same
        for part in self.parts:
            found = np.flatnonzero(part.key == wanted)
            if len(found):
                return part.touches, int(part.first[found[0]]), int(part.second[found[0]])
        raise KeyError(f"no conflict for the edge {edge}")


def _pack(a: Array, sa: Array, b: Array, sb: Array, nevents: int, nstrands: int) -> Array:
    return ((a * nstrands + sa) * nevents + b) * nstrands + sb


def conflicts_of(
    trace: Trace,
    rows: Array,
    strands: Array,
    spaces: frozenset[int],
    model: Model,
    findings: Findings,
) -> Conflicts:
    """The conflicts of the selected blocks (rows of the batch) in the given spaces.

    Two threads that write one cell in one statement are reported here.
    """
    nevents, nstrands = len(trace.events), int(strands.max()) + 1
    result = Conflicts(trace.blocks[rows], np.zeros((0, 5), np.int64))
    for space in sorted(spaces):
        touches = _touches(trace, rows, space)
        if touches is None:
            continue
        edges = _edges(trace, touches, strands, nstrands, model, findings, result.blocks)
        if len(edges.key):
            result.parts.append(edges)
    if result.parts:
        keys = np.sort(np.concatenate([p.key for p in result.parts]))
        keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
        pair, same = keys // 2, keys % 2
        second = pair % (nevents * nstrands)
        first = pair // (nevents * nstrands)
        columns = (first // nstrands, first % nstrands, second // nstrands, second % nstrands)
        result.edges = np.stack((*columns, same), axis=1)
    return result


_MANY = 16
"""Cells of one access beyond which they are computed at once."""


def _is_async(trace: Trace) -> Array:
    """Which events are accesses that their thread does not make itself."""
    return np.array([isinstance(e, TracedAccess) and e.agent is not GENERIC for e in trace.events])


def _touches(trace: Trace, rows: Array, space: int) -> Touches | None:
    """All touches of cells that more than one thread touches, or one asynchronously, sorted; None
    when there are none."""
    events = [
        (i, e)
        for i, e in enumerate(trace.events)
        if isinstance(e, TracedAccess) and e.space == space
    ]
    if not any(e.writes for _, e in events):
        return None
    low, active = _addresses(trace, rows, [e for _, e in events])
    alive = [i for i, m in enumerate(active) if m.any()]
    if not alive:
        return None
    events = [events[i] for i in alive]
    low, active = [low[i] for i in alive], [active[i] for i in alive]
    base = np.min(
        [a.min(axis=1, where=m, initial=1 << 62) for a, m in zip(low, active, strict=True)], axis=0
    )
    low = [a - base[:, None] for a in low]
    event_bits = len(trace.events).bit_length()
    thread_bits = (trace.nthreads - 1).bit_length()
    places = _Places(event_bits, thread_bits, [e for _, e in events], low, active)
    if any(e.runs is not None for _, e in events):
        cuts, keys = places.by_boundaries([i for i, _ in events])
    else:
        cell_nbytes, span = math.gcd(*(e.nbytes for _, e in events)), 0
        for (_, e), a, m in zip(events, low, active, strict=True):
            first = a[m]
            cell_nbytes = _divisor(cell_nbytes, first)
            span = max(span, int(first.max()) + e.nbytes)
        cuts = np.arange(0, span + 1, cell_nbytes)
        keys = places.by_grid([i for i, _ in events], cell_nbytes, len(cuts) - 1)
    cells = len(cuts) - 1
    place = keys >> (event_bits + thread_bits)
    thread = keys & ((1 << thread_bits) - 1)
    owner = np.empty(cells * len(base), np.int32)
    owner[place] = thread
    contested = np.zeros(cells * len(base), bool)
    contested[place[owner[place] != thread]] = True
    if any(e.agent is not GENERIC for _, e in events):
        contested[place[_is_async(trace)[(keys >> thread_bits) & ((1 << event_bits) - 1)]]] = True
    keys = np.sort(keys[contested[place]])
    if not len(keys):
        return None
    return Touches(space, keys, cuts, event_bits, thread_bits, base)


def _divisor(step: int, values: Array) -> int:
    """The greatest divisor of a step and of all values, which are natural."""
    is_power = step & (step - 1) == 0  # then it is the lowest bit of any of them
    return math.gcd(step, int((np.bitwise_or if is_power else np.gcd).reduce(values)))


@dataclass(frozen=True, slots=True)
class _Places:
    """The accesses of one space: first bytes behind the base of each row, and who makes them."""

    event_bits: int
    thread_bits: int
    accesses: list[TracedAccess]
    low: list[Array]
    active: list[Array]

    def _pack(self, place: Array, tail: Array) -> Array:
        return (place << (self.event_bits + self.thread_bits)) | tail

    def _tail(self, number: int, m: Array) -> Array:
        return (number << self.thread_bits) | np.nonzero(m)[1]

    def by_grid(self, numbers: list[int], cell_nbytes: int, cells: int) -> Array:
        """Keys of cells of equal size."""
        row = np.arange(len(self.low[0]))[:, None] * cells
        pieces: list[Array] = []
        for i, e, a, m in zip(numbers, self.accesses, self.low, self.active, strict=True):
            tail = self._tail(i, m)
            start = np.broadcast_to(row + a // cell_nbytes, m.shape)[m]
            per_thread = e.nbytes // cell_nbytes
            if per_thread > _MANY:
                start = (start[:, None] + np.arange(per_thread)).reshape(-1)
                tail, per_thread = np.repeat(tail, per_thread), 1
            for k in range(per_thread):
                pieces.append(self._pack(start + k, tail))
        return np.concatenate(pieces)

    def by_boundaries(self, numbers: list[int]) -> tuple[Array, Array]:
        """Cells cut where an access begins or ends, and the keys."""
        firsts: list[Array] = []
        rows: list[Array] = []
        tails: list[Array] = []
        for i, e, a, m in zip(numbers, self.accesses, self.low, self.active, strict=True):
            runs = np.zeros(1, np.int64) if e.runs is None else e.runs
            row, thread = np.nonzero(m)
            firsts.append((a[row, thread][:, None] + runs).reshape(-1))
            rows.append(np.repeat(row, len(runs)))
            tails.append(np.repeat((i << self.thread_bits) | thread, len(runs)))
        sizes = [np.full(len(f), e.nbytes) for f, e in zip(firsts, self.accesses, strict=True)]
        first, size = np.concatenate(firsts), np.concatenate(sizes)
        unit = _divisor(math.gcd(*(e.nbytes for e in self.accesses)), first)
        begin, end = first // unit, (first + size) // unit
        is_cut = np.zeros(int(end.max()) + 1, bool)
        is_cut[begin] = is_cut[end] = True
        cuts, number = np.flatnonzero(is_cut) * unit, np.cumsum(is_cut) - 1
        start = number[begin]
        count = number[end] - start
        within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        place = np.repeat(np.concatenate(rows) * (len(cuts) - 1) + start, count) + within
        return cuts, self._pack(place, np.repeat(np.concatenate(tails), count))


def _addresses(
    trace: Trace, rows: Array, events: list[TracedAccess]
) -> tuple[list[Array], list[Array]]:
    """First bytes and activity of each event, as (1, T) when all rows agree, else (rows, T)."""
    low: list[Array] = []
    active: list[Array] = []
    n, t = trace.nblocks, trace.nthreads
    for e in events:
        low.append(rows_of(e.block, rows, t, n) + rows_of(e.thread, rows, t, n))
        active.append(rows_of(e.mask, rows, t, n))
    height = max(max(len(a) for a in low), max(len(m) for m in active))
    shape = (height, t)
    return [_of_shape(a, shape) for a in low], [_of_shape(m, shape) for m in active]


def _of_shape(a: Array, shape: tuple[int, int]) -> Array:
    return a if a.shape == shape else np.broadcast_to(a, shape)


def _edges(
    trace: Trace,
    touches: Touches,
    strands: Array,
    nstrands: int,
    model: Model,
    findings: Findings,
    blocks: Array,
) -> Edges:
    place, event, thread = touches.place(), touches.event(), touches.thread()
    writes = np.array([isinstance(e, TracedAccess) and e.writes for e in trace.events])[event]
    n = len(place)
    position = np.arange(n)
    before = np.maximum.accumulate(np.where(writes, position, -1))
    after = np.minimum.accumulate(np.where(writes, position, n)[::-1])[::-1]
    reads = np.flatnonzero(~writes)
    previous, following = before[reads], after[reads]
    pairs: list[tuple[Array, Array]] = []
    if model.write_then_read:
        known = previous >= 0
        pairs.append((previous[known], reads[known]))
    if model.read_then_write:
        known = following < n
        pairs.append((reads[known], following[known]))
    neighbours = np.flatnonzero(writes[1:] & writes[:-1])
    same_event = event[neighbours] == event[neighbours + 1]
    twice = neighbours[same_event & (place[neighbours] == place[neighbours + 1])]
    if len(twice) and model.write_write:
        _report_twice(trace, touches, twice, findings, blocks)
    if model.write_write:
        neighbours = neighbours[~same_event]
        pairs.append((neighbours, neighbours + 1))
    combining = _combining(trace)[event]
    pairs += _combined(combining, writes, place) if combining.any() else []
    generic = ~_is_async(trace)[event]
    if not generic.all():
        late = np.flatnonzero(writes & ~generic)
        late = late[(late > 0) & ~writes[late - 1]]
        late = late[before[late - 1] >= 0]
        pairs.append((before[late - 1], late))
    first = np.concatenate([p[0] for p in pairs])
    second = np.concatenate([p[1] for p in pairs])
    same = thread[first] == thread[second]
    keep = (place[first] == place[second]) & ~(same & generic[first] & generic[second])
    keep &= (combining[first] != combining[second]) | (combining[first] == 0)
    if touches.space == REGISTERS:  # products that share an accumulator are done in order
        keep &= generic[first] | generic[second]
    first, second, same = first[keep], second[keep], same[keep]
    key = _pack(
        event[first],
        strands[thread[first]],
        event[second],
        strands[thread[second]],
        len(trace.events),
        nstrands,
    )
    return Edges(touches, first, second, key * 2 + same)


def _combining(trace: Trace) -> Array:
    """By event, for writes by which the copy engine combines what it brings with what is there, a
    number of the function above 1: those of one function have the same result in any order, but for
    roundings. 0 for others."""
    numbers: dict[str, int] = {}
    found = np.zeros(len(trace.events), np.int64)
    for k, e in enumerate(trace.events):
        s = e.statement
        if isinstance(e, TracedAccess) and e.writes and isinstance(s, ir.BulkReduce | ir.BoxReduce):
            found[k] = numbers.setdefault(s.fn, 2 + len(numbers))
    return found


def _combined(combining: Array, writes: Array, place: Array) -> list[tuple[Array, Array]]:
    """The pairs of combinations with what comes before and behind them, and with the write before
    that, which reads in between do not hand on to the async proxy."""
    last = np.where(writes & (combining == 0), np.arange(len(place)), -1)
    plain = np.maximum.accumulate(last)
    late = np.flatnonzero((combining > 0) & (plain >= 0))
    return [_of_runs(np.where(combining, combining, writes), place), (plain[late], late)]


def _of_runs(kind: Array, place: Array) -> tuple[Array, Array]:
    """Pairs of each touch with all of the run before, where one of both runs is of combinations.
    A run has touches of a cell of one kind, reads (0) or combinations (above 1); a write (1) is a
    run of its own."""
    begins = np.ones(len(kind), bool)
    begins[1:] = (kind[1:] != kind[:-1]) | (place[1:] != place[:-1]) | (kind[1:] == 1)
    run, starts = np.cumsum(begins) - 1, np.flatnonzero(begins)
    sizes = np.diff(np.append(starts, len(kind)))
    second = np.flatnonzero(run > 0)
    before = run[second] - 1
    keep = (kind[second] > 1) | (kind[starts[before]] > 1)
    second, before = second[keep], before[keep]
    counts = sizes[before]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(starts[before], counts) + within, np.repeat(second, counts)


def _report_twice(
    trace: Trace, touches: Touches, twice: Array, findings: Findings, blocks: Array
) -> None:
    """One finding for each statement in which two threads write one cell."""
    event = touches.event()
    for e in np.unique(event[twice]):
        mine = twice[event[twice] == e]
        first = site_of(trace, touches, int(mine[0]), blocks)
        second = site_of(trace, touches, int(mine[0]) + 1, blocks)
        findings.add(
            "race",
            f"threads {first.thread} and {second.thread} of block {first.block} write the same "
            f"bytes of {first.buffer} in one statement `{statement_text(first.statement)}`",
            first=first,
            second=second,
            count=len(mine),
        )


def site_of(trace: Trace, touches: Touches, at: int, blocks: Array) -> AccessSite:
    """The access behind a touch."""
    key = int(touches.keys[at])
    place = key >> (touches.event_bits + touches.thread_bits)
    access = trace.events[(key >> touches.thread_bits) & ((1 << touches.event_bits) - 1)]
    assert isinstance(access, TracedAccess)
    row = place // touches.cells
    cell = place % touches.cells
    first = int(touches.base[row]) + int(touches.cuts[cell])
    nbytes = int(touches.cuts[cell + 1] - touches.cuts[cell])
    first = (first if touches.space else first % trace.shared_nbytes) - access.base
    first = 0 if touches.space == REGISTERS else first
    rank, thread = divmod(key & ((1 << touches.thread_bits) - 1), trace.block_nthreads)
    return AccessSite(
        access.statement,
        int(blocks[row, rank]),
        thread,
        access.buffer.name,
        first,
        nbytes,
        first // access.buffer.dtype.nbytes,
        access.writes,
    )


def check_initialised(trace: Trace, rows: Array, model: Model, findings: Findings) -> None:
    """Report reads of shared bytes that no thread wrote since they were allocated."""
    shared_nbytes = trace.shared_nbytes
    written = np.zeros((len(rows), trace.row_blocks, shared_nbytes), bool)
    flat = written.reshape(-1)
    words = {n: flat.view(f"u{n}") for n in (1, 2, 4, 8)}
    stride = np.arange(len(rows))[:, None] * (trace.row_blocks * shared_nbytes)
    n, t = trace.nblocks, trace.nthreads
    for e in trace.events:
        if isinstance(e, Undefine) and model.alloc_forgets:
            mine = rows_of(e.mask, rows, t, n).reshape(-1, trace.row_blocks, trace.block_nthreads)
            here = np.broadcast_to(mine.any(axis=2), written.shape[:2])
            written[here, e.first : e.first + e.nbytes] = False
        elif isinstance(e, TracedAccess) and e.space == 0:
            low = stride + rows_of(e.block, rows, t, n) + rows_of(e.thread, rows, t, n)
            active = np.broadcast_to(rows_of(e.mask, rows, t, n), low.shape)
            start = low[active]
            if e.runs is not None:
                start = (start[:, None] + e.runs).reshape(-1)
            if e.writes:
                unit = _divisor(math.gcd(e.nbytes, 8), start)
                place = (start // unit)[:, None] + np.arange(e.nbytes // unit)
                words[unit][place] = int.from_bytes(b"\1" * unit, "little")
                continue
            parts: Array = ~flat[_spread(start, e.nbytes, e.buffer.dtype.nbytes)]
            missing = np.asarray(parts.any(axis=1))
            if e.runs is not None:
                missing = np.asarray(missing.reshape(-1, len(e.runs)).any(axis=1))
                start = low[active]
            if missing.any():
                _report_unwritten(
                    trace, rows, e, active, missing, start - start % shared_nbytes, low, findings
                )


def _spread(start: Array, nbytes: int, step: int) -> Array:
    return start[:, None] + np.arange(0, nbytes, step)


def _report_unwritten(
    trace: Trace,
    rows: Array,
    e: TracedAccess,
    active: Array,
    missing: Array,
    origin: Array,
    low: Array,
    findings: Findings,
) -> None:
    which = int(np.argmax(missing))
    row, lane = (int(c) for c in np.argwhere(active)[which])
    first = int(low[row, lane] - origin[which]) - e.base
    element = first // e.buffer.dtype.nbytes
    site = AccessSite(
        e.statement,
        *trace.block_of(int(rows[row]), lane),
        e.buffer.name,
        first,
        e.nbytes,
        element,
        False,
    )
    findings.add(
        "uninitialised",
        f"{e.buffer}[{element}] was never written in block {site.block}, read in "
        f"`{statement_text(e.statement)}`",
        first=site,
        count=int(missing.sum()),
    )
