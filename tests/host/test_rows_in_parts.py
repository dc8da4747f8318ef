"""Rows that are normed, and read in equal parts behind that: one kernel, which reads each once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from host_runs import agreed

import fusewright as fw
from fusewright.core.expr import constant_value
from fusewright.fusion.ir import Reduce
from fusewright.fusion.passes.reduce_by_parts import MAX_PARTS, reduce_by_parts


def parts(y: Any, count: int) -> list[Any]:
    return list(fw.split(y, count, axis=-1))


def gated(x: Any) -> Any:
    a, b = parts(fw.nn.rms_norm(x, (x.shape[-1],)), 2)
    return fw.nn.silu(a) * b


def centred(x: Any) -> Any:
    """Two reductions, of which the second one reads the first; three parts."""
    q, k, v = parts(fw.nn.layer_norm(x, (x.shape[-1],)), 3)
    return q * k + v


def weights(x: Any) -> Any:
    a, b = parts(fw.nn.softmax(x, axis=-1), 2)
    return fw.maximum(a, b)


def cell(x: Any) -> Any:
    i, f, g, o = parts(x - fw.mean(x, axis=-1, keepdims=True), 4)
    return fw.nn.sigmoid(o) * fw.tanh(fw.nn.sigmoid(f) + fw.nn.sigmoid(i) * fw.tanh(g))


PROGRAMS = {"gated": gated, "centred": centred, "weights": weights, "cell": cell}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_are_read_once(name: str, dtype: str) -> None:
    program = fw.compile(fw.trace(PROGRAMS[name], fw.TensorSpec((8192, 3072), dtype)))
    arrays = (*program.fusion.inputs, *program.fusion.outputs)
    sizes = [math.prod(constant_value(n) or 0 for n in t.shape) * t.dtype.nbytes for t in arrays]
    stats = program.host.stats
    assert (stats["launches"], stats["copies"]) == (1, 0)
    assert stats["bytes_moved"] == sum(sizes)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("shape", [(5, 24), (67, 396), (3, 2412), ("n", 1200)], ids=str)
def test_they_hold_what_the_oracle_says(name: str, shape: tuple[int | str, ...]) -> None:
    program = agreed(PROGRAMS[name], fw.TensorSpec(shape, "float32"), sizes={"n": 7}, orders=1)
    assert program.host.stats["copies"] == 0


def reductions(fusion: fw.Fusion) -> list[int | None]:
    """How many elements each reduction makes one of."""
    found = (t.op.operands[0].shape[-1] for t in fusion.values if isinstance(t.op, Reduce))
    return [constant_value(n) for n in found]


@pytest.mark.parametrize("count", [2, 3, MAX_PARTS])
def test_a_reduction_runs_over_one_part(count: int) -> None:
    def f(x: Any) -> Any:
        return fw.stack(parts(x / fw.sum(x * x, axis=-1, keepdims=True), count))

    fusion = fw.trace(f, fw.TensorSpec((6, 12 * count), "float32"))
    cut = reduce_by_parts(fusion)
    assert (reductions(fusion), reductions(cut)) == ([12 * count], [12])
    x = np.random.default_rng(0).standard_normal((6, 12 * count)).astype(np.float32)
    np.testing.assert_allclose(fw.evaluate(cut, x)[0], fw.evaluate(fusion, x)[0], rtol=1e-6)


def whole_too(x: Any) -> Any:
    y = x / fw.sum(x, axis=1, keepdims=True)
    return y, y[:, :12] * y[:, 12:]


def unequal(x: Any) -> Any:
    y = x / fw.sum(x, axis=1, keepdims=True)
    return y[:, :8] * 2, y[:, 8:] * 3


def beside(x: Any) -> Any:
    """The parts are those of the axis that is kept."""
    y = x / fw.sum(x, axis=0, keepdims=True)
    return y[:, :12] * y[:, 12:]


def from_elsewhere(x: Any) -> Any:
    y = x / fw.sum(x, axis=1, keepdims=True)
    return y[:, 1:13] * y[:, 12:]


@pytest.mark.parametrize("f", [whole_too, unequal, beside, from_elsewhere])
def test_other_rows_are_reduced_as_they_are(f: Callable[[Any], Any]) -> None:
    fusion = fw.trace(f, fw.TensorSpec((6, 24), "float32"))
    assert reduce_by_parts(fusion) is fusion
