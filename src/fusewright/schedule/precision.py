"""Where approximate instructions may be used: values that only reach 16 bits or fewer."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.dtypes import DType
from fusewright.fusion.ir import Constant, Pointwise, Reduce
from fusewright.schedule.graph import Stage, moves_data

# fmt: off
_CONTINUOUS = frozenset((
    "add", "sub", "mul", "div", "neg", "abs", "max", "min", "fma", "where", "exp", "exp2", "sqrt",
    "rsqrt", "reciprocal", "tanh", "erf", "copy",
))
# fmt: on
"""Functions through which a small relative error stays small, or is rounded away at the end."""


def approximable(stages: Sequence[Stage], consumers: dict[Stage, list[Stage]]) -> set[Stage]:
    """The float32 values whose every way out ends in a cast or store to 16 bits or fewer, by way
    of continuous functions and reductions only."""
    out: set[Stage] = set()
    for s in reversed(stages):
        users = consumers[s]
        if s.is_input or not s.dtype.is_float or s.dtype.compute.nbytes != 4:
            continue
        if not users:
            fine = _is_short(s.dtype)
        else:
            fine = all(_rounds(u) or (u in out and _is_continuous(u)) for u in users)
        if fine and (not _is_call(s, "erf") or all(_adds_one(u) for u in users)):
            out.add(s)
    return out


def _is_call(s: Stage, fn: str) -> bool:
    return isinstance(s.op, Pointwise) and s.op.fn == fn


def _adds_one(s: Stage) -> bool:
    """Whether a stage is 1 + x or 1 - x: an absolute error of x is then a relative one."""
    if not (_is_call(s, "add") or _is_call(s, "sub")):
        return False
    return any(_is_one(o) for o in s.operands)


def _is_one(s: Stage) -> bool:
    while s.operands and s.is_virtual:
        s = s.operands[0]
    return isinstance(s.op, Constant) and s.op.value == 1


def _is_short(dtype: DType) -> bool:
    return dtype.is_float and dtype.nbytes <= 2


def _rounds(s: Stage) -> bool:
    return isinstance(s.op, Pointwise) and s.op.fn == "cast" and _is_short(s.dtype)


def _is_continuous(s: Stage) -> bool:
    if isinstance(s.op, Pointwise):
        return s.op.fn in _CONTINUOUS or s.op.fn == "cast"
    return isinstance(s.op, Reduce) or moves_data(s.op)
