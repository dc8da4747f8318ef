"""Programs of several launches, with branches, joins, insertions and memory that is written again,
and arrays for them. Needs no device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from fuzz_orders import DrawnCall

import fusewright as fw


@dataclass(frozen=True)
class LateProgram:
    """A program by name, made for a target, and its arguments."""

    name: str
    program: Callable[[str], fw.Program]
    arrays: Callable[[], list[np.ndarray[Any, Any]]]

    def __str__(self) -> str:
        return self.name


def attention(*xs: Any) -> Any:
    """Heads of other sizes, each three launches of its own behind each other."""
    heads = [xs[k : k + 3] for k in range(0, len(xs), 3)]
    return tuple(fw.nn.softmax(q @ k.T * 0.125, axis=-1) @ v for q, k, v in heads)


def in_turns(x: Any) -> Any:
    """Sums over rows and over columns by turns, whose memory takes turns too."""
    for axis in (0, 1) * 3:
        x = x - fw.sum(fw.tanh(x), axis=axis, keepdims=True) * (1.0 / 1024)
    return x


def sorted_halves(x: Any, y: Any) -> Any:
    """Sorts into a join, whose halves others read."""
    joined = fw.concat([fw.sort(x, axis=1), fw.sort(fw.exp(y), axis=1)], axis=0)
    return joined, fw.cumulative_sum(joined[:64], axis=1), fw.nn.softmax(joined[64:], axis=0)


def _of(name: str, fn: Callable[..., Any], *shapes: tuple[int, ...]) -> LateProgram:
    def program(target: str) -> fw.Program:
        return fw.compile(fw.trace(fn, *(fw.TensorSpec(s, "float32") for s in shapes)), target)

    def arrays() -> list[np.ndarray[Any, Any]]:
        rng = np.random.default_rng(len(shapes))
        return [rng.standard_normal(s).astype(np.float32) for s in shapes]

    return LateProgram(name, program, arrays)


def _drawn(seed: int) -> LateProgram:
    drawn = DrawnCall(seed)

    def program(target: str) -> fw.Program:
        fusion = fw.trace(drawn, *drawn.specs)
        return fw.compile(fusion, target, donate=drawn.donate, out_layouts=drawn.layouts)

    return LateProgram(f"drawn {seed}", program, drawn.arrays)


DRAWN = (40, 61, 65, 67, 69, 72, 81, 82, 84)
"""Seeds of programs whose launches wait for values, for reads of memory, and for writes of it, most
of them on several branches, some over arguments that are given away."""

LATE_PROGRAMS = (
    _of("four heads", attention, *((96 + 32 * (k // 3), 64) for k in range(12))),
    _of("in turns", in_turns, (2048, 1024)),
    _of("sorted halves", sorted_halves, (64, 4096), (64, 4096)),
    *map(_drawn, DRAWN),
)
