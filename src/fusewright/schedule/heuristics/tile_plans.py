"""Tiles by which reductions read tensors that are fast along different axes, as plain data.

A tile has lines along the axis on which threads compute (`near`) and as many elements of the other
one (`far`) side by side as fill sectors of memory. Rows that are needed again are held whole: by a
block, or, each a part of them, by the blocks of a cluster, which exchange what they reduce.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.held_values import STORED_REGISTERS
from fusewright.schedule.heuristics.reduction_plans import (
    FEW_ELEMENTS_PER_THREAD,
    LINE_THREADS,
    MAX_THREADS,
    RESIDENT_THREADS,
    WORKSPACE_NBYTES,
)
from fusewright.schedule.heuristics.sides import fits_run
from fusewright.target import (
    CLUSTER_SIZES,
    MAX_VECTOR_NBYTES,
    PARTITIONS,
    REGISTER_NBYTES,
    REGISTERS_PER_SM,
    WARP_SIZE,
    Target,
)

THREADS = (256, 512, 1024, 128)
"""Of a block: the first whose accesses are few enough, and that lines are dealt to evenly."""
MOST_ACCESSES = REGISTERS_PER_SM // MAX_THREADS // (MAX_VECTOR_NBYTES // REGISTER_NBYTES)
"""Of a thread to what a block brings at a time: all are under way together, and the registers of a
thread of a large block hold no more vectors."""

OTHER_REGISTERS = 32
"""Of a thread, beside those for what passes share: with 16, as rows of one input leave, ten of 22
draws spilled 12 to 376 bytes a thread (NVRTC 13.0, 2026-11-28)."""
LINES_OF_THREAD = (4, 2)
"""Of a tile with sums of its columns, lines of which a thread has a vector each: it adds them up
before it exchanges, which takes a fourth or half of the shared memory of the tile's elements."""


@dataclass(frozen=True, slots=True)
class TiledReduction:
    """Elements of a tile along the axis on which threads compute (`near`), and along the other one
    (`far`), elements of the vectors of inputs that are fast along either, and the threads of a
    block. `inner`: the near axis is the reduced one; `is_whole`: a tile has all of it, or the tiles
    of the blocks of a `cluster` have; `min_blocks`: that a multiprocessor should hold."""

    inner: bool
    near: int
    far: int
    near_width: int
    far_width: int
    threads: int
    is_whole: bool = False
    min_blocks: int = 0
    cluster: int = 1
    lines: int = 0
    """Of the near side that a thread has parts of; 0: as few as leave no thread idle."""

    @property
    def widths(self) -> tuple[int, int]:
        """Of vectors along the near and the far axis."""
        return self.near_width, self.far_width

    @property
    def threads_along(self) -> tuple[int, int]:
        """The threads that access a line together, along the near and along the far axis: as many
        as make wide accesses, or as the lines across leave idle."""
        sides = ((self.near, self.near_width, self.far), (self.far, self.far_width, self.near))
        near, far = (
            max(min(LINE_THREADS if w > 1 else WARP_SIZE, n // w), self.threads // lines)
            for n, w, lines in sides
        )
        return (self.threads * self.lines // self.far if self.lines else near), far

    @property
    def is_even(self) -> bool:
        """Whether all threads have as many vectors, and lines, of a full tile as any other, and
        those along one side are as many as some along the other."""
        near, far = self.threads_along
        return max(near, far) % min(near, far) == 0 and all(
            n // w % own == 0 and lines % (self.threads // own) == 0
            for n, w, own, lines in (
                (self.near, self.near_width, near, self.far),
                (self.far, self.far_width, far, self.near),
            )
        )

    @property
    def candidate(self) -> Candidate[TiledReduction]:
        """The plan with its parameters by name."""
        size = f"{self.far}x{self.near}"
        name = "inner_tiled" if self.inner else "outer_tiled"
        shared_out = f" in a cluster of {self.cluster}" if self.cluster > 1 else ""
        params = Params.of(
            name,
            min_blocks=self.min_blocks,
            tile=size,
            vectors=f"{self.far_width}, {self.near_width}",
            threads=self.threads,
            cluster=self.cluster if self.cluster > 1 else None,
            lines=self.lines or None,
        )
        return Candidate(f"inputs across by tiles of {size}{shared_out}", params, self)


@dataclass(frozen=True, slots=True)
class TileFacts:
    """`rows` rows of `whole` elements, reduced along the axis on which threads compute (`inner`) or
    not, the elements that follow each other along that axis (`run`) and along the other one
    (`others`), and of a word (`word`) of the widest type that lies across. Bytes an element of what
    lies across, and registers of what is computed of all that is read; whether anything needs it a
    second time; whether the length of rows is known; the rows of which a block makes `sums` partial
    results (`strip`), 0 where it makes none."""

    inner: bool
    whole: int
    rows: int
    run: int
    others: int
    word: int
    across_nbytes: int
    read_registers: int
    is_read_again: bool
    is_constant: bool
    strip: int = 0
    sums: int = 0

    @property
    def side(self) -> int:
        """The elements of a line of memory."""
        return self.word * LINE_THREADS

    def registers_of_element(self, widths: tuple[int, int]) -> int:
        """Registers for an element: of what passes share of each input, which is computed with, and
        of what comes across in less than whole registers, until it is in its tile."""
        item = MAX_VECTOR_NBYTES // self.word
        is_narrow = widths[1] * item < REGISTER_NBYTES
        return self.read_registers + (self.across_nbytes // item if is_narrow else 0)

    def clusters(self, target: Target) -> tuple[int, ...]:
        """Blocks that may share a row, the fewest first."""
        return CLUSTER_SIZES if self.is_constant and target.max_cluster > 1 else ()


def tiles_of(f: TileFacts, widths: tuple[int, int], target: Target) -> Iterator[TiledReduction]:
    """The tiles for vectors of these widths along the near and the far axis. What reductions read
    once they walk over; rows that are needed again are held."""
    if f.strip:
        yield from _of_strip(f, widths, target)
    elif f.is_read_again:
        yield from _whole(f, widths, target)
    else:
        near = _sizes(f.side, f.run)[0]
        found = (_tile(f, (near, far), widths, target) for far in _sizes(f.side, f.others))
        yield from [p for p in found if p is not None][:1]


def _whole(f: TileFacts, widths: tuple[int, int], target: Target) -> Iterator[TiledReduction]:
    """Tiles of whole rows, as many side by side as one may have at most: of a block, or, where none
    holds them, of the smallest cluster for each number of rows, those first of which others move
    data while one waits for its cluster."""
    fars = _sizes(f.side, f.others)
    for far in fars:
        plan = _tile(f, (_padded(f.whole, f.side), far), widths, target, cluster=1)
        if plan is not None:
            yield plan
            return
    shared: list[TiledReduction] = []
    for far in fars:
        found = [_shared_tile(f, far, cluster, widths, target) for cluster in f.clusters(target)]
        shared += _one_of([p for p in found if p is not None])
    yield from sorted(shared, key=lambda p: p.min_blocks == 1)


def _one_of(plans: Sequence[TiledReduction]) -> list[TiledReduction]:
    """The first of which a multiprocessor holds two blocks, so that one moves data while the other
    waits for its cluster; else the first."""
    return [p for p in plans if p.min_blocks > 1][:1] or [*plans[:1]]


def _shared_tile(
    f: TileFacts, far: int, cluster: int, widths: tuple[int, int], target: Target
) -> TiledReduction | None:
    """The plan of a tile of so many rows that about so many blocks share, each of which has some of
    every row, if such clusters fill the chip."""
    near = _padded(-(-f.whole // cluster), f.side)
    plan = _tile(f, (near, far), widths, target, cluster=cluster)
    blocks = 1 if plan is None else -(-f.whole // plan.near)
    fills = f.rows * blocks >= far * target.multiprocessors
    if plan is None or blocks == 1 or not fills or not fits_run(f.whole, plan.near):
        return None
    return replace(plan, cluster=blocks)


def _tile(
    f: TileFacts,
    tile: tuple[int, int],
    widths: tuple[int, int],
    target: Target,
    *,
    cluster: int = 0,
) -> TiledReduction | None:
    """The plan of a tile of whole rows that a block holds or a cluster of them does, or, for a
    cluster of 0, of a part of the rows; if shared memory holds it, and registers what compilers
    keep of rows that are read again. Whole rows are filled up so that threads have as many vectors.
    """
    near, far = tile
    is_whole = cluster > 0
    accesses = MOST_ACCESSES * min(widths)
    most = min(accesses, FEW_ELEMENTS_PER_THREAD) if is_whole else accesses
    for threads in THREADS:
        unit = threads // far * widths[0] if is_whole else 1
        length = _padded(near, max(unit, 1))
        shared_out = max(cluster, 1)
        inner = f.inner or is_whole
        plan = TiledReduction(inner, length, far, *widths, threads, is_whole, cluster=shared_out)
        held = length * far * f.across_nbytes
        fits = length * far <= most * threads and held <= target.shared_nbytes_of_several
        if fits and plan.is_even:
            if not is_whole:
                return plan
            words = length * far // threads * f.registers_of_element(widths)
            blocks = _blocks_at_once(threads, words if cluster > 1 else 0, held, target)
            if blocks:
                return replace(plan, min_blocks=blocks)
    return None


def _blocks_at_once(threads: int, words: int, nbytes: int, target: Target) -> int:
    """Blocks that a multiprocessor holds, of which a thread has so many registers for what passes
    share and a block so many bytes of shared memory; 0 where registers would spill. Warps are dealt
    to the schedulers, each of which has its part of the registers."""
    warps = -(-threads // (WARP_SIZE * PARTITIONS)) * PARTITIONS
    by_registers = target.registers_per_sm // (warps * WARP_SIZE * (words + OTHER_REGISTERS))
    room = target.shared_nbytes_per_sm // (nbytes + WORKSPACE_NBYTES)
    return min(RESIDENT_THREADS // threads, max(room, 1), by_registers)


def _of_strip(f: TileFacts, widths: tuple[int, int], target: Target) -> Iterator[TiledReduction]:
    """Tiles of whole rows as wide as a strip of which each column is reduced as well: by threads
    that have several of these, so that what they exchange of a column is less, in the smallest
    cluster whose blocks hold rows and sums."""
    found = (
        _strip_tile(f, widths, lines, cluster, target)
        for cluster in (1, *f.clusters(target))
        for lines in LINES_OF_THREAD
    )
    yield from _one_of([p for p in found if p is not None])


def _strip_tile(
    f: TileFacts, widths: tuple[int, int], lines: int, cluster: int, target: Target
) -> TiledReduction | None:
    """The plan of a strip in a cluster of about so many blocks, threads of which have so many lines
    each, if registers hold what passes share beside the sums of the columns and what all rows share
    of these, and shared memory the tile beside the sums."""
    width = widths[0]
    down = f.strip // lines
    vectors = -(-f.whole // (cluster * width))
    each = lines * width * f.registers_of_element(widths) + (f.sums + 1) * width
    for trips in range(1, max(STORED_REGISTERS // each, 1) + 1) if down else ():
        for unit in (WARP_SIZE >> k for k in reversed(range(WARP_SIZE.bit_length()))):
            along = _padded(-(-vectors // trips), unit)
            threads, near = along * down, along * width * trips
            blocks = -(-f.whole // near)
            plan = TiledReduction(
                True, near, f.strip, *widths, threads, True, cluster=blocks, lines=lines
            )
            sums = f.sums * threads * trips * width * REGISTER_NBYTES
            held = near * f.strip * f.across_nbytes + sums
            fits = threads <= RESIDENT_THREADS and held <= target.shared_nbytes_of_one
            if fits and not threads % WARP_SIZE and plan.is_even and fits_run(f.whole, near):
                most = _blocks_at_once(threads, trips * each, held, target)
                if most:
                    return replace(plan, min_blocks=most)
                break
    return None


def _sizes(side: int, run: int) -> list[int]:
    """The elements along a side that a tile may have, down to those of a sector: such that tiles do
    not lie far beyond its run."""
    sizes = [side, side // 2, side // 4]
    return [n for n in sizes if fits_run(run, n)] or sizes[-1:]


def _padded(size: int, unit: int) -> int:
    """A size filled up to whole units."""
    return -(-size // unit) * unit
