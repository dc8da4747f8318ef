"""Runs a kernel: batches of blocks in numpy, every statement for all threads of a batch at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fusewright.arguments import INTEGER, fitting, several
from fusewright.core import expr as ex, substitution
from fusewright.core.expr import Expr, Var
from fusewright.errors import SpecError, UserError
from fusewright.kir import ir
from fusewright.kir.traverse import statements_of, walk_statements
from fusewright.sim.compute import PER_BLOCK, PER_THREAD, UNIFORM, Array, Scope, narrow
from fusewright.sim.counters import Counters
from fusewright.sim.domains import domains_of
from fusewright.sim.frame import AnyStep, BatchFrame, Blocking, Execution, Run, Wait
from fusewright.sim.launches import TouchedMemory, takes_part
from fusewright.sim.memory import GlobalMemory, Registers, SharedMemory, as_scalar, locals_of
from fusewright.sim.model import MODEL, Model
from fusewright.sim.races import Detector
from fusewright.sim.report import Findings, Race, statement_text
from fusewright.sim.statements import compile_statement
from fusewright.sim.sync_state import Mbarriers, SyncState
from fusewright.sim.trace import Trace
from fusewright.sim.tracked import TrackedRegisters
from fusewright.target import MBARRIER_NBYTES, WARP_SIZE

_PHASED = (ir.NamedSync, ir.MbarWait)
Blocks = Sequence[int] | Literal["sample"] | None
BATCH_NBYTES = 128 * 1024
"""One register array of a batch: half of a core's second-level cache."""


@dataclass(slots=True)
class SimResult:
    """`outputs`: the arrays of the buffers named as outputs, in parameter order; `races`: all
    findings; `stats`: counts over the blocks that ran, see `Counters`; `written`: of each output
    of a kernel, the elements that some thread stored; `touched`: what a launch that may overlap
    with others does, where races were looked for."""

    outputs: list[Array]
    races: list[Race]
    stats: dict[str, int | float]
    written: list[Array] = field(default_factory=list[Array])
    touched: TouchedMemory | None = None


def _constant(e: Expr, symbols: Mapping[Var, int], what: str) -> int:
    value = ex.constant_value(substitution.substitute(e, symbols))
    if value is None:
        raise SpecError(f"the extent of {what} is {e}, which symbols do not make constant")
    return value


_BLOCKS = several(INTEGER, "'sample', None for all, or a list of block numbers")


def chosen_blocks(blocks: Blocks, nblocks: int) -> Array:
    """Linear numbers of the blocks to run: all, given ones, or first, second, middle and the
    last two (the ragged ones are last). Raises UserError for a number outside the grid."""
    if blocks is None:
        return np.arange(nblocks)
    if isinstance(blocks, str) and blocks == "sample":
        wanted = {0, 1, nblocks // 2, nblocks - 2, nblocks - 1}
        return np.array(sorted(b for b in wanted if 0 <= b < nblocks), np.int64)
    numbers = fitting("simulate", "blocks", blocks, _BLOCKS)
    for b in numbers:
        if not 0 <= b < nblocks:
            raise UserError(f"block {b} is not in the grid of {nblocks} blocks")
    return np.array(numbers, np.int64)


class Machine:
    """A kernel made ready to run on one set of arrays."""

    def __init__(
        self,
        kernel: ir.Kernel,
        arrays: Mapping[ir.Buffer, Array],
        arguments: Mapping[ir.Argument, object],
        symbols: Mapping[Var, int],
        outputs: Collection[ir.Buffer],
        seed: int,
        model: Model = MODEL,
        *,
        counts: bool = True,
    ) -> None:
        missing = [a for a in kernel.arguments if a not in arguments]
        if missing:
            raise UserError(f"no value for the kernel argument {missing[0]}; pass arguments")
        self.grid = [_constant(d.extent, symbols, f"{d.var}") for d in kernel.grid]
        self.block = [_constant(d.extent, symbols, f"{d.var}") for d in kernel.block]
        self.domains = domains_of(kernel, self.grid, symbols)
        self.cluster = kernel.cluster_size
        self.row_blocks = self.cluster if self.domains is None else self.domains.shape[1]
        nthreads = int(np.prod(self.block)) * self.row_blocks
        shared = SharedMemory(kernel, symbols, self.row_blocks)
        memory = GlobalMemory(kernel, arrays, symbols, outputs)
        self.locals = locals_of(kernel, symbols)
        self.execution = Execution(
            kernel, memory, shared, Findings(seed), Counters(nthreads, counts=counts), nthreads,
            self.row_blocks, model, TrackedRegisters(kernel, self.locals),
            frozenset(kernel.params if takes_part(kernel) else ()),
        )  # fmt: skip
        self.seed = seed
        self.scope = Scope()
        self.start: list[int | Array] = []
        for var in kernel.symbols:
            if var not in symbols:
                raise UserError(f"no value for the symbol {var}; pass symbols")
            self._bind(var, UNIFORM, symbols[var])
        self._bind_dimensions(kernel)
        self.run = Run(
            execution=self.execution,
            scope=self.scope,
            locals=self.locals,
            arguments={a: as_scalar(arguments[a], a.dtype) for a in kernel.arguments},
            block_shape=(*self.block, *([self.cluster] if self.cluster > 1 else [])),
            block_dims=tuple(d.var.name for d in (*kernel.block, *kernel.cluster)),
            ranks=self._ranks(),
            has_phases=bool(statements_of(kernel, *_PHASED)),
        )
        self.steps = compile_body(kernel.body, self.run)
        self.goes_apart = self._goes_apart(kernel)

    def _goes_apart(self, kernel: ir.Kernel) -> bool:
        """Whether blocks may wait at different places, so that they cannot run side by side."""
        for roles in statements_of(kernel, ir.Roles):
            for s in walk_statements(roles):
                steered = s.condition if isinstance(s, ir.If) else None
                steered = s.extent if isinstance(s, ir.For) else steered
                if steered is not None and self.scope.level(steered) & PER_BLOCK:
                    return True
        return False

    def _bind(self, var: Var, level: int, value: int | Array) -> None:
        self.scope.bind(var, level)
        self.start.append(value)

    def _ranks(self) -> Array | None:
        """The number in its row of each thread's block; None where a row is one block."""
        if self.row_blocks == 1:
            return None
        nthreads = self.execution.nthreads
        return (np.arange(nthreads) * self.row_blocks // nthreads)[None]

    def _bind_dimensions(self, kernel: ir.Kernel) -> None:
        """A dimension of extent 1 is the constant 0; block numbers are set batch by batch."""
        self.grid_slots: list[tuple[int, int, int]] = []
        stride = 1
        of_block = PER_BLOCK if self.domains is None else PER_THREAD
        for d, extent in zip(kernel.grid, self.grid, strict=True):
            self._bind(d.var, of_block if extent > 1 else UNIFORM, 0)
            if extent > 1:
                self.grid_slots.append((len(self.start) - 1, stride, extent))
            stride *= extent
        thread = np.arange(self.execution.nthreads)[None, :]
        stride = 1
        for d, extent in zip(kernel.block, self.block, strict=True):
            value = thread // stride % extent if extent > 1 else 0
            self._bind(d.var, PER_THREAD if extent > 1 else UNIFORM, value)
            stride *= extent
        for d in kernel.cluster:
            self._bind(d.var, PER_THREAD, thread // stride % self.cluster)

    @property
    def nrows(self) -> int:
        """Blocks, or clusters or domains, in the grid."""
        if self.domains is not None:
            return len(self.domains)
        return int(np.prod(self.grid, dtype=np.int64))

    def chosen_rows(self, blocks: Blocks) -> Array:
        """`chosen_blocks`; the blocks of a cluster, or of a domain, run together."""
        if self.domains is not None and blocks is not None and blocks != "sample":
            wanted = np.isin(self.domains, chosen_blocks(blocks, self.domains.size))
            return np.flatnonzero(wanted.any(axis=1))
        if self.cluster == 1 or blocks is None or blocks == "sample":
            return chosen_blocks(blocks, self.nrows)
        return np.unique(chosen_blocks(blocks, self.nrows * self.cluster) // self.cluster)

    def batch(self, rows: Array) -> Trace:
        """Run some blocks, or clusters or one domain, side by side and return what they did."""
        frame = self._frame(rows)
        trace = frame.trace
        run = _all(self.steps, frame) if self.domains is None else self._in_turns(frame)
        with np.errstate(all="ignore"):
            blocked = next(run, None)
        if blocked is not None:
            trace.is_cut = True
            report_deadlock(blocked, self.execution.findings, trace)
        self.execution.counters.add("blocks", len(rows) * self.row_blocks)
        self.execution.counters.add("threads", len(rows) * self.execution.nthreads)
        return trace

    def _frame(self, rows: Array) -> BatchFrame:
        """The state of some rows before their first statement."""
        values = list(self.start) + [0] * (len(self.scope.levels) - len(self.start))
        if self.domains is not None:
            blocks = self.domains[rows]
        else:
            blocks = (rows * self.cluster)[:, None] + np.arange(self.cluster)
        for slot, stride, extent in self.grid_slots:
            if self.domains is not None:
                coordinate = blocks[0] // self.cluster // stride % extent
                each = self.execution.nthreads // self.row_blocks
                values[slot] = np.repeat(coordinate, each)[None]
                continue
            coordinate = rows // stride % extent
            values[slot] = coordinate[:, None] if len(rows) > 1 else int(coordinate[0])
        shared = self.execution.shared
        trace = Trace(
            rows, blocks, self.execution.nthreads, self.row_blocks, self.cluster, shared.nbytes
        )
        trace.is_domain = self.domains is not None
        kernel = self.execution.kernel
        trace.begins_early, trace.awaited = kernel.begins_early, frozenset(kernel.awaited)
        pool = shared.pool(len(rows))
        return BatchFrame(
            run=self.run,
            values=values,
            registers=Registers(self.locals),
            trace=trace,
            base=np.arange(len(rows))[:, None] if len(rows) > 1 else 0,
            pool=pool,
            syncs=SyncState(
                len(rows), self.row_blocks, Mbarriers(len(pool.flat) // MBARRIER_NBYTES)
            ),
        )

    def _in_turns(self, frame: BatchFrame) -> Wait:
        """The blocks of a domain, or its clusters, each with registers and named barriers of its
        own, in an order that the seed draws."""
        nthreads = frame.trace.block_nthreads * self.cluster
        rank = np.arange(frame.nthreads)[None, :] // nthreads
        draw = np.random.default_rng(self.seed) if self.seed else None
        runs = [
            _all(
                self.steps,
                dataclasses.replace(
                    frame,
                    values=list(frame.values),
                    registers=Registers(self.locals),
                    syncs=SyncState(1, self.row_blocks, frame.syncs.mbarriers),
                    mask=rank == k,
                    own=[],
                    touched={},
                ),
            )
            for k in range(self.row_blocks // self.cluster)
        ]
        return take_turns(runs, frame.trace, draw)

    def check_zeros(self) -> None:
        """Reports sums that the next launch would not find at zero."""
        for b in self.execution.kernel.zeroed:
            left = np.flatnonzero(self.execution.memory.arrays[b])
            if len(left):
                self.execution.findings.add(
                    "rule",
                    f"{b}[{left[0]}] is not zero when the kernel ends; the next launch adds to it",
                    count=len(left),
                )

    def batches(self, blocks: Array) -> list[Array]:
        """The blocks in pieces whose register arrays fit the cache."""
        size = max(1, BATCH_NBYTES // (4 * self.execution.nthreads))
        if self.goes_apart or self.domains is not None:
            size = 1
        return [blocks[i : i + size] for i in range(0, len(blocks), size)]


def compile_body(body: ir.Body, run: Run) -> list[AnyStep]:
    """The steps of a body; a body with syncs also records where each could move to."""
    steps = [_compile(s, run) for s in body]
    sites = [i for i, s in enumerate(body) if isinstance(s, ir.SyncStatement)]
    return [_with_moves(steps, sites)] if sites else steps


def _all(steps: list[AnyStep], f: BatchFrame) -> Wait:
    for s in steps:
        if isinstance(s, Blocking):
            yield from s.run(f)
        else:
            s(f)


def _with_moves(steps: list[AnyStep], sites: list[int]) -> Blocking:
    def run(f: BatchFrame) -> Wait:
        marks: list[int] = []
        for s in steps:
            marks.append(len(f.own))
            if isinstance(s, Blocking):
                yield from s.run(f)
            else:
                s(f)
        marks.append(len(f.own))
        for i in sites:
            below = marks[min(i + 2, len(steps))]
            f.note_moves(marks[i], marks[i + 1], marks[max(i - 1, 0)], below)

    return Blocking(run)


def _compile(s: ir.Statement, run: Run) -> AnyStep:
    match s:
        case ir.For():
            return _compile_for(s, run)
        case ir.If():
            return _compile_if(s, run)
        case ir.Roles():
            return _compile_roles(s, run)
        case _:
            return compile_statement(s, run)


def _compile_for(s: ir.For, run: Run) -> Blocking:
    extent_of = run.scope.expression(s.extent)
    refresh = run.refresh(s, s.extent)
    slot = run.scope.bind(s.var, UNIFORM)
    steps = compile_body(s.body, run)

    def open_loop(f: BatchFrame) -> Wait:
        outer = f.mask
        for k in range(MOST_TRIPS):
            for r in refresh:
                r(f)
            extent = np.asarray(extent_of(f.values))
            f.check_uniform_extent(s, extent)
            f.mask, some = narrow(f.mask, k < extent)
            if not some:
                f.mask = outer
                return
            f.values[slot] = k
            yield from _all(steps, f)
        raise UserError(
            f"a loop has run {MOST_TRIPS} iterations in the simulator, and its condition still "
            "holds: let it end, such as by a counter in the condition, or run it on a device"
        )

    if s.is_open:
        return Blocking(open_loop)

    def loop(f: BatchFrame) -> Wait:
        for r in refresh:
            r(f)
        extent = extent_of(f.values)
        if isinstance(extent, int | np.integer):
            for k in range(int(extent)):
                f.values[slot] = k
                yield from _all(steps, f)
            return
        f.check_uniform_extent(s, extent)
        outer = f.mask
        for k in range(int(extent.max(initial=0))):
            f.mask, some = narrow(outer, k < extent)
            if some:
                f.values[slot] = k
                yield from _all(steps, f)
        f.mask = outer

    return Blocking(loop)


def _compile_if(s: ir.If, run: Run) -> Blocking:
    holds = run.scope.condition(s.condition)
    refresh = run.refresh(s, s.condition)
    then = compile_body(s.then, run)
    otherwise = compile_body(s.otherwise, run)

    def choose(f: BatchFrame) -> Wait:
        for r in refresh:
            r(f)
        condition = holds(f.values)
        if isinstance(condition, bool | np.bool_):
            yield from _all(then if condition else otherwise, f)
            return
        outer = f.mask
        for branch, chosen in ((then, condition), (otherwise, ~condition)):
            f.mask, some = narrow(outer, chosen)
            if some:
                yield from _all(branch, f)
        f.mask = outer

    return Blocking(choose)


def _compile_roles(s: ir.Roles, run: Run) -> Blocking:
    thread = np.arange(run.execution.nthreads)[None, :] % run.execution.kernel.nthreads
    roles: list[tuple[Array, list[AnyStep]]] = []
    for role in s.body:
        if not isinstance(role, ir.Role):
            raise SpecError(f"`{statement_text(role)}` stands directly in roles; only roles may")
        warp = thread // WARP_SIZE
        roles.append(((role.first <= warp) & (warp < role.stop), compile_body(role.body, run)))

    def side_by_side(f: BatchFrame) -> Wait:
        runs: list[Wait] = []
        frames: list[BatchFrame] = []
        for members, steps in roles:
            mask, some = narrow(f.mask, members)
            if some:
                mine = dataclasses.replace(f, values=list(f.values), mask=mask, own=[], touched={})
                frames.append(mine)
                runs.append(_all(steps, mine))
        yield from take_turns(runs, f.trace)
        # A sync beside the roles that moves over them stands before or behind all that they did.
        f.own.extend(sorted(number for mine in frames for number in mine.own))

    return Blocking(side_by_side)


MOST_TRIPS = 1 << 16
"""Iterations after which the simulator gives up a loop that only ends by itself: a minute, where
one takes a millisecond, which is what the smallest body takes."""


def take_turns(runs: list[Wait], trace: Trace, draw: np.random.Generator | None = None) -> Wait:
    """Advance runs in turn, or in an order drawn for each round, until all are done; blocked when a
    round brings none of them on."""
    while runs:
        if draw is not None:
            runs = [runs[k] for k in draw.permutation(len(runs))]
        before, left = len(trace.events), list[Wait]()
        blocked: list[ir.Statement] = []
        for r in runs:
            found = next(r, None)
            if found is not None:
                left.append(r)
                blocked += found
        if len(left) == len(runs) and len(trace.events) == before:
            yield tuple(blocked)
        runs = left


def report_deadlock(blocked: tuple[ir.Statement, ...], findings: Findings, trace: Trace) -> None:
    """Report a batch that cannot go on."""
    texts = ", ".join(f"`{statement_text(s)}`" for s in dict.fromkeys(blocked))
    findings.add(
        "deadlock",
        f"threads of block {trace.blocks[0, 0]} wait for ever at {texts}",
        statement=blocked[0],
    )


@dataclass(frozen=True, slots=True)
class Analysed:
    """A finished run, and what its traces say about order (None when races were not asked for)."""

    execution: Execution
    detector: Detector | None
    seed: int

    def races(self) -> list[Race]:
        """All findings of the kernel as it is."""
        races = self.execution.findings.list()
        if self.detector is not None:
            races += self.detector.report(self.seed)
        return races


def analyse(
    kernel: ir.Kernel,
    arrays: Mapping[ir.Buffer, Array],
    *,
    arguments: Mapping[ir.Argument, object] | None = None,
    symbols: Mapping[Var, int] | None = None,
    outputs: Collection[ir.Buffer] = (),
    blocks: Blocks = None,
    check_races: bool = True,
    seed: int = 0,
    model: Model = MODEL,
    counts: bool = True,
) -> Analysed:
    """Run the kernel in place on `arrays` and collect the conflicts of its blocks; without `counts`
    accesses are not counted."""
    machine = Machine(
        kernel, arrays, arguments or {}, symbols or {}, outputs, seed, model, counts=counts
    )
    detector = Detector(machine.execution, model) if check_races else None
    chosen = machine.chosen_rows(blocks)
    if seed:
        chosen = np.random.default_rng(seed).permutation(chosen)
    for piece in machine.batches(chosen):
        trace = machine.batch(piece)
        if detector is not None:
            detector.observe(trace)
    machine.check_zeros()
    return Analysed(machine.execution, detector, seed)


def simulate(
    kernel: ir.Kernel,
    arrays: Mapping[ir.Buffer, Array],
    *,
    arguments: Mapping[ir.Argument, object] | None = None,
    symbols: Mapping[Var, int] | None = None,
    outputs: Collection[ir.Buffer] = (),
    blocks: Blocks = None,
    check_races: bool = True,
    seed: int = 0,
    model: Model = MODEL,
) -> SimResult:
    """Run the kernel in place on `arrays`, one flat, contiguous array per parameter.

    `outputs` names buffers that count as unwritten: they are poisoned first, and reads of elements
    nobody wrote are reported. `blocks` selects blocks by linear number, x fastest; None runs all,
    "sample" the first two, the middle and the last two; they run in order, or in one drawn from a
    seed that is not 0. Raises UserError for arrays, arguments or
    symbols that do not fit the kernel, SpecError for statements that break their contract.
    """
    found = analyse(
        kernel,
        arrays,
        arguments=arguments,
        symbols=symbols,
        outputs=outputs,
        blocks=blocks,
        check_races=check_races,
        seed=seed,
        model=model,
    )
    execution = found.execution
    given = [execution.memory.arrays[b] for b in kernel.params if b in outputs]
    written = [execution.memory.initialised[b] for b in kernel.params if b in outputs]
    touched = None if found.detector is None else found.detector.touched
    return SimResult(given, found.races(), dict(execution.counters.totals), written, touched)
