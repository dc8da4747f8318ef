"""All conflicting pairs of accesses of one block, and the syncs that stand between the two: listed
by brute force from a run in lockstep, with no clocks and no classes. Wrong places for a sync."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from fusewright.core.node import rewrite
from fusewright.kir.analysis.sites import Path, StatementSite, contains, sites
from fusewright.kir.analysis.split_barriers import split_barriers
from fusewright.kir.clusters import cluster_barriers
from fusewright.kir.insertion import insert
from fusewright.kir.ir import (
    BlockSync,
    ClusterWait,
    Kernel,
    Statement,
    SyncStatement,
    WarpSync,
)
from fusewright.sim.machine import Machine, analyse
from fusewright.sim.report import Race
from fusewright.sim.trace import SyncEvent, Trace, TracedAccess, rows_of
from fusewright.sim.verify import Case
from fusewright.target import WARP_SIZE


@dataclass(frozen=True)
class Pair:
    """Two accesses that conflict across threads in one run, by their statements, and the syncs of
    which one execution between them makes all threads concerned wait; two stand for more."""

    before: Statement
    after: Statement
    between: frozenset[SyncStatement]


@dataclass(frozen=True)
class _Touched:
    """The cells of an event, sorted, with the lowest and highest thread that touches each; `key` is
    equal where all these are."""

    statement: Statement
    at: int
    writes: bool
    cells: np.ndarray
    low: np.ndarray
    high: np.ndarray
    key: bytes


def trace_of(k: Kernel, case: Case) -> Trace:
    """What the first block, or cluster, of a kernel does."""
    arrays = {p: np.array(a) for p, a in case.arrays.items()}
    machine = Machine(k, arrays, case.arguments, case.symbols, case.outputs, 0)
    return machine.batch(np.array([0]))


class Listing:
    """Lists pairs, of several variations of one kernel."""

    def __init__(self) -> None:
        self._collisions: dict[tuple[bytes, bytes], Sequence[_Collision]] = {}

    def pairs(self, k: Kernel, case: Case) -> set[Pair]:
        """The conflicting pairs, each with every set of syncs that some instance has between."""
        trace = trace_of(k, case)
        spaces: dict[int, list[_Touched]] = defaultdict(list)
        for at, e in enumerate(trace.events):
            if isinstance(e, TracedAccess):
                spaces[e.space].append(_touched(at, e, trace))
        syncs = _executed(k, trace)
        starts = [since for since, *_ in syncs]
        out: set[Pair] = set()
        for events in spaces.values():
            for j, b in enumerate(events):
                for a in events[:j]:
                    if not (a.writes or b.writes):
                        continue
                    later = syncs[bisect_right(starts, a.at) :]
                    for c in self._colliding(a, b, trace):
                        out.add(Pair(a.statement, b.statement, _between(later, b.at, c)))
        return out

    def _colliding(self, a: _Touched, b: _Touched, trace: Trace) -> Sequence[_Collision]:
        key = a.key, b.key
        if key not in self._collisions:
            self._collisions[key] = _collisions(a, b, trace)
        return self._collisions[key]


_Collision: TypeAlias = tuple[int, int]
"""Who collides: how far they are apart, and the warp of lanes of one."""
_Executed: TypeAlias = tuple[int, int, SyncStatement, int, frozenset[int]]
"""A sync: the events at which threads arrive and wait, its statement, its reach, and the warps of
which threads take part."""


def _executed(k: Kernel, trace: Trace) -> list[_Executed]:
    """Every execution of a sync, in order of arrival."""
    arrivals = {b.wait: b.arrive for b in split_barriers(k)}
    arrivals |= {wait: arrive for arrive, wait in cluster_barriers(k)}
    arrived: dict[SyncStatement, int] = {}
    out: list[_Executed] = []
    for at, e in enumerate(trace.events):
        if isinstance(e, SyncEvent) and isinstance(e.statement, SyncStatement):
            arrived[e.statement] = at
            since = arrived.get(arrivals.get(e.statement, e.statement), at)
            mask = rows_of(e.mask, np.array([0]), trace.nthreads, 1)[0]
            warps = frozenset((np.flatnonzero(mask) // WARP_SIZE).tolist())
            out.append((since, at, e.statement, _reach(e.statement, arrivals), warps))
    return sorted(out, key=lambda s: s[0])


def _between(syncs: Sequence[_Executed], end: int, who: _Collision) -> frozenset[SyncStatement]:
    found: set[SyncStatement] = set()
    span, warp = who
    for since, at, s, reach, warps in syncs:
        if since > end or len(found) > 1:
            break
        if at < end and reach >= span and (span > _WARP or warp in warps):
            found.add(s)
    return frozenset(found)


def _touched(at: int, e: TracedAccess, trace: Trace) -> _Touched:
    rows, n = np.array([0]), trace.nthreads
    mask = rows_of(e.mask, rows, n, 1)[0]
    first = (rows_of(e.block, rows, n, 1) + rows_of(e.thread, rows, n, 1))[0][mask]
    threads = np.flatnonzero(mask)
    cells = (first[:, None] + np.arange(e.nbytes)).ravel()
    owners = np.repeat(threads, e.nbytes)
    order = np.argsort(cells, kind="stable")
    found, start = np.unique(cells[order], return_index=True)
    if not found.size:
        return _Touched(e.statement, at, e.writes, found, found, found, b"")
    low, high = (f.reduceat(owners[order], start) for f in (np.minimum, np.maximum))
    key = b"".join(x.tobytes() for x in (found, low, high))
    return _Touched(e.statement, at, e.writes, found, low, high, key)


_WARP, _BLOCK, _CLUSTER = 1, 2, 3


def _collisions(a: _Touched, b: _Touched, trace: Trace) -> tuple[_Collision, ...]:
    """Blocks or threads of one block, where any collide, else each warp whose lanes do."""
    _, i, j = np.intersect1d(a.cells, b.cells, assume_unique=True, return_indices=True)
    low = np.minimum(a.low[i], b.low[j])
    high = np.maximum(a.high[i], b.high[j])
    for n, size in ((_CLUSTER, trace.block_nthreads), (_BLOCK, WARP_SIZE)):
        if bool((low // size != high // size).any()):
            return ((n, 0),)
    warps = np.unique(low[low != high] // WARP_SIZE)
    return tuple((_WARP, int(w)) for w in warps)


def _reach(s: SyncStatement, arrivals: Mapping[SyncStatement, SyncStatement]) -> int:
    match s:
        case WarpSync():
            return _WARP
        case BlockSync():
            return _BLOCK
        case ClusterWait():
            return 0 if getattr(arrivals[s], "relaxed", False) else _CLUSTER
        case _:
            return _BLOCK if s in arrivals else 0


# --- moving -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moved:
    """A sync, or one half of it, in front of the first access that it orders, or behind the
    second."""

    sync: SyncStatement
    kernel: Kernel
    pair: Pair


def wrong_places(k: Kernel, found: set[Pair]) -> Iterator[Moved]:
    """Every sync moved in front of the first, and behind the second access of every pair that no
    other orders; once for each place."""
    at = {s.statement: s for s in sites(k)}
    arrivals = {b.wait: b.arrive for b in split_barriers(k)}
    arrivals |= {wait: arrive for arrive, wait in cluster_barriers(k)}
    alone = [p for p in found if len(p.between) == 1]
    alone.sort(key=lambda p: (at[p.before].path, at[p.after].path))
    seen: set[tuple[SyncStatement, Path]] = set()
    for p in alone:
        (sync,) = p.between
        for half, access, step in ((arrivals.get(sync, sync), p.before, 0), (sync, p.after, 1)):
            place = _beside(at[half], at[access].path, step)
            if (half, place) in seen:
                continue
            seen.add((half, place))
            moved = insert(k, {(place[:-1], place[-1]): [replace(half)]})
            yield Moved(half, rewrite(moved, lambda n, old=half: () if n is old else n), p)


def _beside(sync: StatementSite, access: Path, step: int) -> Path:
    """The gap before (`step` 0) or behind (1) what holds the access, in the innermost body around
    the sync that the access is in: all threads come there."""
    bodies = [(), *(scope.path for scope in sync.scopes)]
    body = max((b for b in bodies if contains(b, access)), key=len)
    return (*body, access[len(body)] + step)


def findings(k: Kernel, case: Case) -> list[Race]:
    """What the machine model reports of the first block."""
    arrays = {p: np.array(a) for p, a in case.arrays.items()}
    run = analyse(
        k, arrays, arguments=case.arguments, symbols=case.symbols, outputs=case.outputs, blocks=[0]
    )
    return run.races()
