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
        (lambda x: (fw.max(x, axis=0), fw.sum(x, axis=0)), (15_011, 7), "outer_cluster_multi_pass"),
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


@pytest.mark.parametrize(("rows", "threads"), [(67, 1024), (132, 1024), (133, 512), (66, 512)])
def test_rows_that_have_a_multiprocessor_each_may_take_all_of_its_threads(
    rows: int, threads: int
) -> None:
    """Where no second block is there that reads while one waits."""
    target = target_of("sm_90a")
    facts = ReductionFacts(True, 250_552, rows, 4, 4, is_read_again=False)
    plans = [c.plan for c in plans_of(facts, target) if hasattr(c, "plan")]
    assert max(p.reduce_threads for p in plans) == threads


def test_blocks_of_1024_threads_reduce_long_rows_that_functions_are_computed_of() -> None:
    spec = fw.TensorSpec((128, 250_553), "float32")
    (kernel,) = fw.compile(fw.trace(lambda x: fw.min(fw.sqrt(fw.abs(x)), axis=1), spec)).kernels
    assert str(kernel.launch.block[0]) == "1024"
    x = np.random.default_rng(4).standard_normal((128, 250_553)).astype(np.float32)
    found = kernel.simulate(x, blocks=[0, 127])
    assert not found.races
    want = np.sqrt(np.abs(x)).min(axis=1)
    np.testing.assert_allclose(found.outputs[0][[0, 127]], want[[0, 127]], rtol=1e-5)
