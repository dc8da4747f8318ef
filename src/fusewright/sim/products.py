"""The meaning of matrix products and of the loads and stores of matrices.

A product moves its values where it is issued; what it would be too early or too late for is decided
later, from the trace. It reads shared memory at the bytes that its descriptors mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusewright.kir import ir
from fusewright.kir.tensor import FRAGMENT, WARP_MMA_REGISTERS
from fusewright.kir.tensor_spec import launch_registers
from fusewright.kir.tiles import CHUNK_NBYTES, GROUP_ROWS, Major, exchanged
from fusewright.kir.traits import with_group
from fusewright.sim.accesses import elements_of, reach_of
from fusewright.sim.boxes import value_at
from fusewright.sim.compute import Array, Mask, Value, narrow
from fusewright.sim.fragments import gathered, matrix_of, planes_of, scatter
from fusewright.sim.frame import AnyStep, BatchFrame, Blocking, Run, Step, Wait
from fusewright.sim.memory import Registers
from fusewright.sim.report import statement_text
from fusewright.sim.trace import Agent, SyncEvent, Trace, TracedAccess
from fusewright.target import (
    MMA_ROWS,
    WARP_SIZE,
    WARPGROUP_SIZE,
)

_IN_MEMORY = Agent(with_group(ir.AsyncKind.MMA), in_async_proxy=True)
_IN_REGISTERS = Agent(with_group(ir.AsyncKind.MMA))
_SHORT_BITS = np.uint32(0xFFFFFC00)
_TF32_BITS = np.uint32(0xFFFFE000)
_WARPS = WARPGROUP_SIZE // WARP_SIZE
_WARP_ROWS = MMA_ROWS // _WARPS


@dataclass(slots=True)
class HeldMatrix:
    """Accumulators as the matrices of all warps (B, T // 32, 16, n), from register `first` on."""

    first: int
    matrix: Array
    unknown: Mask

    def planes(self) -> Array:
        return planes_of(self.matrix)


def _held(f: BatchFrame, buffer: ir.Buffer, first: int, count: int) -> HeldMatrix:
    registers: Registers = f.registers
    found = registers.held.get(buffer)
    if isinstance(found, HeldMatrix) and (found.first, found.matrix.shape[3]) == (first, 2 * count):
        return found
    planes, unknown = gathered(registers, buffer, first, count, (f.nblocks, f.nthreads))
    held = registers.held[buffer] = HeldMatrix(first, matrix_of(planes), unknown)
    return held


def _multiplied(elements: Array) -> Array:
    """What an instruction multiplies of elements, as float32: of float32 the upper 19 bits."""
    if elements.dtype != np.float32:
        return elements.astype(np.float32)
    return (elements.view(np.uint32) & _TF32_BITS).view(np.float32)


def _kept(sums: Array) -> Array:
    """What accumulators keep of sums of products of 8-bit floats: 14 bits of float32, the rest cut
    off, as it was measured on an H800 (DeepSeek-V3 technical report, 3.3.2). The bits of a device
    may differ within that."""
    return (sums.astype(np.float32).view(np.uint32) & _SHORT_BITS).view(np.float32)


class _SharedOperand:
    """An operand in shared memory: `extent` rows of m or n, 32 bytes of each row of k."""

    def __init__(self, s: ir.Mma, m: ir.Matrix, extent: int, run: Run) -> None:
        self.statement, self.matrix = s, m
        self.descriptor = m.descriptor
        self.place = run.execution.shared.places[m.buffer]
        self.end = self.place.offset + run.execution.shared.nbytes_of(m.buffer)
        self.at = run.scope.expression(m.index)
        self.itemsize = m.buffer.dtype.nbytes
        self._offsets = self.descriptor.offsets(extent)
        self._known: dict[int, Array] = {}
        self._runs: dict[tuple[int, int, int], tuple[Array, int]] = {}

    def start(self, f: BatchFrame, row: int, thread: int) -> int:
        """The byte in the shared memory of a block where it begins, before the exchange."""
        return self.place.offset + value_at(self.at(f.values), row, thread) * self.itemsize

    def _bytes(self, start: int) -> Array:
        if start not in self._known:
            self._known[start] = exchanged(start + self._offsets, self.descriptor.swizzle)
        return self._known[start]

    def values(self, f: BatchFrame, start: int, rows: Array, rank: int) -> Array | None:
        """The elements of some rows of the batch, of the block `rank` of each, as float32; None,
        and a finding, where it leaves its buffer."""
        at = self._bytes(start)
        if int(at.min()) < self.place.offset or int(at.max()) >= self.end:
            f.run.execution.findings.add(
                "range",
                f"`{statement_text(self.statement)}` reads beyond the elements of "
                f"{self.matrix.buffer}",
                statement=self.statement,
            )
            return None
        at = at + rank * f.trace.shared_nbytes
        at = at + (rows * f.run.execution.shared.row_nbytes)[:, None, None]
        if f.pool.unknown is not None and f.pool.unknown[at].any():
            what = f"an element of {self.matrix.buffer} that came from a register"
            f.undefined(self.statement, what, np.asarray(True))
        found = elements_of(f, self.matrix.buffer)[at // self.itemsize]
        return _multiplied(found)

    def runs(self, start: int, first: int, stop: int) -> tuple[Array, int]:
        """The bytes of rows `first` .. `stop`-1 as first bytes of runs, and the bytes of a run."""
        key = (start, first, stop)
        if key not in self._runs:
            chunks = np.unique(self._bytes(start)[first:stop] // CHUNK_NBYTES)
            length = 1
            while len(chunks) % (2 * length) == 0:
                parts = chunks.reshape(-1, 2 * length)
                if (parts != parts[:, :1] + np.arange(2 * length)).any():
                    break
                length *= 2
            self._runs[key] = chunks[::length] * CHUNK_NBYTES, length * CHUNK_NBYTES
        return self._runs[key]

    def record(
        self, f: BatchFrame, start: int, warps: Mask, rows: range, issue: int, behind: Value = 0
    ) -> None:
        """Record that some warps read some rows, each of their threads `behind` bytes further."""
        runs, nbytes = self.runs(start, rows.start, rows.stop)
        f.record(
            TracedAccess(
                self.statement, 0, int(runs[0]), behind, nbytes, False, warps, self.matrix.buffer,
                self.place.offset, _IN_MEMORY, issue, runs=runs - runs[0],
            )
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _WarpgroupRows:
    """Rows of the batch in which one warpgroup, from thread `first` on, reads the same bytes."""

    first: int
    rows: Array
    a: int
    b: int


class _ReadyProduct:
    """A product made ready to run."""

    def __init__(self, s: ir.Mma, run: Run) -> None:
        self.s = s
        self.a = _SharedOperand(s, s.a, MMA_ROWS, run) if isinstance(s.a, ir.Matrix) else None
        self.b = _SharedOperand(s, s.b, s.n, run)
        self.holds = run.scope.condition(s.accumulate)
        self.first = run.scope.expression(s.dst.index)
        self.a_first = None if self.a else run.scope.expression(s.a.index)
        self.tracked = run.execution.tracked
        self.registers = [
            (u.reg.buffer, cells, u.writes)
            for u in s.register_uses()
            if (cells := self.tracked.cells(u.reg.buffer, u.reg.index, u.width)) is not None
        ]

    def _parts(self, f: BatchFrame) -> Iterator[_WarpgroupRows]:
        active = f.active(f.mask)
        for first in _warpgroups(f.trace):
            found: dict[tuple[int, int], list[int]] = {}
            for row in np.flatnonzero(active[:, first]).tolist():
                a = 0 if self.a is None else self.a.start(f, row, first)
                found.setdefault((a, self.b.start(f, row, first)), []).append(row)
            for (a, b), rows in found.items():
                yield _WarpgroupRows(first, np.array(rows), a, b)

    def step(self, f: BatchFrame) -> None:
        f.diverged(self.s, WARPGROUP_SIZE)
        issue = f.record(SyncEvent(self.s, f.mask))
        first = f.element(self.s, self.s.dst.buffer, self.first, f.mask, self.s.n // 2)
        held = _held(f, self.s.dst.buffer, int(np.max(first)), self.s.n // 2)
        fragment = None if self.a_first is None else self._fragment(f)
        accumulate = self.holds(f.values)
        for part in self._parts(f):
            if self._multiply(f, part, held, fragment, accumulate):
                self._record(f, part, issue)
        for buffer, cells, writes in self.registers:
            self.tracked.record(
                f, self.s, buffer, cells, f.mask, writes=writes, agent=_IN_REGISTERS, issue=issue
            )

    def _fragment(self, f: BatchFrame) -> Array:
        assert isinstance(self.s.a, ir.Reg) and self.a_first is not None
        first = f.element(self.s, self.s.a.buffer, self.a_first, f.mask, FRAGMENT)
        shape = (f.nblocks, f.nthreads)
        planes, unknown = gathered(
            f.registers, self.s.a.buffer, int(np.max(first)), FRAGMENT, shape
        )
        if unknown is not None and (unknown & f.active(f.mask)).any():
            f.undefined(self.s, f"the register {self.s.a.buffer}", unknown & f.active(f.mask))
        return matrix_of(planes).astype(np.float32)

    def _multiply(
        self,
        f: BatchFrame,
        p: _WarpgroupRows,
        held: HeldMatrix,
        fragment: Array | None,
        accumulate: object,
    ) -> bool:
        """False, and nothing is read, where an operand leaves its buffer."""
        warps = slice(p.first // WARP_SIZE, p.first // WARP_SIZE + _WARPS)
        rank = p.first // f.trace.block_nthreads
        b = self.b.values(f, p.b, p.rows, rank)
        if fragment is not None:
            a: Array | None = fragment[p.rows, warps].reshape(len(p.rows), MMA_ROWS, -1)
        else:
            a = None if self.a is None else self.a.values(f, p.a, p.rows, rank)
        if a is None or b is None:
            return False
        product = np.matmul(a, b.transpose(0, 2, 1)).reshape(len(p.rows), _WARPS, _WARP_ROWS, -1)
        is_short = self.s.b.buffer.dtype.nbytes == 1
        adds = np.array([bool(value_at(np.atleast_2d(accumulate), r, p.first)) for r in p.rows])  # type: ignore[arg-type]
        if adds.all() and not is_short:
            held.matrix[p.rows, warps] += product
            return True
        old = np.where(adds[:, None, None, None], held.matrix[p.rows, warps], 0)
        held.matrix[p.rows, warps] = _kept(product + old) if is_short else product + old
        if held.unknown is not None:
            fresh = np.zeros((f.nblocks, f.nthreads), bool)
            fresh[p.rows[~adds], p.first : p.first + WARPGROUP_SIZE] = True
            unknown = np.broadcast_to(held.unknown, fresh.shape) & ~fresh
            held.unknown = unknown if unknown.any() else None
        return True

    def _record(self, f: BatchFrame, p: _WarpgroupRows, issue: int) -> None:
        """A warp reads its own rows of `a`, and all of `b`; its first lane stands for it."""
        every = np.arange(p.first, p.first + WARPGROUP_SIZE, WARP_SIZE)
        block = p.first // f.trace.block_nthreads * f.trace.shared_nbytes
        self.b.record(f, p.b, _lanes(f, p.rows, every), range(self.s.n), issue, block)
        if self.a is None:
            return
        if self.a.descriptor.major is Major.K:  # whole groups of rows apart, chunks alike
            apart = _WARP_ROWS // GROUP_ROWS * self.a.descriptor.stride
            behind = (np.arange(f.nthreads) - p.first)[None, :] // WARP_SIZE * apart
            mask = _lanes(f, p.rows, every)
            self.a.record(f, p.a, mask, range(_WARP_ROWS), issue, np.where(mask, behind + block, 0))
            return
        for w in range(_WARPS):
            rows = range(w * _WARP_ROWS, (w + 1) * _WARP_ROWS)
            self.a.record(f, p.a, _lanes(f, p.rows, every[w : w + 1]), rows, issue, block)


def _warpgroups(trace: Trace) -> Iterator[int]:
    """The first threads of the warpgroups of all blocks of a row."""
    for block in range(0, trace.nthreads, trace.block_nthreads):
        for first in range(0, trace.block_nthreads - WARPGROUP_SIZE + 1, WARPGROUP_SIZE):
            yield block + first


def _lanes(f: BatchFrame, rows: Array, threads: Array) -> Array:
    """The mask of some threads in some rows of the batch."""
    whole = len(rows) == f.nblocks
    mask = np.zeros((1 if whole else f.nblocks, f.nthreads), bool)
    mask[0 if whole else rows[:, None], threads] = True
    return mask


def _mma(s: ir.Mma, run: Run) -> Step:
    return _ReadyProduct(s, run).step


def _meet(s: ir.MmaFence, run: Run) -> Step:
    def step(f: BatchFrame) -> None:
        f.diverged(s, WARPGROUP_SIZE)
        f.record(SyncEvent(s, f.mask))

    return step


# --- of a warp ------------------------------------------------------------------------------------


def _warp_mma(s: ir.WarpMma, run: Run) -> Step:
    operands = [(r, n) for r, n in zip((s.dst, s.a, s.b), WARP_MMA_REGISTERS, strict=True)]
    ats = [run.scope.expression(r.index) for r, _ in operands]

    def step(f: BatchFrame) -> None:
        f.diverged(s, WARP_SIZE)
        shape = (f.nblocks, f.nthreads)
        found: list[Array] = []
        unknown: Mask = None
        firsts: list[int] = []
        for (reg, count), at in zip(operands, ats, strict=True):
            firsts.append(int(np.max(f.element(s, reg.buffer, at, f.mask, count))))
            planes, missing = gathered(f.registers, reg.buffer, firsts[-1], count, shape)
            found.append(planes)
            unknown = (
                missing if unknown is None else unknown if missing is None else unknown | missing
            )
        d, a = matrix_of(found[0]), matrix_of(found[1]).astype(np.float32)
        b = found[2].reshape(2, 2, *shape[:1], -1, WARP_SIZE // 4, 4).transpose(2, 3, 4, 0, 5, 1)
        b = b.reshape(*b.shape[:3], 16).astype(np.float32)
        result = planes_of(d + np.matmul(a, b.transpose(0, 1, 3, 2)))
        scatter(f.registers, s.dst.buffer, firsts[0], list(result), unknown, f.mask)

    return step


def _matrices(s: ir.LdMatrix | ir.StMatrix, run: Run) -> Step:
    """Lane 8 m + r names row r of matrix m, whose elements other lanes have."""
    loads = isinstance(s, ir.LdMatrix)
    buffer, reg = (s.src, s.dst) if isinstance(s, ir.LdMatrix) else (s.dst, s.src)
    gathered_positions = run.gathered(s, s.index)
    reach = reach_of(s, s.memory_uses()[0], run)
    at = run.scope.expression(reg.index)
    thread = np.arange(run.execution.nthreads)
    lane, warp = thread % WARP_SIZE, thread // WARP_SIZE * WARP_SIZE
    naming = (lane < 8 * s.count)[None, :]

    def moves() -> Iterator[tuple[int, Array, Array]]:
        for m in range(s.count):
            for e in range(2):
                row, column = lane // 4, 2 * (lane % 4) + e
                row, column = (column, row) if s.transposed else (row, column)
                yield 2 * m + e, warp + 8 * m + row, column

    steps = list(moves())

    def step(f: BatchFrame) -> None:
        f.diverged(s, WARP_SIZE)
        mask, some = narrow(f.mask, naming)
        if not some:
            return
        for g in gathered_positions:
            g.fetch(f, mask)
        where, _, some = reach.positions(f, mask)
        if not some:
            return
        where = np.broadcast_to(where, (f.nblocks, f.nthreads))
        first = int(np.max(f.element(s, reg.buffer, at, f.mask, 2 * s.count)))
        flat, active = elements_of(f, buffer), f.active(f.mask)
        for k, source, column in steps:
            places = where[:, source] + column
            if loads:
                f.registers.write(reg.buffer, first + k, flat.take(places), None, f.mask)
                continue
            value, unknown = f.registers.read(reg.buffer, first + k)
            flat[places[active]] = np.broadcast_to(value, active.shape)[active]
            if unknown is not None or f.pool.unknown is not None:
                marks = False if unknown is None else np.broadcast_to(unknown, active.shape)[active]
                f.pool.mark(places[active], buffer.dtype.nbytes, marks)

    return step


# --- registers ------------------------------------------------------------------------------------


def _set_max_registers(s: ir.SetMaxRegisters, run: Run) -> Blocking:
    model, kernel = run.execution.model, run.execution.kernel
    pool = launch_registers(kernel.nthreads, kernel.min_blocks) * kernel.nthreads

    def wait(f: BatchFrame) -> Wait:
        f.diverged(s, WARPGROUP_SIZE)
        blocks = f.active(f.mask).reshape(f.nblocks, f.trace.row_blocks, -1)
        mine = blocks[:, :, ::WARPGROUP_SIZE]
        held = f.syncs.registers
        if held is None:
            held = f.syncs.registers = np.full(
                mine.shape, launch_registers(kernel.nthreads, kernel.min_blocks)
            )
        wanted = np.where(mine, s.count, held)
        while model.registers_are_counted and s.grows:
            wanted = np.where(mine, s.count, held)
            if (wanted.sum(axis=2) * WARPGROUP_SIZE <= pool).all():
                break
            yield (s,)
        held[...] = wanted

    return Blocking(wait)


def _nothing(s: ir.PrefetchMap | ir.PrefetchBox, run: Run) -> Step:
    return lambda f: None


PRODUCTS: Mapping[type[ir.Statement], Callable[[Any, Run], AnyStep]] = {
    ir.Mma: _mma,
    ir.MmaFence: _meet,
    ir.WarpMma: _warp_mma,
    ir.LdMatrix: _matrices,
    ir.StMatrix: _matrices,
    ir.SetMaxRegisters: _set_max_registers,
    ir.PrefetchMap: _nothing,
    ir.PrefetchBox: _nothing,
}
