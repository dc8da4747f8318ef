"""Named barriers and mbarriers of a batch of blocks while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fusewright.sim.compute import Array


@dataclass(slots=True)
class NamedBarrier:
    """By row, and block of it: threads that arrived in the generation under way, and generations
    completed."""

    arrived: Array
    generation: Array

    def arrive(self, nthreads: Array, wanted: int) -> None:
        """Threads of each block arrive; a generation ends with `wanted` of them."""
        self.arrived += nthreads
        full = self.arrived >= wanted
        self.generation[full] += 1
        self.arrived[full] -= wanted


class Mbarriers:
    """Every 8 bytes of shared memory as an mbarrier; numbers run over all blocks of the batch.

    `count` is 0 where there is none; `phase` counts completed phases, `pending` the arrivals and
    `nbytes` the bytes that the phase under way still takes.
    """

    def __init__(self, size: int) -> None:
        self.count = np.zeros(size, np.int64)
        self.phase = np.zeros(size, np.int64)
        self.pending = np.zeros(size, np.int64)
        self.nbytes = np.zeros(size, np.int64)

    def start(self, at: Array, count: int) -> None:
        """Make new ones (count 0: end them)."""
        self.count[at] = self.pending[at] = count
        self.phase[at] = self.nbytes[at] = 0

    def take(self, at: Array, arrivals: Array, nbytes: Array) -> tuple[Array, Array]:
        """Count arrivals, and bytes expected (or, negative, delivered) at distinct barriers; those
        that are no mbarriers, and those that get more arrivals than a phase takes."""
        self.pending[at] -= arrivals
        self.nbytes[at] += nbytes
        missing, over = at[self.count[at] == 0], at[self.pending[at] < 0]
        done = at[(self.pending[at] == 0) & (self.nbytes[at] == 0) & (self.count[at] > 0)]
        self.phase[done] += 1
        self.pending[done] = self.count[done]
        return missing, over

    def is_over(self, at: Array, parity: Array) -> bool:
        """Whether the phases of the given parities are complete."""
        return bool(((self.phase[at] & 1) != parity).all()) and bool((self.count[at] > 0).all())


@dataclass(slots=True)
class SyncState:
    """The barriers of a batch of `nrows` rows of so many blocks each."""

    nrows: int
    nblocks: int
    mbarriers: Mbarriers
    registers: Array | None = None
    """Registers of each thread, by row and warpgroup, once they are allotted anew."""
    named: dict[int, NamedBarrier] = field(default_factory=dict[int, NamedBarrier])

    def barrier(self, number: int) -> NamedBarrier:
        """The named barrier of a number."""
        if number not in self.named:
            zeros = np.zeros((self.nrows, self.nblocks), np.int64)
            self.named[number] = NamedBarrier(zeros.copy(), zeros.copy())
        return self.named[number]
