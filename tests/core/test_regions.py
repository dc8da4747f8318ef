"""Regions against every point of a small box."""

from __future__ import annotations

import itertools
import random

import pytest

from fusewright.core.conditions import (
    FALSE,
    TRUE,
    Cond,
    Truth,
    all_of,
    any_of,
    equal,
    less,
    less_equal,
    negate,
    substitute_condition,
)
from fusewright.core.expr import Var
from fusewright.core.regions import EVERYWHERE, PointRegion, follows, hull, united

Q, T = Var("q", 0, 11), Var("t", 0, 3)
POINTS = [{Q: q, T: t} for q, t in itertools.product(range(12), range(4))]


def _holds(c: Cond) -> list[bool]:
    found = [substitute_condition(c, p) for p in POINTS]
    assert all(isinstance(f, Truth) for f in found)
    return [f.value for f in found if isinstance(f, Truth)]


def _within(*conditions: Cond) -> PointRegion:
    region: PointRegion | None = PointRegion()
    for c in conditions:
        assert region is not None
        region = region.within(c)
    assert region is not None
    return region


def test_limits_meet() -> None:
    r = _within(less(Q, 8), less(3, Q), less(Q, 9))
    assert str(r.condition) == "3 < q && q < 8"
    assert r.implies(less(Q, 20)) and r.implies(less(2, Q)) and not r.implies(less(4, Q))
    assert r.within(less(Q, 4)) is None
    assert r.excludes(_within(less(7, Q))) and not r.excludes(_within(less(6, Q)))


def test_a_difference_has_one_name() -> None:
    r = _within(less(Q, T + 2))
    assert r.within(less(T + 1, Q)) is None
    assert r.implies(less(Q, T + 3)) and not r.implies(less(Q, T + 1))


def test_other_conditions_are_kept_as_they_are() -> None:
    r = _within(equal(Q, 3))
    assert r.within(negate(equal(Q, 3))) is None
    assert r.implies(equal(Q, 3)) and r.within(equal(Q, 3)) is r


def test_nothing_and_everything() -> None:
    assert PointRegion().within(TRUE) == PointRegion() and PointRegion().within(FALSE) is None
    assert PointRegion().condition == TRUE and PointRegion().implies(TRUE)
    assert PointRegion().without(TRUE) == () and PointRegion().without(FALSE) == EVERYWHERE


def test_pieces_that_cover_leave_nothing() -> None:
    rest = EVERYWHERE
    for piece in (less(Q, 4), all_of((less(3, Q), less(Q, 8))), less(7, Q)):
        rest = united(r for region in rest for r in region.without(piece))
    assert rest == ()


def _condition(rng: random.Random, depth: int) -> Cond:
    if depth and rng.random() < 0.5:
        parts = [_condition(rng, depth - 1) for _ in range(rng.randint(2, 3))]
        return rng.choice([all_of, any_of])(parts)
    e = rng.choice([Q, T, Q + T, Q - T, 4 * Q + T, 2 * T])
    c = rng.choice([less, less_equal, equal])(e, rng.randint(-1, 14))
    return rng.choice([c, negate(c)])


@pytest.mark.parametrize("seed", range(200))
def test_against_every_point(seed: int) -> None:
    rng = random.Random(seed)
    a, b = _condition(rng, 2), _condition(rng, 2)
    region = PointRegion().within(a)
    if region is None:
        assert not any(_holds(a))
        return
    where = _holds(region.condition)
    assert where == _holds(a)
    both = region.within(b)
    want = [x and y for x, y in zip(where, _holds(b), strict=True)]
    assert (_holds(both.condition) if both else [False] * len(POINTS)) == want
    rest = region.without(b)
    assert _holds(any_of(r.condition for r in rest)) == [
        x and not y for x, y in zip(where, _holds(b), strict=True)
    ]
    assert not region.implies(b) or where == want
    other = PointRegion().within(b)
    if other is not None and region.excludes(other):
        assert not any(want)


def _comparison(rng: random.Random) -> Cond:
    e = rng.choice((1, 2, 4)) * Q + rng.choice((-2, -1, 0, 1)) * T
    bound = rng.randrange(-4, 40)
    return less(e, bound) if rng.random() < 0.5 else less(bound, e)


def test_what_follows_holds_wherever_the_other_does() -> None:
    rng = random.Random(3)
    found = 0
    for _ in range(5000):
        c, given = _comparison(rng), _comparison(rng)
        if isinstance(c, Truth) or isinstance(given, Truth) or not follows(c, given):
            continue
        found += c != given
        assert all(a or not b for a, b in zip(_holds(c), _holds(given), strict=True)), (c, given)
    assert found > 300


def test_comparisons_of_other_sums_follow() -> None:
    e = 4 * Q - T
    assert follows(less(Q, 6), less(e, 20)) and not follows(less(Q, 5), less(e, 20))
    assert follows(less(e, 21), less(Q, 6)) and not follows(less(e, 20), less(Q, 6))
    assert not follows(less(Q, 6), less(20, e)) and not follows(less(T, 2), less(Q, 2))


def test_a_hull_holds_every_region_and_little_else() -> None:
    """Windows of four lanes, of which the first one's upper end is told without lanes."""
    lanes = [_within(less(8, 4 * Q - T + k), less(4 * Q - T + k, 25)) for k in range(4)]
    around = hull(lanes)
    assert around.condition != TRUE
    inside = [any(points) for points in zip(*(_holds(r.condition) for r in lanes), strict=True)]
    assert _holds(around.condition) == inside
    assert all(r.lies_in(around) for r in lanes)
    assert not around.lies_in(lanes[0])


def test_regions_without_a_common_limit_have_no_hull() -> None:
    assert hull([_within(less(Q, 3)), _within(less(8, Q))]) == PointRegion()
    assert hull([_within(less(Q, 3)), _within(less(T, 2))]) == PointRegion()
    assert hull([_within(equal(Q, 3), less(T, 2)), _within(equal(Q, 3))]) == _within(equal(Q, 3))
