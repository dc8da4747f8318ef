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
from fusewright.core.regions import EVERYWHERE, Region, united

Q, T = Var("q", 0, 11), Var("t", 0, 3)
POINTS = [{Q: q, T: t} for q, t in itertools.product(range(12), range(4))]


def _holds(c: Cond) -> list[bool]:
    found = [substitute_condition(c, p) for p in POINTS]
    assert all(isinstance(f, Truth) for f in found)
    return [f.value for f in found if isinstance(f, Truth)]


def _within(*conditions: Cond) -> Region:
    region: Region | None = Region()
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
    assert Region().within(TRUE) == Region() and Region().within(FALSE) is None
    assert Region().condition == TRUE and Region().implies(TRUE)
    assert Region().without(TRUE) == () and Region().without(FALSE) == EVERYWHERE


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
    region = Region().within(a)
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
    other = Region().within(b)
    if other is not None and region.excludes(other):
        assert not any(want)
