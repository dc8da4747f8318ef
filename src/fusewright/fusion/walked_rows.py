"""Which rows of a value blocks walk over, where its reductions go in several directions.

    order of axes in memory      slower        axes           fast
    reductions of rows           kept          reduced        kept or reduced
    reductions of columns        reduced       kept           kept or reduced

A block keeps the columns of its rows in registers over the walk, and finishes each row. Where both
kinds reduce the fast axes, or rows would be longer than registers hold, the first step leaves
partial results: those of rows are one for each of the elements that a step reduces, those of
columns one for each column of a block. What they take of memory decides how rows are cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewright.fusion.inputs_behind import in_memory_order
from fusewright.fusion.ir import Reduce, Tensor, constant_shape
from fusewright.fusion.partitioning import (
    LEAST_TOTAL,
    PartitionFacts,
    beside_rows,
    divisors,
    held_of,
    inputs_of,
)
from fusewright.fusion.persistent_rows import LEAST_ROWS_OF_BLOCK, ROWS_AT_A_TIME, RowRegisters
from fusewright.fusion.row_alignment import lanes_of_word
from fusewright.fusion.sizes import STORED_TRIPS
from fusewright.target import SECTOR_NBYTES, Target

SHORTEST = 64
"""Elements of a row that is worth a walk: of fewer, partial results are a large part."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The axes along which row reductions run in the first step, ascending, of `cut`, if there is
    one, chunks of `length` elements; the `fast` axes behind them, which they keep. Of the last of
    the axes `together` neighbours are kept, too, so that vectors hold whole results. Threads take
    so many rows `at_a_time`. `is_held`: whether a block holds such rows."""

    axes: tuple[int, ...]
    fast: tuple[int, ...] = ()
    cut: int | None = None
    length: int = 0
    together: int = 1
    at_a_time: int = 1
    is_held: bool = False

    @property
    def own(self) -> frozenset[int]:
        """The axes that a row has."""
        return frozenset((*self.axes, *self.fast))


@dataclass(frozen=True, slots=True)
class Directions:
    """The sizes of a value, its axes in the order of memory, those that reductions of rows reduce
    and the faster ones that they keep, slowest first, and the axes that reductions of columns
    reduce among the slower ones."""

    source: Tensor
    sizes: tuple[int, ...]
    axes: tuple[int, ...]
    fast: tuple[int, ...]
    walked: tuple[int, ...]
    reductions: tuple[Tensor, ...]
    rows: tuple[Tensor, ...]

    def numel(self, axes: Sequence[int]) -> int:
        """The elements along some axes."""
        return math.prod(self.sizes[a] for a in axes)

    @property
    def total(self) -> int:
        return math.prod(self.sizes)

    def is_across(self, rows: Rows) -> bool:
        """Whether the first step of column reductions reduces all fast axes: threads along these
        then have no other elements."""
        others = [t for t in self.reductions if t not in self.rows]
        fast = {a for a in self.fast if self.sizes[a] > 1}
        return bool(fast) and rows.together == 1 and all(fast <= set(_axes(t)) for t in others)

    def leaves_rows(self, rows: Rows) -> bool:
        """Whether the first step of row reductions leaves partial results."""
        left = {a for t in self.rows for a in _axes(t)}.difference(rows.axes)
        return rows.cut is not None or rows.together > 1 or any(self.sizes[a] > 1 for a in left)


def directions_of(
    source: Tensor, reductions: Sequence[Tensor], *, keeps_fast: bool
) -> Directions | None:
    """The directions of a value's reductions: rows along the fast axes that some reduce and the
    others keep; with `keeps_fast` also along slower ones, where the fast axes are reduced by all,
    by none, or are too few for a row. None where no walk would make all of them."""
    sizes = constant_shape(source)
    if sizes is None or math.prod(sizes) < LEAST_TOTAL:
        return None
    sized = [a for a, n in enumerate(sizes) if n > 1]
    order = in_memory_order(source, sized, lambda v: v.op.operands)
    stop = len(order)
    while stop:
        start = _run(order, stop, reductions)
        rows = tuple(t for t in reductions if order[stop - 1] in _axes(t))
        axes, fast = order[start:stop], order[stop:]
        walked = [a for a in order[:start] if all(t in rows or a in _axes(t) for t in reductions)]
        is_walk = 0 < len(rows) < len(reductions) and (walked or not fast)
        if is_walk and math.prod(sizes[a] for a in (*axes, *fast)) >= SHORTEST:
            reduced = all(set(fast) <= set(_axes(t)) for t in rows)
            axes, fast = ((*axes, *fast), ()) if reduced else (tuple(axes), tuple(fast))
            return Directions(source, sizes, axes, fast, tuple(walked), tuple(reductions), rows)
        if not keeps_fast:
            return None
        stop = start
    return None


def _run(order: Sequence[int], stop: int, reductions: Sequence[Tensor]) -> int:
    """Where the axes before `stop` begin that the same reductions reduce."""
    last = [order[stop - 1] in _axes(t) for t in reductions]
    start = stop - 1
    while start and [order[start - 1] in _axes(t) for t in reductions] == last:
        start -= 1
    return start


def held_rows(d: Directions, sums: int, target: Target) -> Rows:
    """Rows, or chunks of them that a block holds with so many sums of their columns: the longest of
    which there are more than multiprocessors, and for half of these a block that walks over enough
    of them; the shortest where all are too few. Whole rows where none is held."""
    inputs = set(inputs_of(d.source))
    row = d.numel(d.axes)
    parts = max(d.total // row // LEAST_ROWS_OF_BLOCK, 1)
    found = Rows(tuple(sorted(d.axes)))
    for axes, a, n, length in _chunks(d):
        held = held_of(inputs, d.total, length, sums)
        if length < SHORTEST or not held.blocks(length):
            continue
        blocks = min(2 * parts * (row // length), d.total // length - 1)
        if blocks < target.multiprocessors and found.is_held:
            return found
        is_cut = n < d.sizes[a]
        found = Rows(axes, (), a if is_cut else None, n if is_cut else 0, is_held=True)
    return found


def _chunks(d: Directions) -> Iterator[tuple[tuple[int, ...], int, int, int]]:
    """The chunks of the rows, short ones first: their axes, the slowest of them, how much of it
    they have, and how many elements."""
    inner = 1
    for k, a in reversed(list(enumerate(d.axes))):
        for n in divisors(d.sizes[a]):
            yield tuple(sorted(d.axes[k:])), a, n, inner * n
        inner *= d.sizes[a]


@dataclass(frozen=True, slots=True)
class Results:
    """What a walk makes: sums of columns that registers hold, those of them that a part leaves, and
    results of rows. Of parts of no more than `most_rows` a walk makes enough."""

    sums: int
    rows: int
    left: int
    most_rows: int | None = None


def rows_of_least_bytes(d: Directions, made: Results, target: Target) -> Rows | None:
    """Rows cut so that the bytes of partial results, and the share of the chip that has too few
    blocks, cost the least; None where they cost as much as to read the value again."""
    inputs = set(inputs_of(d.source))
    nbytes = sum(x.dtype.nbytes for x in inputs if _numel(x) == d.total) * d.total
    lanes = lanes_of_word(min((x.dtype.nbytes for x in inputs), default=d.source.dtype.nbytes))
    fast = tuple(sorted(d.fast))
    together = lanes // math.gcd(d.numel(fast), lanes) if fast else 1
    column = next(t for t in d.reductions if t not in d.rows)
    facts = PartitionFacts.of(d.source, [a for a in _axes(column) if a not in (*d.axes, *fast)])
    best, least = None, math.inf
    for axes, a, n, length in _chunks(d):
        if length * d.numel(fast) < SHORTEST or facts is None:
            continue
        last = n if a == d.axes[-1] else d.sizes[d.axes[-1]]
        k = together if last % together == 0 else 1
        cut, each = (a, n) if n < d.sizes[a] else (None, 0)
        held = held_of(inputs, d.total, length * d.numel(fast), made.sums)
        for rows_at_a_time in ROWS_AT_A_TIME:
            rows = Rows(axes, fast, cut, each, k, rows_at_a_time, is_held=True)
            walk = _Parts(d, rows, length, held, facts)
            cost = walk.cost(made, nbytes, target)
            if cost >= 2.0 * nbytes:
                continue
            cost += walk.launches(made, target) * _nbytes_of_launch(target)
            if cost < least:
                best, least = rows, cost
    return best


@dataclass(frozen=True, slots=True)
class _Parts:
    """A walk over rows of `length` elements beside their fast axes, and the facts of what is walked
    over."""

    directions: Directions
    rows: Rows
    length: int
    held: RowRegisters
    facts: PartitionFacts

    def cost(self, made: Results, nbytes: int, target: Target) -> float:
        """Bytes that memory moves in the time of a walk and of a kernel that combines what it
        leaves; infinite where no block holds the rows, or one has too few of them."""
        d, rows, length, fast = self.directions, self.rows, self.length, self._fast
        parts, at_once = self._count(made, target)
        if not parts:
            return math.inf
        several = d.total // self.facts.size // (length * fast)
        item = d.source.dtype.compute.nbytes
        columns = made.left * parts * several * length * (1 if d.is_across(rows) else fast)
        left = made.rows * d.total // (length // rows.together) if d.leaves_rows(rows) else 0
        stored = STORED_TRIPS * item * (left + (0 if self._is_whole(parts) else columns))
        rounds = several * parts / at_once
        idle = 1 / rounds if rounds < 1 else 1 + (math.ceil(rounds) - rounds) / rounds**2
        return (nbytes * self._borders() + stored) * idle

    def launches(self, made: Results, target: Target) -> int:
        """Kernels that combine what the walk leaves: of rows, and of columns."""
        parts, _ = self._count(made, target)
        return self.directions.leaves_rows(self.rows) + (not self._is_whole(parts))

    def _is_whole(self, parts: int) -> bool:
        """Whether one of so many parts has whole columns."""
        d = self.directions
        return parts == 1 and (not d.fast or d.is_across(self.rows))

    @property
    def _fast(self) -> int:
        return self.directions.numel(self.directions.fast)

    def _count(self, made: Results, target: Target) -> tuple[int, int]:
        """The parts of the walked axes, 0 where there are none, and the blocks that run at once."""
        rows, length = self.rows, self.length * self._fast
        together = rows.together * self._fast
        if self.facts.size < LEAST_ROWS_OF_BLOCK * rows.at_a_time:
            return 0, 0
        at_once = self.held.blocks(length, together, rows.at_a_time) * target.multiprocessors
        cut = beside_rows(
            self.facts,
            self.held,
            length,
            target,
            fast=together,
            at_a_time=rows.at_a_time,
            may_be_whole=True,
        )
        if not at_once or cut is None:
            return 0, 0
        least = 1 if made.most_rows is None else -(-self.facts.size // made.most_rows)
        return max(cut.count, least), at_once

    def _borders(self) -> float:
        """Bytes that memory moves over those of the rows: it moves pairs of sectors, and a pair at
        the border of two chunks is read by the blocks of both."""
        pair, d = 2 * SECTOR_NBYTES, self.directions
        run = self.length * self._fast * self.facts.nbytes
        row = d.numel(d.axes) * self._fast * self.facts.nbytes
        return 1.0 if self.rows.cut is None else 1 + (pair - math.gcd(run, row, pair)) / run


def _nbytes_of_launch(target: Target) -> float:
    """What memory moves in the time that one more launch takes, until its first bytes are there."""
    known = target.calibration
    us = known.launch_us + known.start_us + known.memory_latency_us
    return us * target.memory_nbytes_per_us * known.read_share


def _numel(t: Tensor) -> int:
    return math.prod(constant_shape(t) or (0,))


def _axes(t: Tensor) -> tuple[int, ...]:
    assert isinstance(t.op, Reduce)
    return t.op.axes
