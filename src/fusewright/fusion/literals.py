"""Literals: which scalars of a program are parameters of its kernels, and which stay in their text.

A parameter costs nothing, and programs that differ in it alone share one kernel. A literal stays
where its value makes other code: an integer division by a known number is a multiplication, by a
number that is known when the kernel runs some thirty-five instructions. So does a position that is
compared with a known one, as what a mask drops is then not read.
"""

from __future__ import annotations

import math

from fusewright.dtypes import DType, int32, int64
from fusewright.fusion.ir import (
    Fusion,
    Op,
    Pointwise,
    Tensor,
    behind_views,
)

UNNAMED = (0, 1, -1, math.inf, -math.inf)
"""Literals that stay in the text of a kernel wherever they are read."""
_UNROLLED = frozenset(("floordiv", "rem", "pow", "shl", "shr"))
"""Functions of integers that become other instructions where their second operand is known:
division and remainder a multiplication, a power its products, a shift one without its guard."""
_COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
"""Functions that say which places a mask keeps, where they compare positions."""
_POSITIONS = (int32, int64)
"""Types of positions: int64 as the program has them, int32 where that holds them."""


def is_parameter(value: bool | int | float) -> bool:
    """Whether a literal of the program is a parameter of its kernel, unless the op that reads it
    `needs_value`."""
    return not (isinstance(value, bool) or value in UNNAMED or value != value)


def needs_value(op: Op, position: int, dtype: DType) -> bool:
    """Whether a literal of some dtype stays in the text of the kernel where it is operand
    `position` of an op."""
    if not isinstance(op, Pointwise) or not dtype.is_integer:
        return False
    return (op.fn in _UNROLLED and position == 1) or (op.fn in _COMPARISONS and dtype in _POSITIONS)


def values_in_text(fusion: Fusion) -> frozenset[Tensor]:
    """The operands that some op of a fusion needs in the text of its kernel where they are
    literals."""
    return frozenset(
        behind_views(o)
        for t in fusion.values
        for position, o in enumerate(t.op.operands)
        if needs_value(t.op, position, o.dtype)
    )
