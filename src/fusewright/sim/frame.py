"""The state of a run: what all batches share, and the frame of one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from fusewright.core import expr as ex
from fusewright.core.conditions import Cond
from fusewright.core.expr import Expr
from fusewright.errors import SpecError
from fusewright.kir import ir
from fusewright.sim.compute import MIXED, Array, ExprFn, Mask, Scope, Value
from fusewright.sim.counters import Counters
from fusewright.sim.memory import GlobalMemory, Pool, Registers, SharedMemory
from fusewright.sim.model import Model
from fusewright.sim.report import Findings, statement_text
from fusewright.sim.sync_state import SyncState
from fusewright.sim.trace import GENERIC, Agent, Event, SyncEvent, Trace, TracedAccess

Step: TypeAlias = "Callable[[BatchFrame], None]"
Wait: TypeAlias = "Iterator[tuple[ir.Statement, ...]]"
"""A run that may block: each item names the statements it is blocked at."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """A step that may have to wait for other threads."""

    run: Callable[[BatchFrame], Wait]


AnyStep: TypeAlias = "Step | Blocking"


class Tracked(Protocol):
    """The registers whose accesses are recorded, as numbered cells."""

    @property
    def ncells(self) -> int: ...
    def cells(self, buffer: ir.Buffer, index: Expr, count: int) -> tuple[int, int] | None: ...
    def record(
        self,
        f: BatchFrame,
        s: ir.Statement,
        buffer: ir.Buffer,
        cells: tuple[int, int],
        mask: Mask,
        *,
        writes: bool,
        agent: Agent = GENERIC,
        issue: int = -1,
    ) -> None: ...


@dataclass(slots=True)
class Execution:
    """One run of a kernel: its memory, what went wrong, and counts."""

    kernel: ir.Kernel
    memory: GlobalMemory
    shared: SharedMemory
    findings: Findings
    counters: Counters
    nthreads: int
    """Threads of a row: of a block, or of all blocks that run side by side."""
    row_blocks: int
    """Blocks of a row: one, or those of a cluster or of a domain."""
    model: Model
    tracked: Tracked
    watched: frozenset[ir.Buffer] = frozenset()
    """The parameters whose accesses are recorded although no statement writes them."""


@dataclass(slots=True)
class Run:
    """What all frames of one run share."""

    execution: Execution
    scope: Scope
    locals: Mapping[ir.Buffer, int]
    arguments: Mapping[ir.Argument, Array]
    block_shape: tuple[int, ...]
    """Extents of the dimensions by which the threads of a row are numbered, the fastest first."""
    block_dims: tuple[str, ...]
    ranks: Array | None
    """The number in its row of each thread's block, as (1, T); None where a row is one block."""
    has_phases: bool
    """Whether the kernel has barriers of several phases, to which the time of a warp matters."""

    def refresh(self, statement: ir.Statement, *parts: Expr | Cond) -> list[Step]:
        """Steps that put gathered registers into their slots and check them where f.mask holds."""
        return [lambda f, g=g: g.fetch(f, f.mask) for g in self.gathered(statement, *parts)]

    def gathered(self, statement: ir.Statement, *parts: Expr | Cond) -> list[GatheredRegister]:
        """The registers that index expressions of a statement read, inner ones first."""
        found: dict[ir.RegVar, GatheredRegister] = {}

        def visit(e: Expr | Cond) -> None:
            for v in ex.variables(e):
                if isinstance(v, ir.RegVar) and v not in found:
                    visit(v.reg.index)
                    slot = self.scope.bind(v, MIXED)
                    at = self.scope.expression(v.reg.index)
                    upper = None if v.upper is None else self.scope.expression(v.upper)
                    lower = self.scope.expression(v.lower)
                    found[v] = GatheredRegister(statement, v, slot, at, lower, upper)

        for e in parts:
            visit(e)
        return list(found.values())


@dataclass(frozen=True, slots=True)
class GatheredRegister:
    """A register used in an index: its slot, and the range it promises."""

    statement: ir.Statement
    var: ir.RegVar
    slot: int
    at: ExprFn
    lower: ExprFn
    upper: ExprFn | None

    def fetch(self, f: BatchFrame, mask: Mask) -> None:
        """Read the register; report active threads whose value is undefined or out of range."""
        buffer = self.var.reg.buffer
        value, unknown = f.registers.read(buffer, f.element(self.statement, buffer, self.at, mask))
        where = np.asarray(True) if mask is None else mask
        if unknown is not None and (unknown & where).any():
            f.undefined(self.statement, f"the index {self.var}", unknown & where)
        position = value.astype(np.int64)
        low = self.lower(f.values)
        outside = position < low
        if self.upper is not None:
            outside = outside | (position > self.upper(f.values))
        defined = where if unknown is None else where & ~unknown
        if (outside & defined).any():
            row, lane = f.first(outside & defined)
            text = statement_text(self.statement)
            worst = np.broadcast_to(position, (f.nblocks, f.nthreads))[row, lane]
            block, thread = f.trace.block_of(row, lane)
            f.run.execution.findings.add(
                "range",
                f"the index {self.var} is {worst} in thread {thread} of block {block}, outside its "
                f"declared range {self.var.lower} .. {self.var.upper}, in `{text}`",
                statement=self.statement,
                count=int((outside & defined).sum()),
            )
        f.values[self.slot] = position


@dataclass(slots=True)
class BatchFrame:
    """The state of one batch: values of variables, active threads, registers, and the trace.

    `base` numbers the blocks of the batch: 0, or (B, 1). Roles run in frames of their own that
    share all but the values and the mask; `own` lists the numbers of the frame's events, `nsyncs`
    counts those that are no accesses, and `touched` says when registers of products last were.
    """

    run: Run
    values: list[Value]
    registers: Registers
    trace: Trace
    base: Value
    pool: Pool
    syncs: SyncState
    mask: Mask = None
    own: list[int] = field(default_factory=list[int])
    nsyncs: int = 0
    touched: dict[object, tuple[int, Mask]] = field(default_factory=dict[object, tuple[int, Mask]])

    @property
    def nblocks(self) -> int:
        return self.trace.nblocks

    @property
    def nthreads(self) -> int:
        return self.trace.nthreads

    @property
    def first_of_cluster(self) -> Array:
        """By thread, the number in its row of the first block of its cluster."""
        assert self.run.ranks is not None
        first: Array = self.run.ranks // self.trace.cluster * self.trace.cluster
        return first

    def record(self, event: Event) -> int:
        """Append an event to the trace; its number."""
        number = len(self.trace.events)
        self.trace.events.append(event)
        self.own.append(number)
        self.nsyncs += not isinstance(event, TracedAccess)
        return number

    def note_moves(self, first: int, end: int, above: int, below: int) -> None:
        """Where the sync whose events are the frame's numbers `first` .. `end`-1 would stand,
        moved over one statement of the frame."""
        for number in self.own[first:end]:
            event = self.trace.events[number]
            if isinstance(event, SyncEvent):
                event.above = self.own[above]
                event.below = self.own[below - 1] + 1

    def active(self, mask: Mask) -> Array:
        """A mask in full shape."""
        shape = (self.nblocks, self.nthreads)
        return np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)

    def first(self, where: Array) -> tuple[int, int]:
        """The first (row, thread) of a mask that holds somewhere."""
        full = np.broadcast_to(where, (self.nblocks, self.nthreads))
        flat = int(np.argmax(full))
        return flat // self.nthreads, flat % self.nthreads

    def undefined(self, statement: ir.Statement, what: str, where: Array) -> None:
        """Report a use of something nobody wrote."""
        block, thread = self.trace.block_of(*self.first(where))
        self.run.execution.findings.add(
            "uninitialised",
            f"{what} was never written in thread {thread} of block {block}, "
            f"used in `{statement_text(statement)}`",
            statement=statement,
            count=int(np.broadcast_to(where, (self.nblocks, self.nthreads)).sum()),
        )

    def diverged(self, statement: ir.Statement, group: int | None) -> None:
        """Report a collective statement that a part of a group of threads of a block does not
        reach, None for the threads of all blocks of a cluster."""
        if self.mask is None:
            return
        full = np.broadcast_to(self.mask, (self.mask.shape[0], self.nthreads))
        size = self.trace.block_nthreads
        whole = size if group is not None else size * self.trace.cluster
        group = min(group or whole, whole)
        if self.nthreads % group == 0 and whole % group == 0:
            among = full.reshape(len(full), -1, group).sum(axis=2)
            if not ((among > 0) & (among < group)).any():
                return
        starts = (b + n for b in range(0, self.nthreads, whole) for n in range(0, whole, group))
        for start in starts:
            part = full[:, start : min(start + group, start - start % whole + whole)]
            split = part.any(axis=1) & ~part.all(axis=1)
            if split.any():
                row = int(np.argmax(split))
                block, missing = self.trace.block_of(row, start + int(np.argmin(part[row])))
                who = "warp" if group < size else "block" if group == size else "cluster"
                self.run.execution.findings.add(
                    "divergence",
                    f"only {int(part[row].sum())} of {part.shape[1]} threads of a {who} reach "
                    f"`{statement_text(statement)}`: thread {missing} of block {block} does not; "
                    "move it out of the condition",
                    statement=statement,
                )
                return

    def check_uniform_extent(self, s: ir.For, extent: Array) -> None:
        """Report a trip count that differs between active threads of a block."""
        rows = (self.nblocks * self.trace.row_blocks, self.trace.block_nthreads)
        full = np.broadcast_to(extent, (self.nblocks, self.nthreads)).reshape(rows)
        where = self.active(self.mask).reshape(rows)
        low = full.min(axis=1, where=where, initial=np.iinfo(np.int64).max)
        high = full.max(axis=1, where=where, initial=np.iinfo(np.int64).min)
        if (low < high).any():
            row = int(np.argmax(low < high))
            first, rank = divmod(row, self.trace.row_blocks)
            self.run.execution.findings.add(
                "rule",
                f"the trip count of `{statement_text(s)}` differs between threads of block "
                f"{self.trace.blocks[first, rank]} ({low[row]} .. {high[row]}); it must be equal "
                "for all",
                statement=s,
            )

    def element(
        self, statement: ir.Statement, buffer: ir.Buffer, at: ExprFn, mask: Mask, width: int = 1
    ) -> int | Array:
        """The first of `width` register numbers; where active threads leave the buffer, report
        and clamp."""
        index = at(self.values)
        size = self.run.locals[buffer]
        last = size - width
        if isinstance(index, int):
            if 0 <= index <= last:
                return index
            bad = np.asarray(True)
        else:
            bad = (index < 0) | (index > last)
            if mask is not None:
                bad = bad & mask
        if bad.any():
            low, high = int(np.min(index)), int(np.max(index)) + width - 1
            self.run.execution.findings.add(
                "range",
                f"register {buffer}[{low} .. {high}] is outside its {size} elements in "
                f"`{statement_text(statement)}`",
                statement=statement,
            )
        if last < 0:
            raise SpecError(
                f"`{statement_text(statement)}` moves {width} elements, {buffer} has only {size}"
            )
        if isinstance(index, int):
            return min(max(index, 0), last)
        return np.clip(index, 0, last)
