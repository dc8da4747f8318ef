"""Automatic schedules: one scheduler per kind of group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fusewright.errors import ScheduleError
from fusewright.fusion.ir import MatMul, Scan, Sort
from fusewright.schedule.clone_untied_uses import clone_untied_uses
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics.candidates import Listed, Refused, Scheduler, schedule_with
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.inner_outer_reduction import InnerOuterScheduler, sums_of
from fusewright.schedule.heuristics.matmul import MatmulScheduler
from fusewright.schedule.heuristics.pointwise import PointwiseScheduler
from fusewright.schedule.heuristics.reduction import ReductionScheduler
from fusewright.schedule.heuristics.scan import ScanScheduler
from fusewright.schedule.heuristics.small_tiles import (
    SmallTilesScheduler,
    may_reduce_different_axes,
)
from fusewright.schedule.heuristics.sort import SortScheduler
from fusewright.schedule.heuristics.staged_lines import LinesScheduler
from fusewright.schedule.heuristics.tiled_sums import TiledSumsScheduler
from fusewright.schedule.heuristics.transpose import TransposeScheduler
from fusewright.schedule.heuristics.warp_matmul import WarpMatmulScheduler
from fusewright.schedule.products import gather_in_place
from fusewright.target import Target


def schedule_group(flow: Dataflow, target: Target, wanted: Params | None = None) -> Params:
    """Schedules a segment by the first candidate that applies, or by the one with the wanted
    parameters.

    Raises ScheduleError with the stage that the first candidate cannot place, and where there is no
    candidate.
    """
    tried: list[Scheduler[Any]] = []
    error: ScheduleError | None = None
    for scheduler in _schedulers(flow, target):
        try:
            chosen = schedule_with(scheduler, wanted)
        except ScheduleError as e:
            chosen, error = None, error or e
        if chosen is not None:
            return chosen
        tried.append(scheduler)
    if error is not None:
        raise error
    name = flow.outputs[0].name
    if wanted is not None:
        raise ScheduleError(f"{name}: {wanted} is not among the candidates for this group")
    refused = (c for s in tried for c in s.candidates() if isinstance(c, Refused))
    raise ScheduleError(f"{name}: {'; '.join(f'{c.what}: {c.why}' for c in refused)}")


def candidates_of(flow: Dataflow, target: Target) -> list[Listed[Any]]:
    """The candidates of a segment in the order of the rules, among those that were refused. The
    dataflow is prepared for scheduling, and of no other use afterwards."""
    return [c for s in _schedulers(flow, target) for c in s.candidates()]


def each_scheduled(
    flow: Dataflow, target: Target, wanted: Callable[[Params], bool] = lambda _: True
) -> Iterator[Listed[Any]]:
    """The candidates of a segment in turn, without those whose parameters are not `wanted`; the
    dataflow is scheduled by each until the next one is asked for, unscheduled and prepared
    afterwards. Refused with the reason where that fails."""
    for scheduler in _schedulers(flow, target):
        for c in scheduler.candidates():
            if isinstance(c, Refused):
                yield c
                continue
            if not wanted(c.params):
                continue
            with flow.trial():
                try:
                    applied = scheduler.apply(c.plan)
                except ScheduleError as e:
                    yield Refused(c.what, str(e))
                else:
                    yield c if applied else Refused(c.what, "its loops do not fit the group")


def _schedulers(flow: Dataflow, target: Target) -> Iterator[Scheduler[Any]]:
    """Those that may take a segment, each made only when the ones before it had nothing."""
    clone_untied_uses(flow)
    gather_in_place(flow)
    if any(isinstance(s.op, MatMul) for s in flow.stages):
        yield MatmulScheduler(flow, target)
        yield WarpMatmulScheduler(flow, target)
        return
    if any(isinstance(s.op, Sort) for s in flow.stages):
        yield SortScheduler(flow, target)
    elif any(isinstance(s.op, Scan) for s in flow.stages):
        yield ScanScheduler(flow, target)
    elif sums_of(flow) is not None:
        yield InnerOuterScheduler(flow, target)
    elif any(s.is_reduction for s in flow.stages):
        tiles = SmallTilesScheduler(flow) if may_reduce_different_axes(flow) else None
        if tiles is not None and tiles.has_sides:
            yield tiles
            return
        yield TiledSumsScheduler(flow, target)
        yield ReductionScheduler(flow, target)
    else:
        yield TransposeScheduler(flow, target)
        yield LinesScheduler(flow, target)
        yield PointwiseScheduler(flow, target)
