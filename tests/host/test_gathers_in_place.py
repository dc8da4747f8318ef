"""Gathers read their data where it lies, in any view that is strides over what is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

S = fw.TensorSpec
RNG = np.random.default_rng(16)
X = RNG.standard_normal((4, 11, 6)).astype(np.float32)
AT = np.asarray([3, 0, -1, 2, 2], np.int32)

VIEWS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], int]] = {
    "one layer": (lambda x: x[2], lambda x: x[2], 0),
    "some columns": (lambda x: x[:, :, 2:5], lambda x: x[:, :, 2:5], 1),
    "every second row": (lambda x: x[:, ::2], lambda x: x[:, ::2], 1),
    "axes exchanged": (lambda x: fw.permute_dims(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1), 1),
    "axes joined": (lambda x: fw.reshape(x, (44, 6)), lambda x: x.reshape(44, 6), 0),
    "an axis split": (lambda x: fw.reshape(x, (4, 11, 2, 3)), lambda x: x.reshape(4, 11, 2, 3), 3),
    "a corner of it, turned": (lambda x: x[1:, 3:9].mT, lambda x: x[1:, 3:9].swapaxes(1, 2), 2),
}


@pytest.mark.parametrize("name", list(VIEWS))
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_gather_from_a_view_is_one_launch(name: str, dtype: str) -> None:
    view, want, axis = VIEWS[name]
    x = (X * 8).astype(dtype)
    at = AT % 3
    program = fw.compile(
        fw.trace(lambda x, at: fw.take(view(x), at, axis=axis), S(x.shape, dtype), S((5,), "int32"))
    )
    (launch,) = program.launches
    assert {r.root.name for r in launch.reads} == {"x", "at"}
    result = program.simulate(x, at)
    assert result.races == []
    assert np.array_equal(result.outputs[0], np.take(want(x), at, axis=axis))


def test_a_view_that_others_read_too() -> None:
    def fn(x: fw.Array, at: fw.Array) -> Any:
        v = x[2, :, 1:]
        return fw.take(v, at, axis=0) + 1, fw.exp(v), fw.sum(v, axis=-1)

    fusion = fw.trace(fn, S(X.shape, "float32"), S((5,), "int32"))
    result = fw.compile(fusion).simulate(X, AT)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(fusion, X, AT), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_view_of_what_another_kernel_stores() -> None:
    """A softmax is stored once; rows of its turned halves are read from there."""

    def fn(x: fw.Array, at: fw.Array) -> Any:
        s = fw.nn.softmax(x, axis=-1)
        return s, fw.take(s[0, :, 2:].mT, at, axis=1)

    fusion = fw.trace(fn, S(X.shape, "float32"), S((5,), "int32"))
    program = fw.compile(fusion)
    result = program.simulate(X, AT)
    assert result.races == [] and len(program.launches) == 2
    for got, want in zip(result.outputs, fw.evaluate(fusion, X, AT), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize(
    ("fn", "read"),
    [
        (lambda x, at: fw.take(x, at, axis=0)[1:4, 2:, 1:3], (4, 9, 2)),
        (lambda x, at: fw.take(x, at, axis=1)[1:3, :2, 1:] * 2, (2, 11, 5)),
        (lambda x, at: fw.take(x, at, axis=2).mT[:1, :3, 5:], (1, 6, 6)),
    ],
)
def test_parts_of_a_gather_are_gathered(fn: Any, read: tuple[int, ...]) -> None:
    fusion = fw.trace(fn, S(X.shape, "float32"), S((5,), "int32"))
    program = fw.compile(fusion)
    (launch,) = program.launches
    bound = next(r for r in launch.reads if r.root.name == "x")
    assert [str(n) for n in bound.shape] == [str(n) for n in read]
    result = program.simulate(X, AT)
    assert result.races == []
    np.testing.assert_array_equal(result.outputs[0], fw.evaluate(fusion, X, AT)[0])


def test_a_gather_that_is_read_whole_is_gathered_once() -> None:
    def fn(x: fw.Array, at: fw.Array) -> Any:
        t = fw.take(x, at, axis=0)
        return t, t[:, 2:]

    text = str(fw.compile(fw.trace(fn, S(X.shape, "float32"), S((5,), "int32"))).fusion)
    assert text.count("Take(") == 1


def test_what_is_no_view_by_strides_is_stored() -> None:
    """A flip walks backwards: the gather reads a copy, and says why."""
    fusion = fw.trace(
        lambda x, at: fw.take(fw.flip(x, axis=1), at, axis=1),
        S(X.shape, "float32"),
        S((5,), "int32"),
    )
    program = fw.compile(fusion)
    result = program.simulate(X, AT)
    assert result.races == []
    np.testing.assert_array_equal(result.outputs[0], X[:, ::-1][:, AT])
    assert len(program.launches) == 2
