"""Vector clocks of one block: what every strand knows of every other, of engines and of barriers.

A row has a column for each strand (epochs: an access at epoch e is known to who has more than e),
for each strand's engine of a kind (groups complete), and for each barrier (phases complete).
`known` is memory, `freed` of it what was read; `seen` is what the async proxy of each strand's
successors may see, for shared and for global memory; `met` is time, which alone orders nothing in
memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
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
making ("made", byte, n), over when it is made, that of a cluster, `cluster_barrier`, or
`LAUNCHES`."""


def cluster_barrier(number: int) -> Barrier:
    """The barrier of a cluster, by its number in the row."""
    return "cluster", number, 0


LAUNCHES: Barrier = ("launches", 0, 0)
"""What the launches before are: over, to who has waited for them."""


KIND_OF: tuple[int, ...] = tuple(KINDS.index(way.kind) for way in ENGINES if way.kind is not None)
"""The number of its kind, by number of an engine."""


def engines_of(kind: ir.AsyncKind) -> tuple[int, ...]:
    """The numbers of the engines of a kind of groups; where reads may be waited for, that first."""
    return tuple(k for k, way in enumerate(ENGINES) if way.kind is kind)


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the columns stand, and how many there are. `barriers`, and the kinds of `engines` by
    number, have some only where the trace uses them."""

    nstrands: int
    engines: tuple[int, ...]
    barriers: dict[Barrier, int]
    width: int

    @staticmethod
    def of(nstrands: int, engines: tuple[int, ...], barriers: Iterable[Barrier]) -> Columns:
        """Those of strands first, then of their engines, then of barriers."""
        first = nstrands * (1 + len(engines))
        found = {b: first + k for k, b in enumerate(barriers)}
        return Columns(nstrands, engines, found, first + len(found))

    def engine(self, k: int) -> slice:
        """The columns of all strands' engines of kind number k."""
        start = self.nstrands * (1 + self.engines.index(k))
        return slice(start, start + self.nstrands)

    def barrier(self, which: Barrier) -> int:
        return self.barriers[which]

    @property
    def phases(self) -> slice:
        """The columns of all barriers."""
        return slice(self.width - len(self.barriers), self.width)


@dataclass(frozen=True, slots=True)
class Teams:
    """Strands in order of their teams, the team of each, and the members of each: row k has one of
    every team, some of them twice where others have more."""

    strands: Array
    team: Array
    members: Array

    @staticmethod
    def of(strands: Array, groups: Array) -> Teams:
        """The strands by the number of the group that each belongs to."""
        order = np.argsort(groups, kind="stable")
        _, team = np.unique(groups[order], return_inverse=True)
        sizes: Array = np.bincount(team)
        begins = np.cumsum(sizes) - sizes
        rows: Array = np.arange(int(sizes.max()))[:, None]
        places = begins + np.minimum(rows, sizes - 1)
        return Teams(strands[order], team, strands[order][places])

    @staticmethod
    def whole(strands: Array) -> Teams:
        """All strands as one team."""
        return Teams(strands, np.zeros_like(strands), strands[:, None])


KNOWN, FREED = 0, 1
SEEN, MET = slice(2, -1), -1
"""Rows of a table of clocks; there are as many of what proxies see as there are spaces."""


@dataclass(frozen=True, slots=True)
class ClockRow:
    """What one release hands on, a row of each clock; such rows are joined by the larger of each
    number."""

    table: Array

    @property
    def known(self) -> Array:
        return self.table[KNOWN]

    @property
    def freed(self) -> Array:
        return self.table[FREED]

    @property
    def met(self) -> Array:
        return self.table[MET]

    def join(self, other: ClockRow) -> None:
        np.maximum(self.table, other.table, out=self.table)

    def with_memory(self, other: ClockRow) -> None:
        """What was freed, and time, are those of another row."""
        self.table[FREED] = other.freed
        self.table[MET] = other.met


@dataclass(slots=True)
class Snapshot:
    """The state of some strands behind a sync: their counts, which say where their clocks are."""

    strands: Array
    place: float
    counts: Array


_ENGINES = len(ENGINES)


@dataclass(frozen=True, slots=True)
class State:
    """Clocks and counts of strands by name, views of two tables, so that a release or a snapshot
    handles each as a whole. Counts have a row for each strand, or for each state of one; `learned`
    is the row of clocks that goes with it.

    `epoch` counts what a strand handed on, `own` the groups of its engines that are complete,
    `commits` those that it closed; `fence` and `fence_own` are epoch and `own` at its last fence of
    a proxy, by space, `fence_mma` the epoch at the last one of registers.
    """

    known: Array
    freed: Array
    seen: Array
    epoch: Array
    own: Array
    fence: Array
    fence_own: Array
    commits: Array
    fence_mma: Array
    learned: Array

    @staticmethod
    def width(spaces: int) -> int:
        """The counts of a strand."""
        return (1 + spaces) * (1 + _ENGINES) + len(KINDS) + 2

    @staticmethod
    def of(clocks: Array, counts: Array, spaces: int) -> State:
        fences = counts[:, 1 + _ENGINES : (1 + spaces) * (1 + _ENGINES)]
        fences = fences.reshape(len(counts), spaces, 1 + _ENGINES)
        return State(
            known=clocks[:, KNOWN],
            freed=clocks[:, FREED],
            seen=clocks[:, 2 : 2 + spaces],
            epoch=counts[:, 0],
            own=counts[:, 1 : 1 + _ENGINES],
            fence=fences[:, :, 0],
            fence_own=fences[:, :, 1:],
            commits=counts[:, -2 - len(KINDS) : -2],
            fence_mma=counts[:, -2],
            learned=counts[:, -1],
        )


@dataclass(slots=True)
class Clocks:
    """The clocks of all strands of a block, and the history that conflicts are tested against."""

    columns: Columns
    warps: Array
    sizes: Array
    model: Model
    has_proxy: bool
    table: Array = field(init=False)
    counts: Array = field(init=False)
    known: Array = field(init=False)
    seen: Array = field(init=False)
    met: Array = field(init=False)
    epoch: Array = field(init=False)
    own: Array = field(init=False)
    commits: Array = field(init=False)
    issued: Array = field(init=False)
    fence: Array = field(init=False)
    fence_own: Array = field(init=False)
    fence_mma: Array = field(init=False)
    stamps: Array = field(init=False)
    handed: tuple[Array, ...] = field(init=False)
    learned: Array = field(init=False)
    is_new: Array = field(init=False)
    """By strand, whether its clocks differ from those of its last snapshot."""
    nlessons: int = 0
    lessons: list[Array] = field(default_factory=list[Array])
    """The clocks of strands, but for time, whenever they had changed."""
    history: list[Snapshot] = field(default_factory=list[Snapshot])

    def __post_init__(self) -> None:
        n = self.columns.nstrands
        self.table = np.zeros((n, 3 + self.spaces, self.columns.width), np.int32)
        self.counts = np.zeros((n, State.width(self.spaces)), np.int32)
        self.issued, self.is_new = np.zeros((n, len(KINDS)), np.int32), np.ones(n, bool)
        used = [0, *(1 + k for k in self.columns.engines)]
        self.handed = np.ix_([KNOWN, KNOWN, *range(1, 1 + self.spaces)], used)
        self._name()
        self.note(np.arange(n), -np.inf)

    def fork(self) -> Clocks:
        """The clocks as they are, to go on by themselves; what was noted is the same."""
        new = copy(self)
        new.table, new.counts = self.table.copy(), self.counts.copy()
        new.issued, new.is_new = self.issued.copy(), self.is_new.copy()
        new.lessons, new.history = [*self.lessons], [*self.history]
        new._name()
        return new

    def _name(self) -> None:
        """Give parts of the two tables their names."""
        state = State.of(self.table, self.counts, self.spaces)
        self.known, self.seen, self.met = state.known, state.seen, self.table[:, MET]
        self.epoch, self.own, self.commits = state.epoch, state.own, state.commits
        self.fence, self.fence_own, self.fence_mma = state.fence, state.fence_own, state.fence_mma
        stamps = self.counts[:, : (1 + self.spaces) * (1 + _ENGINES)]
        self.stamps = stamps.reshape(len(stamps), 1 + self.spaces, 1 + _ENGINES)
        self.learned = state.learned

    @property
    def spaces(self) -> int:
        """Spaces of which proxies may see a part."""
        return len(SPACES) if self.has_proxy else 0

    def nothing(self) -> ClockRow:
        """A row of one who knows nothing."""
        return ClockRow(np.zeros_like(self.table[0]))

    # --- handing on ---------------------------------------------------------------------------

    def release(self, strands: Array) -> ClockRow:
        """What the strands did and know, joined; their next epochs begin."""
        row = self.table[strands].max(axis=0)
        self.epoch[strands] += 1
        # Of each clock a line for the strands themselves and one for each kind of their engines.
        n = self.columns.nstrands
        lines = row[:MET, : n * self.handed[1].size].reshape(len(row) - 1, -1, n)
        handed = self.stamps[strands[:, None, None], *self.handed].transpose(1, 2, 0)
        lines[:, :, strands] = np.maximum(lines[:, :, strands], handed)
        row[MET, strands] = np.maximum(row[MET, strands], self.epoch[strands])
        np.maximum(row[FREED], row[KNOWN], out=row[FREED])
        return ClockRow(row)

    def release_one(self, strand: int) -> ClockRow:
        """`release` of a single strand."""
        row = self.table[strand].copy()
        self.epoch[strand] += 1
        n = self.columns.nstrands
        lines = row[:MET, strand : n * self.handed[1].size : n]
        np.maximum(lines, self.stamps[strand][self.handed], out=lines)
        row[MET, strand] = self.epoch[strand]
        np.maximum(row[FREED], row[KNOWN], out=row[FREED])
        return ClockRow(row)

    def acquire(self, strands: Array | int, row: ClockRow) -> None:
        """The strands learn what a row hands on."""
        self.table[strands] = np.maximum(self.table[strands], row.table)
        self.is_new[strands] = True

    def meet(self, teams: Teams) -> None:
        """The strands of each team are at one place at one time; nothing is ordered in memory."""
        strands = teams.strands
        self.epoch[strands] += 1
        first, *others = teams.members
        rows = self.met[first]
        for members in others:
            np.maximum(rows, self.met[members], out=rows)
        rows[teams.team, strands] = np.maximum(rows[teams.team, strands], self.epoch[strands])
        self.met[strands] = rows[teams.team]

    def learn_phase(self, strands: Array | int, column: int, phases: int) -> None:
        """Strands know that so many phases of a barrier are complete."""
        for clock in (self.known, self.met):
            clock[strands, column] = np.maximum(clock[strands, column], phases)
        self.is_new[strands] = True

    def phase_row(self, strand: int) -> ClockRow:
        """Only what a strand knows of phases, and which mbarriers the async proxy sees made: it is
        not memory that an issue hands on."""
        phases = self.columns.phases
        row = self.nothing()
        for clock in (KNOWN, SEEN, MET):
            row.table[clock, phases] = self.table[strand, clock, phases]
        if LAUNCHES in self.columns.barriers:  # what launches did is memory
            row.table[KNOWN, self.columns.barrier(LAUNCHES)] = 0
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
                self.is_new[:] = True

    def _wait_mma(self, strands: Array, done: Array) -> None:
        """A warp makes its products together: each of its lanes learns of all of them."""
        size = 1 if self.model.mma_waits_stay_in_warp else WARPS_OF_MMA
        warps = self.warps // size
        is_shared = warps[strands][:, None] == warps
        part = self.known[:, self.columns.engine(engines_of(ir.AsyncKind.MMA)[0])]
        part[strands] = np.maximum(part[strands], np.where(is_shared, done[:, None], 0))
        self.is_new[strands] = True

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
        self.is_new[strands] = True

    # --- history ------------------------------------------------------------------------------

    def note(self, strands: Array, place: float) -> None:
        """Remember the state of the strands behind an event at `place`."""
        fresh = strands[self.is_new[strands]]
        if len(fresh):
            self.learned[fresh] = np.arange(len(fresh)) + self.nlessons
            self.nlessons += len(fresh)
            self.lessons.append(self.table[fresh, :MET])
            self.is_new[fresh] = False
        self.history.append(Snapshot(strands, place, self.counts[strands]))


@dataclass(frozen=True, slots=True)
class History:
    """All snapshots as one table. `rows` numbers them in order of strand and place, which `keys`
    has in one number, for events below `stride`."""

    keys: Array
    rows: Array
    stride: int
    state: State

    @staticmethod
    def of(end: Clocks, nevents: int) -> History:
        found = end.history
        stride = nevents + 2
        strands = np.concatenate([s.strands for s in found])
        places = np.repeat([max(s.place, -1.0) for s in found], [len(s.strands) for s in found])
        keys = strands * stride + places + 1.0
        rows = np.argsort(keys, kind="stable")
        clocks = np.concatenate(end.lessons)
        counts = np.concatenate([s.counts for s in found])
        return History(
            keys[rows], rows, stride, State.of(clocks, counts, spaces=clocks.shape[1] - 2)
        )

    def at(self, strands: Array, events: Array) -> Array:
        """The row of each strand's state when it comes to an event."""
        keys = strands * self.stride + events + 1.0
        return self.rows[np.searchsorted(self.keys, keys) - 1]
