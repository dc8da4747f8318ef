"""Random programs of several launches: any order that the edges allow gives the same bytes."""

from __future__ import annotations

import os
from dataclasses import replace

import fuzz_compare
import fuzz_programs
import numpy as np
import pytest
from fuzz_orders import Drawn, DrawnCall, DrawnLayouts, order_problem, problem_of, problem_of_seed

import fusewright as fw
from fusewright.host.invariants import problems

START = int(os.environ.get("FUZZ_START", "0"))
COUNT = int(os.environ.get("FUZZ_COUNT", "2000"))
CHUNK = 50
ORDERS = 10


def wrong(program: fw.Program, arrays: list[np.ndarray], outputs: list[np.ndarray]) -> str | None:
    stored = {t.name for x in program.launches for t in x.outputs}
    return fuzz_compare.compare(program.fusion, arrays, outputs, stored).problem


@pytest.mark.parametrize("seed", range(20))
def test_few_programs_in_any_order(seed: int) -> None:
    assert problem_of_seed(seed, ORDERS, wrong) is None, seed


@pytest.mark.parametrize("seed", range(10, 16))
def test_few_calls_in_any_order(seed: int) -> None:
    """With moves, insertions into arguments that are given away, and orders of results."""
    assert problem_of(DrawnCall(seed), seed, ORDERS, wrong) is None, seed


@pytest.mark.parametrize("seed", [*range(7000000, 7000005), 4994715])
def test_few_calls_of_symbols_and_layouts_in_any_order(seed: int) -> None:
    """The last one has blocks that take turns, whose semaphores are zero before a call."""
    assert problem_of(DrawnLayouts(seed), seed, ORDERS, wrong) is None, seed


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_calls_of_symbols_and_layouts_in_any_order(start: int) -> None:
    print(f"seeds {start} to {start + CHUNK - 1}")
    for seed in range(start, start + CHUNK):
        assert problem_of(DrawnLayouts(seed), seed, ORDERS, wrong) is None, seed


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_calls_in_any_order(start: int) -> None:
    print(f"seeds {start} to {start + CHUNK - 1}")
    for seed in range(start, start + CHUNK):
        assert problem_of(DrawnCall(seed), seed, ORDERS, wrong) is None, seed


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_programs_in_any_order(start: int) -> None:
    print(f"seeds {start} to {start + CHUNK - 1}")
    for seed in range(start, start + CHUNK):
        assert problem_of_seed(seed, ORDERS, wrong) is None, seed


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_programs_of_the_other_campaign_in_any_order(start: int) -> None:
    print(f"seeds {start} to {start + CHUNK - 1}")
    for seed in range(start, start + CHUNK):
        recipe = fuzz_programs.draw(seed)
        program = fw.compile(recipe.trace())
        if len(program.launches) > 1:
            assert order_problem(program, recipe.arrays(), seed, ORDERS) is None, seed


@pytest.mark.parametrize("seed", range(6))
def test_every_edge_is_needed(seed: int) -> None:
    """Without any one edge some launches that conflict are unordered, and the invariants say so."""
    drawn = Drawn(100 + seed)
    host = fw.compile(fw.trace(drawn, *drawn.specs)).host
    assert problems(host) == []
    for e in host.edges:
        rest = tuple(x for x in host.edges if x is not e)
        found = problems(replace(host, edges=rest))
        assert any(p.kind == "order" for p in found), e
