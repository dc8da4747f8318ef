"""One run of a kernel's control flow with its asynchronous statements and syncs only.

Loops run the iterations that stand for them. Each role, and all threads outside of roles, are an
agent: what it does is a row of events in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from fusewright.core.conditions import Cond, negate, substitute_condition
from fusewright.core.expr import Expr, Var, variables
from fusewright.errors import UnsupportedError
from fusewright.kir.analysis.deliveries import delivered_nbytes
from fusewright.kir.analysis.lanes import (
    Array,
    evaluate_lanes,
    holds,
    is_known,
    thread_values,
)
from fusewright.kir.analysis.sites import BranchScope, LoopScope, Path, RoleScope, StatementSite
from fusewright.kir.analysis.times import UNIT, StatementTimes
from fusewright.kir.analysis.uniformity import is_block_uniform, threads_of
from fusewright.kir.ir import (
    AsyncCommit,
    AsyncWait,
    Body,
    For,
    Guarded,
    If,
    Kernel,
    Role,
    Roles,
    Statement,
    SyncStatement,
)
from fusewright.kir.traits import Act, MbarrierUse, is_asynchronous

_Values: TypeAlias = "list[int | None]"
"""By iteration of the innermost loop around; None where it is not known."""
Branch: TypeAlias = "tuple[Path, tuple[int, ...]] | Cond"
"""A branch that some threads may not take, in one iteration of the loops around it; of one that all
threads of a block take alike the condition, so that what decides it decides others too."""
Agent: TypeAlias = "Path | None"
"""The role at a path, or all threads of the block."""
Gap: TypeAlias = tuple[Path, int]
"""The place before statement `index` of the body at a path, or at its end."""
Plan: TypeAlias = Mapping[Gap, Sequence[SyncStatement]]
"""Syncs that are not in the kernel yet."""

Changes: TypeAlias = Mapping[Statement, "SyncStatement | None"]
"""Syncs that are to be others, or none."""

_MAX_EVENTS = 1 << 15
_MAX_SIZE = 1 << 40


@dataclass(slots=True, eq=False)
class Instance:
    """A statement in one iteration of the loops around it: the textual `order` of its site (-1 of
    a sync that is not in the kernel yet), who does it when, and in which branches that may not be
    taken. A wait `is_public` when all threads of the agent wait."""

    order: int
    coords: tuple[int, ...]
    time: int
    agent: Agent
    branches: frozenset[Branch]
    is_public: bool = False


@dataclass(slots=True, eq=False)
class Event:
    """A statement as it runs, and, of an mbarrier's statement, the slot, the parity and the bytes
    that it delivers (None: not known). `nthreads` are those of the agent."""

    statement: Statement
    use: MbarrierUse | None
    instance: Instance
    nthreads: int
    slot: int | None = None
    parity: int | None = None
    nbytes: int | None = None


def takes_part(s: Statement) -> bool:
    """Whether a statement has to do with what is asynchronous."""
    if isinstance(s, AsyncCommit | AsyncWait) or is_asynchronous(s):
        return True
    barrier = s.arrives_at() if s.arrives_at() is not None else s.waits_at()
    return barrier is not None or s.mbarrier_use() is not None


@dataclass(slots=True, eq=False)
class _At:
    """Where the run is: the values of loop variables, of the innermost loop around all, the
    iteration `coords`, of which `outer` is that of all loops around but the innermost and `number`
    that of the innermost, the time that iterations took before, branches, the role."""

    known: dict[Var, Array]
    loops: tuple[Path, ...] = ()
    coords: tuple[int, ...] = ()
    outer: tuple[int, ...] = ()
    number: int = 0
    innermost: tuple[Var, Array] | None = None
    passed: int = 0
    branches: frozenset[Branch] = frozenset()
    role: Role | None = None
    agent: Agent = None

    @property
    def niterations(self) -> int:
        """How many iterations of the innermost loop around stand for it."""
        return 1 if self.innermost is None else len(self.innermost[1])

    @property
    def known_in_row(self) -> dict[Var, Array]:
        """What is known in all iterations of the innermost loop, of which each is a row."""
        if self.innermost is None:
            return self.known
        v, values = self.innermost
        return {**self.known, v: values[:, None]}


@dataclass(frozen=True, slots=True, eq=False)
class _Happens:
    """What is the same of all events of a statement: its textual order and when its first iteration
    runs, what it does at an mbarrier, whether it may be that no thread makes it, whether it waits
    and no single thread does, the threads of its role, and by iteration of all loops around but the
    innermost the slots and the parities in that one."""

    order: int
    start: int
    use: MbarrierUse | None
    predicate: Cond | None
    waits_together: bool
    nthreads: int
    steers: dict[tuple[int, ...], tuple[_Values, _Values]]


_Step: TypeAlias = "tuple[int, Statement | None, Path, _Happens | None]"
"""A statement by its place in a body and its path, and what happens, if it is an event; None at the
place of a sync that is only planned."""


_Row: TypeAlias = tuple[Path, tuple[int, ...]]
"""A statement, in an iteration of all loops around it but the innermost."""


@dataclass(frozen=True, slots=True, eq=False)
class _Flow:
    """One run: what is planned, the paths that lead to events, the textual order of the statements
    that are events, what happened, steps of bodies."""

    plan: Plan
    around: set[Path]
    orders: Mapping[Path, int]
    out: list[Event]
    steps: dict[Path, list[_Step]]


@dataclass(slots=True, eq=False)
class AsyncRun:
    """Runs the loops and branches that hold asynchronous statements. `places` are the kernel's
    sites, `values` the numbers of the iterations that stand for each loop.

    Raises UnsupportedError when there are too many events, or an operation stands in a loop whose
    iterations are not known to repeat.
    """

    kernel: Kernel
    places: Sequence[StatementSite]
    values: Mapping[Path, Array]
    line: StatementTimes
    _orders: dict[Path, int] = field(default_factory=dict[Path, int])
    _around: set[Path] = field(default_factory=set[Path])
    _base: list[Event] = field(default_factory=list[Event])
    _known: dict[Var, Array] = field(default_factory=dict[Var, Array])
    _held: dict[_Row, list[tuple[bool, bool]]] = field(
        default_factory=dict["_Row", "list[tuple[bool, bool]]"]
    )

    def __post_init__(self) -> None:
        for order, site in enumerate(self.places):
            if not site.statement.is_private and takes_part(site.statement):
                self._orders[site.path] = order
                self._around.update(site.path[:k] for k in range(len(site.path)))
        counts = {path: len(v) for path, v in self.values.items()}
        self._known = {**thread_values(self.kernel), **_sizes(self.places, counts)}

    @property
    def events(self) -> list[Event]:
        """What happens, of roles one after the other."""
        if not self._base:
            self._base = self._events(_Flow({}, self._around, self._orders, [], {}))
        return self._base

    def planned(self, plan: Plan) -> list[Event]:
        """What happens by syncs that are planned, of roles one after the other."""
        around = {body[:k] for body, _ in plan for k in range(len(body) + 1)}
        return self._events(_Flow(plan, around, {}, [], {}))

    def _events(self, flow: _Flow) -> list[Event]:
        self._run(self.kernel.body, (), _At(self._known), flow)
        return flow.out

    def _run(self, body: Body, path: Path, at: _At, flow: _Flow) -> None:
        for i, s, here, happens in self._steps(body, path, at, flow):
            if flow.plan:
                self._planned((path, i), at, flow)
            if s is None:
                continue
            if happens is None:
                self._inside(s, here, at, flow)
                continue
            e = self._event(s, here, at, happens)
            if e is not None:
                flow.out.append(e)
        if len(flow.out) > _MAX_EVENTS:
            raise UnsupportedError(
                f"{self.kernel.name} runs more than {_MAX_EVENTS} asynchronous operations and "
                "syncs in each block; use wider copies or fewer iterations in one kernel"
            )

    def _steps(self, body: Body, path: Path, at: _At, flow: _Flow) -> list[_Step]:
        """What happens in a body: its statements that take part or hold such, and the places where
        something is planned; found once, as bodies of loops run many times."""
        found = flow.steps.get(path)
        if found is None:
            found = flow.steps[path] = []
            for i, s in enumerate(body):
                here = (*path, i)
                if here in flow.orders:
                    found.append((i, s, here, self._happens(s, here, at)))
                elif here in flow.around:
                    found.append((i, s, here, None))
                elif (path, i) in flow.plan:
                    found.append((i, None, here, None))
            if (path, len(body)) in flow.plan:
                found.append((len(body), None, path, None))
        return found

    def _happens(self, s: Statement, here: Path, at: _At) -> _Happens:
        predicate = s.predicate if isinstance(s, Guarded) and not s.where_false() else None
        return _Happens(
            order=self._orders[here],
            start=self.line.start[here],
            use=s.mbarrier_use(),
            predicate=predicate,
            waits_together=s.issuing_thread() is None and s.waits_at() is not None,
            nthreads=len(threads_of(at.role, self.kernel)),
            steers={},
        )

    def _planned(self, gap: Gap, at: _At, flow: _Flow) -> None:
        for number, s in enumerate(flow.plan.get(gap, ())):
            time = self.line.gap(*gap, at.loops, at.coords) + number
            instance = Instance(-1, at.coords, time, at.agent, at.branches)
            flow.out.append(Event(s, None, instance, len(threads_of(at.role, self.kernel))))

    def _inside(self, s: Statement, here: Path, at: _At, flow: _Flow) -> None:
        match s:
            case For():
                values = self.values.get(here)
                if values is None:
                    values = np.zeros(1, np.int64)
                if not len(values) and s.extent.interval[1] != 0:
                    raise UnsupportedError(
                        f"asynchronous operations stand in the loop over {s.var}, whose addresses "
                        "do not repeat after a number of iterations; index with a remainder"
                    )
                loops, span = (*at.loops, here), self.line.span[here]
                for k, value in enumerate(values):
                    inner = _At(
                        {**at.known, s.var: np.asarray(value)}, loops, (*at.coords, k), at.coords,
                        k, (s.var, values), at.passed + k * span, at.branches, at.role, at.agent,
                    )  # fmt: skip
                    self._run(s.body, here, inner, flow)
            case If():
                some, every = self._holds(s.condition, here, at)
                taken = (some, every), (not every, not some)
                for branch, part in ((0, s.then), (1, s.otherwise)):
                    inner = self._branch(s, here, at, taken[branch], branch)
                    if inner is not None:
                        self._run(part, (*here, branch), inner, flow)
            case Roles():
                for number, role in enumerate(s.body):
                    assert isinstance(role, Role)
                    place = (*here, number)
                    inner = replace(at, role=role, agent=place)
                    self._run(role.body, place, inner, flow)
            case _:
                pass

    def _branch(
        self, s: If, here: Path, at: _At, taken: tuple[bool, bool], branch: int
    ) -> _At | None:
        """In a branch that some, or all, threads take."""
        some, every = taken
        if not some:
            return None
        if every:
            return at
        now = branch_of(s, (*here, branch), at.known, at.coords, self.kernel)
        return replace(at, branches=at.branches | {now})

    def _holds(self, c: Cond, here: Path, at: _At) -> tuple[bool, bool]:
        """Whether the condition may hold for some thread of the role, and must for all."""
        row = self._held.get((here, at.outer))
        if row is None:
            where = holds(c, at.known_in_row)
            mine = threads_of(at.role, self.kernel)
            shape = at.niterations, self.kernel.nthreads
            may, must = (
                np.broadcast_to(x, shape)[:, mine.start : mine.stop]
                for x in (where.may, where.must)
            )
            some, every = np.any(may, axis=1), np.all(must, axis=1)
            found: list[tuple[bool, bool]] = np.stack((some, every), axis=1).tolist()
            row = self._held[here, at.outer] = found
        return row[at.number]

    def _event(self, s: Statement, here: Path, at: _At, happens: _Happens) -> Event | None:
        predicate, use = happens.predicate, happens.use
        if predicate is not None and not self._holds(predicate, here, at)[0]:
            return None
        is_public = happens.waits_together
        if is_public and at.branches:
            is_public = not any(isinstance(b, tuple) for b in at.branches)
        time = UNIT * (happens.start + at.passed)
        instance = Instance(happens.order, at.coords, time, at.agent, at.branches, is_public)
        if use is None:
            return Event(s, None, instance, happens.nthreads)
        if at.outer not in happens.steers:
            slots = _uniform(use.slot, at.known_in_row, at.niterations)
            parities = _uniform(use.parity, at.known_in_row, at.niterations)
            happens.steers[at.outer] = slots, parities
        slots, parities = happens.steers[at.outer]
        nbytes = use.nbytes * use.blocks
        if use.rank is not None and use.act is Act.DELIVER:
            nbytes = self._delivered(s, use, use.rank, at)
        return Event(
            s, use, instance, happens.nthreads, slots[at.number], parities[at.number], nbytes
        )

    def _delivered(self, s: Statement, use: MbarrierUse, rank: Expr, at: _At) -> int | None:
        """The bytes that a copy to all blocks of a cluster brings to an mbarrier, which are those
        that each of them brings, where that is known."""
        if at.coords:
            return None
        return delivered_nbytes(s, rank, use.nbytes, self.kernel, at.role)

    def branches_at(self, site: StatementSite, coords: Sequence[int]) -> frozenset[Branch]:
        """All branches around a site, in an iteration of the loops around it."""
        out: set[Branch] = set()
        known = dict(self._known)
        depth = 0
        for scope in site.scopes:
            if isinstance(scope, LoopScope):
                values = self.values.get(scope.path)
                if values is not None and len(values):
                    known[scope.node.var] = values[coords[depth]]
                depth += 1
            elif isinstance(scope, BranchScope):
                at = tuple(coords[:depth])
                out.add(branch_of(scope.node, scope.path, known, at, self.kernel))
        return frozenset(out)


def _uniform(e: Expr, known: Mapping[Var, Array], nrows: int) -> list[int | None]:
    """By row the value of an expression where that is known, and the same for all threads."""
    if not is_known(e, known):
        return [None] * nrows
    values = np.asarray(evaluate_lanes(e, known))
    if not values.ndim or values.shape[-1] == 1:  # of no thread in particular
        row: list[int | None] = values.ravel().tolist()
        return row if len(row) == nrows else row * nrows
    low, high = (np.broadcast_to(f(values, axis=1), (nrows,)).tolist() for f in (np.min, np.max))
    return [x if x == y else None for x, y in zip(low, high, strict=True)]


def branch_of(
    s: If, path: Path, known: Mapping[Var, Array], coords: tuple[int, ...], kernel: Kernel
) -> Branch:
    """A branch by what decides it, where that is the same for all threads of a block."""
    if not is_block_uniform(s.condition, kernel):
        return path, coords
    threads = {d.var for d in kernel.block}
    values = {v: int(x) for v, x in known.items() if v not in threads and np.ndim(x) == 0}
    c = substitute_condition(s.condition, values)
    return negate(c) if path[-1] else c


def agent_of(site: StatementSite) -> Agent:
    """Who runs a site."""
    role: RoleScope | None = site.role
    return None if role is None else role.path


def _sizes(places: Sequence[StatementSite], trips: Mapping[Path, int]) -> dict[Var, Array]:
    """Values of the shape symbols with which the loops run the iterations that stand for them,
    where there are such."""
    found: dict[Var, set[int | None]] = {}
    loops = {loop.path: loop for site in places for loop in site.loops if loop.trips is None}
    for loop in loops.values():
        symbols = variables(loop.node.extent)
        if trips.get(loop.path) and len(symbols) == 1:
            size = _size(loop.node.extent, symbols[0], trips[loop.path])
            found.setdefault(symbols[0], set()).add(size)
    chosen = {v: next(iter(sizes)) for v, sizes in found.items() if len(sizes) == 1}
    return {v: np.asarray(n, dtype=np.int64) for v, n in chosen.items() if n is not None}


def _size(extent: Expr, symbol: Var, trips: int) -> int | None:
    """The least value of a symbol at which an extent that grows with it is `trips`."""
    step = symbol.multiple_of
    low, high = 0, 1

    def at(k: int) -> int:
        return int(evaluate_lanes(extent, {symbol: np.asarray(k * step, dtype=np.int64)}))

    while at(high) < trips:
        if high > _MAX_SIZE:
            return None
        high *= 2
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) < trips else (low, middle)
    return high * step if at(high) == trips else None
