"""The edges between classes, on words: split, merge, resize, swizzle, skew, serpentine.

A word is the mixed-radix number of its digits, and these only regroup it, so there-and-back, split
of a split and split across a merge come out as one word with no rewrite rules.
"""

from __future__ import annotations

from fusewright.axes.independence import Independence
from fusewright.axes.lines import Lines
from fusewright.axes.words import Digit, LineAtom, Serpentine, Skew, Twist, Word, ratio, word_extent
from fusewright.core.expr import ONE, ZERO, Expr, ceildiv, constant_value, mul
from fusewright.errors import ScheduleError


def whole(atom: LineAtom) -> Word:
    """The word of an atom."""
    return (Digit(atom, ONE, atom.extent),)


def resized(lines: Lines, word: Word, low: Expr, high: Expr) -> LineAtom:
    """The atom with `low` more positions in front of a word and `high` behind it."""
    atom = lines.box(word)
    return lines.atom(atom.line, atom.low - low, low + atom.extent + high)


def split(lines: Lines, word: Word, factor: Expr, *, inner: bool) -> tuple[Word, Word]:
    """`(outer, inner)`; the extent is first raised to the next multiple of the factor."""
    extent = word_extent(word)
    parts = ratio(extent, factor)
    if parts is None:
        parts = ceildiv(extent, factor)
        padded = resized(lines, word, ZERO, mul(parts, factor) - extent)
        word = lines.normal(whole(padded))
    return lines.cut(word, factor if inner else parts)


def swizzle(lines: Lines, independence: Independence, a: Word, b: Word) -> Word:
    """The word of `b ^ a`, where the extent of `a` is a power of two that divides that of `b`.

    rewrite:  b = (q, r) with r as long as a   ->   (q, r ^ a);  (r ^ a) ^ a -> r
    """
    size, total = word_extent(a), word_extent(b)
    number = constant_value(size)
    if number is None or number & (number - 1) or ratio(total, size) is None:
        raise ScheduleError(
            f"swizzle: the extents are {size} and {total}; the first must be a constant power of "
            "two that divides the second; split the axes first"
        )
    above, low = lines.cut(b, size)
    above, low = lines.normal(above), lines.normal(low)
    if not low or not a:
        return b
    undone = _twisted_by(lines, low, a, Twist)
    if undone is not None:
        return lines.normal((*above, *undone))
    if independence.words(a, low):
        raise ScheduleError(
            "swizzle: the two axes share a digit, as after an earlier swizzle of one by the other; "
            "swizzle axes that do not depend on each other"
        )
    return lines.normal((*above, *whole(lines.twist(Twist(low, a)))))


def skew(
    lines: Lines, independence: Independence, a: Word, by: Word, scale: Expr, modulus: int
) -> Word:
    """The word of `a + (by * scale) % modulus`."""
    if not a or not by:
        return a
    if independence.words(a, by):
        raise ScheduleError(
            "skew: the two axes share a digit; skew an axis by one that does not depend on it"
        )
    return lines.normal(whole(lines.twist(Skew(a, by, scale, modulus))))


def serpentine(lines: Lines, independence: Independence, a: Word, by: Word) -> Word:
    """The word of `a`, backwards where `by` is odd; twice it is `a` again."""
    if not a or not by:
        return a
    undone = _twisted_by(lines, a, by, Serpentine)
    if undone is not None:
        return lines.normal(undone)
    if independence.words(a, by):
        raise ScheduleError(
            "serpentine: the two axes share a digit; turn an axis by one that does not depend on it"
        )
    return lines.normal(whole(lines.twist(Serpentine(a, by))))


def _twisted_by(lines: Lines, word: Word, by: Word, kind: type[Twist]) -> Word | None:
    """The base when `word` is a twist of a kind by `by`."""
    if len(word) != 1 or not word[0].is_whole:
        return None
    definition = lines.definition.get(word[0].atom)
    if not isinstance(definition, Twist) or type(definition) is not kind:
        return None
    if lines.normal(definition.by) != by:
        return None
    return definition.base
