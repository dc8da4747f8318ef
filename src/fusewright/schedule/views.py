"""What a definition sees: its domain and its operands as functions of its loops.

A `View` gives, for loop variables that stand for the loops of a stage, the index of every axis of
its domain, and for each operand the coordinates at which it is read, with the predicates under
which those exist. Lowering and the legality of inlining ask the same questions here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.axes.frames import Computed, Gathered, Pinned
from fusewright.axes.paths import Path, Refusal, domain_path, value_of
from fusewright.core.conditions import Cond
from fusewright.core.expr import ONE, ZERO, Expr, constant_value
from fusewright.core.substitution import substitute
from fusewright.errors import ScheduleError
from fusewright.fusion.held_results import is_held_in_tile, place_in_tile
from fusewright.fusion.ir import IndexMap
from fusewright.memory import Memory
from fusewright.schedule.graph import Stage
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.target import MMA_COLUMNS_UNIT


@dataclass(frozen=True, slots=True)
class OperandView:
    """Where operand `position` is read: an index per axis (None where data decides) and the
    conditions, beyond the statement's own, under which the element exists."""

    position: int
    coordinates: tuple[Expr | None, ...]
    predicates: tuple[Cond, ...]


@dataclass(frozen=True, slots=True)
class View:
    """One stage over given loop variables: `values` per domain axis."""

    stage: Stage
    variables: tuple[Expr, ...]
    path: Path

    @property
    def output(self) -> tuple[Expr, ...]:
        """The coordinates of the element being defined."""
        return self.path.values[: len(self.stage.frame.output)]


def loop_variables(graph: AxisGraph, loops: Sequence[Loop]) -> tuple[Expr, ...]:
    """A variable for every loop: parallel ones are named for what they are bound to."""
    out: list[Expr] = []
    for i, x in enumerate(loops):
        name = f"i{i}" if x.parallel.is_serial else x.parallel.value
        out.append(ZERO if x.axis.extent == ONE else graph.variable(name, x.axis.extent))
    return tuple(out)


def view(graph: AxisGraph, stage: Stage, variables: Sequence[Expr]) -> View:
    """The view of a stage. Raises ScheduleError when its loops do not visit every point of its
    domain exactly once."""
    loops = [(x.axis, v) for x, v in zip(stage.loops, variables, strict=True)]
    path = domain_path(graph, loops, stage.frame.domain)
    if isinstance(path, Refusal):
        raise ScheduleError(f"the loops of {stage.name} do not cover it: {path.reason}")
    return View(stage, tuple(variables), path)


def operand(graph: AxisGraph, v: View, position: int) -> OperandView:
    """Where the stage reads one of its operands."""
    known = list(zip(v.stage.frame.domain, v.path.values, strict=True))
    coordinates: list[Expr | None] = []
    predicates: list[Cond] = []
    for index in v.stage.frame.operands[position]:
        match index:
            case Pinned():
                coordinates.append(ZERO)
            case Computed():
                values = dict(zip(index.coordinates, v.output, strict=True))
                coordinates.append(substitute(index.index, values))
            case Gathered():
                coordinates.append(None)
            case _:
                found = _class_value(graph, known, index, v.stage)
                coordinates.append(found[0])
                predicates.extend(found[1])
    return OperandView(position, tuple(coordinates), tuple(dict.fromkeys(predicates)))


def _class_value(
    graph: AxisGraph, known: list[tuple[AxisClass, Expr]], wanted: AxisClass, stage: Stage
) -> tuple[Expr, tuple[Cond, ...]]:
    for c, value in known:
        if c is wanted:
            return value, ()
    found = value_of(graph, known, wanted)
    if found is None:
        raise ScheduleError(f"the index {wanted} of an operand of {stage.name} is not determined")
    return found


def loop_value(graph: AxisGraph, reader: View, read: OperandView, position: int) -> Expr | None:
    """The value of loop `position` of the producer at the element that `read` reads, as the reader
    sees it; None when that is not determined."""
    producer = reader.stage.operands[read.position]
    return class_value(graph, reader, read, producer.loops[position].axis)


def class_value(
    graph: AxisGraph, reader: View, read: OperandView, wanted: AxisClass
) -> Expr | None:
    """The value that a class of the producer has at the element that `read` reads, as the reader
    sees it; None when that is not determined.

    An axis of the producer is loose for this use when it is not the class that the reader reads
    it at (untied, broadcast, or data); one of a single element, too, which may be one place of an
    axis that loops run over. A class that depends on no loose axis has the reader's own
    value. Any other follows from the coordinates, with the digits that the producer only repeats
    taken from the reader's loops.
    """
    producer = reader.stage.operands[read.position]
    if producer.is_mma and producer.memory is Memory.LOCAL and reader.stage.is_held_by_thread:
        return _held_value(graph, reader, producer, wanted)
    used = reader.stage.frame.operands[read.position]
    axes = producer.frame.output
    loose = [a for a, index in zip(axes, used, strict=True) if index is not a]
    own = [(x.axis, v) for x, v in zip(reader.stage.loops, reader.variables, strict=True)]
    strange = [*loose, *producer.frame.reduced]
    if not graph.depends(wanted, strange) and not graph.is_moved_by(wanted, strange):
        for c, v in own:
            if c is wanted:
                return v
        # Units of the reader say where on their lines it stands, also where no loop does.
        domain = zip(reader.stage.frame.domain, reader.path.values, strict=True)
        units = [(c, v) for c, v in domain if c.is_unit]
        found = value_of(graph, [*units, *own], wanted)
        if found is not None:
            return found[0]
    known = [(a, c) for a, c in zip(axes, read.coordinates, strict=True) if c is not None]
    found = value_of(graph, known, wanted)
    if found is None:
        foreign = [(c, v) for c, v in own if not graph.depends(c, producer.frame.domain)]
        found = value_of(graph, [*known, *foreign], wanted)
    return None if found is None else found[0]


def _held_value(graph: AxisGraph, reader: View, producer: Stage, wanted: AxisClass) -> Expr | None:
    """The value of a class of a product for a map that reads what its own thread holds: the word
    of columns and the element of a pair follow from the map, all others are the reader's own. None
    where a thread's columns of a tile are not all that the map reads of it."""
    op = reader.stage.op
    assert isinstance(op, IndexMap)
    own = [(x.axis, v) for x, v in zip(reader.stage.loops, reader.variables, strict=True)]
    word, _, element = (x.axis for x in producer.loops[-3:])
    columns = (constant_value(word.extent) or 0) * MMA_COLUMNS_UNIT
    if not is_held_in_tile(op, reader.stage.shape, columns):
        return None
    if wanted not in (word, element):
        found = value_of(graph, own, wanted)
        return None if found is None else found[0]
    places = [value_of(graph, own, c) for c in (word, element)]
    if None in places:
        return None
    moved = place_in_tile(op, *(p[0] for p in places if p is not None))
    return moved[0] if wanted is word else moved[1]


def is_private(parallel: Parallel, *, shared_memory: bool) -> bool:
    """Whether each copy of a loop bound to this has memory of its own."""
    return parallel.is_block or (parallel.is_thread and not shared_memory)
