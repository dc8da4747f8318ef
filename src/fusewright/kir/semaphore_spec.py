"""What kernels must satisfy so that blocks may wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

from fusewright.kir.analysis.gatherings import gathering_problems
from fusewright.kir.analysis.sites import sites
from fusewright.kir.analysis.turns import turn_problems, turns_of
from fusewright.kir.checks import Check, KernelFacts, Problem
from fusewright.kir.semaphores import SEMAPHORE_STATEMENTS


def _semaphores(facts: KernelFacts) -> Iterator[Problem]:
    k = facts.kernel
    kinds = (("semaphore", k.semaphores), ("sum", k.zeroed), ("scratch", k.scratch))
    for name, listed in kinds:
        for b in listed:
            if b not in k.params:
                yield None, f"the {name} {b} is no parameter of the kernel"
            if b in k.stored_once:
                yield None, f"the {name} {b} is to be stored once; blocks write it in turns"
    for b in k.stored_in_turns:
        if b not in k.params or b in (*k.stored_once, *k.state, *k.scratch):
            yield None, f"{b}, which is to be stored in turns, is no result, or is stored once, too"
    for place in facts.acting:
        s = place.statement
        if isinstance(s, SEMAPHORE_STATEMENTS):
            continue
        for use in s.memory_uses():
            if use.buffer in k.semaphores:
                yield s, f"{use.buffer} holds semaphores; only statements of semaphores touch it"


def _results(facts: KernelFacts) -> Iterator[Problem]:
    """Blocks touch a result that is stored in turns in their turn alone."""
    k = facts.kernel
    if not k.stored_in_turns:
        return
    turns = turns_of(k)
    for site in sites(k):
        s = site.statement
        if s.is_private or isinstance(s, SEMAPHORE_STATEMENTS):
            continue
        for b in dict.fromkeys(u.buffer for u in s.memory_uses() if u.buffer in k.stored_in_turns):
            if not any(t.taken.guarded is b and t.spans(site.path) for t in turns):
                yield (
                    s,
                    f"{b} is to be stored in turns, and this stands in no turn that guards it; put "
                    "it between an acquire and a release",
                )


def _turns(facts: KernelFacts) -> Iterator[Problem]:
    if not any(isinstance(p.statement, SEMAPHORE_STATEMENTS) for p in facts.acting):
        return
    yield from turn_problems(facts.kernel)
    yield from gathering_problems(facts.kernel, facts.target)


SEMAPHORE_CHECKS: tuple[Check, ...] = (
    Check("semaphores", "lowered", _semaphores),
    Check("turns", "lowered", _turns),
    Check("stored in turns", "lowered", _results),
)
