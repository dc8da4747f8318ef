"""When the contents of shared buffers are needed, in lockstep order.

A buffer is live after a statement when it may have been written before and may be read later
without being wholly overwritten in between. Loops count their back edge, branches both ways,
an `Alloc` ends what came before. What an asynchronous operation reads or writes is in use from
its issue to its wait. Roles run side by side: what several of them touch is in use throughout all,
what one touches is in use throughout the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from fusewright.kir.analysis.accesses import Access, Moment, accesses, shared_allocs
from fusewright.kir.analysis.ownership import Footprint, Space, spaces_of
from fusewright.kir.analysis.sites import KEPT, Path, StatementSite, contains, sites
from fusewright.kir.ir import Alloc, Body, Buffer, For, If, Kernel, Memory, Role, Roles, Statement

_Live: TypeAlias = frozenset[Buffer]
_EMPTY: _Live = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """The life of one shared buffer.

    `first` and `last` are the paths of its first and last access, None when it has none;
    `live_after` the paths of the statements after which its contents are needed; `alloc` the path
    of its allocation, which makes the bytes it gets undefined.
    """

    buffer: Buffer
    alloc: Path
    first: Path | None
    last: Path | None
    live_after: frozenset[Path]


def intervals(kernel: Kernel) -> tuple[Interval, ...]:
    """The life of every shared buffer, in order of allocation."""
    return intervals_of(kernel, accesses(kernel))


def intervals_of(kernel: Kernel, found: Iterable[Access]) -> tuple[Interval, ...]:
    """`intervals`, for accesses that have been found already."""
    return _intervals(kernel, tuple(found))


@lru_cache(maxsize=KEPT)
def _intervals(kernel: Kernel, found: tuple[Access, ...]) -> tuple[Interval, ...]:
    shared = [a for a in found if a.buffer.memory is Memory.SHARED]
    needed, filled = _flows(kernel, shared)
    used: dict[Buffer, list[Path]] = {}
    for a in shared:
        used.setdefault(a.buffer, []).append(a.site.path)
    places = sites(kernel)
    out: list[Interval] = []
    for site, alloc in shared_allocs(kernel):
        b = alloc.buffer
        at = used.get(b, [])
        flow = [s.path for s in places if b in needed[s.path] and b in filled[s.path]]
        live = frozenset((*flow, *_beside(b, shared, places)))
        out.append(Interval(b, site.path, at[0] if at else None, at[-1] if at else None, live))
    return tuple(out)


def interferes(a: Interval, b: Interval, found: Iterable[Access]) -> bool:
    """Whether a write to one, or its allocation, happens while the other's contents are needed."""
    if begins_within(a, b):
        return True
    for access in found:
        if access.writes and access.buffer in (a.buffer, b.buffer):
            other = b if access.buffer is a.buffer else a
            if access.site.path in other.live_after:
                return True
    return False


def begins_within(a: Interval, b: Interval) -> bool:
    """Whether one is allocated while the other's contents are needed."""
    return a.alloc in b.live_after or b.alloc in a.live_after


def _beside(
    buffer: Buffer, shared: Iterable[Access], places: Iterable[StatementSite]
) -> Iterable[Path]:
    """The statements of roles that may run at the same time as what touches the buffer."""
    roles: dict[Path, set[Path]] = {}
    for a in shared:
        role = a.site.role
        if a.buffer is buffer and role is not None:
            mine = roles.setdefault(role.path[:-1], set())
            mine.add(role.path)
            if a.use.completes.by_mbarrier:
                mine.add(role.path[:-1])
    for s in places:
        role = s.role
        if role is not None and roles.get(role.path[:-1], {role.path}) != {role.path}:
            yield s.path


# --- data flow ----------------------------------------------------------------------------------


def _flows(kernel: Kernel, shared: list[Access]) -> tuple[dict[Path, _Live], dict[Path, _Live]]:
    """Per statement: the buffers that may be read later, and those that may have been written."""
    reads: dict[Path, _Live] = {}
    writes: dict[Path, _Live] = {}
    for a in shared:
        for table, is_meant in ((writes, a.writes), (reads, not a.writes or not a.can_follow)):
            if is_meant:
                table[a.site.path] = table.get(a.site.path, _EMPTY) | {a.buffer}
    ends = _endings(shared)
    needed: dict[Path, _Live] = {}
    filled: dict[Path, _Live] = {}

    def back(path: Path, s: Statement, after: _Live) -> _Live:
        needed[path] = after
        gone = _EMPTY if not isinstance(s, Alloc) else frozenset({s.buffer})
        return (after - gone) | reads.get(path, _EMPTY)

    def forth(path: Path, s: Statement, before: _Live) -> _Live:
        gone = _EMPTY if not isinstance(s, Alloc) else frozenset({s.buffer})
        filled[path] = (before - gone) | writes.get(path, _EMPTY)
        return filled[path]

    _backward(kernel.body, (), _EMPTY, back, ends)
    _forward(kernel.body, (), _EMPTY, forth)
    return needed, filled


_Transfer: TypeAlias = Callable[[Path, Statement, _Live], _Live]


def _backward(
    body: Body, path: Path, after: _Live, leaf: _Transfer, ends: dict[Path, _Live]
) -> _Live:
    """What is needed before the body, given what is needed after it."""
    for i in reversed(range(len(body))):
        here, statement = (*path, i), body[i]
        match statement:
            case For():
                once = _backward(statement.body, here, after, leaf, ends)
                before = after | _backward(statement.body, here, after | once, leaf, ends)
            case If():
                then = _backward(statement.then, (*here, 0), after, leaf, ends)
                before = then | _backward(statement.otherwise, (*here, 1), after, leaf, ends)
            case Roles():
                before = after
                for k, role in enumerate(statement.body):
                    assert isinstance(role, Role)
                    before |= _backward(role.body, (*here, k), after, leaf, ends)
            case _:
                before = leaf(here, statement, after)
        after = before - ends.get(here, _EMPTY)
    return after


def _forward(body: Body, path: Path, before: _Live, leaf: _Transfer) -> _Live:
    """What may hold contents after the body, given what may before it."""
    for i, statement in enumerate(body):
        here = (*path, i)
        match statement:
            case For():
                once = _forward(statement.body, here, before, leaf)
                before = before | _forward(statement.body, here, before | once, leaf)
            case If():
                then = _forward(statement.then, (*here, 0), before, leaf)
                before = then | _forward(statement.otherwise, (*here, 1), before, leaf)
            case Roles():
                after = before
                for k, role in enumerate(statement.body):
                    assert isinstance(role, Role)
                    after |= _forward(role.body, (*here, k), before, leaf)
                before = after
            case _:
                before = leaf(here, statement, before)
    return before


# --- whole overwrites ---------------------------------------------------------------------------


def _endings(shared: list[Access]) -> dict[Path, _Live]:
    """Statements (loops and branches too) that certainly overwrite all of a buffer that is ever
    read, and do not read it: what it held before is not needed."""
    out: dict[Path, _Live] = {}
    for space in spaces_of(shared, {}):
        buffer = space.footprints[0].access.buffer
        for path in _overwriting(space):
            out[path] = out.get(path, _EMPTY) | {buffer}
    return out


def _overwriting(space: Space) -> list[Path]:
    loads = [f for f in space.footprints if not f.access.writes]
    stores = [f for f in space.footprints if f.access.writes and f.is_exact]
    stores = [f for f in stores if f.access.moment is not Moment.DONE]
    if not loads or not stores:
        return []
    ncells = 1 + max(int(f.cells.max(initial=0)) for f in space.footprints if f.cells is not None)
    wanted = np.zeros(ncells, dtype=bool)
    for f in loads:
        wanted[f.cells] = True
    nodes: dict[Path, None] = {}
    for f in stores:
        path = f.access.site.path
        nodes.update((path[:k], None) for k in range(1, len(path) + 1))
    out: list[Path] = []
    for path in nodes:
        if any(contains(path, f.access.site.path) for f in loads):
            continue
        inside = [f for f in stores if contains(path, f.access.site.path)]
        covered = np.zeros(ncells, dtype=bool)
        for f in inside:
            if _is_certain(f, path):
                covered[f.cells] = True
        if not (wanted & ~covered).any():
            out.append(path)
    return out


def _is_certain(f: Footprint, node: Path) -> bool:
    """Whether every run of the statement at `node` makes all rows of the footprint."""
    for i, loop in enumerate(f.access.site.loops):
        is_inside = contains(node, loop.path)
        is_whole = f.access.stands_for_all[i] and f.access.trips[i]
        if not is_whole if is_inside else i in f.loops:
            return False
    return True
