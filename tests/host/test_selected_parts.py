"""Joins and pads that are moved or scanned are selections in the kernel that moves or scans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.ir import Concat, Resize
from fusewright.fusion.passes.select_joins import select_joins


def halves(x: Any, axis: int) -> Any:
    """The halves exchanged, one with its sign turned, as rotary embeddings have them."""
    half = x.shape[axis] // 2
    first = tuple(slice(0, half) if k == axis else slice(None) for k in range(x.ndim))
    second = tuple(slice(half, None) if k == axis else slice(None) for k in range(x.ndim))
    return fw.concat([-x[second], x[first]], axis=axis)


PROGRAMS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "a padded function, rolled": (
        (57, 67),
        lambda x: fw.roll(fw.nn.sigmoid(fw.pad(x, ((2, -2), (0, 0)))), 19, axis=0),
    ),
    "a pad on both sides, flipped": (
        (33, 21),
        lambda x: fw.flip(fw.exp(fw.pad(x, ((0, 0), (1, 3)), constant_values=0.5)), axis=1),
    ),
    "halves, rolled": ((5, 3, 109), lambda x: fw.roll(fw.nn.gelu(halves(x, 2)), 8, axis=2)),
    "halves, scanned": ((7, 47, 86), lambda x: fw.cumulative_sum(fw.tanh(halves(x, 2)), axis=0)),
    "halves, scanned along": ((7, 86), lambda x: fw.cumulative_sum(fw.tanh(halves(x, 1)), axis=1)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_kernel_selects_the_parts(name: str) -> None:
    shape, f = PROGRAMS[name]
    program = fw.compile(fw.trace(f, fw.TensorSpec(shape, "float32")))
    x = np.random.default_rng(len(name)).standard_normal(shape).astype("float32")
    found = program.simulate(x)
    assert found.races == []
    (want,) = fw.evaluate(program.fusion, x)
    np.testing.assert_allclose(found.outputs[0], want, rtol=1e-5, atol=1e-5)
    assert len(program.launches) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_selections_compute_what_joins_and_pads_do(name: str) -> None:
    shape, f = PROGRAMS[name]
    fusion = fw.trace(f, fw.TensorSpec(shape, "float32"))
    selected = select_joins(fusion)
    assert not any(isinstance(t.op, Concat) or _pads(t) for t in selected.values)
    x = np.random.default_rng(1).standard_normal(shape).astype("float32")
    (found,), (want,) = fw.evaluate(selected, x), fw.evaluate(fusion, x)
    np.testing.assert_array_equal(found, want)


def _pads(t: Any) -> bool:
    return isinstance(t.op, Resize) and any(str(e)[0] not in "-0" for e in (*t.op.low, *t.op.high))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: fw.exp(fw.pad(x, 1)),
        lambda x: fw.exp(halves(x, 1)),
        lambda x: fw.sum(fw.roll(x, 3, axis=0) * halves(x, 1), axis=0),
        lambda x: fw.roll(fw.concat([x, x * 2, x * 3, x * 4, x * 5], axis=0), 3, axis=0),
    ],
    ids=["a pad that is read in place", "a join that is", "of two sides", "many parts"],
)
def test_joins_and_pads_stay(f: Callable[[Any], Any]) -> None:
    fusion = fw.trace(f, fw.TensorSpec((33, 21), "float32"))
    assert select_joins(fusion) is fusion
