"""Many points at once are the same as one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from fusewright.core.atoms import maximum, minimum, xor
from fusewright.core.conditions import Cond, all_of, any_of, equal, less, negate
from fusewright.core.expr import Expr, Var
from fusewright.core.sampling import Sampler
from fusewright.core.substitution import evaluate

X, Y = Var("x", 0, 30), Var("y", 0, 12)


@pytest.mark.parametrize(
    "e",
    [
        X * 3 + Y * X - 7,
        (X * 5 + Y) // 7,
        (X * 5 - Y) % 7,
        minimum(X, Y * 2),
        maximum(X, Y),
        xor(X, Y),
    ],
    ids=str,
)
def test_values_are_those_of_each_point(e: Expr) -> None:
    xs, ys = np.meshgrid(np.arange(31), np.arange(13), indexing="ij")
    found = np.broadcast_to(Sampler({X: xs, Y: ys}).value(e), xs.shape)
    assert all(found[x, y] == evaluate(e, {X: x, Y: y}) for x in range(31) for y in range(13))


@pytest.mark.parametrize(
    ("c", "count"),
    [
        (less(X, Y), sum(x < y for x in range(31) for y in range(13))),
        (equal(X, Y), 13),
        (all_of([less(X, 3), less(Y, 2)]), 6),
        (any_of([less(X, 3), less(Y, 2)]), 3 * 13 + 2 * 28),
        (negate(equal(X, Y)), 31 * 13 - 13),
    ],
    ids=str,
)
def test_conditions_hold_where_they_do(c: Cond, count: int) -> None:
    xs, ys = np.meshgrid(np.arange(31), np.arange(13), indexing="ij")
    assert np.broadcast_to(Sampler({X: xs, Y: ys}).holds(c), xs.shape).sum() == count


def test_a_variable_without_values_is_named() -> None:
    with pytest.raises(KeyError, match="y"):
        Sampler({X: np.arange(3)}).value(X + Y)
