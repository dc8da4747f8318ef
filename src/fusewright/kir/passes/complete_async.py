"""End groups of asynchronous operations, and wait for them before anything depends on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from fusewright.errors import InternalError, UnsupportedError
from fusewright.kir.analysis.accesses import find
from fusewright.kir.analysis.async_run import AsyncRun, Gap
from fusewright.kir.analysis.completion import Completions, has_operations, with_planned
from fusewright.kir.analysis.meetings import NEVER, Meeting, meetings
from fusewright.kir.analysis.sites import KEPT, BranchScope, Path, StatementSite, contains
from fusewright.kir.analysis.times import UNIT
from fusewright.kir.analysis.unfinished import incomplete
from fusewright.kir.analysis.uniformity import is_block_uniform
from fusewright.kir.insertion import insert, next_sync_id
from fusewright.kir.ir import (
    Alloc,
    AsyncCommit,
    AsyncKind,
    AsyncWait,
    Body,
    For,
    If,
    Kernel,
    MbarExpect,
    MmaFence,
    Role,
    Roles,
    Statement,
    SyncStatement,
)
from fusewright.target import Target

MAX_KEEP = 8
"""Groups of one thread that a wait may leave under way: rings are short."""


def complete_async(kernel: Kernel, target: Target) -> Kernel:
    """End the groups of operations behind the last of each, and wait for them before the first
    statement that depends on them, for as many as it needs.

    rewrite:  s[t] <- x[t];  b = s[t]   ->   s[t] <- x[t];  AsyncCommit;  AsyncWait;  b = s[t]
              for k { D += A * B };  use D   ->   for k { MmaFence;  D += A * B };  AsyncCommit;
                                                  AsyncWait;  use D
    checks:   bulk loads have an mbarrier that is waited for in time, else UnsupportedError
    order:    after expand_reductions, before place_syncs: what a thread waited for it still has to
              hand on to others; prune_syncs keeps more groups under way where it may
    """
    if not has_operations(kernel):
        return kernel
    found = find(kernel)
    run = found.completions.run
    assert run is not None
    listed = meetings(kernel)
    work = _Work(kernel, run, listed)
    work.check_phases(found.completions)
    work.commit(found.completions)
    work.wait(found.completions)
    return insert(kernel, work.added) if work.added else kernel


_Keeps: TypeAlias = dict[tuple[Gap, AsyncKind, bool], tuple[int, Meeting]]
"""Waits to add, by place, kind, and whether they are for reads alone: how many groups each may
leave under way, and what it is for."""


@dataclass(slots=True, eq=False)
class _Work:
    """The syncs to add, gap by gap."""

    kernel: Kernel
    run: AsyncRun
    listed: Sequence[Meeting]
    added: dict[Gap, list[Statement]] = field(default_factory=dict[Gap, list[Statement]])
    _commits: dict[Gap, list[SyncStatement]] = field(default_factory=dict[Gap, list[SyncStatement]])
    _number: int = 0

    def __post_init__(self) -> None:
        self._number = next_sync_id(self.kernel)

    def _id(self) -> int:
        self._number += 1
        return self._number - 1

    def check_phases(self, done: Completions) -> None:
        """What no wait for groups completes: bulk loads, and operations that another role meets
        without any order."""
        roles = [m for m in self.listed if m.completes.kind is None or m.agent != m.issue.agent]
        for m in incomplete(roles, done):
            end = "the end" if m.meets is None else _dotted(m.meets.path)
            if m.completes.kind is None:
                raise UnsupportedError(
                    f"{self.kernel.name}: no wait on its mbarrier completes the {_what(m)} before "
                    f"{end}; a bulk load takes mbar_init, mbar_expect and mbar_wait, with phases "
                    "that follow from loops of known extent"
                )
            if m.meets is not None and m.agent != m.issue.agent and None not in (
                m.agent, m.issue.agent
            ):  # fmt: skip
                raise UnsupportedError(
                    f"{self.kernel.name}: no barrier stands between the {_what(m)} and {end}, "
                    "which another role runs; let one arrive where the other waits"
                )

    # --- groups -----------------------------------------------------------------------------------

    def commit(self, done: Completions) -> None:
        """One commit behind the last operation of each group that has none, and one fence before
        products that follow each other."""
        open_: dict[StatementSite, list[Meeting]] = {}
        for m in incomplete(self.listed, done):
            if m.completes.kind is not None:
                open_.setdefault(m.site, []).append(m)
        loose: list[_Operation] = []
        for site, met in open_.items():
            if any(self._has_no_commit(m, done) for m in met):
                kind = site.statement.group()
                assert kind is not None
                loose.append(_operation(site, kind, met, self.kernel))
        for group in _groups(loose, self.kernel):
            o = group[-1]
            gap = o.body, o.index + 1
            what = _dotted(group[0].site.path)
            sync = AsyncCommit(self._id(), f"group of {o.kind.value} from {what}", o.kind)
            self._commits.setdefault(gap, []).append(sync)
        for gap, commits in self._commits.items():
            self.added.setdefault(gap, []).extend(commits)
        self._fence()

    def _has_no_commit(self, m: Meeting, done: Completions) -> bool:
        kind = m.completes.kind
        assert kind is not None
        time = self._time(m, place_of(m, self.kernel))
        return not done.commits_between(kind, m.issue, time, m.branches)

    def _fence(self) -> None:
        """A fence before each row of products that follow each other."""
        loops = {loop.path for site in self.run.places for loop in site.loops}
        for path, body in _all_bodies(self.kernel).items():
            if path in loops and _is_all(AsyncKind.MMA, body):
                continue
            before: Statement | None = None
            for i, s in enumerate(body):
                if isinstance(s, Alloc):
                    continue
                is_product = _is_all(AsyncKind.MMA, (s,))
                follows = before is not None and (
                    isinstance(before, MmaFence) or _is_all(AsyncKind.MMA, (before,))
                )
                if is_product and not follows:
                    why = f"registers of products from {_dotted((*path, i))}"
                    self.added.setdefault((path, i), []).append(MmaFence(self._id(), why))
                before = s

    # --- waits ------------------------------------------------------------------------------------

    def wait(self, base: Completions) -> None:
        """Waits before what meets an operation first, each for as few groups as it may."""
        keeps: _Keeps = {}
        done = with_planned(base, self._with(keeps))
        listed = list(incomplete(self.listed, done))
        while listed:  # what is complete stays so with further waits
            self._end(listed[0], keeps, done)
            done = with_planned(base, self._with(keeps))
            listed = list(incomplete(listed, done))
        for gap, syncs in self._waits(keeps).items():
            self.added.setdefault(gap, []).extend(syncs)

    def _end(self, m: Meeting, keeps: _Keeps, done: Completions) -> None:
        """Add the wait for one operation, or let one that is planned leave fewer groups."""
        kind, reads = m.completes.kind, m.completes.is_read
        assert kind is not None
        gap = place_of(m, self.kernel)
        keep = done.commits_between(kind, m.issue, self._time(m, gap), m.branches) - 1
        key = gap, kind, reads
        if keep < 0 or (key in keeps and keeps[key][0] <= keep):
            raise InternalError(
                f"{self.kernel.name}: no wait completes the {_what(m)} before "
                f"{'the end' if m.meets is None else _dotted(m.meets.path)}"
            )
        first = keeps[key][1] if key in keeps else m
        keeps[key] = min(keep, MAX_KEEP - 1), first

    def _with(self, keeps: _Keeps) -> dict[Gap, list[SyncStatement]]:
        out = {gap: list(syncs) for gap, syncs in self._commits.items()}
        for gap, syncs in self._waits(keeps).items():
            out.setdefault(gap, []).extend(syncs)
        return out

    def _waits(self, keeps: _Keeps) -> dict[Gap, list[SyncStatement]]:
        out: dict[Gap, list[SyncStatement]] = {}
        number = self._number
        for (gap, kind, reads), (keep, m) in keeps.items():
            whole = keeps.get((gap, kind, False))
            if reads and whole is not None and whole[0] <= keep:
                continue
            why = f"{_what(m)} before {'exit' if m.meets is None else _dotted(m.meets.path)}"
            out.setdefault(gap, []).append(AsyncWait(number, why, kind, keep, reads))
            number += 1
        return out

    def _time(self, m: Meeting, gap: Gap) -> int:
        """When control is at the place of a meeting, behind what is planned there."""
        if m.meets is None:
            return NEVER
        loops = [x.path for x in m.meets.loops if contains(x.path, gap[0])]
        return self.run.line.gap(*gap, loops, m.coords[: len(loops)]) + UNIT // 8


def place_of(m: Meeting, kernel: Kernel) -> Gap:
    """Before the second statement, in the deepest body that holds both and passes on from one to
    the other; at the end of the role or the kernel where there is no second one. What announces the
    bytes of a copy belongs to it: one barrier is to order both."""
    body, index = _before(m, kernel)
    statements = _all_bodies(kernel)[body]
    while index and isinstance(statements[index - 1], MbarExpect):
        index -= 1
    return body, index


def _before(m: Meeting, kernel: Kernel) -> Gap:
    first, second = m.site, m.meets
    if second is None:
        role = first.role
        return ((), len(kernel.body)) if role is None else (role.path, len(role.node.body))
    for depth, (x, y) in enumerate(zip(first.loops, second.loops, strict=False)):
        if x.path != y.path:
            break
        if m.issue.coords[depth] != m.coords[depth]:
            around = _same_branches(m, x.path, kernel)
            return around, second.path[len(around)]
    body: Path = ()
    for a, b in zip(first.scopes, second.scopes, strict=False):
        if a.path != b.path:
            break
        body = a.path
    if first.path[len(body)] == second.path[len(body)] and first.path != second.path:
        raise UnsupportedError(
            f"the {_what(m)} is to be complete before {_dotted(second.path)}, which other threads "
            "run in the other branch; put a statement's end between them"
        )
    return body, second.path[len(body)]


def _same_branches(m: Meeting, loop: Path, kernel: Kernel) -> Path:
    """The body of a loop, or the branch in it in which both statements stand, whichever iteration
    they run in, where all threads of a block take it."""
    assert m.meets is not None
    around = loop
    for a, b in zip(m.site.scopes, m.meets.scopes, strict=False):
        if len(a.path) <= len(loop):
            continue
        if a.path != b.path or not isinstance(a, BranchScope):
            break
        if not is_block_uniform(a.node.condition, kernel):
            break
        around = a.path
    return around


# --- groups ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Operation:
    """A statement whose operations need a commit: at the latest at the end of statement `index` of
    the body at `body`; `gaps` are the places where it is met first."""

    site: StatementSite
    kind: AsyncKind
    body: Path
    index: int
    gaps: tuple[Gap, ...]


def _operation(
    site: StatementSite, kind: AsyncKind, met: Sequence[Meeting], kernel: Kernel
) -> _Operation:
    alike: dict[object, Meeting] = {}
    for m in met:
        depth = 0
        for x, y in zip(m.issue.coords, m.coords, strict=False):
            if x != y:
                break
            depth += 1
        alike.setdefault((m.meets, depth), m)
    places = [place_of(m, kernel) for m in alike.values()]
    body = max((*(body for body, _ in places), _loop_of_batches(site, kind, kernel)), key=len)
    return _Operation(site, kind, body, site.path[len(body)], tuple(dict.fromkeys(places)))


def _loop_of_batches(site: StatementSite, kind: AsyncKind, kernel: Kernel) -> Path:
    """The innermost loop around a product that does not consist of products: its batches end in
    it, where the compiler looks for them, whether or not anybody waits there."""
    loops = [x.path for x in site.loops if not _is_all(kind, _all_bodies(kernel)[x.path])]
    return loops[-1] if kind is AsyncKind.MMA and loops else ()


def _groups(found: Sequence[_Operation], kernel: Kernel) -> Iterator[list[_Operation]]:
    """Operations that one commit ends: neighbours, and those that are met at the same places."""
    bodies: dict[tuple[Path, AsyncKind], list[_Operation]] = {}
    for o in found:
        bodies.setdefault((o.body, o.kind), []).append(o)
    for (path, _), mine in bodies.items():
        mine.sort(key=lambda o: o.site.path)
        body = _all_bodies(kernel)[path]
        group: list[_Operation] = []
        for o in mine:
            if group and not _belongs(o, group, body):
                yield group
                group = []
            group.append(o)
        yield group


def _belongs(o: _Operation, group: Sequence[_Operation], body: Body) -> bool:
    last = group[-1]
    if last.index == o.index:
        return True
    depth = len(o.body)
    for x in group:
        for at, index in x.gaps:
            place = (*at, index)
            is_inside = len(place) > depth and place[:depth] == o.body
            if is_inside and x.index < place[depth] <= o.index:
                return False
    between = body[last.index + 1 : o.index]
    return _is_all(o.kind, between) or o.gaps == last.gaps


def _is_all(kind: AsyncKind, body: Body) -> bool:
    """Whether a body consists of operations of a kind."""
    for s in body:
        match s:
            case For():
                if not _is_all(kind, s.body):
                    return False
            case Alloc():
                pass
            case _ if s.group() is not kind:
                return False
            case _:
                pass
    return True


@lru_cache(maxsize=KEPT)
def _all_bodies(kernel: Kernel) -> dict[Path, Body]:
    return dict(_bodies(kernel.body, ()))


def _bodies(body: Body, path: Path) -> Iterator[tuple[Path, Body]]:
    yield path, body
    for i, s in enumerate(body):
        match s:
            case For():
                yield from _bodies(s.body, (*path, i))
            case If():
                yield from _bodies(s.then, (*path, i, 0))
                yield from _bodies(s.otherwise, (*path, i, 1))
            case Roles():
                for number, role in enumerate(s.body):
                    assert isinstance(role, Role)
                    yield from _bodies(role.body, (*path, i, number))
            case _:
                pass


def _what(m: Meeting) -> str:
    verb = "copy to" if m.writes else "reads of"
    if m.completes.kind is AsyncKind.MMA and m.writes:
        verb = "product in"
    return f"{verb} {m.buffer} {_dotted(m.site.path)}"


def _dotted(path: Path) -> str:
    return f"L{'.'.join(map(str, path))}"
