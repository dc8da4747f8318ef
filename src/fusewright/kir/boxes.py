"""Boxes: what the copy engine brings to shared memory, as a tile of a view of an argument."""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.axes.classes import AxisGraph
from fusewright.core.expr import ONE, ZERO, constant_value
from fusewright.errors import ScheduleError
from fusewright.fusion.strided import Strided, box_problem, fastest_axis
from fusewright.kir.tiles import SWIZZLES, Tile
from fusewright.schedule.graph import Stage
from fusewright.schedule.products import boxed_memory


@dataclass(frozen=True, slots=True)
class Box:
    """A stage that the copy engine fills: its tile, what it is a view of, the axes of the view that
    the rows and columns of the tile run along, and the loops that do."""

    tile: Tile
    source: Strided[Stage]
    axes: tuple[int, int]
    loops: tuple[int, int]

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The axes of the view that are dimensions of its tensor map, fastest first."""
        row, column = self.axes
        source = self.source
        others = [
            j
            for j in reversed(range(len(source.shape)))
            if j not in (row, column) and source.strides[j] != ZERO and source.shape[j] != ONE
        ]
        return (column, row, *others)


def box_of(graph: AxisGraph, s: Stage) -> Box:
    """The box of a stage with Bulk loops. Raises ScheduleError, with the numbers, where no tensor
    map or swizzle takes it."""
    what = f"Bulk loops of {s.name}"
    if len(s.boxed) != 2:
        raise ScheduleError(
            f"{what}: {len(s.boxed)} of them; a box has rows and columns, so bind two loops"
        )
    source = boxed_memory(s)
    problem = "it is no view by strides" if source is None else None
    problem = problem or box_problem(source, s.dtype.nbytes) if source is not None else problem
    if problem is not None or source is None:
        raise ScheduleError(
            f"{what}: its boxes cannot lie in global memory: {problem}; let threads copy it, "
            "without Bulk loops"
        )
    found: dict[int, int] = {}
    for i in s.boxed:
        over = [
            j for j, axis in enumerate(s.frame.output) if graph.depends(s.loops[i].axis, [axis])
        ]
        if len(over) != 1 or over[0] in found:
            raise ScheduleError(
                f"{what}: loop {i} runs along {len(over)} axes of it; each loop runs along one "
                "axis of its own"
            )
        found[over[0]] = i
    column = fastest_axis(source)
    if column is None or column not in found:
        raise ScheduleError(
            f"{what}: none runs along axis {column}, on which {source.source.name} is contiguous"
        )
    row = next(j for j in found if j != column)
    rows, columns = (constant_value(s.loops[found[j]].axis.extent) or 0 for j in (row, column))
    nbytes = columns * s.dtype.nbytes
    swizzle = next((w for w in reversed(SWIZZLES) if w and nbytes % w == 0), 0)
    tile = Tile(rows, columns, s.dtype.nbytes, swizzle)
    wrong = (
        next(tile.problems(), None) if swizzle else f"{nbytes} bytes of a row are no multiple of 32"
    )
    if wrong is not None:
        raise ScheduleError(f"{what}: a tile of {rows} x {columns}: {wrong}; split by other sizes")
    return Box(tile, source, (row, column), (found[row], found[column]))
