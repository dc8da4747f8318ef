"""One run of a kernel's control flow with its asynchronous statements and syncs only.

Loops run the iterations that stand for them. Each role, and all threads outside of roles, are an
agent: what it does is a row of events in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from fusewright.core.conditions import Cond, negate, substitute_condition
from fusewright.core.expr import Expr, Var, variables
from fusewright.errors import UnsupportedError
from fusewright.kir.analysis.deliveries import delivered_nbytes
from fusewright.kir.analysis.lanes import (
    Array,
    Holds,
    evaluate_lanes,
    holds,
    is_known,
    thread_values,
)
from fusewright.kir.analysis.sites import BranchScope, LoopScope, Path, RoleScope, StatementSite
from fusewright.kir.analysis.times import Timeline
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
from fusewright.kir.traits import MbarrierUse, is_asynchronous

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


@dataclass(frozen=True, slots=True, eq=False)
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


@dataclass(frozen=True, slots=True, eq=False)
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


def changed_event(e: Event, changes: Changes) -> Iterator[Event]:
    """The event after changes, if it is still one."""
    new = changes.get(e.statement, e.statement)
    if new is e.statement:
        yield e
    elif new is not None and takes_part(new):
        yield replace(e, statement=new)


def takes_part(s: Statement) -> bool:
    """Whether a statement has to do with what is asynchronous."""
    if isinstance(s, AsyncCommit | AsyncWait) or is_asynchronous(s):
        return True
    barrier = s.arrives_at() if s.arrives_at() is not None else s.waits_at()
    return barrier is not None or s.mbarrier_use() is not None


@dataclass(frozen=True, slots=True)
class _At:
    """Where the run is: the values of loop variables, branches, the role."""

    known: dict[Var, Array]
    loops: tuple[Path, ...] = ()
    coords: tuple[int, ...] = ()
    branches: frozenset[Branch] = frozenset()
    role: Role | None = None
    agent: Agent = None


_Step: TypeAlias = "tuple[int, Statement | None, Path, bool]"
"""A statement by its place in a body and its path, and whether it is an event; None at the place of
a sync that is only planned."""


@dataclass(frozen=True, slots=True, eq=False)
class _Flow:
    """One run: what is planned, the paths that lead to events, what happened, steps of bodies."""

    plan: Plan
    around: set[Path]
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
    line: Timeline
    _orders: dict[Path, int] = field(default_factory=dict[Path, int])
    _around: set[Path] = field(default_factory=set[Path])
    _base: list[Event] = field(default_factory=list[Event])
    _known: dict[Var, Array] = field(default_factory=dict[Var, Array])
    _held: dict[tuple[Path, tuple[int, ...]], Holds] = field(
        default_factory=dict[tuple[Path, tuple[int, ...]], Holds]
    )
    _made: dict[tuple[Path, tuple[int, ...]], Event | None] = field(
        default_factory=dict[tuple[Path, tuple[int, ...]], "Event | None"]
    )

    def __post_init__(self) -> None:
        for order, site in enumerate(self.places):
            if takes_part(site.statement):
                self._orders[site.path] = order
                self._around.update(site.path[:k] for k in range(len(site.path)))
        counts = {path: len(v) for path, v in self.values.items()}
        self._known = {**thread_values(self.kernel), **_sizes(self.places, counts)}

    def events(self, plan: Plan) -> list[Event]:
        """What happens, of roles one after the other, with the syncs that are planned."""
        if not plan and self._base:
            return self._base
        out: list[Event] = []
        around = self._around | {body[:k] for body, _ in plan for k in range(len(body) + 1)}
        self._run(self.kernel.body, (), _At(self._known), _Flow(plan, around, out, {}))
        if not plan:
            self._base = out
        return out

    def _run(self, body: Body, path: Path, at: _At, flow: _Flow) -> None:
        for i, s, here, is_event in self._steps(body, path, flow):
            self._planned((path, i), at, flow)
            if s is None:
                continue
            if not is_event:
                self._inside(s, here, at, flow)
                continue
            e = self._statement(s, here, at)
            if e is not None:
                flow.out.append(e)
        if len(flow.out) > _MAX_EVENTS:
            raise UnsupportedError(
                f"{self.kernel.name} runs more than {_MAX_EVENTS} asynchronous operations and "
                "syncs in each block; use wider copies or fewer iterations in one kernel"
            )

    def _steps(self, body: Body, path: Path, flow: _Flow) -> list[_Step]:
        """What happens in a body: its statements that take part or hold such, and the places where
        something is planned; found once, as bodies of loops run many times."""
        found = flow.steps.get(path)
        if found is None:
            found = flow.steps[path] = []
            for i, s in enumerate(body):
                here = (*path, i)
                is_event = here in self._orders
                if is_event or here in flow.around:
                    found.append((i, s, here, is_event))
                elif (path, i) in flow.plan:
                    found.append((i, None, here, False))
            if (path, len(body)) in flow.plan:
                found.append((len(body), None, path, False))
        return found

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
                for k, value in enumerate(values):
                    known = {**at.known, s.var: np.asarray(value)}
                    inner = _At(
                        known, (*at.loops, here), (*at.coords, k), at.branches, at.role, at.agent
                    )
                    self._run(s.body, here, inner, flow)
            case If():
                taken = self._holds(s.condition, here, at)
                for branch, part in ((0, s.then), (1, s.otherwise)):
                    inner = self._branch(s, here, at, taken, branch)
                    if inner is not None:
                        self._run(part, (*here, branch), inner, flow)
            case Roles():
                for number, role in enumerate(s.body):
                    assert isinstance(role, Role)
                    place = (*here, number)
                    inner = _At(at.known, at.loops, at.coords, at.branches, role, place)
                    self._run(role.body, place, inner, flow)
            case _:
                pass

    def _branch(self, s: If, here: Path, at: _At, taken: Holds, branch: int) -> _At | None:
        may, must = (taken.may, taken.must) if branch == 0 else (~taken.must, ~taken.may)
        if not bool(np.any(may)):
            return None
        branches = at.branches
        if not bool(np.all(must)):
            branches |= {branch_of(s, (*here, branch), at.known, at.coords, self.kernel)}
        return _At(at.known, at.loops, at.coords, branches, at.role, at.agent)

    def _holds(self, c: Cond, here: Path, at: _At) -> Holds:
        """Where the condition holds among the threads of the role."""
        found = self._held.get((here, at.coords))
        if found is None:
            mine = threads_of(at.role, self.kernel)
            where = holds(c, at.known)
            may, must = (
                np.broadcast_to(x, (self.kernel.nthreads,))[mine] for x in (where.may, where.must)
            )
            found = self._held[here, at.coords] = Holds(may, must)
        return found

    def _statement(self, s: Statement, here: Path, at: _At) -> Event | None:
        key = here, at.coords
        if key not in self._made:
            self._made[key] = self._event(s, here, at)
        return self._made[key]

    def _event(self, s: Statement, here: Path, at: _At) -> Event | None:
        if self._never_happens(s, here, at):
            return None
        use = s.mbarrier_use()
        is_split = any(isinstance(b, tuple) for b in at.branches)
        everybody = s.issuing_thread() is None and not is_split
        instance = Instance(
            self._orders[here], at.coords, self.line.moment(here, at.loops, at.coords), at.agent,
            at.branches, everybody and s.waits_at() is not None,
        )  # fmt: skip
        nthreads = len(threads_of(at.role, self.kernel))
        if use is None:
            return Event(s, None, instance, nthreads)
        return Event(
            s, use, instance, nthreads, self._value(use.slot, at), self._value(use.parity, at),
            self._delivered(s, use, at),
        )  # fmt: skip

    def _never_happens(self, s: Statement, here: Path, at: _At) -> bool:
        if not isinstance(s, Guarded) or s.where_false():
            return False
        return not bool(np.any(self._holds(s.predicate, here, at).may))

    def _delivered(self, s: Statement, use: MbarrierUse, at: _At) -> int | None:
        """The bytes that one execution brings to an mbarrier, where that is known."""
        if use.rank is None:
            return use.nbytes
        return None if at.coords else delivered_nbytes(s, use.rank, use.nbytes, self.kernel)

    def _value(self, e: Expr, at: _At) -> int | None:
        if not is_known(e, at.known):
            return None
        values = np.unique(evaluate_lanes(e, at.known))
        return int(values[0]) if values.size == 1 else None

    def branches_at(self, site: StatementSite, coords: Sequence[int]) -> frozenset[Branch]:
        """All branches around a site, in an iteration of the loops around it."""
        out: set[Branch] = set()
        known: dict[Var, Array] = {}
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
    for site in places:
        for loop in site.loops:
            symbols = variables(loop.node.extent)
            if loop.trips is None and trips.get(loop.path) and len(symbols) == 1:
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
