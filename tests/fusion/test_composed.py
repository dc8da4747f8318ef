"""Operations that are compositions of others: against numpy's and torch's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nn_checks import normal, run1

import fusewright as fw

X, Y = np.asarray(normal(4, 6)), np.asarray(normal(4, 6, seed=1))
B, C = np.asarray(normal(2, 5, 3)), np.asarray(normal(5, 3, seed=1))
BAD = np.array([1.0, np.nan, np.inf, -np.inf, 0.0])
NEAR = np.array([1.0 + 1e-6, np.nan, np.inf, np.inf, 1e-9])
Call = Callable[..., Any]


def log_sum(x: np.ndarray, **options: Any) -> Any:
    return np.log(np.sum(np.exp(x), **options))


CASES: dict[str, tuple[Call, Call, tuple[np.ndarray, ...]]] = {
    "logsumexp": (fw.logsumexp, log_sum, (X,)),
    "logsumexp of an axis": (
        lambda x: fw.logsumexp(x, axis=1, keepdims=True),
        lambda x: log_sum(x, axis=1, keepdims=True),
        (X,),
    ),
    "isclose": (fw.isclose, np.isclose, (BAD, NEAR)),
    "isclose with NaN": (
        lambda a, b: fw.isclose(a, b, 0, 1e-3, True),
        lambda a, b: np.isclose(a, b, 0, 1e-3, True),
        (BAD, NEAR),
    ),
    "isclose of integers": (
        lambda a, b: fw.isclose(a, b, 0.1),
        lambda a, b: np.isclose(a, b, 0.1),
        (np.array([10, 20]), np.array([11, 25])),
    ),
    "allclose": (fw.allclose, np.allclose, (X, X + 1e-9)),
    "nan_to_num": (fw.nan_to_num, np.nan_to_num, (BAD,)),
    "nan_to_num, given": (
        lambda x: fw.nan_to_num(x, 1, 2, -3),
        lambda x: np.nan_to_num(x, nan=1, posinf=2, neginf=-3),
        (BAD.astype(np.float32),),
    ),
    "nan_to_num of integers": (fw.nan_to_num, np.nan_to_num, (np.arange(3),)),
    "lerp": (lambda a, b: fw.lerp(a, b, 0.25), lambda a, b: a + 0.25 * (b - a), (X, Y)),
    "outer": (fw.outer, np.outer, (X[0], Y[:, 0])),
    "inner": (fw.inner, np.inner, (X, Y)),
    "inner of rank 0": (fw.inner, np.inner, (X, Y[0, 0].reshape(()))),
    "diagonal": (fw.diagonal, lambda x: np.diagonal(x, 0, -2, -1), (B,)),
    "diagonal above": (
        lambda x: fw.diagonal(x, offset=1),
        lambda x: np.diagonal(x, 1, -2, -1),
        (B,),
    ),
    "diagonal below": (
        lambda x: fw.diagonal(x, offset=-3),
        lambda x: np.diagonal(x, -3, -2, -1),
        (B,),
    ),
    "diagonal outside": (
        lambda x: fw.diagonal(x, offset=9),
        lambda x: np.diagonal(x, 9, -2, -1),
        (B,),
    ),
    "cross": (fw.cross, np.cross, (B, C)),
    "cross of an axis": (
        lambda a, b: fw.cross(a, b, axis=-2),
        lambda a, b: np.cross(a, b, axis=-2),
        (B[:, :3], C[:3]),
    ),
    "cumulative_max": (
        lambda x: fw.cumulative_max(x, axis=1),
        lambda x: np.maximum.accumulate(x, 1),
        (X,),
    ),
    "cumulative_min": (fw.cumulative_min, np.minimum.accumulate, (X[0],)),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_numpys(name: str) -> None:
    ours, theirs, arrays = CASES[name]
    found, expected = run1(ours, *arrays), np.asarray(theirs(*arrays))
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["logsumexp of an axis", "cumulative_max", "cross", "inner"])
def test_its_kernels_compute_it(name: str) -> None:
    ours, theirs, given = CASES[name]
    arrays = [a.astype(np.float32) for a in given]
    fusion = fw.trace(ours, *(fw.TensorSpec(a.shape, "float32") for a in arrays))
    result = fw.compile(fusion).simulate(*arrays)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], theirs(*arrays), rtol=1e-4, atol=1e-5)


def test_logsumexp_of_large_and_of_no_numbers() -> None:
    x = np.array([[1000.0, 1000.0], [-np.inf, -np.inf], [np.inf, 0.0]])
    found = run1(lambda x: fw.logsumexp(x, axis=1), x)
    np.testing.assert_allclose(found, [1000 + np.log(2), -np.inf, np.inf])


def test_gradient_of_logsumexp_is_softmax() -> None:
    found = run1(fw.grad(fw.logsumexp), X)
    np.testing.assert_allclose(found, np.exp(X) / np.exp(X).sum(), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: fw.outer(x, x), "both are vectors: reshape them to rank 1"),
        (lambda x: fw.diagonal(x[0]), "diagonal of an array of rank 1: at least two axes"),
        (lambda x: fw.cross(x, x), "axis 1 has size 6; vectors have 3 elements"),
        (lambda x: fw.cumulative_max(x), "axis may be left out for rank 1 only"),
        (lambda x: fw.logsumexp(x > 0), "logsumexp of bool"),
        (lambda x: fw.lerp(x, x, 1j), "complex"),
    ],
)
def test_rejections(call: Call, message: str) -> None:
    with pytest.raises(fw.UserError, match=re.escape(message)):
        fw.trace(call, fw.TensorSpec(X.shape, "float32"))
