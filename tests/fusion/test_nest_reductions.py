"""Reductions in the steps of others read a value once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.ir import Fusion, Reduce
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
