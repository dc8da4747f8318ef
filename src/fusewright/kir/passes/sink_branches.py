"""Values chosen by conditions become branches: each thread does the work of one piece only."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from fusewright.core.regions import EVERYWHERE, Region, Regions
from fusewright.kir.analysis.lane_regions import FEW_WARPS, joined_lanes
from fusewright.kir.analysis.needs import Slot, is_choice, needs, slots_read, slots_written
from fusewright.kir.analysis.uniformity import is_warp_uniform, parting_share
from fusewright.kir.ir import Alloc, Body, Buffer, Compute, If, Kernel, Load, Statement, Store
from fusewright.kir.traverse import map_bodies, own_registers, walk_statements

UNIFORM_WORK = 8
"""Operations under one condition that repay a branch which the lanes of a warp take together: a
comparison and a jump, and the select for each value that they replace."""
PARTING_WORK = 56
"""What is asked for on top where the lanes of every warp part: both sides then run one after the
other, between an instruction that notes where they meet again and one that waits there."""
Found: TypeAlias = list[tuple[Statement, Regions]]
LONGEST_CHAIN = 16
"""Regions that exclude each other become one `if`, `else if`, ... of at most this many."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch to be: where it is taken; `early` holds the loads that start before other work."""

    region: Region
    early: bool = False


Plan: TypeAlias = list[tuple[Statement, Branch | None]]


def sink_branches(kernel: Kernel) -> Kernel:
    """Put what is needed under one condition only into a branch on it.

    rewrite:  a = f(load x if c);  b = g(load y if !c);  r = copy(a) if c;  r = copy(b) if !c
         ->   if (c) { a = f(load x);  r = copy(a) } else { b = g(load y);  r = copy(b) }
    checks:   nothing; only loads and computations move, only down past what they do not touch;
              loads get an earlier branch of their own where lanes of a warp may part, or where
              other loads could be under way beside them
    order:    after addresses are simplified, so that equal conditions look equal; before syncs are
              placed
    """
    return map_bodies(kernel, lambda body: _sunk(body, kernel))


def _sunk(body: Body, kernel: Kernel) -> Body:
    if not any(is_choice(s) for s in body):
        return body
    needed = needs(body)
    lanes = joined_lanes(needed, kernel)
    regions = [tuple(dict.fromkeys(lanes.get(r, r) for r in found)) for found in needed]
    found = list(zip(body, regions, strict=True))
    chosen = _worthwhile(found, kernel)
    if not chosen:
        return body
    late = {r for r in chosen if _is_free_of_others(r, chosen, kernel)}
    late |= {r for r in chosen if r in lanes.values() and _parts_few(r, kernel)}
    sinking = _Sinking(_plan(found, chosen, late))
    return sinking.run()


def _plan(found: Found, regions: frozenset[Region], late: set[Region]) -> Plan:
    """The statements that somebody needs, each with the branch it belongs in; loads wait for
    those that are `late`."""
    plan: Plan = []
    for s, needed in found:
        region = needed[0] if len(needed) == 1 and needed[0] in regions else None
        match s:
            case Compute() | Load() if not needed:
                continue
            case Compute() if region is not None:
                plan.append((s, Branch(region)))
            case Load() if region is not None:
                plan.append((_without_fill(s, region), Branch(region, early=region not in late)))
            case _:
                plan.append((s, None))
    return plan


def _worthwhile(found: Found, kernel: Kernel) -> frozenset[Region]:
    """The regions to branch on: something is chosen there, and the work repays the branch."""
    work: dict[Region, int] = {}
    chosen: dict[Region, None] = {}
    for s, regions in found:
        if isinstance(s, Compute) and len(regions) == 1 and regions != EVERYWHERE:
            work[regions[0]] = work.get(regions[0], 0) + 1
            if is_choice(s):
                chosen[regions[0]] = None

    def is_enough(r: Region) -> bool:
        return work[r] >= UNIFORM_WORK + PARTING_WORK * parting_share(r.condition, kernel)

    return frozenset(r for r in chosen if is_enough(r))


def _is_free_of_others(region: Region, regions: Iterable[Region], kernel: Kernel) -> bool:
    """Whether loads may wait for the branch on a region: no thread has others under way then."""
    alone = all(r == region or r.excludes(region) for r in regions)
    return alone and is_warp_uniform(region.condition, kernel)


def _parts_few(region: Region, kernel: Kernel) -> bool:
    """Whether hardly any warp takes another branch, too, which its loads would then wait for."""
    return parting_share(region.condition, kernel) <= FEW_WARPS


def _without_fill(s: Load, region: Region) -> Load:
    """The load without the value that nobody sees, since it is read where it takes place only."""
    if s.fill is None or not region.implies(s.predicate):
        return s
    return dataclasses.replace(s, fill=None)


class _Touched:
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

    def add(self, t: _Touched) -> None:
        self.statements.append(t.statement)
        self.reads |= t.reads
        self.writes |= t.writes
        self.loads |= isinstance(t.statement, Load)
        self.stores |= isinstance(t.statement, Store)

    def blocks(self, t: _Touched) -> bool:
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


class _Sinking:
    """Rewrites one body, statement by statement: `out` is done, statements of branches wait in
    clusters, and those that need them wait, in order, behind."""

    def __init__(self, plan: Plan) -> None:
        self.out: list[Statement] = []
        self._plan = plan
        self._clusters: dict[Branch, _Cluster] = {}
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

    def _sink(self, s: Statement, branch: Branch) -> None:
        """Let a statement wait with the others of its branch, in front of branches that began to
        wait later and behind loads that start early. No thread sees in which order statements of
        regions that exclude each other stand."""
        t = _Touched(s)
        self._coming[branch] -= 1
        waiting = list(self._clusters)
        later = waiting[waiting.index(branch) + 1 :] if branch in waiting else []
        is_blocked = any(
            c.blocks(t) and not b.region.excludes(branch.region)
            for b, c in self._clusters.items()
            if b in later or (b.early and b != branch)
        )
        if is_blocked or self._behind.blocks(t):
            self._flush()
        self._clusters.setdefault(branch, _Cluster()).add(t)

    def _pass_by(self, s: Statement) -> None:
        """Place a statement of no branch, behind what waits if it has to be."""
        match s:
            case Alloc():
                self.out.append(s)
            case Compute() | Load() | Store():
                t = _Touched(s)
                if not any(c.blocks(t) for c in (*self._clusters.values(), self._behind)):
                    self.out.append(s)
                elif any(self._coming[b] for b in self._clusters):
                    self._behind.add(t)
                else:
                    self._flush()
                    self.out.append(s)
            case _:
                self._flush()
                self.out.append(s)

    def _flush(self) -> None:
        """Place all that waits."""
        chain: list[tuple[Region, Body]] = []
        for branch, cluster in self._clusters.items():
            new = branch.region
            if len(chain) == LONGEST_CHAIN or not all(r.excludes(new) for r, _ in chain):
                self.out += _chained(chain)
                chain = []
            chain.append((new, (*self._own_allocs(cluster), *cluster.statements)))
        self.out += _chained(chain)
        self.out += self._behind.statements
        self._clusters, self._behind = {}, _Cluster()

    def _own_allocs(self, cluster: _Cluster) -> Body:
        """The allocations of registers that a cluster alone uses, taken out of `out`."""
        here = _mentions(cluster.statements)
        own = {b for b, n in here.items() if n == self._mentions[b]}
        moved = tuple(s for s in self.out if isinstance(s, Alloc) and s.buffer in own)
        self.out = [s for s in self.out if s not in moved] if moved else self.out
        return moved


def _mentions(body: Iterable[Statement]) -> Counter[Buffer]:
    """How often statements, and those below them, name each register buffer."""
    return Counter(
        r.buffer for s in body for inner in (s, *walk_statements(s)) for r in own_registers(inner)
    )


def _chained(branches: list[tuple[Region, Body]]) -> Body:
    """One branch inside the `else` of the one before."""
    chain: Body = ()
    for region, body in reversed(branches):
        chain = (If(region.condition, body, chain),)
    return chain
