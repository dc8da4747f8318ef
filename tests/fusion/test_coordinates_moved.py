"""Coordinates, and functions of them, are computed at the places that moves read: no kernel stores
them, and values agree with the oracle in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

ROWS, COLUMNS = 13, 37


def _count() -> Any:
    return fw.reshape(fw.arange(ROWS * COLUMNS), (ROWS, COLUMNS))


def _padded(x: Any) -> Any:
    cropped = fw.pad(_count(), ((0, 0), (-3, 3)), constant_values=5)
    return x + fw.astype(cropped, fw.float32)


CASES: dict[str, Callable[[Any], Any]] = {
    "a column of a count": lambda x: x[:, 1] + fw.astype(_count()[:, 0] * 7 % 11, fw.float32),
    "a count from behind": lambda x: x * fw.astype(fw.flip(_count(), axis=1), fw.float32),
    "every third": lambda x: x[:, :36:3] - fw.astype(_count()[:, 1::3], fw.float32),
    "around the end": lambda x: x + fw.astype(fw.roll(_count(), 5, axis=1), fw.float32),
    "an inner part": lambda x: x[2:9, 4:30] * fw.astype(_count()[1:8, 7:33] % 5, fw.float32),
    "cropped and padded": _padded,
    "a mask of a part": lambda x: fw.where((_count() % 3 == 0)[::-1], x, -x),
    "a short count": lambda x: x + fw.astype(fw.flip(fw.arange(COLUMNS, dtype=fw.int8)), "float32"),
}


@pytest.mark.parametrize("name", CASES)
def test_no_kernel_stores_coordinates(name: str) -> None:
    fusion = fw.trace(CASES[name], fw.TensorSpec((ROWS, COLUMNS), "float32"))
    program = fw.compile(fusion)
    assert program.host.stats["launches"] == 1
    assert program.host.stats["copies"] == 0
    x = np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    found = program.simulate(x)
    assert found.races == []
    for got, want in zip(found.outputs, fw.evaluate(fusion, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_what_data_picks_is_stored() -> None:
    def picked(x: Any, at: Any) -> Any:
        return x + fw.astype(fw.take(fw.arange(5, 42) * 3, at), fw.float32)

    fusion = fw.trace(picked, fw.TensorSpec((9,), "float32"), fw.TensorSpec((9,), "int32"))
    rng = np.random.default_rng(2)
    x, at = rng.standard_normal(9).astype(np.float32), rng.integers(0, 37, 9).astype(np.int32)
    found = fw.compile(fusion).simulate(x, at)
    assert found.races == []
    np.testing.assert_allclose(found.outputs[0], x + np.arange(5, 42)[at] * 3, rtol=1e-6)
