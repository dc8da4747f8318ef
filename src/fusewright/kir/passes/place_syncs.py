"""Put barriers where hazards need them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fusewright.core.expr import ONE, ZERO, mod
from fusewright.dtypes import uint64
from fusewright.errors import InternalError
from fusewright.kir.analysis.grid import check_blocks
from fusewright.kir.analysis.order import (
    RELAXED_KINDS,
    Hazard,
    SyncPoint,
    SyncScope,
    gap_at,
    gap_position,
    orders,
    sync_at,
)
from fusewright.kir.analysis.sites import BranchScope, LoopScope, Path, RoleScope, Scope
from fusewright.kir.analysis.split_barriers import run_number
from fusewright.kir.analysis.uniformity import threads_of
from fusewright.kir.ir import (
    Alloc,
    BarrierArrive,
    BlockSync,
    Body,
    Buffer,
    ClusterArrive,
    ClusterWait,
    For,
    If,
    Kernel,
    MbarArrive,
    MbarInit,
    MbarWait,
    Memory,
    NamedSync,
    Role,
    Roles,
    Statement,
    SyncStatement,
    WarpSync,
)
from fusewright.kir.passes.split_branches import join_branches, split_branches
from fusewright.kir.traverse import walk_statements
from fusewright.target import NAMED_BARRIERS, Target


def place_syncs(kernel: Kernel, target: Target) -> Kernel:
    """Put the fewest barriers that order every cross-thread hazard.

    rewrite:  s[t] = a;  b = s[t+1]   ->   s[t] = a;  BlockSync;  b = s[t+1]
    checks:   blocks hand nothing to each other, else UnsupportedError; every sync site is uniform
              over its participants, branches are split where not; in a role its own warps meet at a
              named barrier, and a free one is left, else InternalError
    order:    after complete_async (waits are where completions become hazards), before pack_shared
              (packs under the syncs that exist)
    """
    check_blocks(kernel)
    divided = split_branches(kernel)
    if not divided.pending:
        return kernel
    placed = insert_syncs(divided.kernel, _decide(divided.kernel, divided.pending))
    return join_branches(placed, divided.conditions)


# --- deciding -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """A sync to insert before statement `index` of the body at `body`."""

    body: Path
    index: int
    point: SyncPoint
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class _Region:
    """A body in which hazards can be ordered at its top level; `size` counts its statements."""

    path: Path
    scopes: tuple[Scope, ...]
    size: int
    is_loop: bool


@dataclass(frozen=True, slots=True)
class _Arc:
    """Gaps `start .. end` of a body, `end < start` when they pass the end of the loop body."""

    start: int
    end: int

    def gaps(self, size: int) -> list[int]:
        """The gaps from first to last."""
        if self.start <= self.end:
            return list(range(self.start, self.end + 1))
        return [*range(self.start, size + 1), *range(self.end + 1)]


def _decide(kernel: Kernel, pending: Sequence[Hazard]) -> list[Placement]:
    """Syncs that order all pending hazards: inner bodies first, since only a sync inside orders
    what one iteration does, and what it orders outside is free."""
    regions = {r.path: r for r in _regions(kernel.body, (), (), is_loop=False)}
    placements: list[Placement] = []
    rest: list[Hazard] = list(pending)
    for path in sorted({_region_of(h) for h in pending}, key=lambda p: (-len(p), p)):
        for scope in (SyncScope.CLUSTER, SyncScope.BLOCK, SyncScope.WARP):
            mine = [h for h in rest if _region_of(h) == path and h.scope is scope]
            others = [h for h in rest if _region_of(h) != path or h.scope is not scope]
            if not mine:
                continue
            chosen = _stab(regions[path], mine, others, scope)
            for gap in chosen:
                point = _stretched(regions[path], gap, chosen, mine)
                why = _why([h for h in mine if orders(point, h)])
                placements.append(Placement(path, gap_at(point.position), point, why))
                rest = [h for h in rest if not orders(point, h)]
    return placements


def _regions(body: Body, path: Path, scopes: tuple[Scope, ...], *, is_loop: bool) -> list[_Region]:
    out = [_Region(path, scopes, len(body), is_loop)]
    for i, statement in enumerate(body):
        here = (*path, i)
        match statement:
            case For():
                inner = (*scopes, LoopScope(here, statement, None, 1))
                out += _regions(statement.body, here, inner, is_loop=True)
            case If():
                for branch, part in enumerate((statement.then, statement.otherwise)):
                    at = (*here, branch)
                    inner = (*scopes, BranchScope(at, statement, branch == 0))
                    out += _regions(part, at, inner, is_loop=False)
            case Roles():
                for number, role in enumerate(statement.body):
                    assert isinstance(role, Role)
                    at = (*here, number)
                    out += _regions(role.body, at, (*scopes, RoleScope(at, role)), is_loop=False)
            case _:
                pass
    return out


def _region_of(h: Hazard) -> Path:
    """The deepest body that holds both accesses, or the body of the loop that carries them."""
    if h.carried is not None:
        return h.carried
    depth = 0
    while h.before[depth] == h.after[depth]:
        depth += 1
    return h.before[:depth]


def _arc(region: _Region, h: Hazard) -> _Arc:
    depth = len(region.path)
    if h.carried is None:
        return _Arc(h.before[depth] + 1, h.after[depth])
    if h.distance > 1 or h.after[depth] > h.before[depth]:
        return _Arc(0, region.size)
    return _Arc(h.before[depth] + 1, h.after[depth])


def _stab(
    region: _Region, mine: Sequence[Hazard], others: Sequence[Hazard], scope: SyncScope
) -> list[int]:
    """The fewest gaps that meet every arc; of equally few the ones that order most of the rest.

    On a circle some gap of the shortest arc is used; once it is chosen the circle is a line, on
    which taking the last gap of the arc that ends first is optimal, and so is the reverse.
    """
    arcs = [a.gaps(region.size) for a in dict.fromkeys(_arc(region, h) for h in mine)]
    shortest = min(arcs, key=len)
    found: dict[tuple[int, ...], None] = {}
    for first in reversed(shortest):
        for step in (1, -1):
            found[tuple(sorted(_stab_line(arcs, first, region.size + 1, step)))] = None
    fewest = min(len(chosen) for chosen in found)
    best: tuple[int, tuple[int, ...]] | None = None
    for chosen in found:
        if len(chosen) > fewest:
            continue
        points = [_point(region, g, scope) for g in chosen]
        left = sum(not any(orders(p, h) for p in points) for h in others)
        if best is None or left < best[0]:
            best = left, chosen
    assert best is not None
    return list(best[1])


def _stab_line(arcs: Sequence[list[int]], first: int, length: int, step: int) -> list[int]:
    """Greedy stabbing of the arcs that miss `first`, around the circle of `length` gaps in one
    direction (`step` 1 or -1)."""
    lines: list[tuple[int, int]] = []
    for gaps in arcs:
        if first not in gaps:
            start = ((gaps[0] if step > 0 else gaps[-1]) - first) * step % length
            lines.append((start + len(gaps) - 1, start))
    chosen = [first]
    last = 0
    for end, start in sorted(lines):
        if start > last:
            last = end
            chosen.append((first + step * end) % length)
    return chosen


def _stretched(
    region: _Region, gap: int, chosen: Sequence[int], mine: Sequence[Hazard]
) -> SyncPoint:
    """The sync at a gap; where it only makes sure that blocks have begun, and made mbarriers, they
    arrive as soon as they have and wait as late as possible, so that nobody waits for a block that
    starts late."""
    scope = mine[0].scope
    point = _point(region, gap, scope)
    others = [_point(region, g, scope) for g in chosen if g != gap]
    alone = [h for h in mine if orders(point, h) and not any(orders(p, h) for p in others)]
    if any(h.kind not in RELAXED_KINDS for h in alone) or gap != min(chosen):
        return point
    first = max(_arc(region, h).start if h.kind == "INIT" else 0 for h in alone)
    last = min(_arc(region, h).end for h in alone)
    since = gap_position(region.path, first)
    return replace(_point(region, last, scope), since=since, orders_memory=False)


def _point(region: _Region, gap: int, scope: SyncScope) -> SyncPoint:
    return sync_at(gap_position(region.path, gap), region.scopes, scope)


def _why(ordered: Sequence[Hazard]) -> str:
    more = f" (+{len(ordered) - 1} more)" if len(ordered) > 1 else ""
    return f"{ordered[0]}{more}"


# --- editing ------------------------------------------------------------------------------------


def insert_syncs(kernel: Kernel, placements: Iterable[Placement]) -> Kernel:
    """The kernel with the syncs inserted, numbered after those it has. One of a block whose
    threads arrive before they wait is a split barrier, on an mbarrier of its own."""
    ordered = sorted(placements, key=lambda p: p.point.position)
    parts = [x for p in ordered for x in _parts(p, kernel)]
    if not parts:
        return kernel
    barriers = _Barriers(kernel)
    added: dict[tuple[Path, int], list[Statement]] = {}
    parts.sort(key=lambda x: gap_position(x.body, x.index))
    for number, x in enumerate(parts, next_sync_id(kernel)):
        statement = x.kind(number, x.why)
        if x.role is not None:
            statement = barriers.sync(x.role, number, x.why)
        if isinstance(statement, MbarInit):
            added.setdefault((x.body, x.index), []).append(Alloc(statement.barrier))
        added.setdefault((x.body, x.index), []).append(statement)
    return insert(kernel, added)


@dataclass(frozen=True, slots=True)
class _Part:
    """One statement of a sync, before statement `index` of the body at `body`; `role` is that whose
    warps meet there instead of all of the block."""

    body: Path
    index: int
    kind: Callable[[int, str], SyncStatement]
    why: str
    role: RoleScope | None = None


def _parts(p: Placement, kernel: Kernel) -> tuple[_Part, ...]:
    """The statements of a sync in textual order."""
    match p.point.scope:
        case SyncScope.BLOCK if p.point.since != p.point.position:
            return _split_parts(p, kernel)
        case SyncScope.CLUSTER:
            arrive = partial(ClusterArrive, relaxed=not p.point.orders_memory)
            first = _Part(p.body, gap_at(p.point.since), arrive, p.why)
            return first, _Part(p.body, p.index, ClusterWait, p.why)
        case SyncScope.BLOCK | SyncScope.THREAD:
            role = next((s for s in p.point.scopes if isinstance(s, RoleScope)), None)
            return (_Part(p.body, p.index, BlockSync, p.why, role),)
        case SyncScope.WARP:
            return (_Part(p.body, p.index, WarpSync, p.why),)


def _split_parts(p: Placement, kernel: Kernel) -> tuple[_Part, ...]:
    """A split barrier: the mbarrier starts with the kernel, and each run of the body around takes
    one of its phases."""
    number = run_number(p.point.scopes)
    assert number is not None and not kernel.cluster, "decided by split_syncs"
    gate = Buffer("gate", uint64, ONE, Memory.SHARED, uint64.nbytes)
    start = partial(MbarInit, barrier=gate, slot=ZERO, count=kernel.nthreads, issuer=0)
    arrive = partial(MbarArrive, barrier=gate, slot=ZERO)
    wait = partial(MbarWait, barrier=gate, slot=ZERO, parity=mod(number, 2))
    return (
        _Part((), 0, start, p.why),
        _Part(p.body, gap_at(p.point.since), arrive, p.why),
        _Part(p.body, p.index, wait, p.why),
    )


def next_sync_id(kernel: Kernel) -> int:
    """One more than the largest sync id in use."""
    found = (s.id for s in walk_statements(kernel) if isinstance(s, SyncStatement))
    return 1 + max(found, default=-1)


class _Barriers:
    """The numbers of named barriers that no statement of the kernel uses, one for each role."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._taken = {
            s.barrier for s in walk_statements(kernel) if isinstance(s, NamedSync | BarrierArrive)
        }
        self._of: dict[Path, int] = {}

    def sync(self, role: RoleScope, number: int, why: str) -> NamedSync:
        """The barrier at which all threads of the role meet."""
        if role.path not in self._of:
            free = (n for n in range(1, NAMED_BARRIERS) if n not in self._taken)
            barrier = next(free, None)
            if barrier is None:
                raise InternalError(
                    f"{self._kernel.name} uses all {NAMED_BARRIERS - 1} named barriers, and the "
                    f"warps of a role have to meet for {why}; use fewer, or fewer roles"
                )
            self._of[role.path] = barrier
            self._taken.add(barrier)
        nthreads = len(threads_of(role.node, self._kernel))
        return NamedSync(number, why, self._of[role.path], nthreads)


def insert(kernel: Kernel, added: Mapping[tuple[Path, int], Sequence[Statement]]) -> Kernel:
    """The kernel with statements inserted before statement `index` of the body at `path`, by
    (path, index)."""
    body = _insert(kernel.body, (), added)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _insert(body: Body, path: Path, added: Mapping[tuple[Path, int], Sequence[Statement]]) -> Body:
    out: list[Statement] = []
    for i, statement in enumerate(body):
        out.extend(added.get((path, i), ()))
        out.append(_insert_below(statement, (*path, i), added))
    out.extend(added.get((path, len(body)), ()))
    if len(out) == len(body) and all(x is y for x, y in zip(out, body, strict=True)):
        return body
    return tuple(out)


def _insert_below(
    s: Statement, here: Path, added: Mapping[tuple[Path, int], Sequence[Statement]]
) -> Statement:
    match s:
        case For():
            inner = _insert(s.body, here, added)
            return s if inner is s.body else replace(s, body=inner)
        case If():
            then = _insert(s.then, (*here, 0), added)
            otherwise = _insert(s.otherwise, (*here, 1), added)
            if then is s.then and otherwise is s.otherwise:
                return s
            return replace(s, then=then, otherwise=otherwise)
        case Roles():
            roles: list[Statement] = []
            for number, role in enumerate(s.body):
                assert isinstance(role, Role)
                inner = _insert(role.body, (*here, number), added)
                roles.append(role if inner is role.body else replace(role, body=inner))
            if all(x is y for x, y in zip(roles, s.body, strict=True)):
                return s
            return replace(s, body=tuple(roles))
        case _:
            return s
