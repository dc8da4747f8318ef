"""The loop tree: which loops of which definitions are one loop, and in what order things run.

Only serial loops are nodes. A definition inlined at depth k shares its first k loops with all its
readers; sharing is closed by union-find, so that readers of one inlined value share with each
other. A tree is legal when every node has one parent, the children of every node can be ordered
producers first, and no loop that reduces encloses a reader of what it reduces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.axes.paths import Refusal, domain_path
from fusewright.core.conditions import less, less_equal, prove
from fusewright.core.expr import ONE, ZERO, Expr
from fusewright.core.substitution import substitute
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import Scan, Sort
from fusewright.memory import Memory
from fusewright.schedule.graph import Stage
from fusewright.schedule.parallel import GRID_DIMS, Loop, Parallel
from fusewright.schedule.views import loop_value, loop_variables, operand, view


@dataclass(eq=False, slots=True)
class LoopNode:
    """One serial loop of the kernel, or the root; children in execution order."""

    axis: AxisClass | None
    parallel: Parallel
    parent: LoopNode | None
    stages: list[Stage] = field(default_factory=list[Stage])
    children: list[Child] = field(default_factory=list["Child"])

    @property
    def path(self) -> tuple[LoopNode, ...]:
        """The nodes from the outermost loop down to this one, without the root."""
        out: list[LoopNode] = []
        node = self
        while node.parent is not None:
            out.append(node)
            node = node.parent
        return tuple(reversed(out))


Child: TypeAlias = "LoopNode | Stage"


@dataclass(frozen=True, slots=True)
class Nest:
    """The tree, the node under which each stage stands, and for each stage the node of each of
    its loops (None where the loop is not serial)."""

    root: LoopNode
    home: dict[Stage, LoopNode]
    nodes: dict[Stage, tuple[LoopNode | None, ...]]

    def shared(self, stage: Stage) -> LoopNode:
        """The innermost node that holds `stage` and all its readers: its allocation scope."""
        inside = [n for n in self.nodes[stage][: stage.inline_depth] if n is not None]
        return inside[-1] if inside else self.root


Key: TypeAlias = tuple[Stage, int]


class _Union:
    def __init__(self) -> None:
        self.parent: dict[Key, Key] = {}

    def find(self, k: Key) -> Key:
        parent, root = self.parent, k
        while (above := parent.get(root)) is not None:
            root = above
        while k is not root and (above := parent.get(k)) is not None:
            parent[k], k = root, above
        return root

    def join(self, a: Key, b: Key) -> None:
        ra, rb = self.find(a), self.find(b)
        if ra is not rb and ra != rb:
            self.parent[rb] = ra


def computed(stages: Iterable[Stage]) -> list[Stage]:
    """The stages that stand in the kernel: all but inputs and literals."""
    return [s for s in stages if not s.is_input and not s.is_virtual]


def is_loop(loop: Loop) -> bool:
    """Whether a loop appears in the kernel's text: serial and not of extent one."""
    return loop.parallel.is_serial and loop.axis.extent != ONE


def build_nest(
    graph: AxisGraph, stages: Sequence[Stage], consumers: dict[Stage, list[Stage]]
) -> Nest:
    """The loop tree of a schedule.

    Raises ScheduleError naming the two tensors when it is not a tree, cannot be ordered, or a
    reducing loop encloses a reader.
    """
    body = computed(stages)
    union = _share(body, consumers)
    root = LoopNode(None, Parallel.SERIAL, None)
    by_key: dict[Key, LoopNode] = {}
    home: dict[Stage, LoopNode] = {}
    nodes: dict[Stage, tuple[LoopNode | None, ...]] = {}
    for s in body:
        node = root
        path: list[LoopNode | None] = []
        for i, loop in enumerate(s.loops):
            if not is_loop(loop):
                path.append(None)
                continue
            key = union.find((s, i))
            known = by_key.get(key)
            if known is None:
                known = by_key[key] = LoopNode(loop.axis, loop.parallel, node)
            elif known.parent is not node:
                raise ScheduleError(
                    f"inlining gives the loop {loop.axis} of {s.name} two parents; "
                    f"inline less deep, or fw's recompute() to give each reader its own clone"
                )
            node = known
            path.append(node)
        for n in path:
            if n is not None:
                n.stages.append(s)
        home[s] = node
        nodes[s] = tuple(path)
    nest = Nest(root, home, nodes)
    _check_reductions(graph, body, consumers, nest)
    check_scans(graph, body)
    _check_places(graph, body, consumers, nest)
    _order(body, consumers, nest)
    return nest


def _share(body: list[Stage], consumers: dict[Stage, list[Stage]]) -> _Union:
    union = _Union()
    for p in body:
        for c in consumers[p]:
            for i, own in enumerate(p.loops[: p.inline_depth]):
                other = c.loops[i] if i < len(c.loops) else None
                if other is not own and other != own:
                    raise ScheduleError(
                        f"{p.name} is inlined at depth {p.inline_depth} but its loop {i} is not "
                        f"loop {i} of its reader {c.name}; give both the same transforms, or use "
                        f"recompute() so that each reader has its own {p.name}"
                    )
                if is_loop(own):
                    union.join((p, i), (c, i))
    return union


def reduced_loops(graph: AxisGraph, stage: Stage) -> tuple[int, ...]:
    """The positions of the loops of a reduction that run over what it reduces."""
    if not stage.frame.reduced:
        return ()
    return tuple(i for i, x in enumerate(stage.loops) if graph.depends(x.axis, stage.frame.reduced))


def waiting_loops(graph: AxisGraph, stage: Stage, readers: Iterable[Stage]) -> tuple[int, ...]:
    """The positions of the loops that must be over before a stage is read: those over what it
    reduces, and over an axis along which its readers sort it."""
    sorts = [stage.frame.output[r.op.axis] for r in readers if isinstance(r.op, Sort)]
    reduced = reduced_loops(graph, stage)
    if not sorts:
        return reduced
    rows = (i for i, x in enumerate(stage.loops) if graph.depends(x.axis, sorts))
    return tuple(sorted({*reduced, *rows}))


def mixed_loop(graph: AxisGraph, stage: Stage, loops: Sequence[Loop]) -> Loop | None:
    """A loop that would run over a reduced and a kept axis of a stage, or over a kept one from
    another start for each element that is reduced."""
    reduced, kept = stage.frame.reduced, stage.frame.output
    for x in loops:
        over = graph.depends(x.axis, reduced) or graph.is_moved_by(x.axis, reduced)
        if over and graph.depends(x.axis, kept):
            return x
    return None


def scan_problem(graph: AxisGraph, stage: Stage, loops: Sequence[Loop]) -> str | None:
    """Why the loops would not walk along the axis that a stage scans from its first element to its
    last, in one thread or with neighbours in the threads of one dimension; None when they do, and
    for stages that are no scans."""
    return walk_problem(graph, stage, stage.op.axis, loops) if isinstance(stage.op, Scan) else None


def walk_problem(graph: AxisGraph, stage: Stage, along: int, loops: Sequence[Loop]) -> str | None:
    """Why loops would not walk along the axis number `along` of a stage in order, as
    `scan_problem` has it."""
    axis = stage.frame.output[along]
    if axis.extent == ONE:
        return None
    variables = [graph.variable(f"i{i}", x.axis.extent) for i, x in enumerate(loops)]
    known = [(x.axis, v) for x, v in zip(loops, variables, strict=True)]
    path = domain_path(graph, known, stage.frame.domain)
    if isinstance(path, Refusal):
        return path.reason
    value = path.values[along]
    first = substitute(value, dict.fromkeys(variables, 0))
    inner: Expr = ZERO
    walked: Expr = first
    for i, x in reversed(list(enumerate(loops))):
        if x.axis.extent == ONE or not graph.depends(x.axis, [axis]):
            continue
        in_slices = stage.grid_mode == "slices" and x.parallel in GRID_DIMS
        if (x.parallel.is_block and not in_slices) or (x.parallel.is_thread and inner != ZERO):
            return f"loop {i} runs along the scanned axis and cannot be bound to {x.parallel.value}"
        step = substitute(value, {v: int(v is variables[i]) for v in variables}) - first
        if prove(less(inner, step)) is not True:
            return f"loop {i} would visit the scanned axis out of order"
        inner = inner + step * (x.axis.extent - 1)
        walked = walked + step * variables[i]
    return None if walked == value else f"its loops visit the scanned axis at {value}, out of order"


def scanning_threads(graph: AxisGraph, stage: Stage) -> Parallel | None:
    """The dimension of the block along which threads hold neighbours of the axis that a stage
    scans; None where every thread scans alone."""
    if not isinstance(stage.op, Scan):
        return None
    axis = stage.frame.output[stage.op.axis]
    for x in stage.loops:
        along = x.parallel.is_thread and x.axis.extent != ONE
        if along and graph.depends(x.axis, [axis]):
            return x.parallel
    return None


def check_scans(graph: AxisGraph, body: Iterable[Stage]) -> None:
    """Raises ScheduleError for a scan whose loops do not walk along its axis."""
    for s in body:
        problem = scan_problem(graph, s, s.loops)
        if problem is not None:
            raise ScheduleError(
                f"{s.name}: {problem}; keep that axis serial and in order, its innermost loop on "
                "threads at most"
            )


def backward_loops(graph: AxisGraph, nest: Nest) -> frozenset[LoopNode]:
    """The loops that scans in reverse walk from the last trip to the first. Raises ScheduleError
    for a loop that another scan walks forwards."""
    walked: dict[bool, dict[LoopNode, Stage]] = {False: {}, True: {}}
    for s, nodes in nest.nodes.items():
        if isinstance(s.op, Scan):
            axis = s.frame.output[s.op.axis]
            along = [n for n in nodes if n and n.axis and graph.depends(n.axis, [axis])]
            walked[s.op.reverse] |= dict.fromkeys(along, s)
    for node, s in walked[True].items():
        if node in walked[False]:
            raise ScheduleError(
                f"{s.name} scans in reverse in a loop in which {walked[False][node].name} scans "
                "forwards; a loop runs in one direction: give each scan loops of its own"
            )
    return frozenset(walked[True])


def _check_reductions(
    graph: AxisGraph, body: list[Stage], consumers: dict[Stage, list[Stage]], nest: Nest
) -> None:
    order = {s: i for i, s in enumerate(body)}
    last: dict[LoopNode, int] = {n: order[s] for s in body for n in nest.nodes[s] if n is not None}
    for p in body:
        if not p.frame.reduced and not any(isinstance(c.op, Sort) for c in consumers[p]):
            continue
        positions = waiting_loops(graph, p, consumers[p])
        reducing = {n for i in positions if (n := nest.nodes[p][i]) is not None}
        if p.frame.reduced and (beyond := _loop_beyond(graph, p, nest)) is not None:
            raise ScheduleError(
                f"{p.name}: loop {beyond} runs over no element, as it is cut from a loop of one "
                "trip, and would sum from anew in each of its trips; leave that loop whole"
            )
        if not reducing:
            continue
        seen: set[Stage] = set()
        stack = list(consumers[p])
        end = max(last[n] for n in reducing)  # no stage behind it stands in these loops
        while stack:
            c = stack.pop()
            if c in seen or order[c] > end:
                continue
            seen.add(c)
            if reducing.intersection(n for n in nest.nodes[c] if n is not None):
                does = "reduces" if p.frame.reduced else "fills"
                raise ScheduleError(
                    f"{c.name} needs the finished {p.name} but stands inside the loop that "
                    f"{does} it; inline the values they share less deep, or recompute() them"
                )
            stack.extend(consumers[c])


def _loop_beyond(graph: AxisGraph, s: Stage, nest: Nest) -> int | None:
    """A loop of a reduction that is held, inside of the threads that meet, which runs along no axis
    that it has; None where there is none. Where a result is written such trips write nothing."""
    reducing = [i for i in reduced_loops(graph, s) if not s.loops[i].parallel.is_serial]
    if s.memory is Memory.GLOBAL or not reducing:
        return None
    beyond = (
        i
        for i, x in enumerate(s.loops)
        if i >= max(s.inline_depth, reducing[0]) and nest.nodes[s][i] is not None
        if not graph.depends(x.axis, s.frame.domain)
    )
    return next(beyond, None)


def _check_places(
    graph: AxisGraph, body: list[Stage], consumers: dict[Stage, list[Stage]], nest: Nest
) -> None:
    """Raises ScheduleError for a value that is kept beyond its trip of a loop, as lines are that
    are read at other places, and is read in the same loop at places that no trip has made yet."""
    for p in body:
        for c in consumers[p]:
            pairs = list(zip(nest.nodes[p], nest.nodes[c], strict=False))[p.inline_depth :]
            shared = {
                p.inline_depth + i: a for i, (a, b) in enumerate(pairs) if a is not None and a is b
            }
            ahead = _read_ahead(graph, p, c, shared) if shared else None
            if ahead is not None:
                raise ScheduleError(
                    f"{c.name} reads {p.name} at {ahead} of the loop {p.loops[min(shared)].axis} "
                    "that makes it; inline the values they share less deep, or recompute() them"
                )


def _read_ahead(graph: AxisGraph, p: Stage, c: Stage, shared: Mapping[int, LoopNode]) -> str | None:
    """The trip of a loop that makes `p` whose element `c` reads in that loop, if it is not known
    to be over by then."""
    reader = view(graph, c, loop_variables(graph, c.loops))
    for k in (k for k, o in enumerate(c.operands) if o is p):
        read = operand(graph, reader, k)
        for i, node in shared.items():
            trip, here = loop_value(graph, reader, read, i), reader.variables[i]
            if trip is None:
                return "an unknown trip"
            backward = any(isinstance(s.op, Scan) and s.op.reverse for s in node.stages)
            first, last = (here, trip) if backward else (trip, here)
            if trip != here and prove(less_equal(first, last)) is not True:
                return f"trip {trip}"
    return None


def _order(body: list[Stage], consumers: dict[Stage, list[Stage]], nest: Nest) -> None:
    """Fills `children` of every node: producers before consumers, else program order."""
    index = {s: i for i, s in enumerate(body)}
    first: dict[Child, int] = {s: i for i, s in enumerate(body)}
    groups: dict[LoopNode, dict[Child, None]] = {}
    for s in body:
        child: Child = s
        node: LoopNode | None = nest.home[s]
        while node is not None:
            groups.setdefault(node, {})[child] = None
            first[child] = min(first.get(child, index[s]), index[s])
            child, node = node, node.parent
    before: dict[LoopNode, dict[Child, dict[Child, None]]] = {}
    chains = {s: _chain(nest, s) for s in body}
    for p in body:
        for c in consumers[p]:
            node, a, b = _meet(chains[p], chains[c])
            if a is not b:
                before.setdefault(node, {}).setdefault(b, {})[a] = None
    for node, group in groups.items():
        node.children = _topological(list(group), before.get(node, {}), first)


def _chain(nest: Nest, s: Stage) -> list[Child]:
    return [nest.root, *nest.home[s].path, s]


def _meet(a: Sequence[Child], b: Sequence[Child]) -> tuple[LoopNode, Child, Child]:
    """The innermost common node of the chains of two stages, and its children in them."""
    depth = 0
    while a[depth] is b[depth]:
        depth += 1
    node = a[depth - 1]
    assert isinstance(node, LoopNode)
    return node, a[depth], b[depth]


def _topological(
    group: list[Child],
    before: dict[Child, dict[Child, None]],
    first: dict[Child, int],
) -> list[Child]:
    """The children of a node, those whose producers stand already in program order."""
    waiting = {g: len(before.get(g, {})) for g in group}
    behind: dict[Child, list[Child]] = {g: [] for g in group}
    for g in group:
        for p in before.get(g, {}):
            behind[p].append(g)
    number = {g: k for k, g in enumerate(group)}
    ready = [(first[g], number[g], g) for g in group if not waiting[g]]
    heapify(ready)
    out: list[Child] = []
    while ready:
        *_, chosen = heappop(ready)
        out.append(chosen)
        for g in behind[chosen]:
            waiting[g] -= 1
            if not waiting[g]:
                heappush(ready, (first[g], number[g], g))
    if len(out) < len(group):
        names = ", ".join(_name(g) for g in group if waiting[g])
        raise ScheduleError(f"the loops over {names} need each other's results; inline less deep")
    return out


def _name(child: Child) -> str:
    return child.name if isinstance(child, Stage) else "+".join(s.name for s in child.stages)
