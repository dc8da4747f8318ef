"""Reductions over slow axes and a short fast one, with kept axes between, read neighbours side by
side."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fusewright as fw
from fusewright.forms import prepare
from fusewright.fusion.ir import Reduce, constant_shape
from fusewright.target import target_of

S = fw.TensorSpec


def reductions(shape: tuple[int, ...], axis: tuple[int, ...], dtype: str = "bfloat16") -> list[int]:
    """The rank of what each reduction of the prepared fusion makes, in order."""
    fusion = prepare(fw.trace(lambda x: fw.max(x, axis=axis), S(shape, dtype)), target_of("sm_90a"))
    return [t.ndim for t in fusion.values if isinstance(t.op, Reduce)]


def results(shape: tuple[int, ...], axis: tuple[int, ...]) -> list[int]:
    """The elements of what each reduction of the prepared fusion makes, in order."""
    fusion = prepare(
        fw.trace(lambda x: fw.max(x, axis=axis), S(shape, "bfloat16")), target_of("sm_90a")
    )
    made = [t for t in fusion.values if isinstance(t.op, Reduce)]
    return [math.prod(constant_shape(t) or ()) for t in made]


def test_the_fast_axis_is_reduced_with_the_parts() -> None:
    """Parts of the rows keep 124 x 4 neighbours, and the second reduction has both."""
    assert reductions((18350, 58, 124, 4), (0, 1, 3)) == [3, 1]


def test_a_line_of_fast_elements_is_read_as_a_run() -> None:
    short, long = (reductions((4096, 64, n), (0, 2)) for n in (32, 512))
    assert (short, long) == ([3, 1], [2, 1])


def test_many_results_need_no_parts() -> None:
    assert reductions((64, 28, 2, 28, 2), (2, 4)) == [3]


def test_many_results_of_long_columns_need_no_parts_but_runs() -> None:
    """Of 260 results every multiprocessor has one, but each would read runs of 4 bytes."""
    assert reductions((64, 352, 260, 2), (0, 1, 3)) == [3, 1]


@pytest.mark.parametrize(
    ("shape", "axis", "plain", "plain_axis"),
    [
        ((4096, 60000, 1), (0, 2), (4096, 60000), (0,)),
        ((4096, 1, 60000, 1), (0, 1, 3), (4096, 60000), (0,)),
        ((64, 352, 260, 2, 1), (0, 1, 3), (64, 352, 260, 2), (0, 1, 3)),
        ((64, 352, 260, 1, 2), (0, 1, 3, 4), (64, 352, 260, 2), (0, 1, 3)),
        ((9000, 1, 64), (0, 2), (9000, 64), (0, 1)),
    ],
)
def test_axes_of_one_element_are_no_runs_and_part_none(
    shape: tuple[int, ...], axis: tuple[int, ...], plain: tuple[int, ...], plain_axis: tuple[int]
) -> None:
    assert results(shape, axis) == results(plain, plain_axis)


def test_operands_that_are_needed_again_are_reduced_at_once() -> None:
    def centred(x: fw.Array) -> fw.Array:
        return x - fw.mean(x, axis=(0, 2), keepdims=True)

    fusion = prepare(fw.trace(centred, S((64, 4096, 2), "float32")), target_of("sm_90a"))
    assert [t.ndim for t in fusion.values if isinstance(t.op, Reduce)] == [1]


@pytest.mark.parametrize("name", ["sum", "max", "prod"])
@pytest.mark.parametrize(
    "shape", [(1835, 5, 31, 4), (70000, 3, 3), (999, 8, 40, 1, 2), (130, 401, 6), (999, 321, 1)]
)
def test_kernels_agree_with_the_oracle(name: str, shape: tuple[int, ...]) -> None:
    axis = (0, len(shape) - 1)
    fusion = fw.trace(lambda x: getattr(fw, name)(x, axis=axis), S(shape, "float32"))
    rng = np.random.default_rng(3)
    x = (1 + 1e-3 * rng.standard_normal(shape)).astype("float32")
    found = fw.compile(fusion).simulate(x, check_races=True)
    assert not found.races
    np.testing.assert_allclose(found.outputs[0], fw.evaluate(fusion, x)[0], 2e-4)


def spread_of(x: fw.Array) -> tuple[fw.Array, fw.Array]:
    return fw.var(x, axis=(0, x.ndim - 1)), fw.mean(x, axis=(0, x.ndim - 1))


def logsumexp(x: fw.Array) -> fw.Array:
    m = fw.max(x, axis=(0, x.ndim - 1), keepdims=True)
    return fw.log(fw.sum(fw.exp(x - m), axis=(0, x.ndim - 1)))


@pytest.mark.parametrize(
    ("fn", "shape"), [(spread_of, (577, 416, 7)), (logsumexp, (3001, 59, 2, 3))]
)
def test_pairs_of_slow_and_short_fast_axes_read_neighbours_side_by_side(
    fn: Callable[..., Any], shape: tuple[int, ...]
) -> None:
    """Chunks of the slow axis keep the fast one, the input is read once, and what kernels hand on
    is little beside it. A mean far from zero would show what is lost in variances."""
    fusion = fw.trace(fn, S(shape, "bfloat16"))
    first = next(t for t in prepare(fusion, target_of("sm_90a")).values if isinstance(t.op, Reduce))
    assert (constant_shape(first) or ())[-1] == shape[-1]
    program = fw.compile(fusion)
    assert len(program.kernels) == 2
    assert program.host.stats["bytes_moved"] < 1.2 * 2 * math.prod(shape)
    x = (np.random.default_rng(5).standard_normal(shape) * 2 + 30).astype(ml_dtypes.bfloat16)
    found = program.simulate(x)
    assert not found.races
    for got, want in zip(found.outputs, fw.evaluate(fusion, x), strict=True):
        np.testing.assert_allclose(got.astype("float32"), want.astype("float32"), 1e-2)
