"""Wait for asynchronous copies before anything depends on them."""

from __future__ import annotations

from fusewright.errors import UnsupportedError
from fusewright.kir.analysis.sites import Path
from fusewright.kir.analysis.unfinished import Unfinished, unfinished
from fusewright.kir.ir import AsyncCommit, AsyncKind, AsyncWait, Kernel, Statement
from fusewright.kir.passes.place_syncs import insert, next_sync_id
from fusewright.target import Target

MAX_KEEP = 8
"""Groups of one thread that a wait may leave under way: rings are short."""


def complete_async(kernel: Kernel, target: Target) -> Kernel:
    """End and wait for the groups of copies, as late as their data allow.

    rewrite:  s[t] <- x[t];  b = s[t]   ->   s[t] <- x[t];  AsyncCommit;  AsyncWait;  b = s[t]
    checks:   bulk loads have an mbarrier that is waited for in time, else UnsupportedError
    order:    after expand_reductions, before place_syncs: what a thread waited for it still has to
              hand on to others; prune_syncs keeps more groups under way where it may
    """
    while True:
        found = unfinished(kernel)
        if not found:
            return kernel
        kernel = _with_wait(kernel, found[0])


def _with_wait(kernel: Kernel, u: Unfinished) -> Kernel:
    """The kernel with a wait for one meeting, which leaves as many later groups as it may."""
    best = _waiting(kernel, u, 0)
    if _pair(u) in _pairs(best):
        return best
    for keep in range(1, MAX_KEEP):
        more = _waiting(kernel, u, keep)
        if _pair(u) in _pairs(more):
            break
        best = more
    return best


def _pair(u: Unfinished) -> tuple[Statement, Statement | None]:
    return u.access.site.statement, None if u.meets is None else u.meets.site.statement


def _pairs(kernel: Kernel) -> frozenset[tuple[Statement, Statement | None]]:
    return frozenset(_pair(u) for u in unfinished(kernel))


def _waiting(kernel: Kernel, u: Unfinished, keep: int) -> Kernel:
    """The commit stands behind the operation where a loop carries the meeting, so that it serves
    the last iteration too, else with the wait, so that it serves other operations too."""
    path, index, is_carried = _place(kernel, u)
    number = next_sync_id(kernel)
    kind, reads_only = _kind(u, kernel)
    why = f"{_what(u)} before {'exit' if u.meets is None else _where(u.meets.site.path)}"
    added: dict[tuple[Path, int], list[Statement]] = {}
    if not u.is_committed:
        at = u.access.site.path[len(path)] + 1 if is_carried else index
        added[path, at] = [AsyncCommit(number, why, kind)]
        number += 1
    added.setdefault((path, index), []).append(AsyncWait(number, why, kind, keep, reads_only))
    return insert(kernel, added)


def _kind(u: Unfinished, kernel: Kernel) -> tuple[AsyncKind, bool]:
    completes = u.access.use.completes
    if completes.kind is not None:
        return completes.kind, completes.is_read
    end = "the end" if u.meets is None else _where(u.meets.site.path)
    raise UnsupportedError(
        f"{kernel.name}: no wait on its mbarrier completes the {_what(u)} before {end}; a bulk "
        "load takes mbar_init, mbar_expect and mbar_wait, with phases that follow from loops of "
        "known extent"
    )


def _place(kernel: Kernel, u: Unfinished) -> tuple[Path, int, bool]:
    """Before the second access, in the deepest body that holds both and passes on from one to the
    other, and whether it is a loop that does; at the end of the role or the kernel where there is
    no second access."""
    first = u.access.site
    if u.meets is None:
        role = first.role
        if role is None:
            return (), len(kernel.body), False
        return role.path, len(role.node.body), False
    second = u.meets.site
    for depth, (x, y) in enumerate(zip(first.loops, second.loops, strict=False)):
        if x.path != y.path:
            break
        if u.issue.coords[depth] != u.coords[depth]:
            return x.path, second.path[len(x.path)], True
    body: Path = ()
    for a, b in zip(first.scopes, second.scopes, strict=False):
        if a.path != b.path:
            break
        body = a.path
    if first.path[len(body)] == second.path[len(body)]:
        raise UnsupportedError(
            f"the {_what(u)} is to be complete before {_where(second.path)}, which other threads "
            "run in the other branch; put a statement's end between them"
        )
    return body, second.path[len(body)], False


def _what(u: Unfinished) -> str:
    verb = "copy to" if u.access.writes else "reads of"
    return f"{verb} {u.access.buffer} L{'.'.join(map(str, u.access.site.path))}"


def _where(path: Path) -> str:
    return f"L{'.'.join(map(str, path))}"
