"""Values that one kernel reads at two places of its loops: a part of an argument and its transpose,
rows against rows. What is cheap is made at both places; what many readers share is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

Spec = tuple[tuple[int, ...], str]

ONE_LAUNCH: dict[str, tuple[Callable[..., Any], list[Spec]]] = {
    "a part and its transpose": (
        lambda x: x[:37, 2:39] + x[:37, 2:39].T,
        [((50, 41), "float32")],
    ),
    "a function and its transpose": (lambda x: fw.exp(x) + fw.exp(x).T, [((45, 45), "float32")]),
    "a function of a batch and its transpose": (
        lambda x: fw.nn.sigmoid(x * 2) - fw.nn.sigmoid(x * 2).swapaxes(1, 2),
        [((3, 34, 34), "bfloat16")],
    ),
    "rows of a part against each other": (
        lambda x: fw.sum((x[:21, None] - x[None, :21]) ** 2, axis=-1),
        [((40, 33), "float32")],
    ),
    "rounded rows against each other": (
        lambda x: fw.max(
            fw.abs(fw.astype(x, "float32")[:, None] - fw.astype(x, "float32")[None]), axis=-1
        ),
        [((19, 65), "float16")],
    ),
    "products of rows of a part": (lambda x: x[:70] @ x[:70].T, [((100, 48), "float32")]),
    "products of two parts": (lambda x: x[:, :33] @ x[:, 33:66].T, [((65, 99), "float32")]),
}


def spec_of(s: Spec) -> fw.TensorSpec:
    return fw.TensorSpec(*s)


@pytest.mark.parametrize("name", ONE_LAUNCH)
def test_what_is_cheap_is_made_at_both_places(name: str) -> None:
    fn, specs = ONE_LAUNCH[name]
    fusion = fw.trace(fn, *map(spec_of, specs))
    program = fw.compile(fusion)
    assert program.host.stats["launches"] == 1
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(t.shape).astype(t.dtype.numpy) for t in map(spec_of, specs)]
    found = program.simulate(*arrays)
    assert found.races == []
    (want,) = fw.evaluate(fusion, *arrays)
    error = np.abs(found.outputs[0].astype(np.float64) - want.astype(np.float64))
    assert error.max() <= 1e-2 * np.abs(want.astype(np.float64)).max()


def test_tiles_of_a_function_and_its_transpose_go_through_shared_memory() -> None:
    fusion = fw.trace(lambda x: fw.exp(x) + fw.exp(x).T, fw.TensorSpec((512, 512), "float32"))
    (kernel,) = fw.compile(fusion).kernels
    assert kernel.syncs


def test_a_function_that_every_row_needs_is_stored() -> None:
    fusion = fw.trace(
        lambda x: fw.sum((fw.exp(x)[:, None] - fw.exp(x)[None]) ** 2, axis=-1),
        fw.TensorSpec((64, 32), "float32"),
    )
    assert fw.compile(fusion).host.stats["launches"] == 2


def test_operands_of_a_sum_of_products_begin_where_their_bindings_do() -> None:
    fusion = fw.trace(lambda x: x[:512] @ x[512:].T, fw.TensorSpec((1024, 64), "float32"))
    program = fw.compile(fusion)
    (launch,) = program.host.launches
    offsets = sorted(int(str(b.offset)) for b in launch.bindings if b.access.value == "R")
    assert offsets == [0, 512 * 64 * 4]
