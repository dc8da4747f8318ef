"""Reductions of a few elements: softmax over 5, maxima over 7, pooling over windows of 2 by 2.

A thread takes whole rows, as many neighbours as make whole vectors, and holds them in registers:

    rows of 5 elements of 2 bytes, 8 of them a thread:   0 0 0 0 0 1 1 1 | 1 1 2 2 2 2 2 3 | ..
                                                         one vector        the next one

Lanes run along what is contiguous in memory: over the reduced axes that lie inside the fastest kept
one and over the thread's rows together, so that a vector holds the end of a row and the beginning
of the next. Reduced axes outside of it are walked over vector by vector. Nothing is exchanged
between threads.

Where rows are too long for that, or threads would ask for vectors that lie far apart, a block's
rows, which lie one behind the other, go through shared memory: in whole vectors to and from memory,
row by row to threads. A thread takes neighbours whose results lie far apart, so that what is stored
side by side is what neighbouring threads have:

    maxima over windows of 3 of rows of 15, the windows outermost in the result:
        thread 0: the 5 windows of row 0, thread 1: those of row 1, ..

The other way round, where rows whose results lie side by side are far apart in what is read, a
thread takes all of these, and what it stores is whole vectors:

    means over windows of 2 of 8 arrays, the 4 windows innermost in the result:
        thread 0: the 4 windows of elements 0 and 1, thread 1: those of elements 2 and 3, ..
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewright.axes.classes import AxisClass
from fusewright.axes.contiguity import Fit
from fusewright.core.expr import ONE, Int, constant_value
from fusewright.core.substitution import estimate
from fusewright.memory import Memory
from fusewright.schedule.edits import set_loops
from fusewright.schedule.graph import Dataflow, Stage, strides_of
from fusewright.schedule.heuristics import staged_rows
from fusewright.schedule.heuristics.candidates import Candidate, Listed, Refused
from fusewright.schedule.heuristics.common import (
    Params,
    by_stride,
    global_accesses_of,
    merge_all,
    numel,
    split,
    vectorize_accesses,
)
from fusewright.schedule.heuristics.staged_rows import THREADS, StagedRows, ways
from fusewright.schedule.inline import inline_most
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.propagate import transform_like
from fusewright.target import (
    MAX_VECTOR_NBYTES,
    SECTOR_NBYTES,
    Target,
)

LONGEST = 32
"""Elements of a row that a thread holds."""
HELD = 80
"""Elements of all rows of a thread."""
HELD_NBYTES = 192
"""Bytes of inputs that a thread holds of all its rows."""
ROWS = (1, 2, 4, 8)
"""Rows of a thread that are looked at."""

MOST_ACCESSES = 16
"""Accesses of a thread to what lies side by side: a warp asks for nearly the same sectors with all,
which its first-level cache bears for that long (predicted break-even between 11 and 17)."""


@dataclass(frozen=True, slots=True)
class ShortRows:
    """Rows of a thread, and the elements of a vector of the largest tensor; whether these go
    through shared memory. `beside`: for each of the rows, those whose results lie side by side."""

    rows: int
    vector: int
    length: int
    is_staged: bool = False
    beside: int = 1

    @property
    def candidate(self) -> Candidate[ShortRows]:
        """The plan with its parameters by name."""
        many = f"{self.rows}" if self.beside == 1 else f"{self.rows} by {self.beside}"
        what = f"{many} rows of {self.length} elements in registers of a thread"
        what += ", through shared memory" if self.is_staged else ""
        name = "short_rows_staged" if self.is_staged else "short_rows"
        beside = self.beside if self.beside > 1 else None
        params = Params.of(name, vector=self.vector, rows=self.rows, beside=beside, threads=THREADS)
        return Candidate(what, params, self)


class ShortRowsPlanner:
    """Threads that take whole rows of a group whose reductions all run over the same axes."""

    def __init__(
        self, flow: Dataflow, reference: Stage, copies: list[Stage], target: Target
    ) -> None:
        self._flow = flow
        self._reference = reference
        self._target = target
        (read,) = reference.frame.operands
        axes = by_stride(flow, tuple(c for c in read if isinstance(c, AxisClass)))
        sized = [x for x in axes if x.axis.extent != Int(1)]
        kept = [k for k, x in enumerate(sized) if x.axis in reference.frame.output]
        last = kept[-1] if kept else -1
        self._kept = merge_all(flow, [sized[k] for k in kept])
        self._inner = merge_all(flow, sized[last + 1 :])
        self._outer = merge_all(
            flow, [x for x in sized[:last] if x.axis in reference.frame.reduced]
        )
        extents = [constant_value(c.extent) for c in reference.frame.reduced]
        self._length = 0 if None in extents else math.prod(n or 0 for n in extents)
        large = [c for c in copies if numel(c.shape) >= self._length * numel(reference.shape)]
        self._nbytes = [c.dtype.nbytes for c in large] or [4]
        self._apart = self._stored_apart(sized[last]) if kept[1:] else 1
        self._beside = self._stored_beside([sized[k] for k in kept[:-1]])
        self._others = merge_all(flow, [sized[k] for k in kept if sized[k] is not self._beside])

    def candidates(self) -> Iterator[Listed[ShortRows]]:
        """Rows that are stored side by side and read far apart; the fewest rows that make vectors
        of a width, the widest first; and rows through shared memory, unless some of them are one
        vector; this first where neighbours are stored far apart."""
        own, staged = list(self._in_registers()), list(self._through_shared())
        yield from (*staged, *own) if self._apart > 1 else (*own, *staged)

    def _in_registers(self) -> Iterator[Listed[ShortRows]]:
        why = self._problem(LONGEST)
        if why is None:
            most = min(HELD, HELD_NBYTES // sum(self._nbytes)) // self._length
            rows = numel(self._reference.shape)
            most = min(most, rows // (THREADS * self._target.multiprocessors))
            counts = [n for n in ROWS if n <= max(most, 1)]
            fewest: dict[int, int] = {}
            for n in counts:
                fewest.setdefault(self._width(n), n)
            yield from self._side_by_side(counts)
            for own, n in sorted(fewest.items(), reverse=True):
                accesses = n * self._length // own
                if self._inner is not None and accesses > MOST_ACCESSES:
                    what = f"{accesses} accesses ask for the same sectors"
                    yield Refused(f"{n} rows", f"{what}; at most {MOST_ACCESSES}")
                else:
                    yield ShortRows(n, own, self._length).candidate
        if why is not None:
            yield Refused("whole rows in registers of a thread", why)

    def _side_by_side(self, counts: Sequence[int]) -> Iterator[Listed[ShortRows]]:
        """Rows whose results are neighbours in memory, several neighbours of the input for each:
        first as many as are stored as one vector."""
        if self._beside is None:
            return
        beside = estimate(self._beside.axis.extent)
        each = beside * max(y.dtype.nbytes for y in self._flow.outputs)
        for n in sorted(counts, key=lambda n: abs(n * each - MAX_VECTOR_NBYTES)):
            if n * beside * self._length <= HELD:
                own = self._width(n, beside=beside)
                yield ShortRows(n, own, self._length, beside=beside).candidate

    def _stored_beside(self, slow: Sequence[Loop]) -> Loop | None:
        """The kept axis, not the innermost one of the input, along which all results lie side by
        side, if a thread can hold all of its rows."""
        total = numel(self._reference.shape)
        results = [y for y in self._flow.outputs if numel(y.shape) == total]
        for x in slow:
            steps = [
                strides_of(y)[y.frame.output.index(x.axis)]
                for y in results
                if x.axis in y.frame.output
            ]
            if len(steps) == len(results) > 0 and all(step == ONE for step in steps):
                return x if estimate(x.axis.extent) * self._length <= HELD else None
        return None

    def _through_shared(self) -> Iterator[Listed[ShortRows]]:
        full = MAX_VECTOR_NBYTES // max(self._nbytes)
        is_one_run = self._outer is None and self._inner is not None
        if is_one_run and self._problem(staged_rows.LONGEST) is None and full % self._length:
            yield ShortRows(self._apart, full, self._length, is_staged=True).candidate

    def _stored_apart(self, innermost: Loop) -> int:
        """How many neighbours, which lie side by side in what is read, are stored in sectors of
        their own, if a thread can hold all of them, and threads meet in no more banks of shared
        memory than with a row each; else 1."""
        count, axis = constant_value(innermost.axis.extent) or 1, innermost.axis
        total = numel(self._reference.shape)
        blocks = total // (count * THREADS)
        if count * self._length > HELD or blocks < self._target.multiprocessors:
            return 1
        row = self._length * max(self._nbytes)
        if ways(count * row) > ways(row):
            return 1
        results = [y for y in self._flow.outputs if numel(y.shape) == total]
        steps = [
            estimate(strides_of(y)[y.frame.output.index(axis)]) * y.dtype.nbytes
            for y in results
            if axis in y.frame.output
        ]
        is_apart = bool(steps) and min(steps) >= SECTOR_NBYTES and len(steps) == len(results)
        return count if is_apart else 1

    def _problem(self, longest: int) -> str | None:
        rows = numel(self._reference.shape)
        if not 0 < self._length <= longest or self._kept is None:
            return f"only rows of 1 to {longest} elements are held so"
        if rows < THREADS * self._target.multiprocessors:
            return f"{rows} rows are too few for a thread each"
        inner = 1 if self._inner is None else constant_value(self._inner.axis.extent) or 1
        nbytes = inner * min(self._nbytes)
        if nbytes > MAX_VECTOR_NBYTES and nbytes % MAX_VECTOR_NBYTES == 0:
            return f"neighbouring threads share rows of {nbytes} bytes, which are whole vectors"
        return None

    def _width(self, rows: int, *, beside: int = 1) -> int:
        """Elements of a vector of the largest tensor where a thread takes so many rows."""
        widths: list[tuple[int, int]] = []
        with self._flow.trial():
            lanes = self._set_loops(rows, beside=beside)
            for s in computed(self._flow.stages):
                widths += [(numel(t.shape), w) for t, w in self._widened(s, lanes)]
        return max(widths, default=(0, 1))[1]

    def _set_loops(self, rows: int, *, beside: int = 1) -> _Lanes:
        """Gives all stages the loops over blocks, threads, the outer reduced axes, the rows of a
        thread that are stored `beside` each other, the inner reduced axes, and those that are read
        beside each other, if it has several. Returns the axes over which vectors run."""
        kept, own_side = (self._others, self._beside) if beside > 1 else (self._kept, None)
        assert kept is not None
        rest, own = split(self._flow, kept, rows) if rows > 1 else (kept, None)
        blocks, threads = split(self._flow, rest, THREADS)
        unrolled = [x for x in (self._outer, own_side, self._inner, own) if x is not None]
        loops = (
            Loop(blocks.axis, Parallel.BIDX),
            Loop(threads.axis, Parallel.TIDX),
            *(Loop(x.axis, Parallel.UNROLL) for x in unrolled),
        )
        set_loops(self._flow, self._reference, loops)
        transform_like(self._flow, self._reference, align=True)
        written = () if own_side is None else (own_side, own)
        return _Lanes(
            tuple(x.axis for x in (self._inner, own) if x is not None),
            tuple(x.axis for x in written if x is not None),
        )

    def _widened(self, s: Stage, lanes: _Lanes) -> list[tuple[Stage, int]]:
        """Lets a stage that accesses memory run over rows and inner axes as one, in vectors as wide
        as its accesses allow. Returns the tensors and the elements of their vectors."""
        flow = self._flow
        own = [x.axis for x in s.loops]
        is_result = s in flow.outputs and numel(s.shape) == numel(self._reference.shape)
        wanted = lanes.written if is_result and lanes.written else lanes.read
        wanted = wanted if own[-len(wanted) :] == list(wanted) else ()
        if not wanted or s.is_reduction or not _is_at_memory(s):
            return []
        whole = merge_all(flow, [Loop(a) for a in reversed(wanted)])
        before = s.loops[: -len(wanted)]
        if whole is None:
            return []
        count = constant_value(whole.axis.extent) or 1
        width = MAX_VECTOR_NBYTES
        while width > 1:
            width //= 2
            if count % width:
                continue
            trips, vector = split(flow, whole, width)
            lane = flow.graph.variable("lane", Int(width))
            with flow.trial():
                s.loops = (*before, Loop(trips.axis, Parallel.UNROLL), Loop(vector.axis))
                accesses = global_accesses_of(flow, s, lane)
            nbytes = width * max((a.tensor.dtype.nbytes for a in accesses), default=1)
            if nbytes <= MAX_VECTOR_NBYTES and all(
                a.fit(lane, width) is Fit.WORDS for a in accesses
            ):
                kind = Parallel.VECTORIZE if width > 1 else Parallel.UNROLL
                wide = (*before, Loop(trips.axis, Parallel.UNROLL), Loop(vector.axis, kind))
                set_loops(flow, s, wide)
                return [(a.tensor, width) for a in accesses]
        return []

    def apply(self, plan: ShortRows) -> bool:
        """Binds the loops; False where rows do not lie one behind the other."""
        if plan.is_staged:
            return self._apply_staged(plan)
        lanes = self._set_loops(plan.rows, beside=plan.beside)
        for s in computed(self._flow.stages):
            self._widened(s, lanes)
        if plan.rows > 1 and plan.beside == 1:
            vectorize_accesses(self._flow, self._reference)
        inline_most(self._flow)
        return True

    def _apply_staged(self, plan: ShortRows) -> bool:
        flow = self._flow
        staged = StagedRows(flow, self._length * numel(self._reference.shape))
        _, *own = self._set_loops(plan.rows).read
        assert self._inner is not None
        block, thread = self._reference.loops[:2]
        rows = flow.graph.merge(thread.axis, own[0]) if own else thread.axis
        whole = flow.graph.merge(rows, self._inner.axis)
        return staged.bind((block,), whole, plan.vector)


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The axes over which vectors run, the innermost first: of what is read, and of results where
    these have others."""

    read: tuple[AxisClass, ...]
    written: tuple[AxisClass, ...]


def _is_at_memory(s: Stage) -> bool:
    """Whether a stage reads an input or is an output."""
    return s.memory is Memory.GLOBAL or any(o.is_input for o in s.operands)
