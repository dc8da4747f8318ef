"""The ways to schedule a reduction: where rows are held, and how threads share them.

Plain data in, plain data out: `ReductionFacts` is what is known of a group, a `ReductionPlan` is
one way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fusewright.fusion.sizes import power_of_two
from fusewright.memory import Memory
from fusewright.schedule.heuristics.candidates import Candidate, Listed, Refused
from fusewright.schedule.heuristics.common import Params
from fusewright.target import (
    CLUSTER_SIZES,
    LINE_NBYTES,
    MAX_VECTOR_NBYTES,
    SMALL_BLOCK,
    WARP_SIZE,
    Target,
)

PERSISTENT_BYTES_PER_THREAD = 128
"""Bytes of a row that a thread may hold in registers."""
FEW_BYTES_PER_THREAD = 64
"""Bytes that leave registers for several blocks on a multiprocessor."""
FEW_ELEMENTS_PER_THREAD = 48
"""Elements, which may be computed with as floats, that fit beside others into the 64 registers of a
thread of two blocks."""
MAX_THREADS = 512
SLICE_NBYTES = 16 * 1024
SLICE_THREADS = SMALL_BLOCK
"""A slice of a row in shared memory of which so many stand on a multiprocessor that some always
move data, and the threads that walk over it; twice as many over larger ones."""
SLICE_SLACK = 8
"""The part of its bytes by which a slice may be larger, rather than far larger in fewer blocks."""
VECTORS_A_THREAD = 4
"""Vectors of a row that a thread takes where nothing else decides."""
LEAST_BLOCK = SMALL_BLOCK
"""Threads of a block of several short rows, or of short columns that fill the chip: a
multiprocessor holds no more blocks than would leave half of it idle if they were warps."""
ROWS_OF_THREAD = (2, 4)
"""Rows that a thread of a row's lanes may take instead of one: it waits for memory, and exchanges,
once for all of them."""
LINE_THREADS = LINE_NBYTES // MAX_VECTOR_NBYTES
"""Threads whose widest vectors fill a line of a row. Of columns in shared memory, measured on an
H200 on 2026-11-23, a quarter of a line a row reaches 0.4 of a copy, half of one 0.57, whole lines
0.8."""
RESIDENT_THREADS = 1024
ROUNDS = 2
"""Times that blocks fill the chip. Of one round all of the chip would wait for the last block, of
two, which do not run in step, for half a block; more rounds are as many exchanges more."""
WORKSPACE_NBYTES = 2048
"""Shared memory of a block beside the rows it holds: workspaces and what the system takes."""


@dataclass(frozen=True, slots=True)
class ReductionFacts:
    """`rows` rows of `columns` elements, reduced along the fast axes of memory (`inner`) or not:
    the lanes that an access may have, the bytes a column of what is worth holding, whether anything
    needs it a second time, and whether columns are counted from another address in each row."""

    inner: bool
    columns: int
    rows: int
    vector: int
    held: int
    is_read_again: bool
    is_skewed: bool = False
    neighbours: int = 1 << 30
    """Of columns that are not inner: how many lie next to each other in each row."""
    is_constant: bool = True
    """Whether the number of columns is known, so that clusters may share them out."""
    item_nbytes: int = MAX_VECTOR_NBYTES
    """Bytes of an element of the largest type that is worth holding."""
    is_masked: bool = False
    """Whether that is what masks by position leave: registers tell which lanes are dropped."""
    strip: int = 0
    """Columns that a block has side by side, where it makes a partial result of them in each row;
    0 for as many as suit it."""

    most: int = 0
    """Columns at most, where their number is a symbol's that has a maximum; else 0."""

    run_nbytes: int = 1 << 30
    """Of rows that are inner and in pieces: the bytes of a piece that lie side by side."""

    @property
    def nbytes(self) -> int:
        """Bytes of a row that are worth holding, of the longest one where lengths differ."""
        return (self.most or self.columns) * self.held

    def slice_columns(self, cluster: int) -> int:
        """The columns of a block where as many as a cluster has share a row, in whole vectors."""
        return -(-self.columns // (cluster * self.vector)) * self.vector

    def slice_nbytes(self, cluster: int) -> int:
        """Bytes of them that are worth holding; of a row that is not shared those it has."""
        return self.slice_columns(cluster) * self.held if cluster > 1 else self.nbytes


@dataclass(frozen=True, slots=True)
class ReductionPlan:
    """Threads along the kept and the reduced axes, lanes, trips of a thread, and where the inputs
    of a row stay between passes: registers, shared memory, or nowhere (None: read again)."""

    inner: bool
    held_in: Memory | None
    vector: int
    reduce_threads: int
    kept_threads: int
    unrolled: int
    cluster: int = 1
    """Blocks that share a row, each holding its slice."""
    held_nbytes: int = 0
    """Bytes that a block holds of the inputs of its rows."""
    rows: int = 1
    """Rows that a thread has part of."""
    lanes_down: bool = False
    """Whether the lanes of a warp share columns, of which a row has less than a line."""
    parts: int = 1
    """Blocks of the grid, neighbours, that share a row and gather each other's results."""
    lanes_across: bool = False
    """Whether the lanes of a warp have rows of their own, whose pieces lie side by side."""

    def candidate(self, target: Target) -> Candidate[ReductionPlan]:
        """The plan with its parameters by name."""
        kind = "inner" if self.inner else "outer"
        if self.cluster > 1:
            kind += "_cluster"
        if self.parts > 1:
            kind += "_gathered"
        where = {Memory.LOCAL: "persistent", Memory.SHARED: "shared", None: "multi_pass"}
        params = Params.of(
            f"{kind}_{where[self.held_in]}",
            min_blocks=self._min_blocks(target),
            vector=self.vector,
            reduce_threads=self.reduce_threads,
            kept_threads=self.kept_threads,
            cluster=self.cluster if self.cluster > 1 else None,
            rows=self.rows if self.rows > 1 else None,
            lanes_down=self.lanes_down or None,
            parts=self.parts if self.parts > 1 else None,
            lanes_across=self.lanes_across or None,
        )
        return Candidate(self.what, params, self)

    def _min_blocks(self, target: Target) -> int:
        """Blocks that a multiprocessor should hold of kernels that walk over a row in shared
        memory, or hold many rows in registers: caps what the compiler spends on loads ahead."""
        threads = self.reduce_threads * self.kept_threads
        crowded = self.held_in is Memory.SHARED or (self.held_in is Memory.LOCAL and not self.inner)
        most = min(RESIDENT_THREADS // threads, target.blocks_per_sm)
        if self.held_in is Memory.LOCAL and self.unrolled * self.vector > FEW_ELEMENTS_PER_THREAD:
            most = 1
        if self.held_in is Memory.SHARED:
            most = min(most, target.shared_nbytes_per_sm // (self.held_nbytes + WORKSPACE_NBYTES))
        return max(1, most) if crowded else 0

    @property
    def what(self) -> str:
        """The plan in words."""
        where = {Memory.LOCAL: "in registers", Memory.SHARED: "in shared memory", None: "read"}
        held = where[self.held_in]
        if not self.inner:
            size = f"{self.kept_threads} by {self.reduce_threads} threads, vectors of {self.vector}"
            shared_out = f" of a cluster of {self.cluster}" if self.cluster > 1 else ""
            shared_out = f" of {self.parts} blocks" if self.parts > 1 else shared_out
            down = ", lanes down" if self.lanes_down else ""
            return f"columns {held}{shared_out}, {size}{down}"
        if self.cluster > 1:
            return (
                f"row in a cluster of {self.cluster}, slices {held}, {self.reduce_threads} threads"
            )
        if self.parts > 1:
            return f"row in {self.parts} blocks, slices {held}, {self.reduce_threads} threads"
        several = f", {self.kept_threads} rows a block" if self.kept_threads > 1 else ""
        at_once = f", {self.rows} at once" if self.rows > 1 else ""
        at_once += ", lanes across" if self.lanes_across else ""
        return f"row {held}, {self.reduce_threads} threads{several}{at_once}"


def of_rows(rows: ReductionFacts, target: Target) -> Iterator[Listed[ReductionPlan]]:
    """Every way to reduce along the fast axes, in the order of the rules."""
    if not rows.is_read_again or not rows.held:
        yield from _passes(rows, target)
        yield from _across_rows(rows, None, target)
        return
    first: ReductionPlan | None = None
    for c in _holders(rows, target):
        yield c
        if first is None and isinstance(c, Candidate):
            first = c.plan
    if first is not None:
        yield from _other_threads(rows, first, target)
        yield from _several_rows(rows, first, target)
        yield from _across_rows(rows, Memory.LOCAL, target)


def _passes(rows: ReductionFacts, target: Target) -> Iterator[Listed[ReductionPlan]]:
    """A row is walked over and kept nowhere: blocks of the usual size, then threads that take more
    and fewer vectors."""
    for wanted in (VECTORS_A_THREAD, 2 * VECTORS_A_THREAD, VECTORS_A_THREAD // 2):
        threads, trips = threads_along(rows.columns, rows.vector, wanted=wanted)
        yield _plan(rows, None, threads, trips, target)
    threads, trips = threads_along(rows.columns, rows.vector, most=2 * SLICE_THREADS)
    yield _plan(rows, None, threads, trips, target)
    if _fills_alone(rows, target):
        threads, trips = threads_along(rows.columns, rows.vector, most=2 * MAX_THREADS)
        yield _plan(rows, None, threads, trips, target)
    threads, trips = threads_along(rows.columns, rows.vector)
    yield from _several_rows(rows, _plan(rows, None, threads, trips, target).plan, target)
    yield from _shared_out(rows, target)


def _fills_alone(rows: ReductionFacts, target: Target) -> bool:
    """Whether most multiprocessors have a row each, and none has two, of so many vectors that the
    threads of a block walk over it: nothing is read there while these wait."""
    most = target.multiprocessors
    is_long = rows.columns > 2 * MAX_THREADS * VECTORS_A_THREAD * rows.vector
    return is_long and most < 2 * rows.rows <= 2 * most


def _shared_out(rows: ReductionFacts, target: Target) -> Iterator[Candidate[ReductionPlan]]:
    """Rows that are too few for the multiprocessors, each shared out among the blocks of a cluster:
    as many vectors for each thread to wait for as there would be in another kernel's parts."""
    for cluster in reversed(CLUSTER_SIZES):
        threads, trips = threads_along(rows.slice_columns(cluster), rows.vector)
        fills = rows.rows * cluster <= target.multiprocessors and cluster <= target.max_cluster
        if rows.is_constant and fills and threads >= WARP_SIZE:
            yield _plan(rows, None, threads, trips, target, cluster)


def _holders(rows: ReductionFacts, target: Target) -> Iterator[Listed[ReductionPlan]]:
    """Where a row is held: registers while a thread holds few values, then shared memory while
    several blocks fit, then registers of a large block, then slices in the blocks of a cluster,
    then shared memory of one block, then registers of the largest block; or it is read again."""
    if not rows.is_constant:
        yield from _of_any_length(rows, target)
        return
    fits = False
    for c in _in_a_block(rows, target):
        fits = fits or isinstance(c, Candidate)
        yield c
    if fits:
        yield Refused("row in a cluster", "a row fits a block")
        yield Refused("row in shared memory, alone", "a row fits beside others")
    else:
        together = [*_clusters(rows, target), *_alone(rows, target)]
        yield from together
        fits = any(isinstance(c, Candidate) for c in together)
    threads, trips = threads_along(rows.columns, rows.vector, most=2 * MAX_THREADS)
    yield _plan(rows, None, threads, trips, target)
    if not fits:
        yield from _gathered(rows, target)


def _of_any_length(rows: ReductionFacts, target: Target) -> Iterator[Listed[ReductionPlan]]:
    """Rows whose length a call says: shared memory has room for the longest one, of which threads
    fill what there is. A longest one that leaves a multiprocessor a single block does so at every
    length, so that rows are then read again."""
    yield Refused("row in registers", "its length is a number of the call")
    threads, trips = threads_along(rows.columns, rows.vector)
    most = target.shared_nbytes_of_several
    yield _held(rows, Memory.SHARED, most, (threads, trips), target)
    threads, trips = threads_along(rows.columns, rows.vector, most=2 * MAX_THREADS)
    yield _plan(rows, None, threads, trips, target)


def _in_a_block(rows: ReductionFacts, target: Target) -> Iterator[Listed[ReductionPlan]]:
    """The whole row in a block of which a multiprocessor holds several, or in a large one."""
    few, most = (_trips(rows, n) for n in (FEW_BYTES_PER_THREAD, PERSISTENT_BYTES_PER_THREAD))
    threads, trips = threads_along(rows.columns, rows.vector, most_trips=few)
    if threads <= MAX_THREADS // 2:
        yield _held(rows, Memory.LOCAL, FEW_BYTES_PER_THREAD, (threads, trips), target)
    else:
        why = f"at most {MAX_THREADS // 2} threads leave room for several blocks"
        yield Refused(f"row in registers, {threads} threads", why)
    fewest = 1 << 30
    if rows.nbytes > target.shared_nbytes_per_sm // 4:  # memory, not threads, limits the blocks
        fewest = -(-rows.columns // (rows.vector * MAX_THREADS))
    shared_out = threads_along(rows.columns, rows.vector, most_trips=fewest)
    shared = _held(rows, Memory.SHARED, target.shared_nbytes_of_several, shared_out, target)
    shared_out = threads_along(rows.columns, rows.vector, most_trips=most)
    registers = _held(rows, Memory.LOCAL, PERSISTENT_BYTES_PER_THREAD, shared_out, target)
    yield from (registers, shared) if rows.is_masked else (shared, registers)


def _trips(rows: ReductionFacts, nbytes: int) -> int:
    """Vectors of a row in so many bytes of a thread's registers, at least one."""
    return max(nbytes // (rows.vector * rows.held), 1)


def _held(
    rows: ReductionFacts,
    where: Memory,
    most: int,
    shared_out: tuple[int, int],
    target: Target,
    cluster: int = 1,
) -> Listed[ReductionPlan]:
    """A row, or the slice of it in each block of a cluster, in shared memory, of which it takes
    `most` bytes, or in registers, `most` bytes of a thread or one vector; shared out among so many
    threads, each of which has so many vectors."""
    threads, trips = shared_out
    in_shared = where is Memory.SHARED
    nbytes = rows.slice_nbytes(cluster) if in_shared else trips * rows.vector * rows.held
    if in_shared and rows.vector == 1:
        why = "its elements cannot be copied in vectors"
    elif nbytes > most if in_shared else trips > _trips(rows, most):
        why = f"{nbytes} bytes{'' if in_shared else ' a thread'}, more than {most}"
    else:
        return _plan(rows, where, threads, trips, target, cluster)
    memory = "shared memory" if in_shared else "registers"
    shared = f" of a cluster of {cluster}" if cluster > 1 else ""
    return Refused(f"row in {memory}{shared}, {threads} threads", why)


def _clusters(rows: ReductionFacts, target: Target) -> Iterator[Listed[ReductionPlan]]:
    """Slices of a row in the blocks of a cluster. The more blocks stand on a multiprocessor, the
    less it idles while a cluster meets: the smallest cluster whose slices are small comes first,
    then larger slices, those of blocks that have a multiprocessor to themselves last; of a size
    those that leave multiprocessors without a block come last."""
    sizes = [n for n in CLUSTER_SIZES if n <= target.max_cluster]
    sizes.sort(key=lambda n: max(target.multiprocessors - n * rows.rows, 0))
    for limit in (SLICE_NBYTES, 2 * SLICE_NBYTES):
        for cluster in sizes:
            yield _slices(rows, cluster, 0, limit + limit // SLICE_SLACK, target)
    for nbytes in (FEW_BYTES_PER_THREAD, PERSISTENT_BYTES_PER_THREAD):
        for cluster in sizes:
            yield _slices(rows, cluster, nbytes, target.shared_nbytes_of_several, target)
    for cluster in sizes:
        yield _shared_slices(rows, cluster, target.shared_nbytes_of_one, target)


def _gathered(rows: ReductionFacts, target: Target) -> Iterator[Listed[ReductionPlan]]:
    """Slices of a row that no cluster holds in shared memory of neighbouring blocks of the grid,
    which gather each other's results: as many as run at once, or as a row needs. Two blocks on a
    multiprocessor, so that one moves data while the other waits, else one."""
    for limit in (target.shared_nbytes_of_several, target.shared_nbytes_of_one):
        least = max(blocks_at_once(limit, target) // rows.rows, -(-rows.nbytes // limit), 2)
        for parts in range(min(least, target.multiprocessors), target.multiprocessors + 1):
            found = _shared_slices(rows, parts, limit, target)
            if isinstance(found, Candidate) and parts * rows.vector <= rows.columns:
                yield replace(found.plan, cluster=1, parts=parts).candidate(target)
                return
    what = "row in blocks that wait for each other"
    yield Refused(what, f"{rows.nbytes} bytes, or no vectors to copy")


def blocks_at_once(nbytes: int, target: Target) -> int:
    """Blocks of so much shared memory that run at once, two on a multiprocessor at most."""
    return target.multiprocessors * (1 if nbytes > target.shared_nbytes_of_several else 2)


def _slices(
    rows: ReductionFacts, cluster: int, nbytes: int, shared_nbytes: int, target: Target
) -> Listed[ReductionPlan]:
    """Where a block of a cluster holds its slice of a row: in shared memory, `shared_nbytes` at
    most, in registers, `nbytes` a thread at most, or nowhere."""
    found = _shared_slices(rows, cluster, shared_nbytes, target)
    if isinstance(found, Candidate):
        return found
    columns = rows.slice_columns(cluster)
    shared_out = threads_along(columns, rows.vector, most_trips=_trips(rows, nbytes))
    return _held(rows, Memory.LOCAL, nbytes, shared_out, target, cluster)


def _shared_slices(
    rows: ReductionFacts, cluster: int, most: int, target: Target
) -> Listed[ReductionPlan]:
    """Slices in shared memory, `most` bytes of each block; the larger, the fewer blocks stand on a
    multiprocessor, and the more threads each of them has."""
    own, columns = rows.slice_nbytes(cluster), rows.slice_columns(cluster)
    small = SLICE_NBYTES + SLICE_NBYTES // SLICE_SLACK
    threads = SLICE_THREADS if own <= small else 2 * SLICE_THREADS
    if own > target.shared_nbytes_of_several:
        threads = 2 * MAX_THREADS
    fewest = -(-columns // (rows.vector * threads))
    shared_out = threads_along(columns, rows.vector, most_trips=fewest, most=threads)
    return _held(rows, Memory.SHARED, most, shared_out, target, cluster)


def _alone(rows: ReductionFacts, target: Target) -> Iterator[Listed[ReductionPlan]]:
    """The whole row in a block that has a multiprocessor to itself."""
    shared_out = threads_along(rows.columns, rows.vector, most=2 * MAX_THREADS)
    yield _held(rows, Memory.SHARED, target.shared_nbytes_of_one, shared_out, target)
    yield _held(rows, Memory.LOCAL, FEW_BYTES_PER_THREAD, shared_out, target)


def _other_threads(
    rows: ReductionFacts, first: ReductionPlan, target: Target
) -> Iterator[Listed[ReductionPlan]]:
    """The same with half and twice the threads a row, as far as a block and its registers go, and
    with the parts of a warp that leave fewer lanes idle."""
    columns = -(-rows.columns // first.cluster)
    vectors = -(-columns // rows.vector)
    if first.cluster == 1 and first.held_in is Memory.LOCAL:
        least = LINE_NBYTES // (rows.vector * rows.item_nbytes)
        for threads, trips in _parts_of_warp(vectors, least, first.reduce_threads):
            if trips * rows.vector * rows.held <= PERSISTENT_BYTES_PER_THREAD:
                yield _plan(rows, first.held_in, threads, trips, target)
    for threads in (first.reduce_threads // 2, 2 * first.reduce_threads):
        trips = -(-vectors // max(threads, 1))
        what = f"the same with {threads} threads a row"
        if not WARP_SIZE <= threads <= min(2 * MAX_THREADS, vectors):
            yield Refused(what, "no whole warps of a block with a vector a thread")
        elif first.held_in is Memory.LOCAL and (
            trips * rows.vector * rows.held > PERSISTENT_BYTES_PER_THREAD
        ):
            yield Refused(what, f"{trips * rows.vector * rows.held} bytes a thread")
        else:
            yield _plan(rows, first.held_in, threads, trips, target, first.cluster)


def _parts_of_warp(vectors: int, least: int, most: int) -> Iterator[tuple[int, int]]:
    """The lanes of a warp, fewer than `most`, that may share a row of so many vectors with fewer of
    them idle than any more lanes leave, and the vectors of each; at least as many as fill a line,
    which narrower accesses would look up again."""
    busy = vectors / (-(-vectors // most) * most)
    threads = min(most // 2, WARP_SIZE // 2)
    while threads >= max(least, 2) and busy < 1:
        trips = -(-vectors // threads)
        if vectors / (trips * threads) > busy:
            busy = vectors / (trips * threads)
            yield threads, trips
        threads //= 2


def _several_rows(
    rows: ReductionFacts, first: ReductionPlan, target: Target
) -> Iterator[Listed[ReductionPlan]]:
    """The same with several rows for the lanes that share one, while registers leave room for
    several blocks. Rows of more than a warp meet in shared memory, row by row."""
    for several in ROWS_OF_THREAD:
        what = f"the same with {several} rows at once"
        nbytes = several * first.unrolled * rows.vector * max(rows.held, 1)
        if first.reduce_threads > WARP_SIZE or first.held_in is Memory.SHARED:
            yield Refused(what, "a row's threads meet in shared memory")
        elif rows.is_skewed:
            yield Refused(what, "a thread's columns are others in each row")
        elif nbytes > FEW_BYTES_PER_THREAD:
            yield Refused(what, f"{nbytes} bytes a thread, more than {FEW_BYTES_PER_THREAD}")
        elif rows.rows < several * first.kept_threads * target.multiprocessors:
            yield Refused(what, f"{rows.rows} rows are too few for blocks of more")
        else:
            held = several * first.held_nbytes
            yield replace(first, rows=several, held_nbytes=held).candidate(target)


def _across_rows(
    rows: ReductionFacts, held_in: Memory | None, target: Target
) -> Iterator[Candidate[ReductionPlan]]:
    """The lanes of a warp each have a row of their own, where a row is in pieces that are shorter
    than a line: those of neighbours lie side by side, and lanes that share a row would ask for a
    line each. As few threads a row as registers allow, and more."""
    if rows.run_nbytes >= LINE_NBYTES or not rows.is_constant:
        return
    vectors = -(-rows.columns // rows.vector)
    for threads in (1 << k for k in range(WARP_SIZE.bit_length())):
        trips = -(-vectors // threads)
        beside = max(WARP_SIZE, LEAST_BLOCK // threads)
        nbytes = trips * rows.vector * rows.held
        fits = held_in is None or (
            nbytes <= PERSISTENT_BYTES_PER_THREAD and trips * rows.vector <= FEW_ELEMENTS_PER_THREAD
        )
        if fits and threads <= vectors and beside <= rows.rows:
            plan = _plan(rows, held_in, threads, trips, target).plan
            held = nbytes * threads * beside
            across = replace(plan, kept_threads=beside, held_nbytes=held, lanes_across=True)
            yield across.candidate(target)


def _plan(
    rows: ReductionFacts,
    held_in: Memory | None,
    threads: int,
    trips: int,
    target: Target,
    cluster: int = 1,
) -> Candidate[ReductionPlan]:
    if rows.rows == 1:
        threads = max(threads, WARP_SIZE)  # whole warps may stand beside other kernels in a launch
    side_by_side = max(1, min(LEAST_BLOCK // threads, rows.rows))
    vectors = -(-rows.most // (threads * rows.vector)) if rows.most else trips
    nbytes = threads * vectors * rows.vector * rows.held * side_by_side
    plan = ReductionPlan(True, held_in, rows.vector, threads, side_by_side, trips, cluster, nbytes)
    return plan.candidate(target)


def threads_along(
    columns: int,
    vector: int,
    *,
    wanted: int = VECTORS_A_THREAD,
    most_trips: int = 1 << 30,
    most: int = MAX_THREADS,
) -> tuple[int, int]:
    """Threads that share a row, and the vectors each takes: whole warps that leave few lanes idle,
    about `wanted` vectors a thread and, where the threads suffice, at most `most_trips`."""
    vectors = max(-(-columns // vector), 1)
    if vectors <= 2 * WARP_SIZE:
        threads = min(power_of_two(vectors), WARP_SIZE)
        return threads, -(-vectors // threads)
    choices: list[tuple[bool, float, int, int]] = []
    for threads in range(WARP_SIZE, most + 1, WARP_SIZE):
        trips = -(-vectors // threads)
        waste = trips * threads / vectors - 1
        odd = 0.02 if threads & (threads - 1) else 0.0
        far = 0.01 * abs(trips - min(wanted, most_trips))
        choices.append((trips > most_trips, round(waste + odd + far, 3), threads, trips))
    best = min(choices)
    return best[2], best[3]
