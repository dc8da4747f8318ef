"""Compositions: one family's function of another's, on one array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.lot.dice import Dice
from bench.lot.draws import ITEM_NBYTES, Program, launches_of, needs_two_reads
from bench.lot.pointwise import UNARY

Step = tuple[str, Callable[[Any, Any], Any], tuple[int, ...]]
"""What it is, the function, and the axes that it reduces over."""


def composition(dice: Dice) -> Program:
    """Two functions of whole arrays, one after the other, with an operation between them."""
    dtype = dice.one(("bfloat16", "float16", "float32"))
    shape = dice.shape(2 * ITEM_NBYTES[dtype], least_rank=2)
    a = dice.argument(shape, dtype)
    kinds = dice.some(STEPS, 2)
    kinds = kinds if dice.chance(0.5) else kinds[::-1]
    first, second = (make(dice, shape) for make in kinds)
    between = dice.one(UNARY)

    def fn(xp: Any, x: Any) -> Any:
        y = first[1](xp, xp.astype(x, xp.float32))
        return xp.astype(second[1](xp, between[1](xp, y)), x.dtype)

    reduced = [axes for _, _, axes in (first, second) if axes]
    launches = max([launches_of(a, axes) for axes in reduced], default=1)
    again = (0,) if any(needs_two_reads(a, axes) for axes in reduced) else ()
    name = f"{first[0]}, {between[0]}, {second[0]} of {a}"
    return Program(name, fn, (a,), {}, again, launches)


def _softmax(dice: Dice, shape: tuple[int, ...]) -> Step:
    axis = dice.between(0, len(shape) - 1)
    return f"softmax along {axis}", lambda xp, x: xp.nn.softmax(x, axis=axis), (axis,)


def _centred(dice: Dice, shape: tuple[int, ...]) -> Step:
    axes = dice.axes(len(shape))

    def fn(xp: Any, x: Any) -> Any:
        y = x - xp.mean(x, axis=axes, keepdims=True)
        return y / xp.sqrt(xp.mean(y * y, axis=axes, keepdims=True) + 1e-5)

    return f"norm over {axes}", fn, axes


def _scan(dice: Dice, shape: tuple[int, ...]) -> Step:
    axis = dice.between(0, len(shape) - 1)
    return f"scan along {axis}", lambda xp, x: xp.cumulative_sum(x, axis=axis), (axis,)


def _roll(dice: Dice, shape: tuple[int, ...]) -> Step:
    axis = dice.between(0, len(shape) - 1)
    shift = dice.spread(1, max(1, shape[axis] - 1))
    return f"roll by {shift} along {axis}", lambda xp, x: xp.roll(x, shift, axis=axis), ()


def _flip(dice: Dice, shape: tuple[int, ...]) -> Step:
    axis = dice.between(0, len(shape) - 1)
    return f"flip {axis}", lambda xp, x: xp.flip(x, axis=axis), ()


def _halves(dice: Dice, shape: tuple[int, ...]) -> Step:
    axis = max(range(len(shape)), key=lambda k: shape[k])
    half = max(1, shape[axis] // 2)

    def part(x: Any, where: slice) -> Any:
        return x[tuple(where if k == axis else slice(None) for k in range(x.ndim))]

    def fn(xp: Any, x: Any) -> Any:
        return xp.concat([-part(x, slice(half, None)), part(x, slice(0, half))], axis=axis)

    return f"halves exchanged along {axis}", fn, ()


def _padded(dice: Dice, shape: tuple[int, ...]) -> Step:
    axis = dice.between(0, len(shape) - 1)
    n = min(shape[axis] - 1, dice.between(1, 5))
    widths = tuple((n, -n) if k == axis else (0, 0) for k in range(len(shape)))

    def fn(xp: Any, x: Any) -> Any:
        return xp.pad(x, widths)

    return f"shift by {n} along {axis}", fn, ()


def _masked(dice: Dice, shape: tuple[int, ...]) -> Step:
    k = dice.between(0, 2)
    return f"tril {k}", lambda xp, x: xp.tril(x, k=k), ()


def _scaled(dice: Dice, shape: tuple[int, ...]) -> Step:
    axes = dice.axes(len(shape))

    def fn(xp: Any, x: Any) -> Any:
        s = xp.max(xp.abs(x), axis=axes, keepdims=True) * (1 / 127) + 1e-6
        return xp.round(x / s) * s

    return f"rounded over {axes}", fn, axes


STEPS = (_softmax, _centred, _scan, _roll, _flip, _halves, _padded, _masked, _scaled)
