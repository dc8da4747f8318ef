"""The lines that a kernel scans, and the loops of its blocks and threads over them.

Where a reduction runs across lines, with a result for each of their places, a thread has an element
of all lines that it runs over, or threads side by side have them:

    c = cumsum(x, 1);  m = max(c, 0)        a thread walks along all x[:, :, i], m in its registers
    c = cumsum(x, 0);  m = max(c, 1)        lanes of a vector, and of a warp, have a row x[i, :]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.core.expr import ONE
from fusewright.core.substitution import estimate
from fusewright.fusion.sizes import power_of_two
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.common import Params, by_stride, merge_all, numel, split
from fusewright.schedule.heuristics.reduction_facts import widest_vectors
from fusewright.schedule.heuristics.reduction_plans import FEW_ELEMENTS_PER_THREAD
from fusewright.schedule.heuristics.space import joined_axes
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel

THREADS_AT_ONCE = 512
"""Threads of a multiprocessor whose blocks share lines, with 128 registers each. With 64 some are
spilled, and each look at a semaphore drops the first-level cache in which they are: 57.7 us for
13.8 (bfloat16[8192, 768], one H100, 2026-11-27)."""


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """Elements of a vector along the fast axis, elements of a line that a thread scans at once (0
    for all of them), threads along the line, lines that threads of a block begin side by side,
    whether these go through shared memory, lines of a thread, whether lines are neighbours in
    the results but not in what is read: the run of a thread is then what a vector reads; the lines
    of a block that lie further apart than those side by side; and the blocks that share a line, and
    wait for each other's totals."""

    inner: bool
    vector: int
    run: int
    along: int
    beside: int
    is_staged: bool = False
    own: int = 1
    is_across: bool = False
    apart: int = 1
    parts: int = 1

    @property
    def min_blocks(self) -> int:
        """Blocks that have to fit a multiprocessor."""
        threads = self.along * self.beside * self.apart
        return THREADS_AT_ONCE // threads if self.parts > 1 else 0

    @property
    def candidate(self) -> Candidate[ScanPlan]:
        """The plan with its parameters by name."""
        kind = "rows" if self.inner else "columns"
        what = f"{self.beside} {kind} a block, {self.along} threads along, runs of {self.run}"
        if not self.run:
            lines = "a line" if self.own == 1 else f"{self.own} lines"
            what = f"{lines} a thread, blocks of {self.beside}"
        if self.is_across:
            kind, what = "columns_across", f"{what}, each read in vectors"
        if self.is_staged:
            kind, what = f"{kind}_staged", f"{what}, through shared memory"
        if self.parts > 1:
            what = f"{what}, {self.parts} blocks along"
        params = Params.of(
            f"scan_{kind}",
            vector=self.vector,
            run=self.run,
            along=self.along,
            beside=self.beside,
            own=self.own if self.own > 1 else None,
            apart=self.apart if self.apart > 1 else None,
            parts=self.parts if self.parts > 1 else None,
            min_blocks=self.min_blocks,
        )
        return Candidate(what, params, self)


@dataclass(frozen=True, slots=True)
class ScanLines:
    """The axis that is scanned, loops over those that are neither scanned nor reduced, and over
    those that are reduced across lines, each with what is fast in memory last; whether the scanned
    axis is fast in what is read, and whether the last one of those reduced is."""

    line: AxisClass
    kept: tuple[Loop, ...]
    across: tuple[Loop, ...]
    is_inner: bool
    are_beside: bool

    @staticmethod
    def of(flow: Dataflow, s: Stage, axis: int) -> ScanLines:
        """The lines of a stage along an axis that is scanned, with what other stages reduce."""
        line, depends = s.frame.output[axis], flow.graph.depends
        order = by_stride(flow, tuple(c for c in s.frame.output if c is not line))
        reduced = [c for r in flow.stages if r.is_reduction for c in r.frame.reduced]
        sized = [x for x in order if x.axis.extent != ONE]
        across = tuple(x for x in sized if depends(x.axis, reduced))
        is_inner = not sized or _is_fast(flow, line)
        are_beside = bool(across) and not is_inner and sized[-1] is across[-1]
        kept = tuple(x for x in order if x not in across)
        return ScanLines(line, kept, across, is_inner, are_beside)

    def neighbours(self, flow: Dataflow, s: Stage) -> int:
        """How many lines follow each other in memory by the same step."""
        beside, others = (self.across, self.kept) if self.are_beside else (self.kept, self.across)
        runs = joined_axes(flow, s, beside, [*others, Loop(self.line)])
        return estimate(runs[-1].axis.extent) if runs else 1

    @property
    def count(self) -> int:
        """Lines that a reduction runs across; 1 without one."""
        return numel([x.axis.extent for x in self.across])

    @property
    def own(self) -> int:
        """Of these, the lines that a thread has to walk along."""
        return 1 if self.are_beside else self.count

    def widest(self, flow: Dataflow, reference: Stage, *, inner: bool) -> int:
        """The widest vectors along a line (`inner`), or side by side."""
        line, kept, across = (Loop(self.line),), self.kept, self.across
        lanes, others = (across, kept + line) if self.are_beside else (kept, across + line)
        if inner:
            others = across + kept
        beside = line[0] if inner else merge_all(flow, lanes)
        other = merge_all(flow, others)
        width = widest_vectors(flow, reference, other, beside, inner=True).whole
        while self.are_beside and self.count % width:
            width //= 2
        while width > 1 and self.own * width > FEW_ELEMENTS_PER_THREAD:
            width //= 2
        return width

    def loops(self, flow: Dataflow, plan: ScanPlan) -> tuple[Loop, ...]:
        """Lines over blocks and threads; of a line trips, threads, and the run of a thread. The
        lanes of a vector stand last."""
        lanes: list[Loop] = []
        kept, across = merge_all(flow, self.kept), merge_all(flow, self.across)
        if plan.vector > 1 and not plan.inner:
            wide = across if self.are_beside else kept
            assert wide is not None
            wide, vector = split(flow, wide, plan.vector)
            lanes.append(vector)
            kept, across = (kept, wide) if self.are_beside else (wide, across)
        if not plan.run:
            return self._alone(flow, plan, kept, across, lanes)
        outer, run = split(flow, Loop(self.line), plan.run)
        trips, along = split(flow, outer, plan.along)
        out: list[Loop] = []
        shared: tuple[Loop, ...] = ()
        if plan.parts > 1:
            trips, parts = split(flow, trips, plan.parts)
            shared = (Loop(parts.axis, Parallel.BIDX),)
        side = Parallel.TIDY if plan.inner else Parallel.TIDX
        beside = [] if across is None else [Loop(across.axis, Parallel.UNROLL)]
        if self.are_beside and across is not None:
            # All lines of a row stand side by side. What is reduced ends behind the loop over them,
            # which is therefore inside of all others but for the lanes.
            _, threads = split(flow, across, plan.beside)
            beside, lanes = [], [Loop(threads.axis, side), *lanes]
        if kept is not None:
            out += self._around(flow, plan, kept, side)
        down = Parallel.TIDX if plan.inner else Parallel.TIDY
        out += [trips, *shared, Loop(along.axis, down), *beside]
        return (*out, Loop(run.axis, Parallel.UNROLL), *lanes)

    def _around(self, flow: Dataflow, plan: ScanPlan, kept: Loop, side: Parallel) -> list[Loop]:
        """The loops over lines that nothing reduces."""
        out: list[Loop] = []
        if not self.are_beside:
            kept, threads = split(flow, kept, plan.beside)
            out.append(Loop(threads.axis, side))
        if plan.apart > 1:
            kept, apart = split(flow, kept, plan.apart)
            out.insert(0, Loop(apart.axis, Parallel.TIDZ))
        return [Loop(kept.axis, Parallel.BIDY if plan.parts > 1 else Parallel.BIDX), *out]

    def _alone(
        self,
        flow: Dataflow,
        plan: ScanPlan,
        kept: Loop | None,
        across: Loop | None,
        lanes: Sequence[Loop],
    ) -> tuple[Loop, ...]:
        """The same where a thread walks along its lines alone."""
        if kept is None:
            return tuple(x for x in (Loop(self.line), across, *lanes) if x is not None)
        blocks, threads = split(flow, kept, plan.beside)
        if plan.own > 1 and across is None:
            blocks, across = split(flow, blocks, plan.own)
        bound = (Loop(blocks.axis, Parallel.BIDX), Loop(threads.axis, Parallel.TIDX))
        beside = () if across is None else (Loop(across.axis, Parallel.UNROLL),)
        is_open = estimate(self.line.extent) * plan.own <= FEW_ELEMENTS_PER_THREAD
        walk = Parallel.UNROLL if is_open else Parallel.SERIAL
        return (*bound, Loop(self.line, walk), *beside, *lanes)


def threads_beside(count: int, vector: int) -> int:
    """Threads side by side that have so many lines, filled up to a power of two, as lanes exchange
    by such."""
    return power_of_two(-(-count // vector))


def _is_fast(flow: Dataflow, line: AxisClass) -> bool:
    """Whether the scanned axis is the fast one of the largest tensor that is read."""
    best = (-1, True)
    for s in computed(flow.stages):
        for p, read in zip(s.operands, s.frame.operands, strict=True):
            for index, stride in zip(read, strides_of(p), strict=True) if p.is_input else ():
                if isinstance(index, AxisClass) and stride == ONE:
                    found = (numel(p.shape), flow.graph.depends(index, [line]))
                    best = max(best, found, key=lambda x: x[0])
    return best[1]
