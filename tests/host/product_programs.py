"""Programs with products: operands of every layout and size, and what follows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import fusewright as fw

Array = np.ndarray[Any, Any]
TOLERANCES = {"bfloat16": 2.0**-7, "float16": 2.0**-9, "float32": 1e-5}
"""Of the largest value of the result: two roundings of its dtype."""


@dataclass(frozen=True)
class Case:
    """A program of arrays of these shapes, and how many kernels it becomes."""

    name: str
    fn: Callable[..., Any]
    shapes: tuple[tuple[int | str, ...], ...]
    dtype: str = "bfloat16"
    kernels: int = 1

    def __str__(self) -> str:
        return self.name

    def fusion(self) -> fw.Fusion:
        return fw.trace(self.fn, *(fw.TensorSpec(s, self.dtype) for s in self.shapes))

    def arrays(self, seed: int = 0) -> list[Array]:
        """Random arrays; symbolic sizes are 150."""
        rng = np.random.default_rng(seed)
        kind = getattr(ml_dtypes, self.dtype, None) or np.dtype(self.dtype)
        sized = [tuple(150 if isinstance(e, str) else e for e in s) for s in self.shapes]
        return [rng.normal(size=s).astype(kind) for s in sized]


def _square(x: Any, w: Any, c: Any) -> Any:
    y = fw.matmul(x, w)
    return y, fw.nn.relu(y + c)


def _heads(q: Any, k: Any) -> Any:
    return fw.matmul(fw.permute_dims(q, (0, 2, 1, 3)), fw.permute_dims(k, (0, 2, 3, 1)))


def _gated(x: Any, g: Any, u: Any) -> Any:
    return fw.nn.silu(fw.matmul(x, g.T)) * fw.matmul(x, u.T)


def _halves(x: Any, w: Any) -> Any:
    h = fw.matmul(x, w.T)
    half = w.shape[0] // 2
    return fw.nn.silu(h[..., :half]) * h[..., half:]


def _biased_halves(x: Any, w: Any, b: Any) -> Any:
    h = fw.nn.linear(x, w, b)
    half = w.shape[0] // 2
    return fw.nn.silu(h[..., :half]) * h[..., half:]


def _halves_of_rows(x: Any, w: Any) -> Any:
    h = fw.matmul(x, w)
    half = x.shape[0] // 2
    return h[:half] * fw.tanh(h[half:])


def _banded(x: Any, w: Any) -> Any:
    i = fw.arange(x.shape[0])
    band = fw.expand_dims(i, 1) - fw.expand_dims(i, 0)
    return fw.where(band >= 0, fw.matmul(x, w.T), 0.0)


def _halves_twice(x: Any, w: Any) -> Any:
    return fw.nn.silu(fw.matmul(x, w)[:, :72]) * fw.matmul(x, w)[:, 72:]


CASES = (
    Case("a mask of two coordinates", _banded, ((136, 72), (136, 72))),
    Case("TN", lambda a, b: fw.matmul(a, b.T), ((256, 192), (128, 192))),
    Case("TT", lambda a, b: fw.matmul(a, b), ((256, 192), (192, 128))),
    Case("NN", lambda a, b: fw.matmul(a.T, b.T), ((192, 256), (128, 192))),
    Case("NT", lambda a, b: fw.matmul(a.T, b), ((192, 256), (192, 128))),
    Case("float16", lambda a, b: fw.matmul(a, b), ((256, 192), (192, 128)), "float16"),
    Case("odd sizes", lambda a, b, c: fw.matmul(a, b) + c, ((201, 136), (136, 328), (201, 1))),
    Case("one tile", lambda a, b: fw.matmul(a, b), ((64, 32), (32, 64))),
    Case("symbolic rows", lambda a, b: fw.matmul(a, b), (("m", 64), (64, 96))),
    Case("batched", lambda a, b: fw.matmul(a, b), ((3, 130, 64), (3, 64, 96))),
    Case("one second operand", lambda a, b: fw.matmul(a, b), ((3, 130, 64), (64, 96))),
    Case("linear", fw.nn.linear, ((4, 128, 64), (96, 64), (96,))),
    Case("heads", _heads, ((2, 128, 4, 64), (2, 128, 4, 64))),
    Case("crops", lambda a, b: fw.matmul(a[:, :64], b[64:, :]), ((128, 128), (128, 64))),
    Case("x @ x.T", lambda a: fw.matmul(a, a.T), ((128, 64),)),
    Case("x @ x", lambda a: fw.matmul(a, a), ((128, 128),)),
    Case("residual", lambda a, b: fw.matmul(a, b) + a, ((128, 128), (128, 128))),
    Case(
        "bias and gelu",
        lambda a, b, c: fw.nn.gelu(fw.matmul(a, b) + c),
        ((256, 192), (192, 136), (136,)),
    ),
    Case("two results", _square, ((128, 128), (128, 128), (128, 128))),
    Case("transposed result", lambda a, b: fw.matmul(a, b).T, ((128, 128), (128, 64))),
    Case(
        "float32 result",
        lambda a, b: fw.astype(fw.matmul(a, b), "float32"),
        ((128, 128), (128, 64)),
    ),
    Case(
        "widened operands",
        lambda a, b: fw.matmul(fw.astype(a, "float32"), fw.astype(b, "float32").T) * 0.5,
        ((128, 128), (64, 128)),
    ),
    Case("gated", _gated, ((200, 136), (72, 136), (72, 136))),
    Case(
        "two first operands",
        lambda x, y, w: fw.matmul(x, w) + fw.matmul(y, w),
        ((200, 136), (200, 136), (136, 72)),
    ),
    Case("three rows", lambda a, b: fw.matmul(a, b), ((3, 512), (512, 256))),
    Case("two crops of one", lambda a: fw.matmul(a[:, :64], a[:, 64:].T), ((256, 128),)),
    Case("halves", _halves, ((200, 136), (144, 136))),
    Case("halves with a bias", _biased_halves, ((2, 100, 136), (144, 136), (144,))),
    Case("halves of rows", _halves_of_rows, ((200, 136), (136, 72))),
    Case("glu", lambda x, w: fw.nn.glu(fw.matmul(x, w)), ((200, 136), (136, 144))),
    Case("halves written twice", _halves_twice, ((200, 136), (136, 144))),
    Case("a part", lambda x, w: fw.matmul(x, w)[8:, :64] * 2, ((200, 136), (136, 144))),
    Case("rows of 1029", lambda a, b: fw.matmul(a, b), ((520, 1029), (1029, 328)), kernels=2),
    Case(
        "odd and transposed",
        lambda a, b: fw.matmul(a.T, b.T),
        ((1027, 521), (329, 1027)),
        kernels=2,
    ),
    Case("one odd weight", lambda a, b: fw.matmul(a, b), ((3, 512, 528), (528, 508)), kernels=2),
    Case(
        "begins anywhere",
        lambda a, b: fw.matmul(a[:, 3:515], b),
        ((512, 600), (512, 256)),
        kernels=2,
    ),
    Case(
        "prologue of 1029",
        lambda a, b: fw.matmul(fw.exp(a), b),
        ((520, 1029), (1029, 328)),
        kernels=2,
    ),
    Case(
        "slices", lambda a, b: fw.nn.relu(fw.matmul(a, b.T)), ((128, 8192), (96, 8192)), kernels=2
    ),
    Case("slices of columns", lambda a, b: fw.matmul(a, b), ((100, 8192), (8192, 72)), kernels=2),
    Case("prologue", lambda a, b: fw.matmul(fw.exp(a), b), ((128, 64), (64, 96)), kernels=2),
    Case(
        "reduced result",
        lambda a, b: fw.sum(fw.matmul(a, b), axis=-1),
        ((128, 64), (64, 96)),
        kernels=2,
    ),
    Case(
        "chain",
        lambda a, b, c: fw.matmul(fw.nn.relu(fw.matmul(a, b)), c),
        ((128, 128), (128, 64), (64, 128)),
        kernels=2,
    ),
    Case(
        "inside a join",
        lambda a, b, c: fw.concat([fw.nn.relu(fw.matmul(a, b)), fw.exp(c)], axis=1),
        ((128, 128), (128, 128), (128, 64)),
        kernels=2,
    ),
)


def assert_right(case: Case, found: list[Array], wanted: list[Array]) -> None:
    """Whether results are those of the oracle, but for roundings."""
    for got, want in zip(found, wanted, strict=True):
        g, w = got.astype(np.float64), want.astype(np.float64)
        name = str(want.dtype)
        limit = TOLERANCES[name] * max(float(np.abs(w).max()), 1.0)
        worst = float(np.abs(g - w).max())
        assert worst <= limit, f"{case}: off by {worst} where {limit} is rounding"
