"""The static pair check of a finished kernel: no two accesses that conflict are left unordered.

Placing, packing and pruning decide on hazards; here the kernel they leave is looked at once more,
as it will be spelled. Threads that collide within one statement are not judged: no sync orders
them, and a program may store one value from several threads.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusewright.kir.analysis.fences import unfenced
from fusewright.kir.analysis.hazards import unordered
from fusewright.kir.analysis.role_conflicts import unguarded
from fusewright.kir.analysis.sites import Path, sites
from fusewright.kir.analysis.unfinished import unfinished
from fusewright.kir.checks import Check, KernelFacts, Problem
from fusewright.kir.ir import Statement


def _ordered(facts: KernelFacts) -> Iterator[Problem]:
    k = facts.kernel
    at: dict[Path, Statement] = {s.path: s.statement for s in sites(k)}
    for h in unordered(k):
        if not h.is_simultaneous:
            yield at.get(h.after), f"no sync orders {h}; run place_syncs behind what moved them"
    for u in unfinished(k):
        m = u.meeting
        meets = "the kernel ends" if m.meets is None else f"L{_dots(m.meets.path)} runs"
        where = f"L{_dots(m.site.path)}"
        yield m.site.statement, f"the operation of {where} may not be complete when {meets}"
    for h in unfenced(k):
        yield at.get(h.after), f"no proxy fence makes {h} visible to the async proxy"


def _guarded(facts: KernelFacts) -> Iterator[Problem]:
    for pair in unguarded(facts.kernel):
        a, b = pair.first, pair.second
        verbs = ["writes" if x.writes else "reads" for x in (a, b)]
        yield (
            b.site.statement,
            (
                f"one role {verbs[0]} {a.buffer} at L{_dots(a.site.path)} and another {verbs[1]} "
                f"{b.buffer} at L{_dots(b.site.path)}, the same bytes, and neither arrives at a "
                "barrier behind its access at which the other waits before; hand them over by "
                "an mbarrier or a named barrier"
            ),
        )


def _dots(path: Path) -> str:
    return ".".join(map(str, path))


ORDER_CHECKS: tuple[Check, ...] = (
    Check("order", "final", _ordered),
    Check("hand-overs of roles", "final", _guarded),
)
