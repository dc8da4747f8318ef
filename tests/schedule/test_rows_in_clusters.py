"""Rows that no block holds: clusters walk over them, with sums of their columns in registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright import forms
from fusewright.fusion.ir import Fusion
from fusewright.fusion.passes.row_partials import row_partials
from fusewright.fusion.persistent_rows import RowRegisters
from fusewright.gates.code import code_problems
from fusewright.kir.ir import CpAsync, For, SyncStatement
from fusewright.kir.traverse import walk_statements
from fusewright.target import MAX_CLUSTER, Target, target_of

TARGET = target_of("sm_90a")


def backward(dy: Any, x: Any, r: Any, s: Any, w: Any, rstd: Any) -> Any:
    """Of an RMS norm of x + r * s."""
    wide = [fw.astype(v, fw.float32) for v in (dy, x, r, s)]
    g, xhat = wide[0], (wide[1] + wide[2] * wide[3]) * rstd
    d = g * w
    dx = (d - xhat * fw.mean(d * xhat, axis=1, keepdims=True)) * rstd
    return fw.astype(dx, x.dtype), fw.sum(g * xhat, axis=0)


def centred(dy: Any, x: Any, r: Any, s: Any, w: Any, rstd: Any) -> Any:
    """With two sums of a row and of a column."""
    wide = [fw.astype(v, fw.float32) for v in (dy, x, r, s)]
    g, xhat = wide[0], (wide[1] + wide[2] * wide[3]) * rstd
    d = g * w
    inner = d - xhat * fw.mean(d * xhat, axis=1, keepdims=True) - fw.mean(d, axis=1, keepdims=True)
    return fw.astype(inner * rstd, x.dtype), fw.sum(g * xhat, axis=0), fw.sum(g, axis=0)


def specs(rows: int, columns: int, dtype: str) -> list[fw.TensorSpec]:
    whole = fw.TensorSpec((rows, columns), dtype)
    return [whole] * 4 + [fw.TensorSpec((1, columns), dtype), fw.TensorSpec((rows, 1), "float32")]


@pytest.fixture
def in_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the form in which clusters walk, whatever others are predicted to take."""

    def walked(f: Fusion, t: Target, shortest: int = 1, *, max_cluster: int = 1) -> Fusion:
        del max_cluster
        return row_partials(f, t, shortest, max_cluster=t.max_cluster)

    monkeypatch.setattr(forms, "row_partials", walked)


@pytest.mark.usefixtures("in_clusters")
@pytest.mark.parametrize(
    ("fn", "rows", "columns", "dtype"),
    [
        (backward, 131, 8200, "float32"),  # parts of the rows differ by one
        (centred, 67, 16_392, "bfloat16"),  # slices end within a trip of a block
        (backward, 64, 6016, "float64"),
    ],
)
def test_rows_are_read_once_and_meet_once(fn: Any, rows: int, columns: int, dtype: str) -> None:
    fusion = fw.trace(fn, *specs(rows, columns, dtype))
    program = fw.compile(fusion)
    first, second = (x.kernel for x in program.launches)
    assert first.heuristic is not None and first.heuristic.scheduler == "rows"
    assert first.launch.cluster > 1
    assert all(p.shape[0] != rows for p in second.inputs)
    assert code_problems(first) == []
    rng = np.random.default_rng(rows)
    arrays = [
        rng.standard_normal([int(str(n)) for n in s.shape]).astype(s.dtype.numpy)
        for s in specs(rows, columns, dtype)
    ]
    result = program.simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        scale = max(1.0, float(np.abs(want.astype(np.float64)).max()))
        error = np.abs(got.astype(np.float64) - want.astype(np.float64)).max()
        assert error <= (2e-2 if got.dtype.itemsize == 2 else 2e-5) * scale


@pytest.mark.usefixtures("in_clusters")
@pytest.mark.parametrize("fn", [backward, centred])
def test_a_row_takes_one_barrier_of_the_cluster(fn: Any) -> None:
    """The sums of a row are handed on at once, and by turns in two places."""
    first = fw.compile(fw.trace(fn, *specs(131, 8200, "float32"))).launches[0].kernel
    loops = [s for s in walk_statements(first.ir) if isinstance(s, For)]
    (walk,) = (f for f in loops if any(isinstance(s, CpAsync) for s in walk_statements(f)))
    syncs = [type(s).__name__ for s in walk_statements(walk) if isinstance(s, SyncStatement)]
    assert sorted(syncs) == ["AsyncCommit", "AsyncWait", "ClusterArrive", "ClusterWait"]


def test_rows_of_a_block_or_of_odd_lengths_are_in_no_cluster() -> None:
    held = RowRegisters((2, 2), (2,), 1)
    assert held.blocks(8192) and not held.blocks(131_072)
    (found,) = held.slices(131_072, MAX_CLUSTER, TARGET.shared_nbytes_per_sm)
    assert (found.cluster, found.length, found.blocks) == (8, 16_384, 1)
    assert [s.cluster for s in held.slices(32_000, MAX_CLUSTER)][:1] == [2]
    assert held.slices(131_073, MAX_CLUSTER) == []
    assert held.slices(131_072, 4) == []
    assert held.slices(1 << 19, MAX_CLUSTER) == []
    assert RowRegisters((2, 4), (), 1).slices(32_000, MAX_CLUSTER) == []


def test_targets_without_clusters_read_long_rows_twice() -> None:
    fusion = fw.trace(backward, *specs(131, 8200, "float32"))
    assert row_partials(fusion, target_of("sm_80"), max_cluster=1) is fusion
    program = fw.compile(fusion, target="sm_80")
    assert all(x.kernel.launch.cluster == 1 for x in program.launches)


@pytest.mark.usefixtures("in_clusters")
def test_rows_that_begin_anywhere_are_shared_without_copies_ahead() -> None:
    inputs = specs(64, 8200, "float32")
    strided = fw.TensorSpec((64, 8200), "float32", strides=(8203, 1))
    fusion = fw.trace(backward, inputs[0], strided, *inputs[2:])
    first = fw.compile(fusion).launches[0].kernel
    assert first.heuristic is not None and first.heuristic.scheduler == "rows"
    assert first.launch.cluster > 1
