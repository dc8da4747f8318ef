"""Remove syncs that order nothing, and weaken those that order less than they could."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeAlias

from fusewright.core.node import Node, rewrite
from fusewright.kir.analysis.accesses import find
from fusewright.kir.analysis.completion import changed_groups, has_operations
from fusewright.kir.analysis.fences import (
    Fence,
    fences_of,
    handed_on,
    is_covered,
    proxy_hazards,
    unfenced,
)
from fusewright.kir.analysis.hazards import hazards, unordered
from fusewright.kir.analysis.meetings import Meeting, meetings
from fusewright.kir.analysis.order import (
    Hazard,
    SyncPoint,
    SyncScope,
    orders,
    sync_id,
    sync_points,
    tightest,
)
from fusewright.kir.analysis.ring_order import ordered_by_rings
from fusewright.kir.analysis.role_conflicts import handing_roles
from fusewright.kir.analysis.sites import StatementSite, sites
from fusewright.kir.analysis.split_barriers import replace_split_barriers, split_barriers
from fusewright.kir.analysis.unfinished import open_meetings, unfinished
from fusewright.kir.clusters import cluster_barriers
from fusewright.kir.ir import (
    AsyncCommit,
    AsyncKind,
    AsyncWait,
    Kernel,
    ProxyFence,
    SyncStatement,
    WarpSync,
)
from fusewright.kir.passes.complete_async import MAX_KEEP
from fusewright.target import Target


def prune_syncs(kernel: Kernel, target: Target) -> Kernel:
    """Remove, in program order, every sync without which all hazards stay ordered; then make
    block-wide syncs that order lanes of single warps only warp-wide, and let waits leave as many
    groups under way as they may.

    rewrite:  BlockSync;  s[t] = a;  b = s[t]   ->   s[t] = a;  b = s[t]
    checks:   none; what is unordered stays for the static pair check to report
    order:    after pack_shared and place_fences, whose addresses create hazards
    """
    if has_operations(kernel):
        return _prune_by_trial(kernel)
    points = {sync_id(site): point for site, point in sync_points(kernel)}
    if not points:
        return kernel
    found = tightest(hazards(kernel))
    listed = {h: {n for n, p in points.items() if orders(p, h)} for h in found}
    keepers = {h: by for h, by in listed.items() if by}
    kept = _without_redundant(points, keepers)
    warps = _weakened(kept, keepers)
    narrower = [b for b in split_barriers(kernel) if b.wait.id not in kept or b.wait.id in warps]
    if narrower:
        instead = {b.wait: WarpSync(b.wait.id, b.wait.why) for b in narrower if b.wait.id in warps}
        return prune_syncs(replace_split_barriers(kernel, narrower, instead), target)

    waits = {arrive.id: wait.id for arrive, wait in cluster_barriers(kernel)}

    def edit(node: Node) -> Node | tuple[Node, ...]:
        if not isinstance(node, SyncStatement):
            return node
        number = waits.get(node.id, node.id)
        if number not in points:
            return node
        if number not in kept:
            return ()
        return WarpSync(node.id, node.why) if node.id in warps else node

    return rewrite(kernel, edit) if warps or len(kept) < len(points) else kernel


_Keepers: TypeAlias = dict[Hazard, set[int]]
"""By hazard the ids of the syncs that order it."""


def _without_redundant(points: dict[int, SyncPoint], keepers: _Keepers) -> dict[int, SyncPoint]:
    """The syncs that are left when each, in program order, goes if the rest suffice; those that go
    are taken from `keepers`."""
    kept = dict(points)
    for number in points:
        if all(len(by) > 1 for by in keepers.values() if number in by):
            del kept[number]
            for by in keepers.values():
                by.discard(number)
    return kept


def _weakened(kept: dict[int, SyncPoint], keepers: _Keepers) -> frozenset[int]:
    """The block-wide syncs that may become warp-wide: what only they order stays in warps."""
    out: set[int] = set()
    for number, point in kept.items():
        if point.scope is not SyncScope.BLOCK:
            continue
        here = replace(point, scope=SyncScope.WARP, since=point.position)
        if all(orders(here, h) for h, by in keepers.items() if by == {number}):
            out.add(number)
            for h, by in keepers.items():
                by.discard(number)
                if orders(here, h):
                    by.add(number)
    return frozenset(out)


# --- kernels with asynchronous operations --------------------------------------------------------


def faults(kernel: Kernel) -> int:
    """How many pairs of accesses the static analyses find out of order: between threads, between
    a thread and its own asynchronous operations, and between proxies."""
    loose = [h for h in unordered(kernel) if not h.is_simultaneous]
    return len(loose) + len(unfinished(kernel)) + len(unfenced(kernel))


def _prune_by_trial(kernel: Kernel) -> Kernel:
    """A wait, a commit and a barrier rely on each other, so each change is judged on the kernel
    that it leaves. The two statements of a cluster barrier stay, and in roles the barriers behind
    which threads hand on to other roles what they did to memory."""
    given, nsplit = kernel, len(split_barriers(kernel))
    trials, allowed = _Trials(kernel), None
    for statement in _prunable(kernel):
        now = statement
        for number, new in enumerate((None, *_weaker(statement))):
            if not trials.allows(now, new):
                if number:
                    break
                continue
            changed = _replaced(trials.kernel, now, () if new is None else new)
            if isinstance(now, AsyncCommit | AsyncWait):
                if allowed is None:
                    allowed = faults(given)
                if faults(changed) > allowed:
                    if number:
                        break
                    continue
                trials = _Trials(changed)
            else:
                trials.accept(now, new, changed)
            if new is None:
                break
            now = new
    kernel = trials.kernel
    if len(split_barriers(kernel)) < nsplit:
        return _prune_by_trial(kernel)  # nobody waits for that mbarrier's start any more
    return kernel


_Ways: TypeAlias = Mapping[Hazard, Sequence[Hazard]]
"""By write before an access of the async proxy the ways to where its thread fences."""


class _Trials:
    """Judges changes of single syncs. Which accesses conflict, and which iterations meet what is
    under way, does not depend on barriers and fences, so that it is found once; changes of waits
    are refused by what they leave open, and looked at anew only when that is nothing more."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = self._given = kernel
        self._done = find(kernel).completions
        self._listed: dict[AsyncKind, list[Meeting]] = {kind: [] for kind in AsyncKind}
        for m in meetings(kernel):
            if m.completes.kind is not None:
                self._listed[m.completes.kind].append(m)
        self._nopen = {
            kind: sum(1 for _ in open_meetings(listed, self._done))
            for kind, listed in self._listed.items()
        }
        self._syncs = [(site, p) for site, p in sync_points(kernel)]
        self._fences = {f.statement: f for f in fences_of(kernel)}
        self._proxies = proxy_hazards(kernel)
        self._known_ways: dict[tuple[int, ...], tuple[Sequence[SyncPoint], _Ways]] = {}
        self._nbare = self._bare(self._syncs, list(self._fences.values()))
        self._keepers = {
            h: {sync_id(site) for site, p in self._syncs if orders(p, h)}
            for h in tightest(hazards(kernel))
        }

    def allows(self, old: SyncStatement, new: SyncStatement | None) -> bool:
        """Whether a sync may be another, or none; of one about groups, whether it may be at all."""
        match old:
            case AsyncCommit() | AsyncWait():
                done = changed_groups(self._done, old.kind, {old: new})
                left = open_meetings(self._listed[old.kind], done)
                more = islice(left, self._nopen[old.kind], None)
                return next(more, None) is None
            case ProxyFence():
                fences = [f for s, f in self._fences.items() if s is not old]
                return self._bare(self._syncs, fences) <= self._nbare
            case _:
                point = self._point(old, new)
                alone = (h for h, by in self._keepers.items() if by == {old.id})
                left = [h for h in alone if point is None or not orders(point, h)]
                if not ordered_by_rings(self._given, left):
                    return False
                return self._bare(self._with(old, point), self._fences.values()) <= self._nbare

    def accept(self, old: SyncStatement, new: SyncStatement | None, kernel: Kernel) -> None:
        """Make a change that is allowed."""
        self.kernel = kernel
        if isinstance(old, ProxyFence):
            del self._fences[old]
            return
        point = self._point(old, new)
        self._syncs = self._with(old, point)
        for h, by in self._keepers.items():
            by.discard(old.id)
            if point is not None and orders(point, h):
                by.add(old.id)

    def _point(self, old: SyncStatement, new: SyncStatement | None) -> SyncPoint | None:
        """What is left of a barrier."""
        if new is None:
            return None
        point = next(p for site, p in self._syncs if sync_id(site) == old.id)
        return replace(point, scope=SyncScope.WARP, since=point.position)

    def _with(
        self, old: SyncStatement, point: SyncPoint | None
    ) -> list[tuple[StatementSite, SyncPoint]]:
        out: list[tuple[StatementSite, SyncPoint]] = []
        for site, p in self._syncs:
            if sync_id(site) != old.id:
                out.append((site, p))
            elif point is not None:
                out.append((site, point))
        return out

    def _bare(
        self, syncs: Sequence[tuple[StatementSite, SyncPoint]], fences: Iterable[Fence]
    ) -> int:
        """How many writes by threads no fence covers."""
        listed, ways = list(fences), self._ways([p for _, p in syncs])
        return sum(not is_covered(h, ways[h], listed) for h in self._proxies)

    def _ways(self, points: Sequence[SyncPoint]) -> _Ways:
        """By write the ways to where its thread fences at the latest."""
        key = tuple([id(p) for p in points])
        if key not in self._known_ways:  # points are kept, so that no other ones get their numbers
            ways = {h: tuple(handed_on(h, points)) for h in self._proxies}
            self._known_ways[key] = points, ways
        return self._known_ways[key][1]


def _prunable(kernel: Kernel) -> list[SyncStatement]:
    """The syncs that may go, in program order: those that hand bytes to other threads of a block,
    and those about groups of operations."""
    points = {sync_id(site) for site, p in sync_points(kernel) if p.scope is not SyncScope.CLUSTER}
    kept = handing_roles(kernel)
    out: list[SyncStatement] = []
    for site in sites(kernel):
        s, role = site.statement, site.role
        if not isinstance(s, SyncStatement):
            continue
        is_barrier = s.id in points and (role is None or role.path not in kept)
        if is_barrier or isinstance(s, AsyncCommit | AsyncWait | ProxyFence):
            out.append(s)
    return out


def _weaker(s: SyncStatement) -> Iterator[SyncStatement]:
    """The same sync demanding less, step by step."""
    match s:
        case AsyncWait():
            if s.kind.waits_for_reads and not s.reads_only:
                s = replace(s, reads_only=True)
                yield s
            for keep in range(s.keep + 1, MAX_KEEP):
                yield replace(s, keep=keep)
        case WarpSync() | AsyncCommit() | ProxyFence():
            return
        case _:
            yield WarpSync(s.id, s.why)


def _replaced(kernel: Kernel, old: SyncStatement, new: SyncStatement | tuple[()]) -> Kernel:
    """The kernel with a sync replaced or left out, of a split barrier all that belongs to it."""
    for b in split_barriers(kernel):
        if b.wait is old:
            return replace_split_barriers(kernel, [b], {b.wait: new} if new else None)
    return rewrite(kernel, lambda node: new if node is old else node)
