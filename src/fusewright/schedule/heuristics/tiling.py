"""A tiling: how the axes of a group's space are cut into levels, and the loops that this makes.

    flat axis of 2^20 elements     blocks | 4 trips | 128 threads | 8 lanes
    loops                          blocks { threads { trips { lanes } } }

On an axis the threads lie inside of their trips, so that neighbours are accessed together; in the
loops they stand outside, so that a thread makes its trips by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from fusewright.axes.classes import AxisClass
from fusewright.core.substitution import estimate
from fusewright.schedule.edits import set_loops
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.common import vectorize_accesses
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like


class Place(IntEnum):
    """What works on one step of a level, in the order of the loops: a block, a block of a cluster,
    all threads of a block one step after the other, a thread, one trip of a thread, one lane."""

    GRID = 0
    CLUSTER = 1
    STEPS = 2
    THREADS = 3
    TRIPS = 4
    LANES = 5


@dataclass(frozen=True, slots=True)
class Level:
    """One level of an axis: how many steps it has, None for as many as the others leave, and what
    its loop is bound to. A level of one step makes no loop."""

    place: Place
    kind: Parallel
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """An axis, None for one of a single element, with its levels, outermost first."""

    axis: Loop | None
    levels: tuple[Level, ...]


def blocks(count: int | None = None) -> Level:
    """Blocks of the grid."""
    return Level(Place.GRID, Parallel.BIDX, count)


def cluster(count: int) -> Level:
    """The blocks of a cluster, each with neighbours of its own."""
    return Level(Place.CLUSTER, Parallel.CLUSTERX, count)


def steps() -> Level:
    """Steps that a block makes together."""
    return Level(Place.STEPS, Parallel.SERIAL)


def threads(count: int, *, across: bool = False) -> Level:
    """Threads side by side, along x of the block or (`across`) along y."""
    return Level(Place.THREADS, Parallel.TIDY if across else Parallel.TIDX, count)


def trips(kind: Parallel = Parallel.UNROLL, count: int | None = None) -> Level:
    """What a thread does one after the other, in the open or in a loop."""
    return Level(Place.TRIPS, kind, count)


def lanes(count: int, kind: Parallel = Parallel.UNROLL) -> Level:
    """Neighbours that a thread takes at once."""
    return Level(Place.LANES, kind, count)


def loops_of(flow: Dataflow, cuts: Sequence[Cut]) -> tuple[Loop, ...]:
    """The loops of a tiling: by place, and in one place in the order of the cuts."""
    found: list[tuple[Place, Loop]] = []
    for cut in cuts:
        found += _levels(flow, cut)
    return tuple(x for _, x in sorted(found, key=lambda pair: pair[0]))


def tile(
    flow: Dataflow, reference: Stage, cuts: Sequence[Cut], in_shared: Sequence[Stage] = ()
) -> list[Stage]:
    """Gives all stages the loops of a tiling of the reference, and binds its lanes where memory
    allows wide accesses. Returns the stages that could not take the loops."""
    set_loops(flow, reference, loops_of(flow, cuts))
    refused = transform_like(flow, reference, align=True)
    if any(x.place is Place.LANES and x.count != 1 for c in cuts if c.axis for x in c.levels):
        vectorize_accesses(flow, reference, in_shared)
    return refused


def _levels(flow: Dataflow, cut: Cut) -> list[tuple[Place, Loop]]:
    """The loops of one axis. Lanes are split off first, then what is counted from outside, then
    the other levels from inside; levels of one axis that are bound alike are merged."""
    if cut.axis is None:
        return []
    graph, rest = flow.graph, cut.axis.axis
    wanted = [x for x in cut.levels if x.count != 1]
    free = next((k for k, x in enumerate(wanted) if x.count is None), 0)
    made: dict[int, AxisClass] = {}
    lane = [k for k, x in enumerate(wanted) if x.place is Place.LANES]
    inside = [k for k in reversed(range(free + 1, len(wanted))) if k not in lane]
    for k in (*lane, *range(free), *inside):
        count = wanted[k].count
        assert count is not None, "an axis has one level that takes what the others leave"
        if k < free:
            made[k], rest = graph.split(rest, -(-estimate(rest.extent) // count))
        else:
            rest, made[k] = graph.split(rest, count)
    made[free] = rest
    merged: dict[tuple[Place, Parallel], AxisClass] = {}
    for k, x in enumerate(wanted):
        key = (x.place, x.kind)
        merged[key] = graph.merge(merged[key], made[k]) if key in merged else made[k]
    return [(place, Loop(c, kind)) for (place, kind), c in merged.items()]
