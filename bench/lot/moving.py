"""Families that move: windows, permutations, joins, pads, crops, rolls, flips, gathers."""

from __future__ import annotations

import math
from typing import Any

from bench.lot.dice import LONGEST, Dice
from bench.lot.draws import ITEM_NBYTES, Argument, Program
from bench.lot.pointwise import UNARY


def _any(dice: Dice) -> str:
    return dice.integer() if dice.chance(0.15) else dice.floating()


def _then(dice: Dice, dtype: str) -> Any:
    """A function of what was moved, or none; none for integers."""
    if "float" not in dtype or dice.chance(0.5):
        return "", lambda xp, y: xp.copy(y)
    chosen = dice.one(UNARY)
    return f" {chosen[0]}", chosen[1]


def _values(dtype: str) -> str:
    return "normal" if "float" in dtype else "index"


def window(dice: Dice) -> Program:
    """Each result from some neighbours: pooling, stencils by slices and by rolls, moving means."""
    kind = dice.one(("pool", "pool", "slices", "rolls", "pads"))
    dtype = dice.floating()
    item = ITEM_NBYTES[dtype]
    if kind == "pool":
        return _pooling(dice, dtype)
    shape = dice.shape(2 * item)
    axis = dice.one(range(len(shape)))
    reach = dice.between(1, 2)
    if shape[axis] <= 2 * reach + 1:
        axis = max(range(len(shape)), key=lambda k: shape[k])
    a = dice.argument(shape, dtype)
    n = shape[axis]

    def part(x: Any, start: int, stop: int) -> Any:
        return x[tuple(slice(start, stop) if k == axis else slice(None) for k in range(x.ndim))]

    def fn(xp: Any, x: Any) -> Any:
        shifts = range(-reach, reach + 1)
        match kind:
            case "slices":
                parts = [part(x, reach + s, n - reach + s) for s in shifts]
            case "rolls":
                parts = [xp.roll(x, s, axis=axis) for s in shifts]
            case _:
                widths = [(reach, reach) if k == axis else (0, 0) for k in range(x.ndim)]
                y = xp.pad(x, tuple(widths))
                parts = [part(y, reach + s, reach + s + n) for s in shifts]
        return sum(parts[1:], parts[0]) * (1.0 / len(parts))

    return Program(f"stencil by {kind}, reach {reach}, along {axis} of {a}", fn, (a,))


def _pooling(dice: Dice, dtype: str) -> Program:
    size = dice.between(2, 4)
    shape = dice.shape(ITEM_NBYTES[dtype], rank=dice.between(2, 4))
    pooled = dice.some(range(len(shape)), dice.between(1, 2))
    shape = tuple(max(1, n // size) * size if k in pooled else n for k, n in enumerate(shape))
    split: list[int] = []
    axes: list[int] = []
    for k, n in enumerate(shape):
        split += [n // size, size] if k in pooled else [n]
        axes += [len(split) - 1] if k in pooled else []
    fn_name = dice.one(("max", "mean", "sum"))
    a = dice.argument(shape, dtype)

    def fn(xp: Any, x: Any) -> Any:
        return getattr(xp, fn_name)(xp.reshape(x, tuple(split)), axis=tuple(axes))

    return Program(f"{fn_name} over windows of {size} along {pooled} of {a}", fn, (a,))


def permutation(dice: Dice) -> Program:
    """The axes in another order, with a function or another array."""
    dtype = _any(dice)
    shape = dice.shape(2 * ITEM_NBYTES[dtype], rank=dice.between(2, 5))
    order = dice.order(len(shape))
    added = "float" in dtype and dice.chance(0.3)
    turned = tuple(shape[k] for k in order)
    what, then = _then(dice, dtype)
    arguments = [dice.argument(shape, dtype, _values(dtype))]
    arguments += [Argument(turned, dtype)] if added else []

    def fn(xp: Any, x: Any, *rest: Any) -> Any:
        y = xp.permute_dims(x, order)
        return then(xp, y + rest[0] if rest else y)

    name = f"permute to {order}{what}{' plus another' if added else ''} of {arguments[0]}"
    return Program(name, fn, tuple(arguments))


def join(dice: Dice) -> Program:
    """Arrays one after the other, side by side along a new axis, or interleaved."""
    dtype = _any(dice)
    kind = dice.one(("concat", "concat", "concat", "stack", "interleave"))
    count = dice.between(2, 5)
    shape = dice.shape(2 * ITEM_NBYTES[dtype] * count)
    axis = dice.between(0, len(shape) - (0 if kind == "stack" else 1))
    steps = [_then(dice, dtype) for _ in range(count)]
    sizes = [shape] * count
    if kind == "concat":
        n = shape[axis]
        new = [min(LONGEST, max(1, dice.between(n // 2, 2 * n))) for _ in range(count)]
        sizes = [tuple(m if k == axis else s for k, s in enumerate(shape)) for m in new]
    arguments = tuple(dice.argument(s, dtype, _values(dtype)) for s in sizes)

    def fn(xp: Any, *arrays: Any) -> Any:
        parts = [f(xp, x) for (_, f), x in zip(steps, arrays, strict=True)]
        match kind:
            case "concat":
                return xp.concat(parts, axis=axis)
            case "stack":
                return xp.stack(parts, axis=axis)
            case _:
                both = xp.stack(parts, axis=len(shape))
                return xp.reshape(both, (*shape[:-1], shape[-1] * count))

    what = ", ".join(
        f"{w.strip() or 'copy'} {a}" for (w, _), a in zip(steps, arguments, strict=True)
    )
    return Program(f"{kind} along {axis} of {what}", fn, arguments)


def pad(dice: Dice) -> Program:
    """More elements at the ends of some axes: zeros, or copies of what stands there."""
    dtype = dice.floating()
    shape = dice.shape(2 * ITEM_NBYTES[dtype])
    rank = len(shape)
    mode = dice.one(("constant", "constant", "constant", "edge", "reflect"))
    axes = dice.some(range(rank), dice.between(1, rank)) if mode == "constant" else (rank - 1,)
    mode = "constant" if shape[-1] < 12 else mode
    widths = tuple(
        (dice.between(0, 9), dice.between(0, 9)) if k in axes else (0, 0) for k in range(rank)
    )
    what, then = _then(dice, dtype)
    a = dice.argument(shape, dtype)

    def fn(xp: Any, x: Any) -> Any:
        return xp.pad(then(xp, x), widths, mode=mode)

    return Program(f"pad {mode} {widths}{what} of {a}", fn, (a,))


def crop(dice: Dice) -> Program:
    """A part of an array, from anywhere to anywhere, in steps."""
    dtype = _any(dice)
    shape = dice.shape(2 * ITEM_NBYTES[dtype])
    steps = [dice.one((1, 1, 1, 1, 2, 3)) for _ in shape]
    pairs: list[tuple[int, int]] = []
    for n in shape:
        start = dice.between(0, n // 4)
        pairs.append((start, n - dice.between(0, (n - start - 1) // 4)))
    cut = tuple(slice(a, b, s) for (a, b), s in zip(pairs, steps, strict=True))
    what, then = _then(dice, dtype)
    a = dice.argument(shape, dtype, _values(dtype))

    def fn(xp: Any, x: Any) -> Any:
        return then(xp, x[cut])

    kept = math.prod(len(range(n)[s]) for n, s in zip(shape, cut, strict=True))
    last = range(shape[-1])[cut[-1]]
    fill = last.step if ITEM_NBYTES[dtype] * last.step <= 32 and len(last) > 1 else 1
    read = {0: min(a.nbytes, kept * ITEM_NBYTES[dtype] * fill)}
    text = ", ".join(f"{s.start}:{s.stop}:{s.step}" for s in cut)
    return Program(f"crop [{text}]{what} of {a}", fn, (a,), read)


def roll(dice: Dice) -> Program:
    """Elements moved around the ends of some axes."""
    dtype = _any(dice)
    shape = dice.shape(2 * ITEM_NBYTES[dtype])
    axes = dice.some(range(len(shape)), dice.between(1, min(2, len(shape))))
    shifts = tuple(dice.spread(1, max(1, shape[k] - 1)) for k in axes)
    what, then = _then(dice, dtype)
    added = "float" in dtype and dice.chance(0.3)
    a = dice.argument(shape, dtype, _values(dtype))

    def fn(xp: Any, x: Any) -> Any:
        y = xp.roll(x, shifts, axis=axes)
        return then(xp, y + x if added else y)

    plus = " plus itself" if added else ""
    return Program(f"roll by {shifts} along {axes}{plus}{what} of {a}", fn, (a,))


def flip(dice: Dice) -> Program:
    """Some axes in the opposite order."""
    dtype = _any(dice)
    shape = dice.shape(2 * ITEM_NBYTES[dtype])
    axes = dice.some(range(len(shape)), dice.between(1, len(shape)))
    what, then = _then(dice, dtype)
    a = dice.argument(shape, dtype, _values(dtype))

    def fn(xp: Any, x: Any) -> Any:
        return then(xp, xp.flip(x, axis=axes))

    return Program(f"flip {axes}{what} of {a}", fn, (a,))


def gather(dice: Dice) -> Program:
    """Slices or elements at given places, along any axis."""
    dtype = dice.floating()
    item = ITEM_NBYTES[dtype]
    shape = dice.shape(2 * item, least_rank=2)
    kind = dice.one(("rows", "rows", "along", "elements"))
    what, then = _then(dice, dtype)
    a = Argument(shape, dtype)
    if kind == "elements":
        axis = len(shape) - 1
        places = Argument((*shape[:-1], max(1, shape[-1] // 4)), "int64", values="index")
    else:
        axis = 0 if kind == "rows" else dice.one(range(len(shape)))
        count = min(LONGEST, max(1, int(shape[axis] * dice.one((0.25, 1.0, 1.5)))))
        places = Argument((count,), dice.one(("int32", "int64")), values="index")
    places = Argument(places.shape, places.dtype, values="index", high=shape[axis])

    def fn(xp: Any, x: Any, i: Any) -> Any:
        if kind == "elements":
            return then(xp, xp.take_along_axis(x, i, axis=axis))
        return then(xp, xp.take(x, i, axis=axis))

    least = min(a.nbytes, _gathered(a, places, axis, kind))
    return Program(
        f"gather {kind} along {axis}{what} of {a} by {places}", fn, (a, places), {0: least}
    )


def _gathered(a: Argument, places: Argument, axis: int, kind: str) -> int:
    """Bytes of the different slices that random places meet, in whole sectors for elements."""
    n = a.shape[axis]
    met = n * (1 - math.exp(-places.shape[axis if kind == "elements" else 0] / n))
    share = met / n
    inner = math.prod(a.shape[axis + 1 :]) * ITEM_NBYTES[a.dtype]
    if inner < 32:
        share = 1 - (1 - share) ** (32 // inner)
    return max(1, int(a.nbytes * share))
