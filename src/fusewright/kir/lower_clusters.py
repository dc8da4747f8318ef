"""Reductions that the blocks of a cluster share out: each finishes what some of its threads hold.

    parts[rank, ..] of the block that finishes it = part
    if (mine) part = parts[0, ..] + .. + parts[n - 1, ..]

A block gets `n` parts of its share, not of everything, so that what crosses between blocks is one
part a block whatever their number. Parts are added in the order of ranks. The barrier between the
stores and the loads is inferred like all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.core.conditions import all_of
from fusewright.core.expr import Expr, Int, floordiv, mod
from fusewright.kir.ir import Buffer, Reg, RemoteStore, Statement
from fusewright.kir.lower_storage import Storage
from fusewright.kir.lower_turns import (
    kept_lanes,
    one_of_copies,
    parts_of_thread,
    share_of_cluster,
    vector_number,
    vector_of,
)
from fusewright.memory import Memory
from fusewright.schedule.graph import Stage
from fusewright.target import MAX_VECTOR_NBYTES, REMOTE_STORE_WIDTH


@dataclass(frozen=True, slots=True)
class SharedOut:
    """Where the parts of a reduction lie in the block that finishes them: those of its threads side
    by side, in whole vectors, for each vector of a thread, for each block."""

    storage: Storage
    stage: Stage
    parts: Buffer
    nblocks: int

    def send(self, sources: Sequence[Reg], values: Sequence[Expr]) -> list[Statement]:
        """Stores what a thread holds in the block that finishes it."""
        thread, share = share_of_cluster(self.storage.context, self.stage)
        rank = self.storage.context.dims["cx"].var
        copy = all_of(one_of_copies(self.storage, self.stage))
        to, vector = floordiv(thread, share), vector_of(self.storage, self.stage)
        width = min(vector, REMOTE_STORE_WIDTH)
        return [
            RemoteStore(self.parts, at + k, to, sources[first + k], width, copy)
            for first, at in self.places(rank, values).items()
            for k in range(0, vector, width)
        ]

    def places(self, rank: Expr, values: Sequence[Expr]) -> dict[int, Expr]:
        """Where the vectors of a thread's part lie that came from block `rank`, by the first lanes
        of the vectors, in the iterations `values` of the stage's loops."""
        storage, s = self.storage, self.stage
        thread, share = share_of_cluster(storage.context, s)
        width = vector_of(storage, s)
        vectors = parts_of_thread(storage, s)
        out: dict[int, Expr] = {}
        for first in range(0, kept_lanes(storage, s), width):
            vector = vector_number(storage, s, dict(enumerate(values)), first)
            out[first] = ((rank * vectors + vector) * share + mod(thread, share)) * width
        return out


def shared_out(storage: Storage, s: Stage) -> SharedOut:
    """How the blocks of a cluster share out a reduction, and the memory for it."""
    _, share = share_of_cluster(storage.context, s)
    dim = storage.context.dims["cx"].extent
    assert isinstance(dim, Int)
    size = dim.value * parts_of_thread(storage, s) * share * vector_of(storage, s)
    dtype = s.dtype.compute
    parts = Buffer(f"{s.name}_parts", dtype, Int(size), Memory.SHARED, MAX_VECTOR_NBYTES)
    return SharedOut(storage, s, parts, dim.value)
