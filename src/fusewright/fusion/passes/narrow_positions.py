"""Integers of 64 bits whose range is known are computed in 32 bits where these hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusewright.dtypes import int32, int64
from fusewright.fusion import build
from fusewright.fusion.ir import (
    Constant,
    Fusion,
    Iota,
    Pointwise,
    Tensor,
    ViewBase,
    is_alone,
    with_operands,
)
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.fusion.ranges import Range, ranges_of

EXACT = frozenset(
    ("abs", "add", "cast", "copy", "floordiv", "max", "min", "mul", "neg", "rem", "sub", "where")
)
"""Functions whose results of 32 bits are those of 64, if both hold operands and result."""
COMPARED = frozenset(("eq", "ge", "gt", "le", "lt", "ne"))


def narrow_positions(fusion: Fusion) -> Fusion:
    """Compute in 32 bits the integers of 64 that fit them whatever the arguments hold, as masks by
    position do. Most machine instructions are of 32 bits: an addition of 64 is two, a product
    four, a remainder by a literal a dozen. A remainder of what is less than one period away from
    it is a choice.

    rewrite:  iota + 3 <= other          ->  int32(iota) + 3 <= int32(other)
              float32(2 * iota)          ->  float32(2 * int32(iota))
              (iota + 3) % n             ->  where(i < n, i, i - n), i = int32(iota) + 3
    checks:   the ranges of operands and result are known, and within int32
    order:    behind the moves of coordinates, which make sums and remainders of int64
    """
    known = ranges_of(fusion.values)
    if not any(_is_wide(t) and t in known for t in fusion.values):
        return fusion
    narrow: dict[Tensor, Tensor] = {}

    def narrowed(old: Tensor, new: Tensor) -> Tensor:
        """An operand in 32 bits, if it has 64: `new` is what was `old` in the fusion."""
        if not _is_wide(old):
            return new
        if old not in narrow:
            narrow[old] = _in_32_bits(old, new, narrowed)
        return narrow[old]

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Pointwise) or is_alone(t):
            return None
        wide = [o for o in t.op.operands if _is_wide(o)]
        if not (wide or _is_wide(t)) or not all(_fits(o, known) for o in wide):
            return None
        own = tuple(narrowed(o, n) for o, n in zip(t.op.operands, operands, strict=True))
        if t.op.fn in COMPARED or (t.op.fn == "cast" and not _is_wide(t)):
            return build.value(t.shape, t.dtype, with_operands(t.op, own))
        if t.op.fn not in EXACT or not _is_wide(t) or not _fits(t, known):
            return None
        narrow[t] = _computed(t, t.op, own, known)
        return build.cast(narrow[t], t.dtype)

    return rebuild(fusion, replace)


def _is_wide(t: Tensor) -> bool:
    return t.dtype is int64


def _fits(t: Tensor, known: Mapping[Tensor, Range]) -> bool:
    low, high = int32.integer_range
    return t in known and low <= known[t][0] and known[t][1] <= high


def _in_32_bits(old: Tensor, new: Tensor, narrowed: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """What was `old` in the fusion, of 64 bits, in 32: coordinates and literals are made so, and
    views show such."""
    match old.op:
        case Iota(axis=axis):
            return build.iota(old.shape, axis, int32)
        case Constant(value=value):
            return build.constant(value, int32)
        case ViewBase():
            source = narrowed(old.op.operands[0], new.op.operands[0])
            return build.value(old.shape, int32, with_operands(new.op, (source,)))
        case _:
            return build.cast(new, int32)


def _computed(
    t: Tensor, op: Pointwise, operands: tuple[Tensor, ...], known: Mapping[Tensor, Range]
) -> Tensor:
    """A function in 32 bits; a remainder of what is less than one period away as a choice."""
    if op.fn == "cast":
        return build.cast(operands[0], int32)
    if op.fn == "rem":
        (low, high), period = known[op.operands[0]], known[op.operands[1]]
        if period[0] == period[1] and -period[0] <= low and high < 2 * period[0]:
            return _once_around(operands[0], operands[1], below=low < 0, beyond=high >= period[0])
    return build.value(t.shape, int32, with_operands(op, operands))


def _once_around(x: Tensor, period: Tensor, *, below: bool, beyond: bool) -> Tensor:
    """The remainder of numbers of which none is as much as a period `below` 0, or `beyond` its
    end by as much."""
    out = x
    if beyond:
        out = build.pointwise(
            "where", build.pointwise("lt", x, period), x, build.pointwise("sub", x, period)
        )
    if below:
        zero = build.full(x.shape, 0, int32)
        out = build.pointwise(
            "where", build.pointwise("lt", x, zero), build.pointwise("add", x, period), out
        )
    return out
