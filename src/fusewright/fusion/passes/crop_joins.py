"""Parts of joins are joins of parts."""

from __future__ import annotations

from collections.abc import Collection

from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import ZERO, Expr, add, mul
from fusewright.fusion import build
from fusewright.fusion.ir import Concat, Fusion, Resize, Tensor
from fusewright.fusion.passes.fold_crops import is_crop
from fusewright.fusion.passes.rebuild import rebuild


def crop_joins(fusion: Fusion, given: Collection[Tensor] = ()) -> Fusion:
    """Takes crops of what was joined, not of the join. `given`: arguments whose memory may hold a
    result.

    rewrite:  concat([a, b])[k:]  ->  concat([a[k:], b]), or b[k - len(a):] where a ends before k
    checks:   for each operand it is known where the crop begins and ends in it; a result that is an
              insertion into a given argument is read where it lies, unless the crop is of one
              operand: to join parts of it again would copy what is there already
    order:    behind hoist_crops, which takes crops through views of the join; before
              crop_reductions, which computes parts of what was joined, and fold_crops, which makes
              crops of crops one. Insertions into insertions become one join of parts
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not is_crop(t):
            return None
        made = _cropped(t, operands[0])
        is_join = made is not None and isinstance(made.op, Concat)
        return None if is_join and t.op.operands[0] in inserted else made

    inserted = {t for t in fusion.outputs if _is_insertion(t, given)}
    return rebuild(fusion, replace)


def _is_insertion(t: Tensor, given: Collection[Tensor]) -> bool:
    """Whether a value joins others with parts of a given argument."""
    if not isinstance(t.op, Concat):
        return False
    return any(
        _is_insertion(o, given) or (is_crop(o) and o.op.operands[0] in given) for o in t.op.operands
    )


def _cropped(t: Tensor, join: Tensor) -> Tensor | None:
    """The crop `t` of a join as a join of crops; None for what is no join, and where it is not
    known what is left of an operand."""
    op = t.op
    assert isinstance(op, Resize)
    if not isinstance(join.op, Concat):
        return None
    axis = join.op.axis
    first, last = mul(op.low[axis], -1), add(join.shape[axis], op.high[axis])
    parts: list[Tensor] = []
    start: Expr = ZERO
    for o in join.op.operands:
        end = add(start, o.shape[axis])
        taken = overlap_of(start, end, first, last)
        if taken is None:
            return None
        low, high = taken
        if add(low, o.shape[axis], high) != ZERO:
            lows = [low if a == axis else e for a, e in enumerate(op.low)]
            highs = [high if a == axis else e for a, e in enumerate(op.high)]
            part = build.resize(o, lows, highs, op.fill)
            parts.append((_cropped(part, o) or part) if part is not o else o)
        start = end
    return build.concat(parts, axis) if parts else None


def overlap_of(start: Expr, end: Expr, first: Expr, last: Expr) -> tuple[Expr, Expr] | None:
    """What a crop to `[first, last)` takes off both ends of an operand at `[start, end)`, all of
    it at the low end where they are apart; None where that is not known."""
    if prove(less_equal(end, first)) is True or prove(less_equal(last, start)) is True:
        return add(start, mul(end, -1)), ZERO
    low, high = _least(add(start, mul(first, -1))), _least(add(last, mul(end, -1)))
    return None if low is None or high is None else (low, high)


def _least(e: Expr) -> Expr | None:
    """The smaller one of an expression and 0; None where that is not known."""
    if prove(less_equal(e, 0)) is True:
        return e
    return ZERO if prove(less_equal(0, e)) is True else None
