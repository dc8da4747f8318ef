"""Vector width against enumeration of lane groups."""

from __future__ import annotations

import random

import pytest
from brute import holds
from tests.work import calls

from fusewright.axes.contiguity import (
    Fit,
    fit_of,
    holds_throughout,
    lanes_where,
    order_of,
    vector_width,
)
from fusewright.core.conditions import Cond, equal, less
from fusewright.core.expr import Expr, Var
from fusewright.core.substitution import evaluate


def lane(extent: int) -> Var:
    return Var("v", 0, extent - 1)


def test_pad_left_bounds_the_width() -> None:
    v = lane(8)
    for pad, expected in ((1, 1), (2, 2), (4, 4)):
        index = v - pad
        assert vector_width(index, v, [less(-1, index), less(index, 8)], 4) == expected


def test_what_was_found_of_an_address_is_found_again_by_less_work() -> None:
    v, rows = lane(64), [Var(f"row{k}", 0, 99) for k in range(6)]
    index = v + sum((33 * r for r in rows[1:]), 7 * rows[0])
    first, second = (calls(lambda: vector_width(index, v, [], 8)) for _ in range(2))
    assert second < first / 2


def test_rows_must_be_aligned() -> None:
    v, row = lane(8), Var("row", 0, 99)
    assert vector_width(8 * row + v, v, [], 8) == 8
    assert vector_width(12 * row + v, v, [], 8) == 4
    assert vector_width(33 * row + v, v, [], 8) == 1


def test_ragged_bound_and_ragged_lane() -> None:
    v, t = lane(4), Var("t", 0, 31)
    n = Var("n", 2, multiple_of=4)
    assert vector_width(4 * t + v, v, [less(4 * t + v, n)], 4) == 4
    assert vector_width(4 * t + v, v, [less(4 * t + v, Var("m", 2))], 4) == 1
    assert vector_width(lane(6), v, [], 4) == 1
    w = lane(6)
    assert vector_width(w, w, [], 4) == 2


def test_not_contiguous() -> None:
    v, t = lane(4), Var("t", 0, 31)
    for address in (32 * v + t, 4 * t, 4 * t - v, v // 2 + 4 * t, Var("u", 0, 3) + 4 * t):
        assert vector_width(address, v, [], 4) == 1
    assert vector_width(4 * t + v, v, [equal(v, 0)], 4) == 1


def is_vector(
    address: Expr, v: Var, others: list[Var], predicates: list[Cond], width: int, extent: int
) -> bool:
    """Whether every group of lanes is consecutive, aligned and of one mind, by enumeration."""
    for fixed in range(6):
        at = dict.fromkeys(others, fixed)
        for first in range(0, extent, width):
            group = [{**at, v: first + k} for k in range(width)]
            found = [evaluate(address, p) for p in group]
            if found[0] % width or found != list(range(found[0], found[0] + width)):
                return False
            if any(len({holds([c], p) for p in group}) > 1 for c in predicates):
                return False
    return True


@pytest.mark.parametrize("seed", range(6))
def test_never_unsound(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        extent = rng.choice([4, 8, 6])
        v, t, u = lane(extent), Var("t", 0, 5), Var("u", 0, 5)
        scale, bound = rng.choice([1, 2, 4, 8, 12]), rng.randint(1, 40)
        shift = rng.choice([0, 0, 1, 2, 4])
        index = scale * t + rng.choice([1, 1, 1, 2]) * v - shift
        address = index + rng.choice([0, 3, 4, 8, 16]) * u
        if rng.random() < 0.3:
            address = (index + shift) // 2 * 2 + (index + shift) % 2
        predicates = [c for c in (less(index, bound), less(-1, index)) if rng.random() < 0.6]
        width = vector_width(address, v, predicates, 8)
        assert is_vector(address, v, [t, u], predicates, width, extent), (seed, address, width)


def test_a_remainder_that_cancels_leaves_an_aligned_address() -> None:
    v, row, t = lane(8), Var("row", 0, 99), Var("t", 0, 31)
    early = (row * 5) % 8
    assert vector_width(101 * row + 8 * t + v - early, v, [], 8) == 8
    assert vector_width(101 * row + 8 * t + v, v, [], 8) == 1


ROW, STEP, LANE = Var("row", 0, 99), Var("t", 0, 31), lane(8)
FITS = [
    (104 * ROW + 8 * STEP + LANE, 2, 16, Fit.WORDS),
    (104 * ROW + 8 * STEP + LANE, 4, 16, Fit.WORDS),  # two words of four
    (101 * ROW + 8 * STEP + LANE, 2, 16, Fit.CUT),
    (101 * ROW + 8 * STEP + LANE, 2, 8, Fit.NARROW),  # no words of 16 bytes begin there
    (101 * ROW + 2 * LANE, 2, 16, Fit.TAKEN),
    (8 * ROW + 7 - LANE, 2, 16, Fit.TAKEN),
    (8 * ROW + 4 * LANE, 2, 16, Fit.TAKEN),  # out of four words
    (8 * ROW + 5 * LANE, 2, 16, Fit.NARROW),  # they would be five
    (8 * ROW + 5 * (LANE % 2), 2, 16, Fit.TAKEN),
    (8 * ROW + ROW * LANE, 2, 16, Fit.NARROW),  # distances that differ
    (8 * ROW, 2, 16, Fit.NARROW),  # all the same: one element
    (8 * ROW + 7 - LANE, 2, 8, Fit.NARROW),
    (101 * ROW + 8 * STEP + LANE, 1, 8, Fit.CUT),
]


@pytest.mark.parametrize(("address", "itemsize", "alignment", "fit"), FITS)
def test_lanes_are_words_or_cut_out_of_two_or_neither(
    address: Expr, itemsize: int, alignment: int, fit: Fit
) -> None:
    assert fit_of(address, LANE, 8, itemsize, alignment) is fit


@pytest.mark.parametrize("count", [3, 5, 6, 7])
@pytest.mark.parametrize("alignment", [4, 8, 16])
def test_lanes_that_fill_no_words_are_read_alone(count: int, alignment: int) -> None:
    v = Var("v", 0, count - 1)
    assert fit_of(count * ROW + v, v, count, 4, alignment) is Fit.NARROW
    assert fit_of(24 * ROW + 2 * v, v, count, 4, alignment) is Fit.NARROW
    assert fit_of(3 * ROW + v, v, 3, 8, alignment) is Fit.NARROW


ORDERS = [
    (8 * ROW + 7 - LANE, "8*row", (7, 6, 5, 4, 3, 2, 1, 0)),
    (9 * ROW + 7 - LANE, "9*row", (7, 6, 5, 4, 3, 2, 1, 0)),
    (8 * ROW + 4 * (LANE // 4) + (LANE + 3) % 4, "8*row", (3, 0, 1, 2, 7, 4, 5, 6)),
    (16 * ROW + 2 * LANE + 1, "16*row", (1, 3, 5, 7, 9, 11, 13, 15)),
    (9 * ROW + 2 * LANE + 1, "9*row + 1", (0, 2, 4, 6, 8, 10, 12, 14)),
    (8 * ROW + LANE // 2 + 2, "8*row", (2, 2, 3, 3, 4, 4, 5, 5)),
    (8 * ROW + LANE // 2 + 4, "8*row + 4", (0, 0, 1, 1, 2, 2, 3, 3)),
    (4 * ROW + LANE // 4, "4*row", (0, 0, 0, 0, 1, 1, 1, 1)),
]


@pytest.mark.parametrize(("address", "begin", "places"), ORDERS)
def test_lanes_in_another_order_are_places_in_words(
    address: Expr, begin: str, places: tuple[int, ...]
) -> None:
    found = order_of(address, LANE, 8, 8)
    assert found is not None
    assert (str(found.begin), found.places, found.span) == (begin, places, max(places) + 1)
    assert found.is_aligned == (not begin.startswith("9"))
    assert found.width == (8 if places[0] or max(places) > 3 else max(places) + 1)
    for row in (0, 1, 5, 98):
        own = [evaluate(address, {ROW: row, LANE: k}) for k in range(8)]
        assert own == [evaluate(found.begin, {ROW: row}) + at for at in places]


def test_what_is_shorter_than_a_machine_word_is_not_cut() -> None:
    v = lane(2)
    assert fit_of(3 * ROW + v, v, 2, 1, 16) is Fit.NARROW
    assert fit_of(3 * ROW + v, v, 2, 2, 16) is Fit.CUT


def test_the_lanes_where_conditions_hold() -> None:
    v, t, u = lane(8), Var("t", -20, 40), Var("u", 0, 3)
    conditions = [less(-1, v + t), less(v + t, 13), less(u, 2)]
    whole = [holds_throughout(c, v) for c in conditions]
    found = lanes_where(conditions, v)
    assert found is not None
    for at in range(-20, 41):
        for of in range(4):
            point = {t: at, u: of}
            inside = [k for k in range(8) if holds(conditions, {**point, v: k})]
            assert holds(whole, point) == (len(inside) == 8)
            assert holds([found.some], point) == bool(inside)
            first, stop = (evaluate(e, point) for e in (found.first, found.stop))
            if inside:
                assert inside == [k for k in range(8) if first <= k < stop]
    assert lanes_where([equal(v, t)], v) is None
    assert lanes_where([less(2 * v, t)], v) is None
