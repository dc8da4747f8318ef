"""How neighbouring lanes of an access form vectors: how wide, where in a word, which exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from fusewright.axes.pieces import pieces_of
from fusewright.core.atoms import maximum, minimum
from fusewright.core.conditions import (
    And,
    Cond,
    Equal,
    Less,
    Not,
    Or,
    Truth,
    all_of,
    less,
    substitute_condition,
)
from fusewright.core.expr import (
    KEPT,
    ZERO,
    Expr,
    Mod,
    Var,
    as_expr,
    constant_value,
    is_multiple,
    mod,
    parts_of,
    variables,
)
from fusewright.core.substitution import substitute
from fusewright.target import MAX_VECTOR_NBYTES, WORD_NBYTES


def vector_width(address: Expr, lane: Var, predicates: Sequence[Cond], max_width: int) -> int:
    """The largest power of two `w <= max_width`, in elements, such that every aligned group of `w`
    values of `lane` touches `w` consecutive, `w`-aligned addresses and shares every predicate.

    Rule: `address = lane + (terms divisible by w)`, and each predicate is constant on a group.
    `lane` counts from 0 and its extent must be a multiple of the width.
    """
    width = 1
    while 2 * width <= max_width:
        width *= 2
    while width > 1 and not _fits(address, lane, predicates, width):
        width //= 2
    return width


@lru_cache(KEPT)
def _lanes_of(count: Expr, width: int) -> tuple[Var, Var]:
    """Which group of lanes, and which lane of that: one pair of variables for each count and width,
    so that what the arithmetic keeps of one access serves others."""
    return Var("lane_group", 0, count // width - 1), Var("lane_within", 0, width - 1)


def _fits(address: Expr, lane: Var, predicates: Sequence[Cond], width: int) -> bool:
    if constant_value(lane.lower) != 0 or lane.upper is None:
        return False
    if not is_multiple(lane.upper + 1, width):
        return False
    group, within = _lanes_of(lane.upper + 1, width)
    values = {lane: as_expr(width * group + within)}
    rest = substitute(address, values) - within
    if within in variables(rest) or not _divides(width, rest):
        return False
    return all(_is_constant(substitute_condition(p, values), within, width) for p in predicates)


class Fit(Enum):
    """How the lanes of an access lie in memory, and so how they are read.

    WORDS: they are whole words. CUT: neighbours that begin anywhere; they are cut out of two words.
    TAKEN: they lie in a few words, in another order; each is taken out of its word. PIECES: the end
    of one row and the begin of another; both are read and put together. NARROW: none of these; each
    lane is read alone.
    """

    WORDS = "words"
    CUT = "cut"
    TAKEN = "taken"
    PIECES = "pieces"
    NARROW = "narrow"


def fit_of(address: Expr, lane: Var, width: int, itemsize: int, alignment: int) -> Fit:
    """How groups of `width` lanes lie, of elements of `itemsize` bytes in memory that begins at a
    multiple of `alignment` bytes; wider groups than 16 bytes are several words. Memory that begins
    inside of a word is cut out of two as well, unless it begins at its middle: halves of words are
    as good then. Lanes that fill no words, as three do, are read alone. Elements that fill
    registers are not put together: one by one they take fewer instructions."""
    lanes, width = width, min(width, MAX_VECTOR_NBYTES // itemsize)
    if lanes % width or width & (width - 1):
        return Fit.NARROW
    nbytes = width * itemsize
    begins_anywhere = alignment % nbytes != 0
    if not begins_anywhere and vector_width(address, lane, (), width) == width:
        return Fit.WORDS
    is_half = begins_anywhere and 2 * alignment >= nbytes
    if nbytes % WORD_NBYTES or is_half:
        return Fit.NARROW
    if lane not in variables(address - lane):
        return Fit.CUT
    if lane in variables(address) and order_of(address, lane, lanes, width) is not None:
        return Fit.TAKEN
    found = pieces_of(address, lane, lanes)
    is_whole = itemsize >= WORD_NBYTES and found is not None and found.step != 0
    return Fit.NARROW if found is None or is_whole else Fit.PIECES


@dataclass(frozen=True, slots=True)
class Order:
    """Lanes that are elements of a few words of `width` elements: lane `k` is element `places[k]`
    of what lies at `begin`, which is the begin of a word where it `is_aligned`."""

    begin: Expr
    places: tuple[int, ...]
    is_aligned: bool
    width: int

    @property
    def span(self) -> int:
        """Elements from `begin` to the last one that is taken."""
        return max(self.places) + 1


def order_of(address: Expr, lane: Var, count: int, width: int, least: int = 1) -> Order | None:
    """How `count` lanes are taken out of words of `width` elements: by a half as many words as
    there are lanes at most. Of one word, of no more than half of it where all lanes are there, of
    `least` elements or more. None where lanes are no known distances apart, or further.

    n - 1 - lane                  ->  at n - 4, places 3, 2, 1, 0
    8*i + (lane + 3) % 4          ->  at 8*i, places 3, 0, 1, 2
    2*(4*i + lane) + 1            ->  at 8*i, places 1, 3, 5, 7
    4*i + lane // 2, of 8 lanes   ->  at 4*i, places 0, 0, 1, 1, 2, 2, 3, 3: words of 4 are enough
    """
    first = substitute(address, {lane: 0})
    most = max(count // 2, 1) * width
    offsets: list[int] = []
    for k in range(count):
        offset = constant_value(substitute(address, {lane: k}) - first)
        if offset is None or abs(offset) >= most:
            return None
        offsets.append(offset)
    begin, spread = first + min(offsets), max(offsets) - min(offsets) + 1
    shorter = 1 << (max(spread, least) - 1).bit_length()
    if shorter < width and constant_value(mod(begin, shorter)) == 0:
        width = shorter
    early = constant_value(mod(begin, width))
    shift = 0 if early is None else early
    places = tuple(o - min(offsets) + shift for o in offsets)
    return None if max(places) >= most else Order(begin - shift, places, early is not None, width)


def _divides(width: int, e: Expr) -> bool:
    """Whether a width divides every value: by what is known of its terms, or with remainders that
    cancel, as in `9*r - r % 8`."""
    return is_multiple(e, width) or mod(e, width) == ZERO


def _is_constant(c: Cond, within: Var, width: int) -> bool:
    """Whether a condition has one value for all `0 <= within < width`."""
    if within not in variables(c):
        return True
    match c:
        case Truth():
            return True
        case Less():
            return _is_constant_less(c.left - c.right, within, width)
        case And() | Or():
            return all(_is_constant(p, within, width) for p in c.parts)
        case Not():
            return _is_constant(c.part, within, width)
        case Equal():
            return False
        case _:
            raise TypeError(f"not a condition: {type(c).__name__}")


def _is_constant_less(gap: Expr, within: Var, width: int) -> bool:
    """Whether `gap < 0` is constant, for `gap = M + k + within` or `M + k - within` where `width`
    divides M: the smallest M that fails must be the same at both ends of the group."""
    for sign in (1, -1):
        rest = gap - sign * within
        if within in variables(rest):
            continue
        k = next(k for k in range(width) if _divides(width, rest - k) or k == width - 1)
        if not _divides(width, rest - k):
            return False
        first = -(k // width)
        last = -((k + sign * (width - 1)) // width)
        return first == last
    return False


@dataclass(frozen=True, slots=True)
class RowSide:
    """A condition on the place that a lane has in its row, of rows of `size` places of which each
    lane has the next one: it holds from a place on, or in front of a place, `bound`."""

    rest: Mod
    size: int
    bound: int
    is_from: bool

    @property
    def is_always(self) -> bool:
        """Whether it holds for all of a row."""
        return self.bound <= 0 if self.is_from else self.bound >= self.size


def row_side(c: Cond, lane: Var, count: int) -> RowSide | None:
    """What a condition asks of the places of `count` lanes, which are in two rows at most; None for
    conditions of another kind."""
    if not isinstance(c, Less):
        return None
    gap = c.left - c.right
    constant, terms = parts_of(gap)
    if len(terms) != 1 or abs(terms[0].coefficient) != 1 or len(terms[0].atoms) != 1:
        return None
    (rest,) = terms[0].atoms
    size = constant_value(rest.denominator) if isinstance(rest, Mod) else None
    if not isinstance(rest, Mod) or size is None or size < count:
        return None
    if lane in variables(rest.numerator - lane):
        return None
    is_from = terms[0].coefficient < 0
    return RowSide(rest, size, constant + 1 if is_from else -constant, is_from)


def is_met_at_an_end(conditions: Sequence[Cond], lane: Var, count: int) -> bool:
    """Whether conditions that hold for one of `count` lanes hold for the first or for the last one:
    they ask for a run of places in each row, and the run is too long to lie between the two."""
    sides = [row_side(c, lane, count) for c in conditions]
    known = [s for s in sides if s is not None]
    if not known or len(known) < len(sides) or len({s.rest for s in known}) > 1:
        return False
    low = max((s.bound for s in known if s.is_from), default=0)
    high = min((s.bound for s in known if not s.is_from), default=known[0].size)
    return min(high, known[0].size) - max(low, 0) >= count - 1


def holds_throughout(c: Cond, lane: Var) -> Cond:
    """A condition under which `c` holds for every value of `lane`, and without which it fails for
    one of them. Of the places of rows one end tells: where a row ends between the lanes, places
    begin anew."""
    if lane not in variables(c) or lane.upper is None:
        return c
    low, high = (substitute_condition(c, {lane: end}) for end in (lane.lower, lane.upper))
    count = constant_value(lane.upper - lane.lower + 1)
    side = None if count is None else row_side(c, lane, count)
    if side is not None and count is not None:
        end = high if side.is_from else low
        if side.is_always or not isinstance(end, Less):
            return low
        return less(end.left + (count - 1), end.right)
    if isinstance(c, Less):
        gap = c.left - c.right
        for coefficient in (1, -1):
            if lane not in variables(gap - coefficient * lane):
                return high if coefficient == 1 else low
    lanes = constant_value(lane.upper)
    assert lanes is not None
    return all_of(substitute_condition(c, {lane: k}) for k in range(lanes + 1))


@dataclass(frozen=True, slots=True)
class LaneRange:
    """The lanes `first .. stop` for which conditions hold, and when there are `some`."""

    first: Expr
    stop: Expr
    some: Cond


def lanes_where(conditions: Sequence[Cond], lane: Var) -> LaneRange | None:
    """The range of lanes where all conditions hold; None when that is not one range."""
    assert lane.upper is not None
    first, stop = ZERO, lane.upper + 1
    some: list[Cond] = []
    for c in conditions:
        if lane not in variables(c):
            some.append(c)
            continue
        if not isinstance(c, Less):
            return None
        gap = c.left - c.right
        if lane not in variables(gap - lane):
            stop = lane - gap if stop == lane.upper + 1 else minimum(stop, lane - gap)
            some.append(substitute_condition(c, {lane: lane.lower}))
        elif lane not in variables(gap + lane):
            first = gap + lane + 1 if first == ZERO else maximum(first, gap + lane + 1)
            some.append(substitute_condition(c, {lane: lane.upper}))
        else:
            return None
    return LaneRange(first, stop, all_of(some))
