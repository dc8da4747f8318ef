"""Partitions of kernels as they formed: rows that are refused leave other parts behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.forms import prepare
from fusewright.fusion.ir import Fusion, Parts
from fusewright.fusion.partition import Partition
from fusewright.fusion.partitioning import PartitionFacts, beside_rows, to_fill
from fusewright.fusion.persistent_rows import RowRegisters
from fusewright.host.choose_partitions import formed
from fusewright.host.form import form
from fusewright.target import target_of

TARGET = target_of("sm_90a")
SHAPE = (4096, 520)
COLUMNS = PartitionFacts((4096,), 520, 520, 520, 4, is_inner=False)


def beside(x: Any) -> Any:
    """A column sum beside a row sum of the same tensor."""
    return fw.sum(fw.exp(x), axis=1), fw.sum(x, axis=0)


def apart(x: Any) -> Any:
    """Row sums of what a scan makes of the tensor: they read another one."""
    return fw.sum(fw.cumulative_sum(x, axis=1), axis=1), fw.sum(x, axis=0)


def prepared(fn: Any, shape: tuple[int, ...] = SHAPE) -> Fusion:
    return prepare(fw.trace(fn, fw.TensorSpec(shape, "float32")), TARGET)


def partitions_of(fusion: Fusion) -> list[Partition]:
    return [t.op.partition for t in fusion.values if isinstance(t.op, Parts)]


def test_parts_that_a_kernel_of_rows_makes_are_its_blocks() -> None:
    fusion = prepared(beside)
    again, formation = formed(fusion, TARGET)
    assert again is fusion and formation == form(fusion)
    (found,) = partitions_of(again)
    held = RowRegisters((4,), (), 1)
    assert found == beside_rows(COLUMNS, held, SHAPE[1], TARGET) != to_fill(COLUMNS, TARGET)


def test_rows_that_are_refused_leave_parts_that_fill_the_chip() -> None:
    fusion = prepared(apart)
    (before,) = partitions_of(fusion)
    again, formation = formed(fusion, TARGET)
    (after,) = partitions_of(again)
    assert before.is_interleaved and after == to_fill(COLUMNS, TARGET) != before
    assert {t for g in formation.groups for t in g} <= set(again.values)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    for got, want in zip(fw.evaluate(again, x), fw.evaluate(fusion, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_results_do_not_depend_on_the_order_of_blocks() -> None:
    program = fw.compile(fw.trace(apart, fw.TensorSpec(SHAPE, "float32")))
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    runs = [program.simulate(x, check_races=False, seed=s).outputs for s in (0, 1)]
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["an output", "of another function", "read by others"])
def test_parts_that_a_program_reads_itself_stay(kind: str) -> None:
    """Their count shows in the results."""

    def fn(x: Any) -> Any:
        parts = fw.sum(fw.reshape(x, (1024, 4, 520)), axis=1)
        if kind == "an output":
            return parts, fw.sum(parts, axis=0)
        if kind == "of another function":
            return fw.max(parts, axis=0)
        return fw.sum(parts, axis=0), fw.sum(fw.exp(parts), axis=1)

    fusion = prepared(fn)
    assert Partition(4096, 1024, 4) in partitions_of(fusion)
    again, _ = formed(fusion, TARGET)
    assert again is fusion


def test_parts_of_a_few_rows_are_none() -> None:
    """What a program sums by parts of a small tensor is summed at once."""

    def fn(x: Any) -> Any:
        return fw.sum(fw.sum(fw.reshape(x, (8, 4, 520)), axis=1), axis=0)

    fusion = prepared(fn, (32, 520))
    again, formation = formed(fusion, TARGET)
    assert partitions_of(fusion) == [Partition(32, 8, 4)] and partitions_of(again) == []
    assert len(formation.groups) == 1 < len(form(fusion).groups)
