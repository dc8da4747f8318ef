"""Put barriers where hazards need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from fusewright.kir.ir import (
    Body,
    For,
    If,
    Kernel,
    Role,
    Roles,
)
from fusewright.kir.passes.split_branches import join_branches, split_branches
from fusewright.kir.sync_placement import Placement, insert_syncs
from fusewright.target import Target


def place_syncs(kernel: Kernel, target: Target) -> Kernel:
    """Put the fewest barriers that order every cross-thread hazard.

    rewrite:  s[t] = a;  b = s[t+1]   ->   s[t] = a;  BlockSync;  b = s[t+1]
    checks:   blocks hand over in turns and gatherings only, else UnsupportedError; every sync site
              is uniform over its participants, branches are split where not; in a role its own
              warps meet at a named barrier, and a free one is left, else InternalError
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
    if all(h.kind not in RELAXED_KINDS for h in mine):
        return point
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
