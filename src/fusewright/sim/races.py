"""The race detector: watches a run batch by batch, then decides by replay."""

from __future__ import annotations

import numpy as np

from fusewright.kir import ir
from fusewright.sim.compute import Array
from fusewright.sim.conflicts import check_initialised, conflicts_of, site_of
from fusewright.sim.frame import Execution
from fusewright.sim.launches import EarlyLaunch, TouchedMemory, shared_touches, takes_part
from fusewright.sim.lives import remote_writes
from fusewright.sim.model import Model
from fusewright.sim.order import Change, Unordered, Verdict, end_of, replay
from fusewright.sim.ownership import Ownership
from fusewright.sim.replayable import Replayable, replayable
from fusewright.sim.report import Findings, Race
from fusewright.sim.trace import REGISTERS, SyncEvent, Trace, signatures, strands_of

_NO_CHANGE = Change()


class Detector:
    """Collects, from the traces of a run, one representative of each class of blocks.

    Blocks with the same sync events make one group, replayed once; of those, blocks with the same
    accesses (global ones relative to the block's first) make one class, analysed once.
    """

    def __init__(self, execution: Execution, model: Model) -> None:
        self.execution = execution
        self.model = model
        self.ownership = Ownership(
            execution.memory, execution.nthreads, execution.row_blocks, model, execution.findings
        )
        self.groups: dict[tuple[object, ...], Replayable] = {}
        self._seen: set[tuple[object, ...]] = set()
        self._unchanged: dict[int, list[Race]] = {}
        kernel, memory = execution.kernel, execution.memory
        self.touched = TouchedMemory(memory, kernel) if takes_part(kernel) else None
        self._awaited = frozenset(memory.places[b].space for b in kernel.awaited)
        self._ends: dict[tuple[object, ...], EarlyLaunch] = {}

    def observe(self, trace: Trace) -> None:
        """Take in one batch."""
        self._unchanged.clear()
        spaces = self.ownership.observe(trace) | {0} | self._awaited
        if self.execution.tracked.ncells:
            spaces |= {REGISTERS}
        found = signatures(trace, spaces)
        sequence = tuple(id(e.statement) for e in trace.events)
        fresh: dict[tuple[object, ...], list[int]] = {}
        rows = np.unique(found.full, return_index=True)[1]
        for row in sorted(int(r) for r in rows):
            full = (sequence, spaces, int(found.full[row]))
            if full not in self._seen:
                self._seen.add(full)
                fresh.setdefault((sequence, int(found.sync[row])), []).append(row)
        for key, members in fresh.items():
            self._analyse(trace, key, np.array(members), spaces)
        if self.touched is not None:
            for sync in np.unique(found.sync).tolist():
                rows = np.flatnonzero(found.sync == sync)
                self._touch(self.touched, trace, (sequence, int(sync)), rows)

    def _touch(
        self, touched: TouchedMemory, trace: Trace, key: tuple[object, ...], rows: Array
    ) -> None:
        """Notes what some rows with the same sync events touch, before a wait and behind it."""
        if key not in self._ends:
            self._ends[key] = end_of(self.groups[key])
        touched.observe(trace, rows, self.groups[key].strands, self._ends[key])

    def _analyse(
        self, trace: Trace, key: tuple[object, ...], rows: Array, spaces: frozenset[int]
    ) -> None:
        findings = self.execution.findings
        group = self.groups.get(key)
        if group is None:
            strands = strands_of(trace, int(rows[0]))
            group = self.groups[key] = replayable(trace, int(rows[0]), strands, self.model)
        check_initialised(trace, rows, self.model, findings)
        writes = remote_writes(trace, rows, group.strands, group.blocks)
        group.remote.update(dict.fromkeys(writes))
        group.shared.update(dict.fromkeys(shared_touches(trace, rows, group.strands)))
        found = conflicts_of(trace, rows, group.strands, spaces, self.model, findings)
        if len(found.edges):
            group.conflicts.append(found)

    def replays(self, change: Change = _NO_CHANGE) -> list[Verdict]:
        """What the syncs leave without an order, and the rules they break, by group of blocks."""
        return [replay(g, change) for g in self.groups.values()]

    def unordered(self, change: Change = _NO_CHANGE) -> list[Unordered]:
        """The conflicts that the syncs leave without an order."""
        return [u for v in self.replays(change) for u in v.unordered]

    def report(self, seed: int, change: Change = _NO_CHANGE) -> list[Race]:
        """One race for each pair of statements of the changed kernel, and its broken rules. What
        the kernel itself lacks is found once."""
        if change == _NO_CHANGE:
            if seed not in self._unchanged:
                self._unchanged[seed] = self._report(seed, change)
            return self._unchanged[seed]
        return self._report(seed, change)

    def _report(self, seed: int, change: Change) -> list[Race]:
        findings = Findings(seed)
        for v in self.replays(change):
            for u in v.unordered:
                _report(u, change, findings)
            for f in v.faults:
                findings.add(f.kind, f.message, statement=f.statement)
        return findings.list()


def _report(u: Unordered, change: Change, findings: Findings) -> None:
    events = u.group.trace.events
    pairs: dict[tuple[int, int], tuple[Array, int]] = {}
    for edge in u.edges:
        key = (id(events[int(edge[0])].statement), id(events[int(edge[2])].statement))
        old = pairs.get(key)
        pairs[key] = (edge, 1) if old is None else (old[0], old[1] + 1)
    for edge, count in pairs.values():
        touches, a, b = u.conflicts.example(edge, len(events), u.group.nstrands)
        first = site_of(u.group.trace, touches, a, u.conflicts.blocks)
        second = site_of(u.group.trace, touches, b, u.conflicts.blocks)
        between: dict[ir.Statement, None] = {}
        for e in events[int(edge[0]) : int(edge[2])]:
            s = e.statement
            is_sync = isinstance(e, SyncEvent) and isinstance(s, ir.SyncStatement)
            if is_sync and s not in change.without:
                between[s] = None
        kind = (
            ("write" if second.writes else "read")
            + " after "
            + ("write" if first.writes else "read")
        )
        elsewhere = "" if first.block == second.block else f" of block {first.block}"
        findings.add(
            "race",
            f"{kind} of {second.buffer}[{second.element}] without an order between thread "
            f"{first.thread}{elsewhere} and thread {second.thread} of block {second.block}",
            first=first,
            second=second,
            between=tuple(between)[-4:],
            count=count,
        )
