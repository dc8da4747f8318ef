"""Columns that registers do not hold and that are needed again stay in shared memory: one kernel,
one read of its operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.gates.code import code_problems
from fusewright.kir.ir import Load
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory
from fusewright.schedule.heuristics.reduction import plans_of
from fusewright.schedule.heuristics.reduction_plans import ReductionFacts
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def softmax(x: Any) -> Any:
    return fw.nn.softmax(x, axis=0)


def norm(x: Any) -> Any:
    d = x - fw.mean(x, axis=0, keepdims=True)
    return d * fw.rsqrt(fw.mean(d * d, axis=0, keepdims=True) + 1e-5)


def backward(g: Any, x: Any) -> Any:
    return g - fw.mean(g, axis=0, keepdims=True) - x * fw.mean(g * x, axis=0, keepdims=True)


def softmax64(x: Any) -> Any:
    e = np.exp(x - x.max(0))
    return e / e.sum(0)


def norm64(x: Any) -> Any:
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)


def backward64(g: Any, x: Any) -> Any:
    return g - g.mean(0) - x * (g * x).mean(0)


@pytest.mark.parametrize(
    ("fn", "want", "operands", "rows", "columns", "dtype"),
    [
        (norm, norm64, 1, 1312, 2304, "bfloat16"),
        (norm, norm64, 1, 2101, 1064, "float16"),
        (norm, norm64, 1, 2031, 1064, "float32"),
        (softmax, softmax64, 1, 2500, 1072, "bfloat16"),
        (backward, backward64, 2, 1024, 1056, "bfloat16"),
    ],
)
def test_columns_are_read_once(
    fn: Callable[..., Any],
    want: Callable[..., Any],
    operands: int,
    rows: int,
    columns: int,
    dtype: str,
) -> None:
    program = fw.compile(fw.trace(fn, *[fw.TensorSpec((rows, columns), dtype)] * operands))
    (k,) = program.kernels
    assert k.heuristic is not None
    assert k.heuristic.scheduler in ("outer_shared", "outer_cluster_shared")
    read = [s.src for s in walk_statements(k.ir) if isinstance(s, Load) and s.src in k.ir.params]
    per_operand = {p: read.count(p) for p in read}
    assert len(per_operand) == operands
    assert code_problems(k) == []
    rng = np.random.default_rng(rows)
    own = getattr(fw, dtype).numpy
    arrays = [rng.standard_normal((rows, columns)).astype(own) for _ in range(operands)]
    result = program.simulate(*arrays)
    assert not result.races
    expected = want(*(a.astype(np.float64) for a in arrays))
    error = np.abs(result.outputs[0].astype(np.float64) - expected).max() / np.abs(expected).max()
    assert error < (1e-5 if dtype == "float32" else 2**-7)
    found = fw.verify(k, *arrays)
    assert not found.missing and not found.redundant


def test_columns_that_are_needed_once_are_held_nowhere() -> None:
    spec = fw.TensorSpec((912, 4304), "bfloat16")
    program = fw.compile(fw.trace(lambda x: fw.sum(x, axis=0), spec))
    assert all(k.heuristic.scheduler == "outer_multi_pass" for k in program.kernels if k.heuristic)


@pytest.mark.parametrize(
    ("columns", "vector", "held", "kept", "cluster"),
    [
        (912, 8, 2, 8, 4),  # slices of 228 lines: several blocks on a multiprocessor
        (3000, 8, 2, 8, 4),  # two of them
        (8000, 8, 2, 8, 8),  # one
        (16000, 8, 2, 0, 0),  # no room for a line of each row
        (9000, 1, 2, 0, 0),  # no vectors
    ],
)
def test_how_columns_are_shared_out(
    columns: int, vector: int, held: int, kept: int, cluster: int
) -> None:
    facts = ReductionFacts(False, columns, 1 << 15, vector, held, True, item_nbytes=held)
    plans = [c.plan for c in plans_of(facts, TARGET) if hasattr(c, "plan")]
    first = plans[0]
    if not kept:
        assert all(p.held_in is not Memory.SHARED or p.parts > 1 for p in plans)
        return
    assert first.held_in is Memory.SHARED
    assert (first.kept_threads, first.cluster) == (kept, cluster)
    assert first.held_nbytes <= TARGET.shared_nbytes_per_block


def test_without_clusters_a_block_holds_columns_alone() -> None:
    facts = ReductionFacts(False, 600, 1 << 15, 8, 4, is_read_again=True)
    plans = [c.plan for c in plans_of(facts, target_of("sm_80")) if hasattr(c, "plan")]
    assert [p.cluster for p in plans if p.held_in is Memory.SHARED] == [1]


@pytest.mark.parametrize(("vector", "kept"), [(8, 8), (4, 16), (2, 32), (1, 0)])
def test_narrow_vectors_take_more_threads_to_fill_lines(vector: int, kept: int) -> None:
    """Of 2 bytes an element."""
    facts = ReductionFacts(False, 912, 1 << 15, vector, 2, is_read_again=True, item_nbytes=2)
    plans = [c.plan for c in plans_of(facts, TARGET) if hasattr(c, "plan")]
    assert {p.kept_threads for p in plans if p.held_in is Memory.SHARED} == (
        {kept} if kept else set()
    )


def test_a_block_alone_on_its_multiprocessor_has_more_threads() -> None:
    facts = ReductionFacts(False, 11952, 18698, 2, 2, is_read_again=True, item_nbytes=2)
    first = next(c.plan for c in plans_of(facts, TARGET) if hasattr(c, "plan"))
    assert first.held_nbytes > TARGET.shared_nbytes_per_sm // 2
    assert first.kept_threads * first.reduce_threads == 1024
