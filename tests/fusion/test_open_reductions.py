"""Reductions of reshaped values that others have in their own axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Reduce
from fusewright.fusion.passes.open_reductions import open_reductions

S = fw.TensorSpec
LAST = (0, 2, 3, 1)

OPENED: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "a result": (lambda x: ((y := x * 2), fw.sum(fw.reshape(y, (-1, 5)), axis=0)), (0, 1, 2)),
    "read elsewhere": (
        lambda x: (fw.max(fw.reshape(x, (6, 20)), axis=1), fw.sum(x, axis=0)), (2, 3),
    ),
    "kept axes merged": (
        lambda x: fw.sum(fw.reshape(x, (6, 20)), axis=1, keepdims=True) + fw.sum(x), (2, 3),
    ),
    "kept axes split": (
        lambda x: (x, fw.min(fw.reshape(x, (2, 3, 2, 2, 1, 5)), axis=(0, 1, 4))), (0, 1),
    ),
    "axes of one element": (
        lambda x: ((y := x[:, :1]), fw.sum(fw.reshape(y, (2, 1, 1, 20, 1)), axis=(0, 1, 2))),
        (0,),
    ),
    "all": (lambda x: (x, fw.sum(fw.reshape(x, (120,)), axis=0)), (0, 1, 2, 3)),
}  # fmt: skip
LEFT: dict[str, Callable[..., Any]] = {
    "nobody else has it": lambda x: fw.sum(fw.reshape(x * 2, (-1, 5)), axis=0),
    "other reshapes only": lambda x: (
        fw.sum(fw.reshape((y := x * 2), (-1, 5)), axis=0), fw.reshape(y, (20, 6)),
    ),
    "part of an axis": lambda x: (x, fw.sum(fw.reshape(x, (2, 3, 2, 10)), axis=2)),
    "across borders": lambda x: (x, fw.sum(fw.reshape(x, (5, 24)), axis=1)),
}  # fmt: skip


def reductions(f: fw.Fusion) -> list[tuple[int, ...]]:
    return [t.op.axes for t in f.values if isinstance(t.op, Reduce)]


@pytest.mark.parametrize("name", [*OPENED, *LEFT])
def test_reductions_open_where_the_value_is_had(name: str) -> None:
    fn, axes = OPENED.get(name) or (LEFT[name], None)
    fusion = fw.trace(fn, S((2, 3, 4, 5), "float64"))
    opened = open_reductions(fusion)
    assert (opened is fusion) == (axes is None)
    assert axes is None or axes in reductions(opened)
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    for got, want in zip(evaluate(opened, x), evaluate(fusion, x), strict=True):
        np.testing.assert_allclose(got, want)


def test_symbols_and_empty_values_stay() -> None:
    for shape in (("n", 4, 5), (0, 4, 5)):
        fusion = fw.trace(
            lambda x: (x, fw.sum(fw.reshape(x, (-1, 20)) if x.shape[0] != 0 else x, axis=-1)),
            S(shape, "float32"),
        )
        assert open_reductions(fusion) is fusion


def gradients(x: Any, dy: Any, scale: Any) -> Any:
    """What a scale of channels, and the product behind it, pass back: channels last."""
    last = fw.permute_dims(x, LAST)
    scaled = last * scale
    columns = fw.sum(fw.reshape(scaled, (-1, scale.shape[0])), axis=0)
    return x, scaled, fw.sum(last * dy, axis=(0, 1, 2)), columns


def test_sums_of_images_channels_last_are_one_pass() -> None:
    n, c, h, w = 16, 96, 56, 56
    x = S((n, c, h, w), "bfloat16", strides=(c * h * w, 1, w * c, c))
    dy, scale = S((n, h, w, c), "bfloat16"), S((c,), "bfloat16")
    program = fw.compile(
        fw.trace(lambda a, b, *rest: gradients(a + b, *rest), x, x, dy, scale),
        out_layouts=[LAST, None, None, None],
    )
    stats = program.host.stats
    assert (stats["launches"], stats["copies"]) == (2, 0)


@pytest.mark.parametrize("shape", [(2, 6, 3, 5), (3, 4, 8, 8)])
def test_they_agree_with_the_oracle(shape: tuple[int, ...]) -> None:
    n, c, h, w = shape
    specs = [S(shape, "float32", strides=(c * h * w, 1, w * c, c)), S((n, h, w, c), "float32")]
    fusion = fw.trace(gradients, *specs, S((c,), "float32"))
    rng = np.random.default_rng(1)
    image = rng.standard_normal((n, h, w, c)).astype(np.float32).transpose(0, 3, 1, 2)
    arrays = [image, *(rng.standard_normal(s).astype(np.float32) for s in ((n, h, w, c), (c,)))]
    result = fw.compile(fusion, out_layouts=[LAST, None, None, None]).simulate(*arrays)
    assert result.races == []
    want = [np.asarray(a) for a in fw.evaluate(fusion, *arrays)]
    for a, b in zip(result.outputs, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
