"""Values of which 16 bits or fewer are kept in the end, in this kernel or in another one.

    y = bfloat16(std(sigmoid(x)))     in parts: sums of sigmoid(x) over each part, in float32, and
                                      what they give together as bfloat16

Approximate instructions do for a sigmoid of which only that is kept, although its kernel stores
float32. They do where a sign decides between values that are both 0 where it turns, too, as in
where(x > 0, x, 0.1 * x). Works on values of a fusion and on stages of a schedule alike.
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

_ORDERS = frozenset({"lt", "le", "gt", "ge"})
_KEEP_ZERO = frozenset({"neg", "abs", "expm1", "cast"})


class TypedValue(Protocol):
    """A value of a fusion, or of a schedule's dataflow."""

    @property
    def op(self) -> Op: ...
    @property
    def dtype(self) -> DType: ...


V = TypeVar("V", bound=TypedValue)


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

    def bends(u: V, v: V) -> bool:
        """Whether a reader asks for the sign of a value, and only chooses by it between values that
        are 0 with it."""
        if not (isinstance(u.op, Pointwise) and u.op.fn in _ORDERS and u not in outputs):
            return False
        others = [o for o in operands(u) if o is not v]
        chosen = [operands(w)[1:] for w in users[u] if w in out and _is_call(w, "where")]
        return (
            len(others) == 1
            and _is_number(others[0], 0, operands)
            and len(chosen) == len(users[u])
            and all(_vanishes(c, v, operands) for pair in chosen for c in pair)
        )

    for v in reversed(values):
        if isinstance(v.op, Input) or not v.dtype.is_float or v.dtype.compute.nbytes != 4:
            continue
        read = users[v]
        fine = outputs[v] if v in outputs else bool(read)
        fine = fine and all(
            _rounds(u) or (u in out and _is_continuous(u)) or bends(u, v) for u in read
        )
        if fine and (not _is_call(v, "erf") or all(_adds_one(u, operands) for u in read)):
            out.add(v)
    return out


def rounded_values(fusion: Fusion) -> set[Tensor]:
    """The same of a whole program."""
    outputs = {t: is_short(t.dtype) for t in fusion.outputs}
    return rounded_in_the_end(fusion.values, fusion.uses(), lambda t: t.op.operands, outputs)


def _is_call(v: TypedValue, fn: str) -> bool:
    return isinstance(v.op, Pointwise) and v.op.fn == fn


def _adds_one(v: V, operands: Callable[[V], Sequence[V]]) -> bool:
    """Whether a value is 1 + x or 1 - x: an absolute error of x is then a relative one."""
    if not (_is_call(v, "add") or _is_call(v, "sub")):
        return False
    return any(_is_number(o, 1, operands) for o in operands(v))


def _is_number(v: V, number: int, operands: Callable[[V], Sequence[V]]) -> bool:
    while isinstance(v.op, Broadcast | Reshape | Permute):
        (v,) = operands(v)
    return isinstance(v.op, Constant) and v.op.value == number


def _vanishes(c: V, v: V, operands: Callable[[V], Sequence[V]]) -> bool:
    """Whether a value goes to 0 together with another one: it is that one, or 0, a multiple of what
    does, or a function that keeps 0."""
    if c is v or _is_number(c, 0, operands):
        return True
    if not isinstance(c.op, Pointwise):
        return False
    found = (_vanishes(o, v, operands) for o in operands(c))
    return any(found) if c.op.fn == "mul" else c.op.fn in _KEEP_ZERO and all(found)


def is_short(dtype: DType) -> bool:
    """Whether a type is of floats of 16 bits or fewer."""
    return dtype.is_float and dtype.nbytes <= 2


def _rounds(v: TypedValue) -> bool:
    return _is_call(v, "cast") and is_short(v.dtype)


def _is_continuous(v: TypedValue) -> bool:
    if isinstance(v.op, Pointwise):
        return FUNCTIONS[v.op.fn].is_continuous
    return isinstance(v.op, Reduce) or moves_data(v.op)
