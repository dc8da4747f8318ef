"""Matrix products drawn from a seed: sizes, layouts, batches, 16-bit types, and what follows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import fusewright as fw

SIZES = (2, 3, 8, 16, 17, 33, 64, 65, 72, 100, 128, 130, 200, 256, 264)
LONG = 4096
"""Of rows that may be multiplied in slices."""


def turned(x: Any) -> Any:
    """The last two axes in the other order."""
    return fw.permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def halves(y: Any) -> Any:
    """A gate and what passes it, of one product."""
    half = y.shape[-1] // 2
    return fw.nn.silu(y[..., :half]) * y[..., half : 2 * half]


SUFFIXES: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda y, v: y,
    "a number": lambda y, v: fw.nn.relu(y + v[:1]),
    "a row": lambda y, v: y * fw.broadcast_to(v[1:2], y.shape[-1:]),
    "itself": lambda y, v: y + fw.sin(y),
    "gelu": lambda y, v: fw.nn.gelu(y),
    "casts": lambda y, v: fw.astype(fw.astype(y, "float32") * 0.125, y.dtype),
    "two results": lambda y, v: (y, fw.nn.relu(y)),
    "a wider result": lambda y, v: fw.astype(y, "float32"),
    "a sum": lambda y, v: fw.sum(fw.astype(y, "float32"), axis=-1),
    "a crop": lambda y, v: y[..., 1:],
    "half": lambda y, v: y[..., : y.shape[-1] // 2],
    "halves": lambda y, v: halves(y),
    "a join": lambda y, v: fw.concat([y, y * 2], axis=-1),
    "a transpose": lambda y, v: turned(y),
}


class Drawn:
    """A product of a seed: the function, and arrays for its arguments."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.seed = seed
        self.dtype = rng.choice(["bfloat16", "float16"])
        m, n, k = (rng.choice(SIZES) for _ in range(3))
        batch = rng.choice([(), (), (), (2,), (3,)])
        if rng.random() < 0.1:
            m, n, k, batch = min(m, 72), min(n, 72), LONG, ()
        self.begin = rng.choice((0, 0, 0, 1, 8))
        self.first_turned, self.second_turned = rng.random() < 0.5, rng.random() < 0.5
        first = (k, m) if self.first_turned else (m, k)
        second = (n, k) if self.second_turned else (k, n)
        shared = batch if rng.random() < 0.6 else ()
        first = (*first[:-1], first[-1] + self.begin)
        self.shapes = ((*batch, *first), (*shared, *second), (4,))
        self.suffix = rng.choice(list(SUFFIXES))

    def __call__(self, a: Any, b: Any, v: Any) -> Any:
        a = a[..., self.begin :]
        first = turned(a) if self.first_turned else a
        second = turned(b) if self.second_turned else b
        return SUFFIXES[self.suffix](fw.matmul(first, second), v)

    def specs(self) -> list[fw.TensorSpec]:
        return [fw.TensorSpec(shape, self.dtype) for shape in self.shapes]

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        return [
            rng.standard_normal(s.shape).astype(s.dtype.numpy)  # type: ignore[arg-type]
            for s in self.specs()
        ]
