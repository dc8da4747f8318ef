"""What the edits of one tensor stand on: its loops by their numbers, and the checks of new ones."""

from __future__ import annotations

from typing import Protocol

from fusewright.axes.paths import Refusal, domain_path
from fusewright.core.expr import ZERO
from fusewright.errors import ScheduleError
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.instructions import check_instruction
from fusewright.schedule.nest import mixed_loop, scan_problem
from fusewright.schedule.parallel import Loop


class Owner(Protocol):
    """The schedule that a tensor belongs to."""

    flow: Dataflow

    def check(self) -> None:
        """Raises ScheduleError when the loops do not form a legal tree."""
        ...


class TensorHandle:
    """One tensor of a schedule."""

    __slots__ = ("_schedule", "stage")

    def __init__(self, schedule: Owner, stage: Stage) -> None:
        self._schedule = schedule
        self.stage = stage

    @property
    def name(self) -> str:
        return self.stage.name

    @property
    def flow(self) -> Dataflow:
        """The dataflow of its schedule."""
        return self._schedule.flow

    def _axis(self, axis: int, what: str) -> int:
        n = len(self.stage.loops)
        self._check_computed(what)
        if not n:
            raise ScheduleError(f"{what}({self.name}): it has no loops; leave it as it is")
        if not -n <= axis < n:
            raise ScheduleError(
                f"{what}({self.name}, axis={axis}): {self.name} has {n} loops; use {-n}..{n - 1}"
            )
        return axis % n

    def _check_computed(self, what: str) -> None:
        if self.stage.is_input:
            raise ScheduleError(
                f"{what}({self.name}): an input has no loops of its own; schedule its cache_after()"
            )
        if ZERO in self.stage.shape:
            raise ScheduleError(f"{what}({self.name}): it has no elements; leave it as it is")

    def _editable(self, axis: int, what: str) -> int:
        i = self._axis(axis, what)
        if i < self.stage.inline_depth:
            raise ScheduleError(
                f"{what}({self.name}, axis={axis}): the loop is shared with its readers; "
                "transform first, inline after"
            )
        check_instruction(self.stage, i, f"{what}({self.name}, axis={axis})")
        return i

    def _set(self, i: int, count: int, new: tuple[Loop, ...]) -> None:
        loops = self.stage.loops
        self._commit((*loops[:i], *new, *loops[i + count :]))

    def _commit(self, loops: tuple[Loop, ...]) -> None:
        graph = self._schedule.flow.graph
        s = self.stage
        mixed = mixed_loop(graph, s, loops)
        if mixed is not None:
            raise ScheduleError(
                f"{s.name}: a loop over {mixed.axis} would run over a reduced and a kept axis; "
                "merge reduced axes with reduced ones only"
            )
        known = [(x.axis, graph.variable(f"i{i}", x.axis.extent)) for i, x in enumerate(loops)]
        path = domain_path(graph, known, s.frame.domain)
        if isinstance(path, Refusal):
            raise ScheduleError(f"{s.name}: {path.reason}")
        problem = scan_problem(graph, s, loops)
        if problem is not None:
            raise ScheduleError(f"{s.name}: {problem}; keep that axis serial and in order")
        s.loops = loops
