"""Few rows, or columns, that are read once: the blocks of a cluster share each of them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.schedule.heuristics.reduction import plans_of
from fusewright.schedule.heuristics.reduction_plans import ReductionFacts
from fusewright.target import target_of


@pytest.mark.parametrize(
    ("fn", "shape", "scheduler"),
    [
        (lambda x: fw.sum(x, axis=1), (2, 60_001), "inner_cluster_multi_pass"),
        (lambda x: (fw.max(x, axis=0), fw.sum(x, axis=0)), (30_011, 7), "outer_cluster_multi_pass"),
    ],
)
def test_right_in_the_simulator_and_no_sync_too_many(
    fn: Callable[[Any], Any], shape: tuple[int, ...], scheduler: str
) -> None:
    program = fw.compile(fw.trace(fn, fw.TensorSpec(shape, "float32")))
    (kernel,) = program.kernels
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == scheduler
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    found = program.simulate(x)
    assert not found.races
    for got, want in zip(found.outputs, fw.evaluate(program.fusion, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
    report = fw.verify(program, x)
    assert not report.missing and not report.redundant


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize(
    ("rows", "arch", "is_constant", "largest"),
    [
        (1, "sm_90a", True, 8),
        (132, "sm_90a", True, 1),  # as many rows as multiprocessors
        (1, "sm_80", True, 1),  # no clusters
        (1, "sm_90a", False, 1),  # a cluster has a constant number of blocks
    ],
)
def test_where_clusters_are_candidates(
    inner: bool, rows: int, arch: str, is_constant: bool, largest: int
) -> None:
    count = rows if inner else 32 * rows
    facts = ReductionFacts(inner, 65536, count, 1, 4, False, is_constant=is_constant)
    plans = [c.plan for c in plans_of(facts, target_of(arch)) if hasattr(c, "plan")]
    assert max(p.cluster for p in plans) == largest
