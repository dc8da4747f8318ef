"""Roots of sums of powers."""

from __future__ import annotations

from fusewright.fusion.array import Array
from fusewright.fusion.derivatives import GivenRule
from fusewright.fusion.ops.elementwise import equal, sqrt, where


def root(x: Array, power: float = 2.0) -> Array:
    """`x ** (1 / power)` of a sum of magnitudes to that power. Where it is 0 its derivative is 0,
    as in PyTorch: each of the magnitudes has its least value there."""
    y = sqrt(x) if power == 2 else x ** (1.0 / power)

    def backward(g: Array) -> tuple[Array]:
        is_zero = equal(y, 0)
        safe = where(is_zero, 1, y)
        slope = g / (safe * 2) if power == 2 else g * safe ** (1.0 - power) / power
        return (where(is_zero, 0, slope),)

    y.tensor.rule = GivenRule((x.tensor,), backward)
    return y
