"""Indices outside an axis: oracle and simulator read the same, NaN or 0 where there is no NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

N = 5
NEAR = [0, N - 1, N, N + 1, -1, -N, -N - 1]
EDGES = {
    "int8": [*NEAR, 127, -128],
    "int32": [*NEAR, 2**31 - 1, -(2**31)],
    "int64": [*NEAR, 2**31, 2**32, 2**32 + 1, -(2**32), -(2**32) - 1, 2**63 - 1, -(2**63)],
    "uint8": [0, N - 1, N, 255],
    "uint32": [0, N - 1, N, 2**32 - 1, 2**31],
    "uint64": [0, N - 1, N, 2**64 - 1, 2**64 - N, 2**63],
}


def take(x: Any, i: Any) -> Any:
    return fw.take(x, i, axis=0, mode="fill")


def along(x: Any, i: Any) -> Any:
    return fw.take_along_axis(x, i, axis=0, mode="fill")


def witnesses(f: Callable[..., Any], *arrays: Any, **options: Any) -> list[np.ndarray]:
    """What the oracle and the simulated kernels make of one program."""
    specs = [fw.TensorSpec(a.shape, a.dtype) for a in arrays]
    fusion = fw.trace(lambda *x: f(*x, **options), *specs)
    result = fw.compile(fusion).simulate(*arrays)
    assert result.races == []
    return [fw.evaluate(fusion, *arrays)[0], result.outputs[0]]


def expected(x: np.ndarray, index: list[int]) -> np.ndarray:
    """Element by element, with Python's integers."""
    nothing = np.nan if x.dtype.kind == "f" else 0
    found = [x[k] if -len(x) <= k < len(x) else nothing for k in index]
    return np.array(found).astype(x.dtype)


@pytest.mark.parametrize("kind", list(EDGES))
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("gather", [take, along])
def test_every_witness_reads_nan_or_zero(gather: Any, dtype: str, kind: str):
    x = np.arange(1, N + 1).astype(dtype)
    for found in witnesses(gather, x, np.array(EDGES[kind], kind)):
        np.testing.assert_array_equal(found, expected(x, EDGES[kind]))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("gather", [take, along])
def test_an_axis_of_size_0_has_no_index(gather: Any, dtype: str):
    for found in witnesses(gather, np.ones(0, dtype), np.array([0, -1, 3])):
        np.testing.assert_array_equal(found, expected(np.ones(0, dtype), [0, -1, 3]))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_whole_slices_are_missing(axis: int):
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    index = np.array([[1, 99], [-1, -99]])
    inside = np.where(np.abs(index) < 99, index, 0)
    wanted = np.take(x, inside, axis=axis)
    wanted[(slice(None),) * axis + (np.abs(index) == 99,)] = np.nan
    for found in witnesses(fw.take, x, index, axis=axis, mode="fill"):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "f",
    [
        fw.exp,
        fw.isnan,
        lambda x: -x,
        lambda x: fw.astype(x, fw.int32),
        lambda x: fw.astype(fw.astype(x, fw.int8), fw.float32),
        lambda x: fw.exp(fw.astype(fw.astype(x, fw.int8), fw.float32)),
        fw.sign,
    ],
)
@pytest.mark.parametrize("gather", [take, along])
def test_what_is_computed_before_a_gather_is_not_computed_of_nothing(gather: Any, f: Any):
    x = np.arange(1, N + 1).astype(np.float32)
    oracle, kernels = witnesses(lambda x, i: gather(f(x), i), x, np.array(EDGES["int64"]))
    np.testing.assert_allclose(kernels, oracle, rtol=1e-6)
    assert oracle[2] != 1  # neither exp(0) nor isnan(NaN)


def test_embeddings_show_an_index_without_a_row():
    table = np.ones((N, 3), np.float32)
    rows = np.array([1, N, -N - 1])
    for found in witnesses(lambda w, i: fw.nn.embedding(i, w, mode="fill"), table, rows):
        assert np.isnan(found).all(axis=1).tolist() == [False, True, True]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_the_loss_of_a_target_that_is_no_class_is_nan(
    weighted: bool, smoothing: float, reduction: str
):
    rng = np.random.default_rng(0)
    x, target = rng.normal(size=(6, N)).astype(np.float32), np.array([1, N, -1, -100, 4, -N - 1])
    weight = [rng.random(N).astype(np.float32)] if weighted else []

    def loss(x: Any, target: Any, *weight: Any) -> Any:
        return fw.nn.cross_entropy(
            x, target, *weight, reduction=reduction, label_smoothing=smoothing
        )

    def gradient(x: Any, target: Any, *weight: Any) -> Any:
        options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
        made, log_sum = fw.nn.cross_entropy_forward(x, target, *weight, **options)
        dy = fw.ones_like(made)
        return fw.nn.cross_entropy_backward(dy, log_sum, x, target, *weight, **options)

    nowhere = np.array([False, True, True, False, False, True])
    for found in witnesses(loss, x, target, *weight):
        wanted = nowhere if reduction == "none" else nowhere.any()
        np.testing.assert_array_equal(np.isnan(found), wanted)
    for found in witnesses(gradient, x, target, *weight):
        np.testing.assert_array_equal(np.isnan(found).all(axis=1), nowhere)
        np.testing.assert_array_equal(found[3], 0)  # ignored


@pytest.mark.parametrize("gather", [fw.take, fw.take_along_axis])
def test_known_data_have_no_element_there(gather: Any):
    x = fw.asarray(np.arange(N))
    with pytest.raises(IndexError, match="index 7 is outside axis 0 of size 5; indices go from -5"):
        np.asarray(gather(x, fw.asarray([0, 7]), axis=0))
