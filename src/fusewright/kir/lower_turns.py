"""Reductions over blocks: each block adds its part to what earlier ones left, in their order.

    acquire f[group] until order
    if (0 < order)         part = work[group, ..] + part
    if (order < count - 1) work[group, ..] = part
    release f[group] = (order + 1) % count

The last block holds the sum in registers; what reads it runs there. In mode "tma" the copy engine
adds parts from shared memory to `work`: multiples of 16 bytes, so that a part of fewer, such as the
one element of a full sum, ends with elements that change nothing. In mode "slices" every block
leaves its part, waits until all are there, and finishes a share of the sum in its first threads,
its last ones in the last:

    work[group, order, ..] = part;  arrive f[group];  acquire f[group] until count;  leave f[group]
    if (mine) part = work[group, 0, ..] + .. + work[group, count - 1, ..]

In mode "all" every block adds up all parts, so that what reads the sum runs in each of them. Its
threads may reduce, too: they have one part then, and share out what they load of the others.

The blocks of a cluster do that in shared memory, without semaphores (`kir/lower_clusters.py`).
Where a reduction runs over clusters and over the blocks of each, clusters reduce first, and each
block leaves the share that it has finished to the blocks of its rank.

Every thread keeps to elements of `work` of its own, neighbours side by side in whole vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from fusewright.axes.classes import AxisClass
from fusewright.axes.paths import value_of
from fusewright.core.conditions import (
    TRUE,
    Cond,
    all_of,
    equal,
    less,
    less_equal,
    substitute_condition,
)
from fusewright.core.expr import ONE, ZERO, Expr, Int, Var, constant_value, mod, variables
from fusewright.core.identities import reduction_identity
from fusewright.dtypes import DType, uint32, uint64
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import MatMul, Reduce, Scan
from fusewright.kir.asynchronous import BULK_REDUCTIONS
from fusewright.kir.ir import (
    Alloc,
    Buffer,
    BulkLoad,
    Compute,
    Dim,
    Imm,
    MbarExpect,
    MbarInit,
    MbarWait,
    Reg,
    Statement,
    Store,
)
from fusewright.kir.lower_storage import Context, Storage, TurnedResult
from fusewright.kir.semaphores import Gathering, Turns
from fusewright.memory import Memory
from fusewright.schedule.graph import Stage
from fusewright.schedule.nest import computed, reduced_loops
from fusewright.schedule.parallel import CLUSTER_DIMS, GRID_DIMS, THREAD_DIMS, Parallel
from fusewright.target import BULK_ALIGNMENT, MAX_CLUSTER, MAX_VECTOR_NBYTES, Feature, Target

SHARED_OUT = ("slices", "arrival")
"""Modes in which each block finishes a share of the sum."""


def blocks_reduced(context: Context, s: Stage) -> tuple[Parallel, ...]:
    """The dimensions of the grid over which a reduction runs."""
    return _reduced(context, s, GRID_DIMS)


def is_shared_out_in_cluster(context: Context, s: Stage) -> bool:
    """Whether each block of a cluster finishes a share of a reduction."""
    return s.grid_mode == "slices" and bool(_reduced(context, s, CLUSTER_DIMS))


def _reduced(context: Context, s: Stage, dims: Mapping[Parallel, str]) -> tuple[Parallel, ...]:
    if not isinstance(s.op, Reduce | MatMul):
        return ()
    bound = (s.loops[i] for i in reduced_loops(context.flow.graph, s))
    return tuple(x.parallel for x in bound if x.parallel in dims and x.axis.extent != Int(1))


def where_finished(context: Context) -> dict[Stage, dict[Parallel, Cond]]:
    """By stage, and by dimension along which blocks reduced what it reads, where the result is: in
    the last block, or in a share of the threads of each, or in all, which add it to an output.

    Raises ScheduleError for a reader in other blocks, or in other threads.
    """
    out: dict[Stage, dict[Parallel, Cond]] = {}
    for s in computed(context.flow.stages):
        found: dict[Parallel, Cond] = {}
        for o in s.operands:
            for p, c in out.get(o, {}).items():
                if found.setdefault(p, c) != c:
                    raise ScheduleError(
                        f"{s.name} needs {o.name} where {c}, and another value where {found[p]}; "
                        "ask for both reductions in one mode, with the same loops"
                    )
            if o in out:
                _check_reader(s, o, out[o])
        own = blocks_reduced(context, s)
        if is_shared_out_in_cluster(context, s):
            found[Parallel.CLUSTERX] = _share_in_cluster(context, s)
        if own and s.grid_mode in SHARED_OUT:
            found |= dict.fromkeys(own, _share(context, s))
        elif isinstance(context.results.get(s), TurnedResult):
            found |= dict.fromkeys(own, TRUE)
        elif own and s.grid_mode != "all":
            dims = [(p, context.dims[GRID_DIMS[p]]) for p in own]
            found |= {p: equal(d.var, d.extent - 1) for p, d in dims}
        out[s] = found
    return {s: found for s, found in out.items() if found}


def _check_reader(s: Stage, source: Stage, found: Mapping[Parallel, Cond]) -> None:
    """A reader does not run in blocks, or threads, that lack what it reads."""
    for x in s.loops:
        if x.parallel in found and x.axis.extent != Int(1):
            way_out = f"reduce in clusters, or make {source.name} an output for a second kernel"
            if x.parallel in CLUSTER_DIMS:
                way_out = "leave the request out, so that all blocks of the cluster have the result"
            raise ScheduleError(
                f"{s.name} runs in all blocks along {x.parallel.value} and needs {source.name}, "
                f"which is there where {found[x.parallel]}; {way_out}"
            )
    is_shared_out = any(len(variables(c)) > 1 for c in found.values())
    if is_shared_out and (s.memory is Memory.SHARED or isinstance(s.op, Reduce | Scan | MatMul)):
        raise ScheduleError(
            f"{s.name} needs {source.name} from other threads, and mode 'slices' leaves each its "
            "own share of it; use mode 'vector' or 'tma', whose last block has all of it"
        )


def _share(context: Context, s: Stage) -> Cond:
    """Which vectors of which threads this block finishes: its share of all, or of those that its
    cluster leaves it, thread by thread. Of a product a thread has several vectors, which digits of
    the context number."""
    position, count = _number(_blocks_in_order(context, s))
    thread, threads = _threads_of_parts(context, s)
    vector, vectors = _number([_digit(context, s, i) for i in reversed(vector_loops(s))])
    scaled, parts = (vector * threads + thread) * count, vectors * threads
    return all_of((less_equal(position * parts, scaled), less(scaled, (position + 1) * parts)))


def share_of_cluster(context: Context, s: Stage) -> tuple[Expr, int]:
    """The number of a thread among those that hold different parts of a reduction, and how many of
    them one block of the cluster finishes: the first block the first ones."""
    thread, threads = _number(threads_used(context, s))
    nblocks = _constant(s, context.dims["cx"].extent)
    return thread, -(-_constant(s, threads) // nblocks)


def _threads_of_parts(context: Context, s: Stage) -> tuple[Expr, Expr]:
    """The number of a thread among those of a block whose parts go to other places of the grid, and
    how many those are: in a cluster the share that the block finishes."""
    if is_shared_out_in_cluster(context, s):
        thread, share = share_of_cluster(context, s)
        return mod(thread, share), Int(share)
    return _number(threads_used(context, s))


def _share_in_cluster(context: Context, s: Stage) -> Cond:
    """Whether this block finishes what a thread holds parts of."""
    (thread, share), rank = share_of_cluster(context, s), context.dims["cx"].var
    return all_of((less_equal(rank * share, thread), less(thread, (rank + 1) * share)))


def _digit(context: Context, s: Stage, i: int) -> Dim:
    """A variable for a loop of a stage, by which readers know where they read."""
    axis = s.loops[i].axis
    v = next((v for v, a in context.digits.items() if a is axis), None)
    if v is None:
        v = Var(f"part{len(context.digits)}", 0, axis.extent - 1)
        context.digits[v] = axis
    return Dim(v, axis.extent)


def vector_loops(s: Stage) -> tuple[int, ...]:
    """The loops inside of the instructions of a product that count a thread's vectors of four
    accumulators; none for others."""
    n = len(s.loops)
    return (n - 4, n - 3) if isinstance(s.op, MatMul) else ()


def at_reader(context: Context, c: Cond, loops: Sequence[tuple[AxisClass, Expr]]) -> Cond:
    """Where a stage finds what blocks reduced, in terms of its own loops. Those tell which vector
    of a product it reads, as it reads registers."""
    found: dict[Var, Expr] = {}
    for v in variables(c):
        axis = context.digits.get(v)
        if axis is None:
            continue
        value = value_of(context.flow.graph, loops, axis)
        assert value is not None, f"the loops of a reader do not determine {axis}"
        found[v] = value[0]
    return substitute_condition(c, found)


def _blocks_in_order(context: Context, s: Stage) -> list[Dim]:
    """The dimensions of the grid along which a stage is reduced, as blocks start along them."""
    reduced = [context.dims[GRID_DIMS[p]] for p in blocks_reduced(context, s)]
    return [d for d in _moving(context) if d in reduced]


def _moving(context: Context) -> list[Dim]:
    """The dimensions of the grid with several blocks."""
    return [context.dims[n] for n in GRID_DIMS.values() if context.dims[n].extent != ONE]


def check_modes(stages: Iterable[Stage], target: Target) -> None:
    """Raises ScheduleError for a mode that a target has no instructions for."""
    for s in stages:
        if s.grid_mode in ("tma", "arrival") and not target.has(Feature.BULK):
            raise ScheduleError(
                f"request_serial_grid_reduction({s.name}, {s.grid_mode!r}): {target} has no copy "
                f"engine, which comes with compute capability {Feature.BULK.value[1]}; use mode "
                "'vector'"
            )


def check_request(context: Context, s: Stage) -> None:
    """Raises ScheduleError for a reduction over blocks that nobody asked for, and for a request
    that its loops do not fit."""
    blocks, in_cluster = blocks_reduced(context, s), is_shared_out_in_cluster(context, s)
    named = ", ".join(p.value for p in blocks)
    if s.is_mma and not in_cluster and _reduced(context, s, CLUSTER_DIMS):
        raise ScheduleError(
            f"{s.name} reduces over ClusterX: blocks of a cluster share the depth of products on "
            "tensor cores in mode 'slices' only; call request_serial_grid_reduction('slices')"
        )
    if s.grid_mode is None:
        if blocks:
            raise ScheduleError(
                f"{s.name} reduces over {named}; blocks combine their sums in turns, which "
                "request_serial_grid_reduction() asks for: call it, or rfactor the reduction and "
                "make the partial result an output, or bind at most "
                f"{MAX_CLUSTER} of them to ClusterX"
            )
        return
    check_arrival(s)
    what = f"request_serial_grid_reduction({s.name}, {s.grid_mode!r})"
    alone = any(x.parallel in GRID_DIMS and x.axis.extent == Int(1) for x in s.loops)
    if in_cluster:
        _check_cluster_request(context, s, what, named)
    if not blocks and not alone and not in_cluster:
        raise ScheduleError(
            f"{what}: none of its reducing loops is bound to BIDx, BIDy or BIDz; bind one of them, "
            "or leave the request out"
        )
    graph = context.flow.graph
    alike = CLUSTER_DIMS if s.grid_mode == "all" else THREAD_DIMS | CLUSTER_DIMS
    others = THREAD_DIMS if in_cluster else alike
    for i in reduced_loops(graph, s):
        x = s.loops[i]
        if x.parallel in others and x.axis.extent != Int(1):
            raise ScheduleError(
                f"{what}: loop {i} reduces over {x.parallel.value} as well; rfactor([{i}]) first, "
                "so that a block comes to its turn with one part"
            )


def _check_cluster_request(context: Context, s: Stage, what: str, grid: str) -> None:
    """Raises ScheduleError for what blocks of a cluster do not share out."""
    if not grid and s.work_dtype not in (None, s.dtype.compute):
        raise ScheduleError(
            f"{what}: blocks of a cluster hand on {s.dtype.compute} through shared memory; leave "
            f"work_dtype={s.work_dtype} out, or bind the loop to BIDx"
        )
    if s.is_mma:
        _check_cluster_product(context, s, what)


def _check_cluster_product(context: Context, s: Stage, what: str) -> None:
    """Raises ScheduleError for a product whose parts no mbarrier counts: its warps are some of the
    block's, so that no barrier of the cluster takes the place of one."""
    _, threads = _number(threads_used(context, s))
    nblocks = _constant(s, context.dims["cx"].extent)
    if _constant(s, threads) % nblocks:
        raise ScheduleError(
            f"{what}: {nblocks} blocks of a cluster do not finish equal shares of the sums of "
            f"{threads} threads; bind a loop whose extent divides {threads} to ClusterX"
        )
    inside = reduced_loops(context.flow.graph, s)
    for i, x in enumerate(s.loops[: s.inline_depth]):
        if x.parallel.is_serial and i not in inside and x.axis.extent != ONE:
            raise ScheduleError(
                f"{what}: loop {i} runs over {x.axis.extent} tiles of a block, and blocks of a "
                "cluster hand on the parts of one; bind it to the grid"
            )


def turns_of_stage(storage: Storage, s: Stage) -> Turns:
    """The turns in which blocks reduce a stage, with the semaphores and the scratch for them, or
    the result."""
    order = _blocks_in_order(storage.context, s)
    index, groups = _groups(storage.context, order, _loops_around(storage, s))
    position, count = _number(order)
    found = storage.context.results.get(s)
    if isinstance(found, TurnedResult):
        result = storage.context.buffers[found.result]
        flags = _flags(s, groups)
        made = Turns(flags, index, position, count, result, found.box.size, box=found.box)
    else:
        size = elements_of_block(storage, s)
        if s.grid_mode == "tma":
            size = _in_bulk(s, size)
        flags, work = _memory(s, groups, groups * size)
        made = Turns(flags, index, position, count, work, size)
    storage.context.orders[s] = made
    return made


def _in_bulk(s: Stage, size: int) -> int:
    """So many elements, and those behind them that the copy engine moves with them."""
    unit = BULK_ALIGNMENT // work_dtype(s).nbytes
    return -(-size // unit) * unit


def gathering_of_stage(storage: Storage, s: Stage) -> Gathering:
    """The gathering in which blocks reduce a stage. Raises ScheduleError as `gathering` does."""
    order = _blocks_in_order(storage.context, s)
    around = _loops_around(storage, s)
    size = elements_of_block(storage, s)
    if s.grid_mode == "arrival":
        size = _in_bulk(s, size)
    return gathering(storage, s, order, around, size)


def gathering(
    storage: Storage, s: Stage, order: Sequence[Dim], around: Sequence[Dim], size: int
) -> Gathering:
    """The gathering of the blocks along the dimensions `order` of the grid, anew in each iteration
    of the loops `around`, in which each leaves `size` elements of a stage. Raises ScheduleError for
    blocks that may not run at once: more, or more clusters, than the context names."""
    context = storage.context
    what = f"request_serial_grid_reduction({s.name}, {s.grid_mode!r})"
    moving = _moving(context)
    if list(order) != moving[: len(order)]:
        raise ScheduleError(
            f"{what}: its blocks wait for each other, and have to be neighbours in the grid; bind "
            "the loop that reduces to BIDx and the others to BIDy, or use mode 'vector'"
        )
    index, groups = _groups(context, order, around)
    position, count = _number(order)
    if constant_value(count) is None:
        raise ScheduleError(
            f"{what}: {count} blocks wait for each other, and their number must be constant; split "
            "the loop by one with inner=False, or use mode 'vector'"
        )
    most = context.at_once
    if (constant_value(count) or 0) > most:
        together = context.dims["cx"].extent
        who = "blocks" if together == ONE else f"clusters of {together} blocks"
        raise ScheduleError(
            f"{what}: {count} {who} wait for each other, and the target runs {most} at once for "
            "sure; split the loop into fewer, or use mode 'vector'"
        )
    summed = s.grid_mode == "arrival"
    flags, work = _memory(s, groups, groups * size * (1 if summed else count))
    made = Gathering(flags, index, position, count, work, size, summed=summed)
    context.orders[s] = made
    return made


def _groups(context: Context, order: Sequence[Dim], around: Sequence[Dim]) -> tuple[Expr, Expr]:
    """The number of the group of blocks, and of the iteration, that reduce a stage together, and
    how many there are. Of a cluster each block is in a group of its own: it hands on the share that
    it has finished, or does what the others do, too."""
    kept = [d for d in _moving(context) if d not in order]
    ranks = [d for d in [context.dims["cx"]] if d.extent != ONE]
    return _number([*kept, *ranks, *around])


def _memory(s: Stage, groups: Expr, elements: Expr) -> tuple[Buffer, Buffer]:
    """Semaphores, and scratch."""
    dtype = work_dtype(s)
    work = Buffer(f"{s.name}_work", dtype, elements, Memory.GLOBAL, MAX_VECTOR_NBYTES)
    return _flags(s, groups), work


def _flags(s: Stage, groups: Expr) -> Buffer:
    return Buffer(f"{s.name}_turns", uint32, groups, Memory.GLOBAL)


def _loops_around(storage: Storage, s: Stage) -> list[Dim]:
    """The serial loops in each of whose iterations the stage is reduced anew."""
    inside = (*reduced_loops(storage.graph, s), *storage.carried_lanes(s))
    out: list[Dim] = []
    for i, (x, v) in enumerate(zip(s.loops, storage.loop_values(s), strict=True)):
        if x.parallel.is_serial and i not in inside and isinstance(v, Var):
            node = storage.context.nest.nodes[s][i]
            out.append(Dim(v, x.axis.extent if node is None else storage.context.trips(node)))
    return out


def _number(digits: Sequence[Dim]) -> tuple[Expr, Expr]:
    """The number that digits make, the first one fastest, and how many there are."""
    number: Expr = ZERO
    count: Expr = ONE
    for d in digits:
        number = number + d.var * count
        count = count * d.extent
    return number, count


# --- where the parts of a block lie --------------------------------------------------------------


def work_dtype(s: Stage) -> DType:
    """In which blocks hand on their parts of a reduction."""
    return s.work_dtype or s.dtype.compute


def vector_of(storage: Storage, s: Stage) -> int:
    """The lanes of one access to scratch."""
    most = MAX_VECTOR_NBYTES // work_dtype(s).nbytes
    return min(kept_lanes(storage, s), most)


def kept_lanes(storage: Storage, s: Stage) -> int:
    """The lanes of a reduction that are outputs of their own; of a product, the neighbours of a
    thread in registers."""
    if isinstance(s.op, MatMul):
        return math.prod(_constant(s, x.axis.extent) for x in s.loops[-2:])
    reducing = reduced_loops(storage.graph, s)
    kept = [i for i, x in enumerate(s.loops) if x.parallel is Parallel.VECTORIZE]
    return storage.width(s) if any(i not in reducing for i in kept) else 1


def threads_used(context: Context, s: Stage) -> list[Dim]:
    """The dimensions of the block whose threads hold different parts."""
    reducing = reduced_loops(context.flow.graph, s)
    kept = (x for i, x in enumerate(s.loops) if i not in reducing)
    bound = {x.parallel for x in kept if x.axis.extent != Int(1)}
    return [context.dims[n] for p, n in THREAD_DIMS.items() if p in bound]


def threads_reducing(context: Context, s: Stage) -> tuple[Expr, Expr]:
    """The number of a thread among those of the block that reduce together, and how many they are:
    0 and 1 where each of them reduces alone."""
    bound = {s.loops[i].parallel for i in reduced_loops(context.flow.graph, s)}
    dims = (context.dims[n] for p, n in THREAD_DIMS.items() if p in bound)
    return _number([d for d in dims if d.extent != ONE])


def part_loops(storage: Storage, s: Stage) -> tuple[int, ...]:
    """The loops, outer first, in whose iterations a thread has accumulators of its own."""
    own = tuple(i for i in storage.carried_lanes(s) if s.loops[i].parallel.is_serial)
    return (*own, *vector_loops(s))


def elements_of_block(storage: Storage, s: Stage) -> int:
    """Elements of the stage that a block hands on, those of all threads together."""
    n = kept_lanes(storage, s)
    for i in part_loops(storage, s):
        n *= _constant(s, s.loops[i].axis.extent)
    return n * _constant(s, _threads_of_parts(storage.context, s)[1])


def element_in_block(storage: Storage, s: Stage, values: Mapping[int, Expr], lane: int) -> Expr:
    """Where the thread's part begins that stands in the iterations `values` of its kept loops, at a
    lane that begins a vector."""
    thread, count = _threads_of_parts(storage.context, s)
    return (vector_number(storage, s, values, lane) * count + thread) * vector_of(storage, s)


def vector_number(storage: Storage, s: Stage, values: Mapping[int, Expr], lane: int) -> Expr:
    """Which of a thread's vectors begins at a lane in the iterations `values` of its kept loops."""
    width = vector_of(storage, s)
    vector: Expr = ZERO
    for i in part_loops(storage, s):
        vector = vector * s.loops[i].axis.extent + values[i]
    return vector * (kept_lanes(storage, s) // width) + lane // width


def parts_of_thread(storage: Storage, s: Stage) -> int:
    """How many vectors of parts a thread has."""
    loops = (_constant(s, s.loops[i].axis.extent) for i in part_loops(storage, s))
    return math.prod(loops) * (kept_lanes(storage, s) // vector_of(storage, s))


def one_of_copies(storage: Storage, s: Stage) -> list[Cond]:
    """Which thread stores what several hold."""
    used = threads_used(storage.context, s)
    dims = (storage.context.dims[n] for n in THREAD_DIMS.values())
    return [equal(d.var, 0) for d in dims if d.extent != ONE and d not in used]


def reducing_function(s: Stage) -> str:
    """By which parts are combined: those of products are added."""
    return s.op.fn if isinstance(s.op, Reduce) else "add"


def fill_of_part(storage: Storage, s: Stage, staged: Buffer) -> list[Statement]:
    """What follows a block's part in the shared memory that the copy engine takes, by one thread:
    elements that change nothing where they are combined."""
    own, size = elements_of_block(storage, s), constant_value(staged.size)
    if size is None or own == size:
        return []
    identity = Imm(reduction_identity(reducing_function(s), staged.dtype), staged.dtype)
    register = Reg(storage.temporary(s, staged.dtype, 1))
    dims = (storage.context.dims[n] for n in THREAD_DIMS.values())
    alone = all_of([equal(d.var, 0) for d in dims if d.extent != ONE])
    stores = (Store(staged, Int(i), register, 1, alone) for i in range(own, size))
    return [Alloc(register.buffer), Compute("copy", register, (identity,)), *stores]


def staged_part(s: Stage, turns: Turns | Gathering) -> Buffer:
    """Shared memory from which the copy engine takes the block's part. Raises ScheduleError for
    what it cannot add."""
    what = f"request_serial_grid_reduction({s.name}, {s.grid_mode!r})"
    dtype = turns.guarded.dtype
    fn = reducing_function(s)
    known = BULK_REDUCTIONS.get(fn, ())
    if fn in ("max", "min") and dtype.is_float:
        raise ScheduleError(
            f"{what}: the {fn} of floats has to keep NaN, which PTX does not say of the copy "
            "engine; use mode 'vector'"
        )
    if dtype.name not in known:
        takes = f"it takes {', '.join(known)}" if known else "of any dtype"
        raise ScheduleError(
            f"{what}: the copy engine does not reduce {dtype} by {fn}, {takes}; use mode 'vector'"
        )
    return Buffer(f"{s.name}_part", dtype, Int(turns.size), Memory.SHARED, MAX_VECTOR_NBYTES)


def check_arrival(s: Stage) -> None:
    """Raises ScheduleError for what the copy engine does not add to zeros."""
    if s.grid_mode == "arrival" and reducing_function(s) != "add":
        raise ScheduleError(
            f"request_serial_grid_reduction({s.name}, 'arrival'): parts are added to zeros, and it "
            f"is a {reducing_function(s)}; use mode 'slices'"
        )


def bulk_read_back(
    storage: Storage, s: Stage, turns: Turns, staged: Buffer, number: int
) -> list[Statement]:
    """What brings a group's sum to shared memory by the copy engine, and the wait for it, with an
    mbarrier that is made when the kernel begins: only the last block of a group comes here, once in
    each iteration of the loops around. `number` is the first of three ids of syncs."""
    full = Buffer(f"{s.name}_back", uint64, ONE, Memory.SHARED, uint64.nbytes)
    nbytes, thread = turns.size * staged.dtype.nbytes, turns.issuer
    why = f"{nbytes} bytes of {turns.guarded}"
    storage.context.returned[s] = (Alloc(full), MbarInit(number, why, full, ZERO, 1, thread))
    iteration, _ = _number(_loops_around(storage, s))
    return [
        MbarExpect(number + 1, why, full, ZERO, nbytes, thread),
        BulkLoad(staged, ZERO, turns.guarded, turns.first, turns.size, full, ZERO, thread),
        MbarWait(number + 2, why, full, ZERO, mod(iteration, 2)),
    ]


def _constant(s: Stage, extent: Expr) -> int:
    n = constant_value(extent)
    if n is None:
        raise ScheduleError(
            f"{s.name}: blocks hand on {extent} elements a thread; the number must be constant: "
            "split the loop by one and bind the outer part"
        )
    return n
