"""Turns that blocks take, found in the statements of a kernel, and what each turn covers.

A turn is proved by expressions alone. Three things must hold:

- the number of a block in its group counts up with the linear number of the block;
- its group has a semaphore, and a part of the guarded buffer, that no other group has: a run of
  elements with the number of the semaphore, or what a group stores of a result whose elements are
  stored by one group only (`Kernel.stored_in_turns`), which lowering shows as it shows that other
  results are stored once;
- the release passes the turn to the next number, and the last block passes it to nobody.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from fusewright.core.conditions import TRUE, less, less_equal, prove
from fusewright.core.expr import ONE, ZERO, Expr, Int, Var, add, constant_value, variables
from fusewright.core.substitution import substitute
from fusewright.kir.analysis.accesses import Access
from fusewright.kir.analysis.lanes import Array, evaluate_lanes
from fusewright.kir.analysis.sites import Path, StatementSite, sites
from fusewright.kir.ir import (
    Buffer,
    Dim,
    Kernel,
    SemaphoreAcquire,
    SemaphoreArrive,
    SemaphoreLeave,
    SemaphoreRelease,
    Statement,
    Visibility,
)
from fusewright.target import WARP_SIZE

_MAX_TRIED = 1 << 16
"""Groups whose indices are listed; beyond these, and for symbolic sizes, an index is known by its
form."""
_MAX_DIGITS = 5
"""Dimensions and loops whose orders are tried: the grid has three, and a tile two loops."""


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """What stands between an acquire and the release that passes the turn on."""

    acquire: StatementSite
    release: StatementSite
    taken: SemaphoreAcquire

    def holds(self, access: Access, kernel: Kernel) -> bool:
        """Whether an access stands in the turn and keeps to what the turn guards."""
        if access.buffer is not self.taken.guarded or not self.spans(access.site.path):
            return False
        if access.buffer in kernel.stored_in_turns:
            return True
        return is_within(access, self.taken.first, self.taken.size, kernel)

    def spans(self, path: Path) -> bool:
        """Whether a statement stands between the two."""
        body = self.acquire.path[:-1]
        if path[: len(body)] != body:
            return False
        return self.acquire.path[-1] < path[len(body)] < self.release.path[-1]


def in_role(e: Expr, access: Access, kernel: Kernel) -> Expr:
    """An expression in the threads that make an access: those of its role, which are numbered along
    the first dimension of the block."""
    role = access.site.role
    if role is None:
        return e
    x = kernel.block[0].var
    low, high = (n * WARP_SIZE for n in (role.node.first, role.node.stop))
    return substitute(e, {x: Var(x.name, low, high - 1)})


def is_within(access: Access, first: Expr, size: int, kernel: Kernel) -> bool:
    """Whether an access keeps to `size` elements from `first` on, made by the threads of its
    role."""
    least, most = in_role(access.use.index - first, access, kernel).interval
    last = size - access.use.width
    return least is not None and most is not None and least >= 0 and most <= last


def turns_of(kernel: Kernel) -> tuple[Turn, ...]:
    """The turns of a kernel that are sound; what is not is a problem that `turn_problems` names."""
    found = (_turn(site, sites(kernel)) for site in sites(kernel))
    return tuple(t for t in found if isinstance(t, Turn) and not list(_faults(t, kernel)))


def turn_problems(kernel: Kernel) -> Iterator[tuple[Statement, str]]:
    """What keeps acquires and releases from being turns that end."""
    places = sites(kernel)
    released: set[Statement] = set()
    counters = _counters(places)
    for site in places:
        if not isinstance(site.statement, SemaphoreAcquire):
            continue
        if site.statement.semaphore in counters:
            continue
        turn = _turn(site, places)
        if turn is None:
            yield (
                site.statement,
                "no release of the same semaphore follows it in the same body; a turn that is "
                "taken is passed on",
            )
            continue
        released.add(turn.release.statement)
        yield from ((site.statement, fault) for fault in _faults(turn, kernel))
    for site in places:
        if isinstance(site.statement, SemaphoreRelease) and site.statement not in released:
            yield (
                site.statement,
                "no acquire before it in the same body; only who has a turn passes",
            )


def _counters(places: Sequence[StatementSite]) -> set[Buffer]:
    """The semaphores at which blocks arrive: what waits there is no turn."""
    found = (s.statement for s in places)
    return {s.semaphore for s in found if isinstance(s, SemaphoreArrive | SemaphoreLeave)}


def _turn(site: StatementSite, places: Sequence[StatementSite]) -> Turn | None:
    """The turn that begins at a site."""
    taken = site.statement
    if not isinstance(taken, SemaphoreAcquire):
        return None
    for other in places:
        s = other.statement
        behind = other.path[:-1] == site.path[:-1] and other.path > site.path
        if behind and isinstance(s, SemaphoreRelease) and s.semaphore is taken.semaphore:
            return Turn(site, other, taken)
    return None


def _faults(turn: Turn, kernel: Kernel) -> Iterator[str]:
    """Why blocks do not come one after the other, each once, to a part of their own."""
    taken, passed = turn.taken, turn.release.statement
    assert isinstance(passed, SemaphoreRelease)
    same = (
        taken.index == passed.index,
        taken.guarded is passed.guarded,
        taken.first == passed.first,
        taken.size == passed.size,
        taken.extents == passed.extents,
        taken.strides == passed.strides,
        taken.issuer == passed.issuer,
    )
    if not all(same):
        yield "its release is of another index or part, or by another thread"
    if Visibility.BLOCK in (taken.scope, passed.scope):
        yield "what it hands on is for the threads of its own block; blocks need the scope gpu"
    is_result = taken.guarded in kernel.stored_in_turns
    if not is_result and (taken.extents or taken.first != taken.index * taken.size):
        yield (
            f"it guards from {taken.first} on, not from {taken.index} times the {taken.size} "
            "elements of a part, so that parts of two semaphores may overlap"
        )
    moving = [d for d in kernel.grid if d.extent != ONE]
    inside = set(variables(taken.value))
    ordered = [d for d in moving if d.var in inside]
    count = product_of(d.extent for d in ordered)
    if taken.value != number_of(ordered):
        yield (
            f"it waits until {taken.value}, which does not count the blocks of its group in the "
            "order in which they start; wait for earlier blocks only"
        )
    elif passed.value != (taken.value + 1) % count:
        yield (
            f"its release sets {passed.value}; the next of the {count} blocks waits until "
            f"{(taken.value + 1) % count}, and the last one sets 0 for the next launch"
        )
    if passed.follows not in (TRUE, less(taken.value + 1, count)):
        yield f"its release says that blocks follow where {passed.follows}, not all but the last"
    kept = [d for d in (*moving, *kernel.cluster) if d.var not in inside]
    yield from group_faults(taken, turn.acquire, kernel, kept)
    around = {v for b in turn.acquire.branches for v in variables(b.node.condition)}
    if around & inside:
        yield "a condition around it leaves out some blocks of its group; the others would wait"


def group_faults(
    taken: SemaphoreAcquire, site: StatementSite, kernel: Kernel, kept: Sequence[Dim]
) -> Iterator[str]:
    """Why groups of blocks, of the same place along the dimensions `kept`, or iterations around the
    site of a wait, may share its semaphore."""
    digits = [*kept, *(Dim(x.node.var, x.node.extent) for x in site.loops)]
    groups = _end_of(taken.index, digits)
    if groups is None:
        names = ", ".join(str(d.var) for d in digits) or "nothing"
        yield (
            f"its index {taken.index} does not number the groups of blocks and the "
            f"iterations around it ({names}); each takes a semaphore of its own"
        )
        return
    sizes = [(taken.semaphore, groups)]
    if taken.guarded not in kernel.stored_in_turns:
        sizes.append((taken.guarded, groups * taken.size))
    for buffer, size in sizes:
        if prove(less_equal(size, buffer.size)) is not True:
            yield f"{groups} groups need {size} elements of {buffer}, which has {buffer.size}"
    for other in _others(taken, kernel):
        if not _are_apart(taken, other):
            yield f"another wait for {taken.semaphore} may be at the same index, {other.index}"
    if taken.semaphore not in kernel.semaphores:
        yield f"{taken.semaphore} is none of the kernel's semaphores, which begin at zero"


def _end_of(index: Expr, digits: Sequence[Dim]) -> Expr | None:
    """What is above all values of an index that is different for all values of the digits; None
    where it may be the same for two."""
    values = _values(index, digits)
    if values is not None:
        is_different = np.unique(values).size == values.size and int(values.min(initial=0)) >= 0
        return Int(int(values.max(initial=0)) + 1) if is_different else None
    if len(digits) <= _MAX_DIGITS and any(index == number_of(x) for x in permutations(digits)):
        return product_of(d.extent for d in digits)
    return None


def _values(index: Expr, digits: Sequence[Dim]) -> Array | None:
    """All values of an index over the digits, where they are known and few."""
    sizes = [constant_value(d.extent) for d in digits]
    known = [n for n in sizes if n is not None]
    inside = {d.var for d in digits}
    if len(known) < len(sizes) or math.prod(known) > _MAX_TRIED or inside < set(variables(index)):
        return None
    places = np.indices(known).reshape(len(known), math.prod(known))
    found = evaluate_lanes(index, {d.var: places[i] for i, d in enumerate(digits)})
    return np.broadcast_to(found, (math.prod(known),))


def _others(taken: SemaphoreAcquire, kernel: Kernel) -> Iterator[SemaphoreAcquire]:
    """The other waits for the semaphores of one: copies that a loop was unrolled into."""
    for site in sites(kernel):
        s = site.statement
        if isinstance(s, SemaphoreAcquire) and s is not taken and s.semaphore is taken.semaphore:
            yield s


def _are_apart(a: SemaphoreAcquire, b: SemaphoreAcquire) -> bool:
    """Whether two indices never have a value in common."""
    found = dict.fromkeys((*variables(a.index), *variables(b.index)))
    digits = [Dim(v, add(v.upper, 1)) for v in found if v.upper is not None]
    values = [_values(x.index, digits) for x in (a, b)]
    if values[0] is None or values[1] is None:
        return False
    return np.intersect1d(values[0], values[1]).size == 0


def number_of(digits: Sequence[Dim]) -> Expr:
    """The number that digits make, the first one fastest."""
    out: Expr = ZERO
    stride: Expr = ONE
    for d in digits:
        out = out + d.var * stride
        stride = stride * d.extent
    return out


def product_of(extents: Iterable[Expr]) -> Expr:
    """Of some extents."""
    out: Expr = ONE
    for e in extents:
        out = out * e
    return out
