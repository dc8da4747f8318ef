"""Which vectors cover the lanes of an access: exactly the elements that exist, whoever asks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fusewright.axes.contiguity import holds_throughout
from fusewright.core.conditions import TRUE, Cond, equal, less, less_equal, substitute_condition
from fusewright.core.expr import Expr, Int, Var, constant_value, mod
from fusewright.core.substitution import substitute
from fusewright.dtypes import DType, bfloat16, float32
from fusewright.kir.choose_lanes import (
    LaneAccess,
    TooNarrow,
    Vector,
    choose_lanes,
    choose_words,
    order_of_lanes,
    somewhere,
)
from fusewright.kir.ir import WHOLE, Buffer, If, Lanes, Load, Reg, Statement
from fusewright.memory import Memory

SIZE = 128
T, V = Var("t", 0, 15), Var("v", 0, 7)
ROW = less(8 * T + V, 103)
"""Vector 12 of a row of 103 elements lacks one, 13 to 15 have none."""


def access(
    index: Expr,
    *conditions: Cond,
    memory: Memory = Memory.GLOBAL,
    dtype: DType = bfloat16,
    alignment: int = 16,
    **more: bool,
) -> LaneAccess:
    buffer = Buffer("x", dtype, Int(SIZE), memory, alignment)
    return LaneAccess(buffer, index, V, 8, conditions, **more)


def vectors(a: LaneAccess) -> tuple[Vector, ...]:
    found = choose_lanes(a)
    assert not isinstance(found, TooNarrow)
    return found


def holds(c: Cond, t: int) -> bool:
    at = substitute_condition(c, {T: t})
    assert at == TRUE or str(at) == "false", at
    return at == TRUE


def value(e: Expr, t: int) -> int:
    found = constant_value(substitute(e, {T: t}))
    assert found is not None
    return found


def touched(found: tuple[Vector, ...], t: int) -> list[int]:
    """The lanes that thread `t` accesses, of those that are said to exist."""
    out: list[int] = []
    for x in found:
        if holds(x.predicate, t):
            low = 0 if x.lanes.first is None else value(x.lanes.first, t)
            high = x.width if x.lanes.stop is None else value(x.lanes.stop, t)
            out += range(x.first + max(low, 0), x.first + min(high, x.width))
        else:
            out += touched(x.parts, t)
    return out


def widths(x: Vector) -> list[int]:
    """Of the vector and of all its parts, as their text stands."""
    return [x.width, *(w for p in x.parts for w in widths(p))]


EVEN = 8 * T + V
ACCESSES = {
    "whole": access(EVEN),
    "all or none": access(EVEN, less(T, 9)),
    "in shared memory": access(EVEN, less(T, 9), memory=Memory.SHARED, may_lack=True),
    "by halves at the end": access(EVEN, ROW),
    "some of them": access(EVEN, ROW, may_lack=True),
    "a first row too": access(EVEN, ROW, less_equal(3, EVEN), less(T, 15), may_lack=True),
    "no range": access(EVEN, equal(V, T), may_lack=True),
    "no range, over both ends": access(
        9 * T + V - 4, less(mod(V + T, 5), 3), may_begin_anywhere=True, may_lack=True
    ),
    "no range, exactly": access(EVEN, equal(V, T)),
    "anywhere": access(9 * T + V, ROW, may_begin_anywhere=True, may_lack=True),
    "anywhere, one by one": access(9 * T + V, ROW, may_begin_anywhere=True),
    "two words": access(EVEN, ROW, dtype=float32, may_lack=True),
    "two words, by halves": access(EVEN, ROW, dtype=float32),
}

NO_RANGE = ("no range", "no range, over both ends")
"""Reads of lanes apart, which take those between them along, as far as the buffer goes."""


@pytest.mark.parametrize("name", ACCESSES)
def test_exactly_the_lanes_that_exist_are_accessed(name: str) -> None:
    a = ACCESSES[name]
    found = vectors(a)
    for t in range(16):
        exist = [k for k in range(8) if holds(a.conditions_at(k), t)]
        if exist and name in NO_RANGE:
            begin = constant_value(substitute(a.index, {T: t, V: 0}))
            exist = [k for k in range(8) if begin is not None and 0 <= begin + k < SIZE]
        assert touched(found, t) == exist, (name, t, found)


def test_each_way_is_chosen_where_it_is_allowed() -> None:
    assert vectors(ACCESSES["whole"]) == (Vector(0, 8, TRUE),)
    assert vectors(ACCESSES["all or none"]) == (Vector(0, 8, less(T, 9)),)
    (shared,) = vectors(ACCESSES["in shared memory"])
    assert shared.lanes == Lanes(first=Int(0), stop=Int(8)), "read where it stands"
    # Of rows of 103 elements the last vector has seven: a half, and three.
    (stored,) = vectors(ACCESSES["by halves at the end"])
    assert stored.lanes == WHOLE and widths(stored) == [8, 4, 4, 1, 1, 1, 1]
    (some,) = vectors(ACCESSES["some of them"])
    assert not some.lanes.all_exist and some.parts == () and not some.lanes.is_cut
    (apart,) = vectors(ACCESSES["no range"])
    assert not apart.lanes.all_exist and apart.parts == ()
    (none,) = vectors(ACCESSES["no range, exactly"])
    assert none.lanes == WHOLE and [p.width for p in none.parts] == [4, 4]
    (alone,) = vectors(ACCESSES["anywhere, one by one"])
    assert alone.lanes.begins is None and [p.width for p in alone.parts] == [1] * 8
    (cut,) = vectors(ACCESSES["anywhere"])
    assert cut.lanes.begins is None and not cut.lanes.all_exist
    assert [x.first for x in vectors(ACCESSES["two words"])] == [0, 4]


def test_rows_of_whole_vectors_have_room_for_lanes_that_do_not_exist() -> None:
    def tile(*, is_padded: bool) -> Vector:
        (found,) = vectors(access(EVEN, ROW, memory=Memory.SHARED, is_padded=is_padded))
        return found

    assert tile(is_padded=True) == Vector(0, 8, TRUE)
    assert len(tile(is_padded=False).parts) == 2
    (elsewhere,) = vectors(access(EVEN, ROW, is_padded=True))
    assert elsewhere.parts, "there is none beyond a row of global memory"


@pytest.mark.parametrize(
    ("a", "possible", "width"),
    [
        (access(9 * T + V), 1, 8),
        (access(4 * T + V), 4, 8),
        (access(9 * T + V, dtype=float32), 1, 4),
        (access(2 * EVEN, may_begin_anywhere=True), 1, 8),
    ],
)
def test_what_an_address_does_not_allow_is_refused(
    a: LaneAccess, possible: int, width: int
) -> None:
    assert choose_lanes(a) == TooNarrow(possible, width)


WORDS = {
    "mirrored": access(8 * T + 7 - V, may_begin_anywhere=True),
    "mirrored, all or none": access(8 * T + 7 - V, less(T, 9), may_begin_anywhere=True),
    "mirrored, anywhere": access(7 * T + 7 - V, may_begin_anywhere=True),
    "every second": access(2 * EVEN % 128, may_begin_anywhere=True),
    "every second from the second": access(2 * (EVEN % 56) + 1, may_begin_anywhere=True),
    "mirrored, some of them": access(127 - EVEN, ROW, may_begin_anywhere=True),
    "beyond the end": access(16 * T + 2 * V, less(8 * T + V, 64), may_begin_anywhere=True),
    "before the start": access(31 - EVEN, less(EVEN, 32), may_begin_anywhere=True),
}


@pytest.mark.parametrize("name", WORDS)
def test_words_hold_every_lane_that_exists_and_nothing_outside_of_the_buffer(name: str) -> None:
    a = WORDS[name]
    order = order_of_lanes(a)
    assert order is not None
    words = choose_words(a, order)
    for t in range(16):
        read = touched(words, t)
        begin = value(order.begin, t)
        assert all(0 <= begin + k < SIZE for k in read)
        for k, place in enumerate(order.places):
            if holds(a.conditions_at(k), t):
                assert place in read and begin + place == value(substitute(a.index, {V: k}), t)
    assert all(x.width == 8 and not x.parts for x in words) and len(words) <= 3


@pytest.mark.parametrize(
    "a",
    [
        access(EVEN, may_begin_anywhere=True),
        access(9 * T + V, may_begin_anywhere=True),
        access(8 * T + 7 - V),
        access(5 * V, may_begin_anywhere=True),
    ],
    ids=["words", "neighbours", "a schedule that asks for words", "too far apart"],
)
def test_other_accesses_take_nothing_out_of_words(a: LaneAccess) -> None:
    assert order_of_lanes(a) is None


def test_a_buffer_is_accessed_as_widely_as_it_is_aligned() -> None:
    found = vectors(access(EVEN, alignment=4))
    assert [(x.first, x.width) for x in found] == [(0, 2), (2, 2), (4, 2), (6, 2)]
    assert len(vectors(access(EVEN, alignment=2))) == 8


def test_statements_stand_one_by_one_only_where_they_must() -> None:
    def make(first: int, width: int, predicate: Cond, lanes: Lanes) -> Statement:
        a = access(EVEN)
        r = Buffer("r", bfloat16, Int(8), Memory.LOCAL)
        return Load(Reg(r, Int(first)), a.buffer, EVEN, width, predicate, lanes=lanes)

    assert isinstance(vectors(ACCESSES["some of them"])[0].statement(make), Load)
    branch = vectors(ACCESSES["by halves at the end"])[0].statement(make)
    assert isinstance(branch, If) and len(branch.then) == 1 and len(branch.otherwise) == 2


SEVERAL = [
    (ROW,),
    (ROW, less(T, 9)),
    (ROW, less(3, EVEN)),
    (less(3, 30 - EVEN), less(V + T, 7)),
    (less(T, V), less(V, T + 3)),
    (less(T, V), less(V, 9 - T)),
    (ROW, less(2 * V, T)),
]


@pytest.mark.parametrize("lanes", [range(8), (2, 3, 4), (0, 2, 4), (5,)])
@pytest.mark.parametrize("conditions", SEVERAL)
def test_somewhere_holds_where_a_lane_exists(
    conditions: tuple[Cond, ...], lanes: Sequence[int]
) -> None:
    some = somewhere(conditions, V, lanes)
    a = access(EVEN, *conditions)
    for t in range(16):
        assert holds(some, t) == any(holds(a.conditions_at(k), t) for k in lanes), t


def test_ranges_of_lanes_are_asked_for_at_their_ends() -> None:
    """A row that begins and ends anywhere takes two comparisons, not two for each lane."""
    some = somewhere((less(-1, EVEN - 30), less(EVEN - 30, 40)), V, range(8))
    assert str(some).count("<") == 2


def test_lanes_of_a_buffer_that_begins_inside_of_a_word_are_one_vector_from_the_first_on() -> None:
    for alignment, count in ((16, 2), (2, 1)):
        a = access(8 * T - V + 9, alignment=alignment, may_begin_anywhere=True)
        order = order_of_lanes(a)
        assert order is not None and order.places == (9, 8, 7, 6, 5, 4, 3, 2)
        words = choose_words(a, order)
        assert [w.first for w in words] == ([0, 8] if count == 2 else [2])


@pytest.mark.parametrize("size", [8, 9, 13, 40])
def test_the_ends_of_lanes_tell_of_places_in_rows(size: int) -> None:
    """Conditions on the place of a lane in its row, at every place that a vector may begin at."""
    start, lane = Var("s", 0, 3 * size), Var("v", 0, 7)
    place = mod(start + lane, size)
    for bound in range(-1, size + 2):
        sides = less(place, bound), less_equal(bound, place)
        for c in sides:
            each = [substitute_condition(c, {lane: k}) for k in range(8)]
            throughout = holds_throughout(c, lane)
            some = somewhere((c,), lane, range(8))
            for at in range(3 * size + 1):
                known = [substitute_condition(x, {start: at}) == TRUE for x in each]
                assert (substitute_condition(throughout, {start: at}) == TRUE) == all(known)
                assert (substitute_condition(some, {start: at}) == TRUE) == any(known)


@pytest.mark.parametrize(("low", "high"), [(0, 3), (2, 9), (3, 9), (5, 13), (11, 13), (4, 5)])
def test_a_short_run_of_places_may_lie_between_the_ends(low: int, high: int) -> None:
    start, lane = Var("s", 0, 39), Var("v", 0, 7)
    place = mod(start + lane, 13)
    run = (less_equal(low, place), less(place, high))
    some = somewhere(run, lane, range(8))
    for at in range(40):
        exists = any(low <= (at + k) % 13 < high for k in range(8))
        assert (substitute_condition(some, {start: at}) == TRUE) == exists
    assert len(str(some)) < 150 or high - low < 7


def test_a_pad_of_long_rows_looks_at_the_ends_of_a_vector() -> None:
    row = mod(T * 8 + V, 103)
    a = access(8 * T + V - 3, less_equal(3, row), ROW, may_lack=True, may_begin_anywhere=True)
    (found,) = vectors(a)
    assert str(found.predicate).count("%") <= 2
    for t in range(13):
        exists = any(holds(a.conditions_at(k), t) for k in range(8))
        assert not exists or holds(found.predicate, t)
