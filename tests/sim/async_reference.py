"""An independent, slow detector for rings, roles, products and turns: every thread by itself.

Threads run in random turns, each until it has to wait. Nodes of a graph of "before" stand for what
a thread does between two syncs, for each asynchronous operation, for each fence and for each phase
of a barrier that is complete; all pairs of accesses of a place are tested by reachability. There
are no clocks, no strands and no vectors; what is behind what is a set of bits.

What it takes for granted: mbarriers are made, and known to be, before they are used; the operands
of a product lie K-major in tiles of 64 columns of two bytes, swizzled over 128 bytes; boxes lie
whole and one behind the other.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, reduce
from itertools import chain
from operator import or_

from fusewright.core import conditions
from fusewright.core.compiled import Evaluator, compiled
from fusewright.core.expr import Expr, Var, as_expr, variables
from fusewright.kir import ir
from fusewright.memory import Memory

WARP = 32
MMA = ir.AsyncKind.MMA
Values = Mapping[Var, int]
Place = tuple[str, int]
Team = tuple[ir.Statement, int, str, int]
"""A statement, which time it is executed, and by which block or warp."""
FRAGMENT = 8
"""Registers of an operand that a product takes from them."""


@dataclass(slots=True, eq=False)
class Touch:
    """An access to one place by node `node`. `proxy` is "generic", "async", or "registers" of a
    product; `counted` says that an mbarrier completes it."""

    thread: int
    node: int
    statement: ir.Statement
    writes: bool
    is_async: bool = False
    proxy: str = "generic"
    counted: bool = False


@dataclass
class Barrier:
    """An mbarrier or a named barrier: its phases that are complete, as nodes, and the one under
    way."""

    count: int
    pending: int
    nbytes: int = 0
    before: int = 0
    copies: int = 0
    phases: list[int] = field(default_factory=list)


@dataclass
class Semaphore:
    """The value, and what was before the release that set it."""

    value: int = 0
    before: int = 0


@dataclass
class Groups:
    """Operations of a thread by group, each as the nodes of its reads and of the whole."""

    open: list[tuple[int, int]] = field(default_factory=list)
    closed: list[list[tuple[int, int]]] = field(default_factory=list)


@dataclass
class Reference:
    """A run of a kernel, with some syncs left out and some waits replaced."""

    kernel: ir.Kernel
    turns: random.Random
    without: frozenset[ir.Statement] = frozenset()
    instead: Mapping[ir.Statement, ir.Statement] = field(default_factory=dict)
    ancestors: list[int] = field(default_factory=list)
    touches: dict[Place, list[Touch]] = field(default_factory=lambda: defaultdict(list))
    barriers: dict[tuple[str, int, int], Barrier] = field(default_factory=dict)
    semaphores: dict[tuple[str, int], Semaphore] = field(
        default_factory=lambda: defaultdict(Semaphore)
    )
    is_stuck: bool = False

    def __post_init__(self) -> None:
        k = self.kernel
        self.granule = 16 if any(p.dtype.nbytes == 2 for p in k.params) else 4
        self.nblocks = 1
        for d in k.grid:
            self.nblocks *= evaluate(d.extent, {})
        self.block = k.nthreads
        n = self.nblocks * self.block
        self.offsets: dict[ir.Buffer, int] = {}
        self.now = [self.node(0) for _ in range(n)]
        self.groups = {kind: [Groups() for _ in range(n)] for kind in ir.AsyncKind}
        self.fences: list[list[int]] = [[] for _ in range(n)]
        self.mma_fences: list[list[int]] = [[] for _ in range(n)]
        self.found_fences: dict[tuple[int, int, int | None], int] = {}
        self.phase_nodes: dict[int, int] = {}
        self.copy_nodes: dict[int, int] = {}
        self.met: dict[Team, set[int]] = defaultdict(set)
        self.over: set[Team] = set()
        self.programs = [list(self._program(k.body, self._values(t), t)) for t in range(n)]
        self.team_sizes: dict[Team, int] = defaultdict(int)
        for t, program in enumerate(self.programs):
            times: dict[ir.Statement, int] = defaultdict(int)
            for s, _ in program:
                team = self._team(s, t, times[s])
                if team is not None:
                    self.team_sizes[team] += 1
                times[s] += 1

    # --- the graph ------------------------------------------------------------------------------

    def node(self, before: int) -> int:
        self.ancestors.append(before)
        return len(self.ancestors) - 1

    def up_to(self, node: int) -> int:
        return self.ancestors[node] | 1 << node

    def learn(self, t: int, before: int) -> None:
        """What thread t does from here on comes behind all this."""
        self.now[t] = self.node(self.up_to(self.now[t]) | before)

    def behind(self, t: int) -> int:
        """All that thread t did and knows; what it does next is not among it."""
        before = self.up_to(self.now[t])
        self.now[t] = self.node(before)
        return before

    # --- programs -------------------------------------------------------------------------------

    def _values(self, t: int) -> dict[Var, int]:
        values, rest = {self.kernel.block[0].var: t % self.block}, t // self.block
        for d in self.kernel.grid:
            rest, values[d.var] = divmod(rest, evaluate(d.extent, {}))
        return values

    def _program(
        self, body: ir.Body, values: Values, t: int
    ) -> Iterator[tuple[ir.Statement, Values]]:
        """What a thread executes, one statement behind the other."""
        for s in body:
            match s:
                case ir.For():
                    for k in range(evaluate(s.extent, values)):
                        yield from self._program(s.body, {**values, s.var: k}, t)
                case ir.If():
                    taken = s.then if holds(s.condition, values) else s.otherwise
                    yield from self._program(taken, values, t)
                case ir.Roles():
                    for role in s.body:
                        assert isinstance(role, ir.Role)
                        if role.first <= t % self.block // WARP < role.stop:
                            yield from self._program(role.body, values, t)
                case ir.Alloc():
                    if s.buffer.memory is Memory.SHARED:
                        assert s.offset is not None
                        self.offsets[s.buffer] = s.offset
                case _ if s in self.without:
                    pass
                case _:
                    yield self.instead.get(s, s), values

    def _team(self, s: ir.Statement, t: int, time: int) -> Team | None:
        """The threads that must come to a statement before any goes on."""
        if isinstance(s, ir.BlockSync):
            return s, time, "block", t // self.block
        is_mma = isinstance(s, ir.AsyncCommit | ir.AsyncWait) and s.kind is MMA
        if is_mma or isinstance(s, ir.WarpSync | ir.Mma | ir.MmaFence):
            return s, time, "warp", t // WARP
        return None

    def run(self) -> Reference:
        """Let the threads take turns: all in turn, or the warps of one order, where the later ones
        move only while the earlier ones wait."""
        threads = {t: self._thread(t) for t in range(len(self.now))}
        patience = self.turns.choice((0.0, 0.1, 0.5))
        is_strict = self.turns.random() < 0.5
        warps = list(range(len(self.now) // WARP))
        self.turns.shuffle(warps)
        while threads and not self.is_stuck:
            moved = False
            for w in warps:
                moved |= self._move(threads, w, patience)
                if moved and is_strict:
                    break
            self.is_stuck = not moved
        return self

    def _move(self, threads: dict[int, Iterator[bool]], warp: int, patience: float) -> bool:
        """Let the threads of a warp go on, each until it waits or loses patience; whether one
        did."""
        moved = False
        order = [t for t in range(warp * WARP, warp * WARP + WARP) if t in threads]
        self.turns.shuffle(order)
        for t in order:
            for went in threads[t]:
                moved |= went
                if not went or self.turns.random() < patience:
                    break
            else:
                del threads[t]
                moved = True
        return moved

    def _thread(self, t: int) -> Iterator[bool]:
        """Executes a thread; yields False where it has to wait, and True behind a statement."""
        times: dict[ir.Statement, int] = defaultdict(int)
        for s, values in self.programs[t]:
            team = self._team(s, t, times[s])
            if team is not None:
                yield from self._meet(team, t, s)
            times[s] += 1
            yield from self._execute(s, values, t)
            yield True

    def _meet(self, key: Team, t: int, s: ir.Statement) -> Iterator[bool]:
        self.met[key].add(t)
        while len(self.met[key]) < self.team_sizes[key]:
            yield False
        if key not in self.over and isinstance(s, ir.BlockSync | ir.WarpSync):
            before = 0
            for u in sorted(self.met[key]):
                before |= self.behind(u)
            for u in self.met[key]:
                self.learn(u, before)
        self.over.add(key)

    # --- statements -----------------------------------------------------------------------------

    def _execute(self, s: ir.Statement, values: Values, t: int) -> Iterator[bool]:
        issuer = getattr(s, "issuer", None)
        if issuer is not None and t % self.block != issuer:
            return
        match s:
            case ir.MbarWait():
                yield from self._wait(s, values, t)
            case ir.NamedSync():
                b = self._named(s, t)
                phase = len(b.phases)
                self._arrive(b, self.behind(t), 1, 0)
                while len(b.phases) <= phase:
                    yield False
                self.learn(t, self.up_to(b.phases[phase]))
            case ir.SemaphoreAcquire():
                cell = self._cell(s, values)
                while cell.value < evaluate(s.value, values):
                    yield False
                self.learn(t, cell.before)
            case ir.Load() | ir.Store() | ir.Compute():
                self._generic(s, values, t)
            case ir.CpAsync() | ir.BulkLoad() | ir.BulkStore() | ir.BoxLoad() | ir.Mma():
                self._issue(s, values, t)
            case _:
                self._pass(s, values, t)

    def _pass(self, s: ir.Statement, values: Values, t: int) -> None:
        match s:
            case ir.BarrierArrive():
                self._arrive(self._named(s, t), self.behind(t), 1, 0)
            case ir.MbarInit():
                self.barriers[self._slot(s, values, t)] = Barrier(s.count, s.count)
            case ir.MbarExpect():
                self._arrive(self.barriers[self._slot(s, values, t)], self.behind(t), 1, s.nbytes)
            case ir.MbarArrive():
                if not s.per_warp or t % WARP == 0:
                    self._arrive(self.barriers[self._slot(s, values, t)], self.behind(t), 1, 0)
            case ir.AsyncCommit():
                groups = self.groups[s.kind][t]
                groups.closed.append(groups.open)
                groups.open = []
            case ir.AsyncWait():
                self._wait_groups(s, t)
            case ir.ProxyFence():
                if s.space is Memory.SHARED:
                    self.fences[t].append(self._fence(t))
            case ir.MmaFence():
                self.mma_fences[t].append(self._fence(t))
            case ir.SemaphoreRelease():
                cell = self._cell(s, values)
                cell.value, cell.before = evaluate(s.value, values), self.behind(t)
            case ir.BlockSync() | ir.WarpSync():
                pass
            case _:
                raise TypeError(f"no reference for {type(s).__name__}")

    def _fence(self, t: int) -> int:
        found = self.node(self.up_to(self.now[t]))
        self.now[t] = self.node(self.up_to(found))
        return found

    # --- barriers -------------------------------------------------------------------------------

    def _slot(self, s: ir.Statement, values: Values, t: int) -> tuple[str, int, int]:
        use = s.mbarrier_use()
        assert use is not None
        return str(use.barrier), evaluate(use.slot, values), t // self.block

    def _named(self, s: ir.NamedSync | ir.BarrierArrive, t: int) -> Barrier:
        key = ("named", s.barrier, t // self.block)
        return self.barriers.setdefault(key, Barrier(s.nthreads, s.nthreads))

    def _cell(self, s: ir.SemaphoreAcquire | ir.SemaphoreRelease, values: Values) -> Semaphore:
        return self.semaphores[str(s.semaphore), evaluate(s.index, values)]

    def _arrive(self, b: Barrier, before: int, arrivals: int, nbytes: int, copy: int = 0) -> None:
        b.before |= before
        b.copies |= copy
        b.pending -= arrivals
        b.nbytes += nbytes
        if b.pending or b.nbytes:
            return
        earlier = self.up_to(b.phases[-1]) if b.phases else 0
        node = self.node(b.before | b.copies | earlier)
        self.phase_nodes[node] = b.copies | (self._phases(1 << b.phases[-1]) if b.phases else 0)
        b.phases.append(node)
        b.pending, b.before, b.copies = b.count, 0, 0

    def _phases(self, before: int) -> int:
        """Of all this only phases that are complete, and the copies that they count."""
        found = 0
        for node, copies in self.phase_nodes.items():
            if before >> node & 1:
                found |= 1 << node | copies
        return found

    def _wait(self, s: ir.MbarWait, values: Values, t: int) -> Iterator[bool]:
        """Waits while the phase under way has the parity, which tells of one phase more than the
        thread knows of, or of none."""
        b, parity = self.barriers[self._slot(s, values, t)], evaluate(s.parity, values)
        known = sum(self.up_to(self.now[t]) >> p & 1 for p in b.phases)
        wanted = known if known % 2 != parity else known + 1
        while len(b.phases) % 2 == parity:
            yield False
        if wanted:
            self.learn(t, self.up_to(b.phases[wanted - 1]))

    # --- asynchronous operations ----------------------------------------------------------------

    def _wait_groups(self, s: ir.AsyncWait, t: int) -> None:
        ours = self.groups[s.kind]
        done = len(ours[t].closed) - s.keep
        warp = range(t // WARP * WARP, t // WARP * WARP + WARP)
        before = 0
        for u in warp if s.kind is MMA else (t,):
            for group in ours[u].closed[: max(done, 0)]:
                for reads, whole in group:
                    before |= 1 << reads | (0 if s.reads_only else 1 << whole)
        self.learn(t, before)

    def _start(self, t: int) -> int:
        """The node of an operation that thread t issues."""
        started = self.node(self.up_to(self.now[t]))
        self.now[t] = self.node(self.up_to(self.now[t]))
        return started

    def _issue(self, s: ir.Statement, values: Values, t: int) -> None:
        match s:
            case ir.CpAsync():
                inside = holds(s.predicate, values)
                if not inside and not s.zero_fill:
                    return
                node = self._start(t)
                self.groups[s.group() or MMA][t].open.append((node, node))
                self._touch(s.dst, s.index, s.width, values, Touch(t, node, s, True, True))
                if inside:
                    self._touch(s.src, s.src_index, s.width, values, Touch(t, node, s, False, True))
            case ir.BulkLoad():
                touch = Touch(t, self._start(t), s, True, True, "async", True)
                self._touch(s.dst, s.index, s.size, values, touch)
                self._deliver(s, values, touch, s.nbytes)
            case ir.BoxLoad():
                touch = Touch(t, self._start(t), s, True, True, "async", True)
                nbytes = s.map.box_nbytes
                self._touch(s.dst, s.index, nbytes // s.dst.dtype.nbytes, values, touch)
                self._deliver(s, values, touch, nbytes)
            case ir.BulkStore():
                reads, whole = self._start(t), self._start(t)
                self.groups[ir.AsyncKind.BULK][t].open.append((reads, whole))
                touch = Touch(t, reads, s, False, True, "async")
                self._touch(s.src, s.src_index, s.size, values, touch)
                touch = Touch(t, whole, s, True, True, "async")
                self._touch(s.dst, s.index, s.size, values, touch)
            case ir.Mma():
                self._multiply(s, values, t)

    def _deliver(self, s: ir.Statement, values: Values, touch: Touch, nbytes: int) -> None:
        b = self.barriers[self._slot(s, values, touch.thread)]
        known = self._phases(self.up_to(self.now[touch.thread]))
        self._arrive(b, known, 0, -nbytes, 1 << touch.node)

    def _multiply(self, s: ir.Mma, values: Values, t: int) -> None:
        """Lane 0 stands for its warp's reads of memory; each lane has registers of its own."""
        node = self._start(t)
        self.groups[MMA][t].open.append((node, node))
        registers = Touch(t, node, s, True, True, "registers")
        self._registers(s.dst, s.n // 2, values, registers)
        if isinstance(s.a, ir.Reg):
            self._registers(s.a, FRAGMENT, values, Touch(t, node, s, False, True, "registers"))
        if t % WARP:
            return
        reads = Touch(t, node, s, False, True, "async")
        if isinstance(s.a, ir.Matrix):
            first = 16 * (t // WARP % 4)
            self._operand(s.a, range(first, first + 16), values, reads)
        self._operand(s.b, range(s.n), values, reads)

    def _operand(self, m: ir.Matrix, rows: range, values: Values, touch: Touch) -> None:
        start = evaluate(m.index, values)
        tile, chunk = start // 64 * 64, start % 64 // 8
        for r in rows:
            for c in (chunk, chunk + 1):
                self._add(m.buffer, tile + 64 * r + 8 * (c ^ r % 8), 8, touch)

    def _generic(self, s: ir.Load | ir.Store | ir.Compute, values: Values, t: int) -> None:
        if isinstance(s, ir.Load | ir.Store) and not holds(s.predicate, values):
            return
        read, write = Touch(t, self.now[t], s, False), Touch(t, self.now[t], s, True)
        match s:
            case ir.Load():
                self._touch(s.src, s.index, s.width, values, read)
                self._registers(s.dst, s.width, values, write)
            case ir.Store():
                self._touch(s.dst, s.index, s.width, values, write)
                self._registers(s.src, s.width, values, read)
            case ir.Compute():
                for o in s.operands:
                    if isinstance(o, ir.Reg):
                        self._registers(o, 1, values, read)
                self._registers(s.dst, 1, values, write)

    # --- places ---------------------------------------------------------------------------------

    def _touch(self, b: ir.Buffer, index: Expr, size: int, values: Values, touch: Touch) -> None:
        self._add(b, evaluate(index, values), size, touch)

    def _add(self, b: ir.Buffer, first: int, size: int, touch: Touch) -> None:
        is_shared = b.memory is Memory.SHARED
        space = f"shared {touch.thread // self.block}" if is_shared else str(b)
        start = (self.offsets[b] if is_shared else 0) + first * b.dtype.nbytes
        stop = start + size * b.dtype.nbytes
        for place in range(start // self.granule, -(-stop // self.granule)):
            self.touches[space, place].append(touch)

    def _registers(self, r: ir.Reg, size: int, values: Values, touch: Touch) -> None:
        first = evaluate(r.index, values)
        for k in range(first, first + size):
            self.touches[f"{r.buffer} of {touch.thread}", k].append(touch)

    # --- the verdict ----------------------------------------------------------------------------

    def races(self) -> set[frozenset[int]]:
        """Pairs of statements, as sets of object ids, that touch one place without an order."""
        found: set[frozenset[int]] = set()
        for touches in self.touches.values():
            if len({t.thread for t in touches}) == 1 and not any(t.is_async for t in touches):
                continue  # the order of one thread
            for i, a in enumerate(touches):
                for j in range(i + 1, len(touches)):
                    b = touches[j]
                    if not (a.writes or b.writes) or self._ordered(a, b):
                        continue
                    pair = frozenset((id(a.statement), id(b.statement)))
                    if pair not in found and not any(
                        self._lies_between(c, a, b) for c in touches[i + 1 : j]
                    ):
                        found.add(pair)
        return found

    def _lies_between(self, c: Touch, a: Touch, b: Touch) -> bool:
        """Whether a write hides the first from the second: what a thread wrote before others wrote
        there needs no fence for the async proxy."""
        return c.writes and self._ordered(a, c) and self._ordered(c, b)

    def _ordered(self, a: Touch, b: Touch) -> bool:
        """Whether the first, which was executed before, comes before the other in every run."""
        if a.node == b.node and a.is_async:
            return True  # one operation
        if a.proxy == b.proxy == "registers":
            return True  # products of one accumulator are made in order
        if a.thread == b.thread and not a.is_async and not b.is_async:
            return True
        after = self.up_to(b.node)
        if b.proxy == "registers":
            return bool(after & self._fences_behind(a.node, self.mma_fences, a.thread))
        if b.proxy == "async" and a.proxy == "generic" and a.writes:
            by = None if a.is_async else a.thread
            return bool(after & self._fences_behind(a.node, self.fences, by))
        return bool(after >> a.node & 1)

    def _fences_behind(self, node: int, fences: list[list[int]], by: int | None) -> int:
        """The fences of a thread, or of all, that stand behind what a node does."""
        key = node, id(fences), by
        if key not in self.found_fences:
            own = chain.from_iterable(fences) if by is None else fences[by]
            behind = (1 << f for f in own if self.ancestors[f] >> node & 1)
            self.found_fences[key] = reduce(or_, behind, 0)
        return self.found_fences[key]


@cache
def _evaluator(e: Expr) -> tuple[tuple[Var, ...], Evaluator]:
    return variables(e), compiled([e], variables(e))


def evaluate(e: Expr | int, values: Values) -> int:
    names, value = _evaluator(as_expr(e))
    return value(*[values[v] for v in names])[0]


@cache
def _decided(c: conditions.Cond, values: tuple[tuple[Var, int], ...]) -> bool | None:
    return conditions.prove(conditions.substitute_condition(c, dict(values)))


def holds(c: conditions.Cond, values: Values) -> bool:
    decided = _decided(c, tuple((v, values[v]) for v in variables(c)))
    assert decided is not None
    return decided
