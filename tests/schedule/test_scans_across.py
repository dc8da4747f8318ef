"""Reductions across the lines that a kernel scans: each place of the lines has a result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright import forms
from fusewright.finish import finish
from fusewright.forms import prepare
from fusewright.fusion.passes.decompose import decompose
from fusewright.host.form import form
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import candidates_of, schedule_group
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.target import target_of

TARGET = target_of("sm_90a")
T = fw.TensorSpec
Fn = Callable[..., Any]


def centred(x: Any, axes: tuple[int, ...]) -> Any:
    return x - fw.mean(x, axis=axes, keepdims=True)


def over_slow(x: Any) -> Any:
    """Lines down columns, each place of them reduced over the slowest axis."""
    return centred(fw.exp(fw.cumulative_sum(x, axis=1) * 0.01), (0,))


def over_fast(x: Any) -> Any:
    """Lines down columns, whose rows are reduced."""
    return fw.nn.softmax(fw.cumulative_sum(x, axis=1) * 0.1, axis=2)


def before_rows(x: Any) -> Any:
    """Lines along rows of what several rows are scaled by."""
    return fw.cumulative_sum(fw.nn.softmax(x, axis=1), axis=2)


def with_ends(x: Any) -> Any:
    """What the lines themselves are reduced to as well."""
    y = centred(fw.cumulative_sum(x, axis=1), (2,))
    return y, fw.max(y, axis=1)


def over_two(x: Any) -> Any:
    """Two axes, one at each side of the line's."""
    return centred(fw.cumulative_max(x, axis=2), (0, 3))


CASES: list[tuple[Fn, tuple[int, ...], str]] = [
    (over_slow, (7, 10, 2177), "float32"),
    (over_slow, (2, 101, 4096), "float16"),
    (over_fast, (65, 100, 12), "float32"),
    (over_fast, (3, 700, 8), "float16"),
    (over_fast, (70, 90, 5), "float32"),
    (over_fast, (66, 19, 40), "float32"),
    (before_rows, (70, 5, 300), "float32"),
    (before_rows, (70, 3, 61), "float32"),
    (with_ends, (80, 37, 6), "float32"),
    (over_two, (3, 70, 21, 4), "float32"),
]


def arrays_for(shape: tuple[int, ...], dtype: str) -> list[Any]:
    return [np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(dtype)]


def unchanged(fusion: fw.Fusion, _: object) -> fw.Fusion:
    return fusion


def check(results: Any, fusion: fw.Fusion, arrays: list[Any]) -> None:
    assert results.races == []
    for got, want in zip(results.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_allclose(
            np.asarray(got, "f8"), np.asarray(want, "f8"), rtol=2e-3, atol=2e-3
        )


@pytest.mark.parametrize(("fn", "shape", "dtype"), CASES)
def test_what_is_reduced_across_lines_is_in_their_kernel(
    fn: Fn, shape: tuple[int, ...], dtype: str
) -> None:
    fusion = fw.trace(fn, T(shape, dtype))
    program = fw.compile(fusion)
    assert len(program.launches) == 1, program.reasons
    arrays = arrays_for(shape, dtype)
    check(program.simulate(*arrays), fusion, arrays)


@pytest.mark.parametrize(
    ("fn", "shape", "fewest"),
    [
        (over_slow, (5, 18, 2055), 2),
        (over_fast, (67, 31, 12), 4),
        (over_fast, (65, 9, 7), 2),
        (before_rows, (66, 3, 130), 3),
        (with_ends, (65, 20, 6), 3),
        (over_two, (2, 65, 9, 8), 3),
    ],
)
def test_every_candidate_computes_the_same(fn: Fn, shape: tuple[int, ...], fewest: int) -> None:
    fusion = decompose(fw.trace(fn, T(shape, "float32")))
    arrays = arrays_for(shape, "float32")
    found = [c for c in candidates_of(Dataflow(fusion), TARGET) if isinstance(c, Candidate)]
    assert len(found) >= fewest
    for c in found:
        flow = Dataflow(fusion)
        schedule_group(flow, TARGET, c.params)
        check(finish(flow, "k", TARGET, c.params).simulate(*arrays), fusion, arrays)


def of_rows(x: Any) -> Any:
    return centred(fw.cumulative_sum(fw.astype(x, fw.float32), axis=0), (1,))


def test_parts_of_lines_are_joined_and_reduced_across_in_one_kernel() -> None:
    program = fw.compile(fw.trace(of_rows, T((70001, 16), "float16")))
    assert len(program.launches) == 3, program.reasons
    last = program.launches[-1].kernel
    assert "scan_columns" in str(last.heuristic)
    assert last.resources().spill_stores == 0
    x = np.random.default_rng(3).integers(-2, 3, (70001, 16)).astype("float16")
    result = program.simulate(x)
    assert result.races == []
    want = fw.evaluate(program.fusion, x)[0]
    np.testing.assert_allclose(result.outputs[0], np.asarray(want, "f4"), rtol=1e-4, atol=1e-3)


def test_the_text_of_a_kernel_does_not_grow_with_the_trips_of_a_part() -> None:
    """Threads side by side over a row lie inside of the loop over a part's trips: what is reduced
    of a row is not kept until all rows are done."""
    lengths = [
        len(fw.compile(fw.trace(of_rows, T((n, 32), "float16"))).launches[-1].kernel.cuda)
        for n in (131072, 262144)
    ]
    assert lengths[1] < 1.1 * lengths[0]


def test_long_lines_of_what_is_computed_are_read_twice_and_not_stored_between() -> None:
    def fn(x: Any) -> Any:
        return fw.astype(fw.cumulative_sum(fw.astype(x, fw.float32), axis=0), fw.bfloat16)

    n = 262144 * 8 * 2
    program = fw.compile(fw.trace(fn, T((262144, 8), "bfloat16")))
    assert program.host.stats["bytes_moved"] < 3.1 * n, program.reasons


@pytest.mark.parametrize(
    ("fn", "shape", "why"),
    [
        (over_slow, (33, 20, 4096), "of more than 32 elements"),
        (over_fast, (80, 20, 129), "of more than 32 elements"),
        (over_slow, (12, 300, 320), "in 40 blocks; 64 would do"),
        (before_rows, (6, 12, 5003), "in 6 blocks; 64 would do"),
    ],
)
def test_too_many_lines_and_too_few_blocks_are_refused(
    fn: Fn, shape: tuple[int, ...], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "split_scans", unchanged)
    fusion = fw.trace(fn, T(shape, "float32"))
    reasons = form(prepare(fusion, TARGET)).reasons
    assert any(why in str(r) for r in reasons), reasons


def test_reductions_across_different_lines_are_two_kernels() -> None:
    def fn(x: Any) -> Any:
        return centred(centred(fw.cumulative_sum(x, axis=1), (2,)), (0,))

    fusion = fw.trace(fn, T((70, 90, 6), "float32"))
    program = fw.compile(fusion)
    assert any("of which there are several" in str(r) for r in program.reasons)
    assert not any("cut in two" in str(r) for r in program.reasons)
    arrays = arrays_for((70, 90, 6), "float32")
    check(program.simulate(*arrays), fusion, arrays)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (5, 1), (18961,)], ids=str)
def test_a_line_of_one_element_is_a_line(shape: tuple[int, ...]) -> None:
    """A form of 18,961 elements scans the total of its only part."""
    p = fw.compile(
        fw.trace(lambda x: fw.cumulative_sum(x, axis=len(shape) - 1), T(shape, "float32"))
    )
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    found = p.simulate(x)
    assert not found.races
    np.testing.assert_allclose(found.outputs[0], np.cumsum(x, -1, np.float64), rtol=1e-4, atol=1e-3)
