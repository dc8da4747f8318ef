"""Values of which 16 bits or fewer are kept in the end, in this kernel or in another one.

    y = bfloat16(std(sigmoid(x)))     in parts: sums of sigmoid(x) over each part, in float32, and
                                      what they give together as bfloat16

Approximate instructions do for a sigmoid of which only that is kept, although its kernel stores
float32. Works on values of a fusion and on stages of a schedule alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from fusewright.core.functions import FUNCTIONS
from fusewright.dtypes import DType
from fusewright.fusion.ir import (
    Broadcast,
    Constant,
    Fusion,
    Input,
    Op,
    Permute,
    Pointwise,
    Reduce,
    Reshape,
    Tensor,
    moves_data,
)


class Value(Protocol):
    """A value of a fusion, or of a schedule's dataflow."""

    @property
    def op(self) -> Op: ...
    @property
    def dtype(self) -> DType: ...


V = TypeVar("V", bound=Value)


def rounded_in_the_end(
    values: Sequence[V],
    users: Mapping[V, Sequence[V]],
    operands: Callable[[V], Sequence[V]],
    outputs: Mapping[V, bool],
) -> set[V]:
    """The float32 values whose every way out ends in a cast or store to 16 bits or fewer, by way of
    continuous functions and reductions only; operands before users. `outputs`: whether no more is
    kept of each of them."""
    out: set[V] = set()
    for v in reversed(values):
        if isinstance(v.op, Input) or not v.dtype.is_float or v.dtype.compute.nbytes != 4:
            continue
        read = users[v]
        fine = outputs[v] if v in outputs else bool(read)
        fine = fine and all(_rounds(u) or (u in out and _is_continuous(u)) for u in read)
        if fine and (not _is_call(v, "erf") or all(_adds_one(u, operands) for u in read)):
            out.add(v)
    return out


def rounded_values(fusion: Fusion) -> set[Tensor]:
    """The same of a whole program."""
    outputs = {t: is_short(t.dtype) for t in fusion.outputs}
    return rounded_in_the_end(fusion.values, fusion.uses(), lambda t: t.op.operands, outputs)


def _is_call(v: Value, fn: str) -> bool:
    return isinstance(v.op, Pointwise) and v.op.fn == fn


def _adds_one(v: V, operands: Callable[[V], Sequence[V]]) -> bool:
    """Whether a value is 1 + x or 1 - x: an absolute error of x is then a relative one."""
    if not (_is_call(v, "add") or _is_call(v, "sub")):
        return False
    return any(_is_one(o, operands) for o in operands(v))


def _is_one(v: V, operands: Callable[[V], Sequence[V]]) -> bool:
    while isinstance(v.op, Broadcast | Reshape | Permute):
        (v,) = operands(v)
    return isinstance(v.op, Constant) and v.op.value == 1


def is_short(dtype: DType) -> bool:
    """Whether a type is of floats of 16 bits or fewer."""
    return dtype.is_float and dtype.nbytes <= 2


def _rounds(v: Value) -> bool:
    return _is_call(v, "cast") and is_short(v.dtype)


def _is_continuous(v: Value) -> bool:
    if isinstance(v.op, Pointwise):
        return FUNCTIONS[v.op.fn].is_continuous
    return isinstance(v.op, Reduce) or moves_data(v.op)
