"""Reductions over blocks: each block adds its part to what earlier ones left, in their order.

    acquire f[group] until order
    if (0 < order)         part = work[group, ..] + part
    if (order < count - 1) work[group, ..] = part
    release f[group] = (order + 1) % count

The last block holds the sum in registers; what reads it runs there. Every thread keeps to elements
of the scratch `work` of its own, neighbours side by side in whole vectors.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusewright.core.conditions import Cond, equal, less
from fusewright.core.expr import ONE, ZERO, Expr, Int, Var, constant_value
from fusewright.dtypes import uint32
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import Reduce
from fusewright.kir.ir import Buffer, Dim
from fusewright.kir.lower_storage import Context, Storage
from fusewright.kir.semaphores import Turns
from fusewright.memory import Memory
from fusewright.schedule.graph import Stage
from fusewright.schedule.nest import computed, reduced_loops
from fusewright.schedule.parallel import CLUSTER_DIMS, GRID_DIMS, THREAD_DIMS, Parallel
from fusewright.target import MAX_CLUSTER, MAX_VECTOR_NBYTES


def blocks_reduced(context: Context, s: Stage) -> tuple[Parallel, ...]:
    """The dimensions of the grid over which a reduction runs."""
    if not isinstance(s.op, Reduce):
        return ()
    bound = (s.loops[i] for i in reduced_loops(context.flow.graph, s))
    return tuple(x.parallel for x in bound if x.parallel in GRID_DIMS and x.axis.extent != Int(1))


def last_blocks(context: Context) -> dict[Stage, tuple[Parallel, ...]]:
    """By stage the dimensions along which the last block alone has what the stage reads.

    Raises ScheduleError for a reader in all of these blocks.
    """
    out: dict[Stage, tuple[Parallel, ...]] = {}
    for s in computed(context.flow.stages):
        found = dict.fromkeys(p for o in s.operands for p in out.get(o, ()))
        for x in s.loops:
            if x.parallel in found and x.axis.extent != Int(1):
                source = next(o.name for o in s.operands if x.parallel in out.get(o, ()))
                raise ScheduleError(
                    f"{s.name} runs in all blocks along {x.parallel.value} and needs {source}, "
                    "which turns leave in the last of them; reduce in clusters, or make "
                    f"{source} an output that a second kernel reads"
                )
        out[s] = tuple(found | dict.fromkeys(blocks_reduced(context, s)))
    return {s: dims for s, dims in out.items() if dims}


def check_request(context: Context, s: Stage) -> None:
    """Raises ScheduleError for a reduction over blocks that nobody asked for, and for a request
    that its loops do not fit."""
    blocks = blocks_reduced(context, s)
    named = ", ".join(p.value for p in blocks)
    if s.grid_mode is None:
        if blocks:
            raise ScheduleError(
                f"{s.name} reduces over {named}; blocks combine their sums in turns, which "
                "request_serial_grid_reduction() asks for: call it, or rfactor the reduction and "
                "make the partial result an output, or bind at most "
                f"{MAX_CLUSTER} of them to ClusterX"
            )
        return
    what = f"request_serial_grid_reduction({s.name}, {s.grid_mode!r})"
    alone = any(x.parallel in GRID_DIMS and x.axis.extent == Int(1) for x in s.loops)
    if not blocks and not alone:
        raise ScheduleError(
            f"{what}: none of its reducing loops is bound to BIDx, BIDy or BIDz; bind one of them, "
            "or leave the request out"
        )
    graph = context.flow.graph
    others = THREAD_DIMS | CLUSTER_DIMS
    for i in reduced_loops(graph, s):
        x = s.loops[i]
        if x.parallel in others and x.axis.extent != Int(1):
            raise ScheduleError(
                f"{what}: loop {i} reduces over {x.parallel.value} as well; rfactor([{i}]) first, "
                "so that a block comes to its turn with one part"
            )


def turns_of_stage(storage: Storage, s: Stage) -> Turns:
    """The turns in which blocks reduce a stage, with the semaphores and the scratch for them."""
    context = storage.context
    if s in context.turns:
        return context.turns[s]
    reduced = blocks_reduced(context, s)
    moving = [context.dims[n] for n in GRID_DIMS.values() if context.dims[n].extent != ONE]
    order = [d for d in moving if d in [context.dims[GRID_DIMS[p]] for p in reduced]]
    groups = [*(d for d in moving if d not in order), *_loops_around(storage, s)]
    index, ngroups = _number(groups)
    position, count = _number(order)
    size = elements_of_block(storage, s)
    dtype = s.dtype.compute
    flags = Buffer(f"{s.name}_turns", uint32, ngroups, Memory.GLOBAL)
    work = Buffer(f"{s.name}_work", dtype, ngroups * size, Memory.GLOBAL, MAX_VECTOR_NBYTES)
    context.turns[s] = Turns(flags, index, position, count, work, size)
    return context.turns[s]


def _loops_around(storage: Storage, s: Stage) -> list[Dim]:
    """The serial loops in each of whose iterations the stage is reduced anew."""
    inside = (*reduced_loops(storage.graph, s), *storage.carried_lanes(s))
    out: list[Dim] = []
    for i, (x, v) in enumerate(zip(s.loops, storage.loop_values(s), strict=True)):
        if x.parallel.is_serial and i not in inside and isinstance(v, Var):
            out.append(Dim(v, x.axis.extent))
    return out


def _number(digits: list[Dim]) -> tuple[Expr, Expr]:
    """The number that digits make, the first one fastest, and how many there are."""
    number: Expr = ZERO
    count: Expr = ONE
    for d in digits:
        number = number + d.var * count
        count = count * d.extent
    return number, count


# --- where the parts of a block lie --------------------------------------------------------------


def vector_of(storage: Storage, s: Stage) -> int:
    """The lanes of one access to scratch."""
    most = MAX_VECTOR_NBYTES // s.dtype.compute.nbytes
    return min(kept_lanes(storage, s), most)


def kept_lanes(storage: Storage, s: Stage) -> int:
    """The lanes of a reduction that are outputs of their own."""
    reducing = reduced_loops(storage.graph, s)
    kept = [i for i, x in enumerate(s.loops) if x.parallel is Parallel.VECTORIZE]
    return storage.width(s) if any(i not in reducing for i in kept) else 1


def threads_used(storage: Storage, s: Stage) -> list[Dim]:
    """The dimensions of the block whose threads hold different parts."""
    bound = {x.parallel for x in s.loops if x.axis.extent != Int(1)}
    return [storage.context.dims[n] for p, n in THREAD_DIMS.items() if p in bound]


def elements_of_block(storage: Storage, s: Stage) -> int:
    """Elements that a block has of the stage, those of all threads together."""
    n = kept_lanes(storage, s)
    for i in storage.carried_lanes(s):
        if s.loops[i].parallel.is_serial:
            n *= _constant(s, s.loops[i].axis.extent)
    for d in threads_used(storage, s):
        n *= _constant(s, d.extent)
    return n


def element_in_block(storage: Storage, s: Stage, values: Mapping[int, Expr], lane: int) -> Expr:
    """Where the thread's part begins that stands in the iterations `values` of its kept loops, at a
    lane that begins a vector."""
    width = vector_of(storage, s)
    chunk: Expr = ZERO
    for i in storage.carried_lanes(s):
        if s.loops[i].parallel.is_serial:
            chunk = chunk * s.loops[i].axis.extent + values[i]
    chunk = chunk * (kept_lanes(storage, s) // width) + lane // width
    thread, count = _number(threads_used(storage, s))
    return (chunk * count + thread) * width


def one_of_copies(storage: Storage, s: Stage) -> list[Cond]:
    """Which thread stores what several hold."""
    used = threads_used(storage, s)
    dims = (storage.context.dims[n] for n in THREAD_DIMS.values())
    return [equal(d.var, 0) for d in dims if d.extent != ONE and d not in used]


def is_first(turns: Turns) -> Cond:
    """Whether nobody came before."""
    return less(turns.order, 1)


def is_last(turns: Turns) -> Cond:
    """Whether nobody follows."""
    return less(turns.count, turns.order + 2)


def _constant(s: Stage, extent: Expr) -> int:
    n = constant_value(extent)
    if n is None:
        raise ScheduleError(
            f"{s.name}: blocks hand on {extent} elements a thread; the number must be constant: "
            "split the loop by one and bind the outer part"
        )
    return n
