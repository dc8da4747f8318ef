"""Asynchronous copies, rings, mbarriers and roles on a device, against float64 references."""

from __future__ import annotations

import numpy as np
import pytest
from async_cases import CASES, DEPTHS, RAGGED, Case as Scheduled
from async_suite import SUITE, Case, arrays_of
from references import on_device

from fusewright.kir.pipeline import run_pipeline
from fusewright.sim.machine import simulate
from fusewright.target import target_of

TARGET = target_of("sm_90a")
RIGHT = [c for c in SUITE if not c.wrong and c.name != "time_is_not_memory"]  # it stores nothing


def assert_agrees_twice(case: Scheduled, by: str, stages: int, prefetch: int | None) -> None:
    """Fresh inputs each time; what a kernel forgets to write stays poison."""
    k = case.schedule(by, stages, prefetch).lower()
    rng = np.random.default_rng()
    for _ in range(2):
        arrays = case.arrays(rng)
        wide = [a.astype(np.float64) for a in arrays]
        expected = wide[0][:, ::-1] * 2 if case.name == "flipped" else np.prod(wide, axis=0).sum(1)
        (y,) = k(*arrays, device="cuda")
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("depth", DEPTHS, ids=str)
@pytest.mark.parametrize("by", ["cp_async", "bulk"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_scheduled_copies_agree_with_numpy(
    case: Scheduled, by: str, depth: tuple[int, int | None]
) -> None:
    assert_agrees_twice(case, by, *depth)


@pytest.mark.parametrize("depth", DEPTHS, ids=str)
def test_ragged_rows_agree_with_numpy(depth: tuple[int, int | None]) -> None:
    assert_agrees_twice(RAGGED, "cp_async", *depth)


@pytest.mark.parametrize("case", RIGHT, ids=lambda c: c.name)
def test_kernels_by_hand_compute_what_the_simulator_does(case: Case) -> None:
    """What the pipeline makes of them computes what the simulator computes."""
    k = run_pipeline(case.kernel(), TARGET)
    rng = np.random.default_rng()
    arrays = arrays_of(k)
    x, y = k.params[:2]
    arrays[x][:] = rng.normal(size=arrays[x].shape)
    arrays[y][:] = 0
    (found,) = on_device(k, [arrays[x].copy(), arrays[y].copy()])
    simulate(k, arrays, check_races=False)
    written = arrays[y] != 0
    np.testing.assert_array_equal(found[written], arrays[y][written])
