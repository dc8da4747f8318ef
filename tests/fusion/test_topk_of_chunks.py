"""The first elements of long rows: those of chunks first, values and positions as of a sort."""

from __future__ import annotations

import numpy as np
import pytest

import fusewright as fw


@pytest.mark.parametrize(
    ("shape", "k", "axis", "largest"),
    [((2, 9000), 50, 1, True), ((12_345,), 7, 0, False), ((8300, 2), 20, 0, True)],
)
def test_the_first_of_long_rows(
    shape: tuple[int, ...], k: int, axis: int, *, largest: bool
) -> None:
    x = np.random.default_rng(k).integers(-900, 900, shape).astype(np.float32)  # many are equal
    x.reshape(-1)[::1000] = np.nan
    fusion = fw.trace(
        lambda x: tuple(fw.topk(x, k, axis=axis, largest=largest)),
        fw.TensorSpec(shape, "float32"),
    )
    program = fw.compile(fusion)
    assert len(program.launches) <= 4
    result = program.simulate(x)
    assert result.races == []
    keys = -x if largest else x
    keys = np.where(np.isnan(x), -np.inf if largest else np.inf, keys)
    at = np.take(np.argsort(keys, axis=axis, kind="stable"), range(k), axis=axis)
    assert np.array_equal(result.outputs[1], at)
    assert np.array_equal(result.outputs[0], np.take_along_axis(x, at, axis), equal_nan=True)
    for got, want in zip(fw.evaluate(fusion, x), result.outputs, strict=True):
        assert np.array_equal(got, want, equal_nan=True)


def test_a_row_of_three_hundred_thousand_takes_three_rounds() -> None:
    program = fw.compile(
        fw.trace(lambda x: fw.topk(x, 100), fw.TensorSpec((4, 300_000), "float32"))
    )
    assert len(program.launches) <= 6
