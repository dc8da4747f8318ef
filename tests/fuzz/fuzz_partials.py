"""Products drawn from a seed whose results are reduced over rows, columns or both, by their own
kernel in part."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from fuzz_products import turned

import fusewright as fw


def _wide(y: Any) -> Any:
    return fw.astype(y, "float32")


BEHIND: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda y, r: y,
    "gelu": lambda y, r: fw.nn.gelu(y),
    "a gradient": lambda y, r: fw.nn.silu_backward(y, r),
    "a tile": lambda y, r: y + r,
}
REDUCED: dict[str, Callable[[Any], Any]] = {
    "sums of columns": lambda y: fw.sum(_wide(y), axis=-2),
    "maxima of rows": lambda y: fw.max(fw.abs(y), axis=-1),
    "the largest": lambda y: fw.max(fw.abs(_wide(y))),
    "minima of columns": lambda y: fw.min(y, axis=-2),
    "squares of rows": lambda y: fw.sum(_wide(y) ** 2, axis=-1, keepdims=True),
    "means of columns": lambda y: fw.mean(y, axis=-2, keepdims=True),
    "the largest of a matrix": lambda y: fw.max(_wide(y), axis=(-2, -1)),
}
STORED: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "itself": lambda y: (y,),
    "nothing": lambda y: (),
    "a transpose": lambda y: (turned(y),),
    "8 bits": lambda y: (fw.astype(y, "float8_e4m3"),),
    "32 bits": lambda y: (_wide(y),),
    "two results": lambda y: (y, y * 2),
}


class PartialDrawn:
    """A product of a seed: the function, and arrays for its arguments. `candidate` chooses among
    those of its kernel."""

    def __init__(self, seed: int) -> None:
        r = random.Random(f"partials {seed}")
        self.seed = seed
        self.dtype = r.choice(("bfloat16", "float16"))
        m, n = r.choice((72, 128, 136, 192, 200, 256)), r.choice((72, 128, 136, 192, 256))
        k, batch = r.choice((64, 72, 136)), r.choice(((), (), (2,)))
        self.turned = r.random() < 0.5, r.random() < 0.5
        first = (k, m) if self.turned[0] else (m, k)
        second = (n, k) if self.turned[1] else (k, n)
        self.shapes = ((*batch, *first), (*batch, *second), (*batch, m, n))
        self.behind = r.choice(list(BEHIND))
        self.reduced = r.sample(list(REDUCED), r.choice((1, 1, 2)))
        self.stored = r.choice(list(STORED))
        self.candidate = r.random() if r.random() < 0.7 else None

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.shapes} {self.behind} {self.reduced} {self.stored}"

    def __call__(self, a: Any, b: Any, r: Any) -> Any:
        a, b = (turned(x) if t else x for x, t in zip((a, b), self.turned, strict=True))
        y = BEHIND[self.behind](fw.matmul(a, b), r)
        return (*STORED[self.stored](y), *(REDUCED[name](y) for name in self.reduced))

    def specs(self) -> list[fw.TensorSpec]:
        return [fw.TensorSpec(shape, self.dtype) for shape in self.shapes]

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        types = [s.dtype.numpy for s in self.specs()]
        return [
            rng.standard_normal(shape).astype(d)
            for shape, d in zip(self.shapes, types, strict=True)
        ]
