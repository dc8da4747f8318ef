"""Reductions along the lines that a kernel scans: threads walk over each line once for both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.finish import finish
from fusewright.fusion.passes.decompose import decompose
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import candidates_of, schedule_group
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.target import target_of

TARGET = target_of("sm_90a")
F = "float32"


def least(x: Any) -> Any:
    c = fw.cumulative_sum(x, axis=1)
    return c, fw.min(c, axis=1)


def below(x: Any) -> Any:
    """How many prefix sums lie below half of a hundred."""
    return fw.sum(fw.astype(fw.cumulative_sum(x, axis=1) < 50.0, fw.int32), axis=1)


def drawdown(x: Any) -> Any:
    down = x / fw.cumulative_max(x, axis=1) - 1
    return down, 100 * fw.min(down, axis=1), fw.argmin(x, axis=1)


def columns(x: Any) -> Any:
    c = fw.cumulative_sum(x, axis=0)
    return c, fw.max(c, axis=0) + 1, fw.sum(x, axis=0)


CASES: list[tuple[Callable[..., Any], tuple[int, int]]] = [
    (least, (7, 131)),
    (least, (300, 37)),
    (least, (5, 2051)),
    (below, (9, 700)),
    (below, (64, 100)),
    (drawdown, (6, 250)),
    (columns, (41, 35)),
    (columns, (300, 8)),
]


def arrays_for(shape: tuple[int, int]) -> list[np.ndarray[Any, Any]]:
    return [np.random.default_rng(sum(shape)).uniform(0.5, 1.5, shape).astype(np.float32)]


@pytest.mark.parametrize(("fn", "shape"), CASES)
def test_scans_and_reductions_of_lines_are_one_kernel(
    fn: Callable[..., Any], shape: tuple[int, int]
) -> None:
    fusion = fw.trace(fn, fw.TensorSpec(shape, F))
    program = fw.compile(fusion)
    assert len(program.launches) == 1, program.reasons
    arrays = arrays_for(shape)
    result = program.simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("fn", "shape"), [(least, (160, 37)), (below, (5, 300)), (columns, (70, 9))]
)
def test_every_candidate_computes_the_same(fn: Callable[..., Any], shape: tuple[int, int]) -> None:
    fusion = decompose(fw.trace(fn, fw.TensorSpec(shape, F)))
    arrays = arrays_for(shape)
    found = [c for c in candidates_of(Dataflow(fusion), TARGET) if isinstance(c, Candidate)]
    assert len(found) > 2
    for c in found:
        flow = Dataflow(fusion)
        schedule_group(flow, TARGET, c.params)
        result = finish(flow, "k", TARGET, c.params).simulate(*arrays)
        assert result.races == [], c.what
        for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, err_msg=c.what)


def test_every_sync_is_needed() -> None:
    report = fw.verify(fw.compile(fw.trace(least, fw.TensorSpec((7, 131), F))))
    assert report.ok, report


@pytest.mark.parametrize(
    ("fn", "rule"),
    [
        (
            lambda x: fw.cumulative_sum(x, axis=1) / fw.sum(x, axis=1, keepdims=True),
            "a scan stands in no kernel that computes its lines of results of reductions",
        ),
        (
            lambda x: fw.sum(fw.cumulative_sum(x, axis=1), axis=0),
            "a scan stands in no kernel with reductions along other axes of more than 32 elements",
        ),
    ],
)
def test_what_needs_lines_twice_stays_apart(fn: Callable[..., Any], rule: str) -> None:
    program = fw.compile(fw.trace(fn, fw.TensorSpec((33, 70), F)))
    assert any(r.rule == rule for r in program.reasons), program.reasons
    arrays = arrays_for((33, 70))
    for got, want in zip(
        program.simulate(*arrays).outputs, fw.evaluate(program.fusion, *arrays), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4)
