"""Blocks at positions that only the device knows: integer arrays of rank 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

S = fw.TensorSpec
RNG = np.random.default_rng(164)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def agree(fn: Callable[..., Any], want: np.ndarray, *arrays: np.ndarray) -> fw.Program:
    fusion = fw.trace(fn, *(S(a.shape, a.dtype.name) for a in arrays))
    program = fw.compile(fusion)
    result = program.simulate(*arrays)
    assert result.races == []
    np.testing.assert_allclose(fw.evaluate(fusion, *arrays)[0], want, rtol=1e-6)
    np.testing.assert_allclose(result.outputs[0], want, rtol=1e-6)
    return program


def first(at: int, m: int, n: int) -> int:
    """Where a block of m begins in n, as near to `at` as it can."""
    return min(max(at, 0), n - m)


@pytest.mark.parametrize("at", [-3, 0, 5, 9, 40])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_a_block_is_read(at: int, dtype: str) -> None:
    x, s = draw(11, 7), np.asarray(abs(at) if dtype == "uint8" else at, dtype)
    k = first(int(s), 3, 11)
    program = agree(lambda x, s: fw.slice(x, (s, 2), (3, 5)) * 2, x[k : k + 3, 2:7] * 2, x, s)
    assert len(program.launches) == 1
    (launch,) = program.launches
    assert launch.reads[0].root.name == "x"  # where it lies, without a copy of its columns


@pytest.mark.parametrize("at", [-3, 0, 5, 40])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_block_is_put(at: int, rows: int) -> None:
    x, v, s = draw(11, 7), draw(rows, 4), np.asarray(at)
    want, k = x.copy(), first(at, rows, 11)
    want[k : k + rows, 2:6] = v
    program = agree(lambda x, v, s: fw.insert(x, v, (s, 2)), want, x, v, s)
    assert len(program.launches) == 1


def test_two_positions_on_the_device() -> None:
    x, v, s, r = draw(11, 7), draw(2, 3), np.asarray(4), np.asarray(9)
    want = x.copy()
    want[4:6, 4:7] = v
    agree(lambda x, v, s, r: fw.insert(x, v, (s, r)), want, x, v, s, r)
    agree(lambda x, s, r: fw.slice(x, (s, r), (2, 3)), x[4:6, 4:7], x, s, r)


def test_a_loop_that_the_device_ends_appends() -> None:
    def fn(x: fw.Array) -> Any:
        def body(state: Any) -> Any:
            n, c = state
            return n + 1, fw.insert(c, fw.slice(c, (n - 1, 0), (1, 5)) * 2, (n, 0))

        return fw.while_loop(lambda s: (s[0] < 8) & (fw.sum(s[1]) < 60), body, (1, x))[1]

    x = np.ones((9, 5), np.float32)
    want, n = x.copy(), 1
    while n < 8 and want.sum() < 60:
        want[n] = want[n - 1] * 2
        n += 1
    assert 1 < n < 8
    agree(fn, want, x)


def test_known_positions_stay_exact() -> None:
    """An array that the host can compute is a number: one place is bound, nothing is gathered."""
    x = draw(11, 7)
    text = str(fw.trace(lambda x: fw.slice(x, (fw.asarray(3) + 1, 0), (2, 7)), S((11, 7), "f4")))
    assert "Take" not in text
    agree(lambda x: fw.slice(x, (fw.asarray(3) + 1, 0), (2, 7)), x[4:6], x)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x, s: fw.slice(x, (s, 0), (12, 7)), "may not fit size 11"),
        (lambda x, s: fw.slice(x, (s, 3), (2, 5)), "5 elements from 3 on may not fit size 7"),
        (lambda x, s: fw.slice(x, (s,), (2,)), "give one of each for every axis"),
        (lambda x, s: fw.slice(x, (x[0, 0], 0), (2, 7)), "a position is an integer"),
        (lambda x, s: fw.insert(x, x[:1], (x[:1, 0], 0)), "a position is an integer"),
    ],
)
def test_it_is_refused(fn: Any, message: str) -> None:
    with pytest.raises(fw.UserError, match=message):
        fw.trace(fn, S((11, 7), "f4"), S((), "int64"))
