"""Pooling: against torch's on the CPU, forward and gradient; and the kernels that it makes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nn_checks import assert_like_torch, normal, run, run1

import fusewright as fw
from fusewright.fusion import nn

torch = pytest.importorskip("torch")
F = torch.nn.functional
X = np.asarray(normal(2, 3, 11, 14))
WINDOWS: tuple[dict[str, Any], ...] = (
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 2), "stride": (1, 3), "padding": (1, 0), "dilation": (2, 1)},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 2, "stride": 5, "padding": 1, "ceil_mode": True},
    {"kernel_size": 5, "stride": 1, "padding": 2},
    {"kernel_size": 8, "stride": 4, "padding": 4},
    {"kernel_size": 1, "stride": 2},
)
SIZES = ((3, 4), (11, 7), (None, 5), 1, (13, 20))


@pytest.mark.parametrize("options", WINDOWS, ids=str)
def test_max_pool2d_is_torchs(options: dict[str, Any]) -> None:
    assert_like_torch(
        lambda x: nn.max_pool2d(x, **options), lambda x: F.max_pool2d(x, **options), X
    )
    found = run(lambda x: nn.max_pool2d(x, **options, return_indices=True), X)
    expected = F.max_pool2d(torch.from_numpy(X), **options, return_indices=True)
    np.testing.assert_array_equal(found[1], expected[1].numpy())


def test_the_first_of_equal_elements_gets_the_gradient() -> None:
    x = np.zeros((1, 1, 9, 9))
    for options in WINDOWS[1:2] + WINDOWS[5:7]:
        assert_like_torch(
            lambda x, o=options: nn.max_pool2d(x, **o), lambda x, o=options: F.max_pool2d(x, **o), x
        )


@pytest.mark.parametrize("count_include_pad", [True, False])
@pytest.mark.parametrize("options", [w for w in WINDOWS if "dilation" not in w], ids=str)
def test_avg_pool2d_is_torchs(options: dict[str, Any], count_include_pad: bool) -> None:
    given = options | {"count_include_pad": count_include_pad}
    assert_like_torch(lambda x: nn.avg_pool2d(x, **given), lambda x: F.avg_pool2d(x, **given), X)


def test_divisor_of_an_average() -> None:
    found = run1(lambda x: nn.avg_pool2d(x, 3, divisor_override=5), X)
    expected = F.avg_pool2d(torch.from_numpy(X), 3, divisor_override=5)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12)


def test_pools_of_one_axis_without_a_batch() -> None:
    x = X[0]
    assert_like_torch(lambda x: nn.max_pool1d(x, 3, 2, 1), lambda x: F.max_pool1d(x, 3, 2, 1), x)
    assert_like_torch(lambda x: nn.avg_pool1d(x, 3, 2, 1), lambda x: F.avg_pool1d(x, 3, 2, 1), x)
    assert_like_torch(
        lambda x: nn.adaptive_avg_pool1d(x, 4), lambda x: F.adaptive_avg_pool1d(x, 4), x
    )


def test_pools_of_volumes_are_torchs() -> None:
    x = np.asarray(normal(1, 2, 5, 6, 7))
    for m in (0, 1):
        assert_like_torch(
            lambda x, m=m: nn.max_pool3d(x, 3, 2, m), lambda x, m=m: F.max_pool3d(x, 3, 2, m), x
        )
        assert_like_torch(
            lambda x, m=m: nn.avg_pool3d(x, 3, 2, m), lambda x, m=m: F.avg_pool3d(x, 3, 2, m), x
        )
    assert_like_torch(
        lambda x: nn.adaptive_avg_pool3d(x, (2, 3, 5)),
        lambda x: F.adaptive_avg_pool3d(x, (2, 3, 5)),
        x,
    )


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_adaptive_avg_pool2d_is_torchs(size: Any) -> None:
    assert_like_torch(
        lambda x: nn.adaptive_avg_pool2d(x, size), lambda x: F.adaptive_avg_pool2d(x, size), X
    )


POOLS: dict[str, Callable[[Any], Any]] = {
    "max": lambda x: nn.max_pool2d(x, 3, 2, 1),
    "max_of_relu": lambda x: nn.max_pool2d(nn.relu(x), 2) * 2,
    "max_of_64": lambda x: nn.max_pool2d(x, 8, 4, 4),
    "avg": lambda x: nn.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "adaptive": lambda x: nn.adaptive_avg_pool2d(x, (3, None)),
}


@pytest.mark.parametrize("name", POOLS)
def test_one_kernel_reads_the_rows_once(name: str) -> None:
    x = X.astype(np.float32)
    fusion = fw.trace(POOLS[name], fw.TensorSpec(x.shape, "float32"))
    program = fw.compile(fusion)
    (out,) = fw.evaluate(fusion, x)
    assert program.host.stats["launches"] == 1
    assert program.host.stats["bytes_moved"] == x.nbytes + out.nbytes
    result = program.simulate(x)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], out, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["max", "avg"])
def test_a_gradient_is_gathered_by_kernels(name: str) -> None:
    x = X.astype(np.float32)
    fusion = fw.trace(
        fw.grad(lambda x: fw.sum(fw.sin(POOLS[name](x)))), fw.TensorSpec(x.shape, "float32")
    )
    result = fw.compile(fusion).simulate(x)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], fw.evaluate(fusion, x)[0], rtol=1e-5, atol=1e-6)


def test_symbolic_sizes() -> None:
    spec = fw.TensorSpec(("n", 3, fw.Sym("h", min=4), 14), "float32")
    for pool in (POOLS["max"], POOLS["avg"]):
        fusion = fw.trace(pool, spec)
        x = X.astype(np.float32)
        (fixed,) = fw.evaluate(fw.trace(pool, fw.TensorSpec(x.shape, "float32")), x)
        np.testing.assert_array_equal(fw.evaluate(fusion, x)[0], fixed)
        np.testing.assert_allclose(
            fw.compile(fusion).simulate(x).outputs[0], fixed, rtol=1e-5, atol=1e-6
        )


def test_nan_stays() -> None:
    x = X.copy()
    x[0, 0, 4, 4] = np.nan
    found = run1(lambda x: nn.max_pool2d(x, 3, 2, 1), x)
    expected = F.max_pool2d(torch.from_numpy(x), 3, 2, 1).numpy()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: nn.max_pool2d(x[0, 0], 2), "its layout is (batch, channels, ...)"),
        (lambda x: nn.max_pool2d(x, (2, 2, 2)), "has 3 entries for 2 axes"),
        (lambda x: nn.max_pool2d(x, 0), "kernel_size=0: entries go from 1 on"),
        (lambda x: nn.max_pool2d(x, 3, padding=2), "at most half of a window may be padding"),
        (lambda x: nn.max_pool2d(x, 12), "has no room for a window that reaches over 12"),
        (lambda x: nn.avg_pool2d(x, 2, divisor_override=0), "a sum divided by 0"),
        (lambda x: nn.adaptive_avg_pool2d(x, (1, 2, 3)), "has 3 entries for 2 axes"),
        (lambda x: nn.adaptive_avg_pool2d(x, 0), "sizes go from 1 on"),
    ],
)
def test_rejections(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(fw.UserError, match=re.escape(message)):
        fw.trace(call, fw.TensorSpec(X.shape, "float32"))


def test_symbolic_sizes_that_are_refused() -> None:
    spec = fw.TensorSpec((2, 3, fw.Sym("h", min=4), 14), "float32")
    with pytest.raises(fw.UserError, match="symbolic size h, of which the last window depends"):
        fw.trace(lambda x: nn.max_pool2d(x, 3, 2, ceil_mode=True), spec)
    with pytest.raises(fw.UserError, match="not known to be a multiple of 3"):
        fw.trace(lambda x: nn.adaptive_avg_pool2d(x, 3), spec)
