"""How often the elements of a value are regrouped on the way from what is stored.

An axis is a word of digits, outermost first. Permutations reorder words, a reshape writes all
digits in a row and cuts them again. Where the cuts fall between digits, or divide one, an element
is found as before. Where they do not, the reshape is a regrouping: its index is a division and a
remainder of everything behind it, so that indices grow with every one.

    (4, 6) -> (2, 12)   digits 2 2 | 6 -> 2 | 2 6: no regrouping
    (5, 7) -> (7, 5)    digits 5 | 7, cut at 5: a regrouping
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fusewright.core.expr import Expr, Int, constant_value, floordiv, mod
from fusewright.fusion.ir import Parts, Permute, Pointwise, Reshape, Tensor

Word: TypeAlias = tuple[Expr, ...]

MAX_REGROUPINGS = 8
"""At the rate of memory a multiprocessor issues about 48 instructions for each element of 4 bytes,
a regrouping by constants takes about 10: eight of them take what two kernels of four each take."""


@dataclass(frozen=True, slots=True)
class Regrouped:
    """The digits of every axis of a value, and the regroupings behind it."""

    words: tuple[Word, ...]
    count: int


def regrouped(t: Tensor, before: Mapping[Tensor, Regrouped]) -> Regrouped:
    """The digits of a value whose operands are known; operands that are not are stored."""
    known = [before[o] for o in t.op.operands if o in before]
    count = max((r.count for r in known), default=0)
    match t.op:
        case Permute():
            words = _of(t.op.operands[0], before)
            return Regrouped(tuple(words[a] for a in t.op.axes), count)
        case Reshape() | Parts() if Int(0) not in t.shape and _is_whole(t.op):
            row = [d for word in _of(t.op.operands[0], before) for d in word]
            words = _cut(row, t.shape)
            return Regrouped(words or _whole(t), count + (words is None))
        case Pointwise() if known:
            deepest = next(o for o in t.op.operands if o in before and before[o].count == count)
            return before[deepest]
        case _:
            return Regrouped(_whole(t), count)


def _is_whole(op: Reshape | Parts) -> bool:
    """Whether no element comes in."""
    return isinstance(op, Reshape) or op.partition.is_even


def _of(t: Tensor, before: Mapping[Tensor, Regrouped]) -> tuple[Word, ...]:
    return before[t].words if t in before else _whole(t)


def _whole(t: Tensor) -> tuple[Word, ...]:
    return tuple((e,) for e in t.shape)


def _cut(row: list[Expr], shape: tuple[Expr, ...]) -> tuple[Word, ...] | None:
    """The digits of a row in words of these extents; None where no cut falls there. A digit that
    is longer than what a word still lacks is cut in two."""
    words: list[Word] = []
    for extent in reversed(shape):
        word: list[Expr] = []
        rest = extent
        while rest != Int(1):
            if not row:
                return None
            digit = row.pop()
            if mod(rest, digit) == Int(0):
                rest = floordiv(rest, digit)
            elif constant_value(rest) is not None and mod(digit, rest) == Int(0):
                row.append(floordiv(digit, rest))
                digit, rest = rest, Int(1)
            else:
                return None
            word.append(digit)
        words.append(tuple(reversed(word)))
    return tuple(reversed(words)) if all(d == Int(1) for d in row) else None
