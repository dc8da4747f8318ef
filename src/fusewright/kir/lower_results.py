"""Blocks that take turns at a result: each adds its part to what earlier ones stored there.

    acquire f[group] until order               acquire f[group] until order
    if (0 < order) part = y[box] + part        if (order < 1) y[box] = tile
    y[box] = part                              else y[box] += tile
    release f[group] = (order + 1) % count     release f[group] = (order + 1) % count

The first by threads, the second one by the copy engine, which reads nothing back; there is no
scratch. The turn stands around the statements that store the result, which all blocks run. A block
covers a box of the result, which its loops determine; as those reach every element of the result
once, for each of the blocks that reduce, no two groups meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from fusewright.axes.paths import value_of
from fusewright.core.conditions import TRUE, Cond, less
from fusewright.core.expr import ONE, ZERO, Expr, Int, Var, constant_value, is_multiple, variables
from fusewright.core.substitution import substitute
from fusewright.fusion.ir import MatMul
from fusewright.kir.choose_lanes import LaneAccess, TooNarrow, Vector, choose_lanes
from fusewright.kir.ir import WHOLE, Lanes, Statement
from fusewright.kir.lower_storage import Context, Storage, TurnedResult, carrying_loops
from fusewright.kir.lower_turns import (
    blocks_reduced,
    element_in_block,
    elements_of_block,
    kept_lanes,
    vector_of,
)
from fusewright.kir.semaphores import GuardedBox
from fusewright.schedule.graph import Stage, strides_of
from fusewright.schedule.nest import Child, computed, reduced_loops
from fusewright.schedule.parallel import BLOCK_DIMS, GRID_DIMS, THREAD_DIMS
from fusewright.schedule.results_in_turns import IN_TURN_MODES, result_in_turns
from fusewright.schedule.views import View, view
from fusewright.target import BULK_ALIGNMENT

MakeLoad: TypeAlias = Callable[[int, Expr, int, Cond], Statement]


def find_results(context: Context) -> None:
    """Notes for each reduction by blocks in turns whether they add up the result where it lies."""
    for s in computed(context.flow.stages):
        if s.grid_mode in IN_TURN_MODES and blocks_reduced(context, s):
            context.results[s] = _turned_result(context, s)


def _turned_result(context: Context, s: Stage) -> TurnedResult | str:
    """Where blocks add up the parts of a stage that they reduce in turns; where scratch holds them,
    why."""
    result = result_in_turns(context.flow, s)
    if isinstance(result, str):
        return result
    child = None if result is s else _child(context, s, result)
    if child is None and result is not s:
        return f"{result.name} is stored in other loops than those behind the sum"
    storage = Storage(context, strides_of)
    if repeated := _repeated(context, s, result):
        return f"blocks along {repeated} repeat {result.name}"
    box = _box(storage, s, result)
    if box is None:
        return f"what a block stores of {result.name} has no constant extents"
    if s.grid_mode == "vector" and _place(storage, s, result, storage.loop_values(s)) is None:
        return f"the loops of {s.name} do not tell where its elements lie in {result.name}"
    if s.grid_mode == "tma" and not result.boxed:
        problem = _run_problem(storage, s, result)
        if problem is not None:
            return problem
    return TurnedResult(result, box, child)


def _repeated(context: Context, s: Stage, result: Stage) -> str | None:
    """A dimension of the grid, or of the cluster, whose blocks would all add to a result."""
    bound = {x.parallel for x in result.loops if x.axis.extent != ONE}
    bound |= {*blocks_reduced(context, s)}
    apart = (p for p, name in BLOCK_DIMS.items() if context.dims[name].extent != ONE)
    return next((p.value for p in apart if p not in bound), None)


def _child(context: Context, s: Stage, result: Stage) -> Child | None:
    """The child of the loop in which a sum is finished that stores the result."""
    nest = context.nest
    carried = [n for i in carrying_loops(context, s) if (n := nest.nodes[s][i]) is not None]
    behind = nest.home[s] if not carried else carried[0].parent
    path = [n for n in nest.nodes[result] if n is not None]
    if behind is nest.root:
        return path[0] if path else result
    if behind not in path:
        return None
    inside = path[path.index(behind) + 1 :]
    return inside[0] if inside else result


def _box(storage: Storage, s: Stage, result: Stage) -> GuardedBox | None:
    """What a block covers of a result in one iteration of the loops around the sum; None where its
    extents are not constant."""
    seen = view(storage.graph, result, storage.loop_values(result))
    outer = _outer(storage, s)
    first: Expr = ZERO
    size, extents, strides = 1, list[int](), list[Expr]()
    for e, stride in zip(seen.output, strides_of(result), strict=True):
        inner = {v: 0 for v in variables(e) if v not in outer}
        begin = substitute(e, inner)
        least, most = (e - begin).interval
        if least != 0 or most is None:
            return None
        first = first + begin * stride
        if stride == ONE and size == 1:
            size = most + 1
        elif most:
            extents.append(most + 1)
            strides.append(stride)
    return GuardedBox(first, size, tuple(extents), tuple(strides))


def _outer(storage: Storage, s: Stage) -> frozenset[Var]:
    """What is the same for all threads of a block while it has its turn: its place in the grid,
    sizes, and the loops around the sum."""
    context = storage.context
    nodes = context.nest.nodes[s]
    carried = next((i for i in carrying_loops(context, s) if nodes[i] is not None), len(nodes))
    around = (context.nodes[n] for n in nodes[:carried] if n is not None)
    places = (context.dims[name].var for name in ("bx", "by", "bz", "cx"))
    return frozenset((*around, *places, *context.sizes))


def loads_of_result(
    storage: Storage, s: Stage, result: Stage, values: Sequence[Expr], make: MakeLoad
) -> list[Statement]:
    """Loads of what lies in a result where the accumulators of a reduction belong, at the given
    values of its loops: `make(lane, index, width, predicate)` makes each."""
    out: list[Statement] = []
    for first, here, lane, count in _neighbours(storage, s, values):
        found = _place(storage, s, result, here)
        assert found is not None, "the loops of a sum determine where its elements lie in a result"
        access = LaneAccess(storage.context.buffers[result], found[0], lane, count, found[1])
        out += _loads(access, first, make)
    return out


def _loads(access: LaneAccess, first: int, make: MakeLoad) -> list[Statement]:
    """Loads of neighbours in registers from accumulator `first` on, which may be none in memory."""
    vectors = choose_lanes(access)
    if isinstance(vectors, TooNarrow):
        each = range(access.count)
        vectors = tuple(Vector(k, 1, access.conditions_at(k)) for k in each)

    def load(k: int, width: int, where: Cond, lanes: Lanes) -> Statement:
        assert lanes == WHOLE, "lanes that exist are loaded from words"
        at = access.index if access.lane is None else substitute(access.index, {access.lane: k})
        return make(first + k, at, width, where)

    return [v.statement(load) for v in vectors]


def _neighbours(
    storage: Storage, s: Stage, values: Sequence[Expr]
) -> Iterator[tuple[int, tuple[Expr, ...], Var | None, int]]:
    """The accumulators of a thread at the given values of its loops, as lanes of vectors: the first
    of each, the values of all loops, the variable that counts lanes, and how many there are."""
    lanes = kept_lanes(storage, s)
    if not isinstance(s.op, MatMul):
        yield 0, tuple(values), storage.lane(s) if lanes > 1 else None, lanes
        return
    pair = constant_value(s.loops[-1].axis.extent) or 1
    lane = Var("lane", 0, pair - 1)
    for k in range(lanes // pair):
        yield k * pair, (*values[:-2], Int(k), lane), lane, pair


def _place(
    storage: Storage, s: Stage, result: Stage, values: Sequence[Expr]
) -> tuple[Expr, list[Cond]] | None:
    """The address in a result of an element of a reduction, and where there is one; None where the
    loops of the reduction do not determine it."""
    reducing = reduced_loops(storage.graph, s)
    kept = [
        (x, v) for i, (x, v) in enumerate(zip(s.loops, values, strict=True)) if i not in reducing
    ]
    known = [(x.axis, v) for x, v in kept]
    conditions = [less(v, x.axis.extent) for x, v in kept if x.parallel in THREAD_DIMS]
    conditions += _stored_here(storage, s, result)
    index: Expr = ZERO
    for axis, stride in zip(result.frame.output, strides_of(result), strict=True):
        found = value_of(storage.graph, known, axis)
        if found is None:
            return None
        index = index + found[0] * stride
        conditions += found[1]
    return index, list(dict.fromkeys(c for c in conditions if c != TRUE))


def _stored_here(storage: Storage, s: Stage, result: Stage) -> list[Cond]:
    """Where a block stores what its loops repeat: there alone it has a turn at these elements."""
    seen, outer = view(storage.graph, result, storage.loop_values(result)), _outer(storage, s)
    return [c for c in seen.path.free_conditions if outer.issuperset(variables(c))]


def _run_problem(storage: Storage, s: Stage, result: Stage) -> str | None:
    """Why the copy engine does not add what lies in the order of a block's parts to a result."""
    if result is not s:
        return f"{result.name} is stored by threads; bind its last two loops to Bulk"
    own = storage.loop_values(s)
    seen, lanes = view(storage.graph, s, own), kept_lanes(storage, s)
    if not _is_whole(storage, s, seen):
        return (
            f"the part of a block may reach beyond an edge of {s.name}, or several blocks have it"
        )
    pairs = zip(seen.output, strides_of(s), strict=True)
    at = sum((e * stride for e, stride in pairs), ZERO)
    outer = _outer(storage, s)
    begin = substitute(at, {v: 0 for v in variables(at) if v not in outer})
    lane = storage.lane(s) if lanes > 1 else ZERO
    placed = element_in_block(storage, s, dict(enumerate(own)), 0) + lane
    if at - begin != placed or lanes != vector_of(storage, s):
        return f"{s.name} lies in another order than a block's parts"
    nbytes = s.dtype.nbytes
    begins = [elements_of_block(storage, s) * nbytes, s.alignment]
    if any(n % BULK_ALIGNMENT for n in begins) or not is_multiple(begin * nbytes, BULK_ALIGNMENT):
        return f"the part of a block in {s.name} is no run of whole {BULK_ALIGNMENT} bytes"
    return None


def _is_whole(storage: Storage, s: Stage, seen: View) -> bool:
    """Whether every thread of every block has elements of its own of a reduction."""
    reducing = reduced_loops(storage.graph, s)
    reduced = {v for i in reducing for v in variables(seen.variables[i])}
    conditions = [*seen.path.predicates, *seen.path.free_conditions]
    for i, (x, v) in enumerate(zip(s.loops, seen.variables, strict=True)):
        if i not in reducing and x.parallel in (THREAD_DIMS | GRID_DIMS):
            conditions.append(less(v, x.axis.extent))
    return all(c == TRUE for c in conditions if not reduced.intersection(variables(c)))
