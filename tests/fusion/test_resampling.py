"""interpolate: against torch's on the CPU, forward and gradient."""

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
X = np.asarray(normal(2, 3, 5, 7))
OPTIONS: tuple[dict[str, Any], ...] = (
    {"scale_factor": 2},
    {"size": (3, 11)},
    {"size": 4, "mode": "nearest-exact"},
    {"scale_factor": (1.5, 0.6), "mode": "nearest-exact"},
    {"scale_factor": 2, "mode": "bilinear"},
    {"scale_factor": (2.3, 0.7), "mode": "bilinear"},
    {"scale_factor": (2.3, 0.7), "mode": "bilinear", "recompute_scale_factor": True},
    {"size": (9, 4), "mode": "bilinear", "align_corners": True},
    {"size": (1, 7), "mode": "bilinear", "align_corners": True},
    {"size": (8, 3), "mode": "area"},
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_planes_are_torchs(options: dict[str, Any]) -> None:
    assert_like_torch(
        lambda x: nn.interpolate(x, **options), lambda x: F.interpolate(x, **options), X
    )


def test_rows_and_volumes_are_torchs() -> None:
    for x, mode in ((X[:, :, 0], "linear"), (X[:, :, None], "trilinear")):
        assert_like_torch(
            lambda x, m=mode: nn.interpolate(x, scale_factor=2, mode=m),
            lambda x, m=mode: F.interpolate(x, scale_factor=2, mode=m),
            np.ascontiguousarray(x),
        )


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[4], OPTIONS[7]], ids=str)
def test_one_kernel_reads_the_rows_once(options: dict[str, Any]) -> None:
    x = X.astype(np.float32)
    fusion = fw.trace(
        lambda x: fw.nn.relu(nn.interpolate(x, **options)), fw.TensorSpec(x.shape, "float32")
    )
    program = fw.compile(fusion)
    (out,) = fw.evaluate(fusion, x)
    stats = program.host.stats
    assert (stats["launches"], stats["bytes_moved"]) == (1, x.nbytes + out.nbytes)
    result = program.simulate(x)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], out, rtol=1e-5, atol=1e-6)


def test_gradients_of_large_planes_have_a_table_for_each_axis() -> None:
    def loss(x: Any) -> Any:
        return fw.sum(nn.interpolate(x, scale_factor=2, mode="bilinear"))

    program = fw.compile(fw.trace(fw.grad(loss), fw.TensorSpec((8, 32, 64, 64), "float32")))
    assert program.host.stats["launches"] <= 4


def test_integer_factors_of_symbolic_sizes() -> None:
    spec = fw.TensorSpec((2, 3, "h", "w"), "float32")
    x = X.astype(np.float32)
    for mode in ("nearest", "bilinear"):
        fusion = fw.trace(lambda x, m=mode: nn.interpolate(x, scale_factor=2, mode=m), spec)
        expected = F.interpolate(torch.from_numpy(x), scale_factor=2, mode=mode).numpy()
        np.testing.assert_allclose(fw.evaluate(fusion, x)[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either size or scale_factor"),
        ({"size": 3, "scale_factor": 2}, "give either size or scale_factor"),
        ({"size": (1, 2, 3)}, "for 2 axes: give one positive number"),
        (
            {"size": 3, "mode": "linear"},
            "bilinear and trilinear are for one, two",
        ),
        ({"size": 3, "mode": "cubic"}, "mode='cubic'; use one of 'nearest'"),
        ({"size": 3, "align_corners": True}, "it is for linear, bilinear and trilinear"),
        ({"scale_factor": 0.1}, "leaves nothing of axis 2 of 5"),
    ],
)
def test_rejections(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fw.UserError, match=re.escape(message)):
        fw.trace(lambda x: nn.interpolate(x, **options), fw.TensorSpec(X.shape, "float32"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: nn.interpolate(x, 3, antialias=True), "pool first, for example by mode='area'"),
        (lambda x: nn.interpolate(x, 3), "its scale is not known; give an integer"),
        (lambda x: nn.interpolate(x, scale_factor=1.5), "only integer factors are taken there"),
        (
            lambda x: nn.interpolate(x, None, 2, "bilinear", True),
            "interpolate(align_corners=True) of axis 2 of symbolic",
        ),
    ],
)
def test_unsupported(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(fw.UnsupportedError, match=re.escape(message)):
        fw.trace(call, fw.TensorSpec((2, 3, "h", "w"), "float32"))
