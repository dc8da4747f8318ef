"""Reductions along different axes of a small tile: one kernel, which threads hold in registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.array import Array
from fusewright.fusion.small_tiles import MOST_OF_THREAD, MOST_THREADS, is_held
from fusewright.program import Program
from fusewright.sim.traffic import traffic

Step = Callable[[Array], Array]


def softmax(axis: int) -> Step:
    return lambda x: fw.nn.softmax(x, axis=axis)


def rounded(axis: int) -> Step:
    def step(x: Array) -> Array:
        scale = fw.max(fw.abs(x), axis=axis, keepdims=True) / 127 + 1e-6
        return fw.round(x / scale) * scale

    return step


def centred(axis: int) -> Step:
    return lambda x: x - fw.mean(x, axis=axis, keepdims=True)


def compiled(shape: tuple[int, ...], dtype: str, *steps: Step) -> Program:
    def program(x: Array) -> Array:
        y = fw.astype(x, fw.float32)
        for step in steps:
            y = step(y)
        return fw.astype(y, x.dtype)

    return fw.compile(fw.trace(program, fw.TensorSpec(shape, dtype)), "sm_90a")


def schedulers(p: Program) -> list[str]:
    return [k.heuristic.scheduler for k in p.kernels if k.heuristic is not None]


TILES: dict[str, tuple[tuple[int, ...], str, tuple[Step, ...]]] = {
    "rows, then columns": ((11, 7, 32, 16), "float16", (rounded(3), softmax(2))),
    "columns, then rows": ((11, 7, 32, 16), "float16", (softmax(2), rounded(3))),
    "odd sizes": ((50, 17, 15), "float32", (centred(1), softmax(2))),
    "three sides": ((20, 5, 6, 8), "float32", (centred(1), softmax(3), rounded(2))),
    "no axis is kept": ((12, 20), "float32", (softmax(0), centred(1))),
    "a kept axis between the sides": ((6, 16, 12, 32), "float16", (softmax(1), centred(3))),
}


@pytest.mark.parametrize("name", TILES)
def test_one_kernel_reduces_both_ways(name: str) -> None:
    shape, dtype, steps = TILES[name]
    p = compiled(shape, dtype, *steps)
    assert schedulers(p) == ["small_tiles"]
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    found = p.simulate(x)
    assert found.races == []
    (want,) = fw.evaluate(p.fusion, x)
    tolerance = 2e-3 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(found.outputs[0], want, rtol=tolerance, atol=tolerance)


def test_every_element_moves_once() -> None:
    p = compiled((64, 32, 16), "float16", rounded(2), softmax(1))
    (k,) = p.kernels
    assert traffic(k.ir, k.arguments()).nbytes == 2 * 64 * 32 * 16 * 2


def test_a_tile_of_one_warp_meets_at_no_barrier() -> None:
    (k,) = compiled((64, 32, 16), "float16", rounded(2), softmax(1)).kernels
    assert k.syncs == []


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        ((4, 32, 33), (softmax(1), rounded(2))),  # 33 fill up to 64: 2048 elements
        ((64, 1000, 4), (softmax(2), centred(0))),  # runs of 8 bytes
        ((16, 32, 1000), (softmax(1), centred(0))),  # memory runs along what is kept
    ],
)
def test_other_tiles_are_kernels_of_their_own(
    shape: tuple[int, ...], steps: tuple[Step, ...]
) -> None:
    p = compiled(shape, "float16", *steps)
    assert "small_tiles" not in schedulers(p)


def test_a_block_holds_tiles_up_to_its_registers() -> None:
    most = MOST_THREADS * MOST_OF_THREAD
    assert is_held([most // 16, 16]) and not is_held([most // 16, 17])
    assert is_held([8, 8, 8]) and not is_held([8, 8, 4, 2])


def test_a_line_has_no_sides() -> None:
    """Sums over an axis of one element are the line that the sum of all reduces then."""

    def sums(x: Array) -> tuple[Array, ...]:
        wide = fw.astype(x, fw.float32)
        lines = fw.sum(wide, axis=(0, 2, 3))
        return lines, fw.max(wide, axis=1), fw.sum(lines)

    program = fw.compile(fw.trace(sums, fw.TensorSpec((1, 304, 27737, 8), "float16")))
    assert "small_tiles" not in schedulers(program)
