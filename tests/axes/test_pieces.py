"""Lanes that end one row and begin another, against the places of all lanes by brute force."""

from __future__ import annotations

import random

import pytest

from fusewright.axes.contiguity import Fit, fit_of
from fusewright.axes.pieces import Pieces, pieces_of, places, run_of
from fusewright.core.expr import Expr, Var, constant_value, mod
from fusewright.core.substitution import evaluate, substitute

T, LANE = Var("t", 0, 5000), Var("lane", 0, 7)
AT = 8 * T + LANE

MOVES: dict[str, tuple[Expr, int]] = {
    "rows of 11 of 19": (19 * (AT // 11) + AT % 11 + 5, 1),
    "rows backwards": (11 * (AT // 11) + 10 - AT % 11, -1),
    "rows in reverse order": (11 * (54 - (AT // 11) % 55) + 605 * (AT // 605) + AT % 11, 1),
    "rows in threes, one of them first": (11 * ((AT // 11 + 1) % 3) + 33 * (AT // 33) + AT % 11, 1),
    "what a row has": (AT // 11, 0),
    "what every third row has": ((AT // 11) % 3, 0),
    "a row of its own": (AT % 11, 1),
    "rows as long as vectors but for one": (9 * (AT // 7) + AT % 7, 1),
    "blocks in rounds": (13 * ((8 * (T % 33) + LANE) // 11) + AT % 11 + 999 * (T // 33), 1),
}


def place_of(found: Pieces, p: dict[Var, int], k: int) -> int:
    """Where lane k lies, by the run that it is in."""
    cut = evaluate(found.cut, p)
    begin = run_of(found, 0, 8, 8, is_last=k >= cut)
    step = [0] * 8 if found.step == 0 else places(found, 8)
    return evaluate(begin, p) + step[k]


@pytest.mark.parametrize("name", MOVES)
def test_two_runs_are_where_the_lanes_are(name: str) -> None:
    address, step = MOVES[name]
    found = pieces_of(address, LANE, 8)
    assert found is not None and found.step == step
    for t in range(700):
        expected = [evaluate(address, {T: t, LANE: k}) for k in range(8)]
        assert [place_of(found, {T: t}, k) for k in range(8)] == expected


@pytest.mark.parametrize(
    "address",
    [
        AT,
        19 * (AT // 6) + AT % 6,
        11 * (AT // 11) + mod(AT + 3, 11),
        19 * (AT // 11) + 2 * (AT % 11),
        (AT // 11) * (AT % 11),
        19 * (AT // 11) + (AT // 13) % 2,
    ],
    ids=["one row", "short rows", "near ends", "two apart", "a product", "ends of two kinds"],
)
def test_refused(address: Expr) -> None:
    assert pieces_of(address, LANE, 8) is None


@pytest.mark.parametrize("seed", range(60))
def test_sums_of_moved_digits(seed: int) -> None:
    """What is found is right, whatever digits an address has."""
    rng = random.Random(seed)
    size, above = rng.randrange(5, 23), rng.choice([2, 3, 7])
    at = 8 * T + LANE + rng.randrange(3)
    row = (at // size + rng.randrange(above)) % above if rng.random() < 0.5 else at // size
    column = rng.choice(
        [at % size, size - 1 - at % size, 0 * at, mod(at + rng.randrange(size), size)]
    )
    address = rng.randrange(20, 90) * row + column + rng.randrange(50) * (at // (size * above))
    found = pieces_of(address, LANE, 8)
    if found is None:
        return
    for t in range(400):
        expected = [evaluate(address, {T: t, LANE: k}) for k in range(8)]
        assert [place_of(found, {T: t}, k) for k in range(8)] == expected


def test_halves_of_a_vector_begin_where_their_lanes_do() -> None:
    """Lanes 4 .. 8 of rows backwards: the last of them comes first in memory."""
    found = pieces_of(11 * (AT // 11) + 10 - AT % 11, LANE, 8)
    assert found is not None
    begin = run_of(found, 4, 4, 8, is_last=False)
    assert constant_value(substitute(begin, {T: 0})) == 10 - 7
    assert list(places(found, 4)) == [3, 2, 1, 0]


@pytest.mark.parametrize(("itemsize", "fit"), [(1, Fit.PIECES), (2, Fit.PIECES), (4, Fit.NARROW)])
def test_elements_that_fill_registers_are_not_put_together(itemsize: int, fit: Fit) -> None:
    lanes = Var("lane", 0, 3)
    at = 4 * T + lanes
    assert fit_of(19 * (at // 11) + at % 11, lanes, 4, itemsize, 16) is fit
    assert fit_of(at // 11, lanes, 4, itemsize, 16) is Fit.PIECES
