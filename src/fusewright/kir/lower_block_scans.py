"""Scans along blocks of the grid: each block scans a part of the lines, and all gather the totals.

    own total of each line      ->  work[group, order, ..];  arrive f[group]
    acquire f[group] until count;  leave f[group]
    before = totals of the blocks before, all = those of all blocks, of which each thread along the
             line loads every so many

What a thread had from the threads before it in its block is combined with `before`, and with the
carry where the blocks take more than one part each; `all` goes to the carry for the next parts.
Nobody waits for a sum that another block has to make first: all totals are there at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusewright.core.atoms import minimum
from fusewright.core.conditions import TRUE, all_of, equal, less
from fusewright.core.expr import ONE, Int, Var, ceildiv, constant_value, variables
from fusewright.core.identities import scan_identity
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import Scan
from fusewright.kir.analysis.turns import number_of, product_of
from fusewright.kir.ir import (
    Compute,
    Dim,
    For,
    Imm,
    Load,
    Reg,
    Statement,
    Store,
    ThreadReduce,
    ThreadScan,
)
from fusewright.kir.lower_stage import Definition
from fusewright.kir.lower_storage import Context, Storage, carrying_loops
from fusewright.kir.lower_turns import gathering
from fusewright.schedule.graph import Stage
from fusewright.schedule.nest import scanning_threads
from fusewright.schedule.parallel import GRID_DIMS, THREAD_DIMS
from fusewright.target import MAX_VECTOR_NBYTES

GATHERED_AT_ONCE = 2
"""Vectors of totals of other blocks on their way to a thread, beside its part of the lines. With
2, 4 or 8 the kernels have the same registers (70 and 127, sm_90a, 2026-11-27); other numbers were
not timed."""


def blocks_scanned(context: Context, s: Stage) -> list[Dim]:
    """The dimensions of the grid along which blocks scan the same lines, as blocks start."""
    if not isinstance(s.op, Scan):
        return []
    bound = {s.loops[i].parallel for i in carrying_loops(context, s)}
    found = (context.dims[name] for p, name in GRID_DIMS.items() if p in bound)
    return [d for d in found if d.extent != ONE]


class BlockScan:
    """The scan of one stage along blocks: the gathering, and where the totals of lines lie."""

    def __init__(self, storage: Storage, s: Stage, number: int) -> None:
        assert isinstance(s.op, Scan)
        context, carrying = storage.context, carrying_loops(storage.context, s)
        along = scanning_threads(storage.graph, s)
        if along is None:
            raise ScheduleError(
                f"{s.name} scans over blocks of the grid with one thread of each along its axis; "
                "bind a loop inside of the one over blocks to a dimension of the block"
            )
        values = storage.loop_values(s)
        serial = [i for i, x in enumerate(s.loops) if x.parallel.is_serial]
        around = [Dim(v, s.loops[i].axis.extent) for i in serial for v in variables(values[i])]
        used = {s.loops[i].parallel for i in carrying}
        held = {x.parallel for x in s.loops if x.axis.extent != ONE} - used
        kept = [context.dims[name] for p, name in THREAD_DIMS.items() if p in held]
        self._line, lines = number_of(kept), product_of(d.extent for d in kept)
        self._storage, self._s, self._op = storage, s, s.op
        self._dim = context.dims[THREAD_DIMS[along]]
        self._width = storage.width(s)
        self._has_carry = any(i in carrying for i in serial if s.loops[i].axis.extent != ONE)
        self._number = number
        size = (constant_value(lines) or 0) * self._width
        if not size or constant_value(self._dim.extent) is None:
            raise ScheduleError(
                f"{s.name} scans over blocks of a symbolic number of threads; split its loops by "
                "constants"
            )
        order = blocks_scanned(context, s)
        self._gathering = gathering(storage, s, order, around, size)

    def statements(self, d: Definition) -> list[Statement]:
        """Of one part of the lines: what a thread gets of all that is before its own."""
        op, g, dtype = self._op, self._gathering, self._s.dtype.compute
        identity = Imm(scan_identity(op.fn, dtype), dtype)
        own = d.own_of_scan(identity)
        totals = self._filled(d, identity)
        results = [d.result(lane, dtype) for lane in range(self._width)]
        name = self._dim.var.name
        for before, one, total in zip(results, own, totals, strict=True):
            d.out.append(ThreadScan(op.fn, before, one, total, name, identity, op.reverse))
        self._leave(d, totals)
        d.out += [g.arrive(self._number), g.acquire(self._number + 1), g.leave(self._number + 2)]
        for lane, earlier in enumerate(self._gathered(d, identity)):
            before = results[lane]
            d.out.append(Compute(op.fn, before, (earlier, before)))
            if not op.exclusive:
                d.out.append(Compute(op.fn, before, (before, own[lane])))
        d.write(results)
        return d.out

    def _filled(self, d: Definition, value: Imm) -> list[Reg]:
        """A register for each lane."""
        buffer = d.temporary(value.dtype, self._width)
        registers = [Reg(buffer, Int(k)) for k in range(self._width)]
        d.out.extend(Compute("copy", r, (value,)) for r in registers)
        return registers

    def _leave(self, d: Definition, totals: Sequence[Reg]) -> None:
        """The first thread along the lines of a block stores their totals."""
        g, dims = self._gathering, self._storage.context.dims
        kept = variables(self._line)
        others = (x for name in THREAD_DIMS.values() if (x := dims[name]).extent != ONE)
        alone = all_of(equal(x.var, 0) for x in others if x.var not in kept)
        for first, width in self._vectors():
            at = g.own + self._line * self._width + first
            d.out.append(Store(g.guarded, at, totals[first], width, alone))

    def _gathered(self, d: Definition, identity: Imm) -> list[Reg]:
        """By lane what all that is before the block's part adds up to."""
        fn, g, along = self._op.fn, self._gathering, self._dim
        before = self._filled(d, identity)
        whole = self._filled(d, identity) if self._has_carry else []
        part = Var(f"part_{self._s.name}", 0, ceildiv(g.count, along.extent) - 1)
        number = part * along.extent + along.var
        exists = less(number, g.count)
        is_earlier = less(g.order, number) if self._op.reverse else less(number, g.order)
        outside, d.out = d.out, []
        for first, width in self._vectors():
            found = Reg(d.temporary(identity.dtype, width))
            at = g.first + minimum(number, g.count - 1) * g.size + self._line * self._width + first
            d.out.append(Load(found, g.guarded, at, width, exists, identity))
            for k in range(width):
                one = Reg(found.buffer, Int(k))
                for into, where in ((before, is_earlier), (whole, TRUE)):
                    if into:
                        total = into[first + k]
                        d.out.append(Compute(fn, total, (total, one), where))
        trips = ceildiv(g.count, along.extent)
        adds, d.out = tuple(d.out), outside
        d.out.append(For(part, trips, adds, overlap=GATHERED_AT_ONCE))
        name = along.var.name
        d.out.extend(ThreadReduce(fn, r, r, (name,), identity) for r in (*before, *whole))
        for lane, all_blocks in enumerate(whole):
            carry = d.accumulator(lane)
            d.out.append(Compute(fn, before[lane], (carry, before[lane])))
            d.out.append(Compute(fn, carry, (carry, all_blocks)))
        return before

    def _vectors(self) -> list[tuple[int, int]]:
        """The first lanes of vectors of totals, and how many lanes each has."""
        widest = MAX_VECTOR_NBYTES // self._s.dtype.compute.nbytes
        width = math.gcd(self._width, widest)
        return [(first, width) for first in range(0, self._width, width)]
