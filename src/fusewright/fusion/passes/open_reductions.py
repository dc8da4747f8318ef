"""A value is reduced along its own axes, where a reshape would merge them for one reader alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, Reduce, Reshape, Tensor, constant_shape
from fusewright.fusion.passes.rebuild import rebuild

Together = tuple[tuple[int, ...], tuple[int, ...]]
"""Axes before a reshape and those behind it that have the same elements."""


def open_reductions(fusion: Fusion) -> Fusion:
    """Reduces a value along its own axes, in which others have it: one kernel then has one set of
    loops for all of them, whatever the order in which its axes lie.

    rewrite:  x, sum(reshape(x, (n * h, c)), 0)  ->  x, sum(x, (0, 1))         x of (n, h, c)
    checks:   constant sizes; what is reduced are whole axes of the value, and the value is a
              result, or something reads it that is no reshape
    order:    before fold_moves, which spells reshapes as maps
    """
    uses, results = fusion.uses(), set(fusion.outputs)

    def is_had(t: Tensor) -> bool:
        return t in results or any(not isinstance(u.op, Reshape) for u in uses[t])

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, Reduce) or not isinstance(t.op.operands[0].op, Reshape):
            return None
        (seen,) = t.op.operands
        (source,) = seen.op.operands
        if not is_had(source) or not isinstance(operands[0].op, Reshape):
            return None
        axes = _own_axes(source, seen, t.op.axes)
        if not axes:
            return None
        made = build.reduce(t.op.fn, operands[0].op.operands[0], axes)
        return build.reshape("open_reductions", made, t.shape)

    return rebuild(fusion, replace)


def _own_axes(before: Tensor, behind: Tensor, axes: Sequence[int]) -> tuple[int, ...]:
    """The axes of a value that these are behind its reshape; none where they are parts of some, or
    sizes are not known."""
    shapes = constant_shape(before), constant_shape(behind)
    if shapes[0] is None or shapes[1] is None or 0 in shapes[0]:
        return ()
    found: list[int] = []
    for own, seen in _together(shapes[0], shapes[1]):
        sized = [a for a in seen if shapes[1][a] != 1]
        count = sum(a in axes for a in sized)
        if 0 < count < len(sized):
            return ()
        found += own if count else ()
    return tuple(found)


def _together(before: Sequence[int], behind: Sequence[int]) -> Iterator[Together]:
    """The fewest axes at a time that have as many elements before a reshape as behind it."""
    i = j = 0
    while i < len(before) and j < len(behind):
        first, n, m = (i, j), before[i], behind[j]
        i, j = i + 1, j + 1
        while n != m:
            if n < m:
                n, i = n * before[i], i + 1
            else:
                m, j = m * behind[j], j + 1
        yield tuple(range(first[0], i)), tuple(range(first[1], j))
    yield tuple(range(i, len(before))), tuple(range(j, len(behind)))
