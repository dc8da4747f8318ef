"""Lockstep time: when a statement runs in a given iteration of the loops around it.

Lockstep runs each statement for all threads before the next, so a point in time is a number: of a
statement in straight code its place, in a loop also the iterations that went before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusewright.core.expr import constant_value
from fusewright.kir.analysis.sites import Path
from fusewright.kir.ir import Body, For, If, Kernel, Role, Roles

UNIT = 1 << 8
"""Parts of a moment: a gap before a statement comes before it, one at the end of a body before
those that follow the body."""


@dataclass(frozen=True, slots=True)
class StatementTimes:
    """`start` of every statement in the first iterations of its loops, `span` of one iteration of
    every loop, `stop` of every body. A loop whose extent is not constant takes the time of one
    iteration."""

    start: dict[Path, int]
    span: dict[Path, int]
    stop: dict[Path, int]

    def gap(self, body: Path, index: int, loops: Sequence[Path], coords: Sequence[int]) -> int:
        """When control is before statement `index` of a body, or at its end."""
        start = self.start.get((*body, index))
        passed = self._passed(loops, coords)
        if start is None:
            return UNIT * (self.stop[body] + passed) - UNIT // 2 - len(body)
        return UNIT * (start + passed) - UNIT // 4

    def _passed(self, loops: Sequence[Path], coords: Sequence[int]) -> int:
        return sum(k * self.span[p] for k, p in zip(coords, loops, strict=True))


def timeline(kernel: Kernel, trips: Mapping[Path, int] | None = None) -> StatementTimes:
    """Where the statements of a kernel stand in time, of roles one after the other. `trips` tells
    how many iterations loops are given when it is not their extent."""
    line = StatementTimes({}, {}, {})
    _lay_out(kernel.body, (), 0, line, trips or {})
    return line


def _lay_out(
    body: Body, path: Path, now: int, line: StatementTimes, known: Mapping[Path, int]
) -> int:
    """The time at the end of a body that starts at `now`."""
    for i, statement in enumerate(body):
        here = (*path, i)
        line.start[here] = now
        match statement:
            case For():
                span = _lay_out(statement.body, here, now, line, known) - now
                line.span[here] = span
                trips = known.get(here) or constant_value(statement.extent)
                now += span * (1 if trips is None else trips)
            case If():
                now = _lay_out(statement.then, (*here, 0), now, line, known)
                now = _lay_out(statement.otherwise, (*here, 1), now, line, known)
            case Roles():
                for number, role in enumerate(statement.body):
                    assert isinstance(role, Role)
                    now = _lay_out(role.body, (*here, number), now, line, known)
            case _:
                now += 1
    line.stop[path] = now
    return now
