"""Random programs on arguments that lie in memory in any order: the same numbers when followed."""

from __future__ import annotations

import random
from dataclasses import replace

import fuzz_programs
import numpy as np
import pytest
from fuzz_programs import Leaf

import fusewright as fw
from fusewright.fusion.passes.follow_memory import follow_memory, wanted_orders

LARGEST = 8
"""Of a symbol: no order depends on it, and one argument may have it along several axes."""


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_followed_programs_compute_the_same(start: int) -> None:
    followed = 0
    for seed in range(start, start + 50):
        rng = random.Random(seed)
        recipe = fuzz_programs.draw(seed)
        leaves = tuple(shuffled(rng, x) for x in recipe.leaves)
        sizes = tuple((name, min(n, LARGEST)) for name, n in recipe.sizes)
        recipe = replace(recipe, leaves=leaves, sizes=sizes)
        fusion, given = recipe.trace(), recipe.arrays()
        expected = fw.evaluate(fusion, *given)
        for wanted in ({}, wanted_orders(fusion)):
            made = follow_memory(fusion, wanted)
            followed += bool(made.orders)
            assert len({t.name for t in made.fusion.values}) == len(made.fusion.values)
            assert made.fusion.inputs == fusion.inputs
            for a, b in zip(fw.evaluate(made.fusion, *given), expected, strict=True):
                assert_close(a, b)
    assert followed > 10


def shuffled(rng: random.Random, leaf: Leaf) -> Leaf:
    """The argument with its axes in another order in memory, where their sizes are known."""
    if any(isinstance(s, str) for s in leaf.shape):
        return leaf
    axes = list(range(len(leaf.shape)))
    rng.shuffle(axes)
    return replace(leaf, order=tuple(axes))


def assert_close(a: np.ndarray, b: np.ndarray) -> None:
    """Sums are added in another order; what is rounded to few bits may round to a neighbour."""
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    if a.dtype.kind in "biu":
        np.testing.assert_array_equal(a, b)
    else:
        bound = 1e-5 if a.dtype.itemsize >= 4 else 0.3
        wide = (np.asarray(x, np.float64) for x in (a, b))
        np.testing.assert_allclose(*wide, rtol=bound, atol=bound)
