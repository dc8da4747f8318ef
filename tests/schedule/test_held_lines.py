"""What is scanned and read at other places of its line is one kernel, which holds the lines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.array import Array
from fusewright.program import Program

Function = Callable[[Array], Array]


def _window(axis: int, span: int) -> Function:
    """The sums of `span` neighbours, those of the first ones without what is not there yet."""

    def fn(x: Array) -> Array:
        y = fw.cumulative_sum(fw.astype(x, "float32"), axis=axis)
        return fw.astype(y - fw.roll(y, span, axis=axis), x.dtype)

    return fn


def _folded(x: Array) -> Array:
    y = fw.nn.relu(fw.cumulative_sum(x, axis=1))
    return y * fw.flip(fw.cumulative_sum(x, axis=1), axis=1)


def _program(fn: Function, shape: tuple[int, ...], dtype: str) -> Program:
    return fw.compile(fw.trace(fn, fw.TensorSpec(shape, dtype)))


@pytest.mark.parametrize(
    ("fn", "shape", "dtype"),
    [
        (_window(1, 9), (3, 10, 256), "float16"),
        (_window(1, 16), (2, 139, 129), "float16"),  # no vector
        (_window(0, 16), (139, 200), "float32"),
        (_window(1, 300), (20, 1390), "float16"),  # rows, of which a part would be a join
        (_window(1, 3), (5, 31), "float64"),
        (_folded, (2, 110, 64), "float32"),
    ],
)
def test_one_kernel_reads_lines_that_it_scans_elsewhere(
    fn: Function, shape: tuple[int, ...], dtype: str
) -> None:
    program = _program(fn, shape, dtype)
    assert len(program.kernels) == 1
    x = np.random.default_rng(5).integers(-9, 9, shape).astype(dtype)
    found = program.simulate(x)
    assert not found.races
    (want,) = fw.evaluate(program.fusion, x)
    np.testing.assert_allclose(np.asarray(found.outputs[0]), np.asarray(want), rtol=1e-3)


def test_lines_that_no_block_holds_are_stored() -> None:
    assert len(_program(_window(1, 16), (9, 7039, 64), "float16").kernels) == 2
    assert len(_program(_window(1, 16), (9, 1500, 64), "float16").kernels) == 1


def test_blocks_take_fewer_lines_where_they_hold_them() -> None:
    """1500 rows of 16 columns are 96 KB of floats: two blocks on a multiprocessor."""
    (kernel,) = _program(_window(1, 16), (9, 1500, 1545), "float16").kernels
    (held,) = (b for b in kernel.smem if b.nbytes > 64 * 1024)
    assert held.nbytes >= 1500 * 16 * 4
    assert sum(b.nbytes for b in kernel.smem if b.alias_of is None) < 114 * 1024


@pytest.mark.parametrize("length", [7, 1000, 1390])
@pytest.mark.parametrize("reverse", [False, True])
def test_lines_are_whole_before_they_are_read_backwards(length: int, reverse: bool) -> None:
    """Two scans read one input in one loop; what meets the one with the other, which it reads from
    its end, waits until that loop is over."""

    def turned(x: Array) -> Array:
        return x[::-1] if reverse else x

    def fn(x: Array) -> tuple[Array, ...]:
        y, z = (turned(fw.cumulative_sum(v, axis=0)) for v in (turned(x), turned(x * 2)))
        return y, z, fw.sum(y[::-1] * z)

    fusion = fw.trace(fn, fw.TensorSpec((length,), "float32"))
    x = np.random.default_rng(0).uniform(0, 1, length).astype(np.float32)
    result = fw.compile(fusion).simulate(x)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4)
