"""The vectors that cover the lanes of an access: how wide, where they begin, which lanes exist.

The one place that chooses. It sees an address and conditions, in which skews, sizes and offsets of
rows have become terms, and what is known of the buffer:

    x[4*t + v] where 4*t + v < 10       v < 4   ->   if (4*t < 7) whole else by halves
    a read of which others hold anything        ->   lanes 0..10 - 4*t where 4*t < 10
    such a read of lanes that are no one range  ->   those that the buffer has, where any is needed
    a tile that rows of whole vectors fill      ->   whole: what is beyond the row has a place
    x[9*i + v], neighbours that begin anywhere  ->   cut out of two words
    x[8*i + 7 - v], lanes in another order      ->   taken out of the words that they lie in
    x[9*((8*i + v)//5) + (8*i + v)%5]           ->   the end of one row and the begin of the next
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fusewright.axes.contiguity import (
    Fit,
    LaneRange,
    Order,
    fit_of,
    holds_throughout,
    is_met_at_an_end,
    lanes_where,
    order_of,
    row_side,
    vector_width,
)
from fusewright.axes.pieces import Pieces, pieces_of, run_of
from fusewright.core.atoms import maximum, minimum
from fusewright.core.conditions import (
    TRUE,
    Cond,
    Less,
    all_of,
    any_of,
    less,
    less_equal,
    substitute_condition,
)
from fusewright.core.expr import ZERO, Expr, Int, Var, constant_value, variables
from fusewright.core.substitution import substitute
from fusewright.kir.ir import WHOLE, Buffer, If, Lanes, Statement
from fusewright.memory import Memory
from fusewright.target import MAX_VECTOR_NBYTES, WORD_NBYTES


@dataclass(frozen=True, slots=True)
class LaneAccess:
    """What is known of the access of `count` lanes: its address `index` in `buffer`, and the
    `conditions` under which an element exists, as functions of `lane`.

    Where it `may_lack`, a lane that does not exist may hold anything. It `may_begin_anywhere` where
    it reads global memory and its schedule asks for that. The buffer `is_padded` where its rows
    are whole vectors, whatever the number of elements in them.
    """

    buffer: Buffer
    index: Expr
    lane: Var | None
    count: int
    conditions: Sequence[Cond]
    may_lack: bool = False
    may_begin_anywhere: bool = False
    is_padded: bool = False

    def conditions_at(self, lane: int) -> Cond:
        """When an element of one lane exists."""
        return all_of(condition_at(c, self.lane, lane) for c in self.conditions)


@dataclass(frozen=True, slots=True)
class Vector:
    """One access to `width` lanes from `first` on, which takes place where `predicate` holds.
    Elsewhere its `parts` do, if it has any."""

    first: int
    width: int
    predicate: Cond
    lanes: Lanes = WHOLE
    parts: tuple[Vector, ...] = ()

    def statement(self, make: Callable[[int, int, Cond, Lanes], Statement]) -> Statement:
        """The access, of statements that `make(first lane, width, predicate, lanes)` makes."""
        if not self.parts:
            return make(self.first, self.width, self.predicate, self.lanes)
        return If(
            self.predicate,
            (make(self.first, self.width, TRUE, self.lanes),),
            tuple(p.statement(make) for p in self.parts),
        )


@dataclass(frozen=True, slots=True)
class VectorRun:
    """A vector of a row, and where in its buffer it would begin if all its lanes were there."""

    begin: Expr
    vector: Vector


@dataclass(frozen=True, slots=True)
class TooNarrow:
    """An access that allows `possible` lanes at once where its words hold `width`."""

    possible: int
    width: int


def condition_at(c: Cond, lane: Var | None, k: int) -> Cond:
    """A condition on lane `k`."""
    return c if lane is None else substitute_condition(c, {lane: k})


def somewhere(conditions: Sequence[Cond], lane: Var, lanes: Sequence[int]) -> Cond:
    """Whether there is one of some lanes, in rising order, where all conditions hold."""
    moving = [c for c in conditions if lane in variables(c)]
    fixed = [c for c in conditions if c not in moving]
    is_run = lanes[-1] - lanes[0] == len(lanes) - 1
    if is_run and is_met_at_an_end(moving, lane, len(lanes)):
        ends = (all_of(condition_at(c, lane, k) for c in moving) for k in (lanes[0], lanes[-1]))
        return all_of((*fixed, any_of(ends)))
    bounds = _bounds(moving, lane) if is_run else None
    if bounds is None:
        each = (all_of(condition_at(c, lane, k) for c in moving) for k in lanes)
        return all_of((*fixed, any_of(each)))
    below, above = bounds
    meet = [less_equal(low, high) for low in below for high in above]
    first = [less_equal(low, lanes[-1]) for low in below]
    last = [less_equal(lanes[0], high) for high in above]
    return all_of((*fixed, *first, *last, *meet))


def _bounds(conditions: Sequence[Cond], lane: Var) -> tuple[list[Expr], list[Expr]] | None:
    """Conditions on a lane as the first lanes and the last lanes that they allow; None where one of
    them is not of that kind. Ranges of integers have a lane in common where every first one is at
    most every last one."""
    below: list[Expr] = []
    above: list[Expr] = []
    for c in conditions:
        if not isinstance(c, Less):
            return None
        gap = c.left - c.right
        if lane not in variables(gap - lane):
            above.append(lane - gap - 1)
        elif lane not in variables(gap + lane):
            below.append(gap + lane + 1)
        else:
            return None
    return below, above


def choose_lanes(a: LaneAccess) -> tuple[Vector, ...] | TooNarrow:
    """The vectors that cover the lanes of an access, at most 16 bytes each."""
    if a.count == 1 or a.lane is None:
        return (_shared_or_guarded(a, 0, 1),)
    itemsize, alignment = a.buffer.dtype.nbytes, a.buffer.alignment
    width = min(a.count, MAX_VECTOR_NBYTES // itemsize)
    fit = fit_of(a.index, a.lane, width, itemsize, alignment)
    if alignment % (width * itemsize) and a.may_begin_anywhere and fit is Fit.CUT:
        anywhere = Lanes(begins=None)
        return tuple(_ragged(a, k, width, anywhere) for k in range(0, a.count, width))
    width = min(width, alignment // itemsize or 1)
    firsts = range(0, a.count, width)
    if vector_width(a.index, a.lane, a.conditions, width) == width:
        return tuple(_shared_or_guarded(a, k, width) for k in firsts)
    match fit_of(a.index, a.lane, width, itemsize, alignment):
        case Fit.WORDS:
            return tuple(_ragged(a, k, width, WHOLE) for k in firsts)
        case Fit.CUT if a.may_begin_anywhere:
            return tuple(_ragged(a, k, width, Lanes(begins=None)) for k in firsts)
        case _:
            return TooNarrow(vector_width(a.index, a.lane, (), width), width)


def order_of_lanes(a: LaneAccess) -> Order | None:
    """How the lanes of a read that may begin anywhere are taken out of words; None where they are
    whole words or neighbours, or would be taken out of too many."""
    if a.lane is None or a.count == 1 or not a.may_begin_anywhere:
        return None
    itemsize = a.buffer.dtype.nbytes
    if fit_of(a.index, a.lane, a.count, itemsize, a.buffer.alignment) is not Fit.TAKEN:
        return None
    width, least = min(a.count, MAX_VECTOR_NBYTES // itemsize), max(1, WORD_NBYTES // itemsize)
    return order_of(a.index, a.lane, a.count, width, least)


def choose_words(a: LaneAccess, order: Order) -> tuple[Vector, ...]:
    """The words that the lanes of a read are taken out of, each read where one of its lanes exists.
    What is in front of the first lane and behind the last one may lie outside of the buffer. Where
    the buffer begins inside of a word they are cut out of words anyway, from the first lane on."""
    assert a.lane is not None
    itemsize, alignment, width = a.buffer.dtype.nbytes, a.buffer.alignment, order.width
    is_word = order.is_aligned and alignment % (width * itemsize) == 0
    moving = any(a.lane in variables(c) for c in a.conditions)
    found: list[Vector] = []
    for first in range(0 if is_word else min(order.places), order.span, width):
        own = [k for k, at in enumerate(order.places) if first <= at < first + width]
        if not own:
            continue
        exist = somewhere(a.conditions, a.lane, own)
        begin = order.begin + first
        is_inside = not moving and min(order.places) <= first and first + width <= order.span
        begins = 0 if is_word else None
        low, high = maximum(ZERO, -begin), minimum(Int(width), a.buffer.size - begin)
        lanes = Lanes(begins) if is_inside else Lanes(begins, low, high)
        found.append(Vector(first, width, exist, lanes.everywhere(width)))
    return tuple(found)


def pieces_of_lanes(a: LaneAccess) -> Pieces | None:
    """The end of a row and the begin of another that the lanes of a read are; None for others."""
    if a.lane is None or a.count == 1 or not a.may_begin_anywhere:
        return None
    itemsize = a.buffer.dtype.nbytes
    if fit_of(a.index, a.lane, a.count, itemsize, a.buffer.alignment) is not Fit.PIECES:
        return None
    return pieces_of(a.index, a.lane, a.count)


def choose_runs(
    a: LaneAccess, pieces: Pieces, first: int, width: int
) -> tuple[VectorRun, VectorRun]:
    """How the lanes `first .. first + width` are read as if all were in the row of the first lane,
    and in that of the last one: each where one of its lanes exists. What such a run would have
    beyond its row may lie outside of the buffer."""
    assert a.lane is not None
    moving = any(a.lane in variables(c) for c in a.conditions)
    before = pieces.cut - first if pieces.step >= 0 else first + width - pieces.cut
    bounds = ((ZERO, before), (before, Int(width)))
    own = (less(a.lane, pieces.cut), less_equal(pieces.cut, a.lane))
    found: list[VectorRun] = []
    for k, is_last in enumerate((False, True)):
        begin = run_of(pieces, first, width, a.count, is_last=is_last)
        low, high = bounds[k if pieces.step >= 0 else 1 - k]
        if moving:
            low, high = maximum(low, -begin), minimum(high, a.buffer.size - begin)
        some = somewhere((*a.conditions, own[k]), a.lane, range(first, first + width))
        lanes = Lanes(None, low, high)
        found.append(
            VectorRun(
                begin, Vector(first, width, some, lanes) if pieces.step else Vector(first, 1, some)
            )
        )
    return found[0], found[1]


def _shared_or_guarded(a: LaneAccess, first: int, width: int) -> Vector:
    """A vector of which all lanes exist, or none. What is missing in shared memory may be read all
    the same, where it stands: then no branch keeps loads apart."""
    exist = a.conditions_at(first)
    may_read = a.may_lack and a.buffer.memory is Memory.SHARED and exist != TRUE
    return Vector(first, width, exist, Lanes(first=ZERO, stop=Int(width)) if may_read else WHOLE)


def _ragged(a: LaneAccess, first: int, width: int, lanes: Lanes) -> Vector:
    """A vector of which some lanes may exist and others not."""
    assert a.lane is not None
    within = Var("lane_within", 0, width - 1)
    here = [substitute_condition(c, {a.lane: first + within}) for c in a.conditions]
    whole = all_of(holds_throughout(c, within) for c in here)
    common = all_of(c for c in here if within not in variables(c))
    if whole == common or (a.is_padded and a.buffer.memory is Memory.SHARED):
        return Vector(first, width, common, lanes)
    if a.may_lack and a.buffer.memory is Memory.GLOBAL:
        found = lanes_where(here, within) or _all_in_memory(a, first, here, within)
        return Vector(first, width, found.some, Lanes(lanes.begins, found.first, found.stop))
    return Vector(first, width, whole, lanes, tuple(_parts(a, first, width, lanes)))


def _all_in_memory(a: LaneAccess, first: int, conditions: Sequence[Cond], lane: Var) -> LaneRange:
    """The lanes of a vector that its buffer has, where conditions hold for any of them; those of
    rows apart, as all of them for one lane are many comparisons, and what is read in vain is near
    the end of the buffer."""
    assert a.lane is not None and lane.upper is not None
    begin, end = substitute(a.index, {a.lane: first}), lane.upper + 1
    width = constant_value(end)
    assert width is not None
    rows = [c for c in conditions if row_side(c, lane, width) is not None]
    others = [c for c in conditions if c not in rows]
    some = [somewhere(part, lane, range(width)) for part in (rows, others)]
    return LaneRange(maximum(ZERO, -begin), minimum(end, a.buffer.size - begin), all_of(some))


def _parts(a: LaneAccess, first: int, width: int, lanes: Lanes) -> Iterator[Vector]:
    """What is accessed of a vector that is not whole: halves of 8 bytes and many lanes, and of what
    is no whole half each lane. More steps would keep more conditions in registers."""
    is_word = width > 4 and width * a.buffer.dtype.nbytes == MAX_VECTOR_NBYTES
    part = width // 2 if is_word and lanes == WHOLE else 1
    for k in range(first, first + width, part):
        yield _ragged(a, k, part, lanes) if part > 1 else Vector(k, 1, a.conditions_at(k))
