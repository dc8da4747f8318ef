"""Candidates with their predicted times: what `explain` lists, and what `tune` measures first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fusewright.calibration import Calibration
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import MatMul
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import Ways, each_scheduled, schedule_group
from fusewright.schedule.heuristics.candidates import Refused
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.cost import Cost, bound_us, cost
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


def rate(
    flow: Dataflow, target: Target, wanted: Callable[[Params], bool] = lambda _: True
) -> list[Rating]:
    """Schedules a group by every candidate whose parameters are `wanted` in turn, and predicts its
    time; in the order of the rules. A candidate whose schedule fails is refused with the reason.
    The dataflow is of no other use afterwards."""
    return [
        c
        if isinstance(c, Refused)
        else Rated(c.what, c.params, cost(work_of(flow, c.params), target))
        for c in each_scheduled(flow, target, wanted)
    ]


@dataclass(frozen=True, slots=True)
class Decision:
    """How a group is scheduled: by the parameters that are clearly `better` than the rules' first
    choice, or, where that is None, by this; and what the schedule is predicted to cost."""

    better: Params | None
    cost: Cost


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """The decisions on groups that were made, by what a group is decided by. `scheduled`: by that
    and by what spells a group, groups as they are scheduled, with the parameters; each is lowered
    once."""

    made: dict[object, Decision] = field(default_factory=dict[object, Decision])
    scheduled: dict[tuple[object, object], tuple[Dataflow, Params]] = field(
        default_factory=dict[tuple[object, object], tuple[Dataflow, Params]]
    )


def decide(ways: Ways, params: Params, target: Target) -> Decision:
    """Whether a candidate is predicted faster than what the rules chose, `params`, by more than the
    model errs; of several the fastest. The dataflow is scheduled by what is decided.

    Nothing else is rated where no candidate could be so much faster, or where that gains less than
    a launch costs. Products are ranked by a model of their own.
    """
    known, work = target.calibration, work_of(ways.flow, params)
    own = cost(work, target)
    bound = bound_us(work, target)
    is_product = any(isinstance(s.op, MatMul) for s in ways.flow.stages)
    if is_product or own.us < max(known.kin_margin * bound, bound + known.launch_us):
        ways.settle()
        return Decision(None, own)
    first, kin_only = _other_than_vectors(params), own.us < known.margin * bound

    def wanted(p: Params) -> bool:
        return _other_than_vectors(p) != first and (_is_kin(p, params) or not kin_only)

    decision, rules = Decision(None, own), Rated("", params, own)
    for c in ways.others(wanted):
        other = Rated(c.what, c.params, cost(work_of(ways.flow, c.params), target))
        is_least = decision.better is None or other.cost.us < decision.cost.us
        if is_least and is_faster(other, rules, known):
            decision = Decision(other.params, other.cost)
            ways.keep()
    ways.settle()
    return decision


def is_faster(other: Rated, first: Rated, known: Calibration) -> bool:
    """Whether a candidate is predicted faster than the first one by more than the model errs: by
    less where one scheduler makes both, and by least where both access memory alike too and no
    resource takes longer than before but those that would not limit the first one, though they took
    `doubt` times as long: what the model is off is off for both then."""
    us, first_us = other.cost.us, first.cost.us
    if us * known.margin < first_us:
        return True
    if _is_kin(other.params, first.params) and us * known.kin_margin < first_us:
        return True
    before = dict(first.cost.parts)
    return (
        _accesses(other.params) == _accesses(first.params)
        and us * known.sure_margin < first_us
        and all(
            t <= max(before.get(name, 0.0), first_us / known.doubt) for name, t in other.cost.parts
        )
    )


def _is_kin(other: Params, first: Params) -> bool:
    """Whether one scheduler makes both, in one way over all elements, and without clusters: the
    model does not know where these have room, nor what the first-level cache keeps of a way."""
    named, first_named = dict(other.values), dict(first.values)
    has_cluster = "cluster" in named or "cluster" in first_named
    alike = named.get("walk") == first_named.get("walk")
    return other.scheduler == first.scheduler and alike and not has_cluster


def _accesses(params: Params) -> list[tuple[str, object]]:
    """The parameters that say by which vectors, in which order, and by which blocks of a cluster
    memory is accessed."""
    alike = ("vector", "walk", "tile", "run", "cluster", "parts")
    return [(name, v) for name, v in params.values if name in alike]


def decided(
    dataflow: Callable[[], Dataflow], target: Target
) -> tuple[Decision, tuple[Dataflow, Params]]:
    """The decision on a group, and the group as it is scheduled by it. Raises ScheduleError where
    no candidate is left."""
    ways = Ways(dataflow(), target)
    params = ways.first()
    decision = decide(ways, params, target)
    return decision, (ways.flow, decision.better or params)


def _other_than_vectors(params: Params) -> tuple[object, ...]:
    """The parameters without the vectors of a thread: more of them than the rules take were never
    faster on an H200 (notes/measured.md), whatever the model says."""
    return params.scheduler, *(v for v in params.values if v[0] != "vectors")
