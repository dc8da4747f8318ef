"""Matrix products drawn from a seed: sizes, layouts, batches, 16-bit types, and what follows."""

from __future__ import annotations

import math
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


# --- all element types, inputs of the result's size, and any of the candidates -------------------

KINDS = ("bfloat16", "float16", "float8_e4m3", "mixed float8", "tf32", "float32", "int8")
"""Of operands; "mixed float8" are two types, "tf32" float32 values that rounding leaves alone."""


def rotated(y: Any) -> Any:
    """The halves of each head exchanged, one with the other sign: heads of up to 64 columns that
    make up a row, or the whole row as one."""
    width = math.gcd(y.shape[-1], 64)
    width = y.shape[-1] if width < 4 else width
    heads = fw.reshape(y, (*y.shape[:-1], y.shape[-1] // width, width))
    half = width // 2
    return fw.reshape(fw.concat([-heads[..., half:], heads[..., :half]], axis=-1), y.shape)


def _both(y: Any, v: Any, r: Any, c: Any, other: Any) -> Any:
    return y, fw.sum(y, axis=-2)


BEHIND: dict[str, Callable[[Any, Any, Any, Any, Callable[[], Any]], Any]] = {
    "nothing": lambda y, v, r, c, other: y,
    "a tile": lambda y, v, r, c, other: y + r,
    "a tile twice": lambda y, v, r, c, other: fw.nn.relu(y + r) * r,
    "a bias down": lambda y, v, r, c, other: fw.nn.silu(y * 0.125 + c),
    "a row": lambda y, v, r, c, other: y * fw.broadcast_to(v[1:2], y.shape[-1:]),
    "a gradient": lambda y, v, r, c, other: fw.nn.gelu_backward(y, r, "tanh"),
    "a saved tile": lambda y, v, r, c, other: (y + c, fw.nn.relu(y + c)),
    "gated": lambda y, v, r, c, other: fw.nn.sigmoid(y * 0.125) * other(),
    "two types": lambda y, v, r, c, other: (y, fw.astype(y * 0.25, "float16")),
    "sums of columns": _both,
    "turned with a tile": lambda y, v, r, c, other: turned(y + r),
    "a part of a join": lambda y, v, r, c, other: fw.concat([r, y * 2], axis=-1),
    "rotated halves": lambda y, v, r, c, other: rotated(y) * c + r,
}


class WideDrawn:
    """A product of a seed of any element type; `candidate` chooses among those of its kernel."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"wide {seed}")
        self.seed = seed
        self.kind = rng.choice(KINDS)
        m, n, k = (rng.choice((*SIZES[4:], 192, 320)) for _ in range(3))
        batch = rng.choice([(), (), (), (), (2,)])
        if rng.random() < 0.25:
            m, n, batch = min(m, 72), min(n, 130), ()
            k = rng.choice((1024, 2048, 4096, 1030))
        along = self.kind not in ("bfloat16", "float16", "int8") and rng.random() < 0.7
        self.turned = (False, True) if along else (rng.random() < 0.5, rng.random() < 0.5)
        first = (k, m) if self.turned[0] else (m, k)
        second = (n, k) if self.turned[1] else (k, n)
        second = (*batch, *second)
        self.shapes = ((*batch, *first), second, (4,), (*batch, m, n), (m, 1), second)
        self.out = {"tf32": "float32", "float32": "float32", "int8": "int32"}.get(
            self.kind, rng.choice(("float32", "bfloat16")) if "8" in self.kind else self.kind
        )
        names = ["nothing", "a tile", "sums of columns"] if self.kind == "int8" else list(BEHIND)
        self.behind = rng.choice(names)
        self.candidate = rng.random() if rng.random() < 0.6 else None

    @property
    def dtypes(self) -> tuple[str, str]:
        kinds = {"mixed float8": ("float8_e5m2", "float8_e4m3"), "tf32": ("float32", "float32")}
        return kinds.get(self.kind, (self.kind, self.kind))

    def _product(self, a: Any, b: Any) -> Any:
        a, b = (turned(x) if t else x for x, t in zip((a, b), self.turned, strict=True))
        wide = {"int8": "int32"}.get(self.kind, "float32" if "float8" in self.kind else None)
        if wide is None:
            return fw.matmul(a, b)
        return fw.astype(fw.matmul(fw.astype(a, wide), fw.astype(b, wide)), self.out)

    def __call__(self, a: Any, b: Any, v: Any, r: Any, c: Any, w: Any) -> Any:
        y = self._product(a, b)
        return BEHIND[self.behind](y, v, r, c, lambda: self._product(a, w))

    def specs(self) -> list[fw.TensorSpec]:
        kinds = (*self.dtypes, self.out, self.out, self.out, self.dtypes[1])
        return [fw.TensorSpec(s, d) for s, d in zip(self.shapes, kinds, strict=True)]

    def arrays(self) -> list[np.ndarray]:
        """Random and never zero; where instructions round or keep few bits, small integers."""
        rng = np.random.default_rng(self.seed)
        found: list[np.ndarray] = []
        for s in self.specs():
            is_operand = len(found) in (0, 1, 5)
            is_whole = ("8" in self.kind and is_operand) or not s.dtype.is_float
            shape = tuple(int(e) for e in s.shape)  # type: ignore[call-overload]
            values = (
                rng.choice((-2.0, -1.0, 1.0, 2.0), size=shape)
                if is_whole
                else rng.standard_normal(shape)
            )
            if self.kind == "tf32":
                values = values.astype(np.float16)
            found.append(values.astype(s.dtype.numpy))
        return found
