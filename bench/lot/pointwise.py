"""Families that compute element by element: expressions, masks, quantisation, optimisers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bench.lot.dice import LONGEST, Dice
from bench.lot.draws import ITEM_NBYTES, Argument, Program, launches_of, needs_two_reads

UNARY: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("gelu", lambda xp, x: xp.nn.gelu(x)),
    ("silu", lambda xp, x: xp.nn.silu(x)),
    ("relu", lambda xp, x: xp.nn.relu(x)),
    ("sigmoid", lambda xp, x: xp.nn.sigmoid(x)),
    ("tanh", lambda xp, x: xp.tanh(x)),
    ("exp(-|x|)", lambda xp, x: xp.exp(-xp.abs(x))),
    ("sqrt|x|", lambda xp, x: xp.sqrt(xp.abs(x))),
    ("x*x", lambda xp, x: x * x),
    ("affine", lambda xp, x: x * 1.5 + 0.25),
    ("log(1+x*x)", lambda xp, x: xp.log(x * x + 1.0)),
    ("where(x>0)", lambda xp, x: xp.where(x > 0.0, x, x * 0.1)),
)
BINARY: tuple[tuple[str, Callable[[Any, Any, Any], Any]], ...] = (
    ("+", lambda xp, x, y: x + y),
    ("*", lambda xp, x, y: x * y),
    ("-", lambda xp, x, y: x - y),
    ("max", lambda xp, x, y: xp.maximum(x, y)),
    ("where", lambda xp, x, y: xp.where(x > y, x, y * 0.5)),
)
INTEGER: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("*3+1", lambda xp, x: x * 3 + 1),
    ("//3", lambda xp, x: x // 3),
    ("%5", lambda xp, x: x % 5),
    ("&3", lambda xp, x: xp.bitwise_and(x, 3)),
    ("max(x,3)", lambda xp, x: xp.where(x > 3, x, 3 - x)),
)


def elementwise(dice: Dice) -> Program:
    """A chain of operations on up to four arrays with any broadcast among them."""
    if dice.chance(0.2):
        return _integers(dice)
    dtype = dice.floating(eight_bits=0.1)
    count = dice.between(1, 4)
    item = ITEM_NBYTES[dtype]
    shape = dice.shape(item * (1.0 + 0.6 * count))
    arguments = [dice.argument(shape, dtype)]
    for _ in range(count - 1):
        other = dtype if dice.chance(0.7) else dice.floating()
        arguments.append(dice.argument(dice.broadcast(shape), other))
    first = dice.one(UNARY)
    steps = [(dice.one(BINARY), dice.one(UNARY) if dice.chance(0.5) else None) for _ in arguments]
    wide = any(a.dtype.startswith("float8") or a.dtype != dtype for a in arguments)

    def fn(xp: Any, *arrays: Any) -> Any:
        wider = xp.float64 if any(a.dtype == xp.float64 for a in arrays) else xp.float32
        xs = [xp.astype(a, wider) if wide else a for a in arrays]
        y = first[1](xp, xs[0])
        for x, (join, then) in zip(xs[1:], steps, strict=False):
            y = join[1](xp, y, x)
            y = then[1](xp, y) if then else y
        return xp.astype(y, getattr(xp, dtype)) if wide else y

    words = [first[0], *(f"{b[0]}{f' {u[0]}' if u else ''}" for b, u in steps[: count - 1])]
    return Program(f"{', '.join(words)} of {_texts(arguments)}", fn, tuple(arguments))


def _integers(dice: Dice) -> Program:
    dtype = dice.integer()
    shape = dice.shape(2 * ITEM_NBYTES[dtype])
    chain = [dice.one(INTEGER) for _ in range(dice.between(1, 3))]

    def fn(xp: Any, x: Any) -> Any:
        for _, f in chain:
            x = f(xp, x)
        return x

    a = dice.argument(shape, dtype, "index")
    return Program(f"{', '.join(n for n, _ in chain)} of {a}", fn, (a,))


def mask(dice: Dice) -> Program:
    """Values kept or dropped by where they stand."""
    dtype = dice.floating()
    shape = dice.shape(2 * ITEM_NBYTES[dtype], least_rank=2)
    rows, columns = shape[-2:]
    a = dice.argument(shape, dtype)
    kind = dice.one(("tril", "triu", "lengths", "band", "slope", "checker"))
    k = dice.between(-3, 3)
    lengths = Argument((*shape[:-1], 1), "int32", values="index", high=columns)

    def fn(xp: Any, x: Any, *rest: Any) -> Any:
        i = xp.reshape(xp.arange(rows), (rows, 1))
        j = xp.reshape(xp.arange(columns), (1, columns))
        match kind:
            case "tril":
                return xp.tril(x, k=k) * 2.0
            case "triu":
                return xp.triu(x, k=k) * 2.0
            case "lengths":
                return xp.where(j < rest[0], x, -1.0)
            case "band":
                return xp.where(xp.abs(i - j) <= 64 + k, x, 0.0)
            case "slope":
                return x + xp.astype(xp.abs(j - i), x.dtype) * -0.01
            case _:
                return xp.where((i + j) % 2 == 0, x, -x)

    arguments = (a, lengths) if kind == "lengths" else (a,)
    read: dict[int, int] = {}
    if kind in ("tril", "triu", "band"):
        share = kept_share(kind, rows, columns, k)
        read[0] = max(1, int(a.nbytes * share))
    return Program(f"{kind} {k} of {a}", fn, arguments, read)


def kept_share(kind: str, rows: int, columns: int, k: int) -> float:
    """The share of a matrix that a mask keeps."""
    if kind == "band":
        half = 64 + k
        kept = sum(
            max(0, min(columns, i + half + 1) - max(0, i - half))
            for i in range(min(rows, columns + half))
        )
        return kept / (rows * columns)
    below = sum(min(columns, max(0, i + k + 1)) for i in range(min(rows, columns + 3)))
    below += columns * max(0, rows - columns - 3)
    if kind == "tril":
        return below / (rows * columns)
    under = sum(min(columns, max(0, i + k)) for i in range(min(rows, columns + 3)))
    under += columns * max(0, rows - columns - 3)
    return 1 - under / (rows * columns)


def quantisation(dice: Dice) -> Program:
    """To 8 bits with one scale for all, one a row, one a column or one a block; and back."""
    kind = dice.one(("rows", "rows", "columns", "blocks", "blocks", "all", "static", "back"))
    to = dice.one(("int8", "int8", "float8_e4m3", "float8_e4m3", "float8_e5m2"))
    most = {"int8": 127.0, "float8_e4m3": 448.0, "float8_e5m2": 57344.0}[to]
    dtype = dice.one(("bfloat16", "float16", "float32"))
    shape = dice.shape(ITEM_NBYTES[dtype] + 1, least_rank=2)
    if kind == "blocks":
        block = dice.one((32, 64, 128))
        shape = (*shape[:-1], max(1, shape[-1] // block), block)
    if kind == "back":
        return _dequantised(dice, shape, dtype, to)
    a = dice.argument(shape, dtype)
    rank = len(shape)
    axes = {"rows": (rank - 1,), "blocks": (rank - 1,), "columns": tuple(range(rank - 1))}.get(
        kind, tuple(range(rank))
    )

    def narrowed(xp: Any, y: Any) -> Any:
        return xp.astype(xp.round(y) if to == "int8" else y, getattr(xp, to))

    def fn(xp: Any, x: Any, *scale: Any) -> Any:
        y = xp.astype(x, xp.float32)
        if kind == "static":
            return narrowed(xp, xp.clip(y * scale[0], -most, most))
        s = xp.max(xp.abs(y), axis=axes, keepdims=True) * (1 / most)
        return narrowed(xp, y / s), s

    if kind == "static":
        scales = Argument((1,) * (rank - 1) + shape[-1:], "float32", values="positive")
        return Program(f"{to} by given scales of {a}", fn, (a, scales))
    again = (0,) if needs_two_reads(a, axes) else ()
    return Program(f"{to}, a scale for {kind}, of {a}", fn, (a,), {}, again, launches_of(a, axes))


def _dequantised(dice: Dice, shape: tuple[int, ...], dtype: str, to: str) -> Program:
    values = Argument(shape, to, values="index" if to == "int8" else "normal", high=100)
    axes = dice.axes(len(shape))
    scale = Argument(
        tuple(1 if k in axes else n for k, n in enumerate(shape)), "float32", values="positive"
    )

    def fn(xp: Any, q: Any, s: Any) -> Any:
        return xp.astype(xp.astype(q, xp.float32) * s, getattr(xp, dtype))

    return Program(f"{to} back to {dtype} of {values} by {scale}", fn, (values, scale))


def optimiser(dice: Dice) -> Program:
    """A step over a list of tensors of different sizes."""
    count = dice.one((1, 3, 8, 17, 24, 40))
    kind = dice.one(("sgd", "momentum", "adamw", "lion", "clipped sgd"))
    states = {"sgd": 0, "momentum": 1, "adamw": 2, "lion": 1, "clipped sgd": 0}[kind]
    dtype = dice.one(("float32", "bfloat16"))
    item = 3 * ITEM_NBYTES[dtype] + 8 * states
    each = max(64.0, dice.nbytes / item / count)
    arguments: list[Argument] = []
    for _ in range(count):
        n = max(1, round(each * math.exp(dice.between(-20, 20) / 15)))
        width = dice.one((1, 64, 100, 1024))
        is_flat = n < 2 * width or (width == 1 and n <= LONGEST)
        width = width if width > 1 else 64
        shape = (n,) if is_flat else (-(-n // width), width)
        arguments += [Argument(shape, dtype), Argument(shape, dtype)]
        arguments += [Argument(shape, "float32", values="positive") for _ in range(states)]

    def fn(xp: Any, *arrays: Any) -> Any:
        groups = [arrays[k : k + 2 + states] for k in range(0, len(arrays), 2 + states)]
        scale: Any = 1.0
        if kind == "clipped sgd":
            squares = [xp.sum(xp.astype(g[1], xp.float32) * g[1]) for g in groups]
            norm = xp.sqrt(sum(squares[1:], squares[0]))
            scale = 1.0 / xp.maximum(norm, norm * 0.0 + 1.0)
        return tuple(t for g in groups for t in _step(xp, kind, scale, *g))

    launches = 3 if kind == "clipped sgd" else 1
    total = sum(math.prod(a.shape) for a in arguments[:: 2 + states])
    return Program(
        f"{kind} over {count} tensors of {total} elements, {dtype}",
        fn,
        tuple(arguments),
        twice=tuple(range(1, len(arguments), 2)) if _is_large(kind, arguments) else (),
        launches=launches,
    )


def _is_large(kind: str, arguments: list[Argument]) -> bool:
    """Whether gradients are read for their norm and again, and no cache keeps them."""
    return kind == "clipped sgd" and sum(a.nbytes for a in arguments[1::2]) > 50 << 20


def _step(xp: Any, kind: str, scale: Any, p: Any, g: Any, *state: Any) -> tuple[Any, ...]:
    w, d = xp.astype(p, xp.float32), xp.astype(g, xp.float32)
    match kind:
        case "sgd" | "clipped sgd":
            return (xp.astype(w - d * scale * 0.01, p.dtype),)
        case "momentum":
            m = state[0] * 0.9 + d
            return xp.astype(w - m * 0.01, p.dtype), m
        case "lion":
            update = xp.tanh((state[0] * 0.9 + d * 0.1) * 100.0)
            return xp.astype(w * 0.999 - update * 0.01, p.dtype), state[0] * 0.99 + d * 0.01
        case _:
            m, v = state[0] * 0.9 + d * 0.1, state[1] * 0.999 + d * d * 0.001
            step = m / (xp.sqrt(v) + 1e-3)
            return xp.astype(w * 0.999 - step * 0.01, p.dtype), m, v


def _texts(arguments: list[Argument]) -> str:
    return ", ".join(map(str, arguments))
