"""Automatic schedules: one function per kind of group."""

from __future__ import annotations

from fusewright.fusion.ir import Scan
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.coordinates import separate_coordinates
from fusewright.schedule.heuristics.pointwise import schedule_pointwise
from fusewright.schedule.heuristics.reduction import schedule_reduction
from fusewright.schedule.heuristics.rows import partials_of, schedule_rows
from fusewright.schedule.heuristics.scan import schedule_scan
from fusewright.schedule.heuristics.transpose import schedule_transpose
from fusewright.target import Target


def schedule_group(flow: Dataflow, target: Target) -> Params:
    """Schedules a segment. Raises ScheduleError with the stage it cannot place."""
    separate_coordinates(flow)
    if any(isinstance(s.op, Scan) for s in flow.stages):
        return schedule_scan(flow, target)
    if partials_of(flow):
        return schedule_rows(flow, target)
    if any(s.is_reduction for s in flow.stages):
        return schedule_reduction(flow, target)
    return schedule_transpose(flow, target) or schedule_pointwise(flow, target)
