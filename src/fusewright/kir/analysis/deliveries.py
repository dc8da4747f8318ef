"""What the blocks of a cluster store into each other's shared memory."""

from __future__ import annotations

import numpy as np

from fusewright.core.conditions import TRUE
from fusewright.core.expr import Expr
from fusewright.kir.analysis.lanes import evaluate_lanes, holds, is_known, thread_values
from fusewright.kir.ir import Guarded, Kernel, Statement


def delivered_nbytes(s: Statement, rank: Expr, nbytes: int, kernel: Kernel) -> int | None:
    """The bytes that one execution of a statement by all threads of a cluster, of which each brings
    `nbytes` to block `rank`, brings to each of the blocks; None where blocks may get different
    numbers of bytes."""
    known = thread_values(kernel, across_blocks=True)
    if not is_known(rank, known):
        return None
    where = holds(s.predicate if isinstance(s, Guarded) else TRUE, known)
    size = kernel.cluster_size
    shape = (kernel.nthreads * size,)
    may, must = (np.broadcast_to(x, shape) for x in (where.may, where.must))
    to = np.broadcast_to(evaluate_lanes(rank, known), shape)[may]
    if not np.array_equal(may, must) or np.any((to < 0) | (to >= size)):
        return None
    counts = np.bincount(to, minlength=size)
    return int(counts[0]) * nbytes if (counts == counts[0]).all() else None
