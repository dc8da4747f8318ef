"""Values that every kernel makes for itself: literals, sizes, coordinates, a few steps on those."""

from __future__ import annotations

from fusewright.fusion.ir import (
    Broadcast,
    Constant,
    Iota,
    Parts,
    Permute,
    Pointwise,
    Reshape,
    Size,
    Tensor,
)

MAX_STEPS = 4
"""Elementwise ops of a leaf: shifted and scaled coordinates, masks of bands and triangles."""
_CHEAP = frozenset(
    (
        *("add", "sub", "mul", "neg", "max", "min", "cast", "where"),
        *("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "logical_not"),
    )
)


def is_rematerialisable(t: Tensor) -> bool:
    """Whether a value depends on no input and takes less to compute than to read."""
    return _steps(t, MAX_STEPS) is not None


def _steps(t: Tensor, most: int) -> int | None:
    """The elementwise ops behind a leaf, `most` at most; None for other values."""
    while isinstance(t.op, Broadcast | Reshape | Parts | Permute):
        (t,) = t.op.operands
    match t.op:
        case Constant() | Size() | Iota():
            return 0
        case Pointwise(fn=fn) if most and fn in _CHEAP:
            total = 1
            for o in t.op.operands:
                found = _steps(o, most - total)
                if found is None:
                    return None
                total += found
            return total
        case _:
            return None
