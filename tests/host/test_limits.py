"""Programs on both sides of what one kernel may hold: right values on each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from host_runs import run_on_bytes

import fusewright as fw
from fusewright.fusion.ir import Concat
from fusewright.fusion.passes.cut_joins import cut_joins
from fusewright.host.groups import (
    MAX_DEPTH,
    MAX_OPERANDS,
    MAX_OPS,
    MAX_RECOMPUTED,
    MAX_REDUCTIONS,
)
from fusewright.host.joins import MAX_STORES
from fusewright.schedule.clone_untied_uses import MAX_CLONES

A = fw.TensorSpec((4, 3), "float32")
X = fw.TensorSpec((6, 40), "float32")


def around(*limits: int) -> list[int]:
    return sorted({n + d for n in limits for d in (-1, 0, 1)})


def checked(fn: Callable[..., Any], *specs: fw.TensorSpec) -> fw.HostProgram:
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([int(str(e)) for e in s.shape]).astype(np.float32) for s in specs]
    result = program.simulate(*arrays)
    assert result.races == []
    wanted = fw.evaluate(fusion, *arrays)
    for outputs in (result.outputs, run_on_bytes(program, *arrays, seed=1)):
        for got, want in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5)
    return program.host


def soft(x):
    return fw.nn.softmax(x, axis=-1)


WIDE: dict[str, Callable[..., Any]] = {
    "concat": lambda *x: fw.concat(x, axis=1),
    "read by another": lambda *x: fw.exp(fw.concat(x, axis=1)),
    "of computed values": lambda *x: fw.concat([fw.exp(a) for a in x], axis=1),
    "of kernels": lambda *x: fw.concat([soft(a) for a in x], axis=1),
    "of kernels, read by another": lambda *x: fw.sum(fw.stack([soft(a) for a in x]), axis=0),
    "stack": lambda *x: fw.stack(x),
    "stack on the last axis": lambda *x: fw.sum(fw.stack(x, axis=-1), axis=0),
    "of sums": lambda *x: fw.stack([fw.sum(a * a) for a in x]),
    "read twice": lambda *x: (fw.concat(x), fw.cumulative_sum(fw.concat(x), axis=0)),
}


@pytest.mark.parametrize("count", [*around(MAX_OPERANDS), 30, 2 * MAX_OPERANDS + 1])
@pytest.mark.parametrize("kind", WIDE)
def test_joins_of_any_width(kind: str, count: int) -> None:
    checked(WIDE[kind], *[A] * count)


@pytest.mark.parametrize("count", around(MAX_OPERANDS))
def test_a_value_that_is_joined_many_times_in_one_place(count: int) -> None:
    host = checked(lambda x: fw.sum(fw.concat([x] * count, axis=1), axis=1), A)
    assert host.stats["launches"] == (1 if count <= MAX_OPERANDS else 2)


def test_a_thousand_pieces_are_few_kernels() -> None:
    program = fw.compile(fw.trace(lambda *x: fw.concat(x, axis=1), *[A] * 1000))
    assert program.host.stats["launches"] == 42
    assert len(program.kernels) <= 4


def test_a_wide_join_becomes_runs_and_equal_runs_are_one() -> None:
    cut = cut_joins(fw.trace(lambda *x: fw.concat(x, axis=1), *[A] * 60), 24)
    joins = [t for t in cut.values if isinstance(t.op, Concat)]
    assert [len(t.op.operands) for t in joins] == [24, 24, 12, 3]
    same = cut_joins(fw.trace(lambda x: fw.concat([x] * 48, axis=1), A), 24)
    assert [len(t.op.operands) for t in same.values] == [0, 24, 2]
    narrow = fw.trace(lambda *x: fw.concat(x, axis=1), *[A] * 24)
    assert cut_joins(narrow, 24) is narrow


@pytest.mark.parametrize("count", around(MAX_OPERANDS))
def test_many_reads_of_one_kernel(count: int) -> None:
    """Elementwise over many arguments, and many slices of one argument that a kernel joins."""
    checked(lambda *x: sum(x[1:], x[0]), *[A] * count)
    cuts = fw.TensorSpec((2 * count, 5), "float32")
    checked(lambda x: fw.sum(fw.stack([soft(x)[2 * k] for k in range(count)]), axis=0), cuts)


@pytest.mark.parametrize("count", around(MAX_STORES))
def test_a_value_that_is_joined_in_many_places(count: int) -> None:
    host = checked(lambda x, y: [fw.concat([soft(x), soft(y * k)]) for k in range(count)], X, X)
    assert host.stats["copies"] == max(0, count - MAX_STORES)


@pytest.mark.parametrize("count", around(MAX_OPS))
def test_chains_of_many_ops(count: int) -> None:
    def chain(x):
        for k in range(count):
            x = fw.sin(x + k)
        return x

    checked(chain, A)


@pytest.mark.parametrize("count", around(MAX_OPS))
def test_chains_of_many_views(count: int) -> None:
    """Permutations that nothing folds, between a value and its reader."""

    def chain(x):
        for _ in range(count):
            x = fw.permute_dims(x, (1, 2, 0))
        return fw.exp(x) + 1.0

    checked(chain, fw.TensorSpec((6, 5, 2), "float32"))


@pytest.mark.parametrize("count", around(MAX_DEPTH, MAX_REDUCTIONS, MAX_RECOMPUTED))
def test_reductions_in_a_row_and_side_by_side(count: int) -> None:
    def row(x):
        for _ in range(count):
            x = x - fw.max(x, axis=1, keepdims=True) * 0.5
        return x

    checked(row, X)
    checked(lambda x: [fw.sum(fw.sin(x + k), axis=1) for k in range(count)], X)


@pytest.mark.parametrize("count", around(MAX_CLONES))
def test_many_readers_of_one_value(count: int) -> None:
    checked(lambda x: [fw.flip(fw.exp(x) * k, axis=k % 2) for k in range(count)], A)
