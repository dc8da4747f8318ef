"""Borders: which kernel fills them, when they are launches of their own, and right values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.host.subspans import LAUNCH_NBYTES


def soft(x):
    return fw.nn.softmax(x, axis=-1)


def padded(widths: Any, value: float = 0.0) -> Callable[[Any], Any]:
    return lambda x: fw.pad(soft(x), widths, constant_values=value)


def program(fn: Callable[..., Any], *shape: int | str) -> fw.Program:
    return fw.compile(fw.trace(fn, fw.TensorSpec(shape, "float32")))


@pytest.mark.parametrize("widths", [((1, 1), (0, 0)), ((0, 0), (3, 5)), ((2, 0), (0, 7)), 1])
@pytest.mark.parametrize("value", [0.0, -2.5, float("inf")])
def test_the_kernel_that_makes_the_inside_fills_the_border(widths: Any, value: float) -> None:
    p = program(padded(widths, value), 6, 96)
    assert (p.host.stats["launches"], p.host.stats["fills"]) in ((1, 0), (1, 1))
    x = np.random.default_rng(0).standard_normal((6, 96)).astype(np.float32)
    result = p.simulate(x)
    (wanted,) = fw.evaluate(p.fusion, x)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], wanted, rtol=1e-5, atol=1e-6)


def test_a_border_larger_than_its_inside_and_than_a_launch_costs_is_a_launch_of_its_own() -> None:
    rows = LAUNCH_NBYTES // (96 * 4)
    small = program(padded(((0, rows // 2), (0, 0))), 6, 96)
    large = program(padded(((0, 2 * rows), (0, 0))), 6, 96)
    assert small.host.stats["launches"] == 1 and large.host.stats["launches"] == 2


def test_negative_widths_fill_nothing() -> None:
    p = program(padded(((-1, -1), (0, 0))), 6, 96)
    assert p.host.stats["fills"] == 0 and not any(k.name.startswith("fw_fill") for k in p.kernels)


def test_a_border_of_a_symbolic_size_is_filled() -> None:
    p = program(lambda x: fw.pad(soft(x), ((0, 2), (0, 0))), "n", 96)
    for n in (2, 7):
        x = np.ones((n, 96), np.float32)
        result = p.simulate(x)
        assert result.races == [] and not result.outputs[0][n:].any()


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        (((1, 1, 1), (0, 0)), "pad"),
        (((1, 1), (0, 0), (0, 0)), "pad"),
        ("two", "pad"),
        (((-9, 0), (0, 0)), "pad"),
    ],
)
def test_rejects_widths_that_fit_no_axis(widths: Any, message: str) -> None:
    with pytest.raises(fw.UserError, match=message):
        program(padded(widths), 6, 96)


def test_rejects_a_fill_that_the_dtype_cannot_hold() -> None:
    with pytest.raises(fw.UserError, match="pad"):
        fw.trace(
            lambda x: fw.pad(x, ((1, 1), (0, 0)), constant_values=1.5),
            fw.TensorSpec((6, 96), "int32"),
        )
