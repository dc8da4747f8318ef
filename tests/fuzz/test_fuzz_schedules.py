"""Random schedules by hand: refused, or right."""

from __future__ import annotations

import os

import pytest
from fuzz_checks import Tally
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


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_random_schedules(start: int) -> None:
    print(f"seeds {start} to {start + CHUNK - 1}")
    tally = Tally()
    for seed in range(start, start + CHUNK):
        assert_schedule_agrees(seed, verify=seed % 5 == 0, tally=tally)
    print(tally)
