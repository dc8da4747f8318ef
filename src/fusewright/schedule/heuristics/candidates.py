"""Candidates: the ways in which a group may be scheduled, as plain data.

A scheduler looks at a group, lists its candidates in the order of its rules, and applies one of
them: the first, unless another is wanted. Whatever compares candidates reads the same list.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar, cast

from fusewright.errors import ScheduleError
from fusewright.schedule.graph import Dataflow, FlowChanges
from fusewright.schedule.heuristics.common import Params

P = TypeVar("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Candidate(Generic[P]):
    """One way: in words, its parameters, which tell it from others, and the scheduler's plan."""

    what: str
    params: Params
    plan: P


@dataclass(frozen=True, slots=True)
class Refused:
    """A way that the group cannot take or has no use for, and why."""

    what: str
    why: str


Listed: TypeAlias = Candidate[P] | Refused


class Scheduler(Protocol[P]):
    """A scheduler at work on one group, whose dataflow it has prepared."""

    @property
    def flow(self) -> Dataflow:
        """The dataflow."""
        ...

    def candidates(self) -> Iterator[Listed[P]]:
        """Its candidates, the first to apply first; lazily, so that the first one is cheap."""
        ...

    def apply(self, plan: P) -> bool:
        """Schedules the dataflow, in a trial. Returns False or raises ScheduleError where that
        turns out impossible."""
        ...


class Beginnings:
    """What candidates begin with, in the dataflow as their scheduler has prepared it: edited once
    for all that begin alike."""

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        self._known: dict[Hashable, tuple[object, FlowChanges]] = {}

    def edit(self, key: Hashable, edit: Callable[[], T]) -> T:
        """What `edit` returns, after its edits or the same ones as before for that key."""
        if key in self._known:
            found, changes = self._known[key]
            self._flow.redo(changes)
            return cast("T", found)
        with self._flow.trial() as trial:
            made = edit()
            self._known[key] = made, trial.changes()
            trial.keep()
        return made


class Listing(Generic[P]):
    """The candidates of a scheduler, each of which is found once, however often they are gone
    through, and whatever was tried and dropped in between."""

    def __init__(self, scheduler: Scheduler[P]) -> None:
        self.scheduler = scheduler
        self._ahead = scheduler.candidates()
        self._found: list[Listed[P]] = []

    def __iter__(self) -> Iterator[Listed[P]]:
        yield from self._found
        for c in self._ahead:
            self._found.append(c)
            yield c


def schedule_with(listing: Listing[P], wanted: Params | None = None) -> Params | None:
    """Schedules by the first candidate that applies, or the one with the wanted parameters; None
    where there is none. Raises the ScheduleError of the first one where all that apply failed."""
    error: ScheduleError | None = None
    scheduler = listing.scheduler
    for c in listing:
        if isinstance(c, Refused) or (wanted is not None and c.params != wanted):
            continue
        with scheduler.flow.trial() as trial:
            try:
                applied = scheduler.apply(c.plan)
            except ScheduleError as e:
                applied, error = False, error or e
            if applied:
                trial.keep()
                return c.params
    if error is not None:
        raise error
    return None


def distinct(found: Iterator[Listed[P]]) -> Iterator[Listed[P]]:
    """The candidates without those whose parameters came before."""
    seen: set[Params] = set()
    for c in found:
        if isinstance(c, Refused):
            yield c
        elif c.params not in seen:
            seen.add(c.params)
            yield c
