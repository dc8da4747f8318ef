"""Windows of scans are one kernel, which holds the lines; values against the oracle."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import fusewright as fw

S = fw.TensorSpec
F = "float32"


def launches(fn: Any, *specs: fw.TensorSpec) -> int:
    """How many kernels a function is; oracle and simulator agree on random arguments, no race."""
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    rng = np.random.default_rng(len(fusion.values))
    arrays = [(4 * rng.standard_normal(s.shape)).astype(s.dtype.numpy) for s in specs]
    result = program.simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return len(program.launches)


def moving_average(x: Any) -> Any:
    c = fw.pad(fw.cumulative_sum(x, axis=1), ((0, 0), (1, 0)))
    return (c[:, 5:] - c[:, :-5]) / 5


def strength(x: Any) -> Any:
    c = fw.cumulative_sum(x * x, axis=1)
    return fw.sqrt(fw.abs(c[:, 9:] - c[:, :-9]) / 9)


def steps(x: Any) -> Any:
    c = fw.cumulative_sum(x, axis=1)
    return c - fw.pad(c[:, :-1], ((0, 0), (1, 0)))


def ahead(x: Any) -> Any:
    c = fw.cumulative_max(x, axis=1)
    return fw.pad(c[:, 2:], ((0, 0), (0, 2)), constant_values=7.0) - c, c


def down_columns(x: Any) -> Any:
    c = fw.cumulative_sum(x, axis=0)
    return c[3:] - 2 * c[2:-1] + c[:-3]


def weighted(x: Any, w: Any) -> Any:
    c = fw.cumulative_sum(x, axis=1)
    n = fw.astype(fw.arange(c.shape[1] - 4), fw.float32)
    return (c[:, 4:] - c[:, :-4]) * w + n / 3 - x[:, 2:-2]


def of_two(x: Any) -> Any:
    """The mean and the variance of windows."""
    a, b = fw.cumulative_sum(x, axis=1), fw.cumulative_sum(x * x, axis=1)
    mean = (a[:, 6:] - a[:, :-6]) / 6
    return mean, (b[:, 6:] - b[:, :-6]) / 6 - mean * mean


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (moving_average, (7, 130)),
        (moving_average, (300, 37)),
        (strength, (5, 515)),
        (steps, (6, 64)),
        (ahead, (6, 77)),
        (down_columns, (41, 35)),
        (down_columns, (130, 8)),
        (of_two, (9, 133)),
    ],
)
def test_windows_of_scans_are_one_kernel(fn: Any, shape: tuple[int, ...]) -> None:
    assert launches(fn, S(shape, "float32")) == 1


def test_windows_meet_arguments_and_coordinates() -> None:
    for w in ((126,), (7, 126), (7, 1)):
        assert launches(weighted, S((7, 130), "float32"), S(w, "float32")) == 1


def test_integers_and_batches() -> None:
    assert launches(steps, S((6, 64), "int32")) == 1
    assert launches(lambda x: moving_average(x[0]) + moving_average(x[1]), S((2, 6, 64), F)) <= 3


def test_every_sync_around_a_held_line_is_needed() -> None:
    report = fw.verify(fw.compile(fw.trace(moving_average, S((7, 130), F))))
    assert report.ok, report


def test_a_window_that_is_read_alone_stays_a_crop() -> None:
    assert launches(lambda x: 2 * fw.cumulative_sum(x, axis=1)[:, 3:], S((6, 64), F)) == 1


def test_windows_that_meet_what_is_stored_are_read_where_they_are_stored() -> None:
    def fn(x: Any) -> Any:
        c = fw.cumulative_sum(x, axis=1)
        return (c[:, 1:] - c[:, :-1]) / fw.sum(x[:, 1:], axis=0)

    assert launches(fn, S((6, 64), F)) <= 4


def test_lines_that_no_block_holds_are_stored() -> None:
    program = fw.compile(fw.trace(moving_average, S((256, 40_000), F)))
    assert len(program.launches) == 2


def test_lines_in_parts_are_stored() -> None:
    """Few long lines are scanned in parts, a block each: no block holds one."""
    fusion = fw.trace(strength, S((2, 20_000), F))
    whole = fw.compile(fw.trace(lambda x: fw.cumulative_sum(x, axis=1), S((2, 20_000), F)))
    assert len(fw.compile(fusion).launches) <= len(whole.launches) + 1


@pytest.mark.parametrize("seed", range(10))
def test_random_windows(seed: int) -> None:
    rng = random.Random(seed)
    axis, n = rng.randrange(2), rng.choice([17, 33, 64, 131])
    shape = (n, 9) if axis == 0 else (9, n)
    length = n - rng.randrange(6)

    def window(c: Any) -> Any:
        pads = rng.randrange(3), rng.randrange(3)
        wide = fw.pad(c, tuple(pads if a == axis else (0, 0) for a in range(2)))
        begin = rng.randrange(wide.shape[axis] - length + 1)
        return wide[begin : begin + length] if axis == 0 else wide[:, begin : begin + length]

    def fn(x: Any) -> Any:
        rng.seed(seed + 1)
        c = 2 * fw.cumulative_sum(x, axis=axis) - 1
        return window(c) - window(c) * 3 + window(x)

    launches(fn, S(shape, F))
