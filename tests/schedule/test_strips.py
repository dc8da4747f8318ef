"""Columns that blocks hold, and reductions of their rows beside them: partial results of strips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.partitioning import PartitionFacts, strip_of_columns
from fusewright.fusion.passes.strip_partials import strip_partials
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.column_plans import of_columns
from fusewright.schedule.heuristics.reduction_plans import ReductionFacts
from fusewright.target import target_of

TARGET = target_of("sm_90a")
HELD = {"outer_persistent", "outer_shared", "outer_cluster_shared", "outer_cluster_persistent"}


def backward(dy: Any, x: Any, w: Any, rstd: Any) -> Any:
    """Of an RMS norm over the leading axis."""
    g, y = fw.astype(dy, fw.float32), fw.astype(x, fw.float32)
    xhat, d = y * rstd, g * w
    dx = (d - xhat * fw.mean(d * xhat, axis=0, keepdims=True)) * rstd
    rest = tuple(range(1, x.ndim))
    return fw.astype(dx, x.dtype), fw.sum(g * xhat, axis=rest), fw.sum(g, axis=rest)


def softmax_and_rows(x: Any) -> Any:
    """Reductions of what another one has made."""
    y = fw.nn.softmax(x, axis=0)
    return y, fw.sum(y, axis=1), fw.max(y, axis=1)


def backward_specs(shape: tuple[int, ...], dtype: str) -> list[fw.TensorSpec]:
    whole = fw.TensorSpec(shape, dtype)
    weight = fw.TensorSpec((shape[0], *(1 for _ in shape[1:])), dtype)
    return [whole, whole, weight, fw.TensorSpec((1, *shape[1:]), "float32")]


def assert_read_once(fn: Callable[..., Any], specs: list[fw.TensorSpec]) -> fw.Program:
    """One kernel has all that is large, and results agree with the oracle."""
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    first, *small = [x.kernel for x in program.launches]
    assert first.heuristic is not None and first.heuristic.scheduler in HELD
    large = fusion.inputs[0].shape
    assert len(small) in (1, 2)
    assert all(p.shape != large for k in small for p in k.inputs)
    rng = np.random.default_rng(len(specs))
    arrays = [
        rng.standard_normal([int(str(n)) for n in s.shape]).astype(s.dtype.numpy) for s in specs
    ]
    result = program.simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        scale = max(1.0, float(np.abs(want.astype(np.float64)).max()))
        error = np.abs(got.astype(np.float64) - want.astype(np.float64)).max()
        assert error <= (2e-2 if got.dtype.itemsize == 2 else 2e-5) * scale
    return program


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((61, 33_000), "bfloat16"),  # rows that are no multiple, the last strip short
        ((16, 64, 1, 7, 168), "float16"),  # strips across several axes, two cuts alike
        ((70, 18, 1, 1024), "float32"),
        (
            (1201, 4624),
            "float32",
        ),  # a cluster of blocks; half as many are read again from the cache
    ],
)
def test_norm_backwards_down_columns_read_their_inputs_once(
    shape: tuple[int, ...], dtype: str
) -> None:
    program = assert_read_once(backward, backward_specs(shape, dtype))
    assert len(program.launches) == 2


def test_rows_of_results_are_reduced_where_they_are_made() -> None:
    assert_read_once(softmax_and_rows, [fw.TensorSpec((61, 33_000), "float32")])


def test_inputs_that_follow_each_other_otherwise_share_strips_of_their_rows() -> None:
    strided = fw.TensorSpec((43, 41, 512), "bfloat16", strides=(512, 43 * 512, 1))
    specs = backward_specs((43, 41, 512), "bfloat16")
    assert_read_once(backward, [specs[0], strided, *specs[2:]])


def test_blocks_are_as_wide_as_strips() -> None:
    facts = ReductionFacts(False, 61, 8192, 8, 4, is_read_again=True, item_nbytes=2)
    for strip in (64, 128, 256):
        listed = of_columns(replace(facts, strip=strip), TARGET)
        widths = {c.plan.kept_threads * c.plan.vector for c in listed if isinstance(c, Candidate)}
        assert widths == {strip}


@pytest.mark.parametrize(
    ("rows", "columns", "wanted"),
    [
        (32, 172_032, 256),  # 32 KB of two inputs
        (33, 172_032, 128),
        (64, 172_032, 128),
        (65, 172_032, 64),
        (32, 256 * 2 * 132, 256),
        (32, 256 * 2 * 132 - 8, 128),  # too few blocks
    ],
)
def test_strips_are_as_wide_as_registers_hold(rows: int, columns: int, wanted: int) -> None:
    facts = PartitionFacts((rows,), columns, columns, columns, 2, is_inner=False)
    assert strip_of_columns(facts, columns, 4, TARGET) == wanted


def test_strips_leave_few_threads_without_a_column() -> None:
    facts = PartitionFacts((64,), 96 * 1000, 96, 96, 2, is_inner=False)
    assert strip_of_columns(facts, 96, 4, TARGET) == 0
    assert strip_of_columns(facts, 120, 4, TARGET) == 128


def test_columns_that_nobody_holds_are_not_cut_in_strips() -> None:
    fusion = fw.trace(backward, *backward_specs((60_000, 264), "bfloat16"))
    assert strip_partials(fusion, TARGET) is fusion
    held = fw.trace(backward, *backward_specs((600, 26_400), "bfloat16"))
    assert strip_partials(held, TARGET) is not held
