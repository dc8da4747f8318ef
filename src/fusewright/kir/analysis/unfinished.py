"""Asynchronous operations that something meets, or the kernel ends, before they are complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fusewright.kir.analysis.accesses import find
from fusewright.kir.analysis.async_run import Branch, Instance
from fusewright.kir.analysis.completion import Completions, Ends, has_operations
from fusewright.kir.analysis.meetings import NEVER, Meeting, meetings
from fusewright.kir.ir import Kernel
from fusewright.kir.traits import Completes


@dataclass(frozen=True, slots=True, eq=False)
class Unfinished:
    """An operation that is under way when it is met."""

    meeting: Meeting


def unfinished(kernel: Kernel) -> tuple[Unfinished, ...]:
    """What is met too early, one example for each pair of statements, in the order of meeting."""
    if not has_operations(kernel):
        return ()
    return tuple(open_meetings(meetings(kernel), find(kernel).completions))


def open_meetings(listed: Sequence[Meeting], done: Completions) -> Iterator[Unfinished]:
    """The meetings before which the operation is not complete, one for each pair of statements."""
    seen: set[tuple[object, object, object]] = set()
    for m in incomplete(listed, done):
        key = m.site, m.meets, m.completes
        if key not in seen:
            seen.add(key)
            yield Unfinished(m)


def incomplete(listed: Iterable[Meeting], done: Completions) -> Iterator[Meeting]:
    """The meetings before which the operation is not complete. Operations that the same waits end,
    and that one statement meets at one time, are judged together."""
    ends: dict[Completes, Ends] = {}
    known: dict[tuple[object, ...], bool] = {}
    for m in listed:
        how = m.completes
        if how not in ends:
            ends[how] = done.ends(how)
        if m.issue not in ends[how]:
            yield m
            continue
        row = ends[how][m.issue]
        key = id(row), m.issue.branches, m.time, m.agent, m.issuer, m.meets, m.coords
        if key not in known:
            known[key] = _is_ended(m, row, done)
        if not known[key]:
            yield m


def _is_ended(m: Meeting, ends: Sequence[Instance], done: Completions) -> bool:
    """Whether one of the waits that end an operation is known to who meets it, wherever it is."""
    around: frozenset[Branch] | None = None
    for end in ends:
        if not _is_known(end.agent, end.time, m, done):
            continue
        if end.branches <= m.issue.branches:
            return True
        if around is None:
            assert done.run is not None
            nowhere: frozenset[Branch] = frozenset()
            around = nowhere if m.meets is None else done.run.branches_at(m.meets, m.coords)
        if end.branches <= m.issue.branches | around:
            return True
    return False


def _is_known(agent: object, time: int, m: Meeting, done: Completions) -> bool:
    if agent == m.agent or agent is None or m.agent is None or m.time == NEVER:
        return time < m.time
    arrival = done.roles.arrival_known(agent, m.agent, m.issuer, m.time)  # type: ignore[arg-type]
    return arrival is not None and time < arrival.time
