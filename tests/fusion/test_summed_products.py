"""Sums of products of repeated values are products of matrices, of the same values and little
memory."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.summed_products import (
    is_of_matrices,
    repeated_axes,
    sum_of_products,
    summed_products,
)

RNG = np.random.default_rng()


def _repeated(shape: tuple[int, ...], along: tuple[int, ...]) -> np.ndarray:
    one = RNG.normal(size=[1 if k in along else n for k, n in enumerate(shape)])
    return np.broadcast_to(one, shape)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("first", [(1,), (0, 1), (2,), (3, 1)])
def test_every_sum_is_that_of_the_products(first: tuple[int, ...], axes: tuple[int, ...]) -> None:
    for n in (1, 2):
        for second in itertools.combinations(set(range(4)) - set(first), n):
            a, b = _repeated((3, 4, 5, 2), first), _repeated((3, 4, 5, 2), second)
            assert is_of_matrices(a, b)
            np.testing.assert_allclose(sum_of_products(a, b, axes), (a * b).sum(axis=axes))


def test_axes_of_one_or_no_element() -> None:
    a, b = _repeated((1, 4, 5), (1,)), _repeated((1, 4, 5), (2,))
    np.testing.assert_allclose(sum_of_products(a, b, (0, 2)), (a * b).sum(axis=(0, 2)))
    a, b = _repeated((4, 5, 0), (1,)), _repeated((4, 5, 0), (0,))
    np.testing.assert_array_equal(sum_of_products(a, b, (2,)), np.zeros((4, 5)))


def test_values_that_are_no_products_of_matrices() -> None:
    a, b = _repeated((4, 5), (1,)), RNG.normal(size=(4, 5))
    assert not is_of_matrices(a, b) and not is_of_matrices(a, a)
    assert repeated_axes([a]) == [1] and repeated_axes([b]) == []


def test_what_something_else_reads_is_computed() -> None:
    def f(x: fw.Array, y: fw.Array) -> tuple[fw.Array, fw.Array]:
        p = fw.expand_dims(x, 1) * fw.expand_dims(y, 0)
        return fw.sum(p, axis=-1), fw.max(p, axis=-1)

    fusion = fw.trace(f, *[fw.TensorSpec((4, 5), "float32")] * 2)
    assert summed_products(fusion) == {}
    x, y = RNG.normal(size=(2, 4, 5)).astype(np.float32)
    total, largest = fw.evaluate(fusion, x, y)
    products = x[:, None].astype(np.float64) * y[None]
    np.testing.assert_allclose(total, products.sum(-1), rtol=1e-6)
    np.testing.assert_allclose(largest, products.max(-1), rtol=1e-6)


def test_a_product_of_matrices_takes_no_memory_for_all_pairs() -> None:
    """A product in IEEE float32 becomes a sum of 256 x 256 x 512 products: 268 MB of float64."""
    specs = [fw.TensorSpec((256, 512), "float32"), fw.TensorSpec((512, 256), "float32")]
    program = fw.compile(fw.trace(fw.matmul, *specs))
    assert len(summed_products(program.fusion)) == 1
    a, b = (RNG.normal(size=s).astype(np.float32) for s in ((256, 512), (512, 256)))
    tracemalloc.start()
    (got,) = fw.evaluate(program.fusion, a, b)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)
    assert most < 20e6
