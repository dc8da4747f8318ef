"""Dropout as a pure function of its seed and offset; the mask is recomputed, never stored.

Element i of the result (in C order) takes word `i % 4` of Philox block `offset + i // 4`: a call
uses `ceil(size / 4)` blocks, so the next one goes on at `offset + ceil(size / 4)`.
"""

from __future__ import annotations

from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array
from fusewright.fusion.nn.arguments import check_float
from fusewright.fusion.ops import random, where
from fusewright.fusion.ops.creation import ShapeLike

_WORDS = 2**32


def _check_probability(op: str, p: float) -> float:
    if not 0.0 <= build.number(op, "p", p) < 1.0:
        raise UserError(
            f"{op}: p={p!r} must be at least 0 and below 1: it is the probability of a zero; for "
            "p = 1 use fw.zeros_like"
        )
    return float(p)


def dropout_mask(
    shape: ShapeLike, p: float, *, seed: int | Array, offset: int | Array = 0
) -> Array:
    """Which elements `dropout` keeps, as bool: each with probability 1 - p."""
    limit = min(round(_check_probability("dropout_mask", p) * _WORDS), _WORDS - 1)
    return random.bits(shape, seed=seed, offset=offset) >= limit


def dropout(x: Array, p: float = 0.5, *, seed: int | Array, offset: int | Array = 0) -> Array:
    """x / (1 - p) where `dropout_mask` keeps it, else 0. `seed` and `offset` are ints or integer
    arrays of rank 0; p = 0 returns x.

    Source: Srivastava et al., Dropout (2014).
    """
    return _dropped("dropout", x, p, seed, offset)


def dropout_backward(
    dy: Array, p: float = 0.5, *, seed: int | Array, offset: int | Array = 0
) -> Array:
    """The gradient of `dropout` called with the same p, seed and offset."""
    return _dropped("dropout_backward", dy, p, seed, offset)


def _dropped(op: str, x: Array, p: float, seed: int | Array, offset: int | Array) -> Array:
    x = check_float(op, x)
    if not _check_probability(op, p):
        return x
    keep = dropout_mask(x.shape, p, seed=seed, offset=offset)
    return where(keep, x * (1.0 / (1.0 - p)), 0)
