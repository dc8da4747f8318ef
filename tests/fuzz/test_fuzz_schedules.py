"""Random schedules by hand: refused, or right."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest
from fuzz_checks import Tally
from fuzz_rings import draw_ring
from fuzz_schedules import Plan, check_seed, problem_of_plan, small_program
from fuzz_shrink import kind_of, shrink_plan

START = int(os.environ.get("FUZZ_START", "0"))
COUNT = int(os.environ.get("FUZZ_COUNT", "2000"))
CHUNK = 50


def assert_schedule_agrees(seed: int, *, verify: bool, tally: Tally) -> None:
    plan, problem = check_seed(seed, tally, verify=verify)
    if problem is None:
        return
    if plan is None:
        pytest.fail(f"seed {seed}: {problem}\n{small_program(seed).reproducer()}")
    kind = kind_of(problem)

    def fails(p: Plan) -> bool:
        try:
            found = problem_of_plan(p, verify=verify)
        except AssertionError:
            return False
        return found is not None and kind_of(found) == kind

    small = shrink_plan(plan, fails)
    pytest.fail(f"seed {seed}: {problem_of_plan(small, verify=verify)}\n{small.source()}")


@pytest.mark.parametrize("start", range(0, 20, 10))
def test_few_random_schedules(start: int) -> None:
    tally = Tally()
    for seed in range(9000 + start, 9000 + start + 10):
        assert_schedule_agrees(seed, verify=seed % 5 == 0, tally=tally)
    assert tally.counts["schedules"] >= 5


def rings_agree(seeds: Iterable[int]) -> int:
    """Whether schedules with copies ahead are right, with every sync needed; how many are legal."""
    tally = Tally()
    for seed in seeds:
        plan = draw_ring(seed, tally)
        problem = problem_of_plan(plan, verify=True, tally=tally)
        assert problem is None, f"seed {seed}: {problem}\n{plan.source()}"
    return tally.counts["schedules"]


def test_few_random_rings() -> None:
    seeds = (5045, 5047, 5056, 5076, 5081, 5082)
    assert rings_agree(seeds) == len(seeds)


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_random_rings(start: int) -> None:
    rings_agree(range(start, start + CHUNK))


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_random_schedules(start: int) -> None:
    print(f"seeds {start} to {start + CHUNK - 1}")
    tally = Tally()
    for seed in range(start, start + CHUNK):
        assert_schedule_agrees(seed, verify=seed % 5 == 0, tally=tally)
    print(tally)
