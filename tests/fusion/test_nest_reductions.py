"""Reductions in the steps of others read a value once; steps that nobody needs are no launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.ir import Fusion, Reduce
from fusewright.fusion.passes.merge_steps import merge_steps
from fusewright.fusion.passes.nest_reductions import nest_reductions

S = fw.TensorSpec
X = S((512, 16, 40), "float32")


def nested(fn: Any, spec: fw.TensorSpec = X) -> Fusion:
    """What the pass makes of a program, which computes the same."""
    before = fw.trace(fn, spec)
    after = nest_reductions(before)
    shape = [int(str(n)) for n in spec.shape]
    x = np.random.default_rng(1).standard_normal(shape).astype("float32")
    x = x.astype(before.inputs[0].dtype.numpy)
    for a, b in zip(fw.evaluate(before, x), fw.evaluate(after, x), strict=True):
        np.testing.assert_allclose(a.astype("float64"), b.astype("float64"), 1e-2, 1e-2)
    return after


def read_by(fusion: Fusion) -> list[tuple[str, tuple[int, ...], int]]:
    """Of each reduction the function, its axes, and the rank of what it reduces."""
    found = [t.op for t in fusion.values if isinstance(t.op, Reduce)]
    return [(op.fn, op.axes, op.operands[0].ndim) for op in found]


def test_a_total_is_made_of_sums_of_rows() -> None:
    found = read_by(nested(lambda x: (fw.sum(x, axis=2), fw.sum(x))))
    assert found == [("add", (2,), 3), ("add", (0, 1), 2)]


def test_a_total_follows_the_steps_of_another_function() -> None:
    found = read_by(nested(lambda x: (fw.max(x, axis=2), fw.sum(x))))
    assert found == [("max", (2,), 3), ("add", (2,), 3), ("add", (0, 1), 2)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_steps_are_as_wide_as_sums_are_computed(dtype: str) -> None:
    after = nested(lambda x: (fw.max(x, axis=2), fw.sum(x)), S((512, 16, 40), dtype))
    sums = [t for t in after.values if isinstance(t.op, Reduce) and t.op.fn == "add"]
    assert [t.dtype.name for t in sums] == ["float32", "float32"]


def test_reductions_of_other_axes_and_of_little_stay() -> None:
    for fn in (
        lambda x: (fw.max(x, axis=2), fw.sum(x, axis=0)),
        lambda x: (fw.max(x[:8], axis=2), fw.sum(x[:8])),
    ):
        fusion = fw.trace(fn, X)
        assert nest_reductions(fusion) is fusion


def steps(x: Any) -> Any:
    partial = fw.sum(x, axis=2)
    return fw.sum(fw.sum(partial, axis=1), axis=0)


def needed(x: Any) -> Any:
    rows = fw.sum(fw.sum(x, axis=2), axis=1)
    return rows, fw.sum(rows, axis=0)


def other(x: Any) -> Any:
    return fw.max(fw.sum(fw.sum(x, axis=2), axis=1), axis=0)


def first(x: Any) -> Any:
    return fw.sum(fw.sum(x, axis=2), axis=0)


def test_steps_behind_partial_results_are_one() -> None:
    before = fw.trace(steps, X)
    after = merge_steps(before)
    assert read_by(after) == [("add", (2,), 3), ("add", (0, 1), 2)]
    x = np.random.default_rng(3).standard_normal((512, 16, 40)).astype("float32")
    np.testing.assert_allclose(fw.evaluate(after, x)[0], fw.evaluate(before, x)[0], rtol=1e-6)


@pytest.mark.parametrize("fn", [needed, other, first])
def test_steps_that_are_needed_or_that_make_partial_results_stay(fn: Any) -> None:
    fusion = fw.trace(fn, X)
    assert merge_steps(fusion) is fusion


def test_a_total_beside_maxima_of_few_rows_takes_no_launch_of_its_own() -> None:
    """The first step of both is cut so that more blocks take part; what is left of each is a few
    partial results, and both stand in one launch."""

    def fn(x: Any) -> Any:
        return fw.max(x, axis=(1, 2)), fw.max(x, axis=0), fw.sum(x)

    program = fw.compile(fw.trace(fn, S((16, 13 * 104, 608), "float32")))
    assert len(program.launches) == 3
    few = fw.compile(fw.trace(fn, S((16, 13 * 8, 608), "float32")))
    x = np.random.default_rng(4).standard_normal((16, 13 * 8, 608)).astype("float32")
    found = few.simulate(x)
    assert found.races == []
    for got, want in zip(found.outputs, fw.evaluate(few.fusion, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-2)
