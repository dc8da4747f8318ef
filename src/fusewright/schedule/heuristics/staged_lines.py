"""Pointwise groups that gather along lines of memory: whole lines go through shared memory.

    y[i, j] = x[i, places[j]]        a block takes some lines i; their x[i] stand in its tile

    memory -> registers -> shared memory    in whole vectors, whichever lines they are of
    shared memory -> registers -> memory    vectors of results, put together of single elements

Every sector of a line is asked for once, however its elements are spread over threads. Where
places are those of all lines, a thread takes the same place of several lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import Int
from fusewright.fusion.ir import Take, TakeAlong
from fusewright.memory import Memory
from fusewright.schedule.copies import copy_after
from fusewright.schedule.edits import inline_to, set_allocation, set_loops
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.heuristics.candidates import Candidate, Listed, Refused, distinct
from fusewright.schedule.heuristics.common import (
    Params,
    cache_inputs,
    full_width,
    merge_all,
    numel,
    reference_output,
    vectorize_accesses,
)
from fusewright.schedule.inline import inline_most, misplaced
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import MAX_VECTOR_NBYTES, SECTOR_NBYTES, WARP_SIZE, Target

THREADS = 256
TILES_NBYTES = (8 * 1024, 16 * 1024, 32 * 1024)
"""Bytes of lines that a block brings at most, but for one line. Rows of 13 kB took 129 us one by
one, 145 us two by two, of 2 kB 215 us by 4 or 8 and 229 us by 16 (one H100, 2026-11-26)."""
LONGEST_NBYTES = 64 * 1024
"""A line that leaves room for three blocks on a multiprocessor."""
BLOCKS = 4
"""Blocks for each multiprocessor that several lines a block have to leave."""


@dataclass(frozen=True, slots=True)
class StagedLines:
    """Lines of a block, elements of a vector of the results, threads, and whether these have the
    same place of all lines."""

    lines: int
    width: int
    threads: int
    is_across: bool

    @property
    def candidate(self) -> Candidate[StagedLines]:
        """The plan with its parameters by name."""
        many = "a line" if self.lines == 1 else f"{self.lines} lines"
        what = f"{many} through shared memory, {self.threads} threads"
        what += " with a place of all of them" if self.is_across else ""
        values = (
            *(("lines", self.lines), ("vector", self.width), ("threads", self.threads)),
            *((("across", True),) if self.is_across else ()),
        )
        return Candidate(what, Params("staged_lines", values), self)


class LinesScheduler:
    """Pointwise groups with such reads; no candidates for any other."""

    def __init__(self, flow: Dataflow, target: Target) -> None:
        self.flow = flow
        self._target = target
        self._reference = reference_output(flow)
        self._gathers = [s for s in computed(flow.stages) if _is_along_lines(s)]

    @property
    def _axis(self) -> int:
        """The first axis of a line."""
        return min(_axis_of(s) for s in self._gathers)

    def candidates(self) -> Iterator[Listed[StagedLines]]:
        """As few lines as make a small tile first."""
        if self._gathers:
            yield from distinct(self._listed())

    def _listed(self) -> Iterator[Listed[StagedLines]]:
        what, axis, shape = "lines through shared memory", self._axis, self._reference.shape
        if any(s.shape[:axis] != shape[:axis] for s in self._gathers):
            yield Refused(what, "they are no rows of the results")
            return
        nbytes = sum(_nbytes(s.operands[0], axis) for s in self._gathers)
        if nbytes > LONGEST_NBYTES:
            yield Refused(what, f"{nbytes} bytes a line, {LONGEST_NBYTES} at most")
            return
        tensors = [*self.flow.inputs, *self.flow.outputs]
        width, total, place = full_width(tensors, tensors), numel(shape[:axis]), numel(shape[axis:])
        for size in TILES_NBYTES:
            lines = 1
            while 2 * lines * nbytes <= size and total >= 2 * lines * self._least_blocks:
                lines *= 2
            vectors = place // width
            if lines > 1 and place % width == 0 and vectors >= WARP_SIZE:
                trips = -(-vectors // THREADS)
                warps = -(-vectors // (trips * WARP_SIZE))
                yield StagedLines(lines, width, warps * WARP_SIZE, is_across=True).candidate
            if lines * place % width == 0:
                yield StagedLines(lines, width, THREADS, is_across=False).candidate

    @property
    def _least_blocks(self) -> int:
        return BLOCKS * self._target.multiprocessors

    def apply(self, plan: StagedLines) -> bool:
        """Inserts the tiles; False where the loops do not reach every stage."""
        flow, reference, axis = self.flow, self._reference, self._axis
        pairs = [_tile(flow, s) for s in self._gathers]
        cache_inputs(flow, self._gathers if plan.is_across else ())
        rows = merge_all(flow, [Loop(c) for c in reference.frame.output[:axis]])
        place = merge_all(flow, [Loop(c) for c in reference.frame.output[axis:]])
        if rows is None or place is None:
            return False
        outer, lines = flow.graph.split(rows.axis, plan.lines)
        block = Loop(outer, Parallel.BIDX)
        set_loops(flow, reference, (block, *_results(flow, lines, place.axis, plan)))
        moving = [s for pair in pairs for s in pair]
        if transform_like(
            flow, reference, [s for s in computed(flow.stages) if s not in moving], align=True
        ):
            return False
        vectorize_accesses(flow, reference)
        for far, tile in pairs:
            _bring(flow, (block, lines), (far, tile), axis, plan.threads)
        inline_most(flow)
        for _, tile in pairs:
            inline_to(flow, {tile: min(tile.inline_depth, 1)})
        return not any(misplaced(flow))


def _axis_of(s: Stage) -> int:
    assert isinstance(s.op, Take | TakeAlong)
    return s.op.axis


def _is_along_lines(s: Stage) -> bool:
    """Whether a stage gathers single elements, or less than a sector, of each line of an input: of
    the axis that it gathers along and those behind it, which lie one behind the other."""
    if not isinstance(s.op, Take | TakeAlong) or s.op.axis == 0 or not s.operands[0].is_input:
        return False
    x, axis = s.operands[0], s.op.axis
    strides = strides_of(x)
    is_run = strides[-1] == Int(1) and all(
        strides[k] == strides[k + 1] * x.shape[k + 1] for k in range(axis, len(strides) - 1)
    )
    return is_run and _nbytes(x, axis + 1) < SECTOR_NBYTES


def _nbytes(x: Stage, axis: int) -> int:
    return numel(x.shape[axis:]) * x.dtype.nbytes


def _tile(flow: Dataflow, s: Stage) -> tuple[Stage, Stage]:
    """The copies of what a stage gathers from: in registers on the way, and in shared memory."""
    far = copy_after(flow, s.operands[0], readers=[s])
    return far, copy_after(flow, far, readers=[s], memory=Memory.SHARED)


def _results(
    flow: Dataflow, lines: AxisClass, place: AxisClass, plan: StagedLines
) -> tuple[Loop, ...]:
    """The loops of a block over its results."""
    graph = flow.graph
    whole = place if plan.is_across else graph.merge(lines, place)
    vectors, lanes = graph.split(whole, plan.width)
    trips, threads = graph.split(vectors, plan.threads)
    across = (Loop(lines, Parallel.UNROLL),) if plan.is_across else ()
    return Loop(threads, Parallel.TIDX), Loop(trips), *across, Loop(lanes)


def _bring(
    flow: Dataflow,
    around: tuple[Loop, AxisClass],
    pair: tuple[Stage, Stage],
    axis: int,
    nthreads: int,
) -> None:
    """Lets all threads of a block bring its lines, in the widest vectors that memory has."""
    (block, lines), (far, tile), graph = around, pair, flow.graph
    line = merge_all(flow, [Loop(c) for c in far.frame.output[axis:]])
    whole = lines if line is None else graph.merge(lines, line.axis)
    width = 2 * MAX_VECTOR_NBYTES // far.dtype.nbytes
    while width > 1 and far.loops[-1].parallel is not Parallel.VECTORIZE:
        width //= 2
        vectors, lanes = graph.split(whole, width)
        trips, threads = graph.split(vectors, nthreads)
        inner = Loop(trips, Parallel.UNROLL), Loop(lanes, Parallel.UNROLL)
        for s in pair:
            set_loops(flow, s, (block, Loop(threads, Parallel.TIDX), *inner))
        vectorize_accesses(flow, far, (tile,))
    set_allocation(flow, tile, (whole,))
