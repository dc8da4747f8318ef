"""Where syncs shall stand, as plain data, and the statements that they become.

A decision names a gap, a scope and a reason; which statements that takes (a barrier of the block,
one of a role's warps, an arrival and a wait) follows from it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from fusewright.core.expr import ONE, ZERO, mod
from fusewright.dtypes import uint64
from fusewright.errors import InternalError
from fusewright.kir.analysis.order import SyncPoint, SyncScope, gap_at, gap_position
from fusewright.kir.analysis.sites import Path, RoleScope
from fusewright.kir.analysis.split_barriers import run_number
from fusewright.kir.analysis.uniformity import threads_of
from fusewright.kir.insertion import insert, next_sync_id
from fusewright.kir.ir import (
    Alloc,
    BarrierArrive,
    BlockSync,
    Buffer,
    ClusterArrive,
    ClusterWait,
    Kernel,
    MbarArrive,
    MbarInit,
    MbarWait,
    Memory,
    NamedSync,
    Statement,
    SyncStatement,
    WarpSync,
)
from fusewright.kir.traverse import walk_statements
from fusewright.target import NAMED_BARRIERS


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """A sync to insert before statement `index` of the body at `body`."""

    body: Path
    index: int
    point: SyncPoint
    why: str


def insert_syncs(kernel: Kernel, placements: Iterable[Placement]) -> Kernel:
    """The kernel with the syncs inserted, numbered after those it has. One of a block whose
    threads arrive before they wait is a split barrier, on an mbarrier of its own."""
    ordered = sorted(placements, key=lambda p: p.point.position)
    parts = [x for p in ordered for x in _parts(p, kernel)]
    if not parts:
        return kernel
    barriers = _Barriers(kernel)
    added: dict[tuple[Path, int], list[Statement]] = {}
    parts.sort(key=lambda x: gap_position(x.body, x.index))
    for number, x in enumerate(parts, next_sync_id(kernel)):
        statement = x.kind(number, x.why)
        if x.role is not None:
            statement = barriers.sync(x.role, number, x.why)
        if isinstance(statement, MbarInit):
            added.setdefault((x.body, x.index), []).append(Alloc(statement.barrier))
        added.setdefault((x.body, x.index), []).append(statement)
    return insert(kernel, added)


@dataclass(frozen=True, slots=True)
class _SyncPart:
    """One statement of a sync, before statement `index` of the body at `body`; `role` is that whose
    warps meet there instead of all of the block."""

    body: Path
    index: int
    kind: Callable[[int, str], SyncStatement]
    why: str
    role: RoleScope | None = None


def _parts(p: Placement, kernel: Kernel) -> tuple[_SyncPart, ...]:
    """The statements of a sync in textual order."""
    match p.point.scope:
        case SyncScope.BLOCK if p.point.since != p.point.position:
            return _split_parts(p, kernel)
        case SyncScope.CLUSTER:
            arrive = partial(ClusterArrive, relaxed=not p.point.orders_memory)
            first = _SyncPart(p.body, gap_at(p.point.since), arrive, p.why)
            return first, _SyncPart(p.body, p.index, ClusterWait, p.why)
        case SyncScope.BLOCK | SyncScope.THREAD:
            role = next((s for s in p.point.scopes if isinstance(s, RoleScope)), None)
            return (_SyncPart(p.body, p.index, BlockSync, p.why, role),)
        case SyncScope.WARP:
            return (_SyncPart(p.body, p.index, WarpSync, p.why),)


def _split_parts(p: Placement, kernel: Kernel) -> tuple[_SyncPart, ...]:
    """A split barrier: the mbarrier starts with the kernel, and each run of the body around takes
    one of its phases."""
    number = run_number(p.point.scopes)
    assert number is not None and not kernel.cluster, "decided by split_syncs"
    gate = Buffer("gate", uint64, ONE, Memory.SHARED, uint64.nbytes)
    start = partial(MbarInit, barrier=gate, slot=ZERO, count=kernel.nthreads, issuer=0)
    arrive = partial(MbarArrive, barrier=gate, slot=ZERO)
    wait = partial(MbarWait, barrier=gate, slot=ZERO, parity=mod(number, 2))
    return (
        _SyncPart((), 0, start, p.why),
        _SyncPart(p.body, gap_at(p.point.since), arrive, p.why),
        _SyncPart(p.body, p.index, wait, p.why),
    )


class _Barriers:
    """The numbers of named barriers that no statement of the kernel uses, one for each role."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._taken = {
            s.barrier for s in walk_statements(kernel) if isinstance(s, NamedSync | BarrierArrive)
        }
        self._of: dict[Path, int] = {}

    def sync(self, role: RoleScope, number: int, why: str) -> NamedSync:
        """The barrier at which all threads of the role meet."""
        if role.path not in self._of:
            free = (n for n in range(1, NAMED_BARRIERS) if n not in self._taken)
            barrier = next(free, None)
            if barrier is None:
                raise InternalError(
                    f"{self._kernel.name} uses all {NAMED_BARRIERS - 1} named barriers, and the "
                    f"warps of a role have to meet for {why}; use fewer, or fewer roles"
                )
            self._of[role.path] = barrier
            self._taken.add(barrier)
        nthreads = len(threads_of(role.node, self._kernel))
        return NamedSync(number, why, self._of[role.path], nthreads)
