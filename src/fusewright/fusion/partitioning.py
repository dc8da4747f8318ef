"""Which partition axes get: the facts of what is cut, and one choice from them for every purpose.

    to_fill      a reduction of few results, so that every multiprocessor has blocks
    fill_rows    a reduction of rows that are shorter than a line, so that lanes read lines
    of_line      a scan of few lines, the same
    beside_rows  sums of columns in a kernel that reduces rows: a part of the rows for every block
    in_chunks    two reductions of one value, the second needing the first, in one pass over it
    strip_of_columns    sums of rows in a kernel that holds columns: as many as a block has
    strip_of_tile       the same in a kernel that holds tiles of what lies across

Counts follow from shapes, dtypes and the target, never from occupancy, so that results are bitwise
equal from run to run. Down the slow axes parts are interleaved where a run would be short or begin
where vectors cannot: they then differ by a row at most, and all rows of a part begin alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusewright.core.expr import ONE, constant_value
from fusewright.fusion.inputs_behind import holds_fast_axis, inputs_behind, whole_inputs
from fusewright.fusion.ir import Fusion, Tensor, constant_shape
from fusewright.fusion.partition import Partition
from fusewright.fusion.persistent_rows import LEAST_ROWS_OF_BLOCK, RowRegisters, Slices
from fusewright.fusion.row_alignment import lanes_of_word, period_of_rows
from fusewright.target import (
    LINE_NBYTES,
    MAX_VECTOR_NBYTES,
    REGISTER_NBYTES,
    SECTOR_NBYTES,
    WARP_SIZE,
    Target,
)

BYTES_PER_ROW = WARP_SIZE * MAX_VECTOR_NBYTES
"""Bytes of a row that a block takes side by side when the cut axes are the slow ones: a vector for
every lane."""
HELD_SHARE = 50 / 64
"""Of the registers, for rows that a block keeps: of the 64 that each of 1,024 threads has."""

# What the following decide was measured: with half and with twice of each of them no more than 5 of
# 129 programs get other kernels, whose predicted times change by the share that is given (one, two:
# half, twice; 1: none changes; `python -m bench.constants`, bench/constants-2026-11-23.json).
LEAST_TOTAL = 1 << 18
"""Elements that a tensor must have to be worth a second kernel, or a loop over its rows: a
multiprocessor alone reads a sixth of them while a kernel starts. (1, 1)"""
LEAST_RUN = 8192
"""Elements that a part along the fast axis should have at least: two trips of a block of 512
threads with vectors of 8. (0.99, 1.03)"""
LEAST_ROWS = 512
"""Rows that a part of slow axes should have at least, for the same reason. (1, 0.99)"""
EVEN_SHARE = 1 / 8
"""The part of the wanted number by which parts may be more or fewer so that all are full. (1, 0.99)
"""
IDLE_SHARE = 1 / 16
"""Of the multiprocessors' time, what may be idle so that all parts are full: about what the guard
of a short last part takes, 2 to 4 % of the instructions of a loop (three losses of 46, 47 and 33
instructions an element, counted in machine code on 2026-11-27)."""
LEAST_PACKS = 8
"""Packs of rows that a part has at least: the last one is not full, and others wait for it."""
LEAST_CHUNKED_TOTAL = 1 << 20
"""Elements below which reading twice costs less than a second kernel. (1, 1)"""
CHUNK = 8192
"""Elements of a chunk along the fast axis, for the reason of `LEAST_RUN`. (1.00, 1.05)"""
CHUNK_ROWS = 256
"""Rows of a chunk down the slow axes: of exponentials, and of variances of what is computed. (0.80
and 1.00, of one program, a softmax of columns)"""
SHIFTED_ROWS = (128, 1024)
"""The fewest and the most rows of a chunk for variances of what is stored: as many as leave two
blocks for every multiprocessor."""
COLUMNS_PER_BLOCK = BYTES_PER_ROW // 2
"""Of a block that walks down columns of two bytes."""
NBYTES_OF_SHORT = BYTES_PER_ROW // 2
"""Bytes that a block takes side by side of rows that are shorter than its own, each of which has
chunks of its own: with twice as many, chunks that fill the chip are twice as many, too, and the
kernel that combines those of few columns (1351190 x 6) would take longer than the first one."""
WHOLE = 2 * WARP_SIZE
"""What the length of chunks is a multiple of where they do not divide the rows: pairs fill a warp.
(1, 1)"""


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """What a partition is chosen from: the sizes of the axes that are cut, outermost first, the
    elements of all others (`kept`), by how many elements neighbours along the innermost of them are
    `apart` in memory, how many kept elements lie between these (`beside`), bytes of an element of
    the narrowest large input, whether the fast axis is among those cut, and whether another input
    as large lies the other way."""

    lengths: tuple[int, ...]
    kept: int
    apart: int
    beside: int
    nbytes: int
    is_inner: bool
    is_crossed: bool = False

    @staticmethod
    def of(source: Tensor, axes: Sequence[int]) -> PartitionFacts | None:
        """The facts of these axes of a value; None where sizes are not known, or 0."""
        sizes = constant_shape(source)
        if sizes is None or 0 in sizes:
            return None
        lengths = tuple(sizes[a] for a in axes)
        kept = math.prod(sizes) // math.prod(lengths)
        inputs = inputs_behind(source, lambda t: t.op.operands)
        strides: Mapping[int, int] = {a: math.prod(sizes[a + 1 :]) for a in range(len(sizes))}
        if inputs and all(a in inputs[0].apart for a in axes if sizes[a] > 1):
            strides = inputs[0].apart
        apart = min((strides[a] for a in axes if sizes[a] > 1), default=math.prod(sizes))
        beside = math.prod(sizes[a] for a, n in strides.items() if a not in axes and n < apart)
        nbytes = min((x.dtype.nbytes for x in large_inputs(source)), default=source.dtype.nbytes)
        inner = holds_fast_axis(source, axes, lambda t: t.op.operands)
        is_crossed = (
            len({b.fast in axes for b in whole_inputs(source, lambda t: t.op.operands)}) > 1
        )
        return PartitionFacts(lengths, kept, apart, beside, nbytes, inner, is_crossed)

    @property
    def size(self) -> int:
        """The elements that are cut, for each of those kept."""
        return math.prod(self.lengths)

    @property
    def total(self) -> int:
        return self.size * self.kept

    @property
    def is_dense(self) -> bool:
        """Whether slow axes are cut whose neighbours follow each other in memory, with nothing but
        kept elements between them."""
        return self.apart == self.beside and not (self.is_inner or self.is_crossed)

    @property
    def period(self) -> int:
        """After how many rows of slow axes vectors begin where they did."""
        return 1 if self.is_inner else period_of_rows(self.apart, self.nbytes)


def fit_shared_memory(f: PartitionFacts, row_nbytes: int, target: Target) -> bool:
    """Whether a block, or the blocks of a cluster, can hold columns in shared memory, `row_nbytes`
    an element, a line of every row side by side in whole vectors, or rows that are shorter, and
    such blocks fill the chip."""
    if f.is_inner or f.period > 1:
        return False
    side_by_side = min(LINE_NBYTES // f.nbytes, f.apart)
    needed = f.size * row_nbytes * side_by_side
    cluster = min(target.max_cluster, -(-needed // target.shared_nbytes_of_several))
    room = max(target.shared_nbytes_of_several * cluster, target.shared_nbytes_of_one)
    return needed <= room and f.kept * target.max_cluster >= side_by_side * target.multiprocessors


def fit_cluster(f: PartitionFacts, row_nbytes: int, target: Target) -> bool:
    """Whether the blocks of a cluster can hold a row, `row_nbytes` an element, and every
    multiprocessor has two such blocks."""
    fills = f.kept * target.max_cluster >= 2 * target.multiprocessors
    return f.is_inner and fills and f.size * row_nbytes <= target.cluster_shared_nbytes


def might_hold(f: PartitionFacts, row_nbytes: int, target: Target) -> bool:
    """Whether all blocks that run at once, each with a multiprocessor to itself, have room for a
    row, `row_nbytes` an element, or for a line of columns. Schedulers know where they hold what,
    and whether that pays."""
    beside = 1 if f.is_inner else max(1, min(LINE_NBYTES // f.nbytes, f.apart))
    return f.size * row_nbytes * beside <= target.multiprocessors * target.shared_nbytes_of_one


def is_read_again(t: Tensor, total: int, fusion: Fusion) -> bool:
    """Whether anything of so many elements is computed from a reduction."""
    after = {t}
    for v in fusion.values:
        if any(o in after for o in v.op.operands):
            after.add(v)
            if math.prod(constant_value(e) or 1 for e in v.shape) >= total:
                return True
    return False


def large_inputs(t: Tensor) -> set[Tensor]:
    """The inputs behind a value that have as many elements."""
    return {x for x in inputs_of(t) if _numel(x) == _numel(t)}


def inputs_of(t: Tensor) -> list[Tensor]:
    """The inputs behind a value, the largest first."""
    return [b.source for b in inputs_behind(t, lambda v: v.op.operands)]


def held_of(inputs: Iterable[Tensor], total: int, row: int, sums: int) -> RowRegisters:
    """What registers hold of rows of `row` elements, `total` in all: of these inputs, and `sums`
    of every column. An input with one element in its last axis, that has not all elements, varies
    from row to row only."""
    numbered = [(_numel(x), x) for x in inputs if x.shape]
    sizes = [(n, x.dtype.nbytes) for n, x in numbered if n == total or x.shape[-1] != ONE]
    moving, shared = (tuple(sorted(b for n, b in sizes if n == m)) for m in (total, row))
    return RowRegisters(moving, shared, sums)


def _numel(t: Tensor) -> int:
    """The elements of a value, 0 where they are not known."""
    sizes = constant_shape(t)
    return 0 if sizes is None else math.prod(sizes)


# --- purposes -----------------------------------------------------------------------------------


def to_fill(f: PartitionFacts, target: Target) -> Partition | None:
    """Parts of a reduction that would run in fewer blocks than the target has multiprocessors. Of
    rows that do not fill the row of a block as many more as fill it, side by side."""
    by_rows = f.is_inner and not f.is_crossed  # else blocks take columns side by side
    is_short = f.size * f.nbytes < _nbytes_of_second_kernel(target)
    if is_short if by_rows else f.total < LEAST_TOTAL:
        return None
    cached = f.total * f.nbytes <= target.calibration.cached_share * target.l2_nbytes
    side_by_side = (LINE_NBYTES if cached else BYTES_PER_ROW) // f.nbytes
    columns = side_by_side if f.is_crossed else min(side_by_side, f.beside)
    blocks = f.kept if by_rows else -(-f.kept // columns)
    least = LEAST_RUN if by_rows else LEAST_ROWS
    beside = 1 if by_rows else max(1, side_by_side // (f.beside if f.is_dense else f.kept))
    wanted = min(2 * target.multiprocessors // blocks * beside, f.size // least)
    in_runs = f.is_inner or f.is_crossed

    def keeps_busy(count: int) -> bool:
        return _keep_busy(count * blocks / beside, target)

    if in_runs:
        return _runs(f, wanted, keeps_busy)
    return _rows(f, wanted, EVEN_SHARE, keeps_busy)


def fill_rows(f: PartitionFacts) -> Partition | None:
    """Parts of a reduction whose results lie side by side in runs shorter than a line, one behind
    the other: about as many rows as are a vector for every lane, which begin where vectors do."""
    run = f.beside * f.nbytes
    if not f.is_dense or run >= LINE_NBYTES or f.total < LEAST_TOTAL:
        return None
    count = number_of_rows(f.lengths, -(-BYTES_PER_ROW // run), f.period, 1.0)
    if not 1 < count < f.size:
        return None
    return Partition.by_count(f.size, count, is_interleaved=True)


def _keep_busy(blocks: float, target: Target) -> bool:
    """Whether so many equal blocks that run at once leave multiprocessors idle for no more than
    `IDLE_SHARE` of the time, as those that have one block more are done last. Blocks that are no
    more than multiprocessors have one each."""
    rounds = math.ceil(blocks / target.multiprocessors)
    return rounds <= 1 or blocks >= (1 - IDLE_SHARE) * rounds * target.multiprocessors


def _nbytes_of_second_kernel(target: Target) -> float:
    """What a multiprocessor alone reads while a second kernel starts, waits for its first bytes and
    exchanges once."""
    known = target.calibration
    us = known.launch_us + known.start_us + known.memory_latency_us + known.exchange_us
    return us * known.l2_nbytes_per_clock * target.clock_mhz


def of_line(f: PartitionFacts, target: Target) -> Partition | None:
    """Runs of lines that would be scanned in fewer blocks than that, each of which takes a sector
    of them, and by which a block walks for longer than two more kernels take; as many as fill the
    chip with blocks that take whole lines of memory."""
    narrow, wide = (
        max(1, f.kept // min(f.beside, n // f.nbytes)) for n in (SECTOR_NBYTES, LINE_NBYTES)
    )
    if narrow > target.multiprocessors:
        return None
    least = LEAST_RUN if f.is_inner or f.size < LEAST_RUN else LEAST_ROWS
    return _runs(f, min(2 * target.multiprocessors // wide, f.size // least))


def beside_rows(
    f: PartitionFacts,
    held: RowRegisters,
    length: int,
    target: Target,
    *,
    fast: int = 1,
    at_a_time: int = 1,
    may_be_whole: bool = False,
    max_cluster: int = 1,
) -> Partition | None:
    """A part of the rows, of `length` elements of which `held` is kept, for every one of the blocks
    that a multiprocessor holds; of short rows packs, so that a block reads runs of memory. Axes
    kept beside those of a row have parts of their own; where these are half of the fewest blocks
    that have enough bytes under way, or of the multiprocessors and rows are too few for more, one
    part `may_be_whole`. Of `fast` neighbours in a row each is reduced to a result of its own;
    threads take so many rows `at_a_time`. Rows that no block holds may be held by clusters of up to
    `max_cluster` blocks, each of which has a part."""
    several = max(1, f.kept // length)
    own = _rows_of_threads(f, held, length, target) if fast == 1 else 0
    blocks = held.blocks_at_once(length) if own else held.blocks(length, fast, at_a_time)
    room = several if blocks and may_be_whole else 0
    whole = Partition.by_count(f.size, 1, is_interleaved=True)
    if room and 2 * room >= held.fewest_blocks(length, fast) * target.multiprocessors:
        return whole
    at_once = blocks * target.multiprocessors
    least = _least_packs(f, own, target) * own if own else LEAST_ROWS_OF_BLOCK
    if not blocks and fast == 1:
        slices = held.slices(length, max_cluster, target.shared_nbytes_per_sm)
        at_once = _rows_at_once(slices, several * (f.size // least), target)
    is_few = least < LEAST_PACKS * own  # packs are then counted exactly
    most = min(at_once // several, -(-f.size // least) if is_few else f.size // least)
    # What is computed of rows is stored with nothing between them.
    period = 1 if own or fast > 1 else max(f.period, period_of_rows(length, f.nbytes))
    count = number_of_rows(f.lengths, most, period, 0.0)
    if not 1 < count <= most:
        return whole if 2 * room >= target.multiprocessors else None
    pack = own or _pack(f, length)
    pack = pack if own or f.size >= LEAST_PACKS * count * pack else 1
    return Partition.by_count(f.size, count, is_interleaved=True, pack=pack)


def strip_of_columns(f: PartitionFacts, run: int, row_nbytes: int, target: Target) -> int:
    """The columns that a block takes side by side, of each row of which it makes a partial result,
    where neighbours are `run` columns at a time and a row has `row_nbytes` an element: words for
    all lanes of a warp, or for half of them, while an eighth of a multiprocessor's registers holds
    them, so that sums of each row do not spill, and it has two such blocks; else a line of memory.
    0 where a run would leave too many threads
    without a column."""
    lanes, line = lanes_of_word(f.nbytes), LINE_NBYTES // f.nbytes
    held = REGISTER_NBYTES * target.registers_per_sm // (8 * f.size * row_nbytes)
    most = min(held, f.kept // (2 * target.multiprocessors))
    wide = [n for n in (WARP_SIZE * lanes, WARP_SIZE * lanes // 2) if n <= most]
    even = (n for n in (*wide, line) if -run % n <= EVEN_SHARE * run)
    return next(even, 0)


def strip_of_tile(f: PartitionFacts, run: int, row_nbytes: int, target: Target) -> int:
    """The same where blocks, or clusters of them, hold tiles of inputs that lie across each other,
    of which threads keep `row_nbytes` an element, as they compute with it: a line of memory, half
    of one, or a sector, the most of which each of two blocks on a multiprocessor has room for in
    half of its registers; else a sector, if one block has room for it."""
    line = LINE_NBYTES // f.nbytes
    widths = [n for n in (line, line // 2, line // 4) if -run % n <= EVEN_SHARE * run]
    registers = REGISTER_NBYTES * target.registers_per_sm * target.max_cluster
    shared = target.cluster_shared_nbytes
    for width in widths:
        nbytes = f.size * width * row_nbytes
        if nbytes <= min(registers // 4, shared):
            return width
    least = min(widths, default=0)
    return least if f.size * least * row_nbytes <= min(registers // 2, shared) else 0


def _rows_at_once(slices: Sequence[Slices], most: int, target: Target) -> int:
    """The rows that clusters on all multiprocessors share at once, those of another round would
    have the chip wait: in clusters that keep most multiprocessors busy where there are no more than
    `most` of them, then of the most rows."""

    def rank(s: Slices) -> tuple[int, int]:
        clusters = target.clusters_at_once(s.cluster)
        return min(most, clusters) * s.cluster, clusters * s.blocks

    best = max(slices, key=rank, default=None)
    return 0 if best is None else target.clusters_at_once(best.cluster) * best.blocks


def _rows_of_threads(f: PartitionFacts, held: RowRegisters, length: int, target: Target) -> int:
    """Rows that the threads of a block take at a time, each some of its own, where rows lie one
    behind the other, and are enough for two blocks on every multiprocessor; else 0."""
    rows = held.rows_at_once(length) if f.apart == length else 0
    return rows if f.size >= 2 * target.multiprocessors * rows else 0


def _least_packs(f: PartitionFacts, rows: int, target: Target) -> int:
    """The packs of so many rows that a part has at least: fewer where every multiprocessor would
    not have two blocks otherwise."""
    return min(LEAST_PACKS, f.size // (2 * target.multiprocessors * rows))


def _pack(f: PartitionFacts, length: int) -> int:
    """Rows of so many elements that are a vector for every lane of a warp; one where rows are no
    whole vectors: those of a part then begin alike."""
    rows = BYTES_PER_ROW // (length * f.nbytes)
    is_whole = length % lanes_of_word(f.nbytes) == 0
    return 1 << (rows.bit_length() - 1) if rows > 1 and is_whole else 1


def in_chunks(
    f: PartitionFacts,
    row_nbytes: int,
    target: Target,
    *,
    is_shifted: bool,
    may_be_whole: bool = False,
) -> Partition | None:
    """Chunks of rows that a block cannot hold, `row_nbytes` an element. `is_shifted`: the first
    element of a chunk is at hand, so that a chunk may have more rows than registers hold. Slow axes
    of any length are cut, and `may_be_whole`, where that keeps others from being read in pieces."""
    if f.total < LEAST_CHUNKED_TOTAL:
        return None
    if f.is_inner:
        room = HELD_SHARE * REGISTER_NBYTES * target.registers_per_sm
        return _chunks(f, -(-f.size // CHUNK)) if f.size * row_nbytes > room else None
    if f.size <= 4 * CHUNK_ROWS and not may_be_whole:
        return None
    least, most = SHIFTED_ROWS
    is_short = f.kept * f.nbytes < BYTES_PER_ROW
    columns = NBYTES_OF_SHORT // f.nbytes if is_short else COLUMNS_PER_BLOCK
    filling = 2 * target.multiprocessors * columns // f.kept
    wanted = max(-(-f.size // most), min(filling, f.size // least))
    cut = _rows(f, wanted, 1.0) if is_shifted else _chunks(f, -(-f.size // CHUNK_ROWS))
    return Partition.by_count(f.size, 1) if cut is None and may_be_whole else cut


# --- counts -------------------------------------------------------------------------------------


def _any_number(count: int) -> bool:
    return count > 0


def _runs(
    f: PartitionFacts, wanted: int, fits: Callable[[int], bool] = _any_number
) -> Partition | None:
    """About so many runs, of a number that `fits`."""
    if wanted <= 1:
        return None
    lanes = lanes_of_word(f.nbytes) if f.is_inner or f.is_crossed else 1
    count = number_of_runs(f.lengths, wanted, lanes, fits)
    if f.size % count == 0:
        return Partition.by_count(f.size, count)
    return Partition.by_length(f.size, -(-f.size // (count * lanes)) * lanes)


def _rows(
    f: PartitionFacts, wanted: int, slack: float, fits: Callable[[int], bool] = _any_number
) -> Partition | None:
    """About so many parts of the slow axes, of a number that `fits`: runs where these divide the
    rows and begin where vectors do, as runs take fewer instructions to address, else interleaved
    ones."""
    runs = _runs(f, wanted, fits)
    if runs is None:
        return None
    if runs.is_even and f.period == 1 and abs(runs.count - wanted) <= slack * wanted:
        return runs
    count = number_of_rows(f.lengths, wanted, f.period, slack, fits)
    deals = f.size % count != 0 or f.period > 1
    return Partition.by_count(f.size, count, is_interleaved=deals) if count > 1 else None


def _chunks(f: PartitionFacts, wanted: int) -> Partition | None:
    """About so many runs, all of them full if they then begin where vectors can, else all but the
    last one of a length that vectors divide."""
    runs = _runs(f, wanted)
    if runs is None:
        return None
    lanes = lanes_of_word(f.nbytes)
    is_odd = f.is_inner and runs.each % lanes != 0 and f.lengths[-1] % lanes == 0
    if runs.is_even and not is_odd:
        return runs
    each = -(-f.size // (wanted * WHOLE)) * WHOLE
    return Partition.by_length(f.size, each) if each < f.size else None


def number_of_runs(
    lengths: Sequence[int],
    wanted: int,
    lanes: int = 1,
    fits: Callable[[int], bool] = _any_number,
) -> int:
    """A number of runs within a factor of two of `wanted` that `fits` and divides all elements, so
    that none is short: whole slices of the first axes that a run's length reaches, which need no
    division to address, or else whole vectors of so many `lanes`, so that all begin where vectors
    do. `wanted` when there is none: the last run is short then. Runs of any length, which begin
    anywhere inside of slices, would be read element by element."""
    total = math.prod(lengths)
    whole = total // lanes if total % lanes == 0 else 1
    for candidates, size in (
        (whole_slices(lengths, 2 * wanted), total),
        (range(-(-wanted // 2), 2 * wanted + 1), whole),
    ):
        near = [d for d in candidates if wanted <= 2 * d and d <= 2 * wanted and size % d == 0]
        near = [d for d in near if fits(d)]
        if near:
            return min(near, key=lambda d: (abs(d - wanted), d))
    return wanted


def number_of_rows(
    lengths: Sequence[int],
    wanted: int,
    period: int,
    slack: float,
    fits: Callable[[int], bool] = _any_number,
) -> int:
    """A number of interleaved parts from half of `wanted` on; 1 for none. They are a multiple of
    `period`, where that is no more than twice as many: the nearest even one within `slack` of
    `wanted` that `fits`, else the largest one not above it. Parts that divide the rows are whole
    slices of the axes, since a number cannot be spelled in digits of two kinds."""
    total, step = math.prod(lengths), period if period <= 2 * wanted else 1

    def is_even(p: int) -> bool:
        return total % p == 0 and abs(p - wanted) <= slack * wanted and fits(p)

    def rank(p: int) -> tuple[bool, int]:
        return not is_even(p), abs(p - wanted)

    least = step * max(-(-wanted // (2 * step)), 1)
    near = (p for p in range(least, 2 * wanted + 1, step) if p > 1)
    choices = (p for p in near if is_even(p) or p <= max(wanted, step))
    return min((p for p in choices if total % p or _are_slices(p, lengths)), key=rank, default=1)


def _are_slices(parts: int, lengths: Sequence[int]) -> bool:
    """Whether so many elements are the last axes and a divisor of the one before."""
    for size in reversed(lengths):
        if size % parts == 0:
            return True
        if parts % size:
            return False
        parts //= size
    return False


def whole_slices(lengths: Sequence[int], most: int) -> list[int]:
    """The numbers of parts, up to `most`, that are whole slices of the first axes that a part's
    length reaches."""
    parts: list[int] = []
    outer = math.prod(lengths)
    for size in reversed(lengths):
        outer //= size
        parts += [outer * n for n in range(min(size, most // outer), 0, -1) if size % n == 0]
    return parts


def divisors(n: int) -> list[int]:
    """The divisors of a positive number, ascending."""
    found = [1]
    rest, prime = n, 2
    while rest > 1:
        if prime * prime > rest:
            prime = rest  # which has no divisor of its own
        known = found
        while rest % prime == 0:
            rest //= prime
            known = [d * prime for d in known]
            found = found + known
        prime += 1
    return sorted(found)
