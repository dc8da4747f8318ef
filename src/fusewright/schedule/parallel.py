"""What a loop is bound to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fusewright.axes.classes import AxisClass


class Parallel(Enum):
    """Serial and Unroll loops appear in the kernel; the others are its grid and block dimensions
    or the lanes of one wide access (Vectorize). Bulk, Mma and ClusterX are refused by schedules: no
    lowering makes copies by the copy engine, matrix instructions or clusters yet."""

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
        """A dimension of the grid."""
        return self in BLOCK_DIMS

    @property
    def is_thread(self) -> bool:
        """A dimension of the block."""
        return self in THREAD_DIMS

    @property
    def is_serial(self) -> bool:
        """A loop in the kernel's text."""
        return self in (Parallel.SERIAL, Parallel.UNROLL)


UNAVAILABLE = (Parallel.BULK, Parallel.MMA, Parallel.CLUSTERX)
BLOCK_DIMS = {Parallel.BIDX: "bx", Parallel.BIDY: "by", Parallel.BIDZ: "bz"}
THREAD_DIMS = {Parallel.TIDX: "tx", Parallel.TIDY: "ty", Parallel.TIDZ: "tz"}


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of a definition: the class it runs over and what it is bound to."""

    axis: AxisClass
    parallel: Parallel = Parallel.SERIAL
