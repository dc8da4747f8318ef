"""Convolutions and columns: against torch's on the CPU, and the kernels that they become."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nn_checks import assert_like_torch, normal

import fusewright as fw
from fusewright.fusion import nn

torch = pytest.importorskip("torch")
F = torch.nn.functional
X = np.asarray(normal(2, 6, 9, 10))
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "pointwise": ((5, 6, 1, 1), {}),
    "pointwise in steps": ((5, 6, 1, 1), {"stride": 2}),
    "padded": ((4, 6, 3, 2), {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}),
    "valid": ((4, 6, 3, 2), {"padding": "valid"}),
    "same": ((4, 6, 3, 5), {"padding": "same", "dilation": 2}),
    "groups": ((4, 3, 3, 3), {"groups": 2, "padding": 1}),
    "by channel": ((6, 1, 3, 3), {"groups": 6, "padding": 1}),
    "by channel, two each": ((12, 1, 3, 2), {"groups": 6, "padding": 1, "stride": 2}),
    "by channel, of 64 places": ((6, 1, 8, 8), {"groups": 6, "padding": 4}),
}
TRANSPOSED: tuple[tuple[int, dict[str, Any]], ...] = (
    (4, {}),
    (4, {"stride": 2, "padding": 1, "output_padding": 1}),
    (2, {"stride": (3, 2), "padding": 1, "dilation": 2, "groups": 2}),
)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv2d_is_torchs(name: str) -> None:
    shape, options = CONVOLUTIONS[name]
    w, b = np.asarray(normal(*shape, seed=1)), np.asarray(normal(shape[0], seed=2))
    assert_like_torch(
        lambda x, w, b: nn.conv2d(x, w, b, **options),
        lambda x, w, b: F.conv2d(x, w, b, **options),
        *(X, w, b),
    )


@pytest.mark.parametrize(("out", "options"), TRANSPOSED)
def test_conv_transpose2d_is_torchs(out: int, options: dict[str, Any]) -> None:
    w = np.asarray(normal(6, out, 3, 3, seed=1))
    b = np.asarray(normal(4, seed=2))
    assert_like_torch(
        lambda x, w, b: nn.conv_transpose2d(x, w, b, **options),
        lambda x, w, b: F.conv_transpose2d(x, w, b, **options),
        *(X, w, b),
    )


def test_one_axis_without_a_batch() -> None:
    x, w, v = X[0, :, 0], np.asarray(normal(4, 6, 3)), np.asarray(normal(6, 4, 3))
    assert_like_torch(
        lambda x, w: nn.conv1d(x, w, padding=1, stride=2),
        lambda x, w: F.conv1d(x, w, padding=1, stride=2),
        *(x, w),
    )
    assert_like_torch(
        lambda x, w: nn.conv_transpose1d(x, w, None, 2, 1),
        lambda x, w: F.conv_transpose1d(x, w, None, 2, 1),
        *(x, v),
    )


def test_volumes_are_torchs() -> None:
    x, w = np.asarray(normal(2, 4, 4, 5, 6)), np.asarray(normal(6, 2, 2, 3, 2, seed=1))
    assert_like_torch(
        lambda x, w: nn.conv3d(x, w, None, (1, 2, 1), 1, 1, 2),
        lambda x, w: F.conv3d(x, w, None, (1, 2, 1), 1, 1, 2),
        *(x, w),
    )


def test_columns_are_torchs() -> None:
    options = {"kernel_size": (3, 2), "dilation": (1, 2), "padding": 1, "stride": 2}
    assert_like_torch(lambda x: nn.unfold(x, **options), lambda x: F.unfold(x, **options), X)
    columns = np.asarray(normal(2, 4 * 9, 20))
    assert_like_torch(
        lambda x: nn.fold(x, (9, 8), 3, 1, 1, 2), lambda x: F.fold(x, (9, 8), 3, 1, 1, 2), columns
    )


def compiled(call: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float32") -> Any:
    return fw.compile(fw.trace(call, *(fw.TensorSpec(s, dtype) for s in shapes)))


@pytest.mark.parametrize("name", ["by channel", "pointwise", "padded"])
def test_its_kernels_compute_it(name: str) -> None:
    shape, options = CONVOLUTIONS[name]
    x, w = X.astype(np.float32), normal(*shape, seed=1, dtype=np.float32)
    program = compiled(lambda x, w: nn.relu(nn.conv2d(x, w, **options)), x.shape, w.shape)
    result = program.simulate(x, w)
    assert result.races == []
    expected = F.relu(F.conv2d(torch.from_numpy(x), torch.from_numpy(w), **options))
    np.testing.assert_allclose(result.outputs[0], expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_weight_for_each_channel_is_one_kernel_that_reads_rows_once(dtype: str) -> None:
    program = compiled(
        lambda x, w: nn.conv2d(x, w, None, 1, 1, 1, 64), (8, 64, 28, 28), (64, 1, 3, 3), dtype=dtype
    )
    stats = program.host.stats
    nbytes = 4 if dtype == "float32" else 2
    assert stats["launches"] == 1
    assert stats["bytes_moved"] == (2 * 8 * 64 * 28 * 28 + 64 * 9) * nbytes


def test_16_bit_windows_are_columns_and_a_product_of_matrix_instructions() -> None:
    shapes = (8, 64, 16, 16), (128, 64, 3, 3), (128,)
    program = compiled(lambda x, w, b: nn.relu(nn.conv2d(x, w, b, 1, 1)), *shapes, dtype="bfloat16")
    assert ["wgmma" in k.cuda for k in program.kernels] == [False, True]
    pointwise = compiled(
        lambda x, w, b: nn.relu(nn.conv2d(x, w, b)),
        *(shapes[0], (128, 64, 1, 1), shapes[2]),
        dtype="bfloat16",
    )
    assert ["wgmma" in k.cuda for k in pointwise.kernels] == [True]


def test_a_gradient_by_weights_of_channels_is_one_reduction() -> None:
    def loss(x: Any, w: Any) -> Any:
        return fw.sum(fw.sin(nn.conv2d(x, w, None, 1, 1, 1, 6)))

    x, w = X.astype(np.float32), normal(6, 1, 3, 3, seed=1, dtype=np.float32)
    fusion = fw.trace(fw.grad(loss, 1), *(fw.TensorSpec(a.shape, "float32") for a in (x, w)))
    sums = [t for t in fusion.values if type(t.op).__name__ == "Reduce"]
    assert len([t for t in sums if t.ndim >= 4]) == 1
    result = fw.compile(fusion).simulate(x, w)
    assert result.races == []
    np.testing.assert_allclose(
        result.outputs[0], fw.evaluate(fusion, x, w)[0], rtol=1e-4, atol=1e-4
    )


def weight(*shape: int) -> Any:
    return fw.zeros(shape)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: nn.conv2d(x, weight(4, 6, 3)), "has two axes of channels and 2 of places"),
        (lambda x: nn.conv2d(x, weight(4, 5, 3, 3)), "axis 1 of weight is the channels of x"),
        (lambda x: nn.conv2d(x, weight(4, 2, 3, 3), groups=4), "groups=4 for 6 channels of x and"),
        (lambda x: nn.conv2d(x, weight(4, 6, 3, 0)), "the sizes of its windows are integers"),
        (
            lambda x: nn.conv2d(x, weight(4, 6, 3, 3), stride=2, padding="same"),
            "it is for stride 1; give the padding in numbers",
        ),
        (lambda x: nn.conv2d(x, weight(4, 6, 3, 3), padding="full"), "'valid', 'same' or numbers"),
        (lambda x: nn.conv2d(x, weight(4, 6, 12, 3)), "no room for a window that reaches over 12"),
        (
            lambda x: nn.conv_transpose2d(x, weight(4, 6, 3, 3)),
            "axis 0 of weight is the channels of x",
        ),
        (
            lambda x: nn.conv_transpose2d(x, weight(6, 4, 3, 3), output_padding=1),
            "output_padding 1 with stride 1 and dilation 1: it must be smaller",
        ),
        (
            lambda x: nn.conv_transpose2d(x, weight(6, 4, 1, 1), padding=5),
            "axis 2 of size 9 becomes -1 with padding 5: a result has one element",
        ),
        (lambda x: nn.fold(x, (9, 8), 3), "columns are (batch, channels * places, windows)"),
        (lambda x: nn.fold(x[0], (9, 8), 4), "is no multiple of the 16 places of kernel_size=4"),
        (lambda x: nn.fold(x[0], (9, 8), 3), "10 columns for 7 x 6 windows of output_size=(9, 8)"),
    ],
)
def test_rejections(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(fw.UserError, match=re.escape(message)):
        fw.trace(call, fw.TensorSpec((2, 6, 9, 10), "float32"))
