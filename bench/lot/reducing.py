"""Families that reduce: one result, several, both directions, norms, softmaxes, losses, scans."""

from __future__ import annotations

import math
from typing import Any

from bench.lot.dice import Dice
from bench.lot.draws import ITEM_NBYTES, Argument, Program, launches_of, needs_two_reads
from bench.lot.pointwise import UNARY, kept_share

SUMS = ("sum", "mean", "max", "min", "var", "std", "count_nonzero", "any")


def _wide(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def reduction(dice: Dice) -> Program:
    """One reduction over any axes, of an array or of a function of it."""
    if dice.chance(0.2):
        return _position(dice)
    integer = dice.chance(0.15)
    dtype = dice.integer() if integer else dice.floating()
    kind = dice.one(("sum", "max", "min")) if integer else dice.one(SUMS)
    a = dice.argument(dice.shape(ITEM_NBYTES[dtype]), dtype, "index" if integer else "normal")
    axes, keep = dice.axes(len(a.shape)), dice.chance(0.3)
    before = None if integer or dice.chance(0.6) else dice.one(UNARY)

    def fn(xp: Any, x: Any) -> Any:
        y = before[1](xp, x) if before else x
        return getattr(xp, kind)(y, axis=axes, keepdims=keep)

    of = f" of {before[0]}" if before else ""
    return Program(f"{kind} over {axes}{of} of {a}", fn, (a,), launches=launches_of(a, axes))


def _position(dice: Dice) -> Program:
    dtype = dice.one(("float32", "bfloat16", "float16", "int32"))
    values = "index" if dtype == "int32" else "normal"
    a = dice.argument(dice.shape(ITEM_NBYTES[dtype]), dtype, values)
    axis = dice.one(range(len(a.shape)))
    kind = dice.one(("argmax", "argmin"))

    def fn(xp: Any, x: Any) -> Any:
        return getattr(xp, kind)(x, axis=axis)

    launches = launches_of(a, (axis,))
    return Program(f"{kind} along {axis} of {a}", fn, (a,), launches=launches)


def reductions(dice: Dice) -> Program:
    """Several reductions of one array over the same axes."""
    dtype = dice.floating()
    a = dice.argument(dice.shape(ITEM_NBYTES[dtype]), dtype)
    axes = dice.axes(len(a.shape))
    kind = dice.one(("mean, var", "max, min", "sums", "logsumexp, max", "argmax, max", "norms"))
    if kind == "argmax, max":
        axes = axes[-1:]
    wide = _wide(dtype)

    def fn(xp: Any, x: Any) -> Any:
        y = xp.astype(x, getattr(xp, wide))
        match kind:
            case "mean, var":
                return xp.mean(y, axis=axes), xp.var(y, axis=axes)
            case "max, min":
                return xp.max(x, axis=axes), xp.min(x, axis=axes)
            case "sums":
                return xp.sum(y, axis=axes), xp.sum(y * y, axis=axes), xp.max(x, axis=axes)
            case "logsumexp, max":
                m = xp.max(y, axis=axes, keepdims=True)
                return xp.log(xp.sum(xp.exp(y - m), axis=axes, keepdims=True)) + m, m
            case "argmax, max":
                return xp.argmax(x, axis=axes[0]), xp.max(x, axis=axes)
            case _:
                return xp.sqrt(xp.sum(y * y, axis=axes)), xp.max(xp.abs(x), axis=axes)

    return Program(f"{kind} over {axes} of {a}", fn, (a,), launches=launches_of(a, axes))


def statistics(dice: Dice) -> Program:
    """Reductions of one array over different axes."""
    dtype = dice.floating()
    a = dice.argument(dice.shape(ITEM_NBYTES[dtype], least_rank=2), dtype)
    rank = len(a.shape)
    first = dice.some(range(rank), dice.between(1, rank - 1))
    second = tuple(k for k in range(rank) if k not in first)
    kinds = dice.one((("sum", "sum"), ("max", "max"), ("sum", "max"), ("mean", "var")))
    whole = dice.chance(0.3)
    wide = _wide(dtype)

    def fn(xp: Any, x: Any) -> Any:
        y = xp.astype(x, getattr(xp, wide))
        rows = getattr(xp, kinds[0])(y, axis=first)
        columns = getattr(xp, kinds[1])(y, axis=second)
        return (rows, columns, xp.sum(y)) if whole else (rows, columns)

    what = f"{kinds[0]} over {first}, {kinds[1]} over {second}{', sum' if whole else ''} of {a}"
    return Program(what, fn, (a,), launches=2)


def norm(dice: Dice) -> Program:
    """A normalisation over any axes, with a weight, a bias, a residual or none of them."""
    dtype = dice.floating()
    item = ITEM_NBYTES[dtype]
    residual, centred = dice.chance(0.25), dice.chance(0.6)
    shape = dice.shape(item * (4 if residual else 2))
    axes = dice.axes(len(shape))
    a = dice.argument(shape, dtype)
    arguments = [a, Argument(shape, dtype)] if residual else [a]
    weights = dice.between(0, 2)
    over_axes = dice.chance(0.8)
    small = tuple(n if (k in axes) == over_axes else 1 for k, n in enumerate(shape))
    arguments += [Argument(small, dtype, values="positive") for _ in range(weights)]
    after = dice.one(UNARY) if dice.chance(0.3) else None
    wide = _wide(dtype)

    def fn(xp: Any, x: Any, *rest: Any) -> Any:
        h = x + rest[0] if residual else x
        y = xp.astype(h, getattr(xp, wide))
        y = y - xp.mean(y, axis=axes, keepdims=True) if centred else y
        y = y * (1.0 / xp.sqrt(xp.mean(y * y, axis=axes, keepdims=True) + 1e-5))
        given = rest[1:] if residual else rest
        y = y * given[0] if given else y
        y = y + given[1] if len(given) > 1 else y
        y = after[1](xp, y) if after else y
        out = xp.astype(y, x.dtype)
        return (h, out) if residual else out

    name = ("layer" if centred else "rms") + (" with residual" if residual else "")
    again = tuple(k for k in range(2 if residual else 1) if needs_two_reads(a, axes))
    what = f"{name} norm over {axes}, {weights} weights, of {a}"
    return Program(what, fn, tuple(arguments), {}, again, launches_of(a, axes))


def norm_backward(dice: Dice) -> Program:
    """The gradients of a normalisation: of its input, and mostly of weight and bias."""
    dtype = dice.one(("bfloat16", "bfloat16", "float32", "float16"))
    shape = dice.shape(3 * ITEM_NBYTES[dtype], least_rank=2)
    rank = len(shape)
    axes = dice.one(((rank - 1,), (rank - 1,), tuple(range(1, rank)), (0,)))
    rest = tuple(k for k in range(rank) if k not in axes)
    kept = tuple(1 if k in axes else n for k, n in enumerate(shape))
    weight = tuple(n if k in axes else 1 for k, n in enumerate(shape))
    centred, gradients = dice.chance(0.5), dice.between(0, 2)
    dy, x = dice.argument(shape, dtype), dice.argument(shape, dtype)
    statistic = Argument(kept, "float32", values="positive")

    def fn(xp: Any, dy: Any, x: Any, w: Any, rstd: Any, *mean: Any) -> Any:
        g, y = xp.astype(dy, xp.float32), xp.astype(x, xp.float32)
        hat = (y - mean[0] if mean else y) * rstd
        d = g * w
        inner = d - hat * xp.mean(d * hat, axis=axes, keepdims=True)
        inner = inner - xp.mean(d, axis=axes, keepdims=True) if mean else inner
        out = [xp.astype(inner * rstd, x.dtype)]
        out += [xp.sum(g * hat, axis=rest)] if gradients > 0 else []
        out += [xp.sum(g, axis=rest)] if gradients > 1 else []
        return tuple(out) if len(out) > 1 else out[0]

    arguments = (dy, x, Argument(weight, dtype), statistic, *([statistic] if centred else []))
    again = (0, 1) if needs_two_reads(x, axes) else ()
    name = "layer" if centred else "rms"
    launches = max(launches_of(x, axes), 2 if gradients else 1)
    what = f"{name} norm backward over {axes}, {gradients} gradients of weights, of {x}"
    return Program(what, fn, arguments, {}, again, launches)


def softmax(dice: Dice) -> Program:
    """A softmax, its logarithm or its gradient along any axis, also scaled and masked."""
    dtype = dice.floating()
    kind = dice.one(("softmax", "softmax", "log_softmax", "masked", "causal", "backward"))
    item = ITEM_NBYTES[dtype]
    shape = dice.shape(item * (3 if kind in ("backward", "masked") else 2), least_rank=2)
    axis = (
        len(shape) - 1 if kind == "causal" or dice.chance(0.5) else dice.between(0, len(shape) - 1)
    )
    a = dice.argument(shape, dtype)
    arguments: tuple[Argument, ...] = (a,)
    if kind == "masked":
        arguments = (a, Argument(dice.broadcast(shape), dtype))
    elif kind == "backward":
        arguments = (a, Argument(shape, dtype))

    def fn(xp: Any, x: Any, *rest: Any) -> Any:
        match kind:
            case "softmax" | "log_softmax":
                return getattr(xp.nn, kind)(x, axis=axis)
            case "masked":
                return xp.nn.softmax(x * 0.125 + rest[0], axis=axis)
            case "causal":
                rows, columns = shape[-2:]
                i = xp.reshape(xp.arange(rows), (rows, 1))
                j = xp.reshape(xp.arange(columns), (1, columns))
                return xp.nn.softmax(xp.where(j <= i, x, -1e4), axis=axis)
            case _:
                y, dy = xp.astype(x, xp.float32), xp.astype(rest[0], xp.float32)
                return xp.astype(y * (dy - xp.sum(dy * y, axis=axis, keepdims=True)), x.dtype)

    again = tuple(range(len(arguments))) if needs_two_reads(a, (axis,)) else ()
    launches = launches_of(a, (axis,))
    share = kept_share("tril", *shape[-2:], 0) if kind == "causal" else 1.0
    read = {0: max(1, int(a.nbytes * share))}
    return Program(f"{kind} along {axis} of {a}", fn, arguments, read, again, launches)


def loss(dice: Dice) -> Program:
    """A loss over classes or elements, a value a row or one for all."""
    kind = dice.one(("cross entropy", "cross entropy", "mse", "huber", "bce", "kl"))
    dtype = dice.one(("bfloat16", "float16", "float32"))
    item = ITEM_NBYTES[dtype]
    mean = dice.chance(0.5)
    if kind == "cross entropy":
        shape = dice.shape(item, rank=2)
        x = dice.argument(shape, dtype)
        labels = Argument(shape[:1], "int64", values="index", high=shape[1])

        def entropy(xp: Any, x: Any, t: Any) -> Any:
            y = xp.astype(x, xp.float32)
            return xp.nn.cross_entropy(y, t, reduction="mean" if mean else "none")

        launches = max(launches_of(x, (1,)), 2 if mean else 1)
        name = f"cross entropy{', mean' if mean else ''} of {x}"
        return Program(name, entropy, (x, labels), launches=launches)
    shape = dice.shape(2 * item, least_rank=2)
    axes = tuple(range(len(shape))) if mean else dice.axes(len(shape))

    def fn(xp: Any, x: Any, t: Any) -> Any:
        y, u = xp.astype(x, xp.float32), xp.astype(t, xp.float32)
        return xp.mean(_difference(xp, kind, y, u), axis=axes)

    a = dice.argument(shape, dtype)
    arguments = (a, Argument(shape, dtype, values="positive"))
    return Program(f"{kind} over {axes} of {a}", fn, arguments, launches=launches_of(a, axes))


def _difference(xp: Any, kind: str, y: Any, u: Any) -> Any:
    match kind:
        case "mse":
            return (y - u) * (y - u)
        case "huber":
            d = xp.abs(y - u)
            return xp.where(d < 1.0, d * d * 0.5, d - 0.5)
        case "bce":
            return xp.clip(y, 0.0, 1e4) - y * u + xp.log(xp.exp(-xp.abs(y)) + 1.0)
        case _:
            return u * (xp.log(u) - y)


def scan(dice: Dice) -> Program:
    """Sums or products of the elements up to each, along any axis, in either direction."""
    dtype = dice.one(("float32", "float32", "bfloat16", "float16", "float64", "int32", "int64"))
    shape = dice.shape(2 * ITEM_NBYTES[dtype])
    axis = dice.one(range(len(shape)))
    kind = "sum" if "int" in dtype else dice.one(("sum", "sum", "sum", "prod"))
    form = dice.one(("plain", "plain", "plain", "initial", "reverse", "window", "scaled"))
    form = "plain" if kind == "prod" or "int" in dtype else form
    span = min(shape[axis] - 1, 16)
    values = "near one" if kind == "prod" else "index" if "int" in dtype else "normal"
    a = dice.argument(shape, dtype, values)

    def fn(xp: Any, x: Any) -> Any:
        scanned = xp.cumulative_prod if kind == "prod" else xp.cumulative_sum
        match form:
            case "plain":
                return scanned(x, axis=axis)
            case "initial":
                return scanned(x, axis=axis, include_initial=True)
            case "reverse":
                return xp.flip(scanned(xp.flip(x, axis=axis), axis=axis), axis=axis)
            case "scaled":
                return scanned(x * 0.5, axis=axis) * 2.0
            case _:
                y = xp.astype(scanned(xp.astype(x, xp.float32), axis=axis), xp.float32)
                return xp.astype(y - xp.roll(y, span, axis=axis), x.dtype)

    name = f"cumulative {kind}, {form}, along {axis} of {a}"
    launches = launches_of(a, (axis,))
    return Program(name, fn, (a,), launches=launches if math.prod(shape) > 1 else 1)
