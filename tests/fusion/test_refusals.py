"""What operations refuse while a function is traced: the numbers, the rule, and the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw

S = fw.TensorSpec((4, 6), "float32")

REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda x: fw.sum(x, axis=2), "sum: axis 2 of an array of rank 2: axes go from -2 to 1"),
    (lambda x: fw.sum(x, axis=(0, 0)), "axis 0 is given twice .* give each axis once"),
    (lambda x: fw.permute_dims(x, (0, 0)), "name every axis exactly once"),
    (lambda x: fw.reshape(x, (5, 5)), "24 elements and .5, 5. has 25"),
    (lambda x: fw.concat([x, x[:, :2]], axis=0), "sizes of the other axes, must be equal"),
    (lambda x: fw.stack([x, x[:2]]), "array 1 has shape .2, 6., array 0 .4, 6."),
    (lambda x: fw.stack([]), "stack of no arrays: give at least one"),
    (lambda x: fw.concat([]), "concat of no arrays: give at least one"),
    (lambda x: fw.squeeze(x, axis=0), "has size 4; only axes of size 1 can go"),
    (lambda x: fw.expand_dims(x, axis=5), "axes go from -3 to 2"),
    (lambda x: fw.broadcast_to(x, (4, 7)), "axis 1 has sizes 6 and 7"),
    (lambda x: fw.take(x, x, axis=0), "take .indices. of float32: it takes integer arrays"),
    (lambda x: fw.where(x, x, x), "where .condition. of float32: it takes bool arrays"),
    (lambda x: fw.bitwise_and(x, x), "bitwise_and of float32: it takes integer or bool arrays"),
    (lambda x: fw.logical_and(x, x), "logical_and of float32: .* compare first"),
    (lambda x: fw.matmul(x, x), "has size 6, the axis it meets in .4, 6. has size 4"),
    (lambda x: fw.tensordot(x, x, axes=1), "paired axes must be equal"),
    (lambda x: fw.roll(x, (1, 2), axis=0), "2 shifts for 1 axes; give one per axis"),
    (lambda x: fw.repeat(x, -1), "repeats=-1: the count must not be negative"),
    (lambda x: fw.tile(x, (-1,)), "counts must not be negative"),
    (lambda x: fw.moveaxis(x, (0, 1), (0, 0)), "moveaxis: axis 0 is given twice"),
    (lambda x: fw.clip(x, "a", 2), "clip: expected an array, got str 'a'"),
    (lambda x: fw.cumulative_sum(x), "axis may be left out for rank 1 only"),
    (lambda x: fw.diff(x, n=-1), "n=-1: the number of times must not be negative"),
    (lambda x: x + fw.linspace(0, 1, -2), "num=-2.: the count must not be negative"),
    (lambda x: x + fw.arange(0, 3, 0), "step=0.: the step must not be 0"),
    (lambda x: x @ fw.eye(-1), "size -1 in shape .-1, -1. is negative"),
    (lambda x: fw.pad(x, 1, mode="mirror"), "mode='mirror'; use one of constant, edge"),
    (lambda x: fw.insert(x, x, (1, 1)), "4 elements from 1 on may not fit size 4"),
    (lambda x: fw.astype(x, "float7"), "dtype 'float7' is not supported; use one of bool"),
    (lambda x: fw.var(x, correction="a"), "correction='a' must be a finite real number"),
    (lambda x: x[7], "index 7 is outside size 4"),
    (lambda x: x[:, :, 0], "3 axes and 0 Ellipsis for an array of rank 2"),
    (lambda x: x[::0], "the step is a nonzero integer"),
    (lambda x: x if x[0, 0] > 0 else -x, "its value is not known while tracing"),
    (lambda x: fw.name(x, "3a"), "name '3a' is not an identifier"),
    (lambda x: fw.reshape(x, (-1, -1)), "only one size may be -1"),
    (lambda x: fw.reshape(x, (24,), copy="no"), "copy='no'.: use True or False"),
    (lambda x: fw.astype(x, "float32", copy=2), "copy=2.: use True or False"),
    (lambda x: x.to_device("host", stream=3), "stream=3.: values on the host have no stream"),
    (lambda x: x.__array_namespace__(api_version="1999.12"), "the versions here are 2021.12"),
    (lambda x: fw.nn.layer_norm(x, (5,)), "normalized_shape .5,. are not the last axes of x"),
    (lambda x: fw.nn.group_norm(x, 4), "num_groups=4 does not divide the 6 channels of x"),
    (lambda x: fw.nn.dropout(x, 1.5, seed=1), "p=1.5 must be at least 0 and below 1"),
    (lambda x: fw.nn.embedding(x, x), "embedding .indices. of float32"),
    (
        lambda x: fw.nn.gelu(x, approximate="exact"),
        "approximate='exact'; use one of 'none', 'tanh'",
    ),
    (lambda x: fw.nn.mse_loss(x, x, reduction="max"), "reduction='max'; use one of 'none', 'mean'"),
    (lambda x: fw.nn.glu(x[:, :5]), "axis 1 has size 5, which is not known even"),
    (lambda x: fw.nn.one_hot(x, 5), "one_hot .indices. of float32"),
    (lambda x: fw.nn.rotary_embedding(x, x, x), "axis 1 has sizes 3 and 6"),
    (lambda x: fw.nn.batch_norm(x, x[0], x[0], momentum=0.2), "use batch_norm_forward"),
    (lambda x: fw.nn.instance_norm(x[None], momentum=0.2), "use instance_norm_forward"),
    (lambda x: list(x[0, 0]), "iteration over an array of rank 0, which has no axis; use"),
    (lambda x: x[1.5:], r"x.1.5:. on axis 0: the limits of a slice are integers; 1.5 is float"),
    (lambda x: x[:, 2.5::-1], r"x.2.5::-1. on axis 1: the limits of a slice are integers; 2.5 is"),
    (lambda x: x.__dlpack__(dl_device=(2, 0)), r"dl_device=.2, 0..: the value is on the host"),
    (
        lambda x: np.linalg.norm(x),
        "of the traced array .*: numpy computes with values, which are not known here; write",
    ),
    (lambda x: np.exp(x), "numpy.exp of the traced array .*: numpy computes with .*; write fw.exp"),
    (lambda x: fw.tensordot(x, x, axes="ab"), "axes='ab': give a count, or the axes of x1 and"),
    (lambda x: fw.tensordot(x, x, axes=3), "axes=3 for ranks 2 and 2: the count goes from 0 to"),
    (lambda x: fw.tensordot(x, x, axes=-1), "axes=-1 for ranks 2 and 2: the count goes from 0"),
    (lambda x: fw.concat(x), "concat of Array: give a tuple or a list of arrays"),
    (
        lambda x: fw.repeat(fw.asarray([1, 2]), fw.asarray([1, 2, 3])),
        "repeat of .*: .* give one count per element",
    ),
]


@pytest.mark.parametrize(
    ("fn", "message"), REFUSED, ids=lambda x: x[:30] if isinstance(x, str) else ""
)
def test_rejects(fn: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(fw.UserError, match=message):
        fw.trace(fn, S)


def test_counts_that_are_not_known_give_no_size() -> None:
    with pytest.raises(
        fw.UnsupportedError, match=r"repeat of .*would depend on values; repeat kno"
    ):
        fw.trace(lambda x: fw.repeat(x, fw.astype(x, "int32")[0], axis=1), S)


UNDECIDED: list[tuple[Callable[[Any], Any], int, str]] = [
    (
        lambda x: x[: fw.Sym("n") - 5],
        2,
        r"x\[:n - 5\] on axis 0 of size n: whether n - 5 is negative, and counts from the end, dep",
    ),
    (
        lambda x: x[fw.Sym("k", min=2) :],
        2,
        r"on axis 0 of size n: whether k lies inside the axis depends on the size; declare bounds",
    ),
    (
        lambda x: x[3 : fw.Sym("k", max=10)],
        20,
        r"x\[3:k\] on axis 0 of size n: whether the slice is empty depends on the size; declare",
    ),
]


@pytest.mark.parametrize(("fn", "low", "message"), UNDECIDED, ids=["sign", "inside", "empty"])
def test_slices_that_depend_on_a_size(fn: Callable[[Any], Any], low: int, message: str) -> None:
    with pytest.raises(fw.UserError, match=message):
        fw.trace(fn, fw.TensorSpec((fw.Sym("n", min=low), 6), "float32"))


def test_bounds_decide_a_slice() -> None:
    n = fw.Sym("n", min=6)
    fusion = fw.trace(lambda x: x[: n - 5], fw.TensorSpec((n, 6), "float32"))
    assert str(fusion.outputs[0].shape[0]) == "n - 5"


@pytest.mark.parametrize("fn", [fn for fn, _ in REFUSED])
def test_a_refusal_names_the_line_of_the_program(fn: Callable[[Any], Any]) -> None:
    with pytest.raises(fw.UserError) as caught:
        fw.trace(fn, S)
    assert "test_refusals.py:" in str(caught.value)
