"""Moves of odd rows from memory that begins anywhere: exact on a device, every element written."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import fusewright as fw

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu
DTYPES = ("int8", "bfloat16", "float32", "float64")
ROWS = (7, 11, 20, 21, 40, 129, 200, 1021)


def pad(x: Any, low: int, high: int) -> tuple[Any, Any]:
    return lambda x: fw.pad(x, ((0, 0), (low, high))), torch.nn.functional.pad(x, (low, high))


def crop(x: Any, low: int, high: int) -> tuple[Any, Any]:
    stop = x.shape[1] - high
    return lambda x: x[:, low:stop] + 0, x[:, low:stop]


def roll(x: Any, low: int, high: int) -> tuple[Any, Any]:
    return lambda x: fw.roll(x, low + high, axis=1), torch.roll(x, low + high, 1)


def joined(x: Any, low: int, high: int) -> tuple[Any, Any]:
    return lambda x: fw.concat([x, x[:, : low + 1]], axis=1), torch.cat([x, x[:, : low + 1]], 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("move", [pad, crop, roll, joined])
def test_moves_of_odd_rows_are_exact(move: Callable[..., Any], dtype: str) -> None:
    for columns in ROWS:
        rng = random.Random(columns)
        rows, start = rng.randint(300, 9000), rng.choice([0, 1, 3, 5, 8])
        low, high = rng.randint(0, 3), rng.randint(0, 3)
        generator = torch.Generator("cuda").manual_seed(columns)
        whole = torch.randint(
            -99, 99, (rows * columns + start,), generator=generator, device="cuda"
        )
        x = whole.to(getattr(torch, dtype))[start:].view(rows, columns)
        fn, want = move(x, low, high)
        got = fw.fuse(fn, device="cuda")(x)
        assert torch.equal(got, want), (columns, rows, start, low, high)
