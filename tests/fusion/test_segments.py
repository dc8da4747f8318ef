"""Sums and counts by number: the oracle against numpy, simulated kernels against the oracle, by
comparisons and by sorts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion import ir
from fusewright.fusion.ops import segments

S = fw.TensorSpec
RNG = np.random.default_rng(23)


@pytest.fixture(params=["compared", "sorted"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to the sums, whichever the sizes of a test would take."""
    monkeypatch.setattr(segments, "MAX_COMPARED", 0 if request.param == "sorted" else 1 << 60)
    return request.param


LENGTH = (
    r"bincount of the traced array .*: the size of the result would depend on its values; give it "
    "as length="
)


def run(fn: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """What simulated kernels find, near what the oracle finds."""
    fusion = fw.trace(fn, *(S(a.shape, a.dtype) for a in arrays))
    result = fw.compile(fusion).simulate(*arrays)
    assert result.races == []
    for a, b in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=3e-6, atol=1e-6)
    return result.outputs


def sums(values: np.ndarray, ids: np.ndarray, count: int) -> np.ndarray:
    dtype = np.float64 if values.dtype.kind == "f" else values.dtype
    out = np.zeros((count, *values.shape[ids.ndim :]), dtype)
    inside = (ids >= 0) & (ids < count)
    np.add.at(out, ids[inside], values[inside])
    return out


@pytest.mark.parametrize("shape", [(0,), (1,), (40,), (45, 3), (300,), (6, 7, 2)])
def test_sums_of_segments(way: str, shape: tuple[int, ...]) -> None:
    values = RNG.standard_normal(shape).astype(np.float32)
    ids = RNG.integers(-2, 9, shape[:2] if len(shape) == 3 else shape[:1])
    (got,) = run(lambda v, i: fw.segment_sum(v, i, 7), values, ids)
    np.testing.assert_allclose(got, sums(values, ids, 7), rtol=1e-5, atol=1e-5)


def test_segments_do_not_disturb_each_other(way: str) -> None:
    """A sum of differences of prefix sums would lose the small segments, and spread NaN."""
    values = np.array([1e30, 1.0, np.nan, 2.0, -1e30, 3.0] * 8, np.float32)
    ids = np.array([0, 1, 2, 3, 0, 1] * 8, np.int32)
    (got,) = run(lambda v, i: fw.segment_sum(v, i, 5), values, ids)
    np.testing.assert_array_equal(got, [0.0, 32.0, np.nan, 16.0, 0.0])


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64", "float16", "float64"])
def test_sums_keep_the_dtype(way: str, dtype: str) -> None:
    values, ids = RNG.integers(0, 9, 30).astype(dtype), RNG.integers(0, 4, 30).astype(np.uint8)
    (got,) = run(lambda v, i: fw.segment_sum(v, i, 4), values, ids)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, sums(values, ids.astype(np.int64), 4).astype(dtype))


def test_sums_are_the_same_bits_in_every_run(way: str) -> None:
    values = RNG.standard_normal(200).astype(np.float32)
    ids = RNG.integers(0, 3, 200)
    specs = (S((200,), "float32"), S((200,), "int64"))
    program = fw.compile(fw.trace(lambda v, i: fw.segment_sum(v, i, 3), *specs))
    assert "atom" not in "".join(k.cuda for k in program.kernels)
    first, second = (program.simulate(values, ids, seed=k).outputs[0] for k in (0, 1))
    assert first.tobytes() == second.tobytes()


def test_gradients_are_those_of_the_sums(way: str) -> None:
    values, weights = (RNG.standard_normal(n).astype(np.float32) for n in ((9, 2), (4, 2)))
    ids = np.array([0, 3, 5, 1, -1, 3, 2, 0, 3])

    def loss(v: Any, i: Any, w: Any) -> Any:
        return fw.sum(fw.segment_sum(v, i, 4) * w)

    (got,) = run(lambda v, i, w: fw.grad(loss)(v, i, w), values, ids, weights)
    inside = ((ids >= 0) & (ids < 4))[:, None]
    np.testing.assert_array_equal(got, np.where(inside, weights[np.clip(ids, 0, 3)], 0))


def test_rows_are_added_where_an_index_names_them(way: str) -> None:
    dest, values = (RNG.standard_normal(n).astype(np.float32) for n in ((6, 3), (20, 3)))
    index = RNG.integers(-8, 9, 20)
    (got,) = run(fw.scatter_add, dest, index, values)
    want = dest + sums(values, np.where(index < 0, index + 6, index), 6)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_rows_are_added_by_an_index_of_two_axes_and_rounded_once() -> None:
    dest = np.full(2, 2048.0, np.float16)
    values, index = np.ones((2, 3), np.float16), np.array([[0, 0, 1], [0, 0, 1]])
    (got,) = run(fw.scatter_add, dest, index, values)
    np.testing.assert_array_equal(got, np.array([2052, 2050], np.float16))


def test_counts(way: str) -> None:
    x = RNG.integers(-2, 9, 50)
    w = RNG.standard_normal(50).astype(np.float32)
    counts, weights = run(
        lambda x, w: (fw.bincount(x, length=7), fw.bincount(x, w, length=7)), x, w
    )
    inside = (x >= 0) & (x < 7)
    np.testing.assert_array_equal(counts, np.bincount(x[inside], minlength=7))
    np.testing.assert_allclose(weights, sums(w, x, 7), rtol=1e-5, atol=1e-6)
    assert counts.dtype == np.int64 and weights.dtype == np.float32


def test_the_length_of_known_data_is_found() -> None:
    got = np.asarray(fw.bincount(fw.asarray([1, 3, 1]), minlength=3))
    np.testing.assert_array_equal(got, np.bincount([1, 3, 1], minlength=3))
    assert np.asarray(fw.bincount(fw.asarray([1]), minlength=4)).shape == (4,)
    assert np.asarray(fw.bincount(fw.zeros(0, dtype="int64"))).shape == (0,)


@pytest.mark.parametrize("density", [False, True])
def test_histograms(way: str, density: bool) -> None:
    x = np.concatenate([RNG.standard_normal(60), [-1.0, 0.0, 1.0, 5.0, np.nan]])
    x = x.astype(np.float32).reshape(5, 13)
    plain = x[~np.isnan(x)]
    for bins in (4, np.array([-1.0, -0.5, 0.0, 2.0], np.float32)):
        hist, edges = run(lambda x, b=bins: tuple(fw.histogram(x, b, (-1, 1), density=density)), x)
        want, at = np.histogram(plain, bins, (-1, 1), density=density)
        np.testing.assert_allclose(hist, want, rtol=1e-6)
        np.testing.assert_allclose(edges, at, rtol=1e-6)
        assert hist.dtype == (np.float32 if density else np.int64)


def test_histograms_of_the_range_of_their_data() -> None:
    for x in (RNG.standard_normal(40).astype(np.float32), np.full(3, 2.0, np.float32)):
        hist, edges = run(lambda x: tuple(fw.histogram(x, 5)), x)
        want, at = np.histogram(x, 5)
        np.testing.assert_array_equal(hist, want)
        np.testing.assert_allclose(edges, at, rtol=1e-5, atol=1e-6)


def test_histograms_of_integers_and_weights(way: str) -> None:
    x, w = RNG.integers(0, 10, (3, 9)), RNG.standard_normal((3, 9)).astype(np.float32)
    hist, _ = run(lambda x, w: tuple(fw.histogram(x, 3, (0, 9), weights=w)), x, w)
    np.testing.assert_allclose(hist, np.histogram(x, 3, (0, 9), weights=w)[0], atol=1e-5)


def test_sizes_choose_the_way() -> None:
    specs = S((4096,), "float32"), S((4096,), "int32")

    def is_sorted(count: int) -> bool:
        fusion = fw.trace(lambda v, i: fw.segment_sum(v, i, count), *specs)
        return any(isinstance(t.op, ir.Sort) for t in fusion.values)

    edge = segments.MAX_COMPARED // 4096
    assert not is_sorted(edge) and is_sorted(edge + 1)


def test_few_segments_of_a_symbolic_size() -> None:
    values, ids = np.arange(6, dtype=np.float32), np.array([0, 1, 0, 1, 2, 2])
    fusion = fw.trace(
        lambda v, i: fw.segment_sum(v, i, 3), S(("n",), "float32"), S(("n",), "int64")
    )
    (got,) = fw.compile(fusion).simulate(values, ids).outputs
    np.testing.assert_array_equal(got, [2.0, 4.0, 9.0])


X = S((4, 5), "float32")
N = S((4,), "int32")


@pytest.mark.parametrize(
    ("call", "specs", "message"),
    [
        (
            lambda v: fw.segment_sum(v, v, 3),
            [X],
            r"segment_sum \(indices\) of float32: it takes int",
        ),
        (
            lambda v, i: fw.segment_sum(v, i[:3], 3),
            [X, N],
            r"the indices have shape \(3,\), the values",
        ),
        (
            lambda v, i: fw.segment_sum(v, i[0], 3),
            [X, N],
            r"the indices have shape \(\), the values",
        ),
        (
            lambda v, i: fw.segment_sum(v > 0, i, 3),
            [X, N],
            r"segment_sum of bool: it takes numeric",
        ),
        (lambda v, i: fw.segment_sum(v, i, 3.5), [X, N], r"num_segments=3.5 is float"),
        (
            lambda v, i: fw.scatter_add(v[0, 0], i, v),
            [X, N],
            r"scatter_add: dest has rank 0, so no",
        ),
        (
            lambda v, i: fw.scatter_add(i, i, v[:, 0]),
            [X, N],
            r"float32 values would make dest float32",
        ),
        (lambda v, i: fw.scatter_add(v, i, v[:, 1:]), [X, N], r"those of a row of dest, \(5,\)"),
        (
            lambda v: fw.bincount(v[0], length=3),
            [X],
            r"bincount of float32: it takes integer arrays",
        ),
        (
            lambda i: fw.bincount(i[None], length=3),
            [N],
            r"bincount of an array of rank 2: it counts",
        ),
        (lambda i: fw.bincount(i, None, 4, length=3), [N], r"length=3 is below minlength=4"),
        (
            lambda v, i: fw.bincount(i, v, length=3),
            [X, N],
            r"the weights have shape \(4, 5\), x \(4,\)",
        ),
        (lambda v: fw.histogram(v, 0), [X], r"histogram: bins=0: there must be at least one"),
        (lambda v: fw.histogram(v, v), [X], r"the edges have shape \(4, 5\); give at least two"),
        (lambda v: fw.histogram(v, 3, (2, 1)), [X], r"range=\(2, 1\) is empty; give the lower"),
        (lambda v: fw.histogram(v, 3, 2.0), [X], r"histogram: range=2.0: give the first and the"),
        (lambda v: fw.histogram(v, density=1), [X], r"histogram\(density=1\): use True or False"),
    ],
)
def test_wrong_arguments(call: Any, specs: list[fw.TensorSpec], message: str) -> None:
    with pytest.raises(fw.UserError, match=message):
        fw.trace(call, *specs)


def test_what_would_have_a_size_of_its_own_asks_for_it() -> None:
    with pytest.raises(fw.UnsupportedError, match=LENGTH):
        fw.trace(fw.bincount, N)
