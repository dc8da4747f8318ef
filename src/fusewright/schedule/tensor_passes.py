"""Edits of one tensor that heuristics say too: loops along aligned addresses and over axes of other
tensors, tiles in shared memory, scans in runs."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.arguments import INTEGER, takes
from fusewright.axes.paths import Refusal, domain_path
from fusewright.core.expr import IntLike, Var, as_expr
from fusewright.errors import ScheduleError
from fusewright.memory import Memory
from fusewright.schedule.block_scan import block_scan
from fusewright.schedule.copies import tile_after, tile_before
from fusewright.schedule.graph import Stage
from fusewright.schedule.handle import TensorHandle
from fusewright.schedule.nest import is_loop
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.terms import AxisTerm, axis_term, class_of


class TensorPasses(TensorHandle):
    """One tensor of a schedule. Every method edits the schedule and raises ScheduleError, leaving
    it as it was, when the edit is not legal."""

    __slots__ = ()

    @takes(ScheduleError, position=INTEGER)
    def axis(self, position: int) -> AxisTerm:
        """One of its axes, those that it reduces behind its own, for `loop_over` and
        `allocate_by`: terms have `split`, `merge`, `resize`, `skew`, `serpentine`, `swizzle` and
        `project`."""
        return axis_term(self.stage, position)

    def loop_over(self, loops: Sequence[tuple[AxisTerm, Parallel]]) -> TensorPasses:
        """Gives it these loops, outermost first: axes of any tensors, and what each is bound to.
        Axes that this tensor lacks are repeated by those loops."""
        self._check_computed("loop_over")
        if self.stage.inline_depth:
            raise ScheduleError(
                f"loop_over({self.name}): it shares loops with its readers; transform first, "
                "inline after"
            )
        flow = self._schedule.flow
        self._commit(tuple(Loop(class_of(flow, term), kind) for term, kind in loops))
        return self

    def skew(self, axis: int, rows: int, stride: IntLike, width: int) -> TensorPasses:
        """Counts the elements of a loop from the last multiple of `width` in memory, where the
        iterations of the loop `rows` begin every `stride` elements: `width - 1` elements more, of
        which those outside of the row are guarded."""
        i, j = self._editable(axis, "skew"), self._editable(rows, "skew")
        if i == j or width < 1:
            raise ScheduleError(
                f"skew({self.name}, axis={axis}, rows={rows}, width={width}): two loops, and a "
                "width of at least 1"
            )
        loop, by = self.stage.loops[i], self.stage.loops[j]
        moved = self._schedule.flow.graph.skew(loop.axis, by.axis, stride, width)
        self._set(i, 1, (Loop(moved, loop.parallel),))
        return self

    def resize(self, axis: int, low: IntLike, high: IntLike) -> TensorPasses:
        """Lets a loop begin `low` elements before its axis and end `high` behind it; those are
        guarded."""
        i = self._editable(axis, "resize")
        for amount in (as_expr(low), as_expr(high)):
            least = amount.interval[0]
            if least is None or least < 0:
                raise ScheduleError(
                    f"resize({self.name}, axis={axis}, {low}, {high}): a loop covers its axis; "
                    "give numbers from 0 on"
                )
        loop = self.stage.loops[i]
        wide = self._schedule.flow.graph.resize(loop.axis, low, high)
        self._set(i, 1, (Loop(wide, loop.parallel),))
        return self

    def allocate_by(self, axes: Sequence[AxisTerm]) -> TensorPasses:
        """Indexes its buffer in shared memory by these axes, outermost first; with the loops bound
        to the grid, and serial ones that its readers share, they tell each element from others."""
        s, flow = self.stage, self._schedule.flow
        if s.memory is not Memory.SHARED:
            raise ScheduleError(
                f"allocate_by({self.name}): it lives in {s.memory.value} memory; call "
                "set_memory(fw.SHARED) first"
            )
        classes = tuple(class_of(flow, a) for a in axes)
        shared = s.loops[: s.inline_depth]
        around = [x for x in s.loops if x.parallel.is_block or (x in shared and is_loop(x))]
        given = [*(x.axis for x in around), *classes]
        known = [(c, Var(f"a{k}", 0, c.extent - 1)) for k, c in enumerate(given)]
        path = domain_path(flow.graph, known, s.frame.output)
        if isinstance(path, Refusal):
            raise ScheduleError(f"allocate_by({self.name}): {path.reason}")
        s.allocation = classes
        return self

    def block_scan(self, width: int) -> TensorPasses:
        """Combines scans of runs of `width` elements, one a thread, with what comes before each
        run."""
        if width < 1:
            raise ScheduleError(f"block_scan({self.name}, width={width}): width < 1")
        block_scan(self._schedule.flow, self.stage, width)
        return self

    def tile_after(self, readers: Sequence[TensorHandle]) -> tuple[TensorPasses, ...]:
        """`x -> far = copy(x); tile = copy(far); near = copy(tile)`, of which the tile is in shared
        memory; the readers read `near`. Returns the three."""
        users = self._schedule.flow.consumers(self.stage)
        strange = [r.name for r in readers if r.stage not in users]
        if strange or not readers:
            raise ScheduleError(
                f"tile_after({self.name}): {', '.join(strange) or 'nothing'} does not read it; its "
                f"readers are {', '.join(r.name for r in users)}"
            )
        made = tile_after(self._schedule.flow, self.stage, [r.stage for r in readers])
        return self._handles(made)

    def tile_before(self) -> tuple[TensorPasses, ...]:
        """`y = op(..) -> near = op(..); tile = cast(near); y = copy(tile)`, of which the tile is in
        shared memory. Returns `near` and `tile`."""
        if self.stage.is_input:
            raise ScheduleError(f"tile_before({self.name}): it is an input; use tile_after")
        return self._handles(tile_before(self._schedule.flow, self.stage))

    def _handles(self, stages: Sequence[Stage]) -> tuple[TensorPasses, ...]:
        return tuple(type(self)(self._schedule, s) for s in stages)
