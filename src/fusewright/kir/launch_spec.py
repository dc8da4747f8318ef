"""What kernels must satisfy whose launches overlap with those before and behind them.

A thread waits itself, whatever it may learn of others at barriers: the wait is one instruction, and
the rule then says of each access what it stands behind.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusewright.kir.checks import Check, KernelFacts, Problem
from fusewright.kir.ir import (
    Body,
    For,
    If,
    Kernel,
    LaunchDependents,
    LaunchWait,
    Load,
    Role,
    Roles,
    Statement,
)
from fusewright.kir.traverse import bodies_of, statements_of
from fusewright.memory import READ_ONLY
from fusewright.target import Feature


def _launch_syncs(facts: KernelFacts) -> Iterator[Problem]:
    k = facts.kernel
    waits, lets = statements_of(k, LaunchWait), statements_of(k, LaunchDependents)
    if not (k.begins_early or k.awaited or waits or lets):
        return
    if facts.target is not None and not facts.target.has(Feature.EARLY_LAUNCH):
        first = next(iter((*waits, *lets)), None)
        since = Feature.EARLY_LAUNCH.since
        yield first, f"launches do not overlap on {facts.target}; that is for {since} and later"
    for b in k.awaited:
        if b not in k.params:
            yield None, f"{b}, which is awaited, is no parameter of the kernel"
    if not k.begins_early:
        if k.awaited:
            yield None, "it awaits launches before it, but does not begin early"
        for s in waits:
            yield s, "the launch does not begin early, so that there is nothing to wait for"
    for place in facts.acting:
        s = place.statement
        if isinstance(s, LaunchDependents) and place.parent is not None:
            yield s, "every block lets the next launch begin: it stands in no loop, branch or role"
        if isinstance(s, Load) and s.src in k.awaited and s.cache in READ_ONLY:
            yield (
                s,
                f"{s.src} changes while the kernel runs; {s.cache.value} loads do not see it",
            )
    for s in lets[1:]:
        yield s, "the next launch may begin already"
    if k.begins_early:
        yield from _Walk(k).problems()


class _Walk:
    """One walk over a kernel that begins early, with what is known where."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._found: list[Problem] = []

    def problems(self) -> list[Problem]:
        """What is touched in front of a wait, and waits that no path needs."""
        if not self._body(self.kernel.body, waited=False, in_loop=False):
            self._found.append((None, "some path ends without a wait for the launches before it"))
        return self._found

    def _body(self, body: Body, *, waited: bool, in_loop: bool) -> bool:
        """Whether the thread has waited behind a body."""
        for s in body:
            waited = self._statement(s, waited=waited, in_loop=in_loop)
        return waited

    def _statement(self, s: Statement, *, waited: bool, in_loop: bool) -> bool:
        match s:
            case LaunchWait():
                if waited:
                    self._found.append((s, "the thread has waited for the launches before already"))
                if in_loop:
                    self._found.append((s, "it stands in a loop; one wait is enough"))
                return True
            case For():
                self._body(s.body, waited=waited, in_loop=True)
                return waited
            case If():
                parts = (s.then, s.otherwise)
                known = [self._body(b, waited=waited, in_loop=in_loop) for b in parts]
                return all(known)
            case Roles():
                for role in s.body:
                    assert isinstance(role, Role)
                    self._body(role.body, waited=waited, in_loop=in_loop)
                return waited
            case _:
                assert not bodies_of(s)
                self._uses(s, waited=waited)
                return waited

    def _uses(self, s: Statement, *, waited: bool) -> None:
        if waited or s.is_private:
            return
        for b in dict.fromkeys(u.buffer for u in s.memory_uses()):
            if b in self.kernel.awaited:
                text = f"launches before this one may still touch {b}; wait for them first"
                self._found.append((s, text))


LAUNCH_CHECKS: tuple[Check, ...] = (Check("launches", "lowered", _launch_syncs),)
