"""Pointwise groups whose results are lines of which no vector reads the elements: whole lines go
through shared memory.

    y[i, j] = x[i, places[j]]        a block takes some lines i; their x[i] stand in its tile
    y[i, j] = x[j, i]                the same of x[:, i], where j has no whole number of vectors
    y[i, j] = x[j, n - 1 - i]        which lanes take out of words at these places

    memory -> registers -> shared memory    in whole vectors, along or across the lines
    shared memory -> registers -> memory    vectors of results, whichever lines they are of

Every sector is asked for once, however its elements are spread over threads, and results are
stored in whole words. Where places are those of all lines, a thread takes the same place of
several lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import Int, constant_value
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import IndexMap, Take, TakeAlong
from fusewright.memory import Memory
from fusewright.schedule.copies import copy_after, tile_before
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
from fusewright.schedule.heuristics.traffic import class_along
from fusewright.schedule.inline import inline_most, misplaced
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import (
    BLOCK,
    MAX_THREADS_PER_BLOCK,
    MAX_VECTOR_NBYTES,
    SECTOR_NBYTES,
    WARP_SIZE,
    Target,
)

THREADS = BLOCK
TILES_NBYTES = (8 * 1024, 16 * 1024, 32 * 1024)
"""Bytes of lines that a block brings at most, but for one line. Rows of 13 kB took 129 us one by
one, 145 us two by two, of 2 kB 215 us by 4 or 8 and 229 us by 16 (one H100, 2026-11-26)."""
MOST_TOGETHER = 16
"""Accesses by which a thread brings its share of the lines that stand behind each other in the
code: a line of 64 kB in vectors. More would need a register each."""
BLOCKS = 4
"""Blocks for each multiprocessor that several lines a block have to leave."""


@dataclass(frozen=True, slots=True)
class StagedLines:
    """Lines of a block, elements of a vector of the results, threads, and whether these have the
    same place of all lines; `axis`: the first axis of a line of the results."""

    lines: int
    width: int
    threads: int
    axis: int
    is_across: bool = False

    @property
    def candidate(self) -> Candidate[StagedLines]:
        """The plan with its parameters by name."""
        many = "a line" if self.lines == 1 else f"{self.lines} lines"
        what = f"{many} through shared memory, {self.threads} threads"
        what += " with a place of all of them" if self.is_across else ""
        across, threads = self.is_across or None, self.threads
        params = Params.of(
            "staged_lines", lines=self.lines, vector=self.width, threads=threads, across=across
        )
        return Candidate(what, params, self)


class LinesScheduler:
    """Pointwise groups with such reads; no candidates for any other."""

    def __init__(self, flow: Dataflow, target: Target) -> None:
        self.flow = flow
        self._target = target
        self._reference = reference_output(flow)
        self._gathers = [s for s in computed(flow.stages) if _is_along_lines(s)]
        self._turned = [] if self._gathers else _turned(flow, self._reference)

    def candidates(self) -> Iterator[Listed[StagedLines]]:
        """As few lines as make a small tile first."""
        if self._gathers:
            yield from distinct(self._of_gathers(min(_axis_of(s) for s in self._gathers)))
        elif self._turned:
            yield from distinct(self._of_turned(len(self._reference.shape) - 1))

    def _of_gathers(self, axis: int) -> Iterator[Listed[StagedLines]]:
        what, shape = "lines through shared memory", self._reference.shape
        if any(s.shape[:axis] != shape[:axis] for s in self._gathers):
            yield Refused(what, "they are no rows of the results")
            return
        sizes = [e for s in self._gathers for e in s.operands[0].shape[axis:]]
        unknown = [e for e in sizes if constant_value(e) is None]
        if unknown:
            yield Refused(what, f"a tile has a known size, a line has {unknown[0]} elements")
            return
        nbytes = sum(_nbytes(s.operands[0], axis) for s in self._gathers)
        most = self._target.shared_nbytes_per_block
        if nbytes > most:
            yield Refused(what, f"{nbytes} bytes a line, {most} at most")
            return
        width, place = self._width, numel(shape[axis:])
        places = sum(_places(s, axis) for s in self._gathers)
        if places * SECTOR_NBYTES < nbytes:
            yield Refused(what, f"{places} places of a line are in fewer sectors than all of it")
            return
        for lines in (self._lines(axis, nbytes, size) for size in TILES_NBYTES):
            vectors = place // width
            if lines > 1 and place % width == 0 and vectors >= WARP_SIZE:
                trips = -(-vectors // THREADS)
                threads = -(-vectors // (trips * WARP_SIZE)) * WARP_SIZE
                yield StagedLines(lines, width, threads, axis, is_across=True).candidate
            own = math.gcd(width, lines * place)
            yield StagedLines(lines, own, self._threads(lines * nbytes), axis).candidate

    def _threads(self, nbytes: int) -> int:
        """Threads of a block with so many bytes of shared memory: `THREADS` where three blocks have
        room on a multiprocessor, and as many in all where fewer have."""
        blocks, threads = self._target.shared_nbytes_per_sm // nbytes, THREADS
        while blocks * threads < 3 * THREADS and 2 * threads <= MAX_THREADS_PER_BLOCK:
            threads *= 2
        return threads

    def _of_turned(self, axis: int) -> Iterator[Listed[StagedLines]]:
        """Of lines that no vector divides; of others tiles of any sides are as good."""
        width, place = self._width, numel(self._reference.shape[axis:])
        item = max(x.dtype.nbytes for _, x in self._turned)
        if place % width == 0 or place == 1:
            return
        nbytes = place * sum(x.dtype.nbytes for _, x in self._turned)
        for lines in (self._lines(axis, nbytes, size) for size in TILES_NBYTES):
            if lines * item >= 2 * SECTOR_NBYTES:
                yield StagedLines(lines, width, THREADS, axis).candidate

    @property
    def _width(self) -> int:
        tensors = [*self.flow.inputs, *self.flow.outputs]
        return full_width(tensors, tensors)

    def _lines(self, axis: int, nbytes: int, size: int) -> int:
        """As many lines of so many bytes as a tile of this size holds and leave enough blocks."""
        least = BLOCKS * self._target.multiprocessors
        total, lines = numel(self._reference.shape[:axis]), 1
        while 2 * lines * nbytes <= size and total >= 2 * lines * least:
            lines *= 2
        return lines

    def apply(self, plan: StagedLines) -> bool:
        """Inserts the tiles; False where the loops do not reach every stage."""
        flow, reference, axis = self.flow, self._reference, plan.axis
        reads = [*((s, s.operands[0]) for s in self._gathers), *self._turned]
        pairs = [_tile(flow, s, x) for s, x in reads]
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
        vectorize_accesses(flow, reference, [tile for _, tile in pairs] if self._turned else ())
        for pair in pairs:
            if not _bring(flow, (block, lines), pair, plan, is_turned=bool(self._turned)):
                return False
        inline_most(flow)
        for _, tile in pairs:
            inline_to(flow, {tile: min(tile.inline_depth, 1)})
        return not any(misplaced(flow))


def _axis_of(s: Stage) -> int:
    assert isinstance(s.op, Take | TakeAlong)
    return s.op.axis


def _places(s: Stage, axis: int) -> int:
    """How many places of a line a stage gathers."""
    return numel(s.shape[axis:]) // max(1, numel(s.operands[0].shape[_axis_of(s) + 1 :]))


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


def _turned(flow: Dataflow, reference: Stage) -> list[tuple[Stage, Stage]]:
    """The stages that read an input which is fast along the last axis but one of the results, and
    has their last one, with that input; whatever order its axes have in the program, and where a
    map of coordinates reads it at other places of either."""
    if len(reference.shape) < 2:
        return []
    row, place = map(flow.graph.normal, reference.frame.output[-2:])
    found: list[tuple[Stage, Stage]] = []
    for s in computed(flow.stages):
        for x, read in zip(s.operands, s.frame.operands, strict=True):
            along = [class_along(s, c) for c in read] if isinstance(s.op, IndexMap) else read
            if x.is_input and place in along and _fast_along(x, along) is row:
                found.append((s, x))
    return found


def _fast_along(x: Stage, read: Sequence[object]) -> object:
    """What an input is read by along the axis on which its elements are neighbours."""
    for stride, extent, axis in zip(strides_of(x), x.shape, read, strict=True):
        if stride == Int(1) and extent != Int(1):
            return axis
    return None


def _tile(flow: Dataflow, s: Stage, x: Stage) -> tuple[Stage, Stage]:
    """The copies of what a stage reads: in registers on the way, and in shared memory. What a map
    of coordinates reads at other places is brought by the stage itself."""
    if isinstance(s.op, IndexMap):
        if s.memory is Memory.GLOBAL:
            return tile_before(flow, s)
        return s, copy_after(flow, s, memory=Memory.SHARED)
    far = copy_after(flow, x, readers=[s])
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


def _unrolled(flow: Dataflow, trips: AxisClass) -> tuple[Loop, ...]:
    """The trips of a thread that brings lines, at most `MOST_TOGETHER` of them unrolled."""
    if estimate(trips.extent) <= MOST_TOGETHER:
        return (Loop(trips, Parallel.UNROLL),)
    outer, together = flow.graph.split(trips, MOST_TOGETHER)
    return Loop(outer), Loop(together, Parallel.UNROLL)


def _bring(
    flow: Dataflow,
    around: tuple[Loop, AxisClass],
    pair: tuple[Stage, Stage],
    plan: StagedLines,
    *,
    is_turned: bool,
) -> bool:
    """Lets all threads of a block bring its lines, in the widest vectors that memory has and that
    fill the tile; False where those that stand across have no vectors of 16 bytes."""
    (block, lines), (far, tile), graph = around, pair, flow.graph
    own = [c for c in far.frame.output if not graph.depends(c, [block.axis, lines])]
    line = merge_all(flow, [Loop(c) for c in own])
    place = lines if line is None else graph.merge(lines, line.axis)
    walk = graph.merge(line.axis, lines) if is_turned and line is not None else place
    full = MAX_VECTOR_NBYTES // far.dtype.nbytes
    width = math.gcd(full, estimate(walk.extent))
    if is_turned and width < full:
        return False
    while True:
        vectors, lanes = graph.split(walk, width)
        trips, threads = graph.split(vectors, plan.threads)
        inner = (*_unrolled(flow, trips), Loop(lanes, Parallel.UNROLL))
        for s in pair:
            set_loops(flow, s, (block, Loop(threads, Parallel.TIDX), *inner))
        vectorize_accesses(flow, far, () if is_turned else (tile,))
        if width == 1 or is_turned or far.loops[-1].parallel is Parallel.VECTORIZE:
            break
        width //= 2
    set_allocation(flow, tile, (place,))
    return not is_turned or far.loops[-1].parallel is Parallel.VECTORIZE
