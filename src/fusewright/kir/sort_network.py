"""Sorting in shared memory: what stands between the stage that fills a tile and the sort that reads
it, as loads, comparisons and stores of each thread.

Sorted runs of k elements become runs of 2k by comparing each element with its mirror image in the
pair of runs, then with the one k/2 further, k/4 further, and so on (a bitonic merge whose second
half is reversed on the way, so that every comparison leaves the lesser element in front; elements
past the end of a row then need no place). A thread takes elements that several such steps in a row
compare with each other into registers, so that memory and barriers are needed once for all of them:

    for each round:  r[..] = tile[base + m * stride];  compare steps within r;  tile[..] = r[..]

Source: Batcher, Sorting networks and their applications (1968); the mirrored form is Peters,
Schulz-Hildebrandt and Luttenberger, Fast in-place sorting with CUDA (2010).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusewright.core.conditions import Cond, all_of, less
from fusewright.core.expr import ONE, ZERO, Expr, Int, Var, constant_value, floordiv, mod
from fusewright.errors import ScheduleError
from fusewright.fusion.passes.merge_sorts import ELEMENTS
from fusewright.kir.ir import Alloc, Buffer, Compute, For, Imm, Load, Reg, Statement, Store
from fusewright.kir.lower_stage import Definition
from fusewright.kir.lower_storage import Storage
from fusewright.memory import Memory
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.nest import walk_problem
from fusewright.schedule.parallel import THREAD_DIMS


@dataclass(frozen=True, slots=True)
class Round:
    """Steps of comparisons within groups of `size` elements that lie `stride` apart; of a mirrored
    round the second half of each group counts from the end of the pair of runs. `runs`: of the
    first round, which sorts its groups from runs of one element on."""

    size: int
    stride: int
    is_mirrored: bool
    is_first: bool = False


def rounds(length: int, most: int) -> Iterator[Round]:
    """What sorts `length` elements, a power of two, by groups of at most `most`."""
    first = min(length, most)
    yield Round(first, 1, is_mirrored=False, is_first=True)
    run = first
    while run < length:
        steps = run.bit_length()  # run is a power of two: log2(2 * run)
        stride, is_mirrored = 2 * run, True
        while steps:
            taken = min(steps, most.bit_length() - 1)
            stride >>= taken
            yield Round(1 << taken, stride, is_mirrored)
            steps, is_mirrored = steps - taken, False
        run *= 2


def check_tile(flow: Dataflow, tile: Stage, sort: Stage) -> None:
    """Raises ScheduleError where what a sort reads could not be sorted in place: it is elsewhere
    than in shared memory, or others read it unsorted."""
    others = [r.name for r in flow.consumers(tile) if r is not sort]
    if tile.memory is not Memory.SHARED or others or tile in flow.outputs:
        where = f"also read by {', '.join(others)}" if others else f"in {tile.memory.value} memory"
        raise ScheduleError(
            f"{sort.name} sorts {tile.name} in place, which is {where}; let it sort a "
            "copy of its own: cache_after(), with the copy's memory set to fw.SHARED"
        )


def sort_network(storage: Storage, tile: Stage, axis: int) -> list[Statement]:
    """Sorts the rows of a tile in shared memory along an axis.

    Raises ScheduleError for a tile elsewhere, one whose loops do not walk along its rows, and
    threads that are no power of two or more than half the elements.
    """
    row = _SortedRow.of(storage, tile, axis)
    registers = storage.temporary(tile, row.buffer.dtype, row.held)
    other = storage.temporary(tile, row.buffer.dtype)
    out: list[Statement] = [Alloc(registers), Alloc(other)]
    for r in rounds(row.length, min(ELEMENTS, row.held)):
        out += row.move(r, registers, is_store=False)
        for pairs in steps(r):
            out += _compared(registers, other, row.held, r.size, pairs)
        out += row.move(r, registers, is_store=True)
    return out


@dataclass(frozen=True, slots=True)
class _SortedRow:
    """A row of `size` elements from `base` on in a buffer, that `threads` threads sort, each with
    its number and `held` elements; `length` is the next power of two."""

    buffer: Buffer
    base: Expr
    conditions: tuple[Cond, ...]
    size: int
    length: int
    thread: Expr
    threads: int

    @property
    def held(self) -> int:
        return max(1, self.length // self.threads)

    @classmethod
    def of(cls, storage: Storage, tile: Stage, axis: int) -> _SortedRow:
        graph, row = storage.graph, tile.frame.output[axis]
        size = constant_value(row.extent)
        assert size is not None, "what is in shared memory has a constant size"
        problem = walk_problem(graph, tile, axis, tile.loops)
        if problem is not None:
            raise ScheduleError(f"{tile.name}: {problem}; keep the sorted axis in order")
        values = storage.loop_values(tile)
        along = [graph.depends(x.axis, [row]) for x in tile.loops]
        first = tuple(ZERO if a else v for a, v in zip(along, values, strict=True))
        start, here = Definition(storage, tile, first), Definition(storage, tile, values)
        base = start.own_element()
        if here.own_element() - base != here.view.output[axis]:
            raise ScheduleError(
                f"{tile.name}: its rows do not lie in one piece in shared memory; keep the loops "
                "over the sorted axis innermost"
            )
        bound = [(x, v) for x, v in zip(tile.loops, values, strict=True) if x.parallel.is_thread]
        own = [(x, v) for x, v in bound if graph.depends(x.axis, [row]) and x.axis.extent != ONE]
        thread, threads = ZERO, 1
        length = 1 << (size - 1).bit_length()
        for x, _ in own:
            thread = storage.context.dims[THREAD_DIMS[x.parallel]].var
            threads = constant_value(x.axis.extent) or 0
        if threads & (threads - 1) or 2 * threads > max(length, 2):
            raise ScheduleError(
                f"{tile.name}: {threads} threads along a sorted axis of {size}; give it a power "
                f"of two, at most {max(1, length // 2)}"
            )
        conditions = [*start.predicates(writes=True), less(thread, threads)]
        buffer = storage.context.buffers[tile]
        return cls(buffer, base, tuple(conditions), size, length, thread, threads)

    def move(self, r: Round, registers: Buffer, *, is_store: bool) -> list[Statement]:
        """The groups of a thread from memory to registers, or back."""
        if not r.is_mirrored:
            return [self._moved(r, registers, 0, r.size, is_store=is_store)]
        half = r.size // 2
        return [self._moved(r, registers, first, half, is_store=is_store) for first in (0, half)]

    def _moved(
        self, r: Round, registers: Buffer, first: int, count: int, *, is_store: bool
    ) -> Statement:
        groups = self.held // r.size
        g, m = Var("g", 0, Int(groups - 1)), Var("m", 0, Int(count - 1))
        number = self.thread + (ZERO if groups == 1 else g * self.threads)
        block, offset = floordiv(number, r.stride) * (r.size * r.stride), mod(number, r.stride)
        if first:
            offset = Int((first + 1) * r.stride - 1) - offset
        place = block + offset + (ZERO if count == 1 else m * r.stride)
        inside = all_of((*self.conditions, less(place, self.size)))
        held = (ZERO if groups == 1 else g * r.size) + first + (ZERO if count == 1 else m)
        register, at = Reg(registers, held), self.base + place
        last = Imm(registers.dtype.integer_range[1], registers.dtype)
        made: Statement = (
            Store(self.buffer, at, register, 1, inside)
            if is_store
            else Load(register, self.buffer, at, 1, inside, last)
        )
        for v, extent in ((m, count), (g, groups)):
            if extent > 1:
                made = For(v, Int(extent), (made,), unroll=True)
        return made


Pairs = tuple[tuple[int, int], ...]
"""Places in a group that a step compares, the one that gets the lesser element first."""


def steps(r: Round) -> Iterator[Pairs]:
    """The comparisons of a round in groups of its elements."""
    half = r.size // 2
    if r.is_first:
        run = 1
        while run < r.size:
            yield _mirrored(r.size, run)
            yield from _halved(r.size, run // 2)
            run *= 2
    elif r.is_mirrored:
        yield _mirrored(r.size, half)
        yield from _halved(r.size, half // 2)
    else:
        yield from _halved(r.size, half)


def _mirrored(size: int, run: int) -> Pairs:
    starts = range(0, size, 2 * run)
    return tuple((s + k, s + 2 * run - 1 - k) for s in starts for k in range(run))


def _halved(size: int, run: int) -> Iterator[Pairs]:
    while run:
        starts = range(0, size, 2 * run)
        yield tuple((s + k, s + k + run) for s in starts for k in range(run))
        run //= 2


def _compared(
    registers: Buffer, other: Buffer, held: int, size: int, pairs: Pairs
) -> Iterator[Statement]:
    """One step in all groups of a thread."""
    for group in range(0, held, size):
        for low, high in pairs:
            a, b = (Reg(registers, Int(group + k)) for k in (low, high))
            yield Compute("min", Reg(other), (a, b))
            yield Compute("max", b, (a, b))
            yield Compute("copy", a, (Reg(other),))
