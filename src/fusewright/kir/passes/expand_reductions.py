"""Reductions over the threads of a block as shuffles, stores, loads and arithmetic.

Threads are numbered `tx + X*(ty + Y*tz)`; a warp is 32 consecutive numbers. Every block dimension
is cut in two digits, `var = low + clean*high`: the low digits of all dimensions together are the
lowest bits of the thread number (a power of two, at most the warp), so a butterfly of xor shuffles
adds over any of them. What is left of a group is `rest` partial results, one per value of its high
digits:

    rest == 1                 done
    group inside each warp    gathered by shuffles from computed lanes
    otherwise                 one thread per partial stores it; then every thread loads all
                              partials of its group, or a share of them and a butterfly again

The last form needs one barrier, between the stores and the loads. Where a thread has many such
values (the columns of a vector), the threads of the group share them: each adds up some, and a
second barrier stands before the sums are loaded. A reduction over the blocks of a cluster takes the
form that is shorter (`cluster_meeting`): the number of the block is one more high digit, and each
partial is stored into the workspaces of all blocks; or threads share the partials of their block,
and each hands only sums to all blocks. The blocks then combine the same values in the same order.
All orders of combination depend on the shape of the block and of the cluster alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from fusewright.core.atoms import minimum, xor
from fusewright.core.conditions import TRUE, Cond, all_of, equal, less
from fusewright.core.expr import ZERO, Expr, Int, Var, floordiv, mod
from fusewright.errors import InternalError
from fusewright.kir.analysis.alternation import turns_of_loops
from fusewright.kir.exchange_runs import expand_runs
from fusewright.kir.ir import (
    Alloc,
    Body,
    Buffer,
    Compute,
    For,
    Kernel,
    Load,
    Reg,
    RemoteStore,
    Shuffle,
    Statement,
    Store,
    ThreadReduce,
)
from fusewright.kir.traverse import map_bodies
from fusewright.memory import Memory
from fusewright.schedule.block_reduction import DIRECT_LOADS, are_shared_out, pieces_of
from fusewright.target import MAX_VECTOR_NBYTES, WARP_SIZE

DIMS = ("tx", "ty", "tz")


def expand_reductions(kernel: Kernel) -> Kernel:
    """Turn every ThreadReduce into lockstep shuffles, stores and loads, without syncs.

    rewrite:  d = thread_reduce.add(v) over (tx)   ->   d = v; butterflies on d;
              workspace[warp] = d where lane == 0; d = workspace[0] + ... + workspace[n-1]
    checks:   block extents are constant
    order:    before syncs are placed, which then order the workspace like all shared memory
    """
    expander = _ReductionExpander(kernel)
    return map_bodies(kernel, expander.body)


@dataclass(frozen=True, slots=True)
class BlockDigit:
    """A block dimension as `low + clean*high`: `low` in [0, clean), `high` in [0, extent/clean).

    `bit` is the weight of `low` in the thread number, `stride` that of the whole variable.
    """

    var: Var
    extent: int
    clean: int
    bit: int
    stride: int
    is_reduced: bool

    @property
    def low(self) -> Expr:
        return mod(self.var, self.clean)

    @property
    def high(self) -> Expr:
        return floordiv(self.var, self.clean)

    @property
    def highs(self) -> int:
        return self.extent // self.clean


@dataclass(frozen=True, slots=True)
class ThreadGroup:
    """How the threads of a block fall into groups that reduce together."""

    digits: tuple[BlockDigit, ...]

    @property
    def reduced(self) -> tuple[BlockDigit, ...]:
        return tuple(d for d in self.digits if d.is_reduced)

    @property
    def masks(self) -> tuple[int, ...]:
        """The xor distances of the butterflies over the reduced low digits, short ones first."""
        out: list[int] = []
        for d in self.reduced:
            out += [d.bit << k for k in range(d.clean.bit_length() - 1)]
        return tuple(out)

    @property
    def rest(self) -> int:
        """Partial results of one group that the butterflies leave."""
        return math.prod(d.highs for d in self.reduced)

    @property
    def lanes(self) -> int:
        """Threads that hold the same partial result after the butterflies."""
        return math.prod(d.clean for d in self.reduced)

    @property
    def lane(self) -> Expr:
        """The number of a thread among the `lanes` that hold one partial."""
        return _mixed((d.low, d.clean) for d in self.reduced)

    @property
    def number(self) -> Expr:
        """The number of a thread within its group: those that hold one partial lie together."""
        return self.position * self.lanes + self.lane

    @property
    def position(self) -> Expr:
        """The number of a thread's partial within its group."""
        return _mixed((d.high, d.highs) for d in self.reduced)

    @property
    def key(self) -> Expr:
        """The number of a thread's group."""
        return _mixed((d.var, d.extent) for d in self.digits if not d.is_reduced)

    @property
    def groups(self) -> int:
        """The number of groups in a block."""
        return math.prod(d.extent for d in self.digits if not d.is_reduced)

    @property
    def is_inside_warp(self) -> bool:
        """Whether all threads of every group belong to one warp."""
        total = math.prod(d.extent for d in self.digits)
        warp = np.arange(total) // WARP_SIZE
        shape = tuple(d.extent for d in reversed(self.digits))
        axes = tuple(len(shape) - 1 - i for i, d in enumerate(self.digits) if d.is_reduced)
        cube = warp.reshape(shape)
        return bool((cube.min(axis=axes) == cube.max(axis=axes)).all())

    def thread_at(self, position: Expr) -> Expr:
        """The thread number of this thread's counterpart that holds partial `position`."""
        number: Expr = ZERO
        for d in self.digits:
            if not d.is_reduced:
                number = number + d.var * d.stride
                continue
            high = mod(position, d.highs)
            position = floordiv(position, d.highs)
            number = number + (d.low + high * d.clean) * d.stride
        return number


def group_of(kernel: Kernel, dims: tuple[str, ...]) -> ThreadGroup:
    """The groups of threads of a block, or of a cluster if `dims` asks for its blocks, that agree
    in the block dimensions not in `dims`."""
    digits: list[BlockDigit] = []
    bit, stride, is_clean = 1, 1, True
    for name, dim in zip(DIMS, kernel.block, strict=False):
        extent = dim.extent
        if not isinstance(extent, Int):
            raise InternalError(f"the block extent {extent} of {dim.var} is not constant")
        if extent.value == 1:
            continue
        room = WARP_SIZE // bit if is_clean else 1
        clean = min(extent.value & -extent.value, room)
        digits.append(BlockDigit(dim.var, extent.value, clean, bit, stride, name in dims))
        bit, stride = bit * clean, stride * extent.value
        is_clean = is_clean and clean == extent.value
    for dim in kernel.cluster:
        if dim.var.name in dims:
            digits.append(BlockDigit(dim.var, kernel.cluster_size, 1, bit, stride, True))
    return ThreadGroup(tuple(digits))


def _mixed(digits: Iterable[tuple[Expr, int]]) -> Expr:
    """The number with the given (digit, radix) pairs, the lowest first."""
    number: Expr = ZERO
    weight = 1
    for digit, radix in digits:
        number, weight = number + digit * weight, weight * radix
    return number


@dataclass(slots=True)
class _ReductionSteps:
    """The statements of one ThreadReduce, in the order in which joint ones are interleaved."""

    allocs: list[Statement] = field(default_factory=list[Statement])
    within: list[Statement] = field(default_factory=list[Statement])
    stores: list[Statement] = field(default_factory=list[Statement])
    loads: list[Statement] = field(default_factory=list[Statement])
    across: list[Statement] = field(default_factory=list[Statement])


@dataclass(frozen=True, slots=True)
class _Workspace:
    """Where the `count` partials of this thread's group lie in shared memory."""

    buffer: Buffer
    base: Expr
    stride: int
    count: int

    def at(self, position: Expr) -> Expr:
        """The element of a partial."""
        return self.base + position * self.stride


@dataclass(frozen=True, slots=True)
class _Adder:
    """Adds up in `total`, by way of `part`, what lies in rows of `row` elements."""

    reduction: ThreadReduce
    total: Reg
    part: Reg
    row: int

    def added_up(
        self, rows: Buffer, count: int, at: Expr, exists: Cond, first: Expr = ZERO, step: int = 1
    ) -> list[Statement]:
        """total = rows[at] + rows[row + at] + .., the `first` of `count` and each `step`-th behind
        it, where there are such elements: those of neighbouring threads lie side by side."""
        trips = -(-count // step)
        r, k = self.reduction, Var("k", 0, trips - 1)
        number = first + k * step
        where = exists if step == 1 else all_of([exists, less(number, count)])
        load = Load(self.part, rows, number * self.row + at, 1, where, r.identity)
        add = Compute(r.fn, self.total, (self.total, self.part))
        return [Compute("copy", self.total, (r.identity,)), For(k, Int(trips), (load, add))]


class _ReductionExpander:
    """Expands the ThreadReduces of one kernel; numbers the buffers it makes."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._count = 0
        self._turns = turns_of_loops(kernel) if kernel.cluster else {}

    def body(self, body: Body) -> Body:
        """The body with runs of ThreadReduces expanded together, stores before loads."""
        return expand_runs(body, ThreadReduce, self._expand)

    def _expand(self, run: list[ThreadReduce]) -> list[Statement]:
        shared = self._shareable(run)
        if shared:
            rest = [r for r in run if r not in shared]
            return [*self._expand_shared(shared), *self._expand(rest)]
        plans = [self._plan(r) for r in run]
        return [
            *(s for p in plans for s in p.allocs),
            *(s for p in plans for s in p.within),
            *(s for p in plans for s in p.stores),
            *(s for p in plans for s in p.loads),
            *(s for p in plans for s in p.across),
        ]

    def _shareable(self, run: list[ThreadReduce]) -> list[ThreadReduce]:
        """The reductions of a run that the threads of a group share: many of one kind over threads
        of different warps. Each thread then adds up a part of them for all others."""
        for first in run:
            alike = [r for r in run if (r.fn, r.dims) == (first.fn, first.dims)]
            alike = [r for r in alike if r.src.buffer.dtype is first.src.buffer.dtype]
            group, nblocks = self._group_in_block(first), self._blocks_of(first)
            if are_shared_out(len(alike), group.lanes, group.rest, nblocks):
                return alike
        return []

    def _group_in_block(self, r: ThreadReduce) -> ThreadGroup:
        """The threads of a block that reduce together, whether other blocks take part or not."""
        return group_of(self._kernel, tuple(d for d in r.dims if d in DIMS))

    def _blocks_of(self, r: ThreadReduce) -> int:
        """The blocks that reduce together."""
        return self._kernel.cluster_size if self._crosses_blocks(r) else 1

    def _crosses_blocks(self, r: ThreadReduce) -> bool:
        return any(dim.var.name in r.dims for dim in self._kernel.cluster)

    def _expand_shared(self, run: list[ThreadReduce]) -> list[Statement]:
        """One thread for each partial of a block stores it, for each reduction; thread p of its
        group adds up those of reductions p, p + size, .., where there are several threads for each
        sum a piece of it first; every thread loads all sums. Where the blocks of a cluster reduce
        together, thread p hands its sums to all blocks, and adds up what all of them handed to its
        own."""
        group, first = self._group_in_block(run[0]), run[0]
        self._count += 1
        nblocks, row = self._blocks_of(first), len(run) * group.groups
        partials = self._buffer("workspace", first, row * group.rest, Memory.SHARED)
        sums = self._buffer("sums", first, row, Memory.SHARED)
        total = Reg(self._buffer("total", first, 1, Memory.LOCAL))
        part = Reg(self._buffer("part", first, 1, Memory.LOCAL))
        adder = _Adder(first, total, part, row)
        out: list[Statement] = [*map(Alloc, (partials, sums, total.buffer, part.buffer))]
        out += self._within_warps(run, group)
        for i, r in enumerate(run):
            place = group.position * row + i * group.groups + group.key
            source = r.src if group.lanes == 1 else r.dst
            out.append(Store(partials, place, source, predicate=equal(group.lane, 0)))
        own = [group.number + n for n in range(0, len(run), group.rest * group.lanes)]
        shares = [(n * group.groups + group.key, less(n, len(run))) for n in own]
        if nblocks > 1:
            handed = self._buffer("handed", first, row * nblocks, Memory.SHARED)
            out.append(Alloc(handed))
            for at, exists in shares:
                out += adder.added_up(partials, group.rest, at, exists)
                out += self._handed_on(handed, row, at, total, exists)
            partials = handed
        count = nblocks if nblocks > 1 else group.rest
        pieces = pieces_of(len(run), count) if nblocks == 1 and group.lanes == 1 else 1
        if pieces > 1:
            added = self._buffer("pieces", first, row * pieces, Memory.SHARED)
            out += [Alloc(added), *_piece(adder, partials, added, len(run), group)]
            partials, count = added, pieces
        for at, exists in shares:
            out += adder.added_up(partials, count, at, exists)
            out.append(Store(sums, at, total, predicate=exists))
        out += [Load(r.dst, sums, group.key + i * group.groups) for i, r in enumerate(run)]
        return out

    def _handed_on(
        self, handed: Buffer, row: int, at: Expr, total: Reg, exists: Cond
    ) -> list[Statement]:
        """Stores a sum of this block in a row of its own in every block of the cluster."""
        (dim,) = self._kernel.cluster
        place = dim.var * row + at
        blocks = range(self._kernel.cluster_size)
        return [RemoteStore(handed, place, Int(b), total, predicate=exists) for b in blocks]

    def _within_warps(self, run: list[ThreadReduce], group: ThreadGroup) -> list[Statement]:
        """What the lanes of a warp add up among themselves, for each reduction."""
        if group.lanes == 1:
            return []
        lane = self._buffer("lane", run[0], 1, Memory.LOCAL)
        out: list[Statement] = [Alloc(lane)]
        for r in run:
            if not _same_register(r.src, r.dst):
                out.append(Compute("copy", r.dst, (r.src,)))
            out += _butterflies(r, group.masks, lane)
        return out

    def _plan(self, r: ThreadReduce) -> _ReductionSteps:
        group, plan = group_of(self._kernel, r.dims), _ReductionSteps()
        self._count += 1
        if not _same_register(r.src, r.dst):
            plan.within.append(Compute("copy", r.dst, (r.src,)))
        temporary = self._buffer("lane", r, 1, Memory.LOCAL)
        plan.within += _butterflies(r, group.masks, temporary)
        if group.rest > 1 and group.is_inside_warp:
            plan.within += self._gathered(r, group, temporary)
        elif group.rest > 1:
            self._through_memory(r, group, plan, temporary)
        if any(isinstance(s, Shuffle) for s in (*plan.within, *plan.across)):
            plan.allocs.append(Alloc(temporary))
        return plan

    def _gathered(self, r: ThreadReduce, group: ThreadGroup, temporary: Buffer) -> list[Statement]:
        """Butterflies over `half` = 2**k <= rest positions, the others folded onto them first.

        Positions need not be lanes at a power-of-two distance, so sources are computed lanes. All
        threads whose position agrees modulo `half` hold the same value from the fold on.
        """
        half = 1 << (group.rest.bit_length() - 1)
        folded, other = mod(group.position, half), Reg(temporary)
        out: list[Statement] = []
        if half != group.rest:
            outer = folded + half
            partner = _lane(group, minimum(outer, group.rest - 1))
            out.append(Shuffle(other, r.dst, "index", partner))
            out.append(Shuffle(r.dst, r.dst, "index", _lane(group, folded)))
            out.append(Compute(r.fn, r.dst, (r.dst, other), less(outer, group.rest)))
        for k in range(half.bit_length() - 1):
            partner = _lane(group, xor(folded, 1 << k))
            out.append(Shuffle(other, r.dst, "index", partner))
            out.append(Compute(r.fn, r.dst, (r.dst, other)))
        return out

    def _through_memory(
        self, r: ThreadReduce, group: ThreadGroup, plan: _ReductionSteps, temporary: Buffer
    ) -> None:
        size, turn = group.groups * group.rest, ZERO
        if self._crosses_blocks(r) and r in self._turns:
            turn, size = self._turns[r] * size, 2 * size
        buffer = self._buffer("workspace", r, size, Memory.SHARED)
        plan.allocs.append(Alloc(buffer))
        if group.lanes == 1 or group.rest > DIRECT_LOADS:
            # Lanes of a warp read partials of different groups: those lie side by side.
            workspace = _Workspace(buffer, turn + group.key, group.groups, group.rest)
        else:
            workspace = _Workspace(buffer, turn + group.key * group.rest, 1, group.rest)
        place = workspace.at(group.position)
        if self._crosses_blocks(r):
            plan.stores += _remote_stores(r, group, buffer, place, self._kernel.cluster_size)
        else:
            plan.stores.append(Store(buffer, place, r.dst, predicate=equal(group.lane, 0)))
        if group.rest <= DIRECT_LOADS or group.lanes == 1:
            self._load_all(r, workspace, plan)
        else:
            self._load_share(r, group, workspace, plan)
            plan.across += _butterflies(r, group.masks, temporary)

    def _load_all(self, r: ThreadReduce, workspace: _Workspace, plan: _ReductionSteps) -> None:
        """Every thread loads all partials of its group and adds them as a tree."""
        count, buffer = workspace.count, workspace.buffer
        if count > DIRECT_LOADS:
            self._load_in_loop(r, 1, ZERO, workspace, plan)
            return
        parts = self._buffer("parts", r, count, Memory.LOCAL)
        width = count & -count if workspace.stride == 1 else 1
        while width * buffer.dtype.nbytes > buffer.alignment:
            width //= 2
        plan.allocs.append(Alloc(parts))
        plan.loads += [
            Load(Reg(parts, Int(i)), buffer, workspace.at(Int(i)), width)
            for i in range(0, count, width)
        ]
        plan.across += _tree(r, parts, count)

    def _load_share(
        self, r: ThreadReduce, group: ThreadGroup, workspace: _Workspace, plan: _ReductionSteps
    ) -> None:
        """The `lanes` threads that hold one partial share the loads: thread k loads partials k,
        k + lanes, ..., and a butterfly over them follows."""
        count = -(-group.rest // group.lanes)
        if count > DIRECT_LOADS:
            self._load_in_loop(r, group.lanes, group.lane, workspace, plan)
            return
        if count == 1:
            plan.loads.append(_guarded(r.dst, workspace, group.lane, r))
            return
        parts = self._buffer("parts", r, count, Memory.LOCAL)
        plan.allocs.append(Alloc(parts))
        for i in range(count):
            place = group.lane + i * group.lanes
            plan.loads.append(_guarded(Reg(parts, Int(i)), workspace, place, r))
        plan.across += _tree(r, parts, count)

    def _load_in_loop(
        self, r: ThreadReduce, step: int, first: Expr, workspace: _Workspace, plan: _ReductionSteps
    ) -> None:
        part = self._buffer("part", r, 1, Memory.LOCAL)
        trips = -(-workspace.count // step)
        k = Var("k", 0, trips - 1)
        load = _guarded(Reg(part), workspace, first + k * step, r)
        add = Compute(r.fn, r.dst, (r.dst, Reg(part)))
        plan.allocs.append(Alloc(part))
        plan.loads.append(Compute("copy", r.dst, (r.identity,)))
        plan.loads.append(For(k, Int(trips), (load, add)))

    def _buffer(self, name: str, r: ThreadReduce, size: int, memory: Memory) -> Buffer:
        dtype = r.src.buffer.dtype
        aligned = MAX_VECTOR_NBYTES if memory is Memory.SHARED else 0
        return Buffer(f"{name}{self._count}", dtype, Int(size), memory, aligned)


def _piece(
    adder: _Adder, partials: Buffer, added: Buffer, values: int, group: ThreadGroup
) -> list[Statement]:
    """Thread p of its group adds up piece p // values of reduction p % values: every so-many-th
    partial, as many pieces as the buffer has rows for."""
    pieces = pieces_of(values, group.rest)
    number, piece = mod(group.number, values), floordiv(group.number, values)
    at, exists = number * group.groups + group.key, less(piece, pieces)
    return [
        *adder.added_up(partials, group.rest, at, exists, piece, pieces),
        Store(added, piece * adder.row + at, adder.total, predicate=exists),
    ]


def _lane(group: ThreadGroup, position: Expr) -> Expr:
    return mod(group.thread_at(position), WARP_SIZE)


def _remote_stores(
    r: ThreadReduce, group: ThreadGroup, workspace: Buffer, place: Expr, nblocks: int
) -> list[Statement]:
    """The threads that hold one partial share the blocks it goes to."""
    out: list[Statement] = []
    for first in range(0, nblocks, group.lanes):
        rank = group.lane + first
        where = less(rank, nblocks)
        out.append(RemoteStore(workspace, place, rank, r.dst, predicate=where))
    return out


def _butterflies(r: ThreadReduce, masks: tuple[int, ...], temporary: Buffer) -> list[Statement]:
    out: list[Statement] = []
    for mask in masks:
        out.append(Shuffle(Reg(temporary), r.dst, "xor", Int(mask)))
        out.append(Compute(r.fn, r.dst, (r.dst, Reg(temporary))))
    return out


def _guarded(dst: Reg, workspace: _Workspace, place: Expr, r: ThreadReduce) -> Load:
    """A load of partial `place` of this thread's group, the identity where there is none."""
    exists = less(place, workspace.count)
    fill = None if exists == TRUE else r.identity
    return Load(dst, workspace.buffer, workspace.at(place), 1, exists, fill)


def _tree(r: ThreadReduce, parts: Buffer, count: int) -> list[Statement]:
    """`dst` = the first `count` registers of `parts`, combined pairwise, level by level."""
    out: list[Compute] = []
    regs = [Reg(parts, Int(i)) for i in range(count)]
    while len(regs) > 1:
        for a, b in zip(regs[::2], regs[1::2], strict=False):
            out.append(Compute(r.fn, a, (a, b)))
        regs = regs[::2]
    out[-1] = replace(out[-1], dst=r.dst)
    return list(out)


def _same_register(a: Reg, b: Reg) -> bool:
    return a.buffer is b.buffer and a.index == b.index
