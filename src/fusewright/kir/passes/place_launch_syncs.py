"""Let a launch begin before those before it have ended, and make it wait for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from fusewright.core.expr import Var, variables
from fusewright.core.node import Node, rewrite
from fusewright.core.substitution import substitute
from fusewright.kir.ir import (
    Body,
    BoxLoad,
    Buffer,
    For,
    Kernel,
    LaunchDependents,
    LaunchWait,
    Load,
    PrefetchBox,
)
from fusewright.kir.traits import SyncStatement
from fusewright.kir.traverse import bodies_of, statements_of, walk_statements
from fusewright.memory import READ_ONLY, Cache


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """How a launch overlaps with its neighbours in the program: whether it `begins_early`, before
    those before it have ended; why it has to wait for them before it touches its parameters, by
    position; and whether it `lets_begin` the launch behind it."""

    begins_early: bool = False
    awaited: tuple[tuple[int, str], ...] = ()
    lets_begin: bool = False


def place_launch_syncs(kernel: Kernel, order: LaunchOrder) -> Kernel:
    """Let the next launch begin first of all, and wait right before the first access to memory that
    launches before may still touch, or at the end where there is none.

    rewrite:  r = load w;  q = load x   ->   LaunchDependents;  r = load w;  LaunchWait;  q = load x
    checks:   no wait but this one; all threads come to it, outside of loops, branches and roles
    order:    behind the pipeline, on a kernel as it will be spelled: it is about launches, of which
              a kernel may have several in different places

    Boxes of arguments that no launch before writes, such as weights, are fetched into the cache in
    front of the wait: as many as the ring has stages for.

    A launch lets the next one begin before it does anything: that one begins when the last block of
    this one has, so that it takes no room from this one's blocks. It never ends before those before
    it, on which whoever waits for it relies.
    """
    changed = kernel
    number = 1 + max((s.id for s in statements_of(kernel, SyncStatement)), default=-1)
    body: Body = kernel.body
    if order.begins_early:
        reasons = {kernel.params[k]: why for k, why in order.awaited}
        body = _coherent(kernel, reasons).body
        at = _first_access(body, reasons)
        wait = LaunchWait(number, _why(reasons))
        body = (*_fetched(kernel, body[at:], reasons), *body[:at], wait, *body[at:])
        changed = replace(changed, begins_early=True, awaited=tuple(reasons))
        number += 1
    if order.lets_begin:
        body = (LaunchDependents(number, "the next launch may begin"), *body)
    return replace(changed, body=body) if body is not kernel.body else kernel


def _first_access(body: Body, awaited: Collection[Buffer]) -> int:
    """The number of the first statement that touches some of these."""
    for k, s in enumerate(body):
        if any(u.buffer in awaited for x in (s, *walk_statements(s)) for u in x.memory_uses()):
            return k
    return len(body)


def _fetched(kernel: Kernel, body: Body, awaited: Collection[Buffer]) -> Iterator[PrefetchBox]:
    """Fetches of the first boxes that a body copies from memory that nobody writes meanwhile."""
    uses = (u for s in walk_statements(kernel) for u in s.memory_uses())
    changed = {*awaited, *(u.buffer for u in uses if u.writes)}
    uniform = {*kernel.symbols, *(d.var for d in (*kernel.grid, *kernel.cluster))}
    for s, loops in _copied(body, ()):
        if s.map.buffer in changed or s.barrier is None:
            continue
        steps = [loop for loop in loops if any(loop.var in variables(c) for c in s.coordinates)]
        first: dict[Var, int] = {loop.var: 0 for loop in steps}
        stages, trips = s.barrier.size.interval[1] or 1, 1
        if steps:
            trips = min(stages, steps[-1].extent.interval[1] or stages)
        for k in range(trips):
            at = first | ({steps[-1].var: k} if steps else {})
            coordinates = tuple(substitute(c, at) for c in s.coordinates)
            if all(v in uniform for c in coordinates for v in variables(c)):
                yield PrefetchBox(s.map, coordinates, s.issuer)


def _copied(body: Body, loops: tuple[For, ...]) -> Iterator[tuple[BoxLoad, tuple[For, ...]]]:
    """The copies of boxes in a body, each with the loops around it, outer ones first."""
    for s in body:
        if isinstance(s, BoxLoad):
            yield s, loops
        inner = (*loops, s) if isinstance(s, For) else loops
        for part in bodies_of(s):
            yield from _copied(part, inner)


def _why(reasons: Mapping[Buffer, str]) -> str:
    listed = [f"{why} {b}" for b, why in reasons.items()]
    return ", ".join(listed) if listed else "ends behind the launches before it"


def _coherent(kernel: Kernel, awaited: Collection[Buffer]) -> Kernel:
    """The kernel with loads of what changes while it runs by the usual path."""

    def usual(x: Node) -> Node:
        if isinstance(x, Load) and x.src in awaited and x.cache in READ_ONLY:
            return replace(x, cache=Cache.DEFAULT)
        return x

    return rewrite(kernel, usual)
