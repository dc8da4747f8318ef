"""Gradients of gradients against differences in float64, where rules choose by value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

Loss = Callable[[Any], Any]
STEP = 1e-5


def summed(f: Callable[[Any], Any]) -> Loss:
    return lambda x: fw.sum(f(x))


PRODUCTS: dict[str, Loss] = {
    "inclusive": summed(
        lambda x: fw.cumulative_prod(x, axis=1) ** 2 + fw.cumulative_prod(x, axis=1)
    ),
    "exclusive": summed(lambda x: fw.cumulative_prod(x, axis=1, include_initial=True) ** 2),
    "from the end": summed(lambda x: fw.flip(fw.cumulative_prod(fw.flip(x, axis=1), axis=1)) ** 3),
    "other axis": summed(lambda x: fw.cumulative_prod(x, axis=0) * x),
    "whole line": summed(lambda x: fw.prod(x, axis=1) ** 2 + fw.prod(x, axis=1)),
    "all": lambda x: fw.prod(x) + fw.prod(x[:, :2]),
}
SMOOTH: dict[str, Loss] = {
    "softplus": summed(fw.nn.softplus),
    "logsigmoid": summed(fw.nn.logsigmoid),
    "mish": summed(fw.nn.mish),
    "soft margin": summed(lambda x: fw.nn.soft_margin_loss(x, fw.ones_like(x), reduction="none")),
    "cross entropy of bits": summed(
        lambda x: fw.nn.binary_cross_entropy_with_logits(x, fw.full_like(x, 0.3), reduction="none")
    ),
    "power 0": summed(lambda x: x**0 + fw.pow(x, fw.zeros_like(x))),
    "power 1": summed(lambda x: fw.pow(x, fw.ones_like(x)) * x),
    "power 2": summed(lambda x: fw.pow(x, fw.full_like(x, 2.0))),
    "power 3": summed(lambda x: x**3),
    "guarded log": summed(lambda x: fw.where(x > 0.1, fw.log(fw.where(x > 0.1, x, 1.0)), x) * x),
    "root of a sum of squares": summed(lambda x: fw.sqrt(fw.sum(x * x, axis=0) + 1.0)),
    "logsumexp of ties": summed(lambda x: fw.logsumexp(x, axis=0)),
    "softmax of ties": summed(lambda x: fw.nn.softmax(x, axis=1) ** 2),
    "variance": summed(lambda x: fw.var(x, axis=1)),
}


def check(loss: Loss, x: np.ndarray) -> None:
    """The gradient of a directional derivative is the difference of gradients; kernels make it."""
    v = np.random.default_rng(7).normal(size=x.shape)
    spec = fw.TensorSpec(x.shape, "float64")
    first = fw.trace(fw.grad(loss), spec)
    twice = fw.trace(
        lambda x, v: fw.grad(lambda a: fw.sum(fw.grad(loss)(a) * v))(x),
        spec,
        spec,
    )
    wanted = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[at] = STEP
        ends = [fw.evaluate(first, x + step)[0], fw.evaluate(first, x - step)[0]]
        wanted[at] = ((ends[0] - ends[1]) * v).sum() / (2 * STEP)
    np.testing.assert_allclose(fw.evaluate(twice, x, v)[0], wanted, rtol=1e-5, atol=1e-6)
    result = fw.compile(twice).simulate(x, v)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", list(PRODUCTS))
@pytest.mark.parametrize("zeros", [(), (1,), (0, 3), (0, 1, 2, 3)])
def test_products_of_lines_with_zeros(name: str, zeros: tuple[int, ...]) -> None:
    x = np.random.default_rng(len(zeros)).normal(size=(2, 4))
    x[:, list(zeros)] = 0
    check(PRODUCTS[name], x)


@pytest.mark.parametrize("name", list(SMOOTH))
def test_smooth_functions_at_the_corners_of_their_spelling(name: str) -> None:
    check(SMOOTH[name], np.array([[0.0, 1.0, 0.5], [2.0, 0.0, -0.7]]))


def test_third_derivatives_of_a_product_of_zeros() -> None:
    """Of a * b * c at 0 only the mixed third derivative is left."""

    def thrice(x: Any) -> Any:
        one = lambda k: fw.asarray(np.eye(3)[k])  # noqa: E731
        product = lambda a: fw.cumulative_prod(a)[-1]  # noqa: E731
        first = lambda a: fw.sum(fw.grad(product)(a) * one(0))  # noqa: E731
        second = lambda a: fw.sum(fw.grad(first)(a) * one(1))  # noqa: E731
        return fw.grad(second)(x)

    fusion = fw.trace(thrice, fw.TensorSpec((3,), "float64"))
    for found in (
        fw.evaluate(fusion, np.zeros(3)),
        fw.compile(fusion).simulate(np.zeros(3)).outputs,
    ):
        np.testing.assert_array_equal(found[0], [0, 0, 1])


def test_maps_of_second_derivatives_keep_the_rule() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4))
    x[:, :2] = 0
    row = lambda a: fw.grad(lambda b: fw.sum(fw.grad(lambda c: fw.prod(c))(b)))(a)  # noqa: E731
    fusion = fw.trace(fw.vmap(row), fw.TensorSpec(x.shape, "float64"))
    others = x[:, 2] * x[:, 3]
    found = fw.evaluate(fusion, x)[0]
    np.testing.assert_allclose(found[:, :2], np.stack([others, others], 1), rtol=1e-12)
    np.testing.assert_array_equal(found[:, 2:], 0)


def test_a_first_derivative_takes_no_square_of_the_axis() -> None:
    fusion = fw.trace(fw.grad(PRODUCTS["inclusive"]), "f64[2,64]")
    assert max(t.ndim for t in fusion.values) == 2
