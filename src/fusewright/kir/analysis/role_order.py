"""What roles know of each other: who arrived at which barrier behind what, and who waited there.

Events of roles are run side by side, each role until it has to wait. What an agent knows of another
is the latest of its arrivals that reached it, over others too; all threads of an agent know what
they all waited for, and the thread that waits alone knows more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fusewright.kir.analysis.async_run import Agent, Event, Instance
from fusewright.kir.analysis.sites import Path
from fusewright.kir.ir import BarrierArrive, NamedSync, Statement
from fusewright.kir.traits import Act

Who: TypeAlias = tuple[Agent, int | None]
"""All threads of an agent, or one that waits alone."""
Clock: TypeAlias = Mapping[Agent, Instance]
"""By agent the latest arrival that is known of."""
Arrivals: TypeAlias = tuple[Sequence[int], Sequence[Instance | None]]
"""Times behind which another arrival is known of, and what is known before and behind each."""


@dataclass(frozen=True, slots=True, eq=False)
class RoleOrder:
    """By who waited, when, and what was known from then on; and those that wait for ever."""

    known: Mapping[Who, tuple[Sequence[int], Sequence[Clock]]]
    stuck: Sequence[Event]
    _arrivals: dict[tuple[Agent, Who], Arrivals] = field(
        default_factory=dict["tuple[Agent, Who]", "Arrivals"]
    )

    def arrivals_known(self, of: Agent, to: Agent, issuer: int | None) -> Arrivals:
        """The latest arrivals by one agent that another, or one thread of it, knows of."""
        key = of, (to, issuer)
        if key not in self._arrivals:
            found = self.known.get((to, issuer)) or self.known.get((to, None))
            times: Sequence[int] = () if found is None else found[0]
            clocks: Sequence[Clock] = () if found is None else found[1]
            self._arrivals[key] = times, [None, *(c.get(of) for c in clocks)]
        return self._arrivals[key]

    def arrival_known(self, of: Agent, to: Agent, issuer: int | None, time: int) -> Instance | None:
        """The latest arrival by one agent that another, or one thread of it, knows of at a time."""
        times, arrivals = self.arrivals_known(of, to, issuer)
        return arrivals[bisect_left(times, time)]


@dataclass(slots=True, eq=False)
class _Barrier:
    """An mbarrier while roles are run against each other.

    A phase takes `count` arrivals; the one under way still takes `pending` of them and `nbytes`
    bytes. `clock` and `far` say who has arrived in it, in this block and in others of the cluster.
    Of the phases that are completed, `done` has what each hands on; of all, `ends` has the waits
    behind each, which end the loads that it counts. `known` is how many phases each who waits has
    seen, `seen` when each agent as a whole had seen how many.
    """

    count: int
    pending: int
    nbytes: int = 0
    clock: dict[Agent, Instance] = field(default_factory=dict["Agent", Instance])
    far: set[Agent] = field(default_factory=set["Agent"])
    done: list[Clock] = field(default_factory=list[Clock])
    ends: list[list[Instance]] = field(default_factory=lambda: [[]])
    known: dict[Who, int] = field(default_factory=dict[Who, int])
    seen: dict[Agent, list[tuple[int, int]]] = field(
        default_factory=dict["Agent", "list[tuple[int, int]]"]
    )

    def advance(self) -> None:
        """Begin the next phase once this one has all it takes."""
        if self.pending == 0 and self.nbytes == 0:
            self.done.append(dict(self.clock))
            self.ends.append([])
            self.far.clear()
            self.pending = self.count


def role_order(events: Sequence[Event]) -> tuple[RoleOrder, dict[Instance, list[Instance]]]:
    """What roles know of each other, and the waits behind which bulk loads are complete."""
    work = _Roles()
    for batch in _batches(_meeting(events)):
        work.run(batch)
    known = {who: (times, clocks) for who, (times, clocks) in work.known.items()}
    return RoleOrder(known, tuple(work.stuck)), work.ends


def _meeting(events: Iterable[Event]) -> list[Event]:
    """The events at barriers, of which there is one for several others."""
    is_one: dict[Statement, bool] = {}
    out: list[Event] = []
    for e in events:
        s = e.statement
        if s not in is_one:
            is_one[s] = e.use is not None or isinstance(s, NamedSync | BarrierArrive)
        if is_one[s]:
            out.append(e)
    return out


def _batches(events: Sequence[Event]) -> Iterator[dict[Agent, list[Event]]]:
    """The events of agents that run side by side, each agent's in order."""
    batch: dict[Agent, list[Event]] = {}
    around: Path | None = None
    for e in events:
        agent = e.instance.agent
        here = None if agent is None else agent[:-1]
        if batch and here != around:
            yield batch
            batch = {}
        around = here
        if agent not in batch:
            batch[agent] = []
        batch[agent].append(e)
    if batch:
        yield batch


class _Roles:
    """Runs agents side by side."""

    def __init__(self) -> None:
        self.known: dict[Who, tuple[list[int], list[Clock]]] = {}
        self.ends: dict[Instance, list[Instance]] = {}
        self.stuck: list[Event] = []
        self._barriers: dict[Hashable, _Barrier] = {}
        self._lost: set[Hashable] = set()
        self._awaited: dict[int, tuple[_Barrier, int]] = {}

    def run(self, batch: dict[Agent, list[Event]]) -> None:
        """Each agent in turn until it has to wait; where all do, those that wait go on knowing
        nothing."""
        rows = [list(reversed(row)) for row in batch.values()]
        while any(rows):
            went = False
            for row in rows:
                while row and self._take(row[-1]):
                    row.pop()
                    went = True
            if not went:
                for row in rows:
                    if row:
                        self.stuck.append(row.pop())

    def _take(self, e: Event) -> bool:
        """One event; False when it has to wait."""
        if e.use is None:
            s = e.statement
            assert isinstance(s, NamedSync | BarrierArrive)
            return self._named(e, s)
        around = e.instance.branches
        if e.slot is None or (around and any(isinstance(b, tuple) for b in around)):
            self._lost.add(e.use.barrier)
        if e.use.barrier in self._lost:
            return True
        assert e.slot is not None
        return self._mbarrier(e, e.slot)

    def _mbarrier(self, e: Event, slot: int) -> bool:
        use = e.use
        assert use is not None
        key = use.barrier, slot
        m = self._barriers.get(key)
        if use.act is Act.MAKE:
            self._barriers[key] = _Barrier(use.count, use.count)
            return True
        if use.act is Act.END:
            self._barriers.pop(key, None)
            return True
        if m is None:
            if use.act is not Act.WAIT:
                self._lost.add(use.barrier)
            return True
        who = e.instance.agent, e.statement.issuing_thread()
        match use.act:
            case Act.ARRIVE:
                m.nbytes += use.nbytes
                m.pending -= 1 if who[1] is not None else e.nthreads // use.threads_each
                self._hand_on(m, e, who)
                m.advance()
            case Act.DELIVER if e.nbytes is None or (use.rank is not None and m.done):
                self._lost.add(use.barrier)
            case Act.DELIVER:
                assert e.nbytes is not None
                self.ends[e.instance] = m.ends[-1]
                m.nbytes -= e.nbytes
                m.advance()
            case _:
                return self._wait(m, e, who)
        return True

    def _wait(self, m: _Barrier, e: Event, who: Who) -> bool:
        if e.parity is None:
            return True
        known = max(m.known.get(who, 0), m.known.get((who[0], None), 0), self._told(m, who))
        phases = known if known % 2 != e.parity else known + 1
        if phases > len(m.done):
            return False
        for row in m.ends[m.known.get(who, 0) : phases]:
            row.append(e.instance)
        m.known[who] = phases
        if who[1] is None:
            m.seen.setdefault(who[0], []).append((e.instance.time, phases))
        if phases:
            self._learn(e, who, m.done[phases - 1])
        return True

    def _told(self, m: _Barrier, who: Who) -> int:
        """How many phases others had seen before they arrived, as it is known of them."""
        if not m.seen or (len(m.seen) == 1 and who[0] in m.seen):
            return 0
        found = self.known.get(who) or self.known.get((who[0], None))
        clock: Clock = found[1][-1] if found is not None and found[1] else {}
        told = 0
        for agent, seen in m.seen.items():
            if agent == who[0] or agent not in clock:
                continue
            at = bisect_left(seen, (clock[agent].time, 0))
            if at and seen[at - 1][1] > told:
                told = seen[at - 1][1]
        return told

    def _named(self, e: Event, s: NamedSync | BarrierArrive) -> bool:
        awaited = self._awaited.get(id(e))
        who = e.instance.agent, None
        if awaited is None:
            m = self._barriers.setdefault(s.barrier, _Barrier(s.nthreads, s.nthreads))
            phase = len(m.done)
            m.pending -= e.nthreads
            self._hand_on(m, e, who)
            m.advance()
            if isinstance(s, BarrierArrive):
                return True
            awaited = self._awaited[id(e)] = m, phase
        m, phase = awaited
        if len(m.done) <= phase:
            return False
        self._learn(e, who, m.done[phase])
        return True

    def _hand_on(self, m: _Barrier, e: Event, who: Who) -> None:
        """What an arrival hands on. Of those at the same mbarrier of several blocks each block has
        only one, so that none hands on more than the first."""
        if e.use is not None and e.use.rank is not None:
            if who[0] in m.far:
                return
            m.far.add(who[0])
        found = self.known.get(who) or self.known.get((who[0], None))
        if found is not None:
            _join(m.clock, found[1][-1])
        m.clock[e.instance.agent] = e.instance

    def _learn(self, e: Event, who: Who, clock: Clock) -> None:
        if who not in self.known:
            times, clocks = self.known.get((who[0], None), ([], []))
            self.known[who] = list(times), list(clocks)
        for other, (times, clocks) in self.known.items():
            if other == who or (other[0] == who[0] and who[1] is None):
                now = dict(clocks[-1]) if clocks else {}
                _join(now, clock)
                times.append(e.instance.time)
                clocks.append(now)


def _join(clock: dict[Agent, Instance], more: Clock) -> None:
    for agent, arrival in more.items():
        if agent not in clock or clock[agent].time < arrival.time:
            clock[agent] = arrival
