"""How many threads share columns: as few as fill the chip, as they exchange the sums of each."""

from __future__ import annotations

import numpy as np
import pytest

import fusewright as fw
from fusewright.memory import Memory
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.reduction import plans_of
from fusewright.schedule.heuristics.reduction_plans import ReductionFacts, ReductionPlan
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def _first(columns: int, rows: int, *, is_read_again: bool) -> ReductionPlan:
    facts = ReductionFacts(False, columns, rows, 8, 2, is_read_again)
    return next(c.plan for c in plans_of(facts, TARGET) if isinstance(c, Candidate))


@pytest.mark.parametrize(("kept", "down"), [(40_000, 16), (1 << 19, 8), (1 << 20, 4), (1 << 23, 1)])
def test_columns_that_fill_the_chip_need_few_threads_each(kept: int, down: int) -> None:
    assert _first(1000, kept, is_read_again=False).reduce_threads == down


@pytest.mark.parametrize(("columns", "down"), [(5, 1), (37, 8), (90, 16)])
def test_columns_that_are_needed_again_have_threads_enough_to_hold_them(
    columns: int, down: int
) -> None:
    plan = _first(columns, 1 << 23, is_read_again=True)
    assert (plan.held_in, plan.reduce_threads) == (Memory.LOCAL, down)


def norms(x: fw.Array) -> tuple[fw.Array, fw.Array]:
    wide = fw.astype(x, "float32")
    return fw.sqrt(fw.sum(wide * wide, axis=1)), fw.max(fw.abs(x), axis=1)


@pytest.mark.parametrize("shape", [(3, 39, 3479), (7, 61, 1201)])
def test_a_sum_and_a_maximum_of_columns_meet_together(shape: tuple[int, ...]) -> None:
    """Results are stored element by element; each kind meets at two barriers all the same, with
    one between them."""
    program = fw.compile(fw.trace(norms, fw.TensorSpec(shape, "bfloat16")), target="sm_90a")
    (kernel,) = program.kernels
    assert [s.kind for s in kernel.syncs].count("BlockSync") <= 4
    x = np.random.default_rng(shape[2]).standard_normal(shape).astype(fw.bfloat16.numpy)
    found = program.simulate(x)
    assert not found.races
    for got, want in zip(found.outputs, fw.evaluate(program.fusion, x), strict=True):
        np.testing.assert_allclose(
            np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=1e-2
        )
    report = fw.verify(program, x)
    assert not report.missing and not report.redundant
