"""Statements that move down to others of their branch, past what they do not touch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from fusewright.core.regions import PointRegion
from fusewright.kir.analysis.needs import Slot, slots_read, slots_written
from fusewright.kir.ir import Alloc, Body, Buffer, Compute, Load, Statement, Store
from fusewright.kir.traverse import own_registers, walk_statements
from fusewright.target import MAX_VECTOR_NBYTES, REGISTER_NBYTES


@dataclass(frozen=True, slots=True)
class SunkBranch:
    """A branch to be: where it is taken; `early` holds the loads that start before other work."""

    region: PointRegion
    early: bool = False


Plan: TypeAlias = list[tuple[Statement, SunkBranch | None]]
Clusters: TypeAlias = list[tuple[SunkBranch, Body]]
"""The statements of branches, in the order in which these are placed."""


class _RegisterUses:
    """A statement, and the registers it reads and writes."""

    __slots__ = ("reads", "statement", "writes")

    def __init__(self, statement: Statement) -> None:
        self.statement = statement
        self.reads = frozenset(slots_read(statement))
        self.writes = frozenset(slots_written(statement))


class _Cluster:
    """Statements that wait, with the registers and the kinds of memory access among them."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self.reads: set[Slot] = set()
        self.writes: set[Slot] = set()
        self.loads = self.stores = False
        self.loaded = 0
        """32-bit registers that its loads take while they are under way."""

    def add(self, t: _RegisterUses) -> None:
        self.statements.append(t.statement)
        self.loaded += _loaded(t.statement)
        self.reads |= t.reads
        self.writes |= t.writes
        self.loads |= isinstance(t.statement, Load)
        self.stores |= isinstance(t.statement, Store)

    def blocks(self, t: _RegisterUses) -> bool:
        """Whether a statement that stands behind these may not move in front of them."""
        if not self.writes.isdisjoint(t.reads | t.writes) or not self.reads.isdisjoint(t.writes):
            return True
        match t.statement:
            case Store():
                return self.loads or self.stores
            case Load():
                return self.stores
            case _:
                return False


class Sinking:
    """Rewrites one body, statement by statement: `out` is done, statements of branches wait in
    clusters, and those that need them wait, in order, behind. Loads that start early stand in front
    of all others that wait, as many at once as `most_early` says in registers. `place` spells
    clusters that follow each other; where they take allocations, registers that one of them alone
    uses are its own."""

    def __init__(
        self,
        plan: Plan,
        place: Callable[[Clusters], Iterable[Statement]],
        *,
        takes_allocs: bool,
        most_early: int = 0,
    ) -> None:
        self.out: list[Statement] = []
        self._plan = plan
        self._place = place
        self._takes_allocs = takes_allocs
        self._most_early = most_early
        self._early: dict[SunkBranch, _Cluster] = {}
        self._clusters: dict[SunkBranch, _Cluster] = {}
        self._behind = _Cluster()
        self._coming = Counter(b for _, b in plan if b is not None)
        self._mentions = _mentions(s for s, _ in plan)

    def run(self) -> Body:
        """The new body."""
        for s, branch in self._plan:
            if branch is not None:
                self._sink(s, branch)
            else:
                self._pass_by(s)
        self._flush()
        return tuple(self.out)

    def _sink(self, s: Statement, branch: SunkBranch) -> None:
        """Let a statement wait with the others of its branch, in front of branches that began to
        wait later. No thread sees in which order statements of regions that exclude each other
        stand."""
        t = _RegisterUses(s)
        self._coming[branch] -= 1
        own = self._early if branch.early else self._clusters
        waiting = list(own)
        passed = waiting[waiting.index(branch) + 1 :] if branch in own else []
        passed += [b for b in self._clusters if branch.early]
        is_blocked = any(
            self._waiting(b).blocks(t) and not b.region.excludes(branch.region) for b in passed
        )
        if is_blocked or self._is_full(s, branch) or self._behind.blocks(t):
            self._flush()
        own = self._early if branch.early else self._clusters
        own.setdefault(branch, _Cluster()).add(t)

    def _is_full(self, s: Statement, branch: SunkBranch) -> bool:
        """Whether a load that starts early would be under way with too many others of its thread,
        which takes one of the branches that exclude each other."""
        if not branch.early:
            return False
        beside = [c for b, c in self._early.items() if not b.region.excludes(branch.region)]
        return bool(beside) and sum(c.loaded for c in beside) + _loaded(s) > self._most_early

    def _waiting(self, branch: SunkBranch) -> _Cluster:
        return (self._early if branch.early else self._clusters)[branch]

    def _pass_by(self, s: Statement) -> None:
        """Place a statement of no branch, behind what waits if it has to be."""
        match s:
            case Alloc():
                self.out.append(s)
            case Compute() | Load() | Store():
                t = _RegisterUses(s)
                waiting = {**self._early, **self._clusters}
                if not any(c.blocks(t) for c in (*waiting.values(), self._behind)):
                    self.out.append(s)
                elif any(self._coming[b] for b in waiting):
                    self._behind.add(t)
                else:
                    self._flush()
                    self.out.append(s)
            case _:
                self._flush()
                self.out.append(s)

    def _flush(self) -> None:
        """Place all that waits, loads that start early first."""
        waiting = [
            (b, (*(self._own_allocs(c) if self._takes_allocs else ()), *c.statements))
            for b, c in (*self._early.items(), *self._clusters.items())
        ]
        self.out += self._place(waiting)
        self.out += self._behind.statements
        self._early, self._clusters, self._behind = {}, {}, _Cluster()

    def _own_allocs(self, cluster: _Cluster) -> Body:
        """The allocations of registers that a cluster alone uses, taken out of `out`."""
        here = _mentions(cluster.statements)
        own = {b for b, n in here.items() if n == self._mentions[b]}
        moved = tuple(s for s in self.out if isinstance(s, Alloc) and s.buffer in own)
        self.out = [s for s in self.out if s not in moved] if moved else self.out
        return moved


def _loaded(s: Statement) -> int:
    """32-bit registers that a load takes while it is under way: those of all words that the vector
    is cut out of."""
    if not isinstance(s, Load):
        return 0
    nbytes = s.width * s.src.dtype.nbytes
    if s.lanes.is_cut:
        nbytes += min(nbytes, MAX_VECTOR_NBYTES)
    return -(-nbytes // REGISTER_NBYTES)


def _mentions(body: Iterable[Statement]) -> Counter[Buffer]:
    """How often statements, and those below them, name each register buffer."""
    return Counter(
        r.buffer for s in body for inner in (s, *walk_statements(s)) for r in own_registers(inner)
    )
