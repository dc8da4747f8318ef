"""Maps that are affine in pieces along the fast axis become joins of their pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.atoms import maximum, minimum
from fusewright.core.expr import Expr, Var
from fusewright.fusion.ir import Concat, Fusion, IndexMap
from fusewright.fusion.passes.split_maps import pieces_of, split_maps

I = Var("i", 0, 9)  # noqa: E741
Function = Callable[[Any], Any]


@pytest.mark.parametrize(
    ("e", "wanted"),
    [
        ((I + 3) % 10, [(0, 7, 3, 1), (7, 3, 0, 1)]),
        (9 - I, [(0, 10, 9, -1)]),
        (maximum(3 - I, I - 3), [(0, 4, 3, -1), (4, 6, 1, 1)]),
        (minimum(I * 2, 11), [(0, 6, 0, 2), (6, 4, 11, 0)]),
        ((I * 3) % 5, None),
    ],
    ids=str,
)
def test_pieces_are_maximal_from_the_left(e: Expr, wanted: list[tuple[int, ...]] | None) -> None:
    found = pieces_of(e, I, 10)
    if found is None or wanted is None:
        assert found is None and wanted is None
        return
    assert [(p.start, p.size, p.first, p.step) for p in found] == wanted


def traced(fn: Function, shape: tuple[int, ...], dtype: str = "float16") -> Fusion:
    return fw.trace(fn, fw.TensorSpec(shape, dtype))


def kinds(fusion: Fusion) -> set[type]:
    return {type(t.op) for t in split_maps(fusion).values}


SPLIT: dict[str, tuple[Function, tuple[int, ...]]] = {
    "roll": (lambda x: fw.roll(x, 5, axis=1), (3, 257)),
    "two axes": (lambda x: fw.roll(x, (1, 100), axis=(0, 1)), (3, 257)),
    "reflection": (lambda x: fw.pad(x, ((0, 0), (4, 3)), mode="reflect"), (3, 250)),
    "before a function": (lambda x: fw.exp(fw.roll(x, 1, axis=1)) + x, (2, 3001)),
}


@pytest.mark.parametrize("name", SPLIT)
def test_pieces_are_joined_and_say_the_same(name: str) -> None:
    fn, shape = SPLIT[name]
    fusion = traced(fn, shape)
    assert Concat in kinds(fusion)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    (want,), (got,) = fw.evaluate(fusion, x), fw.evaluate(split_maps(fusion), x)
    np.testing.assert_array_equal(got, want)
    (simulated,) = fw.compile(fusion, "sm_90a").simulate(x).outputs
    np.testing.assert_allclose(simulated, want, rtol=2e-3)


KEPT: dict[str, tuple[Function, tuple[int, ...]]] = {
    "whole vectors": (lambda x: fw.roll(x, 64, axis=1), (3, 512)),
    "another axis": (lambda x: fw.roll(x, 1, axis=0), (512, 512)),
    "backwards": (lambda x: fw.flip(x, axis=1), (3, 513)),
    "short rows": (lambda x: fw.roll(x, 1, axis=1), (4096, 17)),
    "rows of a reduction": (lambda x: fw.sum(fw.roll(x, 5, axis=1), axis=1), (3, 1025)),
}


@pytest.mark.parametrize("name", KEPT)
def test_maps_stay_where_pieces_gain_nothing(name: str) -> None:
    fn, shape = KEPT[name]
    fusion = traced(fn, shape)
    assert IndexMap in kinds(fusion)
    assert split_maps(fusion) is fusion


def test_vectors_of_a_roll_by_one_element_are_wide() -> None:
    fusion = traced(lambda x: fw.roll(x, 1, axis=1), (512, 65537))
    (kernel,) = fw.compile(fusion, "sm_90a").kernels
    assert kernel.heuristic is not None
    assert dict(kernel.heuristic.values)["vector"] == 8


def test_an_axis_whose_size_is_not_known_stays_one_map() -> None:
    fusion = fw.trace(lambda x: fw.roll(x, 5, axis=1), fw.TensorSpec((4, "n"), "float16"))
    assert split_maps(fusion) is fusion


def test_an_index_that_depends_on_a_size_alone_is_left() -> None:
    """The only variable of the fast index is the size, which is no coordinate."""
    fusion = fw.trace(
        lambda x: fw.roll(fw.tile(x, (1, 2)), 1, axis=0), fw.TensorSpec((2, "k"), "bfloat16")
    )
    assert len(fw.compile(fusion).launches) == 1
