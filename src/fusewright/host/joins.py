"""Joins: values that are other values side by side, and the parts that they consist of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from fusewright.core.expr import ONE, ZERO, add, as_expr, constant_value, mul
from fusewright.fusion.ir import (
    Broadcast,
    Concat,
    Constant,
    Insert,
    Permute,
    Pointwise,
    Reshape,
    Resize,
    Scalar,
    Tensor,
    behind_views,
)
from fusewright.fusion.passes.fold_crops import is_crop, only_grows
from fusewright.fusion.rematerialisable import is_rematerialisable
from fusewright.host.groups import only_units
from fusewright.host.subspans import Moving, Range, Subspan, natural
from fusewright.target import SECTOR_NBYTES

MAX_STORES = 8
"""Places that a kernel writes one value to; what is joined more often is copied."""


@dataclass(frozen=True, slots=True, eq=False)
class JoinPiece:
    """A part of a joined value: where it lies, and the value that it is; `fill` where `source` is
    None."""

    site: Subspan
    source: Tensor | None
    fill: Scalar = 0


def is_join(t: Tensor) -> bool:
    """Whether an op only puts its operands somewhere, whole and in the order of their axes."""
    match t.op:
        case Concat() | Insert():
            return True
        case Resize():
            return all(only_grows(e) for e in (*t.op.low, *t.op.high))
        case Reshape():
            return True
        case Pointwise(fn="copy"):
            return True
        case Broadcast():
            return keeps_order(t) or _is_repeated(t)
        case Permute():
            return keeps_order(t)
        case _:
            return False


def _is_repeated(t: Tensor) -> bool:
    """Whether a broadcast has its operand at a few places, and what lies behind the axes that
    repeat it is a run of whole sectors, so that storing each is as good as storing one."""
    assert isinstance(t.op, Broadcast)
    operand = t.op.operands[0]
    pairs = zip(t.op.axes, t.shape, strict=True)
    axes = [k for k, (a, n) in enumerate(pairs) if n != (ONE if a is None else operand.shape[a])]
    counts = [constant_value(t.shape[k]) or MAX_STORES + 1 for k in axes]
    run = math.prod(constant_value(n) or 1 for n in t.shape[max(axes, default=-1) + 1 :])
    is_run = run * t.dtype.nbytes % SECTOR_NBYTES == 0
    return bool(axes) and math.prod(counts) <= MAX_STORES and is_run


def keeps_order(t: Tensor) -> bool:
    """Whether a broadcast or permutation only adds or moves axes of size one."""
    operand = t.op.operands[0]
    if isinstance(t.op, Permute):
        sized = [a for a in t.op.axes if operand.shape[a] != ONE]
        return sized == sorted(sized)
    assert isinstance(t.op, Broadcast)
    return all(
        n == (ONE if a is None else operand.shape[a])
        for a, n in zip(t.op.axes, t.shape, strict=True)
    )


def pieces(t: Tensor, site: Subspan, members: set[Tensor]) -> Iterator[JoinPiece]:
    """What lies in the site of a joined value. Joins among the members are looked through; where
    a reshape has no strides, its result is a piece."""
    if is_rematerialisable(t):
        op = behind_views(t).op
        yield JoinPiece(site, None, op.value) if isinstance(op, Constant) else JoinPiece(site, t)
        return
    if t not in members or not is_join(t):
        yield JoinPiece(site, t)
        return
    match t.op:
        case Concat():
            yield from _concatenated(t.op, site, members)
        case Insert():
            yield from pieces(t.op.operands[0], site, members)
            yield _block(t.op, site)
        case Resize():
            yield from _padded(t.op, site, members)
        case Permute():
            inverse = [t.op.axes.index(a) for a in range(t.ndim)]
            yield from pieces(t.op.operands[0], site.permuted(inverse), members)
        case Pointwise():
            yield from pieces(t.op.operands[0], site, members)
        case Broadcast() if not keeps_order(t):
            yield from _repeated(t.op, site, members)
        case _:
            operand = t.op.operands[0]
            inside = site.reshaped(operand.shape)
            if inside is None:
                yield JoinPiece(site, t)
            else:
                yield from pieces(operand, inside, members)


def _concatenated(op: Concat, site: Subspan, members: set[Tensor]) -> Iterator[JoinPiece]:
    ends = list(accumulate((o.shape[op.axis] for o in op.operands), add))
    for o, start in zip(op.operands, [ZERO, *ends], strict=False):
        ranges: list[Range] = [(ZERO, n) for n in o.shape]
        ranges[op.axis] = (start, o.shape[op.axis])
        yield from pieces(o, site.part(ranges), members)


def _block(op: Insert, site: Subspan) -> JoinPiece:
    """The block, in the part of the site that may hold it."""
    block = op.operands[1]
    pairs = zip(op.start, block.shape, site.shape, strict=True)
    ranges = [(ZERO, n) if k in op.moving else (e, m) for k, (e, m, n) in enumerate(pairs)]
    start = tuple((k, op.start[k]) for k in op.moving)
    places = tuple(natural(p) for p in op.operands[2:])
    return JoinPiece(replace(site.part(ranges), moving=Moving(places, start)), block)


def _repeated(op: Broadcast, site: Subspan, members: set[Tensor]) -> Iterator[JoinPiece]:
    """The operand, at each place of the axes that repeat it."""
    (operand,) = op.operands
    shape = [ONE if a is None else operand.shape[a] for a in op.axes]
    axes = [k for k, (m, n) in enumerate(zip(shape, site.shape, strict=True)) if m != n]
    for place in itertools.product(*(range(constant_value(site.shape[k]) or 0) for k in axes)):
        at = dict(zip(axes, place, strict=True))
        part = site.part([(as_expr(at.get(k, 0)), n) for k, n in enumerate(shape)])
        inside = part.reshaped(operand.shape)
        assert inside is not None, "axes of size one have no strides to disagree with"
        yield from pieces(operand, inside, members)


def _padded(op: Resize, site: Subspan, members: set[Tensor]) -> Iterator[JoinPiece]:
    """The operand, and around it two slabs along every axis: the slabs of an axis lie inside of
    those of the axes before it."""
    operand = op.operands[0]
    inner: list[Range] = list(zip(op.low, operand.shape, strict=True))
    ranges: list[Range] = [(ZERO, n) for n in site.shape]
    for a, (low, high) in enumerate(zip(op.low, op.high, strict=True)):
        for start, extent in ((ZERO, low), (add(low, operand.shape[a]), high)):
            if extent != ZERO:
                slab = [*ranges[:a], (start, extent), *ranges[a + 1 :]]
                yield JoinPiece(site.part(slab), None, op.fill)
        ranges[a] = inner[a]
    yield from pieces(operand, site.part(inner), members)


# --- parts of sources ---------------------------------------------------------------------------


def is_part(t: Tensor, members: set[Tensor]) -> bool:
    """Whether a member is a run of views of a value made elsewhere that strides express."""
    source, views = source_of(t, members)
    return bool(views) and source not in members and not is_rematerialisable(source)


def site_in_source(
    t: Tensor, members: set[Tensor], site_of: Callable[[Tensor], Subspan]
) -> Subspan:
    """Where a value is found: a part of a source inside the site of that, any other in its own."""
    source, views = source_of(t, members)
    site = site_of(source)
    for v in reversed(views):
        site = _viewed(v, site)
    return site


def source_of(t: Tensor, members: set[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """What a run of strided views among the members reads, and the views, the last one first."""
    views: list[Tensor] = []
    while t in members and _is_strided_view(t):
        views.append(t)
        t = t.op.operands[0]
    return t, views


def _is_strided_view(t: Tensor) -> bool:
    match t.op:
        case Resize():
            return is_crop(t)
        case Reshape():
            return only_units(t)
        case Broadcast() | Permute():
            return keeps_order(t)
        case _:
            return False


def _viewed(t: Tensor, site: Subspan) -> Subspan:
    """The site of a strided view of what lies in a site."""
    match t.op:
        case Resize():
            return site.part([(mul(a, -1), n) for a, n in zip(t.op.low, t.shape, strict=True)])
        case Permute():
            return site.permuted(t.op.axes)
        case _:
            found = site.reshaped(t.shape)
            assert found is not None, "axes of size one have no strides to disagree with"
            return found
