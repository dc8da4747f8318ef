"""The meaning of copies of boxes through tensor maps.

Elements of a box beyond an edge of the tensor are zeros in shared memory, and are dropped on the
way out; the bytes of a box are counted in full. Chunks lie where the swizzle puts them.
Source: PTX ISA, "Tensor Data Movement"; CUDA driver API, `cuTensorMapEncodeTiled`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fusewright.core.functions import FUNCTIONS, round_tf32
from fusewright.kir import ir
from fusewright.kir.tiles import exchanged
from fusewright.sim.accesses import elements_of
from fusewright.sim.compute import Array, ExprFn, Mask
from fusewright.sim.frame import BatchFrame, Run, Step
from fusewright.sim.memory import BufferPlace
from fusewright.sim.report import statement_text
from fusewright.sim.trace import TracedAccess, agent_of

Box: TypeAlias = "ir.BoxLoad | ir.BoxStore | ir.BoxReduce"


@dataclass(frozen=True, slots=True)
class BoxWindow:
    """What a box covers of its tensor: positions in the array, of the elements inside, which of
    the box they are, and whether the fastest dimension is contiguous in runs of `run` elements."""

    positions: Array
    inside: Array
    run: int


class BoxPlaces:
    """Where a box lies in the tensor and in shared memory, row by row of a batch."""

    def __init__(self, s: Box, run: Run) -> None:
        self.statement = s
        self.map = s.map
        self.shared, index = (s.dst, s.index) if isinstance(s, ir.BoxLoad) else (s.src, s.src_index)
        scope = run.scope
        self.first: ExprFn = scope.expression(index)
        self.coordinates = [scope.expression(c) for c in s.coordinates]
        self.sizes = [scope.expression(e) for e in s.map.sizes]
        self.strides = [scope.expression(e) for e in s.map.strides]
        execution = run.execution
        self.place: BufferPlace = execution.memory.places[s.map.buffer]
        self.in_shared: BufferPlace = execution.shared.places[self.shared]
        self.shared_size = execution.shared.sizes[self.shared]
        self.size = len(execution.memory.arrays[s.map.buffer])
        self.agents = {(u.buffer, u.writes): agent_of(u) for u in s.memory_uses()}
        is_written = self.place.space in execution.memory.writers
        self.recorded = is_written or s.map.buffer in execution.watched
        span = np.arange(self.map.box_size)
        self._span = span
        self._within = np.stack(np.unravel_index(span, self.map.box[::-1]))[::-1]

    def window(self, f: BatchFrame, row: int, thread: int) -> BoxWindow:
        """The part of the tensor that the box of one issuer covers."""
        at = np.zeros(self.map.box_size, np.int64)
        inside = np.ones(self.map.box_size, bool)
        width = 0
        for d, within in enumerate(self._within):
            first = value_at(self.coordinates[d](f.values), row, thread)
            size, stride = (
                value_at(e[d](f.values), row, thread) for e in (self.sizes, self.strides)
            )
            here = first + within
            inside &= (here >= 0) & (here < size)
            at += here * stride
            if d == 0:
                width = max(0, min(first + self.map.box[0], size) - max(first, 0))
        return BoxWindow(at[inside], inside, width)

    def elements(self, f: BatchFrame, row: int, thread: int) -> tuple[int, Array] | None:
        """The byte in shared memory where the box begins, and the place of each of its elements in
        the memory of the first block of the row; None, and a finding, where it leaves its buffer.
        """
        first = value_at(self.first(f.values), row, thread)
        itemsize = self.shared.dtype.nbytes
        if first < 0 or first + self.map.box_size > self.shared_size:
            self.report(f, "range", f"leaves the {self.shared_size} elements of {self.shared}")
            return None
        start = self.in_shared.offset + first * itemsize
        address = exchanged(start + self._span * itemsize, self.map.swizzle)
        return start, row * (f.run.execution.shared.row_nbytes // itemsize) + address // itemsize

    def report(self, f: BatchFrame, kind: str, what: str) -> None:
        text = f"`{statement_text(self.statement)}` {what}"
        f.run.execution.findings.add(kind, text, statement=self.statement)  # type: ignore[arg-type]

    def blocks(self, f: BatchFrame, thread: int) -> range:
        """The blocks of a row in whose shared memory the box of a thread lies."""
        own = thread // f.trace.block_nthreads
        if isinstance(self.statement, ir.BoxLoad) and self.statement.blocks > 1:
            first = own // f.trace.cluster * f.trace.cluster
            return range(first, first + min(self.statement.blocks, f.trace.cluster))
        return range(own, own + 1)

    def record(
        self,
        f: BatchFrame,
        mask: Mask,
        start: int,
        window: BoxWindow,
        issues: Sequence[int],
        thread: int,
        *,
        loads: bool,
    ) -> None:
        """Record both ends of a copy that a thread issued."""
        itemsize, offset = self.shared.dtype.nbytes, self.in_shared.offset
        blocks = self.blocks(f, thread)
        for block, issue in zip(blocks, issues, strict=True):
            rank = -1 if len(blocks) == 1 else np.array([[block]])
            f.record(
                TracedAccess(
                    self.statement, 0, start, block * f.trace.shared_nbytes, self.map.box_nbytes,
                    loads, mask, self.shared, offset, self.agents[self.shared, loads], issue, rank,
                )
            )  # fmt: skip
        issue = issues[0]
        if not self.recorded or not len(window.positions):
            return
        runs = window.positions[:: window.run] * itemsize
        f.record(
            TracedAccess(
                self.statement, self.place.space, int(runs[0]) + self.place.offset, 0,
                window.run * itemsize, not loads, mask, self.map.buffer, self.place.offset,
                self.agents[self.map.buffer, not loads], issue, runs=runs - runs[0],
            )
        )  # fmt: skip


def value_at(value: int | Array, row: int, thread: int) -> int:
    """The value of one thread of one row."""
    if not isinstance(value, np.ndarray):
        return int(value)
    return int(value[row if value.shape[0] > 1 else 0, thread if value.shape[1] > 1 else 0])


def box_step(
    s: Box,
    run: Run,
    issued: Callable[[BatchFrame], tuple[Mask, bool]],
    issue: Callable[[BatchFrame, Mask], list[int]],
    done: Callable[[BatchFrame, Mask, Sequence[int]], None],
) -> Step:
    """A copy: `issued` gives its threads, `issue` records its events, one for each block that it
    goes to, `done` counts its bytes."""
    places = BoxPlaces(s, run)
    loads = isinstance(s, ir.BoxLoad)
    combine = FUNCTIONS[s.fn].numpy if isinstance(s, ir.BoxReduce) else None
    buffer = s.map.buffer
    initialised = run.execution.memory.initialised.get(buffer)

    def copy(f: BatchFrame, row: int, thread: int, mask: Mask, numbers: Sequence[int]) -> None:
        found = places.elements(f, row, thread)
        window = places.window(f, row, thread)
        if len(window.positions) and int(window.positions.max()) >= places.size:
            places.report(f, "range", f"leaves the {places.size} elements of {buffer}")
            return
        if found is None:
            return
        start, first = found
        flat, tensor = elements_of(f, places.shared), elements_of(f, buffer)
        totals, itemsize = f.run.execution.counters, buffer.dtype.nbytes
        blocks = np.array(places.blocks(f, thread))[:, None]
        elements = first + blocks * (f.trace.shared_nbytes // itemsize)
        if loads:
            value = np.zeros(len(first), tensor.dtype)
            value[window.inside] = tensor[window.positions]
            value = round_tf32(value) if s.map.rounding else value
            flat[elements] = value
            f.pool.mark(elements, itemsize, False)
        else:
            (elements,) = elements
            value, old = flat[elements[window.inside]], tensor[window.positions]
            tensor[window.positions] = value if combine is None else combine(old, value)
            if f.pool.unknown is not None and f.pool.unknown[elements * itemsize].any():
                f.undefined(s, f"an element of {places.shared} that came from a register",
                            np.asarray(mask))  # fmt: skip
            if initialised is not None:
                initialised[window.positions] = True
        totals.add(f"global_bytes_{'read' if loads else 'written'}",
                   len(window.positions) * itemsize)  # fmt: skip
        totals.add(f"shared_bytes_{'written' if loads else 'read'}", len(blocks) * s.map.box_nbytes)
        places.record(f, mask, start, window, numbers, thread, loads=loads)

    def step(f: BatchFrame) -> None:
        mask, some = issued(f)
        if not some:
            return
        numbers = issue(f, mask)
        who = np.argwhere(f.active(mask))
        for row, thread in who.tolist():
            one = mask if len(who) == 1 else _only(f, row, thread)
            copy(f, row, thread, one, numbers)
        done(f, mask, numbers)

    return step


def _only(f: BatchFrame, row: int, thread: int) -> Array:
    mask = np.zeros((f.nblocks, f.nthreads), bool)
    mask[row, thread] = True
    return mask
