"""Which values may be computed faster: those that only reach 16 bits or fewer by approximate
instructions, and exponentials around their maximum that are only added up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fusewright.core.functions import ADDED, APPROXIMATE
from fusewright.fusion.ir import Constant, Pointwise, Reduce, moves_data
from fusewright.fusion.rounded import is_short, rounded_in_the_end
from fusewright.memory import Memory
from fusewright.schedule.graph import Stage


def fast_forms(stages: Sequence[Stage], consumers: dict[Stage, list[Stage]]) -> dict[Stage, str]:
    """The functions, by the names of `core.functions`, that compute stages instead of their own."""
    fine = approximable(stages, consumers)
    out: dict[Stage, str] = {}
    for s in stages:
        if not isinstance(s.op, Pointwise):
            continue
        if s in fine and s.op.fn in APPROXIMATE:
            out[s] = APPROXIMATE[s.op.fn]
        elif s.op.fn in ADDED and _is_added_up(s, consumers[s]) and _is_around_maximum(s):
            out[s] = ADDED[s.op.fn]
    return out


def _is_added_up(s: Stage, users: Sequence[Stage]) -> bool:
    """Whether sums of float32 are all that a value goes into."""
    sums = all(isinstance(u.op, Reduce) and u.op.fn == "add" for u in users)
    return s.dtype.is_float and s.dtype.compute.nbytes == 4 and bool(users) and sums


def _is_around_maximum(s: Stage) -> bool:
    """Whether the argument of an exponential is a difference to the maximum of the same values: it
    is not above 0, some term of a sum of them is then 1, and what underflows does not count."""
    (difference,) = s.operands
    if not _is_call(difference, "sub"):
        return False
    values = _origin(difference.operands[0])
    return any(v.op is values.op for v in _maximised(difference.operands[1]))


def _maximised(s: Stage) -> Iterator[Stage]:
    """What a stage is the maximum of, and what those are maxima of; where that is -inf the stage
    may be another number."""
    s = _origin(s)
    if isinstance(s.op, Reduce) and s.op.fn == "max":
        yield _origin(s.operands[0])
        yield from _maximised(s.operands[0])
    elif _is_call(s, "where"):
        condition, *choices = map(_origin, s.operands)
        for value, keeps in zip(choices, ("ne", "eq"), strict=True):
            if _is_call(condition, keeps) and _asks_for_lowest(condition, value):
                yield from _maximised(value)


def _asks_for_lowest(condition: Stage, value: Stage) -> bool:
    """Whether a condition compares a value with -inf."""
    numbers = [_origin(o).op for o in condition.operands]
    lowest = any(isinstance(n, Constant) and n.value == -math.inf for n in numbers)
    return lowest and any(n is value.op for n in numbers)


def _origin(s: Stage) -> Stage:
    """What a stage moves or casts. Clones of one value have one op."""
    while len(s.operands) == 1 and (moves_data(s.op) or _is_call(s, "cast")):
        s = s.operands[0]
    return s


def approximable(stages: Sequence[Stage], consumers: dict[Stage, list[Stage]]) -> set[Stage]:
    """The float32 values of which 16 bits or fewer are kept in the end."""
    outputs = {
        s: s.is_rounded or is_short(s.dtype)
        for s in stages
        if s.memory is Memory.GLOBAL and not s.is_input
    }
    return rounded_in_the_end(stages, consumers, lambda s: s.operands, outputs)


def _is_call(s: Stage, fn: str) -> bool:
    return isinstance(s.op, Pointwise) and s.op.fn == fn
