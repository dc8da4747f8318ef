"""How many iterations of a loop the compiler may interleave."""

from __future__ import annotations

from fusewright.core.expr import Expr, constant_value

SHORT_LOOP = 32
OVERLAP = 4


def overlap_of(extent: Expr) -> int:
    """Short constant loops would be unrolled whole, and all their loads held in registers."""
    n = constant_value(extent)
    return OVERLAP if n is not None and n <= SHORT_LOOP else 0
