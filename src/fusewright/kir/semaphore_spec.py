"""What kernels must satisfy so that blocks may wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

from fusewright.kir.analysis.gatherings import gathering_problems
from fusewright.kir.analysis.turns import turn_problems
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
    for place in facts.acting:
        s = place.statement
        if isinstance(s, SEMAPHORE_STATEMENTS):
            continue
        for use in s.memory_uses():
            if use.buffer in k.semaphores:
                yield s, f"{use.buffer} holds semaphores; only statements of semaphores touch it"


def _turns(facts: KernelFacts) -> Iterator[Problem]:
    if not any(isinstance(p.statement, SEMAPHORE_STATEMENTS) for p in facts.acting):
        return
    yield from turn_problems(facts.kernel)
    yield from gathering_problems(facts.kernel, facts.target)


SEMAPHORE_CHECKS: tuple[Check, ...] = (
    Check("semaphores", "lowered", _semaphores),
    Check("turns", "lowered", _turns),
)
