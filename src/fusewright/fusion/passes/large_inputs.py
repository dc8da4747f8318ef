"""The tensors in memory that a reduction reads whole, and how vectors meet their rows."""

from __future__ import annotations

import math

from fusewright.core.expr import constant_value
from fusewright.fusion.ir import Input, Reduce, Tensor
from fusewright.target import MAX_VECTOR_NBYTES

MAX_VISITS = 96


def constant_sizes(t: Tensor) -> tuple[int, ...] | None:
    """The shape of a value; None where a size is not known."""
    sizes = [constant_value(e) for e in t.shape]
    return None if any(n is None for n in sizes) else tuple(n or 0 for n in sizes)


def large_inputs(t: Tensor) -> set[Tensor]:
    """The inputs behind the operand of a reduction that are as large as it."""
    whole = t.op.operands[0]
    found: set[Tensor] = set()
    seen: set[Tensor] = set()
    stack = [whole]
    while stack and len(seen) < MAX_VISITS:
        o = stack.pop()
        if o in seen or isinstance(o.op, Reduce):
            continue
        seen.add(o)
        if isinstance(o.op, Input) and constant_sizes(o) == constant_sizes(whole):
            found.add(o)
        stack.extend(o.op.operands)
    return found


def period_of_rows(length: int, nbytes: int) -> int:
    """After how many rows of `length` elements of `nbytes` vectors begin where they did."""
    width = MAX_VECTOR_NBYTES // nbytes
    return width // math.gcd(length, width)
