"""Reshapes that cut between digits cost nothing; those that do not are counted, and bounded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.host.regroupings import MAX_REGROUPINGS, Regrouped, regrouped

P, R = fw.permute_dims, fw.reshape


def count(fn: Callable[..., Any], *shape: int | str) -> int:
    """The regroupings behind the result of a function of one array."""
    known: dict[fw.Tensor, Regrouped] = {}
    fusion = fw.trace(fn, fw.TensorSpec(shape, "float32"))
    for t in fusion.values:
        if t not in fusion.inputs:
            known[t] = regrouped(t, known)
    return known[fusion.outputs[0]].count


@pytest.mark.parametrize(
    ("fn", "shape", "wanted"),
    [
        (lambda x: R(x, (2, 12)), (4, 6), 0),
        (lambda x: R(x, (7, 5)), (5, 7), 1),
        (lambda x: R(R(x, (35,)), (7, 5)), (5, 7), 1),
        (lambda x: R(P(R(x, (2, 2, 2, 3)), (0, 2, 1, 3)), (4, 6)), (4, 6), 0),
        (lambda x: R(R(P(x, (1, 0)), (24,)), (4, 6)), (4, 6), 1),
        (lambda x: R(R(P(x, (1, 0)), (24,)), (6, 4)), (4, 6), 0),
        # the digits of 12 are 2 and 6: a cut at 4 falls inside the second
        (lambda x: R(R(P(R(x, (2, 12)), (1, 0)), (24,)), (3, 8)), (4, 6), 1),
        (lambda x: R(P(R(x, (7, 5)), (1, 0)), (7, 5)), (5, 7), 2),
        (lambda x: R(fw.exp(R(x, (7, 5))), (5, 7)), (5, 7), 2),
        (lambda x: R(P(x, (1, 0)), (x.shape[0] * 3,)), ("n", 3), 0),
        (lambda x: R(x, (3, x.shape[0])), ("n", 3), 1),
    ],
)
def test_the_regroupings_behind_a_value(
    fn: Callable[..., Any], shape: tuple[int | str, ...], wanted: int
) -> None:
    assert count(fn, *shape) == wanted


def chain(length: int, end: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def fn(x):
        for _ in range(length):
            x = P(R(x, (7, 5)), (1, 0))
        return end(x)

    return fn


SPEC = fw.TensorSpec((5, 7), "float32")
ENDS = {"exp": fw.exp, "sum": lambda x: fw.sum(x, axis=1), "itself": lambda x: x}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("length", [MAX_REGROUPINGS - 1, MAX_REGROUPINGS, MAX_REGROUPINGS + 1, 20])
def test_values_are_right_on_both_sides_of_the_limit(length: int, end: str) -> None:
    fusion = fw.trace(chain(length, ENDS[end]), SPEC)
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    result = fw.compile(fusion).simulate(x)
    (wanted,) = fw.evaluate(fusion, x)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], wanted, rtol=1e-5, atol=1e-6)


def test_the_time_of_long_chains_grows_with_their_length() -> None:
    begin = time.process_time()
    fw.compile(fw.trace(chain(96, fw.exp), SPEC))
    assert time.process_time() - begin < 3
