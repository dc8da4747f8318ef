"""Sizes of values to plan with: symbols count at typical sizes."""

from __future__ import annotations

import math

from fusewright.core.substitution import estimate
from fusewright.fusion.ir import Shape, Tensor

STORED_TRIPS = 2
"""Trips to memory that a value makes which is stored: it is written, and read again."""


def numel_estimate(shape: Shape) -> int:
    """The number of elements of a shape."""
    return math.prod(map(estimate, shape))


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def nbytes_estimate(t: Tensor) -> int:
    """The bytes of a value."""
    return t.dtype.nbytes * numel_estimate(t.shape)
