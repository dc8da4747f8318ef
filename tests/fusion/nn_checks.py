"""Checks that the tests of `nn` share: evaluation by the oracle, and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import TensorSpec
from fusewright.fusion.trace import trace
from fusewright.fusion.transforms.gradients import vjp

Array = npt.NDArray[Any]
STEP = 1e-6


def run(fn: Callable[..., Any], *arrays: Array) -> list[Array]:
    """The outputs of `fn`, traced for exactly these arrays."""
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    return evaluate(trace(fn, *specs), *arrays)


def run1(fn: Callable[..., Any], *arrays: Array) -> Array:
    """The one output of `fn`."""
    (out,) = run(fn, *arrays)
    return out


def normal(*shape: int, seed: int = 0, dtype: Any = np.float64) -> Array:
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def integers(high: int, *shape: int, seed: int = 0, dtype: Any = np.int64) -> Array:
    """Integers in [0, high)."""
    return np.random.default_rng(seed).integers(0, high, shape).astype(dtype)


def numeric_gradient(f: Callable[[Array], Array], x: Array, dy: Array) -> Array:
    """d sum(f(x) * dy) / dx by central differences; f computes in float64."""
    out = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[index] += STEP
        behind[index] -= STEP
        out[index] = np.sum((f(ahead) - f(behind)) * dy) / (2 * STEP)
    return out


def assert_gradients(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    *inputs: Array,
    wrt: tuple[int, ...] = (0,),
) -> None:
    """`backward(dy, *inputs)` gives the gradients of `forward(*inputs)` for the inputs `wrt`."""
    y = run1(forward, *inputs)
    dy = np.asarray(normal(*y.shape, seed=77))
    found = run(backward, dy, *inputs)
    assert len(found) == len(wrt)
    for gradient, k in zip(found, wrt, strict=True):

        def along(v: Array, k: int = k) -> Array:
            return run1(forward, *inputs[:k], v, *inputs[k + 1 :])

        expected = numeric_gradient(along, inputs[k], dy)
        assert gradient.shape == inputs[k].shape
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)


def assert_like_torch(
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    *arrays: np.ndarray,
    wrt: int | None = None,
    rtol: float = 1e-9,
) -> None:
    """Equal results, and equal gradients of the results times random numbers, with respect to all
    arrays or the first `wrt`."""
    import torch

    count = len(arrays) if wrt is None else wrt
    leaves = [torch.from_numpy(a.copy()).requires_grad_(k < count) for k, a in enumerate(arrays)]
    expected = theirs(*leaves)
    found = run1(ours, *arrays)
    assert found.dtype == expected.detach().numpy().dtype
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=rtol, atol=1e-11)
    dy = np.asarray(normal(*found.shape, seed=5))
    expected.backward(torch.from_numpy(dy))
    gradients = run(
        lambda dy, *xs: vjp(lambda *v: ours(*v, *xs[count:]), *xs[:count])[1](dy), dy, *arrays
    )
    for g, leaf in zip(gradients, leaves[:count], strict=True):
        np.testing.assert_allclose(g, leaf.grad.numpy(), rtol=rtol, atol=1e-11)
