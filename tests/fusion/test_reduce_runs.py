"""Reductions of joins of more values than a kernel reads store no join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.ir import Concat
from fusewright.fusion.passes.reduce_runs import reduce_runs
from fusewright.host.groups import MAX_OPERANDS

S = fw.TensorSpec
SHAPE = (5, 24)
COUNT = MAX_OPERANDS + 7

PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {
    "sum along the joined axis": (lambda *t: fw.sum(fw.concat(t, axis=0), axis=0), 3),
    "sum across it": (lambda *t: fw.sum(fw.concat(t, axis=0), axis=1), 2),
    "sum of rows that are joined": (lambda *t: fw.sum(fw.concat(t, axis=1), axis=1), 3),
    "sum of all": (lambda *t: fw.sum(fw.concat(t, axis=1)), 3),
    "maximum of a function": (lambda *t: fw.max(fw.abs(fw.concat(t, axis=0)), axis=0), 3),
    "product of a stack": (lambda *t: fw.prod(fw.stack(t, axis=0) , axis=0), 3),
    "mean of a function": (lambda *t: fw.mean(fw.exp(fw.concat(t, axis=1)), axis=1), 3),
}  # fmt: skip


def traced(name: str, count: int = COUNT, shape: tuple[int, int] = SHAPE) -> fw.Fusion:
    return fw.trace(PROGRAMS[name][0], *[S(shape, "float32")] * count)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_pieces_are_read_once(name: str) -> None:
    fusion = traced(name, shape=(256, 256))
    stats = fw.compile(fusion).host.stats
    least = 4 * 256 * 256 * (COUNT + (name == "product of a stack"))
    assert stats["bytes_moved"] <= 1.07 * least  # of a stack, results of runs are as large as its
    assert stats["copies"] == 0 and stats["launches"] <= PROGRAMS[name][1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name: str) -> None:
    fusion = traced(name)
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(SHAPE).astype(np.float32) for _ in range(COUNT)]
    result = fw.compile(fusion).simulate(*arrays)
    assert not result.races
    (want,) = fw.evaluate(fusion, *arrays)
    np.testing.assert_allclose(result.outputs[0], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [MAX_OPERANDS, MAX_OPERANDS + 1])
def test_joins_that_a_kernel_reads_stay_whole(count: int) -> None:
    fusion = traced("sum along the joined axis", count)
    made = reduce_runs(fusion, MAX_OPERANDS)
    joins = [len(t.op.operands) for t in made.values if isinstance(t.op, Concat)]
    assert joins == ([count] if count == MAX_OPERANDS else [MAX_OPERANDS, 1][:1])
    assert (made is fusion) == (count == MAX_OPERANDS)


def test_a_join_that_others_read_is_stored() -> None:
    def fn(*t: Any) -> Any:
        y = fw.concat(t, axis=0)
        return y, fw.sum(y, axis=0)

    fusion = fw.trace(fn, *[S(SHAPE, "float32")] * COUNT)
    assert reduce_runs(fusion, MAX_OPERANDS) is fusion
