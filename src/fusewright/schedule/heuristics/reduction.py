"""Groups with reductions over one set of axes: softmax, norms, sums, and what is around them.

Kept axes merge into rows, reduced axes into columns. When the reduced axes are the fast ones in
memory a block takes rows and its threads share the columns (inner); otherwise threads take kept
columns side by side and walk down the reduced axis (outer). A persistent schedule reads its
inputs once into registers; a multi-pass one reads them again for every reduction.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import Int, Var, constant_value
from fusewright.errors import InternalError
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.heuristics.common import (
    Params,
    access_width,
    cache_inputs,
    estimate,
    global_accesses,
    merge_all,
    numel,
    split,
    vectorize_accesses,
)
from fusewright.schedule.inline import consumers_of, inline_most
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import MAX_VECTOR_NBYTES, WARP_SIZE, Target

PERSISTENT_BYTES_PER_THREAD = 128
STORED_REGISTERS = 72
MAX_THREADS = 512


@dataclass(frozen=True, slots=True)
class Plan:
    """`rows` kept points and `columns` reduced ones; threads along each, lanes, and whether the
    inputs stay in registers."""

    inner: bool
    persistent: bool
    vector: int
    reduce_threads: int
    kept_threads: int
    unrolled: int


def schedule_reduction(flow: Dataflow, target: Target) -> Params:
    """Schedules a group in which all reductions run over the same axes."""
    copies = cache_inputs(flow)
    reference = _reference(flow)
    kept = merge_all(flow, by_stride(flow, reference.frame.output))
    reduced = merge_all(flow, by_stride(flow, reference.frame.reduced))
    if reduced is None:
        reference.loops = ()
    inner = _is_inner(flow, reference)
    plan = _plan(flow, reference, kept, reduced, inner, copies, target)
    if not plan.persistent:
        _separate_phases(flow, reference, [])
    elif _stored_registers(flow, reference, copies, plan) > STORED_REGISTERS:
        _separate_phases(flow, reference, _before_reductions(flow, copies))
    reference.loops = _loops(flow, kept, reduced, plan)
    transform_like(flow, reference)
    if plan.vector > 1:
        vectorize_accesses(flow, reference.loops[-1].axis, plan.vector)
    inline_most(flow)
    kind = "inner" if inner else "outer"
    name = f"{kind}_{'persistent' if plan.persistent else 'multi_pass'}"
    return Params(
        name,
        (
            ("vector", plan.vector),
            ("reduce_threads", plan.reduce_threads),
            ("kept_threads", plan.kept_threads),
        ),
    )


def by_stride(flow: Dataflow, axes: tuple[AxisClass, ...]) -> list[Loop]:
    """Loops over the axes, the one that is fastest in the largest input innermost."""
    largest = max(
        (
            (numel(p.shape), -i, s, k)
            for i, s in enumerate(computed(flow.stages))
            for k, p in enumerate(s.operands)
            if p.is_input
        ),
        key=lambda found: found[:2],
        default=None,
    )
    strides: dict[AxisClass, int] = {}
    if largest is not None:
        _, _, s, k = largest
        for index, stride in zip(s.frame.operands[k], strides_of(s.operands[k]), strict=True):
            if isinstance(index, AxisClass):
                for c in axes:
                    if c is index or flow.graph.depends(c, [index]):
                        strides[c] = estimate(stride)
    order = sorted(range(len(axes)), key=lambda i: (-strides.get(axes[i], 1 << 40), i))
    return [Loop(axes[i]) for i in order]


def _reference(flow: Dataflow) -> Stage:
    for s in flow.stages:
        if s.is_reduction:
            return s
    raise InternalError("a reduction schedule for a group without reductions")


def _is_inner(flow: Dataflow, reference: Stage) -> bool:
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


def _plan(
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
    vector = _vector(flow, reference, kept, reduced, inner) if lanes_over is not None else 1
    constant = all(constant_value(c.extent) is not None for c in reference.frame.reduced)
    held = sum(
        c.dtype.nbytes
        for c in _before_reductions(flow, copies)
        if any(flow.graph.depends(a, reference.frame.reduced) for a in c.frame.output)
    )
    if inner:
        most = _power_of_two(max(columns // vector, 1))
        threads = min(MAX_THREADS, most, max(WARP_SIZE, _power_of_two(columns // (vector * 4))))
        while _held(columns, vector, threads, held) and threads < min(2 * MAX_THREADS, most):
            threads *= 2
        kept_threads = max(1, min(128 // threads, rows))
        trips = -(-columns // (vector * threads))
    else:
        kept_threads = min(WARP_SIZE, _power_of_two(rows // vector))
        threads = min(16, _power_of_two(columns // 4))
        if rows // max(vector * kept_threads, 1) < target.multiprocessors:
            threads = min(256 // kept_threads, _power_of_two(columns // 4))
        most = min(2 * MAX_THREADS // kept_threads, _power_of_two(columns))
        if _is_normalisation(flow, reference):
            while _held(columns, 1, threads, vector * held) and threads < most:
                threads *= 2
        trips = -(-columns // threads)
    fits = trips * vector * max(held, 1) <= PERSISTENT_BYTES_PER_THREAD
    needed = _is_normalisation(flow, reference)
    persistent = constant and fits and needed
    return Plan(inner, persistent, vector, threads, kept_threads, trips)


def _before_reductions(flow: Dataflow, copies: list[Stage]) -> list[Stage]:
    """Those of the copies that a reduction needs, directly or not: they stay in registers until
    the reduction is done. Others are read when they are used."""
    needed: set[Stage] = set()
    stack = [s for s in flow.stages if s.is_reduction]
    while stack:
        for o in stack.pop().operands:
            if o not in needed:
                needed.add(o)
                stack.append(o)
    return [c for c in copies if c in needed]


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def _held(columns: int, vector: int, threads: int, nbytes: int) -> bool:
    """Whether a row's share of a thread is more than its registers should hold."""
    return -(-columns // (vector * threads)) * vector * nbytes > PERSISTENT_BYTES_PER_THREAD


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


def _vector(
    flow: Dataflow, reference: Stage, kept: Loop | None, reduced: Loop | None, inner: bool
) -> int:
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
    transform_like(flow, reference)
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
        if plan.reduce_threads > 1:
            trips, threads = split(flow, reduced, plan.reduce_threads)
            kind = Parallel.UNROLL if plan.persistent else Parallel.SERIAL
            out += [Loop(threads.axis, reduce_dim), Loop(trips.axis, kind)]
        else:
            out.append(Loop(reduced.axis, Parallel.SERIAL))
    if lanes is not None:
        out.append(Loop(lanes.axis, Parallel.UNROLL))
    return tuple(out)


def _stored_registers(flow: Dataflow, reference: Stage, copies: list[Stage], plan: Plan) -> int:
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


def _separate_phases(flow: Dataflow, reference: Stage, held: list[Stage]) -> None:
    """Gives every reduction, and the outputs together, their own clones of the values that have
    reduced axes, so that each pass recomputes them in a loop of its own, from the inputs or from
    what is held in registers."""
    graph = flow.graph

    def is_wide(s: Stage) -> bool:
        return (
            s not in held
            and not s.is_input
            and not s.is_virtual
            and not s.is_reduction
            and s.memory is Memory.LOCAL
            and any(graph.depends(c, reference.frame.reduced) for c in s.frame.output)
        )

    roots: list[list[Stage]] = [[s] for s in computed(flow.stages) if s.is_reduction]
    final = [s for s in flow.outputs if not s.is_reduction]
    for phase in [*roots, final]:
        cloned: dict[Stage, Stage] = {}
        for root in phase:
            _clone_into(flow, root, is_wide, cloned)
    used = consumers_of(flow)
    for s in reversed(list(flow.stages)):
        if is_wide(s) and not used[s]:
            flow.remove(s)
            used = consumers_of(flow)
    flow.sort()
    flow.retie()


def _clone_into(
    flow: Dataflow, user: Stage, is_wide: object, cloned: dict[Stage, Stage]
) -> None:
    assert callable(is_wide)
    for o in dict.fromkeys(user.operands):
        if not is_wide(o):
            continue
        if o not in cloned:
            c = flow.insert(o, o.name, o.shape, o.dtype, o.op, o.operands)
            c.cache = o.cache
            flow.attach(c)
            cloned[o] = c
            _clone_into(flow, c, is_wide, cloned)
        flow.replace_operand([user], o, cloned[o])
