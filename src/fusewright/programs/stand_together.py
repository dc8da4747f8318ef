"""Groups that could stand in one launch take no clusters there.

A row that is alone on the chip is shared out among the blocks of a cluster. The sums of squares of
forty tensors are forty rows: each in a block of its own, side by side in one launch, they take what
one of forty launches of clusters does. What may stand side by side `join_launches` decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fusewright.errors import ScheduleError, UnsupportedError
from fusewright.fusion.ir import Reduce, Tensor
from fusewright.host.moves import Moves
from fusewright.host.segment import Segment
from fusewright.programs.join_launches import computations
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.rating import (
    Decision,
    Decisions,
    Rated,
    cost_of,
    decided,
    rate,
)
from fusewright.target import Target


def stand_together(items: Sequence[Segment | Moves], decisions: Decisions, target: Target) -> None:
    """Decides that groups which compute alike, none of which needs another, are scheduled without
    clusters, where all of them in one launch are predicted faster than one after the other."""
    for groups in _alike(items):
        own = [_decision(s, decisions, target) for s in groups]
        found = [(s, d) for s, d in zip(groups, own, strict=True) if d is not None]
        if not any(_has_cluster(p) for _, (p, _) in found):
            continue
        others = [(s, _without_cluster(s, *d, target)) for s, d in found]
        single = [(s, r) for s, r in others if r is not None]
        together = cost_of([(s.dataflow, r.params) for s, r in single], target) if single else None
        apart = sum(d.cost.us for s, (_, d) in found if any(s is x for x, _ in single))
        if len(single) > 1 and together is not None and together.us < apart:
            for s, r in single:
                decisions.made[s.decided_by] = Decision(r.params, r.cost)


def _has_cluster(params: Params) -> bool:
    return any(name == "cluster" for name, _ in params.values)


def _decision(s: Segment, decisions: Decisions, target: Target) -> tuple[Params, Decision] | None:
    """How a group is scheduled, and what that costs; None where it is refused."""
    key = s.decided_by
    scheduled = decisions.scheduled.get((key, s.spelled_by))
    if scheduled is None or key not in decisions.made:
        try:
            decisions.made[key], scheduled = decided(s.dataflow, target)
        except (ScheduleError, UnsupportedError):
            return None
        decisions.scheduled[key, s.spelled_by] = scheduled
    decision = decisions.made[key]
    return decision.better or scheduled[1], decision


def _without_cluster(
    s: Segment, params: Params, decision: Decision, target: Target
) -> Rated | None:
    """The fastest candidate that asks for no cluster; None where there is none."""
    if not _has_cluster(params):
        return Rated("", params, decision.cost)
    rated = rate(s.dataflow(), target, lambda p: not _has_cluster(p))
    single = (c for c in rated if isinstance(c, Rated) and not _has_cluster(c.params))
    return min(single, key=lambda c: c.cost.us, default=None)


def _alike(items: Sequence[Segment | Moves]) -> Iterator[list[Segment]]:
    """Groups with reductions that compute alike, of which none needs what another one writes."""
    found: dict[object, dict[int, Segment]] = {}
    needed: dict[Tensor, frozenset[int]] = {}
    for k, item in enumerate(items):
        before = frozenset[int]().union(*(needed.get(r.root, ()) for r in item.reads))
        if isinstance(item, Segment) and any(isinstance(t.op, Reduce) for t in item.fusion.values):
            own = found.setdefault(computations(item.fusion), {})
            if before.isdisjoint(own):
                own[k] = item
        for w in item.writes:
            needed[w.root] = needed.get(w.root, frozenset[int]()) | before | {k}
    yield from (list(own.values()) for own in found.values() if len(own) > 1)
