"""Reductions of rows that are shorter than a line: several rows side by side come first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.forms import prepare
from fusewright.fusion.ir import Fusion, Parts, Reduce
from fusewright.fusion.partitioning import PartitionFacts, to_fill
from fusewright.fusion.passes.fill_lines import fill_lines
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.work import work_of
from fusewright.target import LINE_NBYTES, target_of

T = fw.TensorSpec
TARGET = target_of("sm_90a")


def both(x: Any) -> Any:
    return fw.max(x, axis=1), fw.sum(x * x, axis=1)


REDUCED: dict[str, tuple[Callable[..., Any], fw.TensorSpec]] = {
    "place of the largest": (lambda x: fw.argmax(x, axis=1), T((300, 1208, 5), "bfloat16")),
    "no divisor": (lambda x: fw.sum(x, axis=1), T((301, 1213, 3), "float32")),
    "two of one value": (both, T((290, 2032, 6), "bfloat16")),
    "two axes": (lambda x: fw.sum(x, axis=(1, 2)), T((270, 8, 129, 3), "float32")),
    "integers": (lambda x: fw.min(x, axis=1), T((280, 1001, 7), "int16")),
}


def _fusion(fn: Callable[..., Any], spec: fw.TensorSpec) -> Fusion:
    return prepare(fw.trace(fn, spec), TARGET)


@pytest.mark.parametrize("name", REDUCED)
def test_two_steps_have_the_results_of_one(name: str) -> None:
    fn, spec = REDUCED[name]
    fusion = _fusion(fn, spec)
    filled = fill_lines(fusion)
    reductions = [t for t in filled.values if isinstance(t.op, Reduce)]
    cuts = [t.op.partition for t in filled.values if isinstance(t.op, Parts)]
    assert len(reductions) == 2 * len(fusion.outputs) and len(cuts) == len(fusion.outputs)
    row = int(str(spec.shape[-1])) * spec.dtype.nbytes
    assert all(p.count * row >= LINE_NBYTES for p in cuts)
    shape = tuple(int(str(n)) for n in spec.shape)
    x = (np.random.default_rng(5).standard_normal(shape) * 9).astype(spec.dtype.numpy)
    for got, want in zip(fw.evaluate(filled, x), fw.evaluate(fusion, x), strict=True):
        np.testing.assert_allclose(
            np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=1e-2, atol=1e-3
        )


@pytest.mark.parametrize("name", REDUCED)
def test_kernels_of_two_steps_are_right(name: str) -> None:
    fn, spec = REDUCED[name]
    program = fw.compile(fill_lines(_fusion(fn, spec)), target="sm_90a")
    shape = tuple(int(str(n)) for n in spec.shape)
    x = (np.random.default_rng(6).standard_normal(shape) * 9).astype(spec.dtype.numpy)
    found = program.simulate(x)
    assert not found.races
    want = fw.evaluate(program.fusion, x)
    for got, w in zip(found.outputs, want, strict=True):
        np.testing.assert_allclose(
            np.asarray(got, np.float64), np.asarray(w, np.float64), rtol=1e-2, atol=1e-3
        )


@pytest.mark.parametrize(
    ("fn", "spec"),
    [
        (lambda x: fw.sum(x, axis=1), T((300, 1208, 64), "bfloat16")),  # a line
        (lambda x: fw.sum(x, axis=0), T((1208, 300, 5), "bfloat16")),  # rows of 1500
        (lambda x: fw.sum(x, axis=1), T((300, 1208), "float32")),  # along the row
        (lambda x: x - fw.sum(x, axis=1, keepdims=True), T((300, 1208, 5), "float32")),
        (lambda x: fw.sum(x, axis=1), T((3000, 120, 5), "bfloat16")),  # as many results
        (lambda x: fw.sum(x, axis=(0, 2)), T((300, 1208, 5), "float32")),
    ],
)
def test_others_are_left_alone(fn: Callable[..., Any], spec: fw.TensorSpec) -> None:
    fusion = _fusion(fn, spec)
    assert fill_lines(fusion) is fusion


def test_rows_that_lie_apart_are_left_alone() -> None:
    def reduced(x: Any) -> Any:
        return fw.sum(fw.permute_dims(x, (1, 0, 2)), axis=1)

    fusion = _fusion(reduced, T((1208, 300, 5), "bfloat16"))
    assert fill_lines(fusion) is fusion


def test_predicted_time_takes_two_steps_only_where_they_pay() -> None:
    def reduced(x: Any) -> Any:
        return fw.argmax(x, axis=1)

    odd = fw.compile(fw.trace(reduced, T((2403, 25848, 5), "bfloat16")), target="sm_90a")
    even = fw.compile(fw.trace(reduced, T((2403, 25848, 8), "bfloat16")), target="sm_90a")
    assert (len(odd.launches), len(even.launches)) == (2, 1)
    segment = odd.launches[0].kernel.segment
    heuristic = odd.launches[0].kernel.heuristic
    assert segment is not None and heuristic is not None
    flow = segment.dataflow()
    schedule_group(flow, TARGET, heuristic)
    (read,) = (a for a in work_of(flow, heuristic).arrays if not a.is_written)
    assert sum(read.requested) < 1.1 * read.nbytes


@pytest.mark.parametrize("shape", [(20, 2584800, 5), (7, 2584801, 3), (131, 200000, 5)])
def test_parts_that_fill_the_chip_lie_side_by_side_in_short_rows(shape: tuple[int, ...]) -> None:
    fusion = _fusion(lambda x: x * x, T(shape, "bfloat16"))
    facts = PartitionFacts.of(fusion.outputs[0], (1,))
    assert facts is not None
    cut = to_fill(facts, TARGET)
    assert cut is not None and cut.is_interleaved
    assert cut.count * shape[2] * 2 >= LINE_NBYTES


def test_values_that_occur_twice_are_no_reason_for_another_form() -> None:
    fusion = fw.trace(lambda x: fw.exp(x) + fw.exp(x), T((64, 3), "float32"))
    assert fill_lines(fusion) is fusion
