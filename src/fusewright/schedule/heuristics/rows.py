"""Row reductions with partial column reductions beside them: a block walks over a run of rows.

    for q in rows of the block:            (serial)
      load the row; reduce it; store what depends on it; add it to the column partials (registers)
    store the partials

The columns of a row lie side by side over the threads, in registers between the passes over it.
Short rows stand several to a block; their partials are then combined through shared memory.
"""

from __future__ import annotations

from fusewright.axes.classes import AxisClass
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import Broadcast, Reshape
from fusewright.fusion.passes.row_partials import registers_of_row
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.common import (
    Params,
    by_stride,
    cache_inputs,
    estimate,
    merge_all,
    split,
    vectorize_accesses,
)
from fusewright.schedule.heuristics.phases import separate_phases
from fusewright.schedule.heuristics.plan import is_inner, widest_vector
from fusewright.schedule.inline import inline_most
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.schedule.untangle import untangle
from fusewright.target import MAX_THREADS_PER_BLOCK, WARP_SIZE, Target

LEAST_THREADS = 128
MEETING_REGISTERS = 7
"""More registers of a thread where the partials of several rows meet in shared memory."""
RESIDENT_THREADS = 1024
"""Threads that a multiprocessor should hold: 64 registers each."""


def partials_of(flow: Dataflow) -> list[Stage]:
    """The reductions over runs of rows where others reduce the rows: those across the fast axes of
    memory. None in other groups."""
    reductions = [s for s in flow.stages if s.is_reduction]

    def across(s: Stage, r: Stage) -> bool:
        return any(flow.graph.depends(c, r.frame.output) for c in s.frame.reduced)

    crossed = [s for s in reductions if any(across(s, r) and across(r, s) for r in reductions)]
    return [s for s in crossed if not is_inner(flow, s)]


def schedule_rows(flow: Dataflow, target: Target) -> Params:
    """Schedules a group with reductions of rows and partial results of runs of the rows.

    Raises ScheduleError when some value cannot follow these loops.
    """
    untangle(flow)
    copies = cache_inputs(flow, through=(Reshape, Broadcast))
    partials = partials_of(flow)
    partial = partials[0]
    row = next(s for s in flow.stages if s.is_reduction and s not in partials)
    kept = merge_all(flow, by_stride(flow, row.frame.output))
    columns = merge_all(flow, by_stride(flow, row.frame.reduced))
    if kept is None or columns is None:
        raise ScheduleError(f"{row.name}: rows or columns of size 1")
    vector = widest_vector(flow, row, kept, columns, inner=True)
    words = _words_of_row(flow, copies, kept.axis, columns.axis)
    separate_phases(flow, row, copies)
    threads, side_by_side = _spread(estimate(columns.axis.extent) // vector)
    partial.loops = _loops(flow, row, partial, columns, (vector, threads, side_by_side))
    blocks = partial.loops[0].axis
    transform_like(flow, partial, align=True)
    for s in computed(flow.stages):
        along = not s.is_virtual and flow.graph.depends(kept.axis, s.frame.domain)
        if along and (not s.loops or s.loops[0].axis is not blocks):
            raise ScheduleError(f"{s.name} cannot run along the rows of {partial.name}")
    if vector > 1:
        vectorize_accesses(flow, partial.loops[-1].axis, vector)
    inline_most(flow)
    trips = -(-estimate(columns.axis.extent) // (vector * threads))
    registers = registers_of_row(trips * vector, len(partials) + words)
    registers += MEETING_REGISTERS if side_by_side > 1 else 0
    fit = int(target.registers_per_sm // (threads * side_by_side * registers))
    if not fit:
        raise ScheduleError(
            f"{partial.name}: {threads} threads along a row would need some {registers:.0f} "
            "registers each for it and the partial results"
        )
    return Params(
        "rows",
        (("vector", vector), ("threads", threads), ("rows", side_by_side)),
        min_blocks=min(fit, max(1, RESIDENT_THREADS // (threads * side_by_side))),
    )


def _words_of_row(flow: Dataflow, copies: list[Stage], rows: AxisClass, row: AxisClass) -> float:
    """Registers an element for what is held of the inputs: this row, and the next one on its way
    for those that differ from row to row."""
    words = 0.0
    for c in copies:
        if flow.graph.depends(row, c.frame.output):
            words += c.dtype.nbytes / 4 * (2 if flow.graph.depends(rows, c.frame.output) else 1)
    return words


def _spread(vectors: int) -> tuple[int, int]:
    """Threads along the columns, one vector each where a block has as many, and rows side by side
    that make the block large enough."""
    trips = -(-vectors // MAX_THREADS_PER_BLOCK)
    threads = -(-vectors // trips)
    if threads < WARP_SIZE:
        threads = 1 << max(threads - 1, 0).bit_length()
    else:
        threads = -(-threads // WARP_SIZE) * WARP_SIZE
    return threads, max(1, LEAST_THREADS // threads)


def _loops(
    flow: Dataflow, row: Stage, partial: Stage, columns: Loop, spread: tuple[int, int, int]
) -> tuple[Loop, ...]:
    vector, threads, side_by_side = spread
    of_rows = [Loop(c) for c in partial.frame.output if flow.graph.depends(c, row.frame.output)]
    blocks = merge_all(flow, of_rows)
    run = merge_all(flow, [Loop(c) for c in partial.frame.reduced])
    assert blocks is not None and run is not None
    out = [Loop(blocks.axis, Parallel.BIDX)]
    if side_by_side > 1:
        run, beside = split(flow, run, side_by_side)
        out += [run, Loop(beside.axis, Parallel.TIDY)]
    else:
        out.append(run)
    lanes: Loop | None = None
    if vector > 1:
        columns, lanes = split(flow, columns, vector)
    trips, along = split(flow, columns, threads)
    out += [Loop(along.axis, Parallel.TIDX), Loop(trips.axis, Parallel.UNROLL)]
    if lanes is not None:
        out.append(Loop(lanes.axis, Parallel.UNROLL))
    return tuple(out)
