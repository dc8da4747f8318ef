"""Which accesses no block makes both, because they stand in different places of the grid."""

from __future__ import annotations

from collections.abc import Iterator

from fusewright.core.conditions import TRUE, Cond, negate
from fusewright.core.expr import variables
from fusewright.kir.analysis.accesses import Access
from fusewright.kir.ir import Kernel


def is_conditional(a: Access) -> bool:
    """Whether an access is made in some places or threads only."""
    return bool(a.site.branches) or a.use.predicate is not TRUE


def are_of_different_blocks(a: Access, b: Access, kernel: Kernel) -> bool:
    """Whether one access asks for a place in the grid that the other one excludes: what the first
    block of a group does and what the last one does. Blocks of a cluster, which share memory, have
    one place in the grid."""
    if not (is_conditional(a) and is_conditional(b)):
        return False
    asked = {c: None for x in (a, b) for c in _conditions(x) if asks_for_place(c, kernel)}
    return any(negate(c) in asked for c in asked)


def asks_for_place(condition: Cond, kernel: Kernel) -> bool:
    """Whether a condition, other than none, holds for all threads of a block or for none."""
    place = {d.var for d in kernel.grid} | set(kernel.symbols)
    return condition is not TRUE and place.issuperset(variables(condition))


def _conditions(a: Access) -> Iterator[Cond]:
    if a.use.predicate is not TRUE:
        yield a.use.predicate
    for branch in a.site.branches:
        c = branch.node.condition
        yield c if branch.taken else negate(c)
