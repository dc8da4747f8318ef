"""Draws of the lot that were far from the speed of memory, each as a small program: the predicted
share of a copy's time, and the launches, that they reach now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bench.lot.forecast import predicted_us

import fusewright as fw
from fusewright.core.substitution import estimate
from fusewright.target import target_of

S = fw.TensorSpec
TARGET = target_of("sm_90a")


def neighbours(x: Any) -> Any:
    return x[2:] - x[:-2]


def mean_and_variance(x: Any) -> Any:
    """Statistics along different axes: what is a sample of one is no part of the other's kernel."""
    y = fw.astype(x, fw.float32)
    return fw.mean(y, axis=(2, 4)), fw.var(y, axis=(0, 1, 3))


def backward_of_rows(x: Any, g: Any, w: Any) -> tuple[Any, Any]:
    """As in the backward of a norm: each row from its own sum, and a sum of each column."""
    wide, up = fw.astype(x, "float32"), fw.astype(g, "float32")
    scaled = up * fw.astype(w, "float32")
    along = fw.mean(scaled * wide, axis=-1, keepdims=True)
    return fw.astype(scaled - wide * along, x.dtype), fw.sum(up * wide, axis=0)


def halves_exchanged(x: Any) -> Any:
    n = int(x.shape[-1]) // 2
    return fw.sqrt(fw.abs(fw.concat([-x[..., n:], x[..., :n]], axis=-1)))


def list_of_steps(*ts: Any) -> list[Any]:
    return [p - 0.1 * g for p, g in zip(ts[::2], ts[1::2], strict=True)]


CASES: list[tuple[str, Callable[..., Any], list[fw.TensorSpec], float, int]] = [
    ("rows that are short and contiguous", neighbours, [S((4096, 2247, 4), "bfloat16")], 0.9, 1),
    (
        "two columns",
        lambda x: fw.mean(x, axis=(0, 1)),
        [S((1024, 81480, 2), "bfloat16")],
        0.8,
        2,
    ),
    (
        "scans of four neighbours",
        lambda x: fw.cumulative_sum(x, axis=1),
        [S((368, 12472, 4), "float32")],
        0.44,
        1,
    ),
    ("other axes", mean_and_variance, [S((27, 4, 56, 32, 1024), "bfloat16")], 0.3, 6),
    (
        "backward of short rows",
        backward_of_rows,
        [S((12_181_504, 8), "bfloat16"), S((12_181_504, 8), "bfloat16"), S((8,), "bfloat16")],
        0.85,
        2,
    ),
    (
        "the position of the least of a column",
        lambda x: fw.argmin(x, axis=0),
        [S((1430, 32, 5120), "float16")],
        0.75,
        1,
    ),
    (
        "tensors of a model",
        list_of_steps,
        [S((64 * k + 900, 64 + k % 3), "float32") for k in range(24) for _ in range(2)],
        0.5,
        2,
    ),
    (
        "a triangle of rolled rows",
        lambda x: fw.roll(fw.nn.gelu(fw.tril(x)), 5, axis=-1),
        [S((24, 8, 50257), "float16")],
        0.58,
        1,
    ),
    (
        "an odd number of columns that lie across, flipped",
        lambda x: fw.exp(fw.flip(x, axis=0)),
        [S((1833655, 67), "bfloat16", strides=(1, 1833655))],
        0.75,
        1,
    ),
]


@pytest.mark.parametrize(
    ("fn", "specs", "share", "launches"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_predicted_share_of_the_speed_of_memory(
    fn: Callable[..., Any], specs: list[fw.TensorSpec], share: float, launches: int
) -> None:
    program = fw.compile(fw.trace(fn, *specs))
    tensors = (*program.fusion.inputs, *program.fusion.outputs)
    nbytes = sum(estimate(n) for n in map(_numel, tensors))
    floor = nbytes / (0.885 * TARGET.memory_nbytes_per_us)
    assert floor / predicted_us(program, TARGET) > share
    assert len(program.launches) <= launches


def _numel(t: Any) -> Any:
    out: Any = t.dtype.nbytes
    for n in t.shape:
        out = n * out
    return out


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        (lambda x: fw.mean(x, axis=(0, 1)), [S((64, 5003, 2), "float32")]),
        (lambda x: fw.sum(x, axis=0), [S((300_007, 3), "float32")]),
        (lambda x: fw.cumulative_sum(x, axis=1), [S((5, 1237, 4), "float32")]),
        (lambda x: fw.cumulative_sum(x, axis=0), [S((977, 3, 5), "float32")]),
        (mean_and_variance, [S((9, 2, 7, 4, 24), "float32")]),
        (
            backward_of_rows,
            [S((70_001, 8), "float32"), S((70_001, 8), "float32"), S((8,), "float32")],
        ),
        (halves_exchanged, [S((7, 9, 335), "float32")]),
        (lambda x: fw.roll(halves_exchanged(x), 1, axis=1), [S((3, 5, 7, 333), "float32")]),
        (lambda x: fw.roll(fw.tril(x), 5, axis=-1), [S((3, 8, 5025), "float32")]),
        # whose blocks, and not threads, differ in the index of a load under a condition
        (lambda x: (fw.sum(x, axis=1), fw.sum(x, axis=(0, 2, 3))), [S((1, 2, 2, 8192), "float32")]),
    ],
)
def test_results_are_those_of_the_oracle(
    fn: Callable[..., Any], specs: list[fw.TensorSpec]
) -> None:
    program = fw.compile(fw.trace(fn, *specs))
    rng = np.random.default_rng(0)
    shapes = [tuple(int(str(n)) for n in s.shape) for s in specs]
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    result = program.simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(program.fusion, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=2e-3)
