"""Rows that no number of chunks divides well: the last chunk is short."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion import build
from fusewright.fusion.ir import Parts
from fusewright.fusion.passes.chunk_reductions import chunk_reductions
from fusewright.target import target_of

TARGET = target_of("sm_90a")
COLUMNS = 107_021  # prime: float32 rows of 418 KB


def logsumexp(x: fw.Array) -> fw.Array:
    m = fw.max(x, axis=-1, keepdims=True)
    return fw.log(fw.sum(fw.exp(x - m), axis=-1)) + fw.squeeze(m, axis=-1)


def variance(axis: int) -> Callable[..., Any]:
    def fn(x: fw.Array) -> tuple[fw.Array, fw.Array]:
        return fw.var(x, axis=axis), fw.mean(x, axis=axis)

    return fn


def shape_of(axis: int) -> tuple[int, int]:
    return (10, COLUMNS) if axis else (16_411, 72)  # 16411 is prime


def chunked(fn: Callable[..., Any], shape: tuple[int, ...]) -> fw.Fusion:
    return chunk_reductions(fw.trace(fn, fw.TensorSpec(shape, "float32")), TARGET)


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (logsumexp, (10, COLUMNS)),
        (logsumexp, (10, 128_264)),  # 8 * 16033: divisors leave rows that no vector fits
        (variance(1), shape_of(1)),
        (variance(0), shape_of(0)),
    ],
    ids=["exponentials", "for vectors", "around means", "around first rows"],
)
def test_results(fn: Callable[..., Any], shape: tuple[int, int]) -> None:
    fusion = fw.trace(fn, fw.TensorSpec(shape, "float32"))
    cuts = [t.op.partition for t in chunked(fn, shape).values if isinstance(t.op, Parts)]
    assert cuts and not any(p.is_even for p in cuts)
    x = np.random.default_rng(7).standard_normal(shape).astype(np.float32) * 3 + 5
    program = fw.compile(fusion)
    result = program.simulate(x, check_races=False)
    assert len(program.kernels) == 2
    for got, want in zip(result.outputs, fw.evaluate(fusion, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_short_chunk_counts_what_it_has(axis: int) -> None:
    """A mean far from zero: an element that is not there would show in the variance."""
    shape = shape_of(axis)
    x = (np.random.default_rng(1).standard_normal(shape) * 0.01 + 1000).astype(np.float32)
    fusion = fw.trace(variance(axis), fw.TensorSpec(shape, "float32"))
    var, mean = fw.compile(fusion).simulate(x, check_races=False).outputs
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean(axis), rtol=1e-6)
    np.testing.assert_allclose(var, exact.var(axis), rtol=2e-2)


def test_rows_of_infinities() -> None:
    """All but one element are -inf, the last of the short chunk, so that other chunks have none."""
    x = np.full((10, COLUMNS), -np.inf, np.float32)
    x[:, -1] = np.arange(10)
    program = fw.compile(fw.trace(logsumexp, fw.TensorSpec(x.shape, "float32")))
    (got,) = program.simulate(x, check_races=False).outputs
    assert np.array_equal(got, np.arange(10))


@pytest.mark.parametrize(
    ("fn", "shape"), [(logsumexp, (10, 131_072)), (variance(1), (10, 131_072))]
)
def test_even_chunks_are_not_padded(fn: Callable[..., Any], shape: tuple[int, int]) -> None:
    fusion = chunked(fn, shape)
    assert len(fusion.values) > 8
    cuts = [t.op.partition for t in fusion.values if isinstance(t.op, Parts)]
    assert cuts and all(p.is_even for p in cuts)


@pytest.mark.parametrize(
    ("fn", "shape"),
    [(logsumexp, (10, COLUMNS)), (variance(1), shape_of(1)), (variance(0), shape_of(0))],
)
def test_no_kernel_stores_the_padding(fn: Callable[..., Any], shape: tuple[int, int]) -> None:
    """A kernel reads the short chunk through it, also where an argument is padded as it is."""
    program = fw.compile(fw.trace(fn, fw.TensorSpec(shape, "float32")))
    written = [int(str(build.element_count(o.shape))) for k in program.kernels for o in k.outputs]
    assert max(written) < math.prod(shape) // 8


def test_a_padding_that_is_a_result_is_stored() -> None:
    def fn(x: fw.Array) -> tuple[fw.Array, fw.Array]:
        padded = fw.pad(x, ((0, 3), (0, 0)))
        return padded, fw.sum(fw.reshape(padded, (5, 8, 24)), axis=1)

    fusion = fw.trace(fn, fw.TensorSpec((37, 24), "float32"))
    x = np.random.default_rng(3).standard_normal((37, 24)).astype(np.float32)
    result = fw.compile(fusion).simulate(x)
    assert not result.races
    for got, want in zip(result.outputs, fw.evaluate(fusion, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fill", [0.0, 2.0])
def test_a_padding_of_a_program_between_rows_and_their_runs(fill: float) -> None:
    """What a program pads with is added as any other value."""

    def fn(x: fw.Array) -> tuple[fw.Array, fw.Array]:
        y = fw.exp(x)
        c = fw.sum(y, axis=1, keepdims=True)
        padded = fw.pad(y, ((0, 3), (0, 0)), constant_values=fill)
        return y / c, fw.sum(fw.reshape(padded, (103, 10, 264)), axis=1)

    fusion = fw.trace(fn, fw.TensorSpec((1027, 264), "float32"))
    x = np.random.default_rng(3).standard_normal((1027, 264)).astype(np.float32)
    result = fw.compile(fusion).simulate(x)
    assert not result.races
    for got, want in zip(result.outputs, fw.evaluate(fusion, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
