"""Short reductions as terms: what is reduced again is computed where it is read, not stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.passes.unroll_reductions import MAX_TERMS, unroll_reductions

S = fw.TensorSpec
F = "float32"


def forces(p: Any, m: Any) -> Any:
    d = p[None] - p[:, None]
    squares = fw.sum(d * d, axis=-1, keepdims=True) + 1e-3
    return fw.sum(d * (m[None, :, None] / (squares * fw.sqrt(squares))), axis=1)


def distances(a: Any, b: Any) -> Any:
    return fw.sum((a[:, None] - b[None]) ** 2, axis=-1)


def nearest(a: Any, b: Any) -> Any:
    return fw.argmin(distances(a, b), axis=1)


def chamfer(a: Any, b: Any) -> Any:
    d = distances(a, b)
    return fw.mean(fw.min(d, axis=1)) + fw.mean(fw.min(d, axis=0))


def overlap(a: Any, b: Any) -> Any:
    low, high = (
        fw.maximum(a[:, None, :2], b[None, :, :2]),
        fw.minimum(a[:, None, 2:], b[None, :, 2:]),
    )
    return fw.max(fw.prod(fw.maximum(high - low, 0.0), axis=-1), axis=1)


def within(a: Any, b: Any) -> Any:
    """How many points of b lie in the unit cube around each of a: a reduction by `and`."""
    return fw.sum(fw.all(fw.abs(a[:, None] - b[None]) < 0.5, axis=-1), axis=1)


Shapes = list[tuple[int, ...]]
PROGRAMS: dict[str, tuple[Callable[..., Any], Shapes, Shapes, int]] = {
    "forces": (forces, [(2048, 3), (2048,)], [(37, 3), (37,)], 1),
    "nearest of 16 coordinates": (nearest, [(16384, 16), (64, 16)], [(29, 16), (13, 16)], 1),
    "chamfer": (chamfer, [(2048, 3), (2048, 3)], [(65, 3), (41, 3)], 2),
    "overlap by products": (overlap, [(2048, 4), (1024, 4)], [(31, 4), (50, 4)], 1),
    "points within": (within, [(2048, 3), (1024, 3)], [(33, 3), (70, 3)], 1),
}


def specs(shapes: Shapes) -> list[fw.TensorSpec]:
    return [S(shape, F) for shape in shapes]


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_of_the_size_of_all_pairs_is_stored(name: str) -> None:
    fn, large, _, launches = PROGRAMS[name]
    stats = fw.compile(fw.trace(fn, *specs(large))).host.stats
    assert (stats["launches"], stats["copies"]) == (launches, 0)
    results = 2 * 4 * sum(shape[0] for shape in large)
    parts = 32 * 4 * 2048 * 3  # of forces, which are summed along another axis than the fast one
    assert stats["peak_bytes"] <= (parts if name == "forces" else results)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_terms_agree_with_the_oracle(name: str) -> None:
    fn, _, small, _ = PROGRAMS[name]
    rng = np.random.default_rng(len(name))
    fusion = fw.trace(fn, *specs(small))
    assert unroll_reductions(fusion) is not fusion
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in small]
    wanted = fw.evaluate(fusion, *arrays)
    for form in (fusion, unroll_reductions(fusion)):
        program = fw.compile(form)
        result = program.simulate(*arrays)
        assert result.races == []
        for got, want in zip(result.outputs, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("length", "is_changed"), [(MAX_TERMS, True), (MAX_TERMS + 1, False)])
def test_long_reductions_stay(length: int, is_changed: bool) -> None:
    fusion = fw.trace(nearest, S((50, length), F), S((40, length), F))
    assert (unroll_reductions(fusion) is not fusion) == is_changed


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: fw.exp(fw.sum(x * x, axis=1)),
        lambda x: fw.sum(fw.sum(x[:, :, None], axis=1), axis=0),
        lambda x: fw.sum(fw.sum(x / fw.sum(x, axis=0), axis=1) ** 2),
        lambda x: fw.max(fw.sum(fw.cumulative_sum(x, axis=0) * 2, axis=1)),
    ],
    ids=["read by no reduction", "of an argument", "of another reduction", "of a scan"],
)
def test_other_reductions_stay(fn: Callable[[Any], Any]) -> None:
    fusion = fw.trace(fn, S((64, 3), F))
    assert unroll_reductions(fusion) is fusion


def test_values_of_sixteen_bits_are_summed_in_more() -> None:
    """Terms are summed as the reduction sums them, and rounded once."""
    fusion = fw.trace(lambda a, b: fw.max(distances(a, b), axis=1), *[S((9, 16), "bfloat16")] * 2)
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal((9, 16)).astype(fusion.inputs[0].dtype.numpy) for _ in range(2)]
    (want,), (got,) = fw.evaluate(fusion, *arrays), fw.evaluate(unroll_reductions(fusion), *arrays)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
