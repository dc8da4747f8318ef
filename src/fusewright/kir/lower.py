"""Lowering: a schedule's loop tree becomes a kernel.

The result is unsynchronised KIR: right when each statement runs for all threads before the next.
Loops bound to the grid and the block become variables; reductions over threads become
`ThreadReduce`; syncs, offsets and unrolling are later passes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from fusewright import knobs
from fusewright.axes.checks import check_graph
from fusewright.axes.classes import AxisClass
from fusewright.core.atoms import maximum
from fusewright.core.conditions import TRUE, Cond, all_of
from fusewright.core.expr import Expr, Int, Var, constant_value, variables
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import Sort
from fusewright.kir.ir import Alloc, AsyncKind, Body, Buffer, Dim, For, If, Kernel, Statement
from fusewright.kir.lower_products import check_products
from fusewright.kir.lower_results import find_results
from fusewright.kir.lower_statements import Statements
from fusewright.kir.lower_storage import Context, Storage, carrying_loops
from fusewright.kir.lower_turns import blocks_reduced, check_modes, where_finished
from fusewright.kir.overlap import OVERLAP, overlap_of
from fusewright.kir.sort_network import check_tile, sort_network
from fusewright.kir.traverse import map_body, with_bodies
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.inline import check_placement, consumers_of
from fusewright.schedule.nest import (
    Child,
    LoopNode,
    Nest,
    backward_loops,
    build_nest,
    computed,
)
from fusewright.schedule.parallel import BLOCK_DIMS, GRID_DIMS, THREAD_DIMS, Parallel
from fusewright.schedule.precision import fast_forms
from fusewright.schedule.streams import Stream, stream_of, take_rest, take_whole
from fusewright.schedule.views import view
from fusewright.target import MAX_GRID_YZ, MAX_THREADS_PER_BLOCK, WARP_SIZE, Target

_GRID = tuple(GRID_DIMS.values())
MAX_HELD = 4096
"""Elements of one value that a thread may hold: far more than registers, yet no lost loop."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kernel and what its launch must supply: the stages behind its parameters (inputs, then
    outputs) and the values of its scalar arguments."""

    kernel: Kernel
    inputs: tuple[Stage, ...]
    outputs: tuple[Stage, ...]
    argument_values: tuple[bool | int | float, ...]


def lower(
    flow: Dataflow, name: str, target: Target, *, min_blocks: int = 0, cluster: int | None = None
) -> Lowered:
    """The kernel of a schedule; `cluster` is the blocks of a cluster that it should have.

    Raises ScheduleError when a reader cannot find what it reads, a wide access is not contiguous,
    or the launch does not fit the target, and InternalError for a graph of axes that breaks its
    invariants.
    """
    if knobs.SPEC.get():
        check_graph(flow.graph)
    check_placement(flow)
    check_modes(flow.stages, target)
    check_products(flow.stages)
    stream = stream_of(flow)
    if stream is None:
        context = _context(flow, target)
        body = _body(context)
    else:
        context, body = _streamed(flow, stream, target)
    inputs = tuple(s for s in flow.inputs if flow.consumers(s))
    params = {s: context.buffers[s] for s in (*inputs, *flow.outputs)}
    cx, orders = context.dims["cx"], context.orders.values()
    turned = tuple(o.guarded for o in orders if o.in_result)
    own = [o for o in orders if not o.in_result]
    kernel = Kernel(
        name=name,
        params=(*params.values(), *(o.guarded for o in own), *(o.semaphore for o in orders)),
        arguments=tuple(a for a, _ in context.arguments.values()),
        symbols=context.sizes,
        grid=tuple(context.dims[n] for n in GRID_DIMS.values()),
        block=tuple(context.dims[n] for n in THREAD_DIMS.values()),
        body=(*(x for made in context.returned.values() for x in made), *body),
        cluster=() if cx.extent == Int(1) else (cx,),
        min_blocks=min_blocks,
        maps=tuple(context.maps.values()),
        stored_once=tuple(params[s] for s in flow.outputs if params[s] not in turned),
        stored_in_turns=turned,
        semaphores=tuple(o.semaphore for o in orders),
        zeroed=tuple(o.guarded for o in own if o.summed),
        scratch=tuple(o.guarded for o in own if not o.summed),
        attributes=(("contract", "true"),),
    )
    _check_launch(kernel, target)
    _check_cluster(kernel, target, cluster)
    values = tuple(v for _, v in context.arguments.values())
    return Lowered(kernel, inputs, tuple(flow.outputs), values)


def _context(
    flow: Dataflow, target: Target, ranges: Mapping[AxisClass, range] | None = None
) -> Context:
    """What the definitions of a kernel share, of whose loops some run a range of iterations."""
    nest = build_nest(flow.graph, flow.stages, consumers_of(flow))
    dims, ranges = _dims(flow), ranges or {}
    inputs = (s for s in flow.inputs if flow.consumers(s))
    return Context(
        flow=flow,
        nest=nest,
        dims=dims,
        nodes=_node_variables(nest.root, ranges),
        buffers={s: _parameter(s) for s in (*inputs, *flow.outputs)},
        arguments={},
        sizes=_symbols(flow),
        fast_forms=fast_forms(flow.stages, consumers_of(flow)),
        at_once=target.clusters_at_once(constant_value(dims["cx"].extent) or 1),
        backward=backward_loops(flow.graph, nest),
        ranges=ranges,
    )


def _body(context: Context) -> Body:
    """The statements of all definitions of a context."""
    find_results(context)
    context.finished.update(where_finished(context))
    return _Tree(context).body(context.nest.root)


def _streamed(flow: Dataflow, stream: Stream, target: Target) -> tuple[Context, Body]:
    """The statements of the whole waves of a stream, and behind them those of the last one, in the
    same shared memory, with the context of those.

    rewrite:  for u < n { shared t; .. }  ->  shared t;  for u < n - 1 { .. }  for s < rest { .. }
    """
    with flow.trial():
        take_whole(stream)
        first = _context(flow, target, {stream.waves: range(stream.whole)})
        whole = _body(first)
    with flow.trial():
        take_rest(flow, stream)
        last = {stream.waves: range(stream.whole, stream.whole + 1)}
        own = _context(flow, target, {**last, stream.tiles: range(stream.rest)})
        context = replace(
            own, dims=first.dims, buffers=first.buffers, arguments=first.arguments,
            maps=first.maps, temporaries=first.temporaries, sums=first.sums,
            kept=frozenset(_that_go_on(first)),
        )  # fmt: skip
        rest = _body(context)
    kept: dict[Buffer, Alloc] = {}
    whole = _without(whole, context.kept, kept)
    return context, (*kept.values(), *whole, *_without(rest, context.kept, kept))


def _that_go_on(context: Context) -> Iterator[Buffer]:
    """Tiles in shared memory, and the sums of products: registers that instructions add to next
    were read before, so that a fence stands in between."""
    for s in computed(context.flow.stages):
        if s.memory is Memory.SHARED or s.is_mma:
            yield context.buffers[s]
    yield from context.sums.values()


def _without(body: Body, buffers: Collection[Buffer], found: dict[Buffer, Alloc]) -> Body:
    """A body without its allocations of some buffers, which are `found`."""

    def drop(s: Statement) -> Statement | tuple[Statement, ...]:
        if not isinstance(s, Alloc):
            return with_bodies(s, lambda inner: map_body(inner, drop))
        if s.buffer not in buffers:
            return s
        found[s.buffer] = s
        return ()

    return map_body(body, drop)


def _parameter(s: Stage) -> Buffer:
    size: Expr = Int(1)
    for extent, stride in zip(s.shape, strides_of(s), strict=True):
        size = size + (extent - 1) * stride
    alignment = max(s.alignment, s.dtype.nbytes)
    return Buffer(s.name, s.dtype, size, Memory.GLOBAL, alignment)


def _dims(flow: Dataflow) -> dict[str, Dim]:
    """Those of the grid, of the block, and of the cluster, by name."""
    extents: dict[Parallel, Expr] = {}
    for s in computed(flow.stages):
        for x in s.loops:
            if x.parallel.is_block or x.parallel.is_thread:
                known = extents.get(x.parallel)
                extents[x.parallel] = (
                    x.axis.extent if known is None else maximum(known, x.axis.extent)
                )
    found = {n: extents.get(p, Int(1)) for p, n in (BLOCK_DIMS | THREAD_DIMS).items()}
    return {n: Dim(Var(n, 0, extent - 1), extent) for n, extent in found.items()}


def _node_variables(root: LoopNode, ranges: Mapping[AxisClass, range]) -> dict[LoopNode, Var]:
    table: dict[LoopNode, Var] = {}
    stack = list(reversed([c for c in root.children if isinstance(c, LoopNode)]))
    while stack:
        node = stack.pop()
        assert node.axis is not None
        some = ranges.get(node.axis)
        extent = node.axis.extent if some is None else Int(len(some))
        table[node] = Var(f"i{len(table)}", 0, extent - 1)
        stack.extend(reversed([c for c in node.children if isinstance(c, LoopNode)]))
    return table


def _symbols(flow: Dataflow) -> tuple[Var, ...]:
    """The sizes that limits of others mention, those of shapes, layouts and ops, and those
    of the pitches of outputs: every variable of the kernel's expressions that is no dimension or
    loop is one of them."""
    pitches = [v for s in flow.outputs for e in strides_of(s) for v in variables(e)]
    found = dict.fromkeys((*flow.fusion().symbols, *pitches))
    limits = (w for v in found if v.upper is not None for w in variables(v.upper))
    return tuple(dict.fromkeys((*limits, *found)))


def _check_held(buffer: Buffer) -> None:
    """Raises ScheduleError for more than a thread can hold, in registers or out of them."""
    elements = constant_value(buffer.size) or 0
    if buffer.memory is Memory.LOCAL and elements > MAX_HELD:
        raise ScheduleError(
            f"{buffer.name}: a thread would hold {elements:,} elements, {MAX_HELD:,} at most; bind "
            "its loops to threads and blocks as its readers', or inline it deeper"
        )


def _check_launch(kernel: Kernel, target: Target) -> None:
    threads = 1
    for d in kernel.block:
        extent = constant_value(d.extent)
        if extent is None:
            raise ScheduleError(
                f"{kernel.name}: block dimension {d.var} has the symbolic extent {d.extent}; "
                "split the loop by a constant and bind the inner one"
            )
        threads *= extent
    if threads > MAX_THREADS_PER_BLOCK:
        raise ScheduleError(
            f"{kernel.name}: {threads} threads a block, the limit is {MAX_THREADS_PER_BLOCK}; "
            "bind smaller loops to TIDx, TIDy, TIDz"
        )
    for d in kernel.grid[1:]:
        extent = constant_value(d.extent)
        if extent is not None and extent > MAX_GRID_YZ:
            raise ScheduleError(
                f"{kernel.name}: {extent} blocks along {d.var}, the limit is {MAX_GRID_YZ}; "
                "use BIDx for the large one"
            )


def _check_cluster(kernel: Kernel, target: Target, wanted: int | None) -> None:
    size = kernel.cluster_size
    if wanted is not None and wanted != size:
        raise ScheduleError(
            f"{kernel.name}: launch(cluster={wanted}), but the loops bound to ClusterX make "
            f"clusters of {size}; bind loops of {wanted} to ClusterX, or leave launch(cluster=) out"
        )
    if size > target.max_cluster:
        raise ScheduleError(
            f"{kernel.name}: clusters of {size} blocks, {target} has {target.max_cluster}; bind "
            "the loop to BIDx, or make it serial"
        )
    if size > 1 and kernel.nthreads % WARP_SIZE:
        raise ScheduleError(
            f"{kernel.name}: {kernel.nthreads} threads a block; the blocks of a cluster have whole "
            f"warps, so let TIDx, TIDy and TIDz make a multiple of {WARP_SIZE}"
        )


class _Tree:
    """Walks the loop tree and emits bodies."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.storage = Storage(context, strides_of)
        self.emit = Statements(self.storage)
        self.nest: Nest = context.nest
        self.carried = self._carried()
        self.sorted = self._sorted()
        self.allocated = self._allocated()

    def _carried(self) -> dict[LoopNode, list[Stage]]:
        """For each loop node the reductions and scans whose outermost carrying loop it is."""
        table: dict[LoopNode, list[Stage]] = {}
        for s in computed(self.context.flow.stages):
            for i in carrying_loops(self.context, s):
                node = self.nest.nodes[s][i]
                if node is not None:
                    table.setdefault(node, []).append(s)
                    break
        return table

    def _sorted(self) -> dict[Child, list[tuple[Stage, int]]]:
        """For each loop node, or stage without one, the tiles that are sorted behind it, and along
        which axis."""
        table: dict[Child, list[tuple[Stage, int]]] = {}
        for s in computed(self.context.flow.stages):
            if isinstance(s.op, Sort):
                tile = s.operands[0]
                check_tile(self.context.flow, tile, s)
                own = self.nest.nodes.get(tile, ())[tile.inline_depth :]
                behind: Child = next((n for n in own if n is not None), tile)
                table.setdefault(behind, []).append((tile, s.op.axis))
        return table

    def _allocated(self) -> dict[LoopNode, list[Statement]]:
        table: dict[LoopNode, list[Statement]] = {}
        for s in computed(self.context.flow.stages):
            buffer = self.storage.allocate(s)
            if buffer is not None:
                _check_held(buffer)
                copied = None if s.copied is None else AsyncKind(s.copied)
                alloc = Alloc(
                    buffer,
                    promote=s.promote,
                    copied=copied,
                    stages=s.stages,
                    ahead=s.ahead,
                    warp_specialized=s.warp_specialized,
                    registers=s.registers,
                    ping_pong=s.ping_pong,
                )
                table.setdefault(self.nest.shared(s), []).append(alloc)
            for carried in (self.storage.carry(s), self.storage.sums(s)):
                if carried is not None:
                    scope = self._carry_scope(s)
                    table.setdefault(scope, []).append(Alloc(carried))
        return table

    def _carry_scope(self, s: Stage) -> LoopNode:
        for i in carrying_loops(self.context, s):
            node = self.nest.nodes[s][i]
            if node is not None:
                assert node.parent is not None
                return node.parent
        return self.nest.home[s]

    def _tile_guard(self, node: LoopNode) -> Cond:
        """Whether there is a tile for the blocks in an iteration of the loop right around the loop
        over a product's depth: its boxes and instructions have no conditions of their own."""
        for s in node.stages:
            if not s.is_mma or not s.inline_depth:
                continue
            shared = [n for n in self.nest.nodes[s][: s.inline_depth] if n is not None]
            if shared[-1:] != [node]:
                continue
            seen = view(self.context.flow.graph, s, self.storage.loop_values(s))
            around = {self.context.nodes[n] for n in shared} | set(self.context.sizes)
            around |= {d.var for name, d in self.context.dims.items() if name in _GRID}
            reduced = blocks_reduced(self.context, s)  # all of those come to the turn of a tile
            around -= {self.context.dims[GRID_DIMS[p]].var for p in reduced}
            known = [c for c in seen.path.predicates if around.issuperset(variables(c))]
            return all_of(known)
        return TRUE

    def _overlap(self, node: LoopNode) -> int:
        """How many iterations the compiler may interleave: those of a product over its rows some,
        those over tiles one, which hold all that a block does, and those that add what they sum to
        other registers one: ptxas keeps the sums of several of them, and spills. Of products of
        single warps it would hold the operands of several in registers: one."""
        products = [s for s in self.context.flow.stages if s.is_mma]
        if any(node in self.nest.nodes[s][: s.inline_depth] for s in products):
            return 1
        if any(node in self.nest.nodes[s] for s in self.context.sums):
            return 1
        if any(node in self.nest.nodes[s] for s in products):
            return 1 if any(s.warps for s in products) else OVERLAP
        assert node.axis is not None
        return overlap_of(node.axis.extent)

    def _loop(self, node: LoopNode) -> For:
        """The loop of a node, with what is in it under the guard of its tile."""
        inside, guard, trips = self.body(node), self._tile_guard(node), self.context.trips(node)
        inside = inside if guard == TRUE else (If(guard, inside),)
        unroll, overlap = node.parallel is Parallel.UNROLL, self._overlap(node)
        return For(self.context.nodes[node], trips, inside, unroll=unroll, overlap=overlap)

    def body(self, node: LoopNode) -> Body:
        out: list[Statement] = list(self.allocated.get(node, []))
        for child in node.children:
            begin, end = self.emit.turns_around(child)
            out.extend(begin)
            if isinstance(child, LoopNode):
                for s in self.carried.get(child, []):
                    out.extend(self.emit.initialise(s))
                out.append(self._loop(child))
                for s in self.carried.get(child, []):
                    out.extend(self.emit.finish(s))
            else:
                inside = any(child in group for group in self.carried.values())
                out.extend(self.emit.stage(child, standalone=not inside))
            out.extend(end)
            for tile, axis in self.sorted.get(child, []):
                out.extend(sort_network(self.storage, tile, axis))
        return tuple(out)
