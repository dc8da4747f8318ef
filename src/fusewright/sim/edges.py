"""Whether the history of a replay orders conflicts: what each kind of access makes known, when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fusewright.kir.traits import AsyncKind
from fusewright.sim.clocks import ENGINES, KIND_OF, Barrier, Columns, History
from fusewright.sim.compute import Array
from fusewright.sim.lives import Deliveries
from fusewright.sim.model import Model
from fusewright.sim.trace import REGISTERS, Agent, Trace, TracedAccess

_THREAD, _COUNTED = -1, -2
"""Who makes an access that is no engine's: the thread itself, or what an mbarrier counts."""
_NEVER = 1 << 30
"""More than any number a row reaches: what no mbarrier in the trace counts, nobody knows of."""


def agents_of(trace: Trace, model: Model) -> Array:
    """For each event the number of the engine that makes it, or who else, whether that is in the
    async proxy, whether it writes, 1 beyond shared memory, -1 for registers, and what issued it.
    """
    known: dict[Agent, tuple[int, int]] = {}
    table: list[tuple[int, int, int, int, int]] = []
    for e in trace.events:
        if not isinstance(e, TracedAccess):
            table.append((_THREAD, 0, 0, 0, -1))
            continue
        if e.agent not in known:
            known[e.agent] = _number(e.agent, model)
        table.append((*known[e.agent], int(e.writes), _where(e.space), e.issue))
    return np.array(table).T


def _where(space: int) -> int:
    return -1 if space == REGISTERS else int(space > 0)


def _number(agent: Agent, model: Model) -> tuple[int, int]:
    """Who makes an access, and whether it is in the async proxy."""
    way = agent.completes
    if way.kind is AsyncKind.MMA:
        is_asynchronous = model.mma_is_asynchronous
    elif agent.in_async_proxy:
        is_asynchronous = model.bulk_is_asynchronous
    elif way.by_mbarrier:
        is_asynchronous = model.remote_stores_are_asynchronous
    else:
        is_asynchronous = model.copies_are_asynchronous
    if way.at_once or not is_asynchronous:
        return _THREAD, 0
    return (_COUNTED if way.by_mbarrier else ENGINES.index(way)), int(agent.in_async_proxy)


@dataclass(frozen=True, slots=True)
class EdgeTest:
    """Whether a history orders the two ends of each edge; `agents` says who makes each event,
    `warps` and `blocks` are those of each strand, `ends` is the place each strand comes to,
    `loads` what mbarriers counted, `made` the columns that say who knows that one is made, and
    `places` says where each event stands in the changed kernel."""

    agents: Array
    columns: Columns
    warps: Array
    blocks: Array
    model: Model
    history: History
    ends: Array
    loads: Deliveries
    made: Mapping[tuple[int, int], Barrier]
    places: Array

    def unordered(self, edges: Array) -> Array:
        """Which edges (event, strand, event, strand, same thread) are executed and not ordered."""
        a, sa, b, sb, same = edges.T
        agent, proxied, writes, beyond, _ = self.agents
        first = agent[a]
        before = self.history.at(sa, self.places[a])
        after = self.history.at(sb, self.places[b])
        column, stamp = self._stamps(first, a, sa, before)
        state = self.history.state
        learned = state.learned[after]
        ordered: Array = state.known[learned, column] > stamp
        ordered |= (writes[a] == 0) & (state.freed[learned, column] > stamp)
        is_engine = first >= 0
        engine = np.where(is_engine, first, 0)
        ordered |= is_engine & (same == 1) & (state.own[after, engine] > stamp)
        ordered |= (same == 1) & (first == _THREAD)
        crosses = (writes[a] == 1) & (first != _COUNTED) & (proxied[a] < proxied[b])
        if self.model.proxies_end_at_the_block:
            crosses |= (writes[a] & proxied[a] & proxied[b] == 1) & (
                (first != _COUNTED) & (self.blocks[sa] != self.blocks[sb])
            )
        if self.model.proxies_need_fences and crosses.any():
            space = beyond[b]
            fenced = state.seen[learned, space, column] > stamp
            mine = np.where(
                first == _THREAD,
                state.fence[after, space],
                state.fence_own[after, space, engine],
            )
            fenced |= (same == 1) & (mine > stamp)
            ordered = np.where(crosses, fenced, ordered)
        taken = (beyond[a] < 0) & (first == _THREAD) & (agent[b] != _THREAD)
        if self.model.mma_needs_fence and taken.any():
            ordered = np.where(taken, state.fence_mma[after] > stamp, ordered)
        if self.model.warps_are_lockstep:
            ordered |= self.warps[sa] == self.warps[sb]
        executed = (a < self.ends[sa]) & (b < self.ends[sb])
        return executed & ~ordered

    def _stamps(self, agent: Array, a: Array, sa: Array, before: Array) -> tuple[Array, Array]:
        """The column of each first access, and the number a row must exceed there to know it."""
        state, columns = self.history.state, self.columns
        column, stamp = sa.copy(), state.epoch[before].astype(np.int64)
        for k in range(len(ENGINES)):
            here = agent == k
            if here.any():
                column[here] = columns.engine(k).start + sa[here]
                stamp[here] = state.commits[before[here], KIND_OF[k]]
        counted = {at: (columns.barrier(b), phase) for at, (b, phase) in self.loads.items()}
        rows = np.flatnonzero(agent == _COUNTED)
        stamp[rows] = _NEVER
        self._mark((column, stamp), rows, a, sa, counted)
        made = {at: (columns.barrier(b), 0) for at, b in self.made.items()}
        self._mark((column, stamp), np.flatnonzero(agent == _THREAD), a, sa, made)
        return column, stamp

    def _mark(
        self,
        stamps: tuple[Array, Array],
        rows: Array,
        a: Array,
        sa: Array,
        marks: Mapping[tuple[int, int], tuple[int, int]],
    ) -> None:
        """Of some rows, those whose issuing event and strand are marked get the mark's column and
        stamp."""
        if not marks or not len(rows):
            return
        n = self.columns.nstrands
        table = [(event * n + strand, *mark) for (event, strand), mark in sorted(marks.items())]
        found: Array = np.array(table)
        codes, columns, numbers = found[:, 0], found[:, 1], found[:, 2]
        wanted: Array = self.agents[-1, a[rows]] * n + sa[rows]
        hit: Array = np.isin(wanted, codes)
        at = codes.searchsorted(wanted[hit])
        stamps[0][rows[hit]], stamps[1][rows[hit]] = columns[at], numbers[at]
