"""Joins of what reductions go into are selections, where that is predicted to be faster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.ir import Concat, Fusion, IndexMap
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.select_joins import MAX_PARTS, select_joins

S = fw.TensorSpec


def selected(fn: Any, *specs: fw.TensorSpec) -> Fusion:
    """What the pass makes of a program, which computes the same."""
    before = fw.trace(fn, *specs)
    after = cse(select_joins(before))
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal([int(str(n)) for n in s.shape]).astype("float32") for s in specs]
    for a, b in zip(fw.evaluate(before, *arrays), fw.evaluate(after, *arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    return after


def joins(fusion: Fusion) -> int:
    return sum(isinstance(t.op, Concat) for t in fusion.values)


def maps(fusion: Fusion) -> int:
    return sum(isinstance(t.op, IndexMap) for t in fusion.values)


def turned(x: fw.Array) -> fw.Array:
    """A norm whose halves change places, one of them negated."""
    y = x * fw.rsqrt(fw.mean(x * x, axis=-1, keepdims=True))
    h = x.shape[-1] // 2
    return fw.concat([-y[..., h:], y[..., :h]], axis=-1) + y


def test_parts_that_change_places_read_an_argument_once_around() -> None:
    after = selected(turned, S((5, 16), "float32"))
    assert (joins(after), maps(after)) == (0, 1)


def test_parts_at_unrelated_places_are_read_apart() -> None:
    def fn(x: fw.Array) -> fw.Array:
        y = fw.nn.softmax(x, axis=-1)
        return fw.concat([y[:, 3:8], fw.exp(y)[:, 1:4], x[:, :2]], axis=1)

    after = selected(fn, S((6, 10), "float32"))
    assert (joins(after), maps(after)) == (0, 3)


def test_joins_along_rows_and_of_padded_parts() -> None:
    def fn(x: fw.Array) -> fw.Array:
        y = x - fw.mean(x, axis=0)
        return fw.concat([y[3:], fw.zeros((2, 10)), y[:3] * 2], axis=0)

    assert joins(selected(fn, S((6, 10), "float32"))) == 0


def test_joins_without_reductions_and_of_what_is_not_computed_again_stay() -> None:
    spec = S((6, 10), "float32")
    plain = fw.trace(lambda x: fw.concat([x[:, 5:], x[:, :5]], axis=1), spec)
    assert select_joins(plain) is plain
    scanned = fw.trace(
        lambda x: fw.concat([fw.cumulative_sum(x, axis=1), x / fw.sum(x)], axis=1), spec
    )
    assert select_joins(scanned) is scanned
    many = fw.trace(lambda x: fw.concat([x / fw.sum(x)] * (MAX_PARTS + 1), axis=1), spec)
    assert select_joins(many) is many


def test_a_norm_and_a_rotation_are_one_kernel() -> None:
    def fn(x: fw.Array, w: fw.Array, c: fw.Array, s: fw.Array) -> fw.Array:
        y = fw.nn.rms_norm(x, (128,), w)
        return fw.concat([-y[..., 64:], y[..., :64]], axis=-1) * s + y * c

    specs = [S((4, 2048, 16, 128), "bfloat16"), S((128,), "bfloat16")]
    specs += [S((2048, 1, 128), "bfloat16")] * 2
    program = fw.compile(fw.trace(fn, *specs))
    stats = program.host.stats
    assert stats["launches"] == 1
    assert stats["bytes_moved"] <= 1.03 * 4 * 4 * 2048 * 16 * 128


@pytest.mark.parametrize("columns", [8, 96, 130, 1030])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_agree_with_the_oracle(columns: int, dtype: str) -> None:
    fusion = fw.trace(turned, S((9, columns), dtype))
    numpy = fusion.inputs[0].dtype.numpy
    x = np.random.default_rng(columns).standard_normal((9, columns)).astype(numpy)
    found = fw.compile(fusion).simulate(x, check_races=True)
    assert not found.races
    (expected,) = fw.evaluate(fusion, x)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(
        found.outputs[0].astype("float64"), expected.astype("float64"), tolerance, tolerance
    )


def test_reductions_of_one_element_along_the_join_are_read_at_it() -> None:
    def fn(x: fw.Array) -> fw.Array:
        total = fw.sum(x, axis=1, keepdims=True)
        return fw.concat([fw.exp(total * 0.1), total], axis=1)

    def sums(x: fw.Array) -> fw.Array:
        """An axis of one element that the reductions keep, not one that is added behind them."""
        total = fw.sum(fw.reshape(x, (6, 5, 1)), axis=1)
        return fw.concat([fw.exp(total * 0.1), total], axis=1)

    for program in (fn, sums):
        assert joins(selected(program, S((6, 5), "float32"))) == 0
