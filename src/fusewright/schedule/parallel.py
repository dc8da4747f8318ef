"""What a loop is bound to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.choice import Choice
from fusewright.core.substitution import estimate


class Parallel(Choice):
    """Serial and Unroll loops appear in the kernel; the others are its grid and block dimensions
    or the lanes of one wide access (Vectorize). A ClusterX loop runs over the blocks of a cluster,
    which are neighbours along x of the grid. Bulk loops are the rows and columns of a box that the
    copy engine copies, Mma loops are inside a matrix instruction."""

    SERIAL = "Serial"
    UNROLL = "Unroll"
    VECTORIZE = "Vectorize"
    BIDX = "BIDx"
    BIDY = "BIDy"
    BIDZ = "BIDz"
    TIDX = "TIDx"
    TIDY = "TIDy"
    TIDZ = "TIDz"
    BULK = "Bulk"
    MMA = "Mma"
    CLUSTERX = "ClusterX"

    def __repr__(self) -> str:
        return self.value

    @property
    def is_block(self) -> bool:
        """Which block it is: a dimension of the grid, or the blocks of a cluster."""
        return self in BLOCK_DIMS

    @property
    def is_thread(self) -> bool:
        """A dimension of the block."""
        return self in THREAD_DIMS

    @property
    def is_inside(self) -> bool:
        """Inside one statement: lanes of a wide access, a box, a matrix instruction."""
        return self in (Parallel.VECTORIZE, Parallel.BULK, Parallel.MMA)

    @property
    def is_serial(self) -> bool:
        """A loop in the kernel's text."""
        return self in (Parallel.SERIAL, Parallel.UNROLL)


GRID_DIMS = {Parallel.BIDX: "bx", Parallel.BIDY: "by", Parallel.BIDZ: "bz"}
CLUSTER_DIMS = {Parallel.CLUSTERX: "cx"}
BLOCK_DIMS = GRID_DIMS | CLUSTER_DIMS
THREAD_DIMS = {Parallel.TIDX: "tx", Parallel.TIDY: "ty", Parallel.TIDZ: "tz"}


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of a definition: the class it runs over and what it is bound to."""

    axis: AxisClass
    parallel: Parallel = Parallel.SERIAL


def trips_of(loops: Iterable[Loop]) -> int:
    """The trips of some loops together, estimated where sizes are symbolic."""
    return math.prod(estimate(x.axis.extent) for x in loops)
