"""What a form of a fusion is predicted to take: its kernels are scheduled, one after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fusewright.errors import ScheduleError, UnsupportedError
from fusewright.fusion.ir import Alone, Fusion, IndexMap, Resize, Take, TakeAlong
from fusewright.fusion.orders import Orders
from fusewright.fusion.passes.fold_empty import is_empty
from fusewright.fusion.sizes import nbytes_estimate, numel_estimate
from fusewright.host.fills import attach_fills
from fusewright.host.form import Formation
from fusewright.host.move_work import move_work
from fusewright.host.moves import Moves
from fusewright.host.place import place
from fusewright.host.segment import Segment, segments
from fusewright.host.subspans import Subspan
from fusewright.schedule.heuristics.cost import cost
from fusewright.schedule.heuristics.rating import Decisions, decided
from fusewright.target import Target

COUNTED = 0.9
"""The share of an array's bytes that the model counts at least where all are accessed: it looks at
a sample of warps."""
ROUNDING = 1e-9
"""By how much a sum of times may be off, relative to it, as it is rounded."""
READS_IN_PART = (Resize, IndexMap, Take, TakeAlong)
"""Operations that may leave a part of their operand unread."""


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A fusion as its kernels compute it, what each of them computes, and the orders of axes of
    values that lie in no C order, or would rather not."""

    fusion: Fusion
    formation: Formation
    orders: Orders = field(default_factory=Orders)
    handicap: float = 1.0
    """By how much it has to be faster than others: what moves more bytes, or takes more launches,
    is taken only where the errors of both predictions do not matter."""
    cluster_handicap: float = 1.0
    """By how much its launches whose blocks wait for each other have to be."""


class Clock:
    """Predicts times for a target. Kernels of one structure are scheduled once."""

    def __init__(self, target: Target, decisions: Decisions) -> None:
        self._target = target
        self._forms: dict[Form, tuple[float, float]] = {}
        self._items: dict[Form, tuple[Segment | Moves, ...]] = {}
        self._decisions = decisions
        self._refused: set[object] = set()

    def us(self, form: Form) -> float:
        """Microseconds of all launches of a form, one after the other."""
        return self._times(form)[0]

    def _times(self, form: Form) -> tuple[float, float]:
        """The same, and of those whose blocks wait for each other."""
        if form not in self._forms:
            times = [self._of_item(x) for x in self._launches(form)]
            in_clusters = sum(us for us, waits in times if waits)
            self._forms[form] = sum(us for us, _ in times), in_clusters
        return self._forms[form]

    def _launches(self, form: Form) -> tuple[Segment | Moves, ...]:
        if form not in self._items:
            placed = place(form.fusion, form.formation)
            items = segments(form.fusion, placed.items, placed.sites, placed.joined)
            self._items[form] = tuple(attach_fills(items))
        return self._items[form]

    def rank(self, form: Form) -> float:
        """The time by which forms are compared."""
        us, in_clusters = self._times(form)
        return (us + (form.cluster_handicap - 1) * in_clusters) * form.handicap

    def least_rank(self, form: Form) -> float:
        """A time that `rank` is not below, whatever the schedules."""
        bounds = (_least_us(x, self._target) for x in self._launches(form))
        return sum(bounds) * form.handicap

    def is_far(self, form: Form) -> bool:
        """Whether the time of a form is above the least by more than the model errs."""
        return self.us(form) > self._target.calibration.margin * self.least_rank(form)

    def is_within(self, form: Form, limit: float) -> bool:
        """Whether the time by which a form is compared may be below a limit, as far as that has to
        be scheduled to know it: a launch that is not takes the least that any schedule takes."""
        launches = self._launches(form)
        bounds = [_least_us(x, self._target) for x in launches]
        most = limit / form.handicap * (1 + ROUNDING)
        us, rest = 0.0, sum(bounds)
        for x, bound in zip(launches, bounds, strict=True):
            if us + rest > most:
                return False
            us, rest = us + self._of_item(x)[0], rest - bound
        return us <= most

    def bytes_us(self, fusion: Fusion) -> float:
        """Microseconds in which memory moves the arguments and the results once."""
        values = (*fusion.inputs, *fusion.outputs)
        return moved_us(sum(map(nbytes_estimate, values)), self._target)

    def _of_item(self, item: Segment | Moves) -> tuple[float, bool]:
        if isinstance(item, Moves):
            return _of_moves(item, self._target), False
        if all(is_empty(s.tensor) for s in item.writes):
            return 0.0, False
        if any(isinstance(t.op, Alone) for t in item.fusion.outputs):
            return 0.0, False  # of the program's own, the same in every form
        return self._of_group(item)

    def _of_group(self, segment: Segment) -> tuple[float, bool]:
        """The predicted time of a group's kernel, and whether its blocks wait for each other;
        infinite where none can be scheduled."""
        key, known = segment.decided_by, self._decisions
        if key not in self._refused and key not in known.made:
            try:
                known.made[key], scheduled = decided(segment.dataflow, self._target)
            except (ScheduleError, UnsupportedError):
                self._refused.add(key)
            else:
                known.scheduled[key, segment.spelled_by] = scheduled
        if key in self._refused:
            return math.inf, False
        predicted = known.made[key].cost
        return predicted.us, predicted.cluster > 1 or predicted.gathers


def _least_us(item: Segment | Moves, target: Target) -> float:
    """The least time of a launch: what each has, and that in which memory moves what it writes, and
    what it reads, unless that may be a part of its arguments only."""
    if isinstance(item, Moves):
        return _of_moves(item, target)
    if any(isinstance(t.op, Alone) or is_empty(t) for t in item.fusion.outputs):
        return 0.0
    in_part = any(isinstance(t.op, READS_IN_PART) for t in item.fusion.values)
    known = target.calibration
    moved = sum(map(_site_nbytes, () if in_part else item.reads))
    moved += known.write_weight * sum(map(_site_nbytes, item.writes))
    start_us = known.launch_us + known.start_us + known.memory_latency_us
    return start_us + moved_us(COUNTED * moved, target)


def _site_nbytes(site: Subspan) -> int:
    return site.root.dtype.nbytes * numel_estimate(site.shape)


def _of_moves(moves: Moves, target: Target) -> float:
    """The time of a launch that copies and fills."""
    return cost(move_work(moves), target).us


def moved_us(nbytes: float, target: Target) -> float:
    return nbytes / (target.memory_nbytes_per_us * target.calibration.read_share)


def predicted_us(form: Form, target: Target) -> float:
    """The microseconds that the cost model predicts for all launches of a form."""
    return Clock(target, Decisions()).us(form)
