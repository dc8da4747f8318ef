"""Scans over the threads of a block as shuffles, stores, loads and arithmetic.

The threads along the scanned dimension are cut in two digits, `var = low + clean*high`, as those of
a reduction are (`expand_reductions`). The threads of one `high` digit belong to a warp:

    within a warp      incl = src; log2(clean) steps of  incl = fn(incl of the lane d before, incl)
                       excl = incl of the lane before
    across warps       the last of them stores incl; then every thread loads all `highs` totals,
                       and combines those before its own with the carry; of more than `MOST_LOADED`
                       one thread puts what is before each in its place, and all behind them

In reverse, both digits count from their other end, and the lane before is the one with the next
number.

Source: Hillis, Steele, "Data parallel algorithms" (1986). The order of combination depends on the
shape of the block alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusewright.core.atoms import minimum
from fusewright.core.conditions import all_of, equal, less, less_equal
from fusewright.core.expr import ZERO, Expr, Int, Var, mod
from fusewright.kir.exchange_runs import expand_runs
from fusewright.kir.ir import (
    Alloc,
    Buffer,
    Compute,
    For,
    Kernel,
    Load,
    Operand,
    Reg,
    Shuffle,
    Statement,
    Store,
    ThreadScan,
)
from fusewright.kir.passes.expand_reductions import BlockDigit, ThreadGroup, group_of
from fusewright.kir.traverse import map_bodies
from fusewright.memory import Memory
from fusewright.schedule.block_scan import MOST_LOADED
from fusewright.target import MAX_VECTOR_NBYTES, WARP_SIZE


def expand_scans(kernel: Kernel) -> Kernel:
    """Turn every ThreadScan into lockstep shuffles, stores and loads, without syncs.

    rewrite:  d = thread_scan.add(v) along tx carry c   ->   shuffles of v within each warp;
              workspace[warp] = total; d = c + totals of the warps before + sum of the lanes before
    checks:   block extents are constant
    order:    beside expand_reductions, before syncs are placed, which then order the workspace
    """
    expander = _ScanExpander(kernel)
    return map_bodies(kernel, lambda body: expand_runs(body, ThreadScan, expander.run))


@dataclass(slots=True)
class _ScanSteps:
    """The statements of one ThreadScan, in the order in which those of a run are interleaved."""

    allocs: list[Statement] = field(default_factory=list[Statement])
    within: list[Statement] = field(default_factory=list[Statement])
    stores: list[Statement] = field(default_factory=list[Statement])
    totals: list[Statement] = field(default_factory=list[Statement])
    across: list[Statement] = field(default_factory=list[Statement])


class _ScanExpander:
    """Expands the ThreadScans of one kernel; numbers the buffers it makes."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._count = 0

    def run(self, run: list[ThreadScan]) -> list[Statement]:
        """Scans that do not depend on each other: all stores stand before all loads."""
        plans = [self._plan(s) for s in run]
        return [
            *(x for p in plans for x in p.allocs),
            *(x for p in plans for x in p.within),
            *(x for p in plans for x in p.stores),
            *(x for p in plans for x in p.totals),
            *(x for p in plans for x in p.across),
        ]

    def _plan(self, s: ThreadScan) -> _ScanSteps:
        plan = _ScanSteps()
        self._count += 1
        group = group_of(self._kernel, (s.dim,))
        if not group.reduced:  # one thread along the dimension
            plan.across += [Compute("copy", s.dst, (s.carry,)), _combine(s, s.carry, s.src)]
            return plan
        (digit,) = group.reduced
        before, last = self._register("before", s, plan), s.src
        if digit.clean > 1:
            last = self._within_warp(s, group, before, plan)
        else:
            plan.within.append(Compute("copy", before, (s.identity,)))
        low, high = _places(s, digit)
        if digit.highs == 1:
            total = self._register("total", s, plan)
            last_lane = 0 if s.reverse else digit.clean - 1
            end = group.thread_at(ZERO) + (last_lane - digit.low) * digit.bit
            plan.within.append(Shuffle(total, last, "index", mod(end, WARP_SIZE)))
            plan.across += [
                Compute(s.fn, s.dst, (s.carry, before)),
                _combine(s, s.carry, total),
            ]
            return plan
        by_one = digit.highs > MOST_LOADED
        workspace = self._workspace(s, (digit.highs + by_one) * group.groups, plan)
        is_last = equal(low, digit.clean - 1)
        place = group.key + high * group.groups
        plan.stores.append(Store(workspace, place, last, predicate=is_last))
        plan.across.append(Compute("copy", s.dst, (s.carry,)))
        totals = _Totals(workspace, group.key, group.groups)
        if by_one:
            self._scan_totals(s, digit, totals, plan)
        else:
            self._across_warps(s, digit, totals, plan)
        plan.across.append(_combine(s, s.dst, before))
        return plan

    def _within_warp(self, s: ThreadScan, group: ThreadGroup, before: Reg, plan: _ScanSteps) -> Reg:
        """Puts `fn` over the lanes of this `high` digit before a thread into `before`; the register
        with that of its own lane too."""
        upto, other = self._register("upto", s, plan), self._register("other", s, plan)
        (digit,) = group.reduced
        low, _ = _places(s, digit)
        plan.within.append(Compute("copy", upto, (s.src,)))
        for k in range(digit.clean.bit_length() - 1):
            plan.within.append(self._of_lane_before(s, group, (other, upto), 1 << k))
            has_one = less_equal(1 << k, low)
            plan.within.append(Compute(s.fn, upto, (other, upto), has_one))
        plan.within.append(self._of_lane_before(s, group, (before, upto), 1))
        plan.within.append(Compute("copy", before, (s.identity,), less(low, 1)))
        return upto

    def _of_lane_before(
        self, s: ThreadScan, group: ThreadGroup, registers: tuple[Reg, Reg], distance: int
    ) -> Shuffle:
        """The value of the lane that many places before; of any lane where there is none. The last
        warp of a block may have no lane with a higher number, which has to be named then."""
        (digit,) = group.reduced
        step = Int(distance * digit.bit)
        if not s.reverse:
            return Shuffle(*registers, "up", step)
        if self._kernel.nthreads % WARP_SIZE == 0:
            return Shuffle(*registers, "down", step)
        here = group.thread_at(digit.high)
        there = here + minimum(Int(distance), digit.clean - 1 - digit.low) * digit.bit
        return Shuffle(*registers, "index", mod(there, WARP_SIZE))

    def _across_warps(
        self, s: ThreadScan, digit: BlockDigit, totals: _Totals, plan: _ScanSteps
    ) -> None:
        """Every thread loads all totals: those before its own go to the result, all to the
        carry."""
        part = self._register("part", s, plan)
        j = Var("j", 0, digit.highs - 1)
        body = (
            Load(part, totals.buffer, totals.first + j * totals.step),
            Compute(s.fn, s.dst, (s.dst, part), less(j, _places(s, digit)[1])),
            _combine(s, s.carry, part),
        )
        plan.across.append(For(j, Int(digit.highs), body))

    def _scan_totals(
        self, s: ThreadScan, digit: BlockDigit, totals: _Totals, plan: _ScanSteps
    ) -> None:
        """One thread of a group replaces each total by what is before it, and puts that of all
        behind them; scans beside each other take threads of different warps for it."""
        low, high = _places(s, digit)
        is_chosen = all_of((equal(low, 0), equal(high, self._count % digit.highs)))
        so_far, part = self._register("so_far", s, plan), self._register("part", s, plan)
        j = Var("j", 0, digit.highs - 1)
        place = totals.first + j * totals.step
        body = (
            Load(part, totals.buffer, place, predicate=is_chosen),
            Store(totals.buffer, place, so_far, predicate=is_chosen),
            _combine(s, so_far, part),
        )
        end = totals.first + digit.highs * totals.step
        plan.totals += [
            Compute("copy", so_far, (s.identity,)),
            Compute("copy", part, (s.identity,)),
            For(j, Int(digit.highs), body, overlap=4),
            Store(totals.buffer, end, so_far, predicate=is_chosen),
        ]
        plan.across += [
            Load(part, totals.buffer, totals.first + high * totals.step),
            Compute(s.fn, s.dst, (s.dst, part)),
            Load(part, totals.buffer, end),
            _combine(s, s.carry, part),
        ]

    def _register(self, name: str, s: ThreadScan, plan: _ScanSteps) -> Reg:
        buffer = Buffer(f"{name}{self._count}", s.src.buffer.dtype, Int(1), Memory.LOCAL)
        plan.allocs.append(Alloc(buffer))
        return Reg(buffer)

    def _workspace(self, s: ThreadScan, size: int, plan: _ScanSteps) -> Buffer:
        dtype, name = s.src.buffer.dtype, f"totals{self._count}"
        buffer = Buffer(name, dtype, Int(size), Memory.SHARED, MAX_VECTOR_NBYTES)
        plan.allocs.append(Alloc(buffer))
        return buffer


@dataclass(frozen=True, slots=True)
class _Totals:
    """Where the totals of a thread's group lie in shared memory."""

    buffer: Buffer
    first: Expr
    step: int


def _places(s: ThreadScan, digit: BlockDigit) -> tuple[Expr, Expr]:
    """The digits of a thread, counted in the direction of the scan."""
    if not s.reverse:
        return digit.low, digit.high
    return digit.clean - 1 - digit.low, digit.highs - 1 - digit.high


def _combine(s: ThreadScan, into: Reg, value: Operand) -> Compute:
    return Compute(s.fn, into, (into, value))
