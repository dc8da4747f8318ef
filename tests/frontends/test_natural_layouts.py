"""Layouts of results: as numpy and torch lay them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.errors import UserError
from fusewright.frontends.natural_layouts import c_pattern, elementwise, pattern_of


def image() -> Any:
    """Channels last: (n, c, h, w) stored as (n, h, w, c)."""
    return np.arange(120, dtype=np.float32).reshape(2, 4, 5, 3).transpose(0, 3, 1, 2)


def order_of(a: Any) -> tuple[int, ...]:
    return tuple(sorted(range(a.ndim), key=lambda k: -a.strides[k]))


@pytest.mark.parametrize("device", ["sim", "auto"])
@pytest.mark.parametrize(
    ("fn", "order"),
    [
        (lambda x: x * 2 + 1, (0, 2, 3, 1)),
        (lambda x: x * fw.sum(x, axis=1, keepdims=True), (0, 2, 3, 1)),
        (lambda x: fw.sum(x * 2, axis=0), (1, 2, 0)),
        (lambda x: fw.permute_dims(x + 1, (0, 2, 3, 1)), (0, 1, 2, 3)),
        (lambda x: fw.concat([x, x * 2], axis=1), (0, 2, 3, 1)),
        (lambda x: fw.pad(x, 1), (0, 2, 3, 1)),
        (lambda x: fw.reshape(x, (6, 20)) * 2, (0, 1)),
        (lambda x: x, (0, 2, 3, 1)),
    ],
)
def test_results_keep_the_order_of_their_operands(
    fn: Callable[..., Any], order: tuple[int, ...], device: str
) -> None:
    x = image()
    y = fw.fuse(fn, device=device)(x)
    assert order_of(y) == order
    assert y.flags.writeable and y.base is not x and not np.shares_memory(x, y)
    dense = fw.evaluate(fw.trace(fn, fw.TensorSpec(x.shape, "float32")), np.ascontiguousarray(x))
    np.testing.assert_allclose(y, dense[0], rtol=1e-6)


def test_the_first_operand_that_tells_axes_apart_decides() -> None:
    x, y = np.ones((4, 6), np.float32, order="F"), np.ones((4, 6), np.float32)
    add = fw.fuse(lambda a, b: a + b, device="sim")
    assert add(x, y).strides == x.strides and add(y, x).strides == y.strides
    assert add(y[:1], x).strides == x.strides  # a row that is repeated tells nothing


def test_joined_arrays_keep_an_order_that_all_of_them_have() -> None:
    x, y = np.ones((4, 6), np.float32, order="F"), np.ones((4, 6), np.float32)
    join = fw.fuse(lambda a, b: fw.concat([a, b], axis=1), device="sim")
    for a, b in ((x, x), (x, y), (y, x), (y, y)):
        assert order_of(join(a, b)) == order_of(np.concatenate([a, b], axis=1))


def test_a_required_layout_comes_before_the_natural_one() -> None:
    x = image()
    y = fw.fuse(lambda x: x + 1, device="sim", out_layouts=[None])(x)
    assert order_of(y) == (0, 1, 2, 3)
    with pytest.raises(UserError, match="out_layouts has 2 orders for 1 outputs"):
        fw.fuse(lambda x: x + 1, device="sim", out_layouts=[None, None])(x)


def test_sizes_that_change_keep_the_layout_without_a_compile() -> None:
    f = fw.fuse(lambda x: x * 2, device="sim", dynamic={"x": (0, 1)})
    for shape in ((4, 6), (8, 10)):
        x = np.ones(shape, np.float32, order="F")
        assert f(x).strides == x.strides
    assert len(f._programs) == 1


def test_repeated_axes_become_dense() -> None:
    x = np.broadcast_to(np.arange(6, dtype=np.float32), (4, 6))
    for device in ("sim", "auto"):
        y = fw.fuse(lambda x: x + 1, device=device)(x)
        assert y.strides == (24, 4)
        np.testing.assert_array_equal(y, x + 1)


def test_patterns_rank_strides() -> None:
    assert pattern_of((60, 1, 15, 3)) == (4, 1, 3, 2)
    assert pattern_of((0, -8, 1)) == (0, 2, 1)
    assert elementwise([(0, 0), (1, 2)], (4, 6)) == (1, 2)
    assert elementwise([], (4, 6)) == c_pattern(2) == (2, 1)
