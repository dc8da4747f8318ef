"""How the blocks of a grid share what a kernel stores."""

from __future__ import annotations

from fusewright.errors import ScheduleError
from fusewright.fusion.sizes import numel_estimate
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.nest import reduced_loops
from fusewright.schedule.parallel import trips_of

MOST_TRIPS = 16
"""Trips in which a thread stores a result, for each element that a block would store if all of
them stored as many. Threads of blocks that walk over rows take at most one for each element; the
two kernels that were stored so by mistake took 32 and 2048 (T5's bias by distance, DeBERTa's
copies)."""


def check_shared_out(flow: Dataflow) -> None:
    """Raises ScheduleError for a result that few of a kernel's threads would store."""
    lone = stored_by_few(flow)
    if lone is not None:
        raise ScheduleError(f"{lone.name}: few of the kernel's threads would store it")


def stored_by_few(flow: Dataflow) -> Stage | None:
    """A result that a few threads store in many trips, because its loops are not those of the grid;
    None where there is none."""
    blocks = max(trips_of(x for x in s.loops if x.parallel.is_block) for s in flow.outputs)
    for s in flow.outputs:
        reducing = reduced_loops(flow.graph, s)
        stored = (x for k, x in enumerate(s.loops) if k not in reducing)
        trips = trips_of(x for x in stored if x.parallel.is_serial)
        if trips > MOST_TRIPS * max(1, numel_estimate(s.shape) // blocks):
            return s
    return None
