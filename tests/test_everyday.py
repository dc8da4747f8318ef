"""Programs that people write on their first day, as numpy users do, against numpy itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import fusewright as fw

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def below(n: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, n, shape)


def windows(x: np.ndarray, size: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, size, axis=-1)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def causal(xp: Any, q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    i = xp.arange(q.shape[-2])
    scores = xp.where(i[:, None] >= i[None, :], scores, -np.inf)
    return (fw.nn.softmax(scores, axis=-1) if xp is fw else softmax(scores)) @ v


def rotated(xp: Any, x: Any) -> Any:
    n, d = x.shape[-2:]
    angle = xp.arange(n)[:, None] / 10000.0 ** (xp.arange(0, d, 2) / d)[None, :]
    c, s = xp.cos(angle), xp.sin(angle)
    even, odd = x[..., ::2], x[..., 1::2]
    return xp.stack([even * c - odd * s, even * s + odd * c], axis=-1).reshape(x.shape)


def adam(xp: Any, p: Any, g: Any, m: Any, v: Any, t: int) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = (m / (1 - 0.9**t)) / (xp.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return p - 1e-3 * step, m, v


def quantised(xp: Any, x: Any) -> Any:
    scale = xp.max(abs(x), axis=-1, keepdims=True) / 127
    return xp.clip(xp.round(x / scale), -127, 127).astype("int8"), scale


def sobel(xp: Any, x: Any) -> Any:
    p = xp.pad(x, 1)
    down = p[2:] + 0 * p[:-2]
    gx = p[:-2, 2:] - p[:-2, :-2] + 2 * (p[1:-1, 2:] - p[1:-1, :-2]) + down[:, 2:] - down[:, :-2]
    return xp.hypot(gx, x)


def life(xp: Any, x: Any) -> Any:
    around = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
    n = sum(xp.roll(x, shift, axis=(0, 1)) for shift in around)
    return ((n == 3) | ((x == 1) & (n == 2))).astype("int32")


def mandelbrot(xp: Any, re: Any, im: Any) -> Any:
    x, y, n = re, im, xp.zeros_like(re)
    for _ in range(4):
        x, y = x * x - y * y + re, 2 * x * y + im
        n = n + (x * x + y * y < 4).astype("float32")
    return n


def overlap(xp: Any, a: Any, b: Any) -> Any:
    low = xp.maximum(a[:, None, :2], b[None, :, :2])
    high = xp.minimum(a[:, None, 2:], b[None, :, 2:])
    inside = xp.prod(xp.maximum(high - low, 0), axis=-1)
    area = [xp.prod(x[:, 2:] - x[:, :2], axis=-1) for x in (a, b)]
    return inside / (area[0][:, None] + area[1][None] - inside)


def nearest(xp: Any, x: Any, c: Any) -> Any:
    d = ((x[:, None, :] - c[None, :, :]) ** 2).sum(axis=-1)
    return xp.argmin(d, axis=1), d.min(axis=1)


def per_group(xp: Any, x: Any) -> Any:
    g = x.reshape(4, 3, -1)
    m, v = g.mean(axis=-1, keepdims=True), g.var(axis=-1, keepdims=True)
    return ((g - m) / xp.sqrt(v + 1e-5)).reshape(x.shape)


def likelihood(xp: Any, x: Any, labels: Any) -> Any:
    log = x - xp.log(xp.sum(xp.exp(x), axis=-1, keepdims=True))
    return -log[xp.arange(20), labels].mean()


def moving_mean(xp: Any, x: Any) -> Any:
    total = x.cumsum(axis=1)
    total = xp.pad(total, ((0, 0), (1, 0)))
    return (total[:, 8:] - total[:, :-8]) / 8


def looped(xp: Any, x: Any) -> Any:
    out = 0
    for k, row in enumerate(x):
        out = out + row * (k + len(x))
    out += 1
    return out


BOXES = np.sort(abs(normal(2, 9, 4)), axis=-1) + np.array([0, 0, 1, 1])
BOXES = BOXES.astype(np.float32)
MEAN = np.array([0.485, 0.456, 0.406], np.float32)

SAME: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "image": (lambda xp, x: ((x / 255 - MEAN) / 0.2).transpose(0, 3, 1, 2), (normal(2, 9, 8, 3),)),
    "z score": (lambda xp, x: (x - x.mean(0)) / (x.std(axis=0) + 1e-6), (normal(13, 37),)),
    "nearest": (nearest, (normal(31, 8), normal(7, 8))),
    "moving mean": (moving_mean, (normal(5, 40),)),
    "mandelbrot": (mandelbrot, (normal(9, 11), normal(9, 11))),
    "causal attention": (causal, (normal(2, 17, 8), normal(2, 17, 8), normal(2, 17, 8))),
    "rotary": (rotated, (normal(2, 16, 8),)),
    "adam": (adam, (normal(33, 5), normal(33, 5), normal(33, 5), abs(normal(33, 5)), 3)),
    "quantisation": (quantised, (normal(16, 64),)),
    "sobel": (sobel, (normal(20, 30),)),
    "life": (life, (below(2, 16, 16).astype(np.int32),)),
    "overlap of boxes": (overlap, tuple(BOXES)),
    "group norm": (per_group, (normal(4, 6, 5),)),
    "likelihood": (likelihood, (normal(20, 9), below(9, 20))),
    "rows of a table": (lambda xp, w, i: w[i].mean(axis=1), (normal(30, 8), below(30, 5, 4))),
    "columns": (lambda xp, x: x[:, [2, 0]] * x[[1], :2], (normal(6, 3),)),
    "even rows": (lambda xp, x: x[np.arange(20) % 2 == 0], (normal(20, 5),)),
    "by order": (lambda xp, x: x[xp.argsort(x)], (normal(40),)),
    "trapezoid": (
        lambda xp, x, y: ((x[1:] - x[:-1]) * (y[1:] + y[:-1]) / 2).sum(),
        (normal(9),) * 2,
    ),
    "einsum": (
        lambda xp, a, b: xp.einsum("bij,bjk->bik", a, b),
        (normal(3, 4, 5), normal(3, 5, 6)),
    ),
    "outer": (lambda xp, x: xp.outer(x, x) + xp.eye(7), (normal(7),)),
    "splits": (
        lambda xp, x: xp.split(x, 2, axis=1)[0] * xp.split(x, [3], axis=1)[1],
        (normal(4, 6),),
    ),
    "median": (lambda xp, x: xp.median(x, axis=1) + xp.quantile(x, 0.9, axis=1), (normal(5, 31),)),
    "differences": (lambda xp, x: xp.diff(x, axis=1), (normal(5, 6),)),
    "triangles": (lambda xp, x: xp.tril(x) - xp.triu(x, k=1), (normal(6, 6),)),
    "axes by position": (
        lambda xp, x: (
            xp.sum(x, 1) + xp.max(x, -1) * xp.roll(x, 1, 0)[:, 0] - xp.mean(x, (0, 1)),
            xp.concat([x, xp.flip(x, 0)], -1) * xp.repeat(x, 2, 1),
            xp.stack(xp.split(x, 3, 1), 0)[:, :, 1] + xp.take(x, xp.argsort(x[0, :3], -1), 1),
            xp.argmax(x, 1) + xp.any(x > 0, 1) * xp.std(x, 1),
        ),
        (normal(3, 6),),
    ),
    "types by position": (
        lambda xp, x: (
            xp.zeros(6, "int32") + x,
            xp.full(6, 2, "float16"),
            xp.asarray(x, "float64"),
        ),
        (normal(6),),
    ),
    "offsets by position": (
        lambda xp, x: (xp.tril(x, -1) + xp.triu(x, 2), xp.diagonal(x, 1) + x.diagonal(1)),
        (normal(6, 6),),
    ),
    "arrays of values": (
        lambda xp, x: (
            xp.asarray([x.sum(), x.max(), 2]),
            xp.asarray([[x[0], x[1] * 2], (x[2], np.ones(5, "float32"))]),
        ),
        (normal(3, 5),),
    ),
    "conditions as numbers": (
        lambda xp, x: (
            (x > 0) * 1.0 + (x < -1) * x,
            1 - (x > 0) + 2 * (x > 1),
            xp.where(x > 0, x > 1, 2) * ((x < 1) + 0.5),
        ),
        (normal(4, 5),),
    ),
    "quotients and remainders": (lambda xp, x: divmod(x, 0.5) + divmod(2, x), (normal(7),)),
    "sorted by a column": (lambda xp, x: x[x[:, 0].argsort()], (normal(8, 3),)),
    "types that are asked for": (
        lambda xp, x: x * 2 if x.dtype == np.float32 and x.dtype != "int8" else x,
        (normal(5),),
    ),
    "integers": (lambda xp, x: x // 7 * 10 + x % 7 + ((x << 2) ^ (x & 3)), (below(50, 9),)),
    "powers": (lambda xp, x: x**2 + x**3 + x**-1 + 2**x + x * math.pi, (normal(9),)),
    "conditions": (lambda xp, x: xp.where((x > 0) & ~(x > 1), 1.0, x).clip(-1, 1), (normal(99),)),
    "loops": (looped, (normal(3, 5),)),
    "reversed": (lambda xp, x: x[::-2, ::-1].T.ravel(), (normal(6, 8),)),
    "counts": (lambda xp, x: (x > 0).sum(axis=1) + (x > 1).any(axis=1), (normal(6, 8),)),
    "angles": (lambda xp, x, y: xp.hypot(x, y) * xp.sign(x), (normal(6), normal(6))),
}
"""Programs that are spelled the same in numpy; `xp` is the namespace."""


def check(got: Any, want: Any) -> None:
    if isinstance(want, tuple):
        assert isinstance(got, tuple) and len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            check(a, b)
        return
    assert got.shape == np.shape(want) and (got.dtype.kind == want.dtype.kind)
    assert np.allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", SAME)
def test_what_is_spelled_the_same_computes_the_same(name: str) -> None:
    fn, args = SAME[name]
    check(fw.fuse(lambda *a: fn(fw, *a), device="sim")(*args), fn(np, *args))


# --- with functions that numpy lacks ------------------------------------------------------------


def test_means_of_clusters() -> None:
    x, labels = normal(101, 8), below(7, 101)

    @fw.fuse(device="sim")
    def means(x: Any, labels: Any) -> Any:
        n = fw.maximum(fw.bincount(labels, length=7), 1)
        return fw.segment_sum(x, labels, 7) / n[:, None].astype(x.dtype)

    check(means(x, labels), np.stack([x[labels == k].mean(0) for k in range(7)]))


def test_pooling_as_a_moving_maximum() -> None:
    x = normal(4, 40)
    moving = fw.fuse(lambda x: fw.nn.max_pool1d(x[:, None], 5, stride=1)[:, 0], device="sim")
    check(moving(x), windows(x, 5).max(-1))


def test_an_average_that_is_carried() -> None:
    x = normal(30, 5)

    @fw.fuse(device="sim")
    def smoothed(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            carry = 0.9 * carry + 0.1 * row
            return carry, carry

        return fw.scan(step, fw.zeros(5), x)[1]

    carry, want = np.zeros(5), []
    for row in x:
        carry = 0.9 * carry + 0.1 * row
        want.append(carry)
    check(smoothed(x), np.stack(want))


def test_heat_that_spreads() -> None:
    u = normal(30, 30)

    def step(u: Any) -> Any:
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        return u[1:-1, 1:-1] + 0.1 * (around - 4 * u[1:-1, 1:-1])

    spread = fw.fuse(lambda u: fw.insert(u, step(u), (1, 1)), device="sim")
    want = u.copy()
    want[1:-1, 1:-1] = step(u)
    check(spread(u), want)


def test_a_network_that_learns() -> None:
    w = {"in": normal(8, 16), "out": normal(16, 1)}
    x = normal(64, 8)
    y = x[:, :1] * 2

    def loss(w: Any, x: Any, y: Any) -> Any:
        return ((fw.tanh(x @ w["in"]) @ w["out"] - y) ** 2).mean()

    @fw.fuse(device="sim")
    def step(w: Any, x: Any, y: Any) -> Any:
        value, g = fw.value_and_grad(loss)(w, x, y)
        return value, {k: w[k] - 0.01 * g[k] for k in w}

    values = []
    for _ in range(4):
        value, w = step(w, x, y)
        values.append(float(value))
    assert values == sorted(values, reverse=True) and values[-1] < 0.9 * values[0]


# --- structures ---------------------------------------------------------------------------------


@dataclass
class Moments:
    mean: Any
    square: Any
    rate: float = 0.5


class Pair(NamedTuple):
    first: Any
    second: Any


def test_structures_come_back_as_they_are() -> None:
    x = normal(3)

    @fw.fuse(device="sim")
    def update(s: Moments, p: Pair, *more: Any, scale: Any = 2.0, unused: Any = None) -> Any:
        mean = s.mean * s.rate + sum(more) * scale
        return replace(s, mean=mean), Pair(p.second, p.first), {"none": unused}

    s, p, rest = update(Moments(x, x * x), Pair(x, 2 * x), x, x, scale=3.0)
    assert isinstance(s, Moments) and isinstance(p, Pair) and rest == {"none": None}
    check(s.mean, 6.5 * x)
    check(p.first, 2 * x)
