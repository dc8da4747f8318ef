"""The gate of the lot: draws need no more launches, bytes and sectors than they did."""

from __future__ import annotations

import dataclasses

import pytest
from bench.lot.families import FAMILIES
from bench.lot.gate import (
    BOUNDS,
    SEEDS,
    Figures,
    figures_of,
    forecast_of,
    is_above,
    known,
    problems,
)

COUNT = len(FAMILIES)
KNOWN = known()


@pytest.mark.parametrize("family", range(COUNT), ids=list(FAMILIES))
def test_draws_need_no_more_than_they_did(family: int) -> None:
    seeds = [s for s in SEEDS if s % COUNT == family]
    assert [p for s in seeds for p in problems(forecast_of(s), KNOWN)] == []


def test_known_exceeders_exceed() -> None:
    assert set(KNOWN) < set(SEEDS)
    assert all(is_above(found, BOUNDS) for found in KNOWN.values())


def test_more_fails_and_less_is_told() -> None:
    f = dataclasses.replace(forecast_of(0), bytes_ratio=1.5, reread=1.0)
    (problem,) = problems(f, {})
    assert "draw 0 (elementwise: " in problem and "bytes 1.5 times the least" in problem
    entry = figures_of(f)
    assert entry.nbytes == 1.5
    assert problems(f, {0: entry}) == []
    (problem,) = problems(f, {0: Figures(1.0, 2.0, 1.0)})
    assert "needs less than known.json says (bytes)" in problem
    (problem,) = problems(f, {0: Figures(3.0, 1.4, 1.0)})
    assert "its limit is 1.4" in problem
