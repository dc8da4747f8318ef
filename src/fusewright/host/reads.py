"""What a kernel reads of values that others make: boxes of them, each a binding of its own.

A kernel that only reads parts of a value must not wait for whoever writes the rest of it, so it
binds the parts. Parts that overlap, or that together are one box, are one binding, as long as no
byte comes in before the first or after the last that is read. Parts that products multiply stay
apart: a tensor map begins where a binding does, and so do tiles of sums of products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fusewright.core.conditions import less_equal, prove
from fusewright.core.expr import ZERO, Expr, add, as_expr, mul, parts_of, sum_of, variables
from fusewright.fusion.ir import IndexMap, Resize, Tensor
from fusewright.fusion.passes.fold_crops import is_crop
from fusewright.host.groups import MAX_OPERANDS
from fusewright.host.products import multiplied_views, operand_views
from fusewright.host.subspans import Range


@dataclass(frozen=True, slots=True)
class Read:
    """One binding of a value: a start and an extent along every axis, and the crops and index maps
    of the group that look into it; without any the group reads the whole value."""

    value: Tensor
    box: tuple[Range, ...]
    crops: tuple[Tensor, ...] = ()


def reads_of(group: Sequence[Tensor], values: Sequence[Tensor]) -> list[Read]:
    """The bindings by which a group reads values made elsewhere, in the order of these."""
    found: list[Read] = []
    members = dict.fromkeys(group)
    operands = operand_views(members) | multiplied_views(members)
    for t in values:
        users = [u for u in group if t in u.op.operands]
        boxes = [_part_of(u) for u in users]
        parts = [Read(t, b, (u,)) for u, b in zip(users, boxes, strict=True) if b is not None]
        if users and len(parts) == len(users):
            alone = [r for r in parts if not operands.isdisjoint(r.crops)]
            found += [*alone, *_merged([r for r in parts if r not in alone])]
        else:
            found.append(_whole(t))
    if len(found) <= MAX_OPERANDS:
        return found
    return [_whole(t) for t in values]


def box_of(crop: Tensor) -> tuple[Range, ...]:
    """Where a crop lies in its operand."""
    assert isinstance(crop.op, Resize)
    return tuple((mul(low, -1), n) for low, n in zip(crop.op.low, crop.shape, strict=True))


def _part_of(user: Tensor) -> tuple[Range, ...] | None:
    """The box of its operand that a move reads; None for other ops, and for index maps that reach
    over all of it but for less than a step at an end."""
    if is_crop(user):
        return box_of(user)
    if not isinstance(user.op, IndexMap):
        return None
    whole = _whole(user.op.operands[0]).box
    box = tuple(_reach(user, e, n) for e, (_, n) in zip(user.op.index, whole, strict=True))
    return None if box == whole else box


def _reach(user: Tensor, index: Expr, extent: Expr) -> Range:
    """What an index of a map reads along an axis: of sums of multiples of coordinates from the
    first place to the last, or the axis where that is less than a step shorter, of others, and
    of a map that some size may leave without coordinates: its last place is before its first."""
    assert isinstance(user.op, IndexMap)
    pairs = zip(user.op.coordinates, user.shape, strict=True)
    last: dict[Expr, Expr] = {c: add(n, -1) for c, n in pairs}
    if not all(_at_most(ZERO, n) for n in last.values()):
        return ZERO, extent
    constant, terms = parts_of(index)
    start, end, step = as_expr(constant), as_expr(constant + 1), 1
    for t in terms:
        product = sum_of(0, (t,))
        if not any(c in last for c in variables(product)):
            start, end = add(start, product), add(end, product)
        elif len(t.atoms) == 1 and t.atoms[0] in last:
            span = mul(last[t.atoms[0]], t.coefficient)
            step = max(step, abs(t.coefficient))
            start, end = (add(start, span), end) if t.coefficient < 0 else (start, add(end, span))
        else:
            return ZERO, extent
    is_first = _at_most(start, as_expr(step - 1))
    is_last = _at_most(extent, add(end, step - 1))
    low = ZERO if is_first else start
    return low, add(extent if is_last else end, mul(low, -1))


def within(move: Tensor, box: Sequence[Range]) -> Resize | IndexMap:
    """The crop or index map of what lies in a box of its operand; the operand is for the caller to
    put in."""
    op = move.op
    if isinstance(op, IndexMap):
        starts = (mul(start, -1) for start, _ in box)
        return replace(op, index=tuple(map(add, op.index, starts)))
    assert isinstance(op, Resize)
    low = tuple(add(a, start) for a, (start, _) in zip(op.low, box, strict=True))
    high = tuple(
        add(n, mul(add(a, extent), -1))
        for n, a, (_, extent) in zip(move.shape, low, box, strict=True)
    )
    return replace(op, low=low, high=high)


def _whole(t: Tensor) -> Read:
    return Read(t, tuple((ZERO, n) for n in t.shape))


def _merged(reads: Sequence[Read]) -> list[Read]:
    """The reads of one value with those joined that may share a binding."""
    out: list[Read] = []
    for r in reads:
        k = 0
        while k < len(out):
            box = _union(out[k].box, r.box)
            if box is None:
                k += 1
            else:
                r = Read(r.value, box, (*out.pop(k).crops, *r.crops))
                k = 0
        out.append(r)
    return out


def _union(a: Sequence[Range], b: Sequence[Range]) -> tuple[Range, ...] | None:
    """The box of two boxes that overlap, or that lie side by side in one axis and agree in all
    others, if one of them holds its first corner and one its last; None for others."""
    if any(n == ZERO for _, n in (*a, *b)):
        return None
    first, last = _first(a, b), _last(a, b)
    if first is None or last is None:
        return None
    joints = [_joint(x, y) for x, y in zip(a, b, strict=True)]
    same = sum(x == y for x, y in zip(a, b, strict=True))
    if None in joints or (False in joints and same < len(joints) - 1):
        return None
    return tuple(
        (start, add(end, extent, mul(start, -1)))
        for (start, _), (end, extent) in zip(first, last, strict=True)
    )


def _first(a: Sequence[Range], b: Sequence[Range]) -> Sequence[Range] | None:
    """The box that starts first in every axis."""
    for x, y in ((a, b), (b, a)):
        if all(_at_most(s, t) for (s, _), (t, _) in zip(x, y, strict=True)):
            return x
    return None


def _last(a: Sequence[Range], b: Sequence[Range]) -> Sequence[Range] | None:
    """The box that ends last in every axis."""
    for x, y in ((a, b), (b, a)):
        if all(_at_most(_end(s), _end(t)) for s, t in zip(y, x, strict=True)):
            return x
    return None


def _joint(a: Range, b: Range) -> bool | None:
    """True where two ranges share an element, False where one begins right after the other, None
    where they are apart or that is not known."""
    if a == b or (_less(a[0], _end(b)) and _less(b[0], _end(a))):
        return True
    return False if a[0] == _end(b) or b[0] == _end(a) else None


def _end(r: Range) -> Expr:
    return add(*r)


def _at_most(a: Expr, b: Expr) -> bool:
    return prove(less_equal(a, b)) is True


def _less(a: Expr, b: Expr) -> bool:
    return prove(less_equal(add(a, 1), b)) is True
