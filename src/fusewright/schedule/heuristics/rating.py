"""Candidates with their predicted times: what `explain` lists, and what `tune` measures first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusewright.errors import ScheduleError
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import candidates_of, schedule_group
from fusewright.schedule.heuristics.candidates import Refused
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.cost import Cost, cost
from fusewright.schedule.heuristics.work import Work, side_by_side, work_of
from fusewright.target import Target


@dataclass(frozen=True, slots=True)
class Rated:
    """A candidate and its predicted time."""

    what: str
    params: Params
    cost: Cost


Rating: TypeAlias = Rated | Refused


Scheduled: TypeAlias = tuple[Callable[[], Dataflow], Params]
"""What makes the dataflow of a group, and one way to schedule it."""


def cost_of(groups: Sequence[Scheduled], target: Target) -> Cost | None:
    """The predicted time of a launch in which the blocks of these groups stand side by side, of one
    group as a rule; None where the way to schedule one of them is refused."""
    works: list[Work] = []
    for dataflow, params in groups:
        flow = dataflow()
        try:
            schedule_group(flow, target, params)
        except ScheduleError:
            return None
        works.append(work_of(flow, params))
    return cost(side_by_side(works) if len(works) > 1 else works[0], target)


def rate(dataflow: Callable[[], Dataflow], target: Target) -> list[Rating]:
    """Schedules a group by every candidate, each on a dataflow of its own, and predicts its time;
    in the order of the rules. A candidate whose schedule fails is refused with the reason."""
    out: list[Rating] = []
    for c in candidates_of(dataflow(), target):
        if isinstance(c, Refused):
            out.append(c)
            continue
        flow = dataflow()
        try:
            schedule_group(flow, target, c.params)
        except ScheduleError as e:
            out.append(Refused(c.what, str(e)))
            continue
        out.append(Rated(c.what, c.params, cost(work_of(flow, c.params), target)))
    return out
