"""How blocks walk over rows that registers hold: this row, the next one, and sums of its columns.

Plain numbers in and out. The pass that cuts rows in runs takes from here how many blocks the chip
holds, the scheduler how threads share a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fusewright.core.instructions import CODE
from fusewright.fusion.row_alignment import are_short, lanes_of_word, length_from_word
from fusewright.target import (
    CLUSTER_SIZES,
    MAX_REGISTERS_PER_THREAD,
    MAX_THREADS_PER_BLOCK,
    MAX_VECTOR_NBYTES,
    PARTITIONS,
    REGISTER_NBYTES,
    REGISTER_UNIT,
    REGISTERS_PER_SM,
    SMALL_BLOCK,
    WARP_SIZE,
)

MEETING_REGISTERS = 7
"""More of them where the sums of several rows meet in shared memory."""
RAGGED_REGISTERS = 8
"""More of them where the last vectors of a row are loaded under a condition."""
SKEWED_REGISTERS = 4
"""More of them where rows begin anywhere: for where one does, and for each vector of a thread."""
LEAST_THREADS = SMALL_BLOCK
RESIDENT_VECTORS = 1088
"""Vectors of 16 bytes of each of two inputs that the rows of a multiprocessor should have under
way: 1024, and a little, so that a row that is slightly longer is not one of fewer. Of one input
twice as many: latency asks for bytes, wherever they come from."""
LARGE_THREADS = 640
"""Threads of a block beyond which its meetings cost more than a second vector a thread: 512 that
take two finish a layer norm backward of 8192 columns 3 % before 1024 that take one (one H200)."""
LEAST_ROWS_OF_BLOCK = 4
"""Rows that a block should walk over at least where it makes partial results beside rows, and steps
of several rows. (1, 1: as in `partitioning`)"""
ROWS_AT_A_TIME = (1, 2, 4)
"""Rows that a thread takes at a time, whose results threads exchange at once."""
FURTHER = 3
"""Ways of other numbers of rows that are looked at: the cost model ranks them."""
CHOICES = 6
"""Numbers of vectors of a thread that are looked at, from the fewest that a block may have on."""

LEAST_AHEAD = 64
"""Bytes of a thread that are loaded for the next trip of a loop in which threads meet, whatever
registers it has: nothing moves over a barrier by itself."""
SHARE_AHEAD = 4
"""The part of a thread's registers that they may be where it is known how many it has. Of 36 draws
(statistics, norm backwards and compositions of 700000:700260) none has other plans with half of the
registers, three have with an eighth, two of them predicted slower (no GPU, 2026-11-27)."""

VECTORS_OF_LANE = 4
"""Vectors of a row of one input that a lane has at most where one warp has all: with their sums
about as many registers as a thread has where a multiprocessor holds half of its threads. Of two
inputs none was measured."""

THREADS_OF_ROWS = 64
"""Threads of a block each of which has rows of its own, as many of them as a word has lanes, so
that what a block takes at a time is whole words, of rows of any length. The smallest blocks of
which a multiprocessor, which has room for 32, holds all its 2048 threads."""
LEAST_BLOCKS = 2 * PARTITIONS
"""Such blocks that a multiprocessor holds at least. The two warps of one load together and compute
together, so that for every scheduler one block waits for memory while another one computes."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of `length` elements, the shortest of which has `nbytes`; `words`: registers for each
    of them, for what is held of this row and the next, and for sums. Skewed rows begin anywhere:
    `length` is that of all vectors that have elements of any of them."""

    length: int
    nbytes: int
    words: float
    is_skewed: bool = False
    inputs: int = 2
    """Inputs that differ from row to row."""
    fast: int = 1
    """Neighbours in memory each of which is reduced to a result of its own: the threads of a row
    stand along these and down the others."""
    moving: int = 0
    """Bytes of an element of the inputs that differ from row to row."""
    is_slice: bool = False
    """Whether a row is the slice of one that blocks of a cluster share: while these meet, a second
    block has as much under way."""

    @property
    def more_words(self) -> float:
        """Registers for each element of another row that threads take at the same time."""
        return 2 * self.moving / REGISTER_NBYTES


@dataclass(frozen=True, slots=True)
class RowRegisters:
    """What registers hold of each element of a row: bytes of the inputs that differ from row to
    row, bytes of those that all rows share, and the sums of its column. `is_ring`: whether the next
    row is on its way to shared memory, not to registers."""

    moving: tuple[int, ...]
    shared: tuple[int, ...]
    sums: int
    is_ring: bool = False

    @property
    def words(self) -> float:
        """Registers an element: inputs that differ from row to row are held twice, of this row and
        of the next one on its way."""
        times = 1 if self.is_ring else 2
        return self.sums + (times * sum(self.moving) + sum(self.shared)) / REGISTER_NBYTES

    def fewest_blocks(self, length: int, fast: int = 1) -> int:
        """Such blocks that have enough bytes under way, with as many rows at a time as it takes; 0
        where registers do not hold one."""
        counts = (self.blocks(length, fast, n) for n in ROWS_AT_A_TIME)
        return min(filter(None, counts), default=0)

    def slices(self, length: int, most: int, shared_nbytes: float = math.inf) -> list[Slices]:
        """How blocks of a cluster, `most` at most, share rows of whole words, two slices of each
        input in the `shared_nbytes` of a multiprocessor. Those come first of which the most rows
        are held at a time, as while some clusters meet, others load. None for other rows."""
        lanes = lanes_of_word(min(self.moving, default=1))
        if len(set(self.moving)) != 1 or length % lanes:
            return []
        ring, found = replace(self, is_ring=True), list[Slices]()
        for cluster in (n for n in CLUSTER_SIZES if n <= most):
            own = self.slice(length, cluster)
            room = shared_nbytes // (2 * sum(self.moving) * own)
            blocks = int(min(ring.blocks(own), room))
            found += [Slices(cluster, own, blocks, ring)] if blocks else []
        return sorted(found, key=lambda s: (-s.blocks / s.cluster, s.cluster))

    def slice(self, length: int, cluster: int) -> int:
        """The elements that each block of a cluster has of a row, whole words."""
        lanes = lanes_of_word(min(self.moving))
        return -(-length // (cluster * lanes)) * lanes

    def row(self, length: int, *, is_skewed: bool, fast: int = 1) -> Row:
        """The row of which this is held."""
        shortest = min((*self.moving, *self.shared))
        count, nbytes = len(self.moving), sum(self.moving)
        return Row(length, shortest, self.words, is_skewed, count, fast, nbytes, self.is_ring)

    def rows_at_once(self, length: int) -> int:
        """Rows of `length` elements that a block takes at a time where each of its threads has some
        of them with the sums of all columns; 0 where registers do not hold these, or rows are whole
        words. Of others several lie in one sector, which all blocks that have one would ask for."""
        if not self.moving or length % lanes_of_word(min(self.moving)) == 0:
            return 0
        fits = self._blocks_of_threads(length) >= LEAST_BLOCKS
        return THREADS_OF_ROWS * lanes_of_word(max(self.moving)) if fits else 0

    def blocks_at_once(self, length: int) -> int:
        """Such blocks of a multiprocessor: half of them load while the others compute."""
        vectors = THREADS_OF_ROWS * length * len(self.moving)
        wanted = max(2 * 2 * RESIDENT_VECTORS // vectors, LEAST_BLOCKS)
        return min(wanted, self._blocks_of_threads(length))

    def _blocks_of_threads(self, length: int) -> int:
        """Blocks whose registers a multiprocessor holds: as many vectors of each input as a row has
        elements are loaded together."""
        loaded = len(self.moving) * MAX_VECTOR_NBYTES + sum(self.moving) + sum(self.shared)
        needed = CODE.registers + length * (self.sums + loaded / REGISTER_NBYTES)
        return int(REGISTERS_PER_SM // (needed * THREADS_OF_ROWS))

    def blocks(self, length: int, fast: int = 1, at_a_time: int = 1) -> int:
        """Blocks of a multiprocessor that walk over rows of `length` elements in C order, so many
        of them `at_a_time`, in which `fast` neighbours each have a result of their own; 0 where
        registers do not hold them."""
        if not self.moving:
            return 0
        lanes = lanes_of_word(min(self.moving))
        vector = math.gcd(length if fast == 1 else fast, lanes)
        is_skewed = are_short(vector, lanes) and fast == 1
        if is_skewed:
            vector, length = lanes, length_from_word(length, lanes)
        row = self.row(length, is_skewed=is_skewed, fast=fast)
        ways = ways_of(row, vector, REGISTERS_PER_SM, at_a_time)
        return ways[0].blocks if ways else 0


@dataclass(frozen=True, slots=True)
class Slices:
    """Blocks of a cluster that share a row, `length` elements of it each, such blocks of a
    multiprocessor, and what registers hold."""

    cluster: int
    length: int
    blocks: int
    held: RowRegisters


@dataclass(frozen=True, slots=True)
class PersistentRows:
    """Elements of a vector, vectors of a thread, threads along a row, rows side by side, the
    blocks that a multiprocessor holds, and the rows that a thread takes at a time, whose results
    threads exchange at once."""

    vector: int
    trips: int
    threads: int
    side_by_side: int
    blocks: int
    at_a_time: int = 1
    cluster: int = 1
    """Blocks that share a row, each with a slice of it."""


def persistent_rows(
    row: Row,
    vector: int,
    registers: int = REGISTERS_PER_SM,
    *,
    blocks: float = math.inf,
    each: float = math.inf,
) -> list[PersistentRows]:
    """The ways that fit the registers of a multiprocessor, the best ones first, those by warps
    behind them. Of several rows at a time where so many `blocks` of a multiprocessor would have no
    more than half of the bytes under way that it takes, or where threads exchange a vector of
    results for each row; but never where a block then takes its `each` rows in fewer steps than are
    worth a walk."""
    numbers = [n for n in ROWS_AT_A_TIME if n == 1 or n * LEAST_ROWS_OF_BLOCK <= each]
    by_number = {n: ways_of(row, vector, registers, n) for n in numbers}
    wanted = by_number[1][0].blocks if by_number[1] else 1
    first = max(1 if row.fast == 1 else 2, min(int(wanted // blocks), numbers[-1]))
    order = sorted(by_number, key=lambda n: (not n <= first < 2 * n, n))
    ways, *more = (by_number[n] for n in order)
    further = [way for some in more for way in some[:FURTHER]]
    for n in order[:2] if row.inputs == 1 else ():
        further += ways_of(row, vector, registers, n, by_warps=True)
    return [*ways, *further]


def ways_of(
    row: Row, vector: int, registers: int, at_a_time: int, *, by_warps: bool = False
) -> list[PersistentRows]:
    """The ways in which a thread takes so many rows at a time, the best one first: enough rows
    under way, then few lanes and schedulers idle while others work, then blocks that are not large,
    then few vectors a thread. Schedulers count, not only lanes: a block of 17 warps keeps all four
    busy for as long as one of 20 does. Several rows have to be loaded a trip ahead.
    `by_warps`: those in which a warp has a row that is longer than a vector for each of its lanes,
    which meet at no barrier."""
    vectors = max(-(-row.length // vector), 1)
    along = -(-row.fast // vector)
    found: list[tuple[tuple[bool, float, bool, int], PersistentRows]] = []
    for trips, threads in _of_warps(vectors, along) if by_warps else _shapes(vectors, along):
        side_by_side = max(1, LEAST_THREADS // threads)
        wanted = _blocks_wanted(row, side_by_side * at_a_time)
        needed = _registers_needed(row, vector, vectors, trips, threads)
        needed += (at_a_time - 1) * trips * vector * row.more_words
        results = vector if row.fast > 1 else 1
        needed += at_a_time * results if row.fast > 1 or at_a_time > 1 else 0
        warps = threads * side_by_side // WARP_SIZE
        fitting = (
            n for n in range(wanted, 0, -1) if needed <= registers_of_thread(n * warps, registers)
        )
        blocks = next(fitting, 0)
        room = nbytes_ahead(registers_of_thread(blocks * warps, registers)) if blocks else 0
        if blocks and (at_a_time == 1 or at_a_time * trips * vector * row.moving <= room):
            turns = -(-blocks * warps // PARTITIONS) * PARTITIONS * WARP_SIZE * trips
            idle = turns / (blocks * side_by_side * vectors)
            way = PersistentRows(vector, trips, threads, side_by_side, blocks, at_a_time)
            is_large = threads > LARGE_THREADS
            found.append(((4 * blocks < 3 * wanted, round(idle, 1), is_large, trips), way))
    return [way for _, way in sorted(found, key=lambda x: x[0])]


def _blocks_wanted(row: Row, side_by_side: int) -> int:
    """Blocks of which the rows have as many vectors under way as it takes."""
    at_once = side_by_side * -(-row.length * row.nbytes // MAX_VECTOR_NBYTES)
    vectors = 2 * RESIDENT_VECTORS if row.inputs == 1 or row.is_slice else RESIDENT_VECTORS
    return max(vectors // max(at_once, LEAST_THREADS), 1)


def _registers_needed(row: Row, vector: int, vectors: int, trips: int, threads: int) -> float:
    """Registers of a thread, of which `threads` share `vectors` vectors of a row."""
    needed = CODE.registers + trips * vector * row.words
    needed += SKEWED_REGISTERS * (1 + trips) if row.is_skewed else 0
    needed += RAGGED_REGISTERS if threads * trips > vectors else 0
    return needed + (MEETING_REGISTERS if threads < LEAST_THREADS else 0)


def _of_warps(vectors: int, along: int) -> Iterator[tuple[int, int]]:
    """The same of a warp that has a row, in which no neighbours have results of their own."""
    trips = -(-vectors // WARP_SIZE)
    if along == 1 and 1 < trips <= VECTORS_OF_LANE:
        yield trips, WARP_SIZE


def _shapes(vectors: int, along: int) -> Iterator[tuple[int, int]]:
    """Vectors of a thread and threads of a row, of which so many stand `along` neighbours: whole
    warps, a power of two below one, as far as these allow. Threads of short rows take one vector.
    """
    down = -(-vectors // along)
    fewest = -(-down // max(MAX_THREADS_PER_BLOCK // along, 1))
    for trips in range(fewest, fewest + CHOICES):
        threads = -(-down // trips) * along
        if trips > 1 and threads <= LEAST_THREADS - WARP_SIZE:
            return
        if threads < WARP_SIZE:
            rounded = 1 << max(threads - 1, 0).bit_length()
        else:
            rounded = -(-threads // WARP_SIZE) * WARP_SIZE
        yield trips, threads if rounded % along else rounded


def nbytes_ahead(registers: int) -> int:
    """Bytes of a thread with so many registers that are loaded a trip ahead."""
    return max(LEAST_AHEAD, registers * REGISTER_NBYTES // SHARE_AHEAD)


def registers_of_thread(warps: int, registers: int) -> int:
    """Registers of each thread where a multiprocessor holds so many warps."""
    each = registers // PARTITIONS // (-(-warps // PARTITIONS) * WARP_SIZE)
    return min(each - each % REGISTER_UNIT, MAX_REGISTERS_PER_THREAD)
