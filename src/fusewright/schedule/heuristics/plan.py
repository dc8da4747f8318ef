"""What a reduction schedule decides from: sizes, strides, registers and shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.axes.frames import Pinned
from fusewright.core.expr import Int, Var, constant_value
from fusewright.errors import InternalError
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.heuristics.common import (
    access_width,
    estimate,
    global_accesses,
    numel,
    split,
)
from fusewright.schedule.inline import consumers_of
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop
from fusewright.schedule.propagate import transform_like
from fusewright.target import MAX_VECTOR_NBYTES, WARP_SIZE, Target

PERSISTENT_BYTES_PER_THREAD = 128
"""Bytes of a row that a thread may hold in registers."""
FEW_BYTES_PER_THREAD = 64
"""Bytes that leave registers for several blocks on a multiprocessor."""
MAX_THREADS = 512
SLICE_THREADS = 256
"""Threads that walk over a slice of a row in shared memory."""
CLUSTERS = (2, 4, 8)
"""Blocks that may share a row."""


@dataclass(frozen=True, slots=True)
class Plan:
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


def reference_of(flow: Dataflow) -> Stage:
    for s in flow.stages:
        if s.is_reduction:
            return s
    raise InternalError("a reduction schedule for a group without reductions")


def is_inner(flow: Dataflow, reference: Stage) -> bool:
    """Whether the reduced axes are the fast ones of the largest tensor that has them."""
    best: tuple[int, bool] = (-1, True)
    for s in computed(flow.stages):
        for p, read in zip(s.operands, s.frame.operands, strict=True):
            if not p.is_input:
                continue
            size = numel(p.shape)
            for axis, index, stride in zip(p.shape, read, strides_of(p), strict=True):
                if isinstance(index, AxisClass) and stride == Int(1) and axis != Int(1):
                    touches = flow.graph.depends(index, reference.frame.reduced)
                    if size > best[0]:
                        best = (size, touches)
    return best[1]


def _elements_a_row(reference: Stage) -> int:
    n = 1
    for c in reference.frame.reduced:
        n *= estimate(c.extent)
    return n


def plan_of(
    flow: Dataflow,
    reference: Stage,
    kept: Loop | None,
    reduced: Loop | None,
    inner: bool,
    copies: list[Stage],
    target: Target,
) -> Plan:
    columns = _elements_a_row(reference)
    rows = numel(reference.shape)
    lanes_over = reduced if inner else kept
    vector = (
        widest_vector(flow, reference, kept, reduced, inner=inner) if lanes_over is not None else 1
    )
    constant = all(constant_value(c.extent) is not None for c in reference.frame.reduced)
    held = sum(c.dtype.nbytes for c in held_copies(flow, reference, copies))
    needed = constant and _is_normalisation(flow, reference)
    held_in: Memory | None = None
    cluster = 1
    if inner:
        wanted = Row(columns, vector, held if needed else 0, rows)
        held_in, threads, trips, cluster = _inner_choice(wanted, target)
        kept_threads = max(1, min(128 // threads, rows))
    else:
        vector, kept_threads, threads = _outer_choice(columns, rows, vector, target)
        trips = -(-columns // threads)
        if needed and trips * vector * max(held, 1) <= PERSISTENT_BYTES_PER_THREAD:
            held_in = Memory.LOCAL
    held_nbytes = threads * trips * vector * held * (kept_threads if inner else 1)
    return Plan(inner, held_in, vector, threads, kept_threads, trips, cluster, held_nbytes)


def _outer_choice(columns: int, rows: int, vector: int, target: Target) -> tuple[int, int, int]:
    """(lanes, threads along the kept axes, threads down the reduced ones): full warps of wide
    accesses where there are columns enough for every multiprocessor, else narrower blocks."""
    kept = min(WARP_SIZE, _power_of_two(rows // vector))
    while kept > 8 and rows < vector * kept * target.multiprocessors // 2:
        kept //= 2
    while vector > 1 and rows < vector * kept * target.multiprocessors // 4:
        vector //= 2
    crowded = rows >= vector * kept * target.multiprocessors
    down = min(16 if crowded else MAX_THREADS // kept, _power_of_two(columns // 4))
    return vector, kept, down


@dataclass(frozen=True, slots=True)
class Row:
    """One of `rows` rows: its columns, the lanes of an access, and the bytes a column that are
    needed more than once."""

    columns: int
    vector: int
    held: int
    rows: int


def _inner_choice(row: Row, target: Target) -> tuple[Memory | None, int, int, int]:
    """Where a row is held, its threads in a block, the trips of each, and the blocks that share
    it: registers while a thread holds few values, then shared memory while several blocks fit,
    then registers of a large block, then slices in the blocks of a cluster, then shared memory of
    one block."""
    columns, vector, held = row.columns, row.vector, row.held
    if not held:
        return None, *_threads_along(columns, vector), 1
    most = max(PERSISTENT_BYTES_PER_THREAD // (vector * held), 1)
    few = max(FEW_BYTES_PER_THREAD // (vector * held), 1)
    threads, trips = _threads_along(columns, vector, most_trips=few)
    if threads <= MAX_THREADS // 2 and trips <= few:
        return Memory.LOCAL, threads, trips, 1
    threads, trips = _threads_along(columns, vector)
    if vector > 1 and columns * held <= target.shared_nbytes_of_several:
        return Memory.SHARED, threads, trips, 1
    wide, wide_trips = _threads_along(columns, vector, most_trips=most)
    if wide_trips <= most:
        return Memory.LOCAL, wide, wide_trips, 1
    for nbytes in (FEW_BYTES_PER_THREAD, PERSISTENT_BYTES_PER_THREAD):
        for cluster in _cluster_sizes(row, target):
            where, threads, trips = _slice_choice(row, cluster, nbytes, target)
            if where is not None:
                return where, threads, trips, cluster
    wide, wide_trips = _threads_along(columns, vector, most=2 * MAX_THREADS)
    if vector > 1 and columns * held <= _shared_limit(target):
        return Memory.SHARED, wide, wide_trips, 1
    if wide_trips <= few:
        return Memory.LOCAL, wide, wide_trips, 1
    return None, wide, wide_trips, 1


def _cluster_sizes(row: Row, target: Target) -> tuple[int, ...]:
    """The sizes to try, smallest first; those that leave multiprocessors without a block last."""
    sizes = [n for n in CLUSTERS if n <= target.max_cluster]
    return tuple(sorted(sizes, key=lambda n: max(target.multiprocessors - n * row.rows, 0)))


def _slice_choice(
    row: Row, cluster: int, nbytes: int, target: Target
) -> tuple[Memory | None, int, int]:
    """Where a block of a cluster holds its slice of a row: in shared memory while several blocks
    fit, in registers, `nbytes` a thread at most, or nowhere. Small blocks: the more stand on a
    multiprocessor, the less it idles while a cluster meets."""
    columns = -(-row.columns // (cluster * row.vector)) * row.vector
    threads, trips = _threads_along(columns, row.vector, most=SLICE_THREADS)
    if row.vector > 1 and columns * row.held <= target.shared_nbytes_of_several:
        return Memory.SHARED, threads, trips
    most = max(nbytes // (row.vector * row.held), 1)
    threads, trips = _threads_along(columns, row.vector, most_trips=most)
    return Memory.LOCAL if trips <= most else None, threads, trips


def _shared_limit(target: Target) -> int:
    """Bytes of a row that shared memory may hold, with room for workspaces."""
    return target.shared_nbytes_per_block - 8 * 1024


def _threads_along(
    columns: int,
    vector: int,
    *,
    wanted: int = 4,
    most_trips: int = 1 << 30,
    most: int = MAX_THREADS,
) -> tuple[int, int]:
    """Threads that share a row, and the vectors each takes: whole warps that leave few lanes idle,
    about `wanted` vectors a thread and, where the threads suffice, at most `most_trips`."""
    vectors = max(-(-columns // vector), 1)
    if vectors <= 2 * WARP_SIZE:
        threads = min(_power_of_two(vectors), WARP_SIZE)
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


def held_copies(flow: Dataflow, reference: Stage, copies: list[Stage]) -> list[Stage]:
    """The copies of inputs that are worth holding between passes: those that a reduction needs,
    directly or not, and that differ from row to row and along the row. Scalars of a row and vectors
    that all rows share are found in a cache when they are read again."""
    needed: set[Stage] = set()
    stack = [s for s in flow.stages if s.is_reduction]
    while stack:
        for o in stack.pop().operands:
            if o not in needed:
                needed.add(o)
                stack.append(o)
    kept = [c for c in reference.frame.output if c.extent != Int(1)]
    return [
        c
        for c in copies
        if c in needed
        and _varies(flow, c, reference.frame.reduced)
        and (not kept or _varies(flow, c, tuple(kept)))
    ]


def _varies(flow: Dataflow, s: Stage, axes: tuple[AxisClass, ...]) -> bool:
    """Whether what a stage reads from memory depends on some of the axes."""
    return any(
        not isinstance(index, AxisClass | Pinned) or flow.graph.depends(index, axes)
        for read in s.frame.operands
        for index in read
        if not isinstance(index, Pinned)
    )


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def _is_normalisation(flow: Dataflow, reference: Stage) -> bool:
    """Whether anything that has the reduced axes is computed from a finished reduction, or two
    reductions follow each other: inputs are then needed more than once."""
    after: set[Stage] = set()
    for s in flow.stages:
        if any(o in after or o.is_reduction for o in s.operands):
            after.add(s)
    return any(
        flow.graph.depends(c, reference.frame.reduced) for s in after for c in s.frame.domain
    )


def widest_vector(
    flow: Dataflow, reference: Stage, kept: Loop | None, reduced: Loop | None, *, inner: bool
) -> int:
    """Lanes along the reduced axes (`inner`) or the kept ones that all large accesses allow."""
    smallest = min(
        [o.dtype.nbytes for s in computed(flow.stages) for o in s.operands if o.is_input] or [4]
    )
    width = min(MAX_VECTOR_NBYTES // smallest, 8)
    while width > 1 and not _allows(flow, reference, kept, reduced, inner, width):
        width //= 2
    return width


def _allows(
    flow: Dataflow,
    reference: Stage,
    kept: Loop | None,
    reduced: Loop | None,
    inner: bool,
    width: int,
) -> bool:
    lanes = reduced if inner else kept
    assert lanes is not None
    outer, inside = split(flow, lanes, width)
    other = kept if inner else reduced
    saved = {s: s.loops for s in flow.stages}
    reference.loops = tuple(x for x in (other, outer, inside) if x is not None)
    transform_like(flow, reference, align=True)
    lane = Var("lane", 0, width - 1)
    accesses = global_accesses(flow, inside.axis, lane)
    large = max((numel(a.tensor.shape) for a in accesses), default=1) // 2
    wide = [
        access_width(a, lane, width) >= min(width, MAX_VECTOR_NBYTES // a.tensor.dtype.nbytes)
        for a in accesses
        if numel(a.tensor.shape) >= large
    ]
    for s, loops in saved.items():
        s.loops = loops
    return bool(wide) and all(wide)


def stored_registers(flow: Dataflow, reference: Stage, copies: list[Stage], plan: Plan) -> int:
    """Registers a thread would need for the values with reduced axes that several passes read."""
    users = consumers_of(flow)
    elements = plan.unrolled * plan.vector
    words = 0
    for s in computed(flow.stages):
        wide = any(flow.graph.depends(c, reference.frame.reduced) for c in s.frame.output)
        several = len({u for u in users[s] if u.is_reduction}) > 0 and len(users[s]) > 1
        if wide and s.memory is Memory.LOCAL and (s in copies or several):
            nbytes = s.dtype.nbytes if s in copies else max(s.dtype.nbytes, 4)
            words += -(-elements * nbytes // 4)
    return words
