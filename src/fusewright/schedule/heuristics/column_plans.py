"""Plans for reductions along slow axes: threads side by side over columns, and down them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from fusewright.memory import Memory
from fusewright.schedule.heuristics.candidates import Candidate, Listed, Refused
from fusewright.schedule.heuristics.reduction_plans import (
    FEW_ELEMENTS_PER_THREAD,
    LEAST_BLOCK,
    LINE_THREADS,
    MAX_THREADS,
    PERSISTENT_BYTES_PER_THREAD,
    RESIDENT_THREADS,
    ROUNDS,
    SLICE_NBYTES,
    SLICE_SLACK,
    SLICE_THREADS,
    VECTORS_A_THREAD,
    ReductionFacts,
    ReductionPlan,
    blocks_at_once,
    power_of_two,
    threads_along,
)
from fusewright.target import (
    CLUSTER_SIZES,
    LINE_NBYTES,
    REGISTER_NBYTES,
    WARP_SIZE,
    Target,
)


def of_columns(rows: ReductionFacts, target: Target) -> Iterator[Listed[ReductionPlan]]:
    """Every way to reduce along slow axes, in the order of the rules; those of blocks that are as
    wide as a strip where partial results are of one."""
    if not rows.strip:
        yield from _of_columns(rows, target)
        return
    for c in _of_columns(rows, target):
        if isinstance(c, Candidate) and c.plan.kept_threads * c.plan.vector != rows.strip:
            yield Refused(c.what, f"partial results are of strips of {rows.strip} columns")
        else:
            yield c


def _of_columns(rows: ReductionFacts, target: Target) -> Iterator[Listed[ReductionPlan]]:
    """Full warps of wide accesses where there are columns enough for every multiprocessor, else
    narrower blocks; then fewer and more threads down the columns, and narrower vectors. Columns
    that are needed again are held in registers, if it takes that of more threads, with shorter
    vectors or fewer columns, in this order, as measured (bench/variants-2026-11-23-h200.json); else
    in shared memory, if a block or a cluster of blocks has room, or in registers of a cluster. What
    fills no half of a line of each row comes last: a quarter of one reached 0.39 and 0.23 of a copy
    (130010 and 130073 of the lot, one H100, 2026-11-27)."""
    vector, kept, down = _outer_choice(rows, target)
    first = _outer_plan(rows, vector, kept, down, target)
    if first.plan.held_in is None and rows.is_read_again and rows.held:
        shapes = [(vector, kept), *([(vector // 2, kept)] if vector > 1 else ())]
        shapes += [(vector, k) for k in (kept // 2, kept // 4) if k >= LINE_THREADS]
        others = [_outer_plan(rows, v, k, MAX_THREADS // k, target) for v, k in shapes]
        held = [c for c in others if c.plan.held_in is not None][:1]
        wide = [c for c in held if 2 * _width_nbytes(c.plan, rows) >= LINE_NBYTES]
        together = [*wide, *_outer_shared(rows, target), *_outer_registers(rows, target)]
        yield from together
        yield from (c for c in held if c not in wide)
        yield first
        if not any(isinstance(c, Candidate) for c in together):
            yield from _outer_gathered(rows, target)
    else:
        yield first
    # Fewer threads with sums of each row beside what they hold spill registers.
    for other in (2 * down,) if rows.strip else (down // 2, 2 * down):
        if 1 <= other <= rows.columns and other * kept <= 2 * MAX_THREADS:
            yield _outer_plan(rows, vector, kept, other, target)
        else:
            yield Refused(f"columns by {kept} by {other} threads", "not the threads of a block")
    if vector > 1:
        yield _outer_plan(rows, vector // 2, kept, down, target)
    if kept > 8:
        yield _outer_plan(rows, vector, kept // 2, min(2 * down, MAX_THREADS), target)
    if not rows.is_read_again:
        yield from _columns_shared_out(rows, vector, kept, down, target)
    yield from _lanes_down(rows, target)


def _lanes_down(rows: ReductionFacts, target: Target) -> Iterator[Listed[ReductionPlan]]:
    """Lanes down the columns where a row has less than a line of them: rows follow each other in
    memory, and threads side by side would read the columns of rows that lie far apart."""
    vector = math.gcd(rows.vector, rows.neighbours)
    if rows.neighbours * rows.item_nbytes >= LINE_NBYTES or rows.columns < WARP_SIZE:
        return
    for wanted in (VECTORS_A_THREAD, 2 * VECTORS_A_THREAD):
        down, _ = threads_along(rows.columns, 1, wanted=wanted)
        kept = max(1, min(2 * SLICE_THREADS // down, power_of_two(rows.rows // vector)))
        plan = _outer_plan(rows, vector, kept, down, target).plan
        if plan.held_in is not None or not rows.is_read_again:
            yield replace(plan, lanes_down=True).candidate(target)


def _columns_shared_out(
    rows: ReductionFacts, vector: int, kept: int, down: int, target: Target
) -> Iterator[Candidate[ReductionPlan]]:
    """The same of columns that are too few."""
    blocks = -(-rows.rows // (vector * kept))
    for cluster in reversed(CLUSTER_SIZES):
        own = -(-rows.columns // cluster)
        threads = min(down, power_of_two(own))
        fills = blocks * cluster <= target.multiprocessors and cluster <= target.max_cluster
        if rows.is_constant and fills and threads * kept % WARP_SIZE == 0 and own > 1:
            plan = ReductionPlan(False, None, vector, threads, kept, -(-own // threads), cluster)
            yield plan.candidate(target)


def _outer_shared(rows: ReductionFacts, target: Target) -> Iterator[Listed[ReductionPlan]]:
    """Columns in shared memory, whole lines of each row side by side: in slices, shared out among
    the blocks of a cluster, of which so many stand on a multiprocessor that some always move data,
    then larger ones, then one alone."""
    what = "columns in shared memory"
    if rows.vector == 1:
        yield Refused(what, "its elements cannot be copied in vectors")
        return
    small = 2 * SLICE_NBYTES + SLICE_NBYTES // SLICE_SLACK
    for limit in (small, target.shared_nbytes_of_several, target.shared_nbytes_of_one):
        plans = [
            p
            for cluster in (1, *sorted(n for n in CLUSTER_SIZES if n <= target.max_cluster))
            for kept in _whole_lines(rows)
            if (p := _slice_of_columns(rows, kept, cluster, target)).held_nbytes <= limit
            and rows.rows * cluster >= kept * rows.vector * target.multiprocessors
        ]
        if plans:
            yield plans[0].candidate(target)
        else:
            least = _whole_lines(rows)[-1]
            nbytes = _slice_of_columns(rows, least, target.max_cluster, target).held_nbytes
            yield Refused(what, f"{nbytes} bytes, more than {limit}")


def _width_nbytes(plan: ReductionPlan, rows: ReductionFacts) -> int:
    """Bytes of a row that a block takes side by side."""
    return plan.kept_threads * plan.vector * rows.item_nbytes


def _outer_registers(rows: ReductionFacts, target: Target) -> Iterator[Listed[ReductionPlan]]:
    """Columns in registers of the blocks of a cluster, a line of each row side by side: the fewest
    blocks of which a multiprocessor holds two, and twice as many; where none hold them blocks that
    have a multiprocessor to themselves. Of half a line, in blocks of 1024 threads, two draws took
    1.1 to 1.3 times as long as read twice (80119 and 80121 of the lot, one H100, 2026-11-27)."""
    what = "columns in registers of a cluster"
    sizes = [n for n in CLUSTER_SIZES if n <= target.max_cluster]
    kept = max(LINE_NBYTES // (rows.vector * rows.item_nbytes), 1)
    for threads in (MAX_THREADS, 2 * MAX_THREADS):
        plans = [
            p
            for cluster in sizes
            if (p := _registers_of_columns(rows, kept, threads, cluster)) is not None
            and rows.rows * cluster >= kept * rows.vector * target.multiprocessors
        ]
        yield from (p.candidate(target) for p in plans[:2])
        if plans:
            return
    yield Refused(what, f"more than {PERSISTENT_BYTES_PER_THREAD} bytes a thread")


def _registers_of_columns(
    rows: ReductionFacts, kept: int, threads: int, cluster: int
) -> ReductionPlan | None:
    """Columns of so many threads side by side, the rows shared out among the blocks of a cluster,
    if their registers hold them beside what is computed, which takes two for an element of 8 bytes:
    16 doubles of a thread of 512 were spilled."""
    down = threads // kept
    own = -(-rows.columns // cluster)
    trips = -(-own // down)
    elements = trips * rows.vector
    nbytes = elements * rows.held
    most = PERSISTENT_BYTES_PER_THREAD // (1 if rows.item_nbytes <= REGISTER_NBYTES else 2)
    if elements > FEW_ELEMENTS_PER_THREAD or nbytes > most:
        return None
    return ReductionPlan(
        False, Memory.LOCAL, rows.vector, down, kept, trips, cluster, threads * nbytes
    )


def _outer_gathered(rows: ReductionFacts, target: Target) -> Iterator[Listed[ReductionPlan]]:
    """Columns that no cluster holds, in shared memory of neighbouring blocks of the grid, or in
    registers where they cannot be copied: a line of each row side by side. Two blocks on a
    multiprocessor, so that one moves data while the other waits for the blocks that share its
    columns, else one."""
    what = "columns in blocks that wait for each other"
    if rows.strip:
        yield Refused(what, "each row has partial results as well")
        return
    for limit in (target.shared_nbytes_of_several, target.shared_nbytes_of_one):
        kept = _whole_lines(rows)[-1]
        strips = -(-rows.rows // (kept * rows.vector))
        least = min(max(blocks_at_once(limit, target) // strips, 2), target.multiprocessors)
        for parts in range(least, target.multiprocessors + 1):
            plan = _part_of_columns(rows, kept, parts, target)
            if plan is not None and plan.held_nbytes <= limit:
                yield plan.candidate(target)
                return
    yield Refused(what, f"more than {target.multiprocessors} blocks for a line of columns")


def _part_of_columns(
    rows: ReductionFacts, kept: int, parts: int, target: Target
) -> ReductionPlan | None:
    """Columns of so many threads side by side, the rows shared out among `parts` blocks: in shared
    memory, or in registers where rows begin anywhere."""
    if rows.vector > 1:
        return replace(_slice_of_columns(rows, kept, parts, target), cluster=1, parts=parts)
    plan = _registers_of_columns(rows, kept, MAX_THREADS, parts)
    return None if plan is None else replace(plan, cluster=1, parts=parts)


def _whole_lines(rows: ReductionFacts) -> tuple[int, ...]:
    """Threads side by side whose vectors fill lines of memory: several lines of a row or one; or a
    whole row of so few columns that the next one follows in the same line."""
    if rows.strip:
        return (max(rows.strip // rows.vector, 1),)
    short = rows.neighbours // rows.vector
    line = max(LINE_NBYTES // (rows.vector * rows.item_nbytes), 1)
    if 1 <= short < line and rows.neighbours % rows.vector == 0:
        return (short,)
    return tuple(n for n in (32, 16, 8) if n >= line) or (WARP_SIZE,)


def _slice_of_columns(
    rows: ReductionFacts, kept: int, cluster: int, target: Target
) -> ReductionPlan:
    """Vectors of so many threads side by side, the rows shared out among the blocks of a cluster
    and the other threads of a block: the more, the fewer blocks a multiprocessor has room for,
    while few lines stay empty."""
    own = -(-rows.columns // cluster)
    line = kept * rows.vector * rows.held
    blocks = max(1, target.shared_nbytes_per_sm // (own * line))
    unit = WARP_SIZE // math.gcd(kept, WARP_SIZE) if cluster > 1 else 1  # of whole warps
    least = max(min(2 * SLICE_THREADS // kept, power_of_two(own)) // unit, 1) * unit
    down = least
    while 2 * down * kept <= RESIDENT_THREADS // blocks and -own % (2 * down) <= own // 16:
        down *= 2
    trips = -(-own // down)
    return ReductionPlan(
        False, Memory.SHARED, rows.vector, down, kept, trips, cluster, down * trips * line
    )


def _outer_plan(
    rows: ReductionFacts, vector: int, kept: int, down: int, target: Target
) -> Candidate[ReductionPlan]:
    trips = -(-rows.columns // down)
    held = rows.is_read_again and (
        trips * vector * max(rows.held, 1) <= PERSISTENT_BYTES_PER_THREAD
    )
    nbytes = down * trips * vector * rows.held
    where = Memory.LOCAL if held else None
    return ReductionPlan(False, where, vector, down, kept, trips, 1, nbytes).candidate(target)


def _outer_choice(rows: ReductionFacts, target: Target) -> tuple[int, int, int]:
    """(lanes, threads along the kept axes, threads down the reduced ones)."""
    columns, vector = rows.rows, rows.vector
    if rows.strip:
        kept = max(rows.strip // vector, 1)
        most = max(min(MAX_THREADS // kept, power_of_two(rows.columns // 2)), 1)
        return vector, kept, _down(rows, vector, most, target)
    kept = min(WARP_SIZE, power_of_two(columns // vector))
    while kept > 8 and columns < vector * kept * target.multiprocessors // 2:
        kept //= 2
    while vector > 1 and columns < vector * kept * target.multiprocessors // 4:
        vector //= 2
    crowded = columns >= vector * kept * target.multiprocessors
    most = min(16 if crowded else MAX_THREADS // kept, power_of_two(rows.columns // 4))
    down = _down(rows, vector, most, target)
    while (
        kept * down < LEAST_BLOCK and columns >= 2 * LEAST_BLOCK * vector * target.multiprocessors
    ):
        kept *= 2
    return vector, kept, down


def _down(rows: ReductionFacts, vector: int, most: int, target: Target) -> int:
    """Threads down the columns: as few as fill the chip, since each of them exchanges the sums of
    all its columns with the others; of columns that are needed again as many as hold them beside
    what is computed of them, if that takes no more than `most`; half of the elements where sums
    of each row are made, too."""
    threads = ROUNDS * target.threads_per_sm * target.multiprocessors
    down = min(most, power_of_two(threads * vector // rows.rows))
    few = FEW_ELEMENTS_PER_THREAD // (2 if rows.strip else 1)
    while down < most and rows.is_read_again:
        elements = -(-rows.columns // down) * vector
        held = elements * max(rows.held, 1)
        if elements <= few and held <= PERSISTENT_BYTES_PER_THREAD:
            break
        down *= 2
    return down
