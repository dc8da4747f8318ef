"""Programs of moves, joins and parts: one launch, one read of the arguments, one write of the
results, in whatever way they are written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

S = fw.TensorSpec
F = "float32"
X = S((4096, 4096), F)
HALF = S((4096, 2048), F)


def rotary(x: Any, c: Any, s: Any) -> Any:
    pairs = fw.reshape(x, (8, 32, 2048, 64, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    return fw.reshape(fw.stack([a * c - b * s, a * s + b * c], axis=-1), x.shape)


def mean_of_four(x: Any) -> Any:
    return (x[::2, ::2] + x[1::2, ::2] + x[::2, 1::2] + x[1::2, 1::2]) / 4


def doubled(x: Any) -> Any:
    return fw.repeat(fw.repeat(x, 2, axis=2), 2, axis=3)


def two_parts_of_a_norm(x: Any, w: Any) -> Any:
    y = fw.nn.rms_norm(x, (4096,), w)
    return y[:, :2048], y[:, 2048:]


PROGRAMS: dict[str, tuple[Callable[..., Any], list[fw.TensorSpec]]] = {
    "rotary by pairs": (rotary, [S((8, 32, 2048, 128), F), *[S((2048, 64), F)] * 2]),
    "a mean of four neighbours": (mean_of_four, [X]),
    "nearest upsampling": (doubled, [S((8, 64, 128, 128), F)]),
    "upsampling beside a skip": (
        lambda x, s: fw.concat([doubled(x), s], axis=1),
        [S((8, 64, 64, 64), F), S((8, 64, 128, 128), F)],
    ),
    "roll of flip": (lambda x: fw.roll(fw.flip(x, axis=1), 3, axis=1), [X]),
    "crop of a function": (lambda x: fw.exp(x)[1:-1, 1:-1], [X]),
    "negative pad of a function": (lambda x: fw.pad(fw.exp(x), ((-1, -1), (-2, -2))), [X]),
    "neighbours of a function": (lambda x: fw.exp(x)[:, 1:] - fw.exp(x)[:, :-1], [X]),
    "roll of a function": (lambda x: fw.roll(fw.nn.relu(x), 1, axis=1) + x, [X]),
    "difference of a function": (lambda x: fw.diff(fw.exp(x), axis=1), [X]),
    **{
        f"{mode} pad of a function": (
            lambda x, m=mode: fw.pad(fw.nn.relu(x), ((0, 0), (3, 3)), mode=m),
            [X],
        )
        for mode in ("reflect", "edge", "symmetric", "wrap")
    },
    "parts of a norm": (two_parts_of_a_norm, [X, S((4096,), F)]),
    "join of functions": (lambda x: fw.concat([fw.sin(x), fw.cos(x)], axis=-1), [X]),
    "join of one function twice": (lambda x: fw.concat([(e := fw.exp(x)), e], axis=-1), [X]),
    "four powers": (lambda x: fw.concat([x, x * x, x**3, x**4], axis=-1), [X]),
    "join of pads and joins": (
        lambda a, b, c: fw.concat([fw.pad(a, ((0, 0), (1, 1))), fw.concat([b, c], axis=1)], axis=1),
        [S((4096, 1022), F), *[S((4096, 1024), F)] * 2],
    ),
    "tile of a function": (lambda x: fw.tile(fw.exp(x), (1, 3)), [S((4096, 1024), F)]),
    "join of 24 arguments": (lambda *t: fw.concat(t, axis=0), [S((100, 1024), F)] * 24),
    "log_softmax of odd rows": (
        lambda x, t: fw.nn.log_softmax(x / (1 + fw.exp(t)), axis=-1),
        [S((8192, 129), F), S((129,), F)],
    ),
    "roll of rows of joined axes": (
        lambda x: fw.roll(fw.reshape(x, (64 * 512, 256)), 3, axis=0),
        [S((64, 512, 256), F)],
    ),
    "step through joined axes of a function": (
        lambda x, y: (
            fw.reshape(fw.exp(x), (64 * 512, 256)) * fw.flip(fw.reshape(y, (64 * 512, 256)))
        ),
        [S((64, 512, 256), F)] * 2,
    ),
    "windows put back and shifted": (
        lambda x: fw.roll(
            fw.reshape(
                fw.permute_dims(fw.reshape(x, (4, 8, 8, 8, 8, 16)), (0, 5, 1, 3, 2, 4)),
                (4, 16, 64, 64),
            ),
            (4, 4),
            axis=(2, 3),
        ),
        [S((256, 64, 16), F)],
    ),
    "one block inserted": (lambda c, v: fw.insert(c, v, (8, 0)), [X, S((1024, 4096), F)]),
}


def nbytes(tensors: Any) -> int:
    return sum(t.dtype.nbytes * math.prod(int(str(e)) for e in t.shape) for t in tensors)


@pytest.mark.parametrize(("fn", "specs"), PROGRAMS.values(), ids=PROGRAMS)
def test_one_launch_moves_the_least(fn: Callable[..., Any], specs: list[fw.TensorSpec]) -> None:
    program = fw.compile(fw.trace(fn, *specs))
    stats = program.host.stats
    least = nbytes(program.fusion.inputs) + nbytes(program.fusion.outputs)
    assert (stats["launches"], stats["fills"]) == (1, 0)
    assert stats["bytes_moved"] <= 1.06 * least


def test_a_norm_of_one_place_reads_that_place() -> None:
    specs = S((64, 512, 1024), F), S((1024,), F), S((1024,), F)
    program = fw.compile(
        fw.trace(lambda x, w, b: fw.nn.layer_norm(x, (1024,), w, b)[:, -1], *specs)
    )
    stats = program.host.stats
    assert (stats["launches"], stats["bytes_moved"]) == (1, 4 * (2 * 64 * 1024 + 2 * 1024))


def test_a_corner_of_a_product_multiplies_that_corner() -> None:
    spec = S((2048, 2048), "bfloat16")
    program = fw.compile(fw.trace(lambda a, b: (a @ b)[:256, :256], spec, spec))
    stats = program.host.stats
    assert (stats["launches"], stats["bytes_moved"]) == (1, 2 * (2 * 256 * 2048 + 256 * 256))


@pytest.mark.parametrize("batch", [4, "b"])
@pytest.mark.parametrize("rows", [512, "n"])
def test_a_run_of_joined_axes_is_read_where_it_lies(batch: int | str, rows: int | str) -> None:
    def fn(x: Any) -> Any:
        return fw.reshape(x, (-1, 64))[1:] * 2

    program = fw.compile(fw.trace(fn, S((batch, rows, 64), F)))
    (launch,) = program.launches
    assert [r.root.name for r in launch.reads] == ["x"]
    x = np.random.default_rng(0).standard_normal((4, 512, 64)).astype(np.float32)
    result = program.simulate(x)
    assert result.races == []
    np.testing.assert_array_equal(result.outputs[0], x.reshape(-1, 64)[1:] * 2)
