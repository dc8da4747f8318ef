"""Vector clocks of one block: what every strand knows of every other, of engines and of barriers.

A row has a column for each strand (epochs: an access at epoch e is known to who has more than e),
for each strand's engine of a kind (groups complete), and for each barrier (phases complete).
`known` is memory, `freed` of it what was read; `seen` is what the async proxy of each strand's
successors may see, for shared and for global memory; `met` is time, which alone orders nothing in
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from fusewright.kir import ir
from fusewright.kir.traits import Completes, with_group
from fusewright.memory import Memory
from fusewright.sim.compute import Array
from fusewright.sim.model import Model
from fusewright.target import WARP_SIZE, WARPGROUP_SIZE

KINDS = tuple(ir.AsyncKind)
ENGINES: tuple[Completes, ...] = tuple(
    with_group(kind, is_read=is_read)
    for kind in KINDS
    for is_read in (True, False)
    if kind.waits_for_reads or not is_read
)
"""A thread has one engine for each way in which groups of a kind complete: for their reads alone,
where a wait may be for these, and altogether."""
SPACES = (Memory.SHARED, Memory.GLOBAL)
WARPS_OF_MMA = WARPGROUP_SIZE // WARP_SIZE
Barrier: TypeAlias = "tuple[str, int, int]"
"""A named barrier ("named", number, block), the n-th life of an mbarrier ("mbarrier", byte, n), its
making ("made", byte, n), over when it is made, or the barrier of the cluster `CLUSTER`."""
CLUSTER: Barrier = ("cluster", 0, 0)


KIND_OF: tuple[int, ...] = tuple(KINDS.index(way.kind) for way in ENGINES if way.kind is not None)
"""The number of its kind, by number of an engine."""


def engines_of(kind: ir.AsyncKind) -> tuple[int, ...]:
    """The numbers of the engines of a kind of groups; where reads may be waited for, that first."""
    return tuple(k for k, way in enumerate(ENGINES) if way.kind is kind)


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the columns stand. Engines and barriers have some only where the trace uses them."""

    nstrands: int
    has_engines: bool
    barriers: dict[Barrier, int]

    @property
    def width(self) -> int:
        engines = len(ENGINES) if self.has_engines else 0
        return self.nstrands * (1 + engines) + len(self.barriers)

    def engine(self, k: int) -> slice:
        """The columns of all strands' engines of kind number k."""
        start = self.nstrands * (1 + k)
        return slice(start, start + self.nstrands)

    def barrier(self, which: Barrier) -> int:
        return self.width - len(self.barriers) + self.barriers[which]

    @property
    def phases(self) -> slice:
        """The columns of all barriers."""
        return slice(self.width - len(self.barriers), self.width)


@dataclass(slots=True)
class ClockRow:
    """What one release hands on; rows are joined by the larger of each number."""

    known: Array
    freed: Array
    seen: Array
    met: Array

    def join(self, other: ClockRow) -> None:
        np.maximum(self.known, other.known, out=self.known)
        np.maximum(self.freed, other.freed, out=self.freed)
        np.maximum(self.seen, other.seen, out=self.seen)
        np.maximum(self.met, other.met, out=self.met)


@dataclass(slots=True)
class Snapshot:
    """The state of some strands behind a sync: a row of each array for each of them."""

    strands: Array
    place: float
    known: Array
    freed: Array
    seen: Array
    own: Array
    commits: Array
    fence: Array
    fence_own: Array
    fence_mma: Array
    epoch: Array


@dataclass(slots=True)
class Clocks:
    """The clocks of all strands of a block, and the history that conflicts are tested against."""

    columns: Columns
    warps: Array
    sizes: Array
    model: Model
    has_proxy: bool
    known: Array = field(init=False)
    freed: Array = field(init=False)
    seen: Array = field(init=False)
    met: Array = field(init=False)
    epoch: Array = field(init=False)
    own: Array = field(init=False)
    commits: Array = field(init=False)
    issued: Array = field(init=False)
    fence: Array = field(init=False)
    fence_own: Array = field(init=False)
    fence_mma: Array = field(init=False)
    history: list[Snapshot] = field(default_factory=list[Snapshot])

    def __post_init__(self) -> None:
        n, c = self.columns.nstrands, self.columns.width
        spaces = len(SPACES) if self.has_proxy else 0
        self.known = np.zeros((n, c), np.int32)
        self.freed = np.zeros((n, c), np.int32)
        self.met = np.zeros((n, c), np.int32)
        self.seen = np.zeros((n, spaces, c), np.int32)
        self.epoch = np.zeros(n, np.int32)
        self.own = np.zeros((n, len(ENGINES)), np.int32)
        self.commits = np.zeros((n, len(KINDS)), np.int32)
        self.issued = np.zeros((n, len(KINDS)), np.int32)
        self.fence = np.zeros((n, spaces), np.int32)
        self.fence_own = np.zeros((n, spaces, len(ENGINES)), np.int32)
        self.fence_mma = np.zeros(n, np.int32)
        self.note(np.arange(n), -np.inf)

    # --- handing on ---------------------------------------------------------------------------

    def release(self, strands: Array) -> ClockRow:
        """What the strands did and know, joined; their next epochs begin."""
        known = self.known[strands].max(axis=0)
        seen = self.seen[strands].max(axis=0)
        met = self.met[strands].max(axis=0)
        after = self.epoch[strands] + 1
        known[strands] = np.maximum(known[strands], after)
        met[strands] = np.maximum(met[strands], after)
        if self.columns.has_engines:
            for k in range(len(ENGINES)):
                known[self.columns.engine(k)][strands] = np.maximum(
                    known[self.columns.engine(k)][strands], self.own[strands, k]
                )
        for space in range(seen.shape[0]):
            seen[space, strands] = np.maximum(seen[space, strands], self.fence[strands, space])
            for k in range(len(ENGINES)) if self.columns.has_engines else ():
                part = seen[space, self.columns.engine(k)]
                part[strands] = np.maximum(part[strands], self.fence_own[strands, space, k])
        self.epoch[strands] = after
        freed = np.maximum(self.freed[strands].max(axis=0), known)
        return ClockRow(known, freed, seen, met)

    def acquire(self, strands: Array, row: ClockRow) -> None:
        """The strands learn what a row hands on."""
        self.known[strands] = np.maximum(self.known[strands], row.known)
        self.freed[strands] = np.maximum(self.freed[strands], row.freed)
        self.seen[strands] = np.maximum(self.seen[strands], row.seen)
        self.met[strands] = np.maximum(self.met[strands], row.met)

    def meet(self, strands: Array) -> None:
        """The strands are at one place at one time; nothing is ordered in memory."""
        row = self.met[strands].max(axis=0)
        row[strands] = np.maximum(row[strands], self.epoch[strands] + 1)
        self.met[strands] = row
        self.epoch[strands] += 1

    def learn_phase(self, strands: Array, which: Barrier, phases: int) -> None:
        """The strands know that so many phases of a barrier are complete."""
        column = self.columns.barrier(which)
        self.known[strands, column] = np.maximum(self.known[strands, column], phases)
        self.met[strands, column] = np.maximum(self.met[strands, column], phases)

    def phase_row(self, strand: int) -> ClockRow:
        """Only what a strand knows of phases, and which mbarriers the async proxy sees made: it is
        not memory that an issue hands on."""
        phases = self.columns.phases
        row = ClockRow(
            np.zeros_like(self.known[strand]),
            np.zeros_like(self.freed[strand]),
            np.zeros_like(self.seen[strand]),
            np.zeros_like(self.met[strand]),
        )
        row.known[phases] = self.known[strand, phases]
        row.met[phases] = self.met[strand, phases]
        row.seen[:, phases] = self.seen[strand][:, phases]
        return row

    def time_of(self, strand: int) -> Array:
        """What a strand knows in time of each strand; of itself all, where it is one thread."""
        row = self.met[strand, : self.columns.nstrands].copy()
        if self.sizes[strand] == 1:
            row[strand] = self.epoch[strand]
        return row

    # --- engines and proxies ------------------------------------------------------------------

    def commit(self, strands: Array, kind: ir.AsyncKind) -> None:
        self.commits[strands, KINDS.index(kind)] += 1

    def issue(self, strands: Array, kind: ir.AsyncKind) -> None:
        """The strands have work under way in the group that is open."""
        k = KINDS.index(kind)
        self.issued[strands, k] = self.commits[strands, k] + 1

    def wait(self, strands: Array, kind: ir.AsyncKind, keep: int, *, reads_only: bool) -> None:
        """All but the `keep` latest groups of each thread are complete."""
        keep = keep if self.model.keep_is_counted else 0
        done = self.commits[strands, KINDS.index(kind)] - keep
        if kind is ir.AsyncKind.MMA:
            self._wait_mma(strands, done)
        only_reads = reads_only and self.model.reads_only_frees_sources
        for k in engines_of(kind):
            if only_reads and not ENGINES[k].is_read:
                continue
            self.own[strands, k] = np.maximum(self.own[strands, k], done)
            if not self.model.groups_belong_to_threads:
                for s in range(self.columns.nstrands):
                    part = self.known[s, self.columns.engine(k)]
                    part[strands] = np.maximum(part[strands], done)

    def _wait_mma(self, strands: Array, done: Array) -> None:
        """A warp makes its products together: each of its lanes learns of all of them."""
        part, warps = (
            self.known[:, self.columns.engine(engines_of(ir.AsyncKind.MMA)[0])],
            self.warps,
        )
        if not self.model.mma_waits_stay_in_warp:
            warps = warps // WARPS_OF_MMA
        for strand, groups in zip(strands.tolist(), done.tolist(), strict=True):
            mine = warps == warps[strand]
            part[strand, mine] = np.maximum(part[strand, mine], groups)

    def fence_mma_registers(self, strands: Array) -> None:
        """What the strands did with their registers so far comes before later products."""
        self.fence_mma[strands] = self.epoch[strands] + 1
        self.epoch[strands] += 1

    def fence_proxy(self, strands: Array, space: Memory) -> None:
        """What the strands did in a space so far is visible to the async proxy."""
        if not self.has_proxy:
            return
        k = SPACES.index(space)
        self.fence[strands, k] = self.epoch[strands] + 1
        self.fence_own[strands, k] = self.own[strands]
        self.epoch[strands] += 1
        strict = space is Memory.SHARED and self.model.fences_stand_at_writers
        first = self.columns.nstrands if strict else 0
        self.seen[strands, k, first:] = np.maximum(
            self.seen[strands, k, first:], self.known[strands, first:]
        )

    # --- history ------------------------------------------------------------------------------

    def note(self, strands: Array, place: float) -> None:
        """Remember the state of the strands behind an event at `place`."""
        self.history.append(
            Snapshot(
                strands,
                place,
                self.known[strands],
                self.freed[strands],
                self.seen[strands],
                self.own[strands],
                self.commits[strands],
                self.fence[strands],
                self.fence_own[strands],
                self.fence_mma[strands],
                self.epoch[strands],
            )
        )


@dataclass(frozen=True, slots=True)
class History:
    """All snapshots as one table, in order of strand and place."""

    strands: Array
    places: Array
    state: Snapshot

    @staticmethod
    def of(found: Sequence[Snapshot]) -> History:
        strands = np.concatenate([s.strands for s in found])
        places = np.concatenate([np.full(len(s.strands), s.place) for s in found])
        order = np.lexsort((np.arange(len(strands)), places, strands))
        parts = {
            name: np.concatenate([getattr(s, name) for s in found])[order]
            for name in (
                "known",
                "freed",
                "seen",
                "own",
                "commits",
                "fence",
                "fence_own",
                "fence_mma",
                "epoch",
            )
        }
        state = Snapshot(strands[order], 0.0, **parts)
        return History(strands[order], places[order], state)

    def at(self, strands: Array, events: Array) -> Array:
        """The row of each strand's state when it comes to an event."""
        start = np.searchsorted(self.strands, strands)
        out = np.zeros(len(strands), np.int64)
        for s in np.unique(strands):
            low, high = np.searchsorted(self.strands, [s, s + 1])
            mine = strands == s
            out[mine] = low + np.searchsorted(self.places[low:high], events[mine]) - 1
        assert (out >= start).all()
        return out
