"""Arithmetic of closed intervals of integers; None is no limit.

Each function gives an interval that holds every result for operands from the given intervals.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Interval: TypeAlias = tuple[int | None, int | None]


def is_natural(interval: Interval) -> bool:
    """Whether nothing in it is negative."""
    return interval[0] is not None and interval[0] >= 0


def scale(interval: Interval, k: int) -> Interval:
    """`k * x`."""
    low, high = interval
    if k < 0:
        low, high = high, low
    return (None if low is None else low * k, None if high is None else high * k)


def add(intervals: Iterable[Interval]) -> Interval:
    """The sum."""
    low: int | None = 0
    high: int | None = 0
    for lo, hi in intervals:
        low = None if low is None or lo is None else low + lo
        high = None if high is None or hi is None else high + hi
    return low, high


def multiply(a: Interval, b: Interval) -> Interval:
    """`x * y`."""
    (al, ah), (bl, bh) = a, b
    if al is not None and bl is not None and al >= 0 and bl >= 0:
        return al * bl, None if ah is None or bh is None else ah * bh
    if al is None or ah is None or bl is None or bh is None:
        return None, None
    corners = (al * bl, al * bh, ah * bl, ah * bh)
    return min(corners), max(corners)


def multiples(a: Interval, of: int) -> Interval:
    """From the least to the greatest multiple of a positive number inside of an interval."""
    low, high = a
    return None if low is None else -(-low // of) * of, None if high is None else high // of * of


def floordiv(a: Interval, b: Interval) -> Interval:
    """`x // y`, rounded down, for positive `y`."""
    (low, high), (least, most) = a, b
    least = max(least or 1, 1)
    if low is not None:
        low = low // least if low < 0 else (low // most if most else 0)
    if high is not None:
        high = high // least if high >= 0 else (high // most if most else -1)
    return low, high


def mod(a: Interval, b: Interval) -> Interval:
    """`x - y * (x // y)` for positive `y`."""
    (low, high), (_, most) = a, b
    limits = [] if most is None else [most - 1]
    if low is not None and low >= 0 and high is not None:
        limits.append(high)
    return 0, min(limits) if limits else None


def minimum(a: Interval, b: Interval) -> Interval:
    """The smaller of two."""
    (al, ah), (bl, bh) = a, b
    highs = [h for h in (ah, bh) if h is not None]
    return None if al is None or bl is None else min(al, bl), min(highs) if highs else None


def maximum(a: Interval, b: Interval) -> Interval:
    """The larger of two."""
    (al, ah), (bl, bh) = a, b
    lows = [x for x in (al, bl) if x is not None]
    return max(lows) if lows else None, None if ah is None or bh is None else max(ah, bh)


def xor(a: Interval, b: Interval) -> Interval:
    """Bitwise exclusive or, for operands that are not negative."""
    ah, bh = a[1], b[1]
    if ah is None or bh is None:
        return 0, None
    return 0, (1 << max(ah.bit_length(), bh.bit_length())) - 1
