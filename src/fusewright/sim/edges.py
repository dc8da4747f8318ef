"""Whether the history of a replay orders conflicts: what each kind of access makes known, when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fusewright.sim.clocks import ENGINES, KIND_OF_ENGINE, Barrier, Columns, History
from fusewright.sim.compute import Array
from fusewright.sim.lives import Deliveries
from fusewright.sim.model import Model
from fusewright.sim.trace import REGISTERS, Access, Trace

_GENERIC, _CP, _READ, _WRITE, _MMA, _LOAD, _REMOTE = 0, 1, 2, 3, 4, 5, 6
_AGENTS: Mapping[str, int] = {
    "generic": _GENERIC,
    **{name: 1 + k for k, name in enumerate(ENGINES)},
    "bulk_load": _LOAD,
    "remote": _REMOTE,
}


def _agents(trace: Trace) -> Array:
    """For each event the agent, whether it writes, 1 beyond shared memory, what issued it, and
    whether it is an access to registers."""
    table = [
        (_AGENTS[e.agent], int(e.writes), int(e.space > 0), e.issue, int(e.space == REGISTERS))
        if isinstance(e, Access)
        else (0, 0, 0, -1, 0)
        for e in trace.events
    ]
    return np.array(table).T


@dataclass(frozen=True, slots=True)
class EdgeTest:
    """Whether a history orders the two ends of each edge; `ends` is the place each strand comes to,
    `loads` what mbarriers counted, `made` the columns that say who knows that one is made."""

    trace: Trace
    columns: Columns
    warps: Array
    model: Model
    history: History
    ends: Array
    loads: Deliveries
    made: Mapping[tuple[int, int], Barrier]
    events: Array = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", _agents(self.trace))

    def unordered(self, edges: Array) -> Array:
        """Which edges (event, strand, event, strand, same thread) are executed and not ordered."""
        a, sa, b, sb, same = edges.T
        agent, writes, beyond, _, registers = self.events
        first, second = self._agent(agent[a]), self._agent(agent[b])
        before, after = self.history.at(sa, a), self.history.at(sb, b)
        column, stamp = self._stamps(first, a, sa, before)
        state = self.history.state
        ordered: Array = state.known[after, column] > stamp
        is_engine = (first >= _CP) & (first <= _MMA)
        own = state.own[after, np.where(is_engine, first - _CP, 0)] > stamp
        ordered |= is_engine & (same == 1) & own
        ordered |= (same == 1) & (first == _GENERIC)
        crosses = (
            (registers[a] == 0)
            & (writes[a] == 1)
            & (first <= _CP)
            & (second >= _READ)
            & (second <= _LOAD)
        )
        if self.model.proxies_need_fences and crosses.any():
            space = beyond[b]
            fenced = state.seen[after, space, column] > stamp
            mine = np.where(
                first == _GENERIC,
                state.fence[after, space],
                state.fence_own[after, space, 0],
            )
            fenced |= (same == 1) & (mine > stamp)
            ordered = np.where(crosses, fenced, ordered)
        taken = (registers[a] == 1) & (first == _GENERIC) & (second == _MMA)
        if self.model.mma_needs_fence and taken.any():
            ordered = np.where(taken, state.fence_mma[after] > stamp, ordered)
        if self.model.warps_are_lockstep:
            ordered |= self.warps[sa] == self.warps[sb]
        executed = (a < self.ends[sa]) & (b < self.ends[sb])
        return executed & ~ordered

    def _agent(self, agent: Array) -> Array:
        if not self.model.copies_are_asynchronous:
            agent = np.where(agent == _CP, _GENERIC, agent)
        if not self.model.bulk_is_asynchronous:
            is_bulk = (agent >= _READ) & (agent <= _LOAD) & (agent != _MMA)
            agent = np.where(is_bulk, _GENERIC, agent)
        if not self.model.mma_is_asynchronous:
            agent = np.where(agent == _MMA, _GENERIC, agent)
        if not self.model.remote_stores_are_asynchronous:
            agent = np.where(agent == _REMOTE, _GENERIC, agent)
        return agent

    def _stamps(self, agent: Array, a: Array, sa: Array, before: Array) -> tuple[Array, Array]:
        """The column of each first access, and the number a row must exceed there to know it."""
        state, columns = self.history.state, self.columns
        column, stamp = sa.copy(), state.epoch[before].astype(np.int64)
        for k in range(len(ENGINES)):
            here = agent == _CP + k
            if here.any():
                column[here] = columns.engine(k).start + sa[here]
                stamp[here] = state.commits[before[here], KIND_OF_ENGINE[k]]
        for i in np.flatnonzero(agent >= _LOAD).tolist():
            load = self.loads.get((int(self.events[3, a[i]]), int(sa[i])))
            column[i] = sa[i] if load is None else columns.barrier(load[0])
            stamp[i] = 1 << 30 if load is None else load[1]
        for i in np.flatnonzero(agent == _GENERIC).tolist() if self.made else ():
            made = self.made.get((int(self.events[3, a[i]]), int(sa[i])))
            if made is not None:
                column[i], stamp[i] = columns.barrier(made), 0
        return column, stamp
