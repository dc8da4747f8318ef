"""When asynchronous operations are complete, and who knows it.

The control flow of a kernel is run with its asynchronous statements and syncs only, which gives
for each operation, iteration by iteration, the wait behind which it is complete. Groups complete
in the threads that issued them, in order; a bulk load completes with the phase of its mbarrier,
for whoever waits. What the blocks of a cluster store for each other all do alike, so that a block's
own stores stand for those that come to it. Between roles that is a matter of their protocol, which
the machine model verifies; here such loads count as complete where they are issued.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from fusewright.core.conditions import Cond
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
from fusewright.kir.analysis.phases import Phases
from fusewright.kir.analysis.sites import Path, Site, sites
from fusewright.kir.analysis.uniformity import threads_of
from fusewright.kir.ir import (
    AsyncCommit,
    AsyncKind,
    AsyncWait,
    Body,
    Buffer,
    For,
    Guarded,
    If,
    Kernel,
    Role,
    Roles,
    Statement,
)
from fusewright.kir.traits import (
    WITH_PHASE,
    Act,
    Completes,
    MbarrierUse,
    is_asynchronous,
    with_group,
)

_Branch: TypeAlias = tuple[Path, tuple[int, ...]]
"""A branch or role that some threads may not take, in one iteration of the loops around it."""

_MAX_EVENTS = 1 << 15
_MAX_SIZE = 1 << 40


def _takes_part(s: Statement) -> bool:
    """Whether a statement has to do with what is asynchronous."""
    is_about_groups = isinstance(s, AsyncCommit | AsyncWait)
    return is_about_groups or is_asynchronous(s) or s.mbarrier_use() is not None


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """A statement in one iteration of the loops around it; a wait `is_public` when all threads of
    the block wait."""

    order: int
    coords: tuple[int, ...]
    is_public: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Completions:
    """The operations of a kernel: `issued` by textual order, `ends` by operation and way to be
    complete, `commits` what ended the group of each, `trusted` those that a protocol completes."""

    issued: Mapping[int, Sequence[Instance]]
    ends: Mapping[tuple[Instance, Completes], Instance]
    commits: Mapping[Instance, Instance]
    trusted: frozenset[Instance]

    def instances(self, order: int) -> Sequence[Instance]:
        """The operations of the statement at a textual position."""
        return self.issued.get(order, ())

    def end_of(self, instance: Instance, completes: Completes) -> Instance | None:
        """The wait behind which an operation is complete, None when there is none."""
        return self.ends.get((instance, completes))


_NONE = Completions({}, {}, {}, frozenset())


def has_operations(kernel: Kernel) -> bool:
    """Whether a kernel has asynchronous operations."""
    return any(is_asynchronous(site.statement) for site in sites(kernel))


def completions(kernel: Kernel, places: Sequence[Site], trips: Mapping[Path, int]) -> Completions:
    """What completes when. `places` are the kernel's sites, `trips` the iterations to look at.

    A loop of unknown extent counts as one that runs just these. Raises UnsupportedError when there
    are too many, or an operation stands in a loop whose
    iterations are not known to repeat.
    """
    if not has_operations(kernel):
        return _NONE
    events = _Skeleton(kernel, places, trips).events
    ledger = _Ledger(kernel.nthreads)
    for e in events:
        ledger.take(e)
    issued: dict[int, list[Instance]] = {}
    for e in events:
        if is_asynchronous(e.statement):
            issued.setdefault(e.instance.order, []).append(e.instance)
    return Completions(issued, ledger.ends, ledger.commits, frozenset(ledger.trusted))


# --- the run ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Event:
    """A statement as it runs: in which branches that some threads may not take, in which role,
    and, of an mbarrier's statement, the slot, the parity and the bytes that it delivers (None: not
    known)."""

    statement: Statement
    use: MbarrierUse | None
    instance: Instance
    branches: frozenset[_Branch]
    nthreads: int
    is_in_role: bool
    slot: int | None
    parity: int | None
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class _At:
    """Where the run is: the values of loop variables, branches, the role."""

    known: dict[Var, Array]
    coords: tuple[int, ...] = ()
    branches: frozenset[_Branch] = frozenset()
    role: Role | None = None


class _Skeleton:
    """Runs the loops and branches that hold asynchronous statements."""

    def __init__(self, kernel: Kernel, places: Sequence[Site], trips: Mapping[Path, int]) -> None:
        self._kernel = kernel
        self._trips = trips
        self._orders: dict[Path, int] = {}
        self._around: set[Path] = set()
        for order, site in enumerate(places):
            s = site.statement
            if _takes_part(s):
                self._orders[site.path] = order
                self._around.update(site.path[:k] for k in range(len(site.path)))
        self.events: list[_Event] = []
        self._run(kernel.body, (), _At({**thread_values(kernel), **_sizes(places, trips)}))

    def _run(self, body: Body, path: Path, at: _At) -> None:
        for i, s in enumerate(body):
            here = (*path, i)
            if here in self._orders:
                self._statement(s, here, at)
            elif here in self._around:
                self._inside(s, here, at)

    def _inside(self, s: Statement, here: Path, at: _At) -> None:
        match s:
            case For():
                trips = self._trips[here]
                if not trips and s.extent.interval[1] != 0:
                    raise UnsupportedError(
                        f"asynchronous operations stand in the loop over {s.var}, whose addresses "
                        "do not repeat after a number of iterations; index with a remainder"
                    )
                for k in range(trips):
                    known = {**at.known, s.var: np.int64(k)}
                    inner = _At(known, (*at.coords, k), at.branches, at.role)  # type: ignore[arg-type]
                    self._run(s.body, here, inner)
            case If():
                taken = self._holds(s.condition, at)
                for branch, part in ((0, s.then), (1, s.otherwise)):
                    self._branch(part, (*here, branch), at, taken, branch)
            case Roles():
                for number, role in enumerate(s.body):
                    assert isinstance(role, Role)
                    place = (*here, number)
                    branches = at.branches | {(place, at.coords)}
                    self._run(role.body, place, _At(at.known, at.coords, branches, role))
            case _:
                pass

    def _branch(self, part: Body, path: Path, at: _At, taken: Holds, branch: int) -> None:
        may, must = (taken.may, taken.must) if branch == 0 else (~taken.must, ~taken.may)
        if not bool(np.any(may)):
            return
        branches = at.branches if bool(np.all(must)) else at.branches | {(path, at.coords)}
        self._run(part, path, _At(at.known, at.coords, branches, at.role))

    def _holds(self, c: Cond, at: _At) -> Holds:
        """Where the condition holds among the threads of the role."""
        n = self._kernel.nthreads
        mine = threads_of(at.role, self._kernel)
        found = holds(c, at.known)
        may, must = (np.broadcast_to(x, (n,))[mine] for x in (found.may, found.must))
        return Holds(may, must)

    def _statement(self, s: Statement, here: Path, at: _At) -> None:
        if self._never_happens(s, at):
            return
        if len(self.events) >= _MAX_EVENTS:
            raise UnsupportedError(
                f"{self._kernel.name} runs more than {_MAX_EVENTS} asynchronous operations and "
                "syncs in each block; use wider copies or fewer iterations in one kernel"
            )
        use = s.mbarrier_use()
        everybody = s.issuing_thread() is None and not at.branches
        self.events.append(
            _Event(
                s,
                use,
                Instance(self._orders[here], at.coords, everybody and s.waits_at() is not None),
                at.branches,
                len(threads_of(at.role, self._kernel)),
                at.role is not None,
                None if use is None else self._value(use.slot, at),
                None if use is None else self._value(use.parity, at),
                None if use is None else self._delivered(s, use, at),
            )
        )

    def _never_happens(self, s: Statement, at: _At) -> bool:
        if not isinstance(s, Guarded) or s.where_false():
            return False
        return not bool(np.any(self._holds(s.predicate, at).may))

    def _delivered(self, s: Statement, use: MbarrierUse, at: _At) -> int | None:
        """The bytes that one execution brings to an mbarrier, where that is known."""
        if use.rank is None:
            return use.nbytes
        return None if at.coords else delivered_nbytes(s, use.rank, use.nbytes, self._kernel)

    def _value(self, e: Expr, at: _At) -> int | None:
        if not is_known(e, at.known):
            return None
        values = np.unique(evaluate_lanes(e, at.known))
        return int(values[0]) if values.size == 1 else None


def _sizes(places: Sequence[Site], trips: Mapping[Path, int]) -> dict[Var, Array]:
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


# --- the books ----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Pending:
    """A group operation under way, and how often its threads have certainly committed since."""

    event: _Event
    kind: AsyncKind
    commits: int = 0
    is_read: bool = False


@dataclass(slots=True)
class _Ledger:
    """What is under way while the events pass."""

    nthreads: int
    ends: dict[tuple[Instance, Completes], Instance] = field(
        default_factory=dict[tuple[Instance, Completes], Instance]
    )
    commits: dict[Instance, Instance] = field(default_factory=dict[Instance, Instance])
    trusted: list[Instance] = field(default_factory=list[Instance])
    _pending: list[_Pending] = field(default_factory=list[_Pending])
    _phases: dict[Buffer, Phases[Instance]] = field(default_factory=dict[Buffer, Phases[Instance]])

    def take(self, e: _Event) -> None:
        """One event."""
        group = e.statement.group()
        if group is not None:
            self._pending.append(_Pending(e, group))
        if e.use is not None and not e.is_in_role:
            self._mbarrier(e, e.use)
        elif e.use is not None and e.use.act is Act.DELIVER:
            self.trusted.append(e.instance)
        match e.statement:
            case AsyncCommit(kind=kind):
                for p in self._of(kind, e):
                    if not p.commits:
                        self.commits[p.event.instance] = e.instance
                    p.commits += 1
            case AsyncWait():
                self._wait(e, e.statement)
            case _:
                pass

    def _of(self, kind: AsyncKind, e: _Event) -> Iterator[_Pending]:
        """The operations under way all of whose threads come to `e`."""
        return (p for p in self._pending if p.kind is kind and e.branches <= p.event.branches)

    def _wait(self, e: _Event, s: AsyncWait) -> None:
        done = [p for p in self._of(s.kind, e) if p.commits > s.keep]
        for p in done:
            instance = p.event.instance
            if s.kind.waits_for_reads:
                self.ends.setdefault((instance, with_group(s.kind, is_read=True)), e.instance)
            if not s.reads_only:
                self.ends[instance, with_group(s.kind)] = e.instance
        if not s.reads_only:
            self._pending = [p for p in self._pending if p not in done]

    def _mbarrier(self, e: _Event, use: MbarrierUse) -> None:
        phases = self._phases.setdefault(use.barrier, Phases())
        if e.slot is None or e.branches:
            phases.lose_track()
            return
        issuer = e.statement.issuing_thread()
        match use.act:
            case Act.MAKE:
                phases.begin(e.slot, use.count)
            case Act.ARRIVE:
                arrivals = e.nthreads // use.threads_each if issuer is None else 1
                phases.arrive(e.slot, arrivals, use.nbytes)
            case Act.DELIVER:
                if e.nbytes is None:
                    phases.lose_track()
                    return
                phases.load(e.slot, e.nbytes, e.instance, only_first=use.rank is not None)
            case Act.WAIT:
                for instance in phases.wait(e.slot, e.parity, issuer):
                    self.ends.setdefault((instance, WITH_PHASE), e.instance)
            case Act.END:
                phases.end(e.slot)
