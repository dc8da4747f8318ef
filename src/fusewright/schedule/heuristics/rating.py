"""Candidates with their predicted times: what `explain` lists, and what `tune` measures first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from fusewright.errors import ScheduleError
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import candidates_of, schedule_group
from fusewright.schedule.heuristics.candidates import Refused
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.cost import Cost, cost
from fusewright.schedule.heuristics.work import work_of
from fusewright.target import Target


@dataclass(frozen=True, slots=True)
class Rated:
    """A candidate and its predicted time."""

    what: str
    params: Params
    cost: Cost


Rating: TypeAlias = Rated | Refused


def cost_of(dataflow: Callable[[], Dataflow], params: Params, target: Target) -> Cost | None:
    """The predicted time of one way to schedule a group; None where it is refused."""
    flow = dataflow()
    try:
        schedule_group(flow, target, params)
    except ScheduleError:
        return None
    return cost(work_of(flow, params), target)


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
