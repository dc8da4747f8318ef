"""Vector clocks of one block: what every strand knows of every other, of engines and of barriers.

A row has a column for each strand (epochs: an access at epoch e is known to who has more than e),
for each strand's engine of a kind (groups complete), and for each barrier (phases complete).
`known` is memory, `freed` of it what was read; `seen` is what the async proxy of each strand's
successors may see, for shared and for global memory; `met` is time, which alone orders nothing in
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
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


@dataclass(frozen=True, slots=True)
class Teams:
    """Strands in order of their teams, the team of each, and where each team begins."""

    strands: Array
    team: Array
    begins: Array

    @staticmethod
    def of(strands: Array, groups: Array) -> Teams:
        """The strands by the number of the group that each belongs to."""
        order = np.argsort(groups, kind="stable")
        _, begins, team = np.unique(groups[order], return_index=True, return_inverse=True)
        return Teams(strands[order], team, begins)


KNOWN, FREED, MET, SEEN = range(4)
"""The rows of a strand lie in one array, so that they are handed on together. Of the last kind
there is one for each space where the trace uses the async proxy, else none."""


@dataclass(slots=True)
class ClockRow:
    """What one release hands on: the rows of a strand, joined by the larger of each number."""

    rows: Array

    @property
    def known(self) -> Array:
        return self.rows[KNOWN]

    @property
    def met(self) -> Array:
        return self.rows[MET]

    def join(self, other: ClockRow) -> None:
        np.maximum(self.rows, other.rows, out=self.rows)

    def freed_of(self, other: ClockRow) -> ClockRow:
        """This row, but what was read, and what is over, as another has it."""
        rows = self.rows.copy()
        rows[[FREED, MET]] = other.rows[[FREED, MET]]
        return ClockRow(rows)


@dataclass(frozen=True, slots=True)
class State:
    """The state of some strands behind a sync: a row of each array for each of them."""

    rows: Array
    told: Array
    commits: Array
    fence_mma: Array
    epoch: Array

    @property
    def known(self) -> Array:
        return self.rows[:, KNOWN]

    @property
    def freed(self) -> Array:
        return self.rows[:, FREED]

    @property
    def seen(self) -> Array:
        return self.rows[:, SEEN:]

    @property
    def own(self) -> Array:
        return self.told[:, KNOWN, 1:]

    @property
    def fence(self) -> Array:
        return self.told[:, SEEN:, 0]

    @property
    def fence_own(self) -> Array:
        return self.told[:, SEEN:, 1:]


@dataclass(slots=True)
class Clocks:
    """The clocks of all strands of a block, and the history that conflicts are tested against.

    `rows` is what each strand knows. `told` is what a release adds of the strand itself, for each
    row its epoch and then its engines: how far others shall know it.
    """

    columns: Columns
    warps: Array
    sizes: Array
    model: Model
    has_proxy: bool
    rows: Array = field(init=False)
    told: Array = field(init=False)
    epoch: Array = field(init=False)
    commits: Array = field(init=False)
    issued: Array = field(init=False)
    fence_mma: Array = field(init=False)
    history: list[tuple[Array, float, State]] = field(
        default_factory=list[tuple[Array, float, State]]
    )
    _mine: Array = field(init=False)

    def __post_init__(self) -> None:
        n, c = self.columns.nstrands, self.columns.width
        nrows = SEEN + (len(SPACES) if self.has_proxy else 0)
        self.rows = np.zeros((n, nrows, c), np.int32)
        self.told = np.zeros((n, nrows, 1 + len(ENGINES)), np.int32)
        self.epoch = np.zeros(n, np.int32)
        self.commits = np.zeros((n, len(KINDS)), np.int32)
        self.issued = np.zeros((n, len(KINDS)), np.int32)
        self.fence_mma = np.zeros(n, np.int32)
        kept = 1 + (len(ENGINES) if self.columns.has_engines else 0)
        self._mine = np.arange(n)[:, None] + n * np.arange(kept)
        self.note(np.arange(n), -np.inf)

    @property
    def known(self) -> Array:
        return self.rows[:, KNOWN]

    @property
    def met(self) -> Array:
        return self.rows[:, MET]

    @property
    def own(self) -> Array:
        """The groups of each engine that each strand knows to be complete."""
        return self.told[:, KNOWN, 1:]

    # --- handing on ---------------------------------------------------------------------------

    def release(self, strands: Array) -> ClockRow:
        """What the strands did and know, joined; their next epochs begin."""
        after = self.epoch[strands] + 1
        self.epoch[strands] = after
        self.told[strands, KNOWN, 0] = self.told[strands, MET, 0] = after
        mine = self._mine[strands]
        told = self.told[strands, :, : mine.shape[1]].transpose(1, 0, 2)
        row = self.rows[strands].max(axis=0)
        row[:, mine] = np.maximum(row[:, mine], told)
        np.maximum(row[FREED], row[KNOWN], out=row[FREED])
        return ClockRow(row)

    def release_one(self, strand: int) -> ClockRow:
        """`release` of a single strand."""
        told = self.told[strand]
        self.epoch[strand] += 1
        told[KNOWN, 0] = told[MET, 0] = self.epoch[strand]
        mine = self._mine[strand]
        row = self.rows[strand].copy()
        row[:, mine] = np.maximum(row[:, mine], told[:, : len(mine)])
        np.maximum(row[FREED], row[KNOWN], out=row[FREED])
        return ClockRow(row)

    def acquire(self, strands: Array | int, row: ClockRow) -> None:
        """The strands learn what a row hands on."""
        self.rows[strands] = np.maximum(self.rows[strands], row.rows)

    def meet(self, teams: Teams) -> None:
        """The strands of each team are at one place at one time; nothing is ordered in memory."""
        strands = teams.strands
        rows = np.maximum.reduceat(self.rows[strands, MET], teams.begins, axis=0)
        self.epoch[strands] += 1
        rows[teams.team, strands] = np.maximum(rows[teams.team, strands], self.epoch[strands])
        self.rows[strands, MET] = rows[teams.team]

    def learn_phase(self, strand: int, which: Barrier, phases: int) -> None:
        """A strand knows that so many phases of a barrier are complete."""
        column = self.columns.barrier(which)
        for row in (KNOWN, MET):
            self.rows[strand, row, column] = max(int(self.rows[strand, row, column]), phases)

    def phase_row(self, strand: int) -> ClockRow:
        """Only what a strand knows of phases, and which mbarriers the async proxy sees made: it is
        not memory that an issue hands on."""
        rows, phases = np.zeros_like(self.rows[strand]), self.columns.phases
        rows[:, phases] = self.rows[strand, :, phases]
        rows[FREED] = 0
        return ClockRow(rows)

    def time_of(self, strand: int) -> Array:
        """What a strand knows in time of each strand; of itself all, where it is one thread."""
        row = self.rows[strand, MET, : self.columns.nstrands].copy()
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
        """All but the `keep` latest groups of each thread are complete; nothing where the trace has
        no operation that a group could hold."""
        if not self.columns.has_engines:
            return
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
        size = 1 if self.model.mma_waits_stay_in_warp else WARPS_OF_MMA
        warps = self.warps // size
        is_shared = warps[strands][:, None] == warps
        part = self.known[:, self.columns.engine(engines_of(ir.AsyncKind.MMA)[0])]
        part[strands] = np.maximum(part[strands], np.where(is_shared, done[:, None], 0))

    def fence_mma_registers(self, strands: Array) -> None:
        """What the strands did with their registers so far comes before later products."""
        self.fence_mma[strands] = self.epoch[strands] + 1
        self.epoch[strands] += 1

    def fence_proxy(self, strands: Array, space: Memory) -> None:
        """What the strands did in a space so far is visible to the async proxy."""
        if not self.has_proxy:
            return
        k = SEEN + SPACES.index(space)
        self.epoch[strands] += 1
        self.told[strands, k, 0] = self.epoch[strands]
        self.told[strands, k, 1:] = self.own[strands]
        strict = space is Memory.SHARED and self.model.fences_stand_at_writers
        first = self.columns.nstrands if strict else 0
        seen, known = self.rows[strands, k, first:], self.rows[strands, KNOWN, first:]
        self.rows[strands, k, first:] = np.maximum(seen, known)

    # --- history ------------------------------------------------------------------------------

    def note(self, strands: Array, place: float) -> None:
        """Remember the state of the strands behind an event at `place`."""
        state = State(
            self.rows[strands],
            self.told[strands],
            self.commits[strands],
            self.fence_mma[strands],
            self.epoch[strands],
        )
        self.history.append((strands, place, state))


@dataclass(frozen=True, slots=True)
class History:
    """All snapshots as one table. `rows` numbers them in order of strand and place, which `keys`
    has in one number, for events below `stride`."""

    keys: Array
    rows: Array
    stride: int
    state: State

    @staticmethod
    def of(found: Sequence[tuple[Array, float, State]], nevents: int) -> History:
        stride = nevents + 2
        strands = np.concatenate([s for s, _, _ in found])
        places = np.repeat([max(p, -1.0) for _, p, _ in found], [len(s) for s, _, _ in found])
        keys = strands * stride + places + 1.0
        rows = np.argsort(keys, kind="stable")
        parts = (
            np.concatenate([getattr(state, f.name) for _, _, state in found]) for f in fields(State)
        )
        return History(keys[rows], rows, stride, State(*parts))

    def at(self, strands: Array, events: Array) -> Array:
        """The row of each strand's state when it comes to an event."""
        keys = strands * self.stride + events + 1.0
        return self.rows[np.searchsorted(self.keys, keys) - 1]
