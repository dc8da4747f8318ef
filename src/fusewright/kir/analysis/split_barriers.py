"""Split barriers: mbarriers at which all threads of a block arrive, go on, and wait later.

What lies before the arrival is then ordered before what lies behind the wait, as at a block-wide
sync, while threads do in between what need not wait (PTX ISA, "mbarrier": an arrival releases, a
wait acquires, in the scope of the block).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusewright.core.expr import ZERO, Expr, add, mod, mul, variables
from fusewright.core.node import Node, rewrite
from fusewright.kir.analysis.sites import LoopScope, Scope, StatementSite, acting_sites
from fusewright.kir.ir import (
    Alloc,
    Buffer,
    Kernel,
    MbarArrive,
    MbarInit,
    MbarWait,
    SyncStatement,
)


@dataclass(frozen=True, slots=True, eq=False)
class SplitBarrier:
    """One arrival and one wait of all threads of the block in one body, on an mbarrier that serves
    nothing else."""

    init: MbarInit
    arrive: MbarArrive
    wait: MbarWait

    @property
    def statements(self) -> tuple[MbarInit, MbarArrive, MbarWait]:
        """All that belongs to it, in program order."""
        return self.init, self.arrive, self.wait


def split_barriers(kernel: Kernel) -> tuple[SplitBarrier, ...]:
    """The split barriers of a kernel, in order of their waits."""
    return split_barriers_in([s for _, s in acting_sites(kernel)], kernel)


def split_barriers_in(places: Iterable[StatementSite], kernel: Kernel) -> tuple[SplitBarrier, ...]:
    """`split_barriers`, for sites that have been found already.

    An arrival and a wait count only where every run of the body makes both, in this order, and the
    wait's parity is that of the runs so far; what an mbarrier does otherwise orders is a matter
    for the machine model.
    """
    users: dict[Buffer, list[StatementSite]] = {}
    for site in places:
        use = site.statement.mbarrier_use()
        if use is not None:
            users.setdefault(use.barrier, []).append(site)
    found = (_split_barrier(mine, kernel) for mine in users.values())
    return tuple(b for b in found if b is not None)


def _split_barrier(users: Sequence[StatementSite], kernel: Kernel) -> SplitBarrier | None:
    if len(users) != len(SplitBarrier.__dataclass_fields__):
        return None
    first, second, third = users
    init, arrive, wait = first.statement, second.statement, third.statement
    if not isinstance(init, MbarInit) or not isinstance(arrive, MbarArrive):
        return None
    if not isinstance(wait, MbarWait) or arrive.per_warp or wait.issuer is not None:
        return None
    number = run_number(second.scopes)
    if first.scopes or number is None or second.path[:-1] != third.path[:-1]:
        return None
    is_whole = init.count == kernel.nthreads and not kernel.cluster
    is_one = init.slot == arrive.slot == wait.slot == ZERO
    if not is_whole or not is_one or wait.parity != mod(number, 2):
        return None
    return SplitBarrier(init, arrive, wait)


def run_number(scopes: Sequence[Scope]) -> Expr | None:
    """How many times the body in these scopes ran before, in terms of the loops around it; None
    where that does not follow from them: in branches and roles, and in loops whose extent differs
    from one iteration of an outer loop to the next."""
    number: Expr = ZERO
    around: list[LoopScope] = []
    for scope in scopes:
        if not isinstance(scope, LoopScope):
            return None
        loop = scope.node
        if any(outer.node.var in variables(loop.extent) for outer in around):
            return None
        number = add(mul(number, loop.extent), loop.var)
        around.append(scope)
    return number


def replace_split_barriers(
    kernel: Kernel,
    gone: Collection[SplitBarrier],
    instead: Mapping[MbarWait, SyncStatement] | None = None,
) -> Kernel:
    """The kernel without some of its split barriers and their mbarriers; `instead` gives what
    stands where a wait did."""
    buffers = {b.init.barrier for b in gone}
    statements = {s for b in gone for s in b.statements}

    def edit(node: Node) -> Node | tuple[Node, ...]:
        if isinstance(node, Alloc) and node.buffer in buffers:
            return ()
        if isinstance(node, MbarWait) and instead is not None and node in instead:
            return instead[node]
        return () if node in statements else node

    return rewrite(kernel, edit) if gone else kernel
