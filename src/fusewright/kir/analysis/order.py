"""What a hazard is, and which syncs order it.

A sync orders a hazard when every path from the first access to the second passes it. Positions
are paths with doubled steps, so that the gap before statement `i` of a body is `2*i - 1`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

from fusewright.choice import Choice
from fusewright.core.conditions import prove, substitute_condition
from fusewright.core.expr import variables
from fusewright.kir.analysis.sites import (
    KEPT,
    BranchScope,
    LoopScope,
    Path,
    RoleScope,
    Scope,
    StatementSite,
    acting_sites,
    contains,
)
from fusewright.kir.analysis.split_barriers import split_barriers, split_barriers_in
from fusewright.kir.analysis.uniformity import threads_of
from fusewright.kir.clusters import cluster_barriers
from fusewright.kir.ir import (
    BarrierArrive,
    BlockSync,
    Buffer,
    ClusterWait,
    Kernel,
    MbarWait,
    Memory,
    NamedSync,
    SyncStatement,
    WarpSync,
)

Position: TypeAlias = tuple[int, ...]
_MAX_TRIED = 64
"""Iterations tried to find one in which a branch is taken."""

Kind: TypeAlias = Literal["RAW", "WAR", "WAW", "START", "EXIT", "INIT"]

RELAXED_KINDS: tuple[Kind, ...] = ("START", "INIT")
"""What a cluster barrier orders without handing on what its threads did in memory."""


class SyncScope(Choice):
    """Who has to wait for whom: lanes of one warp, all threads of a block (of a role, where both
    accesses stand in it), or all blocks of a cluster. THREAD: nobody, one thread has to pass the
    point."""

    THREAD = "thread"
    WARP = "warp"
    BLOCK = "block"
    CLUSTER = "cluster"

    def covers(self, other: SyncScope) -> bool:
        """Whether those who wait here are all who would have to wait for `other`."""
        return _WIDTHS[self] >= _WIDTHS[other]


_WIDTHS = {scope: width for width, scope in enumerate(SyncScope)}


@dataclass(frozen=True, slots=True)
class Example:
    """Two threads and a byte (from the start of `Hazard.space`) on which they collide."""

    before_thread: int
    after_thread: int
    byte: int


@dataclass(frozen=True, slots=True, eq=False)
class Hazard:
    """One class of conflicting instances of two accesses.

    `carried` is the path of the loop that carries it, `distance` 0 in the same iteration, else 1,
    or 2 for two iterations and more. `more_before` are the loops inside in which another
    iteration follows the first access, `more_after` those in which one precedes the second.
    `is_simultaneous`: one statement, one iteration, two threads; no sync can order it.

    START and EXIT say that a block must have begun before, and not exit until, another writes its
    memory; they come from a place before, or go to one behind, all statements of the kernel. INIT
    says that an mbarrier that blocks of a cluster use is made before.
    """

    kind: Kind
    space: str
    before: Path
    after: Path
    before_buffer: Buffer
    after_buffer: Buffer
    scope: SyncScope
    carried: Path | None
    distance: int
    more_before: tuple[Path, ...]
    more_after: tuple[Path, ...]
    is_simultaneous: bool
    example: Example | None

    def __str__(self) -> str:
        dots = [".".join(map(str, p)) for p in (self.before, self.after)]
        verbs = [
            "load" if self.kind == "WAR" else "store",
            "load" if self.kind == "RAW" else "store",
        ]
        names = [self.before_buffer.name, self.after_buffer.name]
        what = names[0] if names[0] == names[1] else f"{names[0]}/{names[1]}"
        if self.kind == "START":
            return f"START: blocks have begun -> remote store of {names[1]} L{dots[1]}"
        if self.kind == "EXIT":
            return f"EXIT: remote store of {names[0]} L{dots[0]} -> blocks exit"
        if self.kind == "INIT":
            return f"INIT: mbarrier {names[0]} made L{dots[0]} -> used L{dots[1]}"
        memory = "smem" if self.before_buffer.memory is Memory.SHARED else "gmem"
        carried = f", {self.distance}+ iterations later" if self.distance > 1 else ""
        carried = ", next iteration" if self.distance == 1 else carried
        return (
            f"{self.kind} {memory} {what}: {verbs[0]} L{dots[0]} -> {verbs[1]} L{dots[1]}{carried}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class SyncPoint:
    """A sync, present or proposed: where it stands and whom it makes wait. What comes before the
    position `since` is ordered before what comes after `position`: between the two, in one body,
    threads have arrived and go on. Without `orders_memory` it only says that blocks have begun, and
    made their mbarriers."""

    position: Position
    scopes: tuple[Scope, ...]
    scope: SyncScope
    since: Position
    orders_memory: bool = True


def sync_at(position: Position, scopes: tuple[Scope, ...], scope: SyncScope) -> SyncPoint:
    """A sync whose threads wait where they arrive."""
    return SyncPoint(position, scopes, scope, position)


@lru_cache(maxsize=1 << 14)
def position_of(path: Path) -> Position:
    """The position of a statement."""
    return tuple(2 * i for i in path)


def path_at(position: Position) -> Path:
    """The statement at a position: what `position_of` was made from."""
    return tuple(i // 2 for i in position)


def gap_at(position: Position) -> int:
    """The statement of its body before which a gap lies: what `gap_position` was made from."""
    return (position[-1] + 1) // 2


def gap_position(body: Path, index: int) -> Position:
    """The position just before statement `index` of the body of the loop or branch at `body`."""
    return (*position_of(body), 2 * index - 1)


@lru_cache(maxsize=KEPT)
def sync_points(kernel: Kernel) -> tuple[tuple[StatementSite, SyncPoint], ...]:
    """The syncs of a kernel that order memory, in textual order; a cluster barrier and a split
    barrier stand where their waits do."""
    places = [s for _, s in acting_sites(kernel)]
    whole = _whole_barriers(kernel, places)
    arrivals = {wait: arrive for arrive, wait in cluster_barriers(kernel)}
    halves = {b.wait: b.arrive for b in split_barriers_in(places, kernel)}
    early = {*arrivals.values(), *halves.values()}
    at = {s.statement: position_of(s.path) for s in places if s.statement in early}
    out: list[tuple[StatementSite, SyncPoint]] = []
    for site in places:
        if not isinstance(site.statement, SyncStatement):
            continue
        point = sync_at(position_of(site.path), site.scopes, SyncScope.BLOCK)
        match site.statement:
            case BlockSync():
                pass
            case WarpSync():
                point = replace(point, scope=SyncScope.WARP)
            case NamedSync(barrier=number) if number in whole:
                pass
            case MbarWait() if site.statement in halves:
                point = replace(point, since=at[halves[site.statement]])
            case ClusterWait() if site.statement in arrivals:
                arrive = arrivals[site.statement]
                point = SyncPoint(
                    position=point.position,
                    scopes=site.scopes,
                    scope=SyncScope.CLUSTER,
                    since=at[arrive],
                    orders_memory=not arrive.relaxed,
                )
            case _:
                continue
        out.append((site, point))
    return tuple(out)


def _whole_barriers(kernel: Kernel, places: Iterable[StatementSite]) -> frozenset[int]:
    """The named barriers at which all threads of one role, or of the block, meet and no others."""
    users: dict[int, set[Path | None]] = {}
    parts: set[int] = set()
    for site in places:
        s = site.statement
        if isinstance(s, NamedSync | BarrierArrive):
            role = site.role
            users.setdefault(s.barrier, set()).add(None if role is None else role.path)
            mine = threads_of(None if role is None else role.node, kernel)
            if isinstance(s, BarrierArrive) or s.nthreads != len(mine):
                parts.add(s.barrier)
    return frozenset(n for n, found in users.items() if len(found) == 1 and n not in parts)


def sync_id(site: StatementSite) -> int:
    """The id of the sync statement at a site."""
    assert isinstance(site.statement, SyncStatement)
    return site.statement.id


def orders(point: SyncPoint, hazard: Hazard) -> bool:
    """Whether the sync stands between all instances of the hazard."""
    if hazard.is_simultaneous:
        return False
    if not point.scope.covers(hazard.scope):
        return False
    if not point.orders_memory and hazard.kind not in RELAXED_KINDS:
        return False
    is_between = False
    if hazard.carried is None:
        before, after = position_of(hazard.before), position_of(hazard.after)
        is_between = before < point.since and point.position < after
        if not (is_between or hazard.more_before or hazard.more_after):
            return False
    for s in point.scopes:
        if type(s) is RoleScope and not (
            contains(s.path, hazard.before) and contains(s.path, hazard.after)
        ):
            return False
    if hazard.carried is not None:
        return _orders_carried(point, hazard, hazard.carried)
    if is_between:
        return _is_passed(point, hazard.before, hazard.after, 0)
    return _runs_again(point, hazard)


def _orders_carried(point: SyncPoint, hazard: Hazard, loop: Path) -> bool:
    if not _is_inside(loop, point.position):
        return False
    depth = len(loop)
    follows = point.since > position_of(hazard.before)
    precedes = point.position < position_of(hazard.after)
    if follows and _is_passed(point, hazard.before, None, depth):
        return True
    if precedes and _is_passed(point, None, hazard.after, depth):
        return True
    if hazard.distance > 1 and _runs_in_every_iteration(point, loop, hazard.before):
        return True
    return _runs_again(point, hazard)


def _runs_again(point: SyncPoint, hazard: Hazard) -> bool:
    """Whether a loop around only one of the accesses passes the sync in a further iteration."""
    for loops, anchor in ((hazard.more_before, hazard.before), (hazard.more_after, hazard.after)):
        for loop in loops:
            if _is_inside(loop, point.position) and _runs_in_every_iteration(point, loop, anchor):
                return True
    return False


def _is_inside(scope: Path, position: Position) -> bool:
    return position[: len(scope)] == position_of(scope)


def _is_passed(point: SyncPoint, before: Path | None, after: Path | None, depth: int) -> bool:
    """Whether the sync surely runs where control goes past it, after `before` or on to `after`.

    Every scope around it below `depth` holds one of the two, or is a loop that runs at least
    once, or a branch taken in an iteration that control passes: of a loop around neither any, of
    one around `after` the first, of one around `before` the last.
    """
    anchors = [a for a in (before, after) if a is not None]
    taken: dict[Path, list[bool]] = {}
    for s in point.scopes:
        if len(s.path) <= depth or any(contains(s.path, a) for a in anchors):
            continue
        if isinstance(s, LoopScope):
            if not s.min_trips:
                return False
            continue
        if isinstance(s, RoleScope):
            return False
        loop = _steering_loop(s, point, depth)
        if loop is None:
            return False
        now = [_is_taken(s, loop, i) for i in range(loop.trips or 0)]
        sofar = taken.get(loop.path, now)
        taken[loop.path] = [x and y for x, y in zip(now, sofar, strict=True)]
    return all(_is_taken_in_passing(path, values, before, after) for path, values in taken.items())


def _steering_loop(branch: BranchScope, point: SyncPoint, depth: int) -> LoopScope | None:
    """The loop below `depth` whose iteration alone decides the branch; short enough to try all."""
    found = variables(branch.node.condition)
    for s in point.scopes:
        if isinstance(s, LoopScope) and len(s.path) > depth and found == (s.node.var,):
            return s if s.trips is not None and s.trips <= _MAX_TRIED else None
    return None


def _is_taken(branch: BranchScope, loop: LoopScope, iteration: int) -> bool:
    condition = substitute_condition(branch.node.condition, {loop.node.var: iteration})
    return prove(condition) is branch.taken


def _is_taken_in_passing(
    loop: Path, values: list[bool], before: Path | None, after: Path | None
) -> bool:
    holds_before = before is not None and contains(loop, before)
    holds_after = after is not None and contains(loop, after)
    if holds_before and holds_after:
        return False
    if holds_before or holds_after:
        return values[-1 if holds_before else 0]
    return any(values)


def _runs_in_every_iteration(point: SyncPoint, loop: Path, anchor: Path) -> bool:
    """Whether an iteration of `loop`, in which `anchor` runs at some time, runs the sync."""
    inner = [s for s in point.scopes if contains(loop, s.path)]
    moving = {s.node.var for s in inner if isinstance(s, LoopScope)}
    for s in inner:
        if s.path == loop:
            continue
        if isinstance(s, LoopScope):
            is_steady = contains(s.path, anchor) and not moving & set(variables(s.node.extent))
            if not s.min_trips and not is_steady:
                return False
        elif not contains(s.path, anchor):
            return False
        if isinstance(s, BranchScope) and moving & set(variables(s.node.condition)):
            return False
    return True


def ordered_by(kernel: Kernel, found: Iterable[Hazard]) -> dict[int, tuple[Hazard, ...]]:
    """For each sync id the hazards that it orders, for other parts of a barrier those of its
    wait."""
    points = sync_points(kernel)
    listed = tuple(found)
    out = {sync_id(s): tuple(h for h in listed if orders(p, h)) for s, p in points}
    parts = [(arrive, wait) for arrive, wait in cluster_barriers(kernel)]
    parts += [(s, b.wait) for b in split_barriers(kernel) for s in b.statements]
    return out | {part.id: out[wait.id] for part, wait in parts}


def tightest(found: Iterable[Hazard]) -> tuple[Hazard, ...]:
    """The hazards without those that others imply: where a hazard of one iteration begins and ends
    between the two accesses of another one, in the same body, whatever orders the one for all
    threads that have to wait orders the other.

    example:  s[t] = a;  s[t+9] = b;  c = s[t+1];  d = s[t+2]   ->   of four pairs the inner one
    """
    listed = tuple(found)
    runs: dict[tuple[Path, bool], list[Hazard]] = {}
    for h in listed:
        if _is_straight(h):
            runs.setdefault((h.before[:-1], h.kind in RELAXED_KINDS), []).append(h)
    implied: set[Hazard] = set()
    for run in runs.values():
        run.sort(key=lambda h: (h.after, tuple(-i for i in h.before), -_WIDTHS[h.scope]))
        latest: dict[SyncScope, Path] = dict.fromkeys(SyncScope, ())
        for h in run:
            if h.before <= max(latest[s] for s in SyncScope if s.covers(h.scope)):
                implied.add(h)
            latest[h.scope] = max(latest[h.scope], h.before)
    return tuple(h for h in listed if h not in implied)


def _is_straight(h: Hazard) -> bool:
    """Whether both accesses are made once each, in one body."""
    is_once = h.carried is None and not (h.more_before or h.more_after or h.is_simultaneous)
    return is_once and h.before[:-1] == h.after[:-1]


def unordered_by(points: Iterable[SyncPoint], found: Iterable[Hazard]) -> tuple[Hazard, ...]:
    """The tightest hazards that none of the syncs orders. What orders one often orders the next,
    too, and is asked first."""
    listed = list(points)
    left: list[Hazard] = []
    for h in tightest(found):
        k = next((k for k, p in enumerate(listed) if orders(p, h)), None)
        if k is None:
            left.append(h)
        elif k:
            listed.insert(0, listed.pop(k))
    return tuple(left)
