"""What roles that run side by side share, and whether any protocol stands between them.

The order of roles is made by barriers at which one arrives and another waits. Which phases meet is
a matter for the machine model; here a pair of accesses is refused only when no chain of arrivals
and waits could order it either way round, so that what is refused is certainly wrong.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fusewright.dtypes import uint64
from fusewright.kir.analysis.accesses import Access, Moment
from fusewright.kir.analysis.lanes import Array
from fusewright.kir.analysis.ownership import Footprint, Space, spaces
from fusewright.kir.analysis.sites import Path, StatementSite, are_concurrent, common_loops, sites
from fusewright.kir.ir import Kernel, Roles
from fusewright.kir.traits import Barrier
from fusewright.kir.traverse import walk_statements

_ANYWHERE = 1 << 62
_Sites: TypeAlias = Mapping[Path, Sequence[tuple[StatementSite, Barrier]]]


@dataclass(frozen=True, slots=True, eq=False)
class RoleConflict:
    """Accesses of two roles to the same bytes, one of them a write."""

    first: Access
    second: Access


def unguarded(kernel: Kernel) -> tuple[RoleConflict, ...]:
    """The hand-overs between roles that no protocol can order, in textual order."""
    if not any(isinstance(s, Roles) for s in walk_statements(kernel)):
        return ()
    places = [s for s in sites(kernel) if s.role is not None and not s.statement.is_private]
    arrivals = _by_role((s, s.statement.arrives_at()) for s in places)
    waits = _by_role((s, s.statement.waits_at()) for s in places)
    found = (
        pair
        for space in spaces(kernel)
        for pair in _shared(space)
        if not _may_order(pair.first.site, pair.second.site, arrivals, waits)
        and not _may_order(pair.second.site, pair.first.site, arrivals, waits)
    )
    return tuple(sorted(found, key=lambda p: (p.first.order, p.second.order)))


def handing_roles(kernel: Kernel) -> frozenset[Path]:
    """The roles among whose threads a barrier may be part of how they hand on to others: they touch
    themselves what other roles touch too, or all of them wait, and one arrives for them, where
    other roles come, too. What one brings to its own role hands nothing on to others."""
    places = [s for s in sites(kernel) if s.role is not None and not s.statement.is_private]
    if not places:
        return frozenset()
    came: dict[Barrier, set[Path]] = {}
    for s in places:
        barrier = s.statement.arrives_at() or s.statement.waits_at()
        if barrier is not None:
            came.setdefault(barrier, set()).add(_role(s))
    alone = {
        _role(s)
        for s in places
        if (barrier := s.statement.arrives_at()) is not None
        and s.statement.issuing_thread() is not None
        and len(came[barrier]) > 1
    }
    together = {
        _role(s)
        for s in places
        if s.statement.waits_at() is not None and s.statement.issuing_thread() is None
    }
    out = alone & together
    for space in spaces(kernel):
        prints = [f for f in space.footprints if f.access.site.role is not None]
        for f in prints:
            a = f.access
            if a.moment is not Moment.WHOLE or a.buffer.dtype is uint64 or _role(a.site) in out:
                continue
            if any(_hands_over(f, g) for g in prints):
                out.add(_role(a.site))
    return frozenset(out)


def _hands_over(f: Footprint, g: Footprint) -> bool:
    a, b = f.access, g.access
    return (a.writes or b.writes) and are_concurrent(a.site, b.site) and _may_meet(f, g)


def _by_role(found: Iterable[tuple[StatementSite, Barrier | None]]) -> _Sites:
    out: dict[Path, list[tuple[StatementSite, Barrier]]] = {}
    for site, barrier in found:
        if barrier is not None:
            out.setdefault(_role(site), []).append((site, barrier))
    return out


def _role(site: StatementSite) -> Path:
    role = site.role
    assert role is not None
    return role.path


def _shared(space: Space) -> Iterator[RoleConflict]:
    """The pairs of accesses in different roles that may touch the same bytes."""
    prints = [f for f in space.footprints if f.access.site.role is not None]
    roles = [_role(f.access.site) for f in prints]
    role, beside = _numbered(roles), _numbered([r[:-1] for r in roles])
    unknown = _numbered([f.unknown for f in prints])
    writes = np.array([f.access.writes for f in prints], bool)
    low, high = np.array([_ends(f) for f in prints], np.int64).reshape(-1, 2).T
    for i, f in enumerate(prints):
        k = slice(i + 1, None)
        near = (low[k] <= high[i]) & (low[i] <= high[k]) | (unknown[k] != unknown[i])
        near &= (beside[k] == beside[i]) & (role[k] != role[i]) & (writes[k] | writes[i])
        for at in np.flatnonzero(near).tolist():
            g = prints[i + 1 + at]
            if _may_meet(f, g):
                yield RoleConflict(f.access, g.access)


def _numbered(values: Sequence[Hashable]) -> Array:
    """Numbers of values, which are equal where these are."""
    known: dict[Hashable, int] = {v: k for k, v in enumerate(dict.fromkeys(values))}
    return np.array([known[v] for v in values], np.int64)


def _ends(f: Footprint) -> tuple[int, int]:
    """The first and the last cell of an access; the last before the first where it has none."""
    if f.cells is None:
        return -_ANYWHERE, _ANYWHERE
    return (int(f.cells.min()), int(f.cells.max())) if f.cells.size else (_ANYWHERE, -_ANYWHERE)


def _may_meet(f: Footprint, g: Footprint) -> bool:
    """Whether the two may touch a byte both; arrivals and waits at a barrier always may."""
    if f.access.use.ends_turn or g.access.use.ends_turn:
        return False
    if f.cells is None or g.cells is None or f.unknown != g.unknown:
        return True
    (low, high), (first, last) = _ends(f), _ends(g)
    if high < first or last < low:
        return False
    return bool(np.intersect1d(f.cells, g.cells).size)


def _may_order(
    first: StatementSite, second: StatementSite, arrivals: _Sites, waits: _Sites
) -> bool:
    """Whether a chain may lead from an arrival behind `first` to a wait before `second`."""
    work = [b for site, b in arrivals.get(_role(first), ()) if _may_follow(site, first)]
    reached: set[Barrier] = set()
    while work:
        barrier = work.pop()
        if barrier in reached:
            continue
        reached.add(barrier)
        for role, found in waits.items():
            mine = [site for site, b in found if b == barrier]
            if role == _role(second):
                if any(_may_follow(second, site) for site in mine):
                    return True
            elif mine and role != _role(first):
                work += [b for _, b in arrivals.get(role, ())]
    return False


def _may_follow(later: StatementSite, earlier: StatementSite) -> bool:
    """Whether the first may run after the second: in the text, or in a later iteration."""
    return later.path >= earlier.path or bool(common_loops(later, earlier))
