"""What the blocks of a cluster store into each other's shared memory."""

from __future__ import annotations

import numpy as np

from fusewright.core.conditions import TRUE
from fusewright.core.expr import Expr
from fusewright.kir.analysis.lanes import evaluate_lanes, holds, is_known, thread_values
from fusewright.kir.analysis.uniformity import threads_of
from fusewright.kir.ir import Guarded, Kernel, Role, Statement


def delivered_nbytes(
    s: Statement, rank: Expr, nbytes: int, kernel: Kernel, role: Role | None = None
) -> int | None:
    """The bytes that each block of a cluster gets when a statement is executed once by all threads
    of the cluster, or in each block by those of a role. A thread brings `nbytes` to block `rank`,
    if the statement's predicate holds for it. None where blocks may get different numbers of bytes.

    In a cluster of 2 with 64 threads a block, `if (tx < 2)` and rank `tx`: 2 * nbytes for each.
    """
    known = thread_values(kernel, across_blocks=True)
    if not is_known(rank, known):
        return None
    where = holds(s.predicate if isinstance(s, Guarded) else TRUE, known)
    size = kernel.cluster_size
    shape, mine = (size, kernel.nthreads), threads_of(role, kernel)
    may, must, to = (
        np.broadcast_to(x, (size * kernel.nthreads,)).reshape(shape)[:, mine.start : mine.stop]
        for x in (where.may, where.must, evaluate_lanes(rank, known))
    )
    to = to[may]
    if not np.array_equal(may, must) or np.any((to < 0) | (to >= size)):
        return None
    counts = np.bincount(to, minlength=size)
    return int(counts[0]) * nbytes if (counts == counts[0]).all() else None
