"""What the blocks of a cluster store into each other's shared memory."""

from __future__ import annotations

import numpy as np

from fusewright.kir.analysis.lanes import evaluate_lanes, holds, is_known, thread_values
from fusewright.kir.ir import Kernel, RemoteStore


def delivered_nbytes(s: RemoteStore, kernel: Kernel) -> int | None:
    """The bytes that one execution of a store by all threads of a cluster brings to each of its
    blocks; None where blocks may get different numbers of bytes."""
    known = thread_values(kernel, across_blocks=True)
    if not is_known(s.rank, known):
        return None
    where, size = holds(s.predicate, known), kernel.cluster_size
    shape = (kernel.nthreads * size,)
    may, must = (np.broadcast_to(x, shape) for x in (where.may, where.must))
    rank = np.broadcast_to(evaluate_lanes(s.rank, known), shape)[may]
    if not np.array_equal(may, must) or np.any((rank < 0) | (rank >= size)):
        return None
    counts = np.bincount(rank, minlength=size)
    return int(counts[0]) * s.dst.dtype.nbytes if (counts == counts[0]).all() else None
