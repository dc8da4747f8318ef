"""Columns and rows that no block has room for are held by the blocks of a cluster, in registers or
with a multiprocessor to each block, where that is predicted to beat a second read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright import forms
from fusewright.fusion.partitioning import PartitionFacts, might_hold
from fusewright.gates.code import code_problems
from fusewright.memory import Memory
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.reduction import plans_of
from fusewright.schedule.heuristics.reduction_plans import (
    FEW_ELEMENTS_PER_THREAD,
    PERSISTENT_BYTES_PER_THREAD,
    ReductionFacts,
    ReductionPlan,
)
from fusewright.target import LINE_NBYTES, target_of

TARGET = target_of("sm_90a")


def norm(x: Any) -> Any:
    d = x - fw.mean(x, axis=0, keepdims=True)
    return d * fw.rsqrt(fw.mean(d * d, axis=0, keepdims=True) + 1e-5)


def residual_norm(x: Any, r: Any) -> Any:
    return norm(x + r)


def softmax(x: Any) -> Any:
    return fw.nn.softmax(x, axis=0)


@pytest.mark.parametrize(
    ("fn", "operands", "shape", "dtype"),
    [
        (norm, 1, (3001, 531), "float32"),  # rows that begin anywhere
        (residual_norm, 2, (1501, 271), "float64"),  # only the sum is held
        (softmax, 1, (2101, 1067), "float16"),
    ],
)
def test_columns_in_registers_are_read_once(
    fn: Callable[..., Any],
    operands: int,
    shape: tuple[int, int],
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forms, "HELD_MARGIN", 0.5)  # so few are read again from the cache as well
    program = fw.compile(fw.trace(fn, *[fw.TensorSpec(shape, dtype)] * operands))
    (k,) = program.kernels
    assert k.heuristic is not None and k.heuristic.scheduler == "outer_cluster_persistent"
    assert code_problems(k) == []
    rng = np.random.default_rng(shape[0])
    own = getattr(fw, dtype).numpy
    arrays = [rng.standard_normal(shape).astype(own) for _ in range(operands)]
    found = program.simulate(*arrays)
    assert not found.races
    (want,) = fw.evaluate(program.fusion, *arrays)
    got, want = np.asarray(found.outputs[0], np.float64), np.asarray(want, np.float64)
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error < {"float16": 2**-9, "float32": 1e-5, "float64": 1e-13}[dtype]
    report = fw.verify(program, *arrays)
    assert not report.missing and not report.redundant


def test_columns_that_no_cluster_holds_are_cut() -> None:
    spec = fw.TensorSpec((60_000, 1061), "float32")
    assert fw.compile(fw.trace(norm, spec)).host.stats["launches"] > 1


def plans(facts: ReductionFacts, arch: str = "sm_90a") -> Iterator[ReductionPlan]:
    """Those in registers of clusters."""
    for c in plans_of(facts, target_of(arch)):
        if isinstance(c, Candidate) and c.plan.cluster > 1 and c.plan.held_in is Memory.LOCAL:
            yield c.plan


@pytest.mark.parametrize("dtype_nbytes", [2, 4, 8])
@pytest.mark.parametrize("columns", [1263, 3001, 7440])
def test_registers_hold_a_line_of_them_side_by_side(columns: int, dtype_nbytes: int) -> None:
    facts = ReductionFacts(False, columns, 1 << 15, 1, dtype_nbytes, True, item_nbytes=dtype_nbytes)
    for p in plans(facts):
        assert p.kept_threads * dtype_nbytes == LINE_NBYTES
        assert p.reduce_threads * p.unrolled * p.cluster >= columns
        assert p.unrolled <= FEW_ELEMENTS_PER_THREAD
        assert p.unrolled * dtype_nbytes <= PERSISTENT_BYTES_PER_THREAD // (1 + (dtype_nbytes > 4))


def test_where_registers_of_clusters_are_candidates() -> None:
    """The longest columns of a line of eight bytes an element: 8 blocks of 1024 threads, of which
    16 stand side by side, with 8 elements each, which take two registers and leave as many."""
    longest = 8 * 1024 // 16 * 8
    facts = ReductionFacts(False, longest, 1 << 15, 1, 8, True, item_nbytes=8)
    (found,) = plans(facts)
    assert (found.cluster, found.kept_threads, found.reduce_threads) == (8, 16, 64)
    longer = ReductionFacts(False, longest + 1, 1 << 15, 1, 8, True, item_nbytes=8)
    assert not list(plans(longer))
    assert not list(plans(facts, "sm_80"))
    few = ReductionFacts(False, longest, 16 * 132 // 8 - 1, 1, 8, True, item_nbytes=8)
    assert not list(plans(few))


def test_what_fills_no_half_of_a_line_comes_last() -> None:
    """Of two bytes an element, 16 columns side by side for 64 in a cluster."""
    facts = ReductionFacts(False, 1263, 50_257, 1, 2, True, item_nbytes=2)
    found = [c.plan for c in plans_of(facts, TARGET) if isinstance(c, Candidate)]
    held = [(p.cluster, p.kept_threads) for p in found if p.held_in is Memory.LOCAL]
    assert held[:3] == [(4, 64), (8, 64), (1, 16)]


@pytest.mark.parametrize(("columns", "alone"), [(200_000, False), (400_000, True)])
def test_slices_of_rows_in_blocks_that_stand_alone_come_last(columns: int, alone: bool) -> None:
    facts = ReductionFacts(True, columns, 64, 4, 4, True)
    found = [c.plan for c in plans_of(facts, TARGET) if isinstance(c, Candidate)]
    nbytes = [p.held_nbytes for p in found if p.held_in is Memory.SHARED]
    assert nbytes
    assert all(n > TARGET.shared_nbytes_of_several for n in nbytes) is alone
    assert all(n <= TARGET.shared_nbytes_per_block for n in nbytes)


def test_what_blocks_might_hold() -> None:
    room = TARGET.multiprocessors * TARGET.shared_nbytes_of_one
    for length, fits in ((room // 4, True), (room // 4 + 1, False)):
        rows = PartitionFacts((length,), 9, 1, 1, 4, is_inner=True)
        assert might_hold(rows, 4, TARGET) is fits


@pytest.mark.parametrize(
    ("shape", "dtype", "margin", "launches"),
    [
        ((3001, 2126), "float32", forms.HELD_MARGIN, 1),
        ((3001, 1063), "float32", 9.0, 3),
        ((1401, 3011), "bfloat16", 9.0, 1),  # one block holds its columns, in no cluster
    ],
)
def test_clusters_have_to_be_clearly_faster(
    shape: tuple[int, int],
    dtype: str,
    margin: float,
    launches: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forms, "HELD_MARGIN", margin)
    fusion = fw.trace(norm if dtype == "float32" else softmax, fw.TensorSpec(shape, dtype))
    chosen = forms.chosen_form(fusion, TARGET)
    assert len(chosen.formation.groups) == launches
