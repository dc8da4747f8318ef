"""In how many parts axes are cut."""

from __future__ import annotations

import math
from collections.abc import Sequence


def parts_of_rows(sizes: Sequence[int], most: int, step: int = 1) -> int:
    """In how many parts rows of these axes are dealt: a multiple of `step` of them, `most` at most;
    1 for none. Parts that divide the rows are whole slices of the axes, since a number cannot be
    spelled in digits of two kinds."""
    number = math.prod(sizes)
    choices = range(most - most % step, 0, -step)
    return next((p for p in choices if number % p or _are_slices(p, sizes)), 1)


def parts_of_rows_near(sizes: Sequence[int], wanted: int, step: int = 1) -> int:
    """The same within a factor of two of `wanted`: a divisor where there is one, so that no part is
    short. Where no multiple of `step` is that near, any number."""
    number = math.prod(sizes)
    choices = range(step * -(-wanted // (2 * step)), 2 * wanted + 1, step)
    if not choices:
        return parts_of_rows_near(sizes, wanted)
    even = [p for p in choices if number % p == 0 and _are_slices(p, sizes)]
    if even:
        return min(even, key=lambda p: (abs(p - wanted), p))
    return parts_of_rows(sizes, max(wanted, choices[0]), step)


def _are_slices(parts: int, sizes: Sequence[int]) -> bool:
    """Whether so many elements are the last axes and a divisor of the one before."""
    for size in reversed(sizes):
        if size % parts == 0:
            return True
        if parts % size:
            return False
        parts //= size
    return False
