"""Kernels that dispatch formation takes, and that schedules can make: rows counted from words
behind a pad, sums of small products of one value that meet at several places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from host_runs import agreed

import fusewright as fw

F = "float32"


def soft(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)


def padded_rows(x: Any) -> Any:
    """Rows of 97 begin anywhere, and a block has some of the padded ones."""
    y = fw.pad(fw.exp(x), ((2, 2), (0, 1)))
    return y, soft(y)


def joined_rows(x: Any) -> Any:
    y = fw.pad(fw.concat([x, x, x, x], axis=0), ((0, 2), (2, 1)))
    return y - fw.max(y, axis=1, keepdims=True)


def thrice(a: Any) -> Any:
    b = a[:8, :8]
    return b @ b @ b


def tanh_of_products(x: Any, w: Any) -> Any:
    """Both sums of products meet the function of what they multiply."""
    h = x * 0.5
    t = fw.tanh(h)
    return t @ w * 0.5 + (w @ h.T).T * (1.0 - t * t) * 0.5


def product_and_slope(x: Any, w: Any) -> Any:
    h = x * 0.5
    left = fw.cos(fw.sum(fw.tanh(h)[:, :, :, None] * h[:, :, None, :], axis=1))
    t = fw.permute_dims(left @ fw.permute_dims(h, (0, 2, 1)), (0, 2, 1))
    return w + t * (1.0 - fw.tanh(h) * fw.tanh(h)) * 0.5


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "padded rows": (padded_rows, [(6, 96)]),
    "joined rows": (joined_rows, [(12, 64)]),
    "a product of three": (thrice, [(64, 64)]),
    "two products": (tanh_of_products, [(7, 7), (7, 7)]),
    "two products, gradient": (product_and_slope, [(2, 2, 3), (2, 2, 3)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_formation_takes_is_not_cut(name: str) -> None:
    fn, shapes = PROGRAMS[name]
    program = agreed(fn, *[fw.TensorSpec(s, F) for s in shapes])
    assert not [r for r in program.reasons if "cut in two" in r.rule]
    assert len(program.launches) == 1
