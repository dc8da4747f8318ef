"""Automatic schedules: one scheduler per kind of group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from fusewright.errors import ScheduleError
from fusewright.fusion.ir import MatMul, Scan, Sort
from fusewright.schedule.clone_untied_uses import clone_untied_uses
from fusewright.schedule.graph import Dataflow, FlowChanges, FlowState
from fusewright.schedule.heuristics.candidates import (
    Candidate,
    Listed,
    Listing,
    Refused,
    Scheduler,
    schedule_with,
)
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
from fusewright.schedule.heuristics.strips import strips_of
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
    ways = Ways(flow, target)
    params = ways.first(wanted)
    ways.settle()
    return params


class Ways:
    """The ways to schedule a group, one after the other, on one dataflow that is prepared once:

    first() -> settle()                              the rules' choice
    first() -> others(), keep() some -> settle()     what was kept last, else the rules' choice
    """

    def __init__(self, flow: Dataflow, target: Target) -> None:
        self.flow = flow
        self._listings = map(Listing[Any], _schedulers(flow, target))
        self._taken: list[Listing[Any]] = []
        self._prepared: FlowState | None = None
        self._chosen: FlowChanges | None = None

    def first(self, wanted: Params | None = None) -> Params:
        """Schedules the dataflow as `schedule_group` does."""
        error: ScheduleError | None = None
        for listing in self._listings:
            self._taken.append(listing)
            self._prepared = self.flow.begin()
            try:
                chosen = schedule_with(listing, wanted)
            except ScheduleError as e:
                chosen, error = None, error or e
            if chosen is not None:
                return chosen
            self.flow.graph.keep()
        if error is not None:
            raise error
        name = self.flow.outputs[0].name
        if wanted is not None:
            raise ScheduleError(f"{name}: {wanted} is not among the candidates for this group")
        refused = (c for listing in self._taken for c in listing if isinstance(c, Refused))
        raise ScheduleError(f"{name}: {'; '.join(f'{c.what}: {c.why}' for c in refused)}")

    def others(self, wanted: Callable[[Params], bool]) -> Iterator[Candidate[Any]]:
        """The wanted candidates that apply, of the scheduler that has the first one and of those
        behind it; the dataflow is scheduled by each until the next one is asked for."""
        assert self._prepared is not None, "no first way was asked for"
        self._chosen = self.flow.changes(self._prepared)
        self.flow.go_back(self._prepared)
        self._prepared = self.flow.begin()
        for listing in chain(self._taken[-1:], self._listings):
            for c in _each_scheduled(listing, wanted):
                if not isinstance(c, Refused):
                    yield c

    def keep(self) -> None:
        """Of the others the one by which the dataflow is scheduled stays so in the end."""
        assert self._prepared is not None
        self._chosen = self.flow.changes(self._prepared)

    def settle(self) -> None:
        """Leaves the dataflow as it is scheduled; no other way can be asked for any more."""
        assert self._prepared is not None
        if self._chosen is None:
            self.flow.graph.keep()
        else:
            self.flow.go_back(self._prepared)
            self.flow.redo(self._chosen)


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
        yield from _each_scheduled(Listing(scheduler), wanted)


def _each_scheduled(
    listing: Listing[Any], wanted: Callable[[Params], bool]
) -> Iterator[Listed[Any]]:
    """The same of one scheduler."""
    scheduler = listing.scheduler
    for c in listing:
        if isinstance(c, Refused):
            yield c
            continue
        if not wanted(c.params):
            continue
        with scheduler.flow.trial():
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
        may_be_tiles = strips_of(flow) is None and may_reduce_different_axes(flow)
        tiles = SmallTilesScheduler(flow) if may_be_tiles else None
        if tiles is not None and tiles.has_sides:
            yield tiles
            return
        yield TiledSumsScheduler(flow, target)
        yield ReductionScheduler(flow, target)
    else:
        yield TransposeScheduler(flow, target)
        yield LinesScheduler(flow, target)
        yield PointwiseScheduler(flow, target)
