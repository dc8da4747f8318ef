"""Groups with reductions over one set of axes: softmax, norms, sums, and what is around them.

Kept axes merge into rows, reduced axes into columns. When the reduced axes are the fast ones in
memory a block takes rows and its threads share the columns (inner); otherwise threads take kept
columns side by side and walk down the reduced axis (outer). Inputs that several passes need are
read once, into registers or shared memory; where a row fits nowhere every pass reads it again.
"""

from __future__ import annotations

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import Int
from fusewright.fusion.ir import Pointwise
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.common import (
    Params,
    by_stride,
    cache_inputs,
    estimate,
    merge_all,
    split,
    vectorize_accesses,
)
from fusewright.schedule.heuristics.phases import separate_phases
from fusewright.schedule.heuristics.plan import (
    Plan,
    held_copies,
    is_inner,
    plan_of,
    reference_of,
    stored_registers,
)
from fusewright.schedule.inline import inline_most
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.schedule.untangle import untangle
from fusewright.target import Target

RESIDENT_THREADS = 1024
WORKSPACE_NBYTES = 2048
"""Shared memory of a block beside the rows it holds: workspaces and what the system takes."""
STORED_REGISTERS = 48
"""Registers for what several passes read, above which they compute it again."""


def schedule_reduction(flow: Dataflow, target: Target) -> Params:
    """Schedules a group in which all reductions run over the same axes."""
    untangle(flow)
    copies = cache_inputs(flow)
    reference = reference_of(flow)
    kept = merge_all(flow, by_stride(flow, reference.frame.output))
    reduced = merge_all(flow, by_stride(flow, reference.frame.reduced))
    inner = is_inner(flow, reference)
    plan = plan_of(flow, reference, kept, reduced, inner, copies, target)
    held = held_copies(flow, reference, copies)
    in_shared: list[Stage] = []
    if plan.held_in is Memory.SHARED:
        in_shared = [_shared_copy(flow, c) for c in held]
        separate_phases(flow, reference, [*held, *in_shared])
    elif plan.held_in is None:
        separate_phases(flow, reference, [])
    elif stored_registers(flow, reference, copies, plan) > STORED_REGISTERS:
        separate_phases(flow, reference, held)
    reference.loops = _loops(flow, kept, reduced, plan)
    transform_like(flow, reference, align=True)
    if plan.vector > 1:
        vectorize_accesses(flow, reference.loops[-1].axis, plan.vector, in_shared)
    for s in (*held, *in_shared) if in_shared else ():
        s.loops = tuple(
            Loop(x.axis, Parallel.UNROLL) if x.parallel is Parallel.SERIAL else x for x in s.loops
        )
    for s in in_shared:
        s.allocation = _side_by_side(s)
    inline_most(flow)
    for s in held if in_shared else ():
        serial = (i for i, x in enumerate(s.loops) if x.parallel.is_serial)
        s.inline_depth = next(serial, len(s.loops))
    return _params(plan, target)


def _params(plan: Plan, target: Target) -> Params:
    kind = "inner" if plan.inner else "outer"
    if plan.cluster > 1:
        kind = "inner_cluster"
    where = {Memory.LOCAL: "persistent", Memory.SHARED: "shared", None: "multi_pass"}
    return Params(
        f"{kind}_{where[plan.held_in]}",
        (
            ("vector", plan.vector),
            ("reduce_threads", plan.reduce_threads),
            ("kept_threads", plan.kept_threads),
            *((("cluster", plan.cluster),) if plan.cluster > 1 else ()),
        ),
        min_blocks=_min_blocks(plan, target),
    )


def _min_blocks(plan: Plan, target: Target) -> int:
    """Blocks that a multiprocessor should hold of kernels that walk over a row in shared memory, or
    hold many rows in registers: caps what the compiler spends on loads ahead."""
    threads = plan.reduce_threads * plan.kept_threads
    crowded = plan.held_in is Memory.SHARED or (plan.held_in is Memory.LOCAL and not plan.inner)
    most = RESIDENT_THREADS // threads
    if plan.held_in is Memory.SHARED:
        most = min(most, target.shared_nbytes_per_sm // (plan.held_nbytes + WORKSPACE_NBYTES))
    return max(1, most) if crowded else 0


def _side_by_side(s: Stage) -> tuple[AxisClass, ...]:
    """The classes of a tensor in shared memory with neighbouring threads next to each other: rows
    of the block, then trips, then threads, then lanes."""
    rank = {Parallel.TIDY: 0, Parallel.UNROLL: 1, Parallel.TIDX: 2, Parallel.VECTORIZE: 3}
    own = [x for x in s.loops if x.parallel in rank and x.axis.extent != Int(1)]
    return tuple(x.axis for x in sorted(own, key=lambda x: rank[x.parallel]))


def _shared_copy(flow: Dataflow, c: Stage) -> Stage:
    """A copy in shared memory that all readers of `c` read instead."""
    readers = flow.consumers(c)
    s = flow.insert(c, f"{c.name}_s", c.shape, c.dtype, Pointwise((), "copy"), [c])
    s.memory = Memory.SHARED
    flow.replace_operand(readers, c, s)
    flow.attach(s)
    flow.retie()
    return s


def _loops(flow: Dataflow, kept: Loop | None, reduced: Loop | None, plan: Plan) -> tuple[Loop, ...]:
    lanes: Loop | None = None
    if plan.vector > 1:
        if plan.inner:
            assert reduced is not None
            reduced, lanes = split(flow, reduced, plan.vector)
        else:
            assert kept is not None
            kept, lanes = split(flow, kept, plan.vector)
    out: list[Loop] = []
    kept_dim, reduce_dim = (
        (Parallel.TIDY, Parallel.TIDX) if plan.inner else (Parallel.TIDX, Parallel.TIDY)
    )
    if kept is not None:
        if plan.kept_threads > 1:
            blocks, threads = split(flow, kept, plan.kept_threads)
            out += [Loop(blocks.axis, Parallel.BIDX), Loop(threads.axis, kept_dim)]
        else:
            out.append(Loop(kept.axis, Parallel.BIDX))
    if reduced is not None:
        if plan.cluster > 1:
            size = -(-estimate(reduced.axis.extent) // plan.cluster)
            blocks, reduced = split(flow, reduced, size)
            out.append(Loop(blocks.axis, Parallel.CLUSTERX))
        if plan.reduce_threads > 1:
            trips, threads = split(flow, reduced, plan.reduce_threads)
            kind = Parallel.UNROLL if plan.held_in is Memory.LOCAL else Parallel.SERIAL
            out += [Loop(threads.axis, reduce_dim), Loop(trips.axis, kind)]
        else:
            out.append(Loop(reduced.axis, Parallel.SERIAL))
    if lanes is not None:
        out.append(Loop(lanes.axis, Parallel.UNROLL))
    return tuple(out)
