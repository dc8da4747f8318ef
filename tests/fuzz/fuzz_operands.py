"""Matrix products drawn from a seed by every way to say one: `matmul`, `linear`, `einsum`, batches
that are broadcast; operands that lie anyhow, or are computed first; sizes of no tile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from fuzz_products import halves, turned

import fusewright as fw

ROWS = (1, 2, 7, 16, 63, 64, 65, 100, 129)
DEPTHS = (1, 2, 7, 8, 9, 16, 24, 31, 64, 72, 130, 264, 1031)
LARGE, DEEP = (63, 64, 65, 100, 128, 129, 200, 257), (64, 72, 130, 256, 264, 520, 1031, 2048)
KINDS = (
    "bfloat16",
    "float16",
    "float32",
    "float8_e4m3",
    "float8_e5m2",
    "int8",
    "float64",
    "int32",
)
NARROW = ("float8_e4m3", "float8_e5m2", "int8")
"""Of values that are cast before they are multiplied."""


def _picked(x: Any, i: Any) -> Any:
    return fw.take(x, i, axis=-2)


PREFIXES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "nothing": lambda x, s, i: x,
    "a scale": lambda x, s, i: x * fw.astype(s[:1], x.dtype),
    "rows gathered": lambda x, s, i: _picked(x, i[: x.shape[-2]]),
    "a function": lambda x, s, i: fw.maximum(x, fw.astype(s[1:2], x.dtype)),
    "flipped": lambda x, s, i: fw.flip(x, axis=-1),
    "joined": lambda x, s, i: fw.concat(
        [x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]], axis=-1
    ),
    "padded": lambda x, s, i: fw.pad(x[..., 1:], [(0, 0)] * (x.ndim - 1) + [(1, 0)]),
}

SUFFIXES: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda y, v: y,
    "a softmax": lambda y, v: fw.nn.softmax(fw.astype(y, "float32") * 0.125, axis=-1),
    "sums of rows": lambda y, v: (y, fw.sum(fw.astype(y, "float32"), axis=-1)),
    "a maximum": lambda y, v: fw.max(y, axis=-2),
    "turned": lambda y, v: turned(y),
    "two results": lambda y, v: (y * 2, fw.astype(y, "float32") + 1),
    "padded": lambda y, v: fw.pad(y, [(0, 0)] * (y.ndim - 1) + [(2, 1)]),
    "cropped": lambda y, v: y[..., y.shape[-2] // 2 :, 1:],
    "joined": lambda y, v: fw.concat([y, y[..., :1]], axis=-1),
    "halves": lambda y, v: halves(fw.astype(y, "float32")),
    "residual": lambda y, v: y + fw.flip(y, axis=-1),
    "every other": lambda y, v: y[..., ::2],
    "reshaped": lambda y, v: fw.reshape(y, (-1,)),
    "a second product": lambda y, v: fw.matmul(y, turned(y)),
}

WAYS = ("matmul", "matmul", "linear", "einsum", "wide", "bias")


class OperandDrawn:
    """A product of a seed: the function, and arrays for its arguments."""

    def __init__(self, seed: int) -> None:
        r = random.Random(f"operands {seed}")
        self.seed, self.r = seed, r
        self.kind = r.choice(KINDS)
        self.way = r.choice(WAYS)
        self.m, self.n, self.k = r.choice(ROWS), r.choice(ROWS), r.choice(DEPTHS)
        if r.random() < 0.6:
            self.kind = r.choice(KINDS[:5])
            self.m, self.n, self.k = r.choice(LARGE), r.choice(LARGE), r.choice(DEEP)
        batch = r.choice([(), (), (), (2,), (3,), (2, 1), (1,)])
        self.batches = batch, r.choice([(), batch, batch[-1:], (2, *batch[-1:])])
        if self.way == "linear" and "int" in self.kind:
            self.way = "bias"
        if self.way == "linear":
            self.batches = batch, ()
        if self.way == "einsum":
            self.batches = (2,), (2,)
        self.lie = tuple(
            r.choice(("straight", "turned", "sliced", "strided", "offset")) for _ in "ab"
        )
        self.before = tuple(r.choice(("nothing", "nothing", "nothing", *PREFIXES)) for _ in "ab")
        self.suffix = r.choice(list(SUFFIXES))

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.kind} {self.way} {self.m}x{self.n}x{self.k} "
            f"{self.batches} {self.lie} {self.before} {self.suffix}"
        )

    def _shape(self, which: int) -> tuple[int, ...]:
        """Of an operand as it is multiplied."""
        return *self.batches[which], *((self.m, self.k) if which == 0 else (self.k, self.n))

    def _given(self, which: int) -> tuple[int, ...]:
        """Of the argument that it is a view of."""
        *lead, a, b = self._shape(which)
        match self.lie[which]:
            case "turned":
                return *lead, b, a
            case "sliced":
                return *lead, a + 3, b + 5
            case "strided":
                return *lead, a, 2 * b
            case "offset":
                return *lead, a, b + 1
            case _:
                return *lead, a, b

    def _seen(self, x: Any, which: int) -> Any:
        *_, a, b = self._shape(which)
        match self.lie[which]:
            case "turned":
                return turned(x)
            case "sliced":
                return x[..., 1 : a + 1, 4 : b + 4]
            case "strided":
                return x[..., ::2]
            case "offset":
                return x[..., 1:]
            case _:
                return x

    def _product(self, a: Any, b: Any, v: Any) -> Any:
        match self.way:
            case "linear":
                return fw.nn.linear(a, turned(b), fw.astype(v, b.dtype))
            case "einsum":
                return fw.einsum("bij,bjk->bik", a, b)
            case "wide":
                return fw.matmul(fw.astype(a, "float32"), fw.astype(b, "float32"))
            case "bias":
                return fw.matmul(a, b) + fw.astype(v, b.dtype)
            case _:
                return fw.matmul(a, b)

    def __call__(self, x: Any, w: Any, v: Any, s: Any, i: Any) -> Any:
        a, b = (self._seen(t, which) for which, t in enumerate((x, w)))
        if self.kind in NARROW:
            wide = "int32" if self.kind == "int8" else "float32"
            a, b = fw.astype(a, wide), fw.astype(b, wide)
        a, b = (PREFIXES[p](t, s, i) for p, t in zip(self.before, (a, b), strict=True))
        return SUFFIXES[self.suffix](self._product(a, b, v), v)

    def specs(self) -> list[fw.TensorSpec]:
        operands = [fw.TensorSpec(self._given(which), self.kind) for which in (0, 1)]
        index = fw.TensorSpec((max(self.m, self.k),), "int32")
        vector = fw.TensorSpec((self.n,), "float32")
        return [*operands, vector, fw.TensorSpec((2,), "float32"), index]

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        found = []
        for number, s in enumerate(self.specs()):
            shape = tuple(int(str(e)) for e in s.shape)
            if number == 4:
                values = rng.integers(0, max(1, min(self.m, self.k)), shape)
            elif number < 2 and self.kind in (*NARROW, "int32"):
                values = rng.choice((-2, -1, 1, 2), size=shape)
            elif number == 3:
                values = np.array([2.0, -1.0])
            else:
                values = (
                    rng.choice((-2, -1, 1, 2), size=shape)
                    if "int" in self.kind
                    else rng.standard_normal(shape)
                )
            found.append(values.astype(s.dtype.numpy))
        return found
